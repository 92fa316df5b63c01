/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bfloat16 parameters without masters that are rounded up or down at random: by plain calls, and in contexts
 * (AMP_STOCHASTIC), with every rule, skips, checkpoints and refusals.
 */
#include "large.h"

#include "amp_kernels.h"
#include "amp_observe.h"
#include "tensors.h"

#include <math.h>

/* ---- plain calls ---- */

enum { WIDE = 300 * 1000 + 77 };

/* Steps a bf16 parameter of 1 by `rule` with gradients of 1, elements from `first` to `end` alone. */
static void step_low(uint16_t *param, float *const moments[2], const amp_optim *rule, uint64_t step, size_t first,
                     size_t end) {
    static float grad[WIDE];
    const uint64_t key = amp_optim_key(3, "weight"), before = first;
    for (size_t i = 0; i < WIDE; i++) grad[i] = 1.0f;
    const amp_span g = { grad, end - first, AMP_FLOAT32, 0 }, p = { param + first, end - first, AMP_BFLOAT16, 0 };
    amp_span m[2];
    amp_optim_tensors t = AMP_OPTIM_TENSORS_INIT;
    t.n = 1, t.grad = &g, t.param = &p, t.step = step, t.keys = &key, t.before = &before;
    t.flags = AMP_TENSORS_STOCHASTIC;
    for (int k = 0; k < 2; k++) {
        const bool one = rule->kind == AMP_OPTIM_NOVOGRAD && k == 1;
        m[k] = (amp_span){ moments[k] + (one ? 0 : first), one ? 1 : end - first, AMP_FLOAT32, 0 };
        t.moments[k] = &m[k];
    }
    ck_ok(amp_optim_list(rule, &t));
}

static uint16_t *low_ones(void) {
    uint16_t *param = malloc(WIDE * sizeof *param);
    for (size_t i = 0; i < WIDE; i++) param[i] = 0x3f80;
    return param;
}

/* A step of 2^-12 is a sixteenth of a unit of bf16 below 1, and to nearest would be lost. Each element is rounded to 1
 * or to the next number below, and 5 deviations of their mean are 2.5 units / sqrt(n) at most. */
TEST(small_steps_are_not_lost) {
    const amp_optim rule = optim_of(AMP_OPTIM_SGD, 0x1p-12);
    uint16_t *param = low_ones();
    float *moments[2] = { floats(WIDE), floats(WIDE) };
    double sum = 0.0;
    step_low(param, moments, &rule, 1, 0, WIDE);
    for (size_t i = 0; i < WIDE; i++) {
        ck_assert(param[i] == 0x3f80 || param[i] == 0x3f7f);
        sum += param[i] == 0x3f80 ? 0.0 : -0x1p-8;
    }
    ck_assert_double_eq_tol(sum / WIDE, -0x1p-12, 0x1p-8 * 2.5 / sqrt(WIDE));
    free(param), free(moments[0]), free(moments[1]);
}

/* Rules that look at no norm: sets, threads and shards that begin anywhere write the bytes of the whole. */
TEST_TIMES(low_bytes_are_the_same, 4) {
    static const amp_optim_kind kinds[] = { AMP_OPTIM_SGD, AMP_OPTIM_ADAM, AMP_OPTIM_ADAMW, AMP_OPTIM_ADAGRAD };
    static const uint32_t masks[] = { 0, AMP_CPU_SSE2, AMP_CPU_SSE2 | AMP_CPU_AVX2, UINT32_MAX };
    const amp_optim rule = optim_of(kinds[_i], 1e-3);
    uint16_t *whole = NULL;
    for (size_t run = 0; run < 2 * (sizeof masks / sizeof *masks); run++) {
        uint16_t *param = low_ones();
        float *moments[2] = { floats(WIDE), floats(WIDE) };
        amp_set_cpu_mask(masks[run / 2]);
        ck_ok(amp_set_num_threads(run % 2 ? 3 : 1));
        for (uint64_t step = 1; step < 3; step++) {
            const size_t cut = run == 3 ? 10007 : 0; /* no multiple of a vector */
            if (cut) step_low(param, moments, &rule, step, 0, cut);
            step_low(param, moments, &rule, step, cut, WIDE);
        }
        ck_assert_msg(!whole || !memcmp(whole, param, WIDE * sizeof *param), "run %zu differs", run);
        free(moments[0]), free(moments[1]);
        if (whole) free(param);
        else whole = param;
    }
    free(whole);
    amp_set_cpu_mask(UINT32_MAX);
    ck_ok(amp_set_num_threads(0));
}

