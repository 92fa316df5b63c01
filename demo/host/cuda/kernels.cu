// SPDX-License-Identifier: Apache-2.0
// The kernels, each made of the function of its name in elements.h or layers.h.
#define MTK_FN static __device__ __forceinline__
#include "layers.h"

#include <cuda_runtime_api.h>

// ---- kernels

#define EACH(name)                                                             \
	static __global__ void __launch_bounds__(MTK_THREADS)                  \
	each_##name(const mtk_args_##name args, size_t n)                      \
	{                                                                      \
		const size_t i = (size_t)blockIdx.x * MTK_THREADS +            \
		                 threadIdx.x;                                  \
		if (i < n)                                                     \
			mtk_each_##name(&args, i);                             \
	}

// Every thread's share, then halves onto halves: one order in every run.
#define ROWS(name)                                                             \
	static __global__ void __launch_bounds__(MTK_THREADS)                  \
	rows_##name(const mtk_args_##name args)                                \
	{                                                                      \
		__shared__ double shares[2][MTK_THREADS];                      \
		const unsigned thread = threadIdx.x;                           \
		double sums[2] = {0.0, 0.0};                                   \
		mtk_share_##name(&args, blockIdx.x, thread, sums);             \
		shares[0][thread] = sums[0];                                   \
		shares[1][thread] = sums[1];                                   \
		for (unsigned half = MTK_THREADS / 2; half; half /= 2) {       \
			__syncthreads();                                       \
			if (thread >= half)                                    \
				continue;                                      \
			shares[0][thread] += shares[0][thread + half];         \
			shares[1][thread] += shares[1][thread + half];         \
		}                                                              \
		if (thread != 0)                                               \
			return;                                                \
		sums[0] = shares[0][0];                                        \
		sums[1] = shares[1][0];                                        \
		mtk_finish_##name(&args, blockIdx.x, sums);                    \
	}

MTK_KERNELS(EACH, ROWS)

// ---- launches

template <typename... Parameters>
static cudaError_t start(void (*kernel)(Parameters...), size_t blocks,
                         cudaStream_t stream, Parameters... parameters)
{
	cudaLaunchConfig_t config = {};

	if (blocks > 0x7fffffff)
		return cudaErrorInvalidConfiguration;
	config.gridDim = dim3((unsigned)blocks);
	config.blockDim = dim3(MTK_THREADS);
	config.stream = stream;
	return cudaLaunchKernelEx(&config, kernel,
	                          static_cast<Parameters &&>(parameters)...);
}

#define START_EACH(name)                                                       \
	case MTK_##name:                                                       \
		return start(each_##name,                                      \
		             (n + MTK_THREADS - 1) / MTK_THREADS, stream,      \
		             *static_cast<const mtk_args_##name *>(args), n);
#define START_ROWS(name)                                                       \
	case MTK_##name:                                                       \
		return start(rows_##name, n, stream,                           \
		             *static_cast<const mtk_args_##name *>(args));

extern "C" cudaError_t mtc_launch(enum mtk_kernel kernel, const void *args,
                                  size_t n, cudaStream_t stream)
{
	switch (kernel) {
		MTK_KERNELS(START_EACH, START_ROWS)
	default:
		return cudaErrorInvalidValue;
	}
}
