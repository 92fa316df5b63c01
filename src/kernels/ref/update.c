/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fused optimizers, as struct amp__update's comment writes them. A block at a time is widened to float, computed
 * and stored. The last block is computed whole, behind its end on zeros or on the block before, and stored as far as it
 * goes.
 */
#include "kernels/bytes.h"
#include "kernels/ref/ref.h"
#include "kernels/ref/split.h"

#include <math.h>
#include <string.h>

enum { N = AMP__REF_BLOCK };

struct block {
    float g[N], p[N], u[N];
    float moments[3][N];
};

/* ---- memory ---- */

static void load_param(struct block *x, const struct amp__update *u, size_t at, size_t n) {
    if (u->param) memcpy(x->p, u->param + at, n * sizeof *x->p);
    else if (u->rest)
        for (size_t i = 0; i < n; i++) x->p[i] = amp__split_get(u->low, u->rest, u->ties, at + i);
    else amp__ref_cast[AMP_FLOAT32][u->low_type](x->p, (const char *)u->low + 2 * at, n);
}

static void load_moments(struct block *x, const struct amp__update *u, size_t at, size_t n) {
    for (int k = 0; k < 3; k++)
        if (u->moments[k]) memcpy(x->moments[k], u->moments[k] + at, n * sizeof(float));
}

static void load_grad(struct block *x, const struct amp__update *u, size_t at, size_t n) {
    amp__ref_cast[AMP_FLOAT32][u->grad_type](x->g, (const char *)u->grad + at * amp__dtype_size(u->grad_type), n);
    for (size_t i = 0; i < N; i++) x->g[i] = x->g[i] * u->inv_scale * u->factor;
}

static void store_moments(const struct block *x, const struct amp__update *u, size_t at, size_t n) {
    for (int k = 0; k < 3; k++)
        if (u->moments[k]) memcpy(u->moments[k] + at, x->moments[k], n * sizeof(float));
}

static void step_and_store(struct block *x, const struct amp__update *u, size_t at, size_t n) {
    for (size_t i = 0; i < N; i++) x->p[i] = x->p[i] - u->lr * x->u[i];
    if (u->param) memcpy(u->param + at, x->p, n * sizeof *x->p);
    for (size_t i = 0; u->stochastic && i < n; i++)
        x->p[i] = amp__round_bf16(x->p[i], amp__random_bits(u->low_key, u->before + at + i));
    if (u->rest)
        for (size_t i = 0; i < n; i++) amp__split_set(u->low, u->rest, u->ties, at + i, x->p[i]);
    else if (u->low) amp__ref_cast[u->low_type][AMP_FLOAT32]((char *)u->low + 2 * at, x->p, n);
}

/* ---- rules ---- */

static void add_decay(float *to, const struct block *x, const struct amp__update *u) {
    if (u->weight_decay != 0.0f)
        for (size_t i = 0; i < N; i++) to[i] = to[i] + u->weight_decay * x->p[i];
}

static void average(float *moment, const float *value, float beta, float rest) {
    for (size_t i = 0; i < N; i++) moment[i] = beta * moment[i] + rest * value[i];
}

static void sgd_block(struct block *x, const struct amp__update *u) {
    float *m = x->moments[0];
    if (!u->decay_after) add_decay(x->g, x, u);
    for (size_t i = 0; i < N; i++) x->u[i] = x->g[i] * u->ratio;
    if (u->moments[0]) {
        if (u->first) memcpy(m, x->u, sizeof x->u);
        else average(m, x->u, u->beta1, u->rest1);
        if (!u->nesterov) memcpy(x->u, m, sizeof x->u);
        for (size_t i = 0; u->nesterov && i < N; i++) x->u[i] = x->u[i] + u->beta1 * m[i];
    }
    if (u->decay_after) add_decay(x->u, x, u);
}

static void adam_moments(struct block *x, const struct amp__update *u) {
    float *v = x->moments[1];
    if (!u->decoupled) add_decay(x->g, x, u);
    average(x->moments[0], x->g, u->beta1, u->rest1);
    for (size_t i = 0; i < N; i++) v[i] = u->beta2 * v[i] + u->rest2 * x->g[i] * x->g[i];
}

static void adam_direction(struct block *x, const struct amp__update *u, const float *v) {
    for (size_t i = 0; i < N; i++)
        x->u[i] = x->moments[0][i] / u->correction1 / (sqrtf(v[i] / u->correction2) + u->eps);
    if (u->decoupled) add_decay(x->u, x, u);
}

static void adam_block(struct block *x, const struct amp__update *u) {
    float *v = x->moments[1], *w = x->moments[2];
    adam_moments(x, u);
    for (size_t i = 0; u->moments[2] && i < N; i++) w[i] = !(v[i] <= w[i]) ? v[i] : w[i];
    adam_direction(x, u, u->moments[2] ? w : v);
}

static void adagrad_block(struct block *x, const struct amp__update *u) {
    float *h = x->moments[0];
    if (!u->decoupled) add_decay(x->g, x, u);
    for (size_t i = 0; i < N; i++) h[i] = h[i] + x->g[i] * x->g[i];
    for (size_t i = 0; i < N; i++) x->u[i] = x->g[i] / (sqrtf(h[i]) + u->eps);
    if (u->decoupled) add_decay(x->u, x, u);
}

static void novograd_block(struct block *x, const struct amp__update *u) {
    float *m = x->moments[0];
    if (!u->decoupled) {
        for (size_t i = 0; i < N; i++) x->g[i] = x->g[i] / u->denominator;
        add_decay(x->g, x, u);
    }
    average(m, x->g, u->beta1, u->rest1);
    for (size_t i = 0; i < N; i++) x->u[i] = m[i] / u->correction1;
    if (!u->decoupled) return;
    for (size_t i = 0; i < N; i++) x->u[i] = x->u[i] / u->denominator;
    add_decay(x->u, x, u);
}