TEST(stochastic_is_for_bf16) {
    const amp_optim rule = optim_of(AMP_OPTIM_SGD, 0.5);
    uint16_t low[4] = { 0 };
    float wide[4] = { 1.0f, 1.0f, 1.0f, 1.0f };
    const amp_span grad = { wide, 4, AMP_FLOAT32, 0 };
    amp_span param = { low, 4, AMP_FLOAT16, 0 };
    amp_optim_tensors t = AMP_OPTIM_TENSORS_INIT;
    t.n = 1, t.step = 1, t.grad = &grad, t.param = &param, t.flags = AMP_TENSORS_STOCHASTIC;
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "param[0].dtype is fp16", amp_optim_list(&rule, &t));
    t.flags = 2;
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "unknown flags", amp_optim_list(&rule, &t));
}

/* Sets and threads write the same bytes, seeds others, and the mean is that of the values: 5 deviations of a mean of n
 * are 2.5 units / sqrt(n) at most. */
TEST_TIMES(casts_round_at_random, 2) {
    static const uint32_t masks[] = { 0, AMP_CPU_SSE2, AMP_CPU_SSE2 | AMP_CPU_AVX2, UINT32_MAX };
    uint16_t *first = low_ones(), *other = low_ones(), *half = low_ones();
    float *wide = floats(WIDE);
    double sum = 0.0;
    for (size_t i = 0; i < WIDE; i++) wide[i] = 1.0f + 0x1p-10f, half[i] = 0x3c01; /* an eighth of a unit above 1 */
    const amp_span src = { _i ? (void *)half : (void *)wide, WIDE, _i ? AMP_FLOAT16 : AMP_FLOAT32, 0 };
    const amp_span wrong = { wide, WIDE, AMP_FLOAT32, 0 };
    amp_span dst = { first, WIDE, AMP_BFLOAT16, 0 };
    for (size_t run = 0; run < 2 * (sizeof masks / sizeof *masks); run++) {
        amp_set_cpu_mask(masks[run / 2]);
        ck_ok(amp_set_num_threads(run % 2 ? 3 : 1));
        dst.data = run ? other : first;
        ck_ok(amp_cast_random(&dst, &src, 1, 7));
        ck_assert(!run || !memcmp(first, other, WIDE * sizeof *first));
    }
    amp_set_cpu_mask(UINT32_MAX);
    ck_ok(amp_set_num_threads(0));
    for (size_t i = 0; i < WIDE; i++) {
        ck_assert(first[i] == 0x3f80 || first[i] == 0x3f81);
        sum += first[i] == 0x3f81 ? 0x1p-7 : 0.0;
    }
    ck_assert_double_eq_tol(sum / WIDE, 0x1p-10, 0x1p-7 * 2.5 / sqrt(WIDE));
    ck_ok(amp_cast_random(&dst, &src, 1, 8));
    ck_assert(memcmp(first, other, WIDE * sizeof *first));
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "dst[0] is fp32", amp_cast_random(&wrong, &wrong, 1, 0));
    free(first), free(other), free(half), free(wide);
}

/* ---- in a context ---- */

#define AT(name, rule, flags, seed)                                                                                    \
    __attribute__((cleanup(large_end))) struct large name;                                                             \
    large_rule(&name, rule, CONFIG(AMP_O5, LARGE_SCALE, .master_weights = AMP_STOCHASTIC), flags, seed)

static const amp_optim_kind every_kind[] = {
#define KIND(constant, value, ...) value,
    AMP_OPTIM_MAP(KIND)
#undef KIND
};
enum { KINDS = sizeof every_kind / sizeof *every_kind };

static bool same(const struct large *a, const struct large *b) {
    return !memcmp(a->wide->storage.data, b->wide->storage.data, 2 * LARGE);
}

