/* SPDX-License-Identifier: Apache-2.0 */
/* libamp_cuda.so's table: lists of tensors in the memory of NVIDIA GPUs. CUDA's runtime is linked in. */
#include "kernels/backend.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/machine.h"
#ifdef AMP__CUDA_NCCL
#include "kernels/cuda/nccl.h"
#endif
#ifdef AMP__CUDA_BLAS
#include "kernels/cuda/blas.h"
#endif

#include <cuda_runtime_api.h>

static enum cuda_answer answer_of(cudaError_t error) {
    switch (error) {
    case cudaSuccess: return CUDA_ANSWERED;
    case cudaErrorNoDevice: return CUDA_SAW_NO_DEVICE;
    case cudaErrorInsufficientDriver: return CUDA_DRIVER_TOO_OLD;
    default: return CUDA_FAILED;
    }
}

static amp_status init_cuda(const struct amp__backend_host *host, char *version, size_t size) {
    char text[400];
    struct cuda_machine machine = { .runtime = CUDART_VERSION };
    if (cudaDriverGetVersion(&machine.driver) != cudaSuccess) machine.driver = 0;
    const cudaError_t error = cudaGetDeviceCount(&machine.devices);
    machine.answer = answer_of(error);
    machine.error = cudaGetErrorString(error);
    (void)cudaGetLastError(); /* the answer is no error of the host's next call */
    const amp_status status = cuda_judge(&machine, text, sizeof text);
    if (status != AMP_OK) return host->fail(status, text);
    (void)cuda_judge(&machine, version, size);
    const amp_status asked = cuda_device_init(host);
    if (asked != AMP_OK) return asked;
#ifdef AMP__CUDA_BLAS
    cuda_blas_init(host);
#endif
    return AMP_OK;
}

__attribute__((visibility("default"))) const struct amp__backend *amp_backend(void);

__attribute__((visibility("default"))) const struct amp__backend *amp_backend(void) {
#ifdef AMP__CUDA_BLAS
    static void *const locks[] = { &cuda_blas_lock, NULL };
#endif
    static const struct amp__backend table = {
        .magic = AMP__BACKEND_MAGIC,
        .abi = AMP__BACKEND_ABI,
        .name = "cuda",
        .init = init_cuda,
        .list_open = cuda_list_open,
        .list_close = cuda_list_close,
        .list_run = cuda_list_run,
        .memory_open = cuda_block_open,
        .memory_close = cuda_block_close,
        .memory_run = cuda_block_run,
        .where = cuda_where,
#ifdef AMP__CUDA_NCCL
        .comm_open = cuda_comm_open,
        .comm_close = cuda_comm_close,
        .comm_run = cuda_comm_run,
#endif
#ifdef AMP__CUDA_BLAS
        .locks = locks,
        .product = cuda_product,
        .product_explain = cuda_product_explain,
        .tensor_cores = cuda_tensor_cores,
#endif
    };
    return &table;
}
