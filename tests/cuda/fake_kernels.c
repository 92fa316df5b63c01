/* SPDX-License-Identifier: Apache-2.0 */
/* Launches on the fake device: what the .cu files do, block by block, at once or when the fake's stream comes to it. */
#include "emulated.h"
#include "fake_work.h"

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/optim.h"
#include "kernels/cuda/scaler.h"
#include "kernels/cuda/statistics.h"

#include <math.h>
#include <stdlib.h>

static cudaError_t launch(uint32_t blocks, cudaStream_t stream, fake_work_fn *run, const void *arguments,
                          size_t bytes) {
    if (blocks == 0) return cudaSuccess;
    fake_on_stream(stream);
    amp_fake_cuda.launches++;
    const cudaError_t error = fake_called();
    if (error != cudaSuccess) return error;
    fake_work(run, arguments, bytes);
    return cudaSuccess;
}

/* ---- list_kernels.cu ---- */

struct factors {
    float a, b;
};

struct reconciliation {
    const float *norms;
    uint32_t low;
};

/* What a thread does to a group, with `given` of a type of its own. */
#define GROUP_FN(name, type, ...)                                                                                      \
    static uint32_t name##_fn(const struct cuda_tensor *t, const struct cuda_range *at, const void *given,             \
                              double sums[2]) {                                                                        \
        const type *g = given;                                                                                         \
        (void)g, (void)sums;                                                                                           \
        return __VA_ARGS__;                                                                                            \
    }
GROUP_FN(cast, void, cuda_cast_group(t, at), 0)
GROUP_FN(zero, void, cuda_zero_group(t, at), 0)
GROUP_FN(scale, struct factors, cuda_scale_group(t, at, g->a))
GROUP_FN(axpby, struct factors, cuda_axpby_group(t, at, g->a, g->b))
GROUP_FN(check, struct factors, cuda_check_group(t, at, g->a, g->b, &sums[0]))
GROUP_FN(add, struct factors, cuda_add_group(t, at, g->a, g->b))
GROUP_FN(clamp, float, cuda_clamp_group(t, at, *g), 0)
GROUP_FN(reconcile, struct reconciliation,
         cuda_reconcile_group(t, at, g->norms && g->norms[emulated_tensor] == 0.0f, g->low), 0)
GROUP_FN(round, uint32_t, cuda_round_group(t, at, *g))
#undef GROUP_FN

/* What a launch was given, kept until it runs. */
struct call {
    struct cuda_table table;
    struct cuda_factor a, b;
    struct cuda_found found;
    const float *flag; /* only_if, norms */
    double *sums, *tensor_sums;
    float *norms, *norm;
    uint32_t *ticket;
    uint32_t low;
};

static void report(const struct cuda_found *found, uint32_t nonfinite) {
    if (!nonfinite) return;
    if (found->found_inf) *found->found_inf = 1.0f;
    if (found->first && found->base + emulated_first < *found->first) *found->first = found->base + emulated_first;
}

static void run_cast(const void *given) {
    const struct call *c = given;
    if (!c->flag || *c->flag != 0.0f) (void)emulate_table(&c->table, 2, cast_fn, NULL, NULL);
}
static void run_reconcile(const void *given) {
    const struct call *c = given;
    const struct reconciliation r = { c->flag, c->low };
    (void)emulate_table(&c->table, 2, reconcile_fn, &r, NULL);
}
static void run_round(const void *given) {
    const struct call *c = given;
    report(&c->found, emulate_table(&c->table, 2, round_fn, &c->low, NULL));
}
static void run_clamp(const void *given) {
    const struct call *c = given;
    (void)emulate_table(&c->table, 2, clamp_fn, &c->a.value, NULL);
}
static void run_zero(const void *given) {
    (void)emulate_table(&((const struct call *)given)->table, 1, zero_fn, NULL, NULL);
}
static void run_scale(const void *given) {
    const struct call *c = given;
    const struct factors f = { cuda_factor_of(&c->a), 0.0f };
    if (c->a.how != CUDA_CLIP || f.a != 1.0f) report(&c->found, emulate_table(&c->table, 2, scale_fn, &f, NULL));
}
static void run_axpby(const void *given) {
    const struct call *c = given;
    const struct factors f = { cuda_factor_of(&c->a), cuda_factor_of(&c->b) };
    report(&c->found, emulate_table(&c->table, 3, axpby_fn, &f, NULL));
}
static void run_add(const void *given) {
    const struct call *c = given;
    const struct factors f = { cuda_factor_of(&c->a), cuda_factor_of(&c->b) };
    report(&c->found, emulate_table(&c->table, 3, add_fn, &f, NULL));
}
static void run_check(const void *given) {
    const struct call *c = given;
    const struct factors f = { cuda_factor_of(&c->a), cuda_factor_of(&c->b) };
    double *pairs = calloc(2 * (size_t)c->table.n_chunks, sizeof *pairs);
    if (!pairs) abort();
    report(&c->found, emulate_table(&c->table, 1, check_fn, &f, pairs));
    for (uint32_t i = 0; i < c->table.n_chunks; i++) c->sums[i] = pairs[2 * (size_t)i];
    free(pairs);
}
static void run_norms(const void *given) {
    const struct call *c = given;
    if (*c->ticket) abort(); /* the scratch was not prepared */
    for (uint32_t i = 0; i < c->table.n_tensors; i++) {
        c->tensor_sums[i] = emulated_strided(c->sums, c->table.first_chunks[i], c->table.first_chunks[i + 1], 1);
        if (c->norms) c->norms[i] = (float)sqrt(c->tensor_sums[i]);
    }
    if (c->norm) *c->norm = (float)sqrt(emulated_strided(c->tensor_sums, 0, c->table.n_tensors, 1));
}

