/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fused optimizers' kernels against the words of kernels.h, element by element: every rule, with each switch on and
 * off, over FP32 parameters, masters with a 16-bit copy, and 16-bit parameters alone, gradients of each type, edge
 * patterns, ranges that begin anywhere, odd lengths and alignments, between guards.
 */
#include "table.h"

#include "support.h"

#include <math.h>
#include <string.h>

enum { LONGEST = 4097, EXTRA = 7 }; /* EXTRA elements before `begin`, which stay as they are */

/* All up to twice the longest vector and three, then those where blocks end. */
enum { SHORT_LENGTHS = 2 * 16 + 4, COMMON_LENGTHS = SHORT_LENGTHS + 6 };
static const size_t long_lengths[] = { 63, 64, 65, 255, 256, 257, 1000, 4095, 4096, LONGEST };
enum { N_LENGTHS = SHORT_LENGTHS + AMP_COUNT(long_lengths) };
static size_t length_at(size_t l) { return l < SHORT_LENGTHS ? l : long_lengths[l - SHORT_LENGTHS]; }
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
static struct arrays before, after; /* a step of all elements */
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

static void make(struct run *run, size_t n) {
    n += EXTRA;
    fill(run->pattern, run->grad_type, before.grad, n);
    fill(run->pattern, AMP_FLOAT32, before.param, n);
    fill(run->pattern, places[run->place].low ? places[run->place].low : AMP_FLOAT16, before.low, n);
    for (int k = 0; k < 3; k++) {
        fill(run->pattern, AMP_FLOAT32, before.moments[k], n);
        for (size_t i = 0; k && i < n; i++) before.moments[k][i] &= 0x7fffffffu; /* squares */
    }
}

static void expect(struct run *run, size_t n) {
    const amp_dtype low = places[run->place].low;
    const bool master = places[run->place].param;
    after = before;
    for (size_t i = 0; i < n; i++) {
        const size_t at = EXTRA + i;
        const uint64_t grad = get_bits(run->grad_type, before.grad, at);
        struct element e = { .g = as_float(oracle_cast(AMP_FLOAT32, run->grad_type, grad)) };
        e.g = times(times(e.g, run->u.inv_scale), run->u.factor);
        e.p = as_float(master ? before.param[at] : oracle_cast(AMP_FLOAT32, low, get_bits(low, before.low, at)));
        for (int k = 0; k < 3; k++) e.m[k] = as_float(before.moments[k][at]);
        run->oracle(&e, &run->u);
        directions[i] = e.u;
        masters[i] = e.p;
        for (int k = 0; k < run->n_moments; k++) after.moments[k][at] = (uint32_t)as_bits(e.m[k]);
        if (run->moments_alone) continue;
        e.p = plus(e.p, -times(run->u.lr, e.u));
        if (master) after.param[at] = (uint32_t)as_bits(e.p);
        if (run->u.stochastic && isfinite(e.p)) {
            const uint32_t random = random_word(run->u.low_key, (uint32_t)(run->u.before + at));
            const uint32_t bits = (uint32_t)as_bits(e.p), carry = (bits % 65536 + random % 65536) / 65536;
            e.p = as_float((bits / 65536 + carry) * 65536);
        }
        if (low) set_bits(low, after.low, at, oracle_cast(low, AMP_FLOAT32, as_bits(e.p)));
    }
}

/* The arrays of a run, each at an address and before a gap of its own. */
enum { N_GUARDS = 6, MOST_OFFSET = 16 };
static struct guard guards[N_GUARDS];

static size_t offset_of(int guard, size_t turn) { return turn * (size_t)(2 * guard + 1) % (MOST_OFFSET + 1); }

static void *place(int guard, const void *src, size_t width, size_t n, size_t turn) {
    const size_t bytes = (n + EXTRA) * width;
    return memcpy(guard_place(&guards[guard], bytes, offset_of(guard, turn) * width), src, bytes);
}

