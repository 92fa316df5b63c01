/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Moments in 8 bits: as good as FP32 ones over thousands of steps, the same bytes for every set and number of threads,
 * of a shard and after a resumed checkpoint, and refusals. The kernel itself: tests/kernels/moments.c.
 */
#include "large.h"

#include "amp_kernels.h"
#include "tensors.h"

#include <math.h>

enum { BLOCK = AMP_STATE_BLOCK };

/* One tensor with 8-bit moments, and one with FP32 moments. */
struct pair {
    size_t n;
    float *grad, *param[2], *moments[2], *scales[2];
    uint8_t *codes[2];
    uint64_t steps[2];
};

static void pair_end(struct pair *p) {
    free(p->grad);
    for (int k = 0; k < 2; k++) free(p->param[k]), free(p->moments[k]), free(p->scales[k]), free(p->codes[k]);
}
#define PAIR(name, size) __attribute__((cleanup(pair_end))) struct pair name = pair_of(size)

static size_t blocks_of(size_t n) { return (n + BLOCK - 1) / BLOCK; }

static struct pair pair_of(size_t n) {
    struct pair p = { .n = n, .grad = floats(n) };
    for (int k = 0; k < 2; k++) {
        p.param[k] = floats(n), p.moments[k] = floats(n), p.scales[k] = floats(blocks_of(n)), p.codes[k] = calloc(n, 1);
        for (size_t i = 0; i < n; i++) p.param[k][i] = 1.0f;
    }
    return p;
}

/* Steps param[which]: 0 with 8 bits, 1 with FP32. */
static amp_status step_of(struct pair *p, int which, const amp_optim *rule, uint64_t key, uint64_t before, size_t first,
                          size_t n) {
    const amp_span grad = { p->grad + first, n, AMP_FLOAT32, 0 };
    const amp_span param = { p->param[which] + first, n, AMP_FLOAT32, 0 };
    amp_span moments[2];
    float *scales[2];
    float *const *lists[2];
    amp_optim_tensors t = AMP_OPTIM_TENSORS_INIT;
    t.n = 1, t.grad = &grad, t.param = &param, t.steps = &p->steps[which], t.keys = &key, t.before = &before;
    for (int k = 0; k < 2; k++) {
        moments[k] = which ? (amp_span){ p->moments[k] + first, n, AMP_FLOAT32, 0 }
                           : (amp_span){ p->codes[k] + first, n, AMP_DTYPE_OTHER, 0 };
        scales[k] = p->scales[k] + first / BLOCK;
        lists[k] = &scales[k];
        t.moments[k] = &moments[k];
        t.scales[k] = which ? NULL : lists[k];
    }
    return amp_optim_list(rule, &t);
}
static void step_whole(struct pair *p, int which, const amp_optim *rule) {
    ck_ok(step_of(p, which, rule, 1, 0, 0, p->n));
}

/* ---- over thousands of steps ---- */

/* Approximately normal, variance 1. */
static float normal(uint64_t *state) {
    const uint64_t bits = next_bits(state);
    int32_t sum = 0;
    for (int i = 0; i < 4; i++) sum += (int16_t)(bits >> (16 * i));
    return (float)sum * (1.0f / 37837.2f); /* 4 uniforms of variance 65536^2 / 12 */
}

/* Gradients of constant variance, deviations between 1 and 1/8 in each block. 10,000 steps are ten times the memory of
 * beta2 = 0.999. With codes rounded up sqrt(v) is 3.4 times as large, to nearest 4 % larger. The means of both
 * optimizers over 4096 elements, estimates of one variance, agree within 2 %. */