#define LAUNCH(run, blocks, ...)                                                                                       \
    launch(blocks, stream, run, &(const struct call){ .table = *table, __VA_ARGS__ }, sizeof(struct call))

cudaError_t cuda_launch_cast(const struct cuda_table *table, const float *only_if, cudaStream_t stream) {
    return LAUNCH(run_cast, table->n_chunks, .flag = only_if);
}
cudaError_t cuda_launch_reconcile(const struct cuda_table *table, const float *norms, uint32_t low,
                                  cudaStream_t stream) {
    return LAUNCH(run_reconcile, table->n_chunks, .flag = norms, .low = low);
}
cudaError_t cuda_launch_round(const struct cuda_table *table, uint32_t low, const struct cuda_found *found,
                              cudaStream_t stream) {
    return LAUNCH(run_round, table->n_chunks, .found = *found, .low = low);
}
cudaError_t cuda_launch_clamp(const struct cuda_table *table, float limit, cudaStream_t stream) {
    return LAUNCH(run_clamp, table->n_chunks, .a = { NULL, limit, CUDA_AS_IT_IS });
}
cudaError_t cuda_launch_zero(const struct cuda_table *table, cudaStream_t stream) {
    return LAUNCH(run_zero, table->n_chunks, .flag = NULL);
}
cudaError_t cuda_launch_scale(const struct cuda_table *table, const struct cuda_factor *scale,
                              const struct cuda_found *found, cudaStream_t stream) {
    return LAUNCH(run_scale, table->n_chunks, .a = *scale, .found = *found);
}
cudaError_t cuda_launch_axpby(const struct cuda_table *table, const struct cuda_factor *a, const struct cuda_factor *b,
                              const struct cuda_found *found, cudaStream_t stream) {
    return LAUNCH(run_axpby, table->n_chunks, .a = *a, .b = *b, .found = *found);
}
cudaError_t cuda_launch_add(const struct cuda_table *table, const struct cuda_factor *a, const struct cuda_factor *b,
                            const struct cuda_found *found, cudaStream_t stream) {
    return LAUNCH(run_add, table->n_chunks, .a = *a, .b = *b, .found = *found);
}
cudaError_t cuda_launch_check(const struct cuda_table *table, const struct cuda_factor *scale,
                              const struct cuda_factor *factor, double *sums, const struct cuda_found *found,
                              cudaStream_t stream) {
    return LAUNCH(run_check, table->n_chunks, .a = *scale, .b = *factor, .found = *found, .sums = sums);
}
cudaError_t cuda_launch_norms(const struct cuda_table *table, const double *sums, double *tensor_sums, float *norms,
                              float *norm, uint32_t *ticket, cudaStream_t stream) {
    return LAUNCH(run_norms, table->n_tensors, .sums = (double *)(uintptr_t)sums, .tensor_sums = tensor_sums,
                  .norms = norms, .norm = norm, .ticket = ticket);
}

/* ---- statistics.cu ---- */

struct statistics_call {
    struct cuda_table table;
    struct cuda_seen *chunks;
    amp_statistics *statistics;
};
static struct cuda_seen *seen_of; /* a tensor's */
static struct cuda_seen_bits *extremes_of;
static uint32_t (*rows_of)[CUDA_ROWS];

