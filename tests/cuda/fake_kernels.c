/* SPDX-License-Identifier: Apache-2.0 */
/* Launches on the fake device: what lists.cu and optim.cu do, block by block. */
#include "emulated.h"
#include "fake.h"

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/optim.h"

#include <math.h>
#include <stdlib.h>

static cudaError_t launched(cudaStream_t stream) {
    amp_fake_cuda.on_null_stream += stream == NULL;
    amp_fake_cuda.launches++;
    if (++amp_fake_cuda.calls != amp_fake_cuda.fail_at) return cudaSuccess;
    amp_fake_cuda.last_error = amp_fake_cuda.fail_with;
    return (cudaError_t)amp_fake_cuda.fail_with;
}

#define LAUNCHED(blocks)                                                                                               \
    do {                                                                                                               \
        if ((blocks) == 0) return cudaSuccess;                                                                         \
        const cudaError_t launched_error_ = launched(stream);                                                          \
        if (launched_error_ != cudaSuccess) return launched_error_;                                                    \
    } while (0)

/* ---- lists.cu ---- */

struct factors {
    float a, b;
};

static uint32_t cast_fn(const struct cuda_tensor *t, const struct cuda_place *at, const void *unused, double sums[2]) {
    (void)unused, (void)sums;
    cuda_cast_group(t, at);
    return 0;
}
static uint32_t zero_fn(const struct cuda_tensor *t, const struct cuda_place *at, const void *unused, double sums[2]) {
    (void)unused, (void)sums;
    cuda_zero_group(t, at);
    return 0;
}
static uint32_t scale_fn(const struct cuda_tensor *t, const struct cuda_place *at, const void *f, double sums[2]) {
    (void)sums;
    return cuda_scale_group(t, at, ((const struct factors *)f)->a);
}
static uint32_t axpby_fn(const struct cuda_tensor *t, const struct cuda_place *at, const void *f, double sums[2]) {
    (void)sums;
    return cuda_axpby_group(t, at, ((const struct factors *)f)->a, ((const struct factors *)f)->b);
}
static uint32_t check_fn(const struct cuda_tensor *t, const struct cuda_place *at, const void *f, double sums[2]) {
    return cuda_check_group(t, at, ((const struct factors *)f)->a, ((const struct factors *)f)->b, &sums[0]);
}

cudaError_t cuda_launch_cast(const struct cuda_table *table, cudaStream_t stream) {
    LAUNCHED(table->n_chunks);
    (void)emulate_table(table, 2, cast_fn, NULL, NULL);
    return cudaSuccess;
}
cudaError_t cuda_launch_zero(const struct cuda_table *table, cudaStream_t stream) {
    LAUNCHED(table->n_chunks);
    (void)emulate_table(table, 1, zero_fn, NULL, NULL);
    return cudaSuccess;
}
cudaError_t cuda_launch_scale(const struct cuda_table *table, const struct cuda_factor *scale, float *found_inf,
                              cudaStream_t stream) {
    const struct factors f = { cuda_factor_of(scale), 0.0f };
    LAUNCHED(table->n_chunks);
    if (scale->how == CUDA_CLIP && f.a == 1.0f) return cudaSuccess;
    if (emulate_table(table, 2, scale_fn, &f, NULL) && found_inf) *found_inf = 1.0f;
    return cudaSuccess;
}
cudaError_t cuda_launch_axpby(const struct cuda_table *table, const struct cuda_factor *a, const struct cuda_factor *b,
                              float *found_inf, cudaStream_t stream) {
    const struct factors f = { cuda_factor_of(a), cuda_factor_of(b) };
    LAUNCHED(table->n_chunks);
    if (emulate_table(table, 3, axpby_fn, &f, NULL) && found_inf) *found_inf = 1.0f;
    return cudaSuccess;
}
cudaError_t cuda_launch_check(const struct cuda_table *table, const struct cuda_factor *scale,
                              const struct cuda_factor *factor, double *sums, float *found_inf, cudaStream_t stream) {
    const struct factors f = { cuda_factor_of(scale), cuda_factor_of(factor) };
    double *pairs;
    LAUNCHED(table->n_chunks);
    if (!(pairs = calloc(2 * (size_t)table->n_chunks, sizeof *pairs))) abort();
    if (emulate_table(table, 1, check_fn, &f, pairs) && found_inf) *found_inf = 1.0f;
    for (uint32_t c = 0; c < table->n_chunks; c++) sums[c] = pairs[2 * (size_t)c];
    free(pairs);
    return cudaSuccess;
}
cudaError_t cuda_launch_norms(const struct cuda_table *table, const double *sums, double *tensor_sums, float *norms,
                              float *norm, uint32_t *ticket, cudaStream_t stream) {
    LAUNCHED(table->n_tensors);
    if (*ticket) abort(); /* the scratch was not prepared */
    for (uint32_t i = 0; i < table->n_tensors; i++) {
        tensor_sums[i] = emulated_strided(sums, table->first_chunks[i], table->first_chunks[i + 1], 1);
        if (norms) norms[i] = (float)sqrt(tensor_sums[i]);
    }
    if (norm) *norm = (float)sqrt(emulated_strided(tensor_sums, 0, table->n_tensors, 1));
    return cudaSuccess;
}

