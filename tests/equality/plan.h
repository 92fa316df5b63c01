/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is trained, as data: both programs read it, the one with libamp and the one that casts by hand. Nothing here
 * knows libamp.
 *
 *     h = W x + B;  a = h S;  y = V a;  z = y G (L);  loss = sum(z c)
 *
 * All values are above 0 and of middling size, so that no gradient cancels: in fp16 everything stays normal from scale
 * 1 to scale LARGEST_SCALE. The reference asserts it.
 */
#ifndef EQUALITY_PLAN_H
#define EQUALITY_PLAN_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

enum param { W, B, S, V, G, U, Z, L, N_PARAMS }; /* U has no gradient, Z no elements, S no dimension, L comes late */
enum { SIDE = 3, MOST = SIDE * SIDE, STEPS = 14, MOST_MODELS = 2, LATE_STEP = 4, LOAD_STEP = 6 };
#define LARGEST_SCALE 0x1p14f

static const int sizes[N_PARAMS] = { [W] = 9, [B] = 3, [S] = 1, [V] = 9, [G] = 3, [U] = 3, [Z] = 0, [L] = 3 };
static const char *const param_names[N_PARAMS] = { "W", "B", "S", "V", "G", "U", "Z", "L" };

enum {
    TIED = 1u << 0,          /* V is W */
    DELAY = 1u << 1,         /* micro-batches but the last delay unscaling */
    OVERFLOW = 1u << 2,      /* steps 3 and 8: an infinity in the first bracket's gradients */
    LATE = 1u << 3,          /* L joins the first optimizer at LATE_STEP */
    LOAD = 1u << 4,          /* the host loads other weights at LOAD_STEP */
    CANCEL = 1u << 5,        /* brackets that are cancelled before and between the others */
    FREEZE = 1u << 6,        /* W is frozen from step 4 to 7 */
    VANISH = 1u << 7,        /* V is used in every other micro-batch only */
    KEEP = 1u << 8,          /* zero_grad only every third step */
    OWN_SCALERS = 1u << 9,   /* loss i has loss_id i */
    LOSS_PER_OPTIM = 1u << 10, /* loss i trains optimizer i alone; the other's parameters are frozen meanwhile */
    CLIP_NORM = 1u << 11,
    CLIP_VALUE = 1u << 12,
    NO_CACHE = 1u << 13,
    NO_VERSION = 1u << 14,   /* the host has no version hook */
    SEED = 1u << 15,         /* the host has no scale hook: it seeds backward */
    STRIDED_GRADS = 1u << 16, /* gradients are transposed, and have gaps */
    STRIDED_PARAMS = 1u << 17,
    LATE_CHECK = 1u << 18    /* micro-batches but the last delay the overflow check */
};

struct plan {
    const char *name;
    unsigned options;
    int models, optimizers, losses, micro; /* optimizers of each model */
};

/* Types as this test names them. */
enum type { FP32, FP16, BF16 };

/* What a level does, for the program that does it by hand. */
struct recipe {
    enum type low;
    bool low_params, fp32_norm, cast_ops, masters;
};

/* The optimizer's arithmetic, in FP32: the host's own business, the same in both programs. */
struct moments {
    float first[MOST], second[MOST];
    float power1, power2; /* beta to the number of steps */
};

static inline void optimize(bool adam, float *param, const float *grad, struct moments *m, int n) {
    m->power1 = m->power1 == 0.0f ? 0.9f : m->power1 * 0.9f;
    m->power2 = m->power2 == 0.0f ? 0.99f : m->power2 * 0.99f;
    for (int i = 0; i < n; i++) {
        if (!adam) {
            m->first[i] = 0.75f * m->first[i] + grad[i];
            param[i] -= 0.00390625f * m->first[i];
            continue;
        }
        m->first[i] = 0.9f * m->first[i] + 0.1f * grad[i];
        m->second[i] = 0.99f * m->second[i] + 0.01f * (grad[i] * grad[i]);
        const float first = m->first[i] / (1.0f - m->power1), second = m->second[i] / (1.0f - m->power2);
        param[i] -= 0.001953125f * first / (sqrtf(second) + 1e-8f);
    }
}

/* Values in [0.5, 1), one for each place in the run. */
static inline float number(unsigned what, unsigned a, unsigned b, unsigned c, unsigned i) {
    uint64_t x = ((((what * 31u + a) * 37ull + b) * 41u + c) * 43u + i + 1) * 0x9E3779B97F4A7C15ull;
    x ^= x >> 31;
    x *= 0xBF58476D1CE4E5B9ull;
    return 0.5f + (float)(x >> 41) * 0x1p-24f;
}

static inline float first_value(int model, int param, int i) {
    return (param == W || param == V ? 0.625f : 1.0f) * number(1, (unsigned)model, (unsigned)param, 0, (unsigned)i);
}
static inline float loaded_value(int model, int param, int i) {
    return (param == W || param == V ? 0.625f : 1.0f) * number(2, (unsigned)model, (unsigned)param, 0, (unsigned)i);
}
static inline float input(int step, int model, int batch, int i) {
    return number(3, (unsigned)step, (unsigned)model, (unsigned)batch, (unsigned)i);
}
static inline float loss_weight(int loss, int i) { return 0.0625f * number(4, (unsigned)loss, 0, 0, (unsigned)i); }

static inline int batch_of(const struct plan *plan, int loss, int micro) { return loss * plan->micro + micro; }
static inline int optimizer_of(const struct plan *plan, int param) {
    return plan->optimizers == 2 && (param == B || param == V || param == G);
}
static inline bool trained(const struct plan *plan, int param, int step) {
    if (param == L) return (plan->options & LATE) && step >= LATE_STEP;
    return param != V || !(plan->options & TIED);
}
static inline bool frozen(const struct plan *plan, int param, int step, int loss) {
    if ((plan->options & FREEZE) && param == W && step >= 4 && step < 8) return true;
    return (plan->options & LOSS_PER_OPTIM) && optimizer_of(plan, param) != loss;
}
static inline bool uses_second(const struct plan *plan, int step, int batch) {
    return !(plan->options & VANISH) || (step + batch) % 2 == 0;
}
static inline bool overflows(const struct plan *plan, int step) {
    return (plan->options & OVERFLOW) && (step == 3 || step == 8);
}
static inline bool zeroes(const struct plan *plan, int step) { return !(plan->options & KEEP) || step % 3 == 2; }

#define MAX_NORM 0.25f
#define MAX_VALUE 0.0625f

#endif