/* Steps far below half a unit at 1 move a mean that rounding to nearest leaves where it is. Seeds change the bytes. */
TEST_TIMES(every_rule_rounds_at_random, KINDS) {
    static const double rates[] = { [AMP_OPTIM_SGD] = 0x1p-6, [AMP_OPTIM_LARC] = 0x1p-6,
                                    [AMP_OPTIM_NOVOGRAD] = 0x1p-6 };
    const double rate = rates[every_kind[_i]] > 0.0 ? rates[every_kind[_i]] : 0x1p-13;
    const amp_optim rule = optim_of(every_kind[_i], rate);
    AT(x, rule, 0, 7);
    AT(seeded, rule, 0, 8);
    __attribute__((cleanup(large_end))) struct large nearest;
    large_rule(&nearest, rule, CONFIG(AMP_O5, LARGE_SCALE, .master_weights = AMP_OFF), 0, 7);
    ck_dtype(x.wide, AMP_BFLOAT16);
    int moved = 0;
    train(&x, 0, 3, true), train(&seeded, 0, 3, true), train(&nearest, 0, 3, true);
    for (int64_t i = 0; i < LARGE; i++) {
        ck_assert_double_eq(fake_get(nearest.wide, i), 1.0);
        moved += fake_get(x.wide, i) != 1.0;
    }
    ck_assert_msg(moved > 0 && moved < LARGE, "%d elements of %d moved", moved, (int)LARGE);
    ck_assert(!same(&x, &seeded));
}

/* The bytes of amp_optim_list with the name's key. */
TEST(a_context_writes_the_bytes_of_a_plain_call) {
    enum { STEPS = 4 };
    const amp_optim rule = optim_of(AMP_OPTIM_ADAM, 0x1p-7);
    static uint16_t param[LARGE], grad[LARGE];
    float *m = floats(LARGE), *v = floats(LARGE);
    const uint64_t key = amp_optim_key(7, "large");
    const amp_span g = { grad, LARGE, AMP_BFLOAT16, 0 }, p = { param, LARGE, AMP_BFLOAT16, 0 };
    const amp_span moments[2] = { { m, LARGE, AMP_FLOAT32, 0 }, { v, LARGE, AMP_FLOAT32, 0 } };
    amp_optim_tensors t = AMP_OPTIM_TENSORS_INIT;
    AT(x, rule, 0, 7);
    train(&x, 0, STEPS, false);
    t.n = 1, t.grad = &g, t.param = &p, t.moments[0] = &moments[0], t.moments[1] = &moments[1], t.keys = &key;
    t.flags = AMP_TENSORS_STOCHASTIC;
    for (int64_t i = 0; i < LARGE; i++) param[i] = 0x3f80;
    for (int s = 0; s < STEPS; s++) {
        if (s % 5 == 3) continue;
        for (int64_t i = 0; i < LARGE; i++) {
            const float value = 0x1p-10f * (float)((i * 7 + s * 13) % 31 - 15);
            const amp_span from = { (void *)(uintptr_t)&value, 1, AMP_FLOAT32, 0 };
            const amp_span to = { &grad[i], 1, AMP_BFLOAT16, 0 };
            ck_ok(amp_cast_list(&to, &from, 1));
        }
        t.step++;
        ck_ok(amp_optim_list(&rule, &t));
    }
    ck_assert(!memcmp(param, x.wide->storage.data, sizeof param));
    free(m), free(v);
}

TEST_TIMES(a_skip_uses_no_random_number, 2) {
    const amp_optim rule = optim_of(AMP_OPTIM_ADAMW, 0x1p-10);
    const uint32_t flags = _i ? AMP_FUSED_STATE_8BIT : 0;
    AT(skips, rule, flags, 7);
    AT(never, rule, flags, 7);
    train(&skips, 0, 10, true), train(&never, 0, 10, false);
    ck_assert(same(&skips, &never));
}

TEST_TIMES(resume_is_exact_to_the_bit, 2 * KINDS) {
    static char state[STATE_BYTES], first[STATE_BYTES], second[STATE_BYTES];
    const amp_optim rule = optim_of(every_kind[_i / 2], 0x1p-10);
    const bool adam = rule.kind == AMP_OPTIM_ADAM || rule.kind == AMP_OPTIM_ADAMW;
    const uint32_t flags = _i % 2 && adam ? AMP_FUSED_STATE_8BIT : 0;
    AT(straight, rule, flags, 7);
    AT(resumed, rule, flags, 7);
    train(&straight, 0, 6, true);
    const size_t size = save(&straight, state);
    train(&straight, 6, 5, true);
    train(&resumed, 0, 2, true);
    ck_ok(amp_state_load_memory(resumed.rig.context, state, size));
    train(&resumed, 6, 5, true);
    ck_assert(same(&straight, &resumed));
    ck_assert_uint_eq(save(&straight, first), save(&resumed, second));
    ck_assert(!memcmp(first, second, size));
}