/* ---- optim.cu ---- */

cudaError_t cuda_launch_prepare(const struct cuda_step *step, cudaStream_t stream) {
    LAUNCHED(step->n_tensors);
    for (uint32_t i = 0; i < step->n_tensors; i++) {
        if (step->found_inf && *step->found_inf != 0.0f) {
            step->updates[i].flags = CUDA_SKIPPED;
            continue;
        }
        const struct cuda_norms norms = {
            step->norm ? *step->norm : 0.0f,
            step->grad_norms ? step->grad_norms[i] : 0.0f,
            step->param_norms ? step->param_norms[i] : 0.0f,
        };
        float *kept = step->kept ? (float *)(uintptr_t)step->kept[i] : NULL;
        step->updates[i] = cuda_prepare(&step->rule, step->steps[i], cuda_factor_of(&step->inv_scale),
                                        cuda_factor_of(&step->factor), &norms, kept);
        step->steps[i]++;
    }
    return cudaSuccess;
}

struct update {
    enum cuda_rule rule;
    const struct cuda_update *updates;
};

static uint32_t update_fn(const struct cuda_tensor *t, const struct cuda_place *at, const void *given, double sums[2]) {
    const struct update *update = given;
    const struct cuda_update *u = &update->updates[emulated_tensor];
    if (!(u->flags & CUDA_SKIPPED)) cuda_update_group(update->rule, t, u, at, sums);
    return 0;
}

cudaError_t cuda_launch_update(enum cuda_rule rule, const struct cuda_table *table, const struct cuda_update *updates,
                               cudaStream_t stream) {
    const struct update update = { rule, updates };
    LAUNCHED(table->n_chunks);
    (void)emulate_table(table, CUDA_UPDATE_SPANS, update_fn, &update, NULL);
    return cudaSuccess;
}

cudaError_t cuda_launch_lamb(const struct cuda_table *table, const amp_optim *rule, struct cuda_update *updates, double *sums,
                             cudaStream_t stream) {
    const struct update update = { CUDA_LAMB_MOMENTS, updates };
    LAUNCHED(table->n_chunks);
    LAUNCHED(table->n_tensors);
    (void)emulate_table(table, CUDA_UPDATE_SPANS, update_fn, &update, sums);
    for (uint32_t i = 0; i < table->n_tensors; i++) {
        const size_t begin = 2 * (size_t)table->first_chunks[i], end = 2 * (size_t)table->first_chunks[i + 1];
        const double of_p = emulated_strided(sums, begin, end, 2), of_u = emulated_strided(sums + 1, begin, end, 2);
        if (!(updates[i].flags & CUDA_SKIPPED)) updates[i].lr = cuda_lamb_lr(rule, of_p, of_u);
    }
    return cudaSuccess;
}