static void compare(const struct run *run, int guard, amp_dtype type, const void *got, const void *want, size_t n,
                    size_t turn) {
    static const char *const names[N_GUARDS] = { "grad", "param", "low", "moments[0]", "moments[1]", "moments[2]" };
    const size_t width = amp__dtype_size(type), bytes = (n + EXTRA) * width;
    CHECK_THAT(guard_intact(&guards[guard], bytes, offset_of(guard, turn) * width),
               "%s %s, %s: n %zu: wrote outside %s", run->isa, run->rule, places[run->place].name, n, names[guard]);
    if (!memcmp(got, want, bytes)) return;
    for (size_t i = 0; i < n + EXTRA; i++)
        CHECK_THAT(bits_agree(type, get_bits(type, got, i), get_bits(type, want, i)),
                   "%s %s, %s, gradient %d, %s: n %zu turn %zu: %s[%zu] is %#llx, want %#llx", run->isa, run->rule,
                   places[run->place].name, (int)run->grad_type, pattern_names[run->pattern], n, turn, names[guard], i,
                   (unsigned long long)get_bits(type, got, i), (unsigned long long)get_bits(type, want, i));
}

static void compare_squares(const struct run *run, const double got[2], size_t n) {
    const double want[2] = { oracle_sum_squares(AMP_FLOAT32, masters, n),
                             oracle_sum_squares(AMP_FLOAT32, directions, n) };
    for (size_t k = 0; k < 2; k++)
        CHECK_THAT(bits_agree(AMP_FLOAT64, get_bits(AMP_FLOAT64, got, k), get_bits(AMP_FLOAT64, want, k)),
                   "%s %s, %s: n %zu: squares[%zu] is %g, want %g", run->isa, run->rule, pattern_names[run->pattern], n,
                   k, got[k], want[k]);
}

static void check_one(struct run *run, amp_fn kernel, size_t n, size_t turn) {
    const amp_dtype low = places[run->place].low;
    struct amp__update u = run->u;
    double squares[2] = { -1.0, -1.0 };
    u.grad = place(0, before.grad, amp__dtype_size(run->grad_type), n, turn);
    u.param = places[run->place].param ? place(1, before.param, 4, n, turn) : NULL;
    u.low = low ? place(2, before.low, 2, n, turn) : NULL;
    for (int k = 0; k < 3; k++) u.moments[k] = run->u.moments[k] ? place(3 + k, before.moments[k], 4, n, turn) : NULL;
    u.stream = u.param && u.low && turn % 2;
    if (run->moments_alone) ((amp__update_squares_fn *)kernel)(&u, EXTRA, EXTRA + n, squares);
    else ((amp__update_fn *)kernel)(&u, EXTRA, EXTRA + n);
    compare(run, 0, run->grad_type, u.grad, before.grad, n, turn);
    if (u.param) compare(run, 1, AMP_FLOAT32, u.param, after.param, n, turn);
    if (u.low) compare(run, 2, low, u.low, after.low, n, turn);
    for (int k = 0; k < 3; k++)
        if (u.moments[k]) compare(run, 3 + k, AMP_FLOAT32, u.moments[k], after.moments[k], n, turn);
    if (run->moments_alone) compare_squares(run, squares, n);
}

/* One setting with one place and type: every pattern with every length, those of thousands for one in seven. */
static size_t check_patterns(struct run *run, amp_fn kernel, size_t combination, size_t turn) {
    const size_t first = turn;
    const size_t step = (size_t)sweep_step();
    for (size_t p = combination % step; p < PATTERNS; p += step) {
        const size_t n_lengths = (combination * PATTERNS + p) % 7 ? COMMON_LENGTHS : N_LENGTHS;
        run->pattern = (enum pattern)p;
        make(run, length_at(n_lengths - 1));
        expect(run, length_at(n_lengths - 1));
        for (size_t l = 0; l < n_lengths; l++, turn++) check_one(run, kernel, length_at(l), turn);
    }
    return turn - first;
}

