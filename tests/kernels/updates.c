/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fused optimizers' kernels against the words of kernels.h, element by element: every rule, with each switch on and
 * off, over FP32 parameters, masters with a 16-bit copy, and 16-bit parameters alone, gradients of each type, edge
 * patterns, ranges that begin anywhere, odd lengths and alignments, between guards.
 */
#include "updates.h"

#include "support.h"

#include <math.h>
#include <string.h>

enum { LONGEST = 1000, EXTRA = 7 }; /* EXTRA elements before `begin`, which stay as they are */

static const size_t lengths[] = { 0, 1, 2, 3, 5, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 255, 256, 257, LONGEST };
static const amp_dtype grad_types[] = { AMP_FLOAT32, AMP_FLOAT16, AMP_BFLOAT16 };

/* Where the parameter is. */
static const struct {
    const char *name;
    bool param;
    amp_dtype low; /* DEFAULT: none */
} places[] = {
    { "fp32", true, AMP_DTYPE_DEFAULT }, { "master, fp16", true, AMP_FLOAT16 }, { "master, bf16", true, AMP_BFLOAT16 },
    { "fp16", false, AMP_FLOAT16 },      { "bf16", false, AMP_BFLOAT16 },
};

/* ---- oracles: one element ---- */

struct element {
    float g, p, m[3], u;
};
typedef void oracle_fn(struct element *e, const struct amp__update *u);