/* ---- kernels ---- */

#define FOR_BLOCKS(at, n) for (size_t at = begin, n; at < end && (n = end - at < N ? end - at : N, true); at += n)

#define UPDATE(rule)                                                                                                   \
    static AMP__UPDATE(rule) {                                                                                         \
        struct block x = { .g = { 0 } };                                                                               \
        FOR_BLOCKS(at, n) {                                                                                            \
            load_param(&x, u, at, n);                                                                                  \
            load_moments(&x, u, at, n);                                                                                \
            load_grad(&x, u, at, n);                                                                                   \
            rule##_block(&x, u);                                                                                       \
            store_moments(&x, u, at, n);                                                                               \
            step_and_store(&x, u, at, n);                                                                              \
        }                                                                                                              \
    }                                                                                                                  \
    amp__update_fn *const amp__ref_##rule = rule;

/* ---- moments in 8 bits ---- */

_Static_assert((int)N == (int)AMP__BYTES_BLOCK, "a block has one scale");

static void load_bytes(struct block *x, const struct amp__update *u, size_t at, size_t n) {
    const float scale_m = u->scales[0][at / N], scale_v = u->scales[1][at / N];
    for (size_t i = 0; i < n; i++) x->moments[0][i] = amp__bytes_m(u->codes[0][at + i], scale_m);
    for (size_t i = 0; i < n; i++) x->moments[1][i] = amp__bytes_z(u->codes[1][at + i], scale_v);
}

/* moments[1] is sqrt(v) before and after. */
static void adam8_block(struct block *x, const struct amp__update *u) {
    float *m = x->moments[0], *z = x->moments[1];
    const float by_m = 1.0f / u->correction1, by_z = 1.0f / sqrtf(u->correction2);
    if (!u->decoupled) add_decay(x->g, x, u);
    average(m, x->g, u->beta1, u->rest1);
    for (size_t i = 0; i < N; i++) {
        const float v = u->beta2 * (z[i] * z[i]) + u->rest2 * x->g[i] * x->g[i];
        z[i] = sqrtf(v > AMP__BYTES_MOST_V ? AMP__BYTES_MOST_V : v);
        x->u[i] = m[i] * by_m / (z[i] * by_z + u->eps);
    }
    if (u->decoupled) add_decay(x->u, x, u);
}

static void store_bytes(const struct block *x, const struct amp__update *u, size_t at, size_t n) {
    const float *m = x->moments[0], *z = x->moments[1];
    float largest_m = 0.0f, largest_z = 0.0f;
    bool lost = false;
    for (size_t i = 0; i < n; i++) {
        lost = lost || !amp__pack_finite(m[i]) || !amp__pack_finite(z[i]);
        largest_m = fabsf(m[i]) > largest_m ? fabsf(m[i]) : largest_m;
        largest_z = z[i] > largest_z ? z[i] : largest_z;
    }
    const float scale_m = amp__bytes_scale_m(largest_m), scale_v = amp__bytes_scale_v(largest_z);
    const float inverse_m = amp__bytes_inverse(scale_m), inverse_v = amp__bytes_inverse(scale_v);
    for (size_t i = 0; i < n; i++) {
        const uint32_t random = amp__random_bits(u->key, u->before + at + i);
        u->codes[0][at + i] = lost ? 0 : amp__bytes_code_m(m[i], inverse_m, random);
        u->codes[1][at + i] = lost ? 0 : amp__bytes_code_v(z[i], inverse_v, random);
    }
    u->scales[0][at / N] = lost ? AMP__BYTES_LOST : amp__bytes_stored_m(scale_m);
    u->scales[1][at / N] = lost ? AMP__BYTES_LOST : scale_v;
}

static AMP__UPDATE(adam8) {
    struct block x = { .g = { 0 } };
    FOR_BLOCKS(at, n) {
        load_param(&x, u, at, n);
        load_bytes(&x, u, at, n);
        load_grad(&x, u, at, n);
        adam8_block(&x, u);
        store_bytes(&x, u, at, n);
        step_and_store(&x, u, at, n);
    }
}
amp__update_fn *const amp__ref_adam8 = adam8;

UPDATE(sgd)
UPDATE(adam)
UPDATE(adagrad)
UPDATE(novograd)

static AMP__UPDATE_SQUARES(lamb_moments) {
    struct block x = { .g = { 0 } };
    double of_p[AMP__SUM_LANES] = { 0 }, of_u[AMP__SUM_LANES] = { 0 };
    FOR_BLOCKS(at, n) {
        load_param(&x, u, at, n);
        load_moments(&x, u, at, n);
        load_grad(&x, u, at, n);
        for (size_t i = 0; i < N; i++) x.g[i] *= u->ratio;
        adam_moments(&x, u);
        adam_direction(&x, u, x.moments[1]);
        store_moments(&x, u, at, n);
        amp__ref_add_squares(of_p, x.p, n);
        amp__ref_add_squares(of_u, x.u, n);
    }
    squares[0] = amp__ref_sum_lanes(of_p);
    squares[1] = amp__ref_sum_lanes(of_u);
}

static AMP__UPDATE(lamb_apply) {
    struct block x = { .g = { 0 } };
    FOR_BLOCKS(at, n) {
        load_param(&x, u, at, n);
        load_moments(&x, u, at, n);
        adam_direction(&x, u, x.moments[1]);
        step_and_store(&x, u, at, n);
    }
}

amp__update_squares_fn *const amp__ref_lamb_moments = lamb_moments;
amp__update_fn *const amp__ref_lamb_apply = lamb_apply;