static void check_rule(struct run *run, amp_fn kernel, const struct amp__update *settings, size_t n_settings) {
    for (int i = 0; i < N_GUARDS; i++) guards[i] = guard_new((LONGEST + EXTRA + MOST_OFFSET) * 4 + GUARD_BORDER);
    size_t tested = 0, combination = 0;
    for (size_t s = 0; s < n_settings; s++)
        for (run->place = 0; run->place < AMP_COUNT(places); run->place++)
            for (size_t t = 0; t < AMP_COUNT(grad_types); t++, combination++) {
                run->grad_type = grad_types[t];
                run->u = settings[s];
                run->u.grad_type = run->grad_type;
                run->u.low_type = places[run->place].low;
                if (combination % 3 == 1) run->u.correction1 = 1.0f; /* as after many steps */
                if (combination % 5 == 1) run->u.correction2 = 1.0f;
                run->u.stochastic = !places[run->place].param &&
                                    run->u.low_type == AMP_BFLOAT16 && combination % 2;
                run->u.low_key = UINT64_C(0x123456789abcdef) * (combination + 1), run->u.before = combination * 999;
                tested += check_patterns(run, kernel, combination, tested);
            }
    ck_assert_uint_gt(tested, 1000);
    for (int i = 0; i < N_GUARDS; i++) guard_free(&guards[i]);
}

/* ---- settings ---- */

static float some; /* a moment is there: its address counts */
#define COMMON                                                                                                         \
    .inv_scale = 0x1.8p-9f, .factor = 0.7f, .lr = 0.03f, .beta1 = 0.9f, .rest1 = 0.1f, .beta2 = 0.99f, .rest2 = 0.01f, \
    .eps = 1e-5f, .correction1 = 0.271f, .correction2 = 0.0297f, .denominator = 0.37f
#define UPDATE(...) { COMMON, __VA_ARGS__ }

void check_sgd(amp_fn kernel, const amp_dtype *types, const char *isa) {
#define DECAYS(...)                                                                                                    \
    UPDATE(.weight_decay = 0.0f, __VA_ARGS__), UPDATE(.weight_decay = 0.1f, __VA_ARGS__),                              \
        UPDATE(.weight_decay = 0.1f, .decay_after = true, __VA_ARGS__)
    static const struct amp__update settings[] = {
        DECAYS(.ratio = 1.0f),
        DECAYS(.moments = { &some }, .ratio = 0.3f),
        DECAYS(.moments = { &some }, .first = true, .ratio = 1.0f),
        DECAYS(.moments = { &some }, .nesterov = true, .ratio = 1.0f),
        DECAYS(.moments = { &some }, .nesterov = true, .first = true, .ratio = 0.3f),
    };
#undef DECAYS
    struct run run = { .rule = "sgd", .isa = isa, .oracle = oracle_sgd, .n_moments = 1 };
    (void)types;
    check_rule(&run, kernel, settings, AMP_COUNT(settings));
}

static const struct amp__update adam_settings[] = {
    UPDATE(.weight_decay = 0.0f, .moments = { &some, &some }, .ratio = 1.0f),
    UPDATE(.weight_decay = 0.1f, .moments = { &some, &some }, .ratio = 0.25f),
    UPDATE(.weight_decay = 0.1f, .moments = { &some, &some }, .decoupled = true, .ratio = 1.0f),
    UPDATE(.weight_decay = 0.0f, .moments = { &some, &some, &some }, .ratio = 1.0f),
    UPDATE(.weight_decay = 0.1f, .moments = { &some, &some, &some }, .ratio = 1.0f),
    UPDATE(.weight_decay = 0.1f, .moments = { &some, &some, &some }, .decoupled = true, .ratio = 1.0f),
};
enum { WITHOUT_AMSGRAD = 3 };

void check_adam(amp_fn kernel, const amp_dtype *types, const char *isa) {
    struct run run = { .rule = "adam", .isa = isa, .oracle = oracle_adam, .n_moments = 3 };
    (void)types;
    check_rule(&run, kernel, adam_settings, AMP_COUNT(adam_settings));
}