/* Weights that are rounded to nearest train otherwise: a load of the one's state into the other is told. */
TEST(a_load_under_the_other_rounding_is_told) {
    static char state[STATE_BYTES];
    const amp_optim rule = optim_of(AMP_OPTIM_ADAM, 0x1p-10);
    __attribute__((cleanup(large_end))) struct large nearest;
    AT(x, rule, 0, 7);
    large_rule(&nearest, rule, CONFIG(AMP_O5, LARGE_SCALE, .master_weights = AMP_OFF), 0, 7);
    ck_ok(amp_state_load_memory(nearest.rig.context, state, save(&x, state)));
    ck_warned(&nearest.rig, "master_weights.stochastic true -> false");
}

/* 2 + 2 + 2 1/32 bytes an element of the large parameter, which has no master. */
TEST(memory_has_no_masters) {
    amp_memory now = AMP_MEMORY_INIT, predicted = AMP_MEMORY_INIT;
    AT(x, optim_of(AMP_OPTIM_ADAM, 0x1p-10), AMP_FUSED_STATE_8BIT, 7);
    train(&x, 0, 2, false);
    ck_ok(amp_get_memory(x.rig.context, &now));
    ck_ok(amp_predict_memory(x.rig.context, AMP_O5, &predicted));
    ck_assert_uint_eq(now.masters, 0);
    ck_assert_uint_eq(now.master_gradients, 0);
    ck_assert_uint_eq(now.weights, predicted.weights);
    ck_assert_uint_eq(now.gradients, predicted.gradients);
    ck_assert_uint_eq(now.moments, now.moments_8bit);
    ck_assert_uint_gt(predicted.masters, 4 * LARGE);
}

TEST_TIMES(the_survey_says_what_it_costs, 2) {
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    amp_survey_result result = AMP_SURVEY_RESULT_INIT;
    __attribute__((cleanup(large_end))) struct large x;
    large_rule(&x, optim_of(AMP_OPTIM_ADAM, 0x1p-10), CONFIG(AMP_O5, .master_weights = _i ? AMP_STOCHASTIC : AMP_ON),
               _i ? AMP_FUSED_STATE_8BIT : 0, 7);
    options.every = 1;
    ck_ok(amp_observe(x.rig.context, &options));
    train(&x, 0, 1, false);
    ck_ok(amp_survey(x.rig.context, &result));
    const bool masters = strstr(result.text, "weights rounded at random (master_weights = AMP_STOCHASTIC");
    const bool moments = strstr(result.text, "memory: moments in 8 bits (AMP_FUSED_STATE_8BIT) take");
    ck_assert_msg(masters == !_i && moments == !_i, "%s", result.text);
}

/* The bytes of a host's optimizer, as it reports them. */
TEST(moments_can_be_reported) {
    amp_memory now = AMP_MEMORY_INIT;
    RIG_START(rig, AMP_O2, 0);
    ck_ok(amp_observe_moments(rig.context, 800, 203));
    ck_ok(amp_get_memory(rig.context, &now));
    ck_assert(now.moments == 800 && now.moments_8bit == 203);
    ck_ok(amp_predict_memory(rig.context, AMP_O5, &now));
    ck_assert(now.moments == 800 && now.moments_8bit == 203);
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "there is no such context", amp_observe_moments(NULL, 1, 1));
}

/* ---- refusals ---- */

#define STOCHASTIC(...) CONFIG(__VA_ARGS__, .master_weights = AMP_STOCHASTIC)

TEST(others_are_refused) {
    RIG_INIT(rig, 0);
    ck_refused(AMP_ERR_CONFLICT, "only libamp's own optimizers", rig_try(&rig, STOCHASTIC(AMP_O5)));
    ck_refused(AMP_ERR_CONFLICT, "rounds bfloat16 parameters", rig_try(&rig, STOCHASTIC(AMP_O2)));
    ck_refused(AMP_ERR_CONFLICT, "rounds bfloat16 parameters", rig_try(&rig, STOCHASTIC(AMP_O0)));
    ck_refused(AMP_ERR_CONFLICT, "master_weights cannot be set", rig_try(&rig, STOCHASTIC(AMP_O4)));
    RIG_INIT(fixed, FAKE_NO_SWAP);
    ck_refused(AMP_ERR_CONFLICT, "leave it at its default", rig_try(&fixed, STOCHASTIC(AMP_O5)));
    ck_refused(AMP_ERR_CONFLICT, "emulate is ON", rig_try(&rig, STOCHASTIC(AMP_O5, .emulate = AMP_ON)));
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "master_weights is 5", rig_try(&rig, CONFIG(AMP_O5, .master_weights = 5)));
}