TEST(moments_stay_those_of_fp32) {
    enum { N = AMP_STATE_LEAST, STEPS = 10000 };
    const amp_optim rule = optim_of(AMP_OPTIM_ADAM, 0.0);
    uint64_t state = 1;
    double roots[2] = { 0.0, 0.0 };
    PAIR(p, N);
    for (int s = 0; s < STEPS; s++) {
        for (size_t i = 0; i < N; i++) p.grad[i] = normal(&state) / (float)(1 + i % 8);
        step_whole(&p, 0, &rule), step_whole(&p, 1, &rule);
    }
    for (size_t i = 0; i < N; i++) {
        roots[0] += (double)p.codes[1][i] * (double)p.scales[1][i / BLOCK];
        roots[1] += sqrt((double)p.moments[1][i]);
    }
    ck_assert_msg(fabs(roots[0] / roots[1] - 1.0) < 0.02, "mean sqrt(v) is %.4f of FP32's", roots[0] / roots[1]);
}

/* In FP32 an element whose gradient became 0 coasts on its momentum and stops. With 8 bits its m reaches 0, while
 * others of the block go on. Rounded to nearest, a code up to 4 would stay for ever, since 0.9 * 4 is 4 again. */
TEST(elements_without_a_gradient_stop) {
    enum { N = AMP_STATE_LEAST, BEFORE = 50, COAST = 250, AFTER = 200 };
    const amp_optim rule = optim_of(AMP_OPTIM_ADAMW, 1e-3);
    uint64_t state = 2;
    static float at_zero[2][N], at_rest[2][N];
    double coasted[2] = { 0.0, 0.0 };
    PAIR(p, N);
    for (int s = 0; s < BEFORE + COAST + AFTER; s++) {
        for (int k = 0; k < 2; k++) {
            if (s == BEFORE) memcpy(at_zero[k], p.param[k], sizeof at_zero[k]);
            if (s == BEFORE + COAST) memcpy(at_rest[k], p.param[k], sizeof at_rest[k]);
        }
        for (size_t i = 0; i < N; i++) p.grad[i] = i % 4 && s >= BEFORE ? 0.0f : 0.5f + 0.25f * normal(&state);
        step_whole(&p, 0, &rule), step_whole(&p, 1, &rule);
    }
    for (size_t i = 0; i < N; i++) {
        for (int k = 0; k < 2; k++) {
            const bool rests = p.param[k][i] == at_rest[k][i];
            ck_assert_msg(rests == (i % 4 != 0), "%s: element %zu %s", k ? "FP32" : "8 bits", i,
                          rests ? "stopped" : "moves");
            if (i % 4) coasted[k] += (double)(at_zero[k][i] - at_rest[k][i]);
        }
        if (i % 4) ck_assert_uint_eq(p.codes[0][i], 0);
        if (i % 4) ck_assert_uint_gt(p.codes[1][i], 0); /* v is not 0 */
    }
    ck_assert_msg(fabs(coasted[0] / coasted[1] - 1.0) < 0.05, "coasted %.4f of FP32's way", coasted[0] / coasted[1]);
}

/* beta1 = 0 stores the gradient itself: the mean of its codes over many elements is the gradient. A code's deviation is
 * at most half a scale, so 5 deviations of the mean of n are 2.5 / sqrt(n) scales; the bias is at most 2^-17 of a scale
 * (16 random bits) and FP32's roundings. */
TEST_TIMES(rounding_is_unbiased, 8) {
    enum { N = 256 * 256 };
    static const float values[] = { 0.3f, -0.3f, 0.0041f, 0.99f, -0.0001f, 0.5f, -0.7071f, 0.007f };
    amp_optim rule = optim_of(AMP_OPTIM_ADAM, 0.0);
    double sum[2] = { 0.0, 0.0 };
    PAIR(p, N);
    rule.beta1 = rule.beta2 = 0.0;
    for (size_t i = 0; i < N; i++) p.grad[i] = i % BLOCK ? values[_i] : 1.0f;
    step_whole(&p, 0, &rule);
    for (size_t i = 0; i < N; i++) {
        if (i % BLOCK == 0) continue;
        sum[0] += (double)(int8_t)p.codes[0][i] * (double)p.scales[0][i / BLOCK];
        sum[1] += (double)p.codes[1][i] * (double)p.scales[1][i / BLOCK];
    }
    const double n = N - N / BLOCK, value = (double)values[_i];
    for (int k = 0; k < 2; k++) {
        const double scale = (double)p.scales[k][0], bound = scale * (2.5 / sqrt(n) + 0x1p-17) + 0x1p-22;
        const double want = k ? fmax(fabs(value), scale) : value; /* v: code 1 at least */
        ck_assert_msg(fabs(sum[k] / n - want) < bound, "moment %d: mean %.7f of %.7f", k, sum[k] / n, want);
    }
}