/* And without eps, where u of 0, which may lie behind the end, is a NaN. */
void check_lamb_moments(amp_fn kernel, const amp_dtype *types, const char *isa) {
    struct amp__update settings[WITHOUT_AMSGRAD + 1];
    struct run run = { .rule = "lamb_moments", .isa = isa, .oracle = oracle_lamb_moments, .n_moments = 2,
                       .moments_alone = true };
    (void)types;
    memcpy(settings, adam_settings, sizeof settings);
    settings[WITHOUT_AMSGRAD] = settings[0];
    settings[WITHOUT_AMSGRAD].eps = 0.0f;
    check_rule(&run, kernel, settings, AMP_COUNT(settings));
}

void check_lamb_apply(amp_fn kernel, const amp_dtype *types, const char *isa) {
    struct run run = { .rule = "lamb_apply", .isa = isa, .oracle = oracle_lamb_apply };
    (void)types;
    check_rule(&run, kernel, adam_settings, WITHOUT_AMSGRAD);
}

static const struct amp__update one_moment_settings[] = {
    UPDATE(.weight_decay = 0.0f, .moments = { &some }, .ratio = 1.0f),
    UPDATE(.weight_decay = 0.1f, .moments = { &some }, .ratio = 1.0f),
    UPDATE(.weight_decay = 0.1f, .moments = { &some }, .decoupled = true, .ratio = 1.0f),
};

void check_adagrad(amp_fn kernel, const amp_dtype *types, const char *isa) {
    struct run run = { .rule = "adagrad", .isa = isa, .oracle = oracle_adagrad, .n_moments = 1 };
    (void)types;
    check_rule(&run, kernel, one_moment_settings, AMP_COUNT(one_moment_settings));
}

void check_novograd(amp_fn kernel, const amp_dtype *types, const char *isa) {
    struct run run = { .rule = "novograd", .isa = isa, .oracle = oracle_novograd, .n_moments = 1 };
    (void)types;
    check_rule(&run, kernel, one_moment_settings, AMP_COUNT(one_moment_settings));
}

/* ---- the check before the step ---- */

void check_check(amp_fn kernel, const amp_dtype *types, const char *isa) {
    static uint64_t data[LONGEST], scaled[LONGEST];
    const amp_dtype type = types[0], wide = type == AMP_FLOAT64 ? AMP_FLOAT64 : AMP_FLOAT32;
    const size_t width = amp__dtype_size(type);
    struct guard guard = guard_new((LONGEST + MOST_OFFSET) * width + GUARD_BORDER);
    for (int p = 0; p < 2 * PATTERNS; p++) {
        static const float scales[] = { 1.0f, 0x1p-16f, INFINITY, 65536.0f, 0.3f }, factors[] = { 1.0f, 0.7f, 1e-3f };
        const float scale = scales[p % 5], factor = factors[p % 3];
        const enum pattern pattern = (enum pattern)(p % PATTERNS);
        fill(pattern, type, data, LONGEST);
        for (size_t i = 0; i < LONGEST; i++) {
            const uint64_t once = oracle_scale(wide, type, get_bits(type, data, i), scale);
            set_bits(wide, scaled, i, oracle_scale(wide, wide, once, factor));
        }
        for (size_t l = 0; l < N_LENGTHS; l++) {
            const size_t n = length_at(l);
            uint32_t got_flag = l % 2, want_flag = l % 2; /* what is set stays */
            for (size_t i = 0; i < n; i++)
                want_flag |= (get_bits(wide, scaled, i) & ~sign_bit(wide)) >= infinity_bits(wide);
            const void *src = memcpy(guard_place(&guard, n * width, l % (MOST_OFFSET + 1) * width), data, n * width);
            const double got = ((amp__check_fn *)kernel)(src, n, scale, factor, &got_flag);
            const double want = oracle_sum_squares(wide, scaled, n);
            CHECK_THAT(got_flag == want_flag &&
                           bits_agree(AMP_FLOAT64, get_bits(AMP_FLOAT64, &got, 0), get_bits(AMP_FLOAT64, &want, 0)),
                       "%s check %s, %s, n %zu: %g and flag %u, want %g and %u", isa, amp__dtype_name(type),
                       pattern_names[pattern], n, got, (unsigned)got_flag, want, (unsigned)want_flag);
        }
    }
    guard_free(&guard);
}
