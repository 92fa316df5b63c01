/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of blas_kernels.h on the fake device: what finish_kernels.cu does, thread after thread. */
#include "fake_work.h"

#include "kernels/cuda/blas_kernels.h"

static cudaError_t launch(cudaStream_t stream, fake_work_fn *run, const void *arguments, size_t bytes) {
    fake_on_stream(stream);
    amp_fake_cuda.launches++;
    const cudaError_t error = fake_called();
    if (error != cudaSuccess) return error;
    fake_work(run, arguments, bytes);
    return cudaSuccess;
}

static void run_finish(const void *given) {
    const struct cuda_finish *finish = given;
    for (uint32_t g = 0; g < cuda_finish_groups(finish); g++) cuda_finish_group(finish, g);
}

static void run_sums(const void *given) {
    const struct cuda_sums *s = given;
    for (uint64_t p = 0; p < s->batch * s->n_p; p++) {
        const uint64_t item = p / s->n_p, line = p % s->n_p;
        const int64_t at = (int64_t)item * s->stride_x + (int64_t)line * s->step_p;
        const uint32_t type = CUDA_TYPE(s->shape, 0);
        double sum = 0.0;
        for (uint64_t q = 0; q < s->n_q; q++)
            sum = sum + (double)cuda_load_one_f32(s->x, type, (uint64_t)(at + (int64_t)q * s->step_q));
        (void)cuda_store_one_f32(s->out, s->out_type, (uint64_t)((int64_t)item * s->stride_out) + line, (float)sum);
    }
}

cudaError_t cuda_launch_finish(const struct cuda_finish *finish, cudaStream_t stream) {
    return launch(stream, run_finish, finish, sizeof *finish);
}

cudaError_t cuda_launch_sums(const struct cuda_sums *sums, cudaStream_t stream) {
    return launch(stream, run_sums, sums, sizeof *sums);
}