static float as_float(uint64_t bits) {
    const uint32_t word = (uint32_t)bits;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

static uint64_t as_bits(float value) {
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    return word;
}

/* Through memory: each product and each sum is a float of its own. */
static float times(float a, float b) {
    volatile float product = a * b;
    return product;
}
static float plus(float a, float b) {
    volatile float sum = a + b;
    return sum;
}

static float decayed(float value, const struct element *e, const struct amp__update *u) {
    return u->weight_decay == 0.0f ? value : plus(value, times(u->weight_decay, e->p));
}
static float averaged(float moment, float value, const struct amp__update *u) {
    return plus(times(u->beta1, moment), times(u->rest1, value));
}

static void oracle_sgd(struct element *e, const struct amp__update *u) {
    e->u = times(u->decay_after ? e->g : decayed(e->g, e, u), u->ratio);
    if (u->moments[0]) {
        e->m[0] = u->first ? e->u : averaged(e->m[0], e->u, u);
        e->u = u->nesterov ? plus(e->u, times(u->beta1, e->m[0])) : e->m[0];
    }
    if (u->decay_after) e->u = decayed(e->u, e, u);
}

static void adam_direction(struct element *e, const struct amp__update *u, float v) {
    const float root = sqrtf(v / u->correction2);
    e->u = e->m[0] / u->correction1 / plus(root, u->eps);
    if (u->decoupled) e->u = decayed(e->u, e, u);
}

static void adam_moments(struct element *e, const struct amp__update *u) {
    if (!u->decoupled) e->g = decayed(e->g, e, u);
    e->m[0] = averaged(e->m[0], e->g, u);
    e->m[1] = plus(times(u->beta2, e->m[1]), times(times(u->rest2, e->g), e->g));
}

static void oracle_adam(struct element *e, const struct amp__update *u) {
    adam_moments(e, u);
    if (u->moments[2] && !(e->m[1] <= e->m[2])) e->m[2] = e->m[1];
    adam_direction(e, u, u->moments[2] ? e->m[2] : e->m[1]);
}

static void oracle_adagrad(struct element *e, const struct amp__update *u) {
    if (!u->decoupled) e->g = decayed(e->g, e, u);
    e->m[0] = plus(e->m[0], times(e->g, e->g));
    e->u = e->g / plus(sqrtf(e->m[0]), u->eps);
    if (u->decoupled) e->u = decayed(e->u, e, u);
}

static void oracle_novograd(struct element *e, const struct amp__update *u) {
    if (!u->decoupled) e->g = decayed(e->g / u->denominator, e, u);
    e->m[0] = averaged(e->m[0], e->g, u);
    e->u = e->m[0] / u->correction1;
    if (u->decoupled) e->u = decayed(e->u / u->denominator, e, u);
}

static void oracle_lamb_moments(struct element *e, const struct amp__update *u) {
    e->g = times(e->g, u->ratio);
    adam_moments(e, u);
    adam_direction(e, u, e->m[1]);
}

static void oracle_lamb_apply(struct element *e, const struct amp__update *u) { adam_direction(e, u, e->m[1]); }

/* ---- one run ---- */

struct arrays {
    uint32_t grad[LONGEST + EXTRA], param[LONGEST + EXTRA], low[LONGEST + EXTRA], moments[3][LONGEST + EXTRA];
};
static struct arrays before, expected;
static float directions[LONGEST], masters[LONGEST];

struct run {
    const char *rule, *isa;
    oracle_fn *oracle;
    bool moments_alone; /* lamb_moments: the parameter stays */
    int n_moments;
    size_t place;
    amp_dtype grad_type;
    enum pattern pattern;
    struct amp__update u;
};

static void make(struct run *run) {
    fill(run->pattern, run->grad_type, before.grad, LONGEST + EXTRA);
    fill(run->pattern, AMP_FLOAT32, before.param, LONGEST + EXTRA);
    fill(run->pattern, places[run->place].low ? places[run->place].low : AMP_FLOAT16, before.low, LONGEST + EXTRA);
    for (int k = 0; k < 3; k++) {
        fill(run->pattern, AMP_FLOAT32, before.moments[k], LONGEST + EXTRA);
        for (size_t i = 0; k && i < LONGEST + EXTRA; i++) before.moments[k][i] &= 0x7fffffffu; /* squares */
    }
}

static void expect(struct run *run, size_t n) {
    const amp_dtype low = places[run->place].low;
    const bool master = places[run->place].param;
    expected = before;
    for (size_t i = 0; i < n; i++) {
        const size_t at = EXTRA + i;
        struct element e = { .g = as_float(oracle_cast(AMP_FLOAT32, run->grad_type, get_bits(run->grad_type, before.grad, at))) };
        e.g = times(times(e.g, run->u.inv_scale), run->u.factor);
        e.p = as_float(master ? before.param[at] : oracle_cast(AMP_FLOAT32, low, get_bits(low, before.low, at)));
        for (int k = 0; k < 3; k++) e.m[k] = as_float(before.moments[k][at]);
        run->oracle(&e, &run->u);
        directions[i] = e.u;
        masters[i] = e.p;
        for (int k = 0; k < run->n_moments; k++) expected.moments[k][at] = (uint32_t)as_bits(e.m[k]);
        if (run->moments_alone) continue;
        e.p = plus(e.p, -times(run->u.lr, e.u));
        if (master) expected.param[at] = (uint32_t)as_bits(e.p);
        if (low) set_bits(low, expected.low, at, oracle_cast(low, AMP_FLOAT32, as_bits(e.p)));
    }
}

static void compare(const struct run *run, const char *array, amp_dtype type, const void *got, const void *want, size_t n,
                    size_t offset) {
    for (size_t i = 0; i < n + EXTRA; i++)
        CHECK_THAT(bits_agree(type, get_bits(type, got, i), get_bits(type, want, i)),
                   "%s %s, %s, gradient %d, %s: n %zu offset %zu: %s[%zu] is %#llx, want %#llx", run->isa, run->rule,
                   places[run->place].name, (int)run->grad_type, pattern_names[run->pattern], n, offset, array, i,
                   (unsigned long long)get_bits(type, got, i), (unsigned long long)get_bits(type, want, i));
}

enum { N_GUARDS = 6 };
static struct guard guards[N_GUARDS];

static void *place(int guard, const void *src, size_t width, size_t n, size_t offset) {
    const size_t bytes = (n + EXTRA) * width;
    return memcpy(guard_place(&guards[guard], bytes, offset * width), src, bytes);
}

static void check_one(struct run *run, amp_fn kernel, size_t n, size_t offset) {
    const amp_dtype low = places[run->place].low;
    struct amp__update u = run->u;
    double squares[2] = { -1.0, -1.0 };
    expect(run, n);
    u.grad = place(0, before.grad, amp__dtype_size(run->grad_type), n, offset);
    u.param = places[run->place].param ? place(1, before.param, 4, n, offset) : NULL;
    u.low = low ? place(2, before.low, 2, n, offset) : NULL;
    for (int k = 0; k < 3; k++) u.moments[k] = run->u.moments[k] ? place(3 + k, before.moments[k], 4, n, offset) : NULL;
    if (run->moments_alone) ((amp__update_squares_fn *)kernel)(&u, EXTRA, EXTRA + n, squares);
    else ((amp__update_fn *)kernel)(&u, EXTRA, EXTRA + n);
    compare(run, "grad", run->grad_type, u.grad, before.grad, n, offset);
    if (u.param) compare(run, "param", AMP_FLOAT32, u.param, expected.param, n, offset);
    if (u.low) compare(run, "low", low, u.low, expected.low, n, offset);
    for (int k = 0; k < 3; k++)
        if (u.moments[k]) compare(run, "moment", AMP_FLOAT32, u.moments[k], expected.moments[k], n, offset);
    if (!run->moments_alone) return;
    const double want[2] = { oracle_sum_squares(AMP_FLOAT32, masters, n), oracle_sum_squares(AMP_FLOAT32, directions, n) };
    for (int k = 0; k < 2; k++) {
        uint64_t got_bits, want_bits;
        memcpy(&got_bits, &squares[k], sizeof got_bits);
        memcpy(&want_bits, &want[k], sizeof want_bits);
        CHECK_THAT(bits_agree(AMP_FLOAT64, got_bits, want_bits), "%s %s, %s: n %zu: squares[%d] is %g, want %g", run->isa,
                   run->rule, pattern_names[run->pattern], n, k, squares[k], want[k]);
    }
}

/* Every place of the parameter and type of the gradient for each setting; patterns and lengths in turn. */
static void check_rule(struct run *run, amp_fn kernel, const struct amp__update *settings, size_t n_settings) {
    for (int i = 0; i < N_GUARDS; i++) guards[i] = guard_new((LONGEST + EXTRA + 16) * 4 + GUARD_BORDER);
    size_t tested = 0;
    for (size_t s = 0; s < n_settings; s++)
        for (run->place = 0; run->place < AMP_COUNT(places); run->place++)
            for (size_t t = 0; t < AMP_COUNT(grad_types); t++) {
                run->grad_type = grad_types[t];
                run->u = settings[s];
                run->u.grad_type = run->grad_type;
                run->u.low_type = places[run->place].low;
                for (int p = 0; p < PATTERNS; p++) {
                    run->pattern = (enum pattern)p;
                    make(run);
                    for (size_t l = (size_t)p % 3; l < AMP_COUNT(lengths); l += 3, tested++)
                        check_one(run, kernel, lengths[l], tested % 9);
                }
            }
    ck_assert_uint_gt(tested, 100);
    for (int i = 0; i < N_GUARDS; i++) guard_free(&guards[i]);
}

/* ---- settings ---- */

static float some; /* a moment is there: its address counts */
#define COMMON                                                                                                         \
    .inv_scale = 0x1.8p-9f, .factor = 0.7f, .lr = 0.03f, .beta1 = 0.9f, .rest1 = 0.1f, .beta2 = 0.99f, .rest2 = 0.01f, \
    .eps = 1e-5f, .correction1 = 0.271f, .correction2 = 0.0297f, .denominator = 0.37f
#define UPDATE(...) { COMMON, __VA_ARGS__ }

void check_sgd(amp_fn kernel, const amp_dtype *types, const char *isa) {
    static const struct amp__update settings[] = {
        UPDATE(.weight_decay = 0.0f, .ratio = 1.0f),
        UPDATE(.weight_decay = 0.1f, .decay_after = true, .ratio = 1.0f),
        UPDATE(.weight_decay = 0.1f, .moments = { &some }, .ratio = 0.3f),
        UPDATE(.weight_decay = 0.1f, .moments = { &some }, .first = true, .ratio = 1.0f),
        UPDATE(.weight_decay = 0.1f, .moments = { &some }, .nesterov = true, .ratio = 1.0f),
        UPDATE(.weight_decay = 0.1f, .moments = { &some }, .nesterov = true, .first = true, .decay_after = true, .ratio = 1.0f),
    };
    struct run run = { .rule = "sgd", .isa = isa, .oracle = oracle_sgd, .n_moments = 1 };
    (void)types;
    check_rule(&run, kernel, settings, AMP_COUNT(settings));
}

static const struct amp__update adam_settings[] = {
    UPDATE(.weight_decay = 0.0f, .moments = { &some, &some }, .ratio = 1.0f),
    UPDATE(.weight_decay = 0.1f, .moments = { &some, &some }, .ratio = 0.25f),
    UPDATE(.weight_decay = 0.1f, .moments = { &some, &some }, .decoupled = true, .ratio = 1.0f),
    UPDATE(.weight_decay = 0.1f, .moments = { &some, &some, &some }, .decoupled = true, .ratio = 1.0f),
};

void check_adam(amp_fn kernel, const amp_dtype *types, const char *isa) {
    struct run run = { .rule = "adam", .isa = isa, .oracle = oracle_adam, .n_moments = 3 };
    (void)types;
    check_rule(&run, kernel, adam_settings, AMP_COUNT(adam_settings));
}

void check_lamb_moments(amp_fn kernel, const amp_dtype *types, const char *isa) {
    struct run run = { .rule = "lamb_moments", .isa = isa, .oracle = oracle_lamb_moments, .n_moments = 2,
                       .moments_alone = true };
    (void)types;
    check_rule(&run, kernel, adam_settings, AMP_COUNT(adam_settings) - 1);
}

void check_lamb_apply(amp_fn kernel, const amp_dtype *types, const char *isa) {
    struct run run = { .rule = "lamb_apply", .isa = isa, .oracle = oracle_lamb_apply };
    (void)types;
    check_rule(&run, kernel, adam_settings, AMP_COUNT(adam_settings) - 1);
}

void check_adagrad(amp_fn kernel, const amp_dtype *types, const char *isa) {
    static const struct amp__update settings[] = {
        UPDATE(.weight_decay = 0.0f, .moments = { &some }, .ratio = 1.0f),
        UPDATE(.weight_decay = 0.1f, .moments = { &some }, .ratio = 1.0f),
        UPDATE(.weight_decay = 0.1f, .moments = { &some }, .decoupled = true, .ratio = 1.0f),
    };
    struct run run = { .rule = "adagrad", .isa = isa, .oracle = oracle_adagrad, .n_moments = 1 };
    (void)types;
    check_rule(&run, kernel, settings, AMP_COUNT(settings));
}

void check_novograd(amp_fn kernel, const amp_dtype *types, const char *isa) {
    static const struct amp__update settings[] = {
        UPDATE(.weight_decay = 0.0f, .moments = { &some }, .ratio = 1.0f),
        UPDATE(.weight_decay = 0.1f, .moments = { &some }, .ratio = 1.0f),
        UPDATE(.weight_decay = 0.1f, .moments = { &some }, .decoupled = true, .ratio = 1.0f),
    };
    struct run run = { .rule = "novograd", .isa = isa, .oracle = oracle_novograd, .n_moments = 1 };
    (void)types;
    check_rule(&run, kernel, settings, AMP_COUNT(settings));
}

/* ---- the check before the step ---- */

void check_check(amp_fn kernel, const amp_dtype *types, const char *isa) {
    static uint64_t data[LONGEST], scaled[LONGEST];
    const amp_dtype type = types[0], wide = type == AMP_FLOAT64 ? AMP_FLOAT64 : AMP_FLOAT32;
    const size_t width = amp__dtype_size(type);
    struct guard guard = guard_new(LONGEST * width + 16 * width + GUARD_BORDER);
    for (int p = 0; p < PATTERNS; p++) {
        static const float scales[] = { 1.0f, 0x1p-16f, 65536.0f, 0.3f }, factors[] = { 1.0f, 0.7f, 1e-3f };
        const float scale = scales[p % 4], factor = factors[p % 3];
        fill((enum pattern)p, type, data, LONGEST);
        for (size_t i = 0; i < LONGEST; i++) {
            const uint64_t once = oracle_scale(wide, type, get_bits(type, data, i), scale);
            set_bits(wide, scaled, i, oracle_scale(wide, wide, once, factor));
        }
        for (size_t l = 0; l < AMP_COUNT(lengths); l++) {
            const size_t n = lengths[l];
            uint32_t got_flag = 0, want_flag = 0;
            for (size_t i = 0; i < n; i++)
                want_flag |= (get_bits(wide, scaled, i) & ~sign_bit(wide)) >= infinity_bits(wide);
            const void *src = memcpy(guard_place(&guard, n * width, l % 9 * width), data, n * width);
            const double got = ((amp__check_fn *)kernel)(src, n, scale, factor, &got_flag);
            const double want = oracle_sum_squares(wide, scaled, n);
            uint64_t got_bits, want_bits;
            memcpy(&got_bits, &got, sizeof got_bits);
            memcpy(&want_bits, &want, sizeof want_bits);
            CHECK_THAT(got_flag == want_flag && bits_agree(AMP_FLOAT64, got_bits, want_bits),
                       "%s check %s, %s, n %zu: %g and flag %u, want %g and %u", isa, amp__dtype_name(type),
                       pattern_names[p], n, got, (unsigned)got_flag, want, (unsigned)want_flag);
        }
    }
    guard_free(&guard);
}
