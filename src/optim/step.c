/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One step of one tensor. Numbers that depend on the rule, the step number and norms are computed here in double and
 * rounded once, the rest by the kernels. All in the default floating-point environment.
 */
#include "kernels/kernels.h"
#include "kernels/random.h"
#include "kernels/walk.h"
#include "optim/optim.h"

#include <math.h>
#include <string.h>

double amp__power(double base, uint64_t n) {
    double power = 1.0;
    for (; n; n >>= 1, base *= base)
        if (n & 1) power *= base;
    return power;
}

struct amp__powers amp__optim_powers(const amp_optim *rule, uint64_t steps) {
    const uint64_t step = steps + 1;
    return (struct amp__powers){ step, amp__power(rule->beta1, step), amp__power(rule->beta2, step) };
}

struct amp__powers amp__optim_powers_of(const amp_optim *rule, const struct amp__optim_tensor *tensor) {
    const bool known = tensor->powers && tensor->powers->step == *tensor->steps + 1;
    return known ? *tensor->powers : amp__optim_powers(rule, *tensor->steps);
}

uint64_t amp__optim_bytes(const amp_optim *rule, amp_dtype grad, uint64_t size, bool codes) {
    uint64_t width = amp__dtype_size(grad) + sizeof(float) + sizeof(uint16_t);
    for (int k = 0; k < AMP__MOMENTS; k++)
        if (amp__optim_moment(rule, k)) width += codes ? 1 : sizeof(float);
    return size * width;
}

/* ---- norms ---- */

double amp__optim_squares(const struct amp__optim_tensor *tensor) {
    uint32_t unused = 0;
    if (tensor->has_squares) return tensor->squares;
    return amp__check_span(&tensor->grad, tensor->inv_scale, tensor->factor, &unused);
}

float amp__optim_norm_of_grad(const struct amp__optim_tensor *tensor) {
    return tensor->has_norm ? tensor->grad_norm : (float)sqrt(amp__optim_squares(tensor));
}

float amp__optim_norm_of_param(const struct amp__optim_tensor *tensor) {
    uint32_t unused = 0;
    if (tensor->remainder) return (float)sqrt(amp__join_squares(&tensor->param, tensor->remainder));
    return (float)sqrt(amp__check_span(&tensor->param, 1.0f, 1.0f, &unused));
}

float amp__optim_limit(const amp_optim *rule, float norm_of_all) {
    if (!amp__optim_needs_norm(rule) || !((double)norm_of_all > rule->max_grad_norm)) return 1.0f;
    return (float)(rule->max_grad_norm / (double)norm_of_all);
}

/* ---- numbers ---- */

/* Short ones are not worth waiting for their stores' end. */
enum { SHORTEST_STREAM = 32 << 10 };

static void fill_update(struct amp__update *u, const amp_optim *rule, const struct amp__optim_tensor *tensor) {
    const bool master = tensor->param.dtype == AMP_FLOAT32;
    const amp_span *low = master ? &tensor->low : &tensor->param;
    *u = (struct amp__update){
        .grad = tensor->grad.data,
        .param = master ? tensor->param.data : NULL,
        .low = low->data,
        .grad_type = tensor->grad.dtype,
        .low_type = low->dtype,
        .inv_scale = tensor->inv_scale,
        .factor = tensor->factor,
        .lr = (float)rule->lr,
        .weight_decay = (float)rule->weight_decay,
        .eps = (float)rule->eps,
        .beta1 = (float)rule->beta1,
        .rest1 = (float)(1.0 - rule->beta1),
        .beta2 = (float)rule->beta2,
        .rest2 = (float)(1.0 - rule->beta2),
        .correction1 = 1.0f,
        .correction2 = 1.0f,
        .ratio = 1.0f,
        .denominator = 1.0f,
        .first = *tensor->steps == 0,
        .nesterov = amp__optim_has(rule, AMP_OPTIM_NESTEROV),
        .decay_after = amp__optim_has(rule, AMP_OPTIM_DECAY_AFTER_MOMENTUM),
        .decoupled = amp__optim_has(rule, AMP_OPTIM_DECOUPLED) || rule->kind == AMP_OPTIM_ADAMW,
        .stream = tensor->stream && master && low->data && low->size >= SHORTEST_STREAM,
    };
    if (tensor->remainder && low->size) {
        u->rest = amp__rest_of(tensor->remainder);
        u->ties = amp__ties_of(tensor->remainder, low->size);
    }
    memcpy(u->moments, tensor->moments, sizeof u->moments);
    if (tensor->codes[0]) {
        memcpy(u->codes, tensor->codes, sizeof u->codes);
        memcpy(u->scales, tensor->scales, sizeof u->scales);
        u->key = amp__random_key(tensor->key, *tensor->steps, AMP__RANDOM_MOMENTS);
    }
    u->before = tensor->before;
    u->stochastic = tensor->stochastic;
    if (u->stochastic) u->low_key = amp__random_key(tensor->key, *tensor->steps, AMP__RANDOM_PARAM);
    if (amp__optim_has(rule, AMP_OPTIM_BIAS_CORRECTION)) {
        const struct amp__powers powers = amp__optim_powers_of(rule, tensor);
        u->correction1 = (float)(1.0 - powers.of_beta1);
        u->correction2 = (float)(1.0 - powers.of_beta2);
    }
}