/* ---- the same bytes ---- */

static void compare_pairs(const struct pair *a, const struct pair *b, const char *what) {
    ck_assert_msg(!memcmp(a->param[0], b->param[0], a->n * sizeof(float)), "%s: the parameter differs", what);
    for (int k = 0; k < 2; k++) {
        ck_assert_msg(!memcmp(a->codes[k], b->codes[k], a->n), "%s: codes of moment %d differ", what, k);
        ck_assert_msg(!memcmp(a->scales[k], b->scales[k], blocks_of(a->n) * sizeof(float)), "%s: scales differ", what);
    }
}

static void random_grads(struct pair *p, uint64_t state) { fill_floats(p->grad, p->n, 1.0f, &state); }

TEST(sets_and_threads_write_the_same_bytes) {
    enum { N = 300 * 1000 + 77, STEPS = 3 };
    static const uint32_t masks[] = { 0, AMP_CPU_SSE2, AMP_CPU_SSE2 | AMP_CPU_AVX2, UINT32_MAX };
    const amp_optim rule = optim_of(AMP_OPTIM_ADAM, 1e-2);
    PAIR(first, N);
    for (size_t run = 0; run < 2 * (sizeof masks / sizeof *masks); run++) {
        PAIR(other, N);
        struct pair *p = run ? &other : &first;
        amp_set_cpu_mask(masks[run / 2]);
        ck_ok(amp_set_num_threads(run % 2 ? 3 : 1));
        for (uint64_t s = 0; s < STEPS; s++) {
            random_grads(p, s);
            step_whole(p, 0, &rule);
        }
        if (run) compare_pairs(&first, p, "another set or number of threads");
    }
    amp_set_cpu_mask(UINT32_MAX);
    ck_ok(amp_set_num_threads(0));
}

/* Ranks that each have a part of a parameter, and say where it begins, make the bytes of the whole. */
TEST(shards_make_the_whole) {
    enum { N = 4 * AMP_STATE_LEAST + 100, CUT = 17 * BLOCK };
    const amp_optim rule = optim_of(AMP_OPTIM_ADAM, 1e-2);
    PAIR(whole, N);
    PAIR(parts, N);
    for (uint64_t s = 0; s < 3; s++) {
        random_grads(&whole, s), random_grads(&parts, s);
        step_whole(&whole, 0, &rule);
        parts.steps[0] = s;
        ck_ok(step_of(&parts, 0, &rule, 1, 0, 0, CUT));
        parts.steps[0] = s;
        ck_ok(step_of(&parts, 0, &rule, 1, CUT, CUT, N - CUT));
    }
    compare_pairs(&whole, &parts, "shards");
}

TEST(keys_and_steps_change_the_bytes) {
    const amp_optim rule = optim_of(AMP_OPTIM_ADAM, 1e-2);
    PAIR(a, AMP_STATE_LEAST);
    PAIR(b, AMP_STATE_LEAST);
    PAIR(later, AMP_STATE_LEAST);
    random_grads(&a, 5), random_grads(&b, 5), random_grads(&later, 5);
    later.steps[0] = 1;
    ck_ok(step_of(&a, 0, &rule, amp_optim_key(1, "weight"), 0, 0, a.n));
    ck_ok(step_of(&b, 0, &rule, amp_optim_key(1, "bias"), 0, 0, a.n));
    ck_ok(step_of(&later, 0, &rule, amp_optim_key(1, "weight"), 0, 0, a.n));
    ck_assert(memcmp(a.codes[0], b.codes[0], a.n) && memcmp(a.codes[0], later.codes[0], a.n));
    ck_assert_uint_ne(amp_optim_key(1, "weight"), amp_optim_key(2, "weight"));
}