static uint32_t statistics_fn(const struct cuda_tensor *t, const struct cuda_range *at, const void *unused,
                              double sums[2]) {
    struct cuda_seen *seen = &seen_of[emulated_tensor];
    (void)unused;
    seen->sum = sums[0], seen->squares = sums[1];
    cuda_statistics_group(t, at, seen, &extremes_of[emulated_tensor], rows_of[emulated_tensor]);
    sums[0] = seen->sum, sums[1] = seen->squares;
    return 0;
}
static void run_statistics(const void *given) {
    const struct statistics_call *c = given;
    const uint32_t n = c->table.n_tensors;
    double *sums = calloc(2 * (size_t)c->table.n_chunks + 1, sizeof *sums);
    seen_of = calloc(n, sizeof *seen_of), rows_of = calloc(n, sizeof *rows_of);
    extremes_of = calloc(n, sizeof *extremes_of);
    if (!sums || !seen_of || !rows_of || !extremes_of) abort();
    for (uint32_t i = 0; i < n; i++) {
        seen_of[i].least = UINT64_MAX;
        extremes_of[i] = (struct cuda_seen_bits){ -1, UINT32_MAX };
    }
    (void)emulate_table(&c->table, 1, statistics_fn, NULL, sums);
    for (uint32_t i = 0; i < n; i++) {
        const size_t begin = c->table.first_chunks[i], end = c->table.first_chunks[i + 1];
        seen_of[i].sum = emulated_strided(sums, 2 * begin, 2 * end, 2);
        seen_of[i].squares = emulated_strided(sums, 2 * begin + 1, 2 * end, 2);
        for (uint32_t row = 0; row < CUDA_ROWS; row++) cuda_add_row(&c->statistics[i], row, rows_of[i][row]);
        cuda_see_extremes(&seen_of[i], &extremes_of[i]);
        cuda_add_seen(&c->statistics[i], &seen_of[i], cuda_elements_of(&c->table, i));
    }
    free(sums), free(seen_of), free(rows_of), free(extremes_of);
}
cudaError_t cuda_launch_statistics(const struct cuda_table *table, struct cuda_seen *seen, amp_statistics *statistics,
                                   cudaStream_t stream) {
    const struct statistics_call c = { *table, seen, statistics };
    return launch(table->n_tensors, stream, run_statistics, &c, sizeof c);
}

/* ---- scaler.cu ---- */

static void run_scaler(const void *given) { cuda_scaler_run(given); }

cudaError_t cuda_launch_scaler(const struct cuda_scaler *scaler, cudaStream_t stream) {
    return launch(1, stream, run_scaler, scaler, sizeof *scaler);
}

/* ---- optim.cu ---- */

static void run_prepare(const void *given) {
    const struct cuda_step *step = given;
    const uint64_t shared = step->shares ? *step->steps : step->known;
    const int skips = step->found_inf && *step->found_inf != 0.0f;
    for (uint32_t i = 0; i < step->n_tensors; i++) {
        const int absent = step->shapes && CUDA_TYPE(step->shapes[i], CUDA_GRAD) == 0;
        if (absent || skips) {
            step->updates[i].flags = CUDA_SKIPPED;
            continue;
        }
        const struct cuda_norms norms = {
            step->norm ? *step->norm : 0.0f,
            step->grad_norms ? step->grad_norms[i] : 0.0f,
            step->param_norms ? step->param_norms[i] : 0.0f,
        };
        float *second = step->second ? (float *)(uintptr_t)step->second[i] : NULL;
        const uint64_t steps = step->steps && !step->shares ? step->steps[i] : shared;
        step->updates[i] = cuda_prepare(&step->rule, steps, cuda_factor_of(&step->inv_scale),
                                        cuda_factor_of(&step->factor), &norms, second);
        cuda_prepare_random(&step->updates[i], &step->random, i, steps);
        if (step->steps && !step->shares) step->steps[i]++;
    }
    if (step->shares && !skips) ++*step->steps;
}

cudaError_t cuda_launch_prepare(const struct cuda_step *step, cudaStream_t stream) {
    return launch(step->n_tensors, stream, run_prepare, step, sizeof *step);
}

struct update {
    struct cuda_table table, codes;
    enum cuda_rule rule;
    bool stochastic;
    amp_optim of_lamb;
    struct cuda_update *updates;
    double *sums;
};

static uint32_t update_fn(const struct cuda_tensor *t, const struct cuda_range *at, const void *given, double sums[2]) {
    const struct update *update = given;
    const struct cuda_update *u = &update->updates[emulated_tensor];
    if (!(u->flags & CUDA_SKIPPED)) cuda_update_group(update->rule, update->stochastic, t, u, at, sums);
    return 0;
}

static void run_update(const void *given) {
    const struct update *update = given;
    (void)emulate_table(&update->table, CUDA_UPDATE_SPANS, update_fn, update, update->sums);
}

struct known {
    struct cuda_table table;
    enum cuda_rule rule;
    struct cuda_update u;
    struct cuda_factor inv_scale;
    const float *found_inf;
};

static uint32_t known_fn(const struct cuda_tensor *t, const struct cuda_range *at, const void *given, double sums[2]) {
    const struct known *known = given;
    if (cuda_has(t, CUDA_GRAD)) cuda_update_group(known->rule, false, t, &known->u, at, sums);
    return 0;
}

