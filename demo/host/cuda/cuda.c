/* SPDX-License-Identifier: Apache-2.0 */
/* The table of device.h, by CUDA: one GPU, one stream. */
#include "cuda.h"
#include "minitape_cuda.h"

#include <stdlib.h>
#include <string.h>

static cudaStream_t stream;

static int failed(cudaError_t error, const char *what)
{
	if (error == cudaSuccess)
		return 0;
	mti_fail("CUDA %s: %s (%s)", what, cudaGetErrorString(error),
	         cudaGetErrorName(error));
	return -1;
}

/* ---- memory ------------------------------------------------------------- */

/* In the stream's order: what is freed is there for what comes later. */
static void *device_alloc(size_t bytes)
{
	void *data = NULL;
	cudaError_t error = cudaMallocAsync(&data, bytes, stream);

	if (error == cudaErrorMemoryAllocation) {
		(void)cudaGetLastError();
		mti_fail("out of memory on the GPU: %zu bytes", bytes);
		return NULL;
	}
	return failed(error, "cannot allocate") ? NULL : data;
}

static void device_free(void *data)
{
	if (cudaFreeAsync(data, stream) != cudaSuccess)
		mti_device_fail();
}

static int device_zero(void *to, size_t bytes)
{
	return failed(cudaMemsetAsync(to, 0, bytes, stream), "cannot clear");
}

/*
 * What goes to the GPU waits in pinned memory for the copy to happen.  Each
 * block is used again when its copy is done, which a step later it long is.
 */
#define BLOCKS 16

static struct block {
	void *data;
	size_t bytes;
	cudaEvent_t copied;
} blocks[BLOCKS];
static int next_block;

static int make_room(struct block *b, size_t bytes)
{
	if (!b->copied && failed(cudaEventCreateWithFlags(
					 &b->copied, cudaEventDisableTiming),
	                         "cannot make an event"))
		return -1;
	if (failed(cudaEventSynchronize(b->copied), "cannot copy"))
		return -1;
	if (b->bytes >= bytes)
		return 0;
	cudaFreeHost(b->data);
	b->data = NULL;
	b->bytes = 0;
	if (failed(cudaMallocHost(&b->data, bytes), "has no pinned memory"))
		return -1;
	b->bytes = bytes;
	return 0;
}

static int device_in(void *to, const void *from, size_t bytes)
{
	struct block *b = &blocks[next_block];

	next_block = (next_block + 1) % BLOCKS;
	if (make_room(b, bytes) != 0)
		return -1;
	memcpy(b->data, from, bytes);
	if (failed(cudaMemcpyAsync(to, b->data, bytes, cudaMemcpyHostToDevice,
	                           stream),
	           "cannot copy"))
		return -1;
	return failed(cudaEventRecord(b->copied, stream), "cannot copy");
}

static int device_wait(void)
{
	return failed(cudaStreamSynchronize(stream), "failed");
}

static int device_out(void *to, const void *from, size_t bytes)
{
	if (failed(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost,
	                           stream),
	           "cannot copy"))
		return -1;
	return device_wait();
}

static int device_run(enum mtk_kernel kernel, const void *args, size_t n)
{
	return failed(mtc_launch(kernel, args, n, stream),
	              "cannot start a kernel");
}

/* ---- opening ------------------------------------------------------------ */

static int find_gpu(void)
{
	int gpus = 0, driver = 0;
	cudaError_t error = cudaGetDeviceCount(&gpus);

	if (error == cudaSuccess && gpus > 0)
		return 0;
	(void)cudaGetLastError();
	(void)cudaDriverGetVersion(&driver);
	if (error == cudaErrorInsufficientDriver && driver == 0)
		mti_fail("there is no NVIDIA driver here: an NVIDIA GPU and "
		         "its driver are needed");
	else if (error == cudaErrorInsufficientDriver)
		mti_fail("the NVIDIA driver is for CUDA %d.%d and this program "
		         "for %d.%d: install a newer driver",
		         driver / 1000, driver % 1000 / 10,
		         CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
	else if (error == cudaErrorNoDevice || error == cudaSuccess)
		mti_fail("the NVIDIA driver finds no GPU");
	else
		failed(error, "finds no GPU");
	return -1;
}

/* What is freed stays in the pool: a training allocates the same again. */
static int keep_pool(void)
{
	int pools = 0;
	uint64_t all = UINT64_MAX;
	cudaMemPool_t pool;

	if (failed(cudaDeviceGetAttribute(&pools,
	                                  cudaDevAttrMemoryPoolsSupported, 0),
	           "tells nothing of its memory"))
		return -1;
	if (!pools) {
		mti_fail("this GPU has no memory pools (cudaMallocAsync)");
		return -1;
	}
	if (failed(cudaDeviceGetDefaultMemPool(&pool, 0), "has no pool"))
		return -1;
	return failed(cudaMemPoolSetAttribute(
			      pool, cudaMemPoolAttrReleaseThreshold, &all),
	              "cannot keep its pool");
}

/* The first GPU's kernels: asked for here, so that a GPU that there is no code
 * for is refused before anything is trained. */
static int try_kernel(void)
{
	struct mtk_fill fill = {{NULL, MT_F32}, 0.0F};
	int status;

	fill.to.data = device_alloc(sizeof(float));
	if (!fill.to.data)
		return -1;
	status = device_run(MTK_fill, &fill, 1);
	device_free(fill.to.data);
	return status == 0 ? device_wait() : -1;
}

int mt_cuda_open(void)
{
	static struct cudaDeviceProp properties;
	static struct mti_device table = {.alloc = device_alloc,
	                                  .free = device_free,
	                                  .in = device_in,
	                                  .out = device_out,
	                                  .zero = device_zero,
	                                  .wait = device_wait,
	                                  .run = device_run,
	                                  .multiply = mtc_blas_multiply};

	if (mti_device())
		return 0;
	if (find_gpu() != 0 || failed(cudaSetDevice(0), "cannot use the GPU") ||
	    failed(cudaGetDeviceProperties(&properties, 0), "has no name") ||
	    keep_pool() != 0 || mtc_blas_open() != 0)
		return -1;
	if (failed(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
	           "cannot make a stream") ||
	    try_kernel() != 0)
		return -1;
	table.name = properties.name;
	table.stream = stream;
	mti_device_install(&table);
	return 0;
}