/* ---- values ---- */

TEST_TIMES(values_come_back, 2) {
    enum { N = 1000 };
    float values[N], again[N], scales[4], kept[4];
    uint8_t codes[N], other[N];
    uint64_t state = 3;
    fill_floats(values, N, _i ? 1e-3f : 1.0f, &state);
    for (size_t i = 0; i < N; i++) values[i] = (float)(_i ? fabs((double)values[i]) : (double)values[i]);
    values[3] = 0.0f, values[4] = 1e-30f, values[5] = _i ? 1e-38f : -1e-38f;
    ck_ok(amp_encode_moment(codes, scales, values, N, _i, 0));
    ck_ok(amp_decode_moment(again, codes, scales, N, _i));
    ck_assert(codes[3] == 0 && again[3] == 0.0f);
    for (size_t i = 0; i < N; i++) {
        const double x = _i ? sqrt((double)values[i]) : (double)values[i];
        const double y = _i ? sqrt((double)again[i]) : (double)again[i];
        const bool floor = _i && codes[i] == 1; /* not to 0 */
        ck_assert_msg(floor || fabs(x - y) <= 0.5001 * (double)scales[i / BLOCK], "%zu: %g for %g", i, y, x);
        ck_assert(!_i || (codes[i] == 0) == (values[i] == 0.0f));
    }
    memcpy(kept, scales, sizeof kept);
    ck_ok(amp_encode_moment(other, kept, again, N, _i, 1));
    ck_assert(!memcmp(codes, other, N) && !memcmp(kept, scales, sizeof kept));
}

/* Blocks that hold a NaN are lost, the others not; a finite v of any size is not. */
TEST(a_nan_loses_its_block) {
    enum { N = 2 * BLOCK };
    const amp_optim rule = optim_of(AMP_OPTIM_ADAM, 1e-2);
    PAIR(p, N);
    for (size_t i = 0; i < N; i++) p.grad[i] = 1.0f;
    p.grad[3] = 1e30f, p.grad[BLOCK + 3] = NAN;
    step_whole(&p, 0, &rule);
    ck_assert(isfinite(p.scales[0][0]) && isfinite(p.scales[1][0]) && isnan(p.scales[0][1]) && isnan(p.scales[1][1]));
    for (size_t i = 0; i < N; i++) ck_assert(isnan(p.param[0][i]) == (i == BLOCK + 3));
    p.grad[BLOCK + 3] = 1.0f;
    step_whole(&p, 0, &rule);
    for (size_t i = 0; i < N; i++) ck_assert(isnan(p.param[0][i]) == (i >= BLOCK));
}

/* Nor is an m of any size: it comes back finite. */
TEST(the_largest_gradient_loses_no_block) {
    enum { N = 2 * BLOCK };
    amp_optim rule = optim_of(AMP_OPTIM_ADAM, 1e-2);
    float values[BLOCK] = { 0x1.fffffep127f, -0x1.fffffep127f, 1.0f }, scale;
    uint8_t codes[BLOCK];
    rule.flags &= ~(uint32_t)AMP_OPTIM_BIAS_CORRECTION; /* m / corr1 can be infinite, in FP32 as well */
    PAIR(p, N);
    for (size_t i = 0; i < N; i++) p.grad[i] = i % 3 ? 0x1.fffffep127f : -1.0f;
    for (int k = 0; k < 2; k++) {
        for (int step = 0; step < 200; step++) step_whole(&p, 0, &rule);
        rule.beta1 = 0.0;
    }
    for (size_t i = 0; i < N; i++) ck_assert(isfinite(p.param[0][i]));
    ck_assert(isfinite(p.scales[0][0]) && isfinite(p.scales[0][1]));
    ck_ok(amp_encode_moment(codes, &scale, values, BLOCK, 0, 0));
    ck_ok(amp_decode_moment(values, codes, &scale, BLOCK, 0));
    ck_assert(isfinite(values[0]) && values[0] >= 0x1.fffffcp127f && values[1] == -values[0]);
}