static void run_known(const void *given) {
    struct known known = *(const struct known *)given;
    if (known.found_inf && *known.found_inf != 0.0f) return;
    known.u.inv_scale = cuda_factor_of(&known.inv_scale);
    (void)emulate_table(&known.table, CUDA_UPDATE_SPANS, known_fn, &known, NULL);
}

static void run_lamb_lr(const void *given) {
    const struct update *update = given;
    const double *sums = update->sums;
    for (uint32_t i = 0; i < update->table.n_tensors; i++) {
        const size_t begin = 2 * (size_t)update->table.first_chunks[i],
                     end = 2 * (size_t)update->table.first_chunks[i + 1];
        const double of_p = emulated_strided(sums, begin, end, 2), of_u = emulated_strided(sums + 1, begin, end, 2);
        struct cuda_update *u = &update->updates[i];
        if (!(u->flags & CUDA_SKIPPED)) u->lr = cuda_lamb_lr(&update->of_lamb, of_p, of_u);
    }
}

static uint32_t split_fn(const struct cuda_tensor *t, const struct cuda_range *at, const void *join, double sums[2]) {
    (void)sums;
    cuda_split_group(t, at, *(const int *)join);
    return 0;
}
static uint32_t squares_fn(const struct cuda_tensor *t, const struct cuda_range *at, const void *unused,
                           double sums[2]) {
    (void)unused;
    cuda_squares_group(t, at, &sums[0]);
    return 0;
}
static void run_split(const void *given) {
    const struct call *c = given;
    const int join = (int)c->low;
    (void)emulate_table(&c->table, 3, split_fn, &join, NULL);
}
static void run_squares(const void *given) {
    const struct call *c = given;
    struct cuda_table table = c->table;
    double *pairs = calloc(2 * (size_t)c->table.n_chunks, sizeof *pairs);
    uint32_t *shapes = calloc(c->table.n_tensors, sizeof *shapes);
    if (!pairs || !shapes) abort();
    for (uint32_t i = 0; i < c->table.n_tensors; i++) shapes[i] = cuda_as_fp32(cuda_tensor_of(&c->table, i, 2)).shape;
    table.shapes = shapes;
    (void)emulate_table(&table, 2, squares_fn, NULL, pairs);
    for (uint32_t i = 0; i < c->table.n_chunks; i++) c->sums[i] = pairs[2 * (size_t)i];
    free(pairs), free(shapes);
}
cudaError_t cuda_launch_split(const struct cuda_table *table, int join, cudaStream_t stream) {
    return LAUNCH(run_split, table->n_chunks, .low = (uint32_t)join);
}
cudaError_t cuda_launch_squares(const struct cuda_table *table, double *sums, cudaStream_t stream) {
    return LAUNCH(run_squares, table->n_chunks, .sums = sums);
}

cudaError_t cuda_launch_update(enum cuda_rule rule, bool stochastic, const struct cuda_table *table,
                               const struct cuda_update *updates, cudaStream_t stream) {
    const struct update update = { .table = *table, .rule = rule, .stochastic = stochastic,
                                   .updates = (struct cuda_update *)(uintptr_t)updates };
    return launch(table->n_chunks, stream, run_update, &update, sizeof update);
}

static void run_adam8(const void *given) {
    const struct update *update = given;
    emulate_adam8(&update->table, &update->codes, update->updates);
}

cudaError_t cuda_launch_adam8(const struct cuda_table *all, const struct cuda_table *codes,
                              const struct cuda_update *updates, cudaStream_t stream) {
    const struct update update = { .table = *all, .codes = *codes,
                                   .updates = (struct cuda_update *)(uintptr_t)updates };
    return launch(codes->n_chunks, stream, run_adam8, &update, sizeof update);
}

cudaError_t cuda_launch_step(enum cuda_rule rule, const struct cuda_table *table, const struct cuda_update *u,
                             const struct cuda_factor *inv_scale, const float *found_inf, cudaStream_t stream) {
    const struct known known = { *table, rule, *u, *inv_scale, found_inf };
    return launch(table->n_chunks, stream, run_known, &known, sizeof known);
}

cudaError_t cuda_launch_lamb(const struct cuda_table *table, const amp_optim *rule, struct cuda_update *updates,
                             double *sums, cudaStream_t stream) {
    const struct update update = { .table = *table, .rule = CUDA_LAMB_MOMENTS, .of_lamb = *rule, .updates = updates,
                                   .sums = sums };
    const cudaError_t error = launch(table->n_chunks, stream, run_update, &update, sizeof update);
    return error == cudaSuccess ? launch(table->n_tensors, stream, run_lamb_lr, &update, sizeof update) : error;
}