/* ---- passes over a tensor ---- */

static size_t block_end(size_t at, size_t end) { return end - at < AMP__SUM_BLOCK ? end : at + AMP__SUM_BLOCK; }

struct pass {
    const struct amp__update *u;
    amp__update_fn *kernel;
    amp__update_squares_fn *squares_kernel; /* or a kernel with sums of squares */
    double (*squares)[2];                   /* which gives each block's here */
};

static void run_pass_part(void *pass, const struct amp__part *part) {
    const struct pass *p = pass;
    size_t block = part->block;
    for (size_t at = part->begin; at < part->end; at += AMP__SUM_BLOCK)
        if (p->kernel) p->kernel(p->u, at, block_end(at, part->end));
        else p->squares_kernel(p->u, at, block_end(at, part->end), p->squares[block++]);
}

void amp__optim_pass(amp__update_fn *kernel, const struct amp__update *u, size_t n) {
    const amp_span elements = { NULL, n, AMP_FLOAT32, 0 };
    struct pass pass = { u, kernel, NULL, NULL };
    amp__walk(&elements, 1, n, run_pass_part, &pass);
}

/* Blocks on several threads, where there is memory for their sums; added in order all the same. */
void amp__optim_pass_squares(amp__update_squares_fn *kernel, const struct amp__update *u, size_t n, double squares[2]) {
    const amp_span elements = { NULL, n, AMP_FLOAT32, 0 };
    struct pass pass = { u, NULL, kernel, NULL };
    if (amp__walk_threads(n) > 1) pass.squares = amp__alloc(n / AMP__SUM_BLOCK + 1, sizeof *pass.squares);
    if (pass.squares) amp__walk(&elements, 1, n, run_pass_part, &pass);
    for (size_t at = 0, block = 0; at < n; at += AMP__SUM_BLOCK, block++) {
        double here[2];
        if (!pass.squares) kernel(u, at, block_end(at, n), here);
        const double *part = pass.squares ? pass.squares[block] : here;
        squares[0] += part[0];
        squares[1] += part[1];
    }
    amp__free(pass.squares);
}

void amp__optim_update(const amp_optim *rule, const struct amp__optim_tensor *tensor, float limit) {
    struct amp__update u;
    fill_update(&u, rule, tensor);
    if (rule->kind == AMP_OPTIM_LAMB) u.ratio = limit;
    amp__optim_kind(rule->kind)->step(rule, tensor, &u);
    ++*tensor->steps;
}

/* ---- many tensors ---- */

struct tensors {
    amp__optim_size_fn *size;
    amp__optim_update_fn *update;
    void *user;
};

static bool is_cut(uint64_t size) { return size >= AMP__WALK_CUT; }

static void update_short(void *tensors, size_t i) {
    const struct tensors *t = tensors;
    if (!is_cut(t->size(t->user, i))) t->update(t->user, i);
}

void amp__optim_update_all(size_t n, amp__optim_size_fn *size, amp__optim_update_fn *update, void *user) {
    struct tensors tensors = { size, update, user };
    uint64_t elements = 0;
    for (size_t i = 0; i < n; i++)
        if (is_cut(size(user, i))) update(user, i);
        else elements += size(user, i);
    amp__walk_indices(n, amp__walk_threads(elements), update_short, &tensors);
}