/* ---- in a context ---- */

#define LARGE_AT(name, level, flags, seed) LARGE_START(name, CONFIG(level, LARGE_SCALE), flags, seed)

static const amp_level levels[] = { AMP_O0, AMP_O2, AMP_O5 };

TEST_TIMES(resume_is_bit_exact_with_codes, 3) {
    static char state[STATE_BYTES], first[STATE_BYTES], second[STATE_BYTES];
    LARGE_AT(straight, levels[_i], AMP_FUSED_STATE_8BIT, 7);
    LARGE_AT(resumed, levels[_i], AMP_FUSED_STATE_8BIT, 7);
    train(&straight, 0, 6, true);
    const size_t size = save(&straight, state);
    train(&straight, 6, 5, true);
    train(&resumed, 0, 2, true); /* moments of its own, which the file's replace */
    ck_ok(amp_state_load_memory(resumed.rig.context, state, size));
    train(&resumed, 6, 5, true);
    compare_large(&straight, &resumed);
    ck_assert_uint_eq(save(&straight, first), save(&resumed, second));
    ck_assert(!memcmp(first, second, size));
}

/* Which random numbers follow is not the file's to say: a load under another seed is told. */
TEST(another_seed_is_told) {
    static char state[STATE_BYTES];
    LARGE_AT(saved, AMP_O5, AMP_FUSED_STATE_8BIT, 7);
    LARGE_AT(same, AMP_O5, AMP_FUSED_STATE_8BIT, 7);
    LARGE_AT(other, AMP_O5, AMP_FUSED_STATE_8BIT, 8);
    LARGE_AT(without, AMP_O5, 0, 8);
    const size_t size = save(&saved, state);
    ck_ok(amp_state_load_memory(same.rig.context, state, size));
    ck_assert(!same.rig.host.events[AMP_EVENT_WARNING]);
    ck_ok(amp_state_load_memory(without.rig.context, state, size));
    ck_assert(!without.rig.host.events[AMP_EVENT_WARNING]);
    ck_ok(amp_state_load_memory(other.rig.context, state, size));
    ck_warned(&other.rig, "optimizer0.seed 7 -> 8");
}

/* A run whose skipped steps never were. */
TEST(skips_use_no_random_numbers) {
    LARGE_AT(skips, AMP_O0, AMP_FUSED_STATE_8BIT, 7);
    LARGE_AT(never, AMP_O0, AMP_FUSED_STATE_8BIT, 7);
    train(&skips, 0, 10, true), train(&never, 0, 10, false);
    compare_large(&skips, &never);
    LARGE_AT(seeded, AMP_O0, AMP_FUSED_STATE_8BIT, 8);
    train(&seeded, 0, 10, true);
    ck_assert(memcmp(skips.wide->storage.data, seeded.wide->storage.data, 4 * LARGE));
}

/* Checkpoints of FP32 moments load into 8 bits, and back: steps go on, and the values are the nearest codes. */
TEST_TIMES(fp32_state_loads_and_back, 2) {
    static char state[STATE_BYTES], again[STATE_BYTES];
    const uint32_t from = _i ? AMP_FUSED_STATE_8BIT : 0;
    LARGE_AT(saved, AMP_O0, from, 7);
    LARGE_AT(loaded, AMP_O0, from ^ AMP_FUSED_STATE_8BIT, 7);
    train(&saved, 0, 8, true);
    ck_ok(amp_state_load_memory(loaded.rig.context, state, save(&saved, state)));
    compare_large(&saved, &loaded);
    const size_t size = save(&loaded, again);
    ck_assert(!memmem(again, size, "\"large.exp_avg.scale\"", 21) == (_i == 1));
    ck_assert_ptr_nonnull(memmem(again, size, "\"libamp.step.large\":\"7\"", 23));
    train(&saved, 8, 3, false), train(&loaded, 8, 3, false);
    for (int64_t i = 0; i < LARGE; i++) /* steps of 0.01, and moments that differ by half a code of 127 */
        ck_assert_double_eq_tol(fake_get(saved.wide, i), fake_get(loaded.wide, i), 2 * 0.01 * 0.1);
}

TEST(memory_counts_codes) {
    amp_memory memory = AMP_MEMORY_INIT, predicted = AMP_MEMORY_INIT;
    LARGE_AT(x, AMP_O5, AMP_FUSED_STATE_8BIT, 7);
    ck_ok(amp_get_memory(x.rig.context, &memory));
    ck_ok(amp_predict_memory(x.rig.context, AMP_O5, &predicted));
    const uint64_t small = 3 * 2 * 4 * NET_SIZE, large = 2 * LARGE + 2 * 4 * blocks_of(LARGE);
    ck_assert_uint_eq(memory.moments, small + large);
    ck_assert_uint_eq(predicted.moments, small + large);
    ck_assert_uint_lt(100 * large, 204 * LARGE);
}

/* ---- refusals ---- */

TEST(others_are_refused) {
    amp_optim rule = optim_of(AMP_OPTIM_SGD, 0.1);
    amp_fused fused = SIZED(amp_fused, .flags = AMP_FUSED_STATE_8BIT, .groups = &rule, .n_groups = 1);
    PAIR(p, 512);
    RIG_INIT(rig, 0);
    rig.net.optimizer.fused = &fused;
    rig.net.optimizer.n_steps = rig.net.optimizer.n_zero_grads = 0;
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "Adam and AdamW without", rig_try(&rig, config_of(AMP_O0)));
    rule = optim_of(AMP_OPTIM_ADAM, 0.1);
    rule.flags |= AMP_OPTIM_AMSGRAD;
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "Adam and AdamW without", rig_try(&rig, config_of(AMP_O0)));
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "Adam and AdamW without", step_of(&p, 0, &rule, 1, 0, 0, 512));
    fused.flags = 2;
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "unknown flags", rig_try(&rig, config_of(AMP_O0)));
}

TEST(lists_are_checked) {
    const amp_optim rule = optim_of(AMP_OPTIM_ADAM, 0.1);
    float param[4] = { 0 }, scale = 0.0f;
    uint8_t codes[2][4] = { { 0 } };
    float *scales[2] = { &scale, NULL };
    const amp_span span = { param, 4, AMP_FLOAT32, 0 };
    amp_span moments[2] = { { codes[0], 4, AMP_DTYPE_OTHER, 0 }, { codes[1], 4, AMP_DTYPE_OTHER, 0 } };
    amp_optim_tensors t = AMP_OPTIM_TENSORS_INIT;
    t.n = 1, t.step = 1, t.grad = t.param = &span;
    for (int k = 0; k < 2; k++) t.moments[k] = &moments[k], t.scales[k] = &scales[k];
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "scales[1][0] is NULL", amp_optim_list(&rule, &t));
    scales[1] = &scale;
    moments[1].dtype = AMP_FLOAT32;
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "moments[1][0].dtype is fp32", amp_optim_list(&rule, &t));
    moments[1].dtype = AMP_DTYPE_OTHER, moments[0].size = 3;
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "moments[0][0] has 3 codes", amp_optim_list(&rule, &t));
    moments[0].size = 4, moments[0].data = NULL;
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "moments[0] has no codes", amp_optim_list(&rule, &t));
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "scales is NULL", amp_encode_moment(codes[0], NULL, param, 4, 0, 0));
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "values is NULL", amp_decode_moment(NULL, codes[0], &scale, 4, 0));
}
