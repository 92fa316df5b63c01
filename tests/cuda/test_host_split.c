/* SPDX-License-Identifier: Apache-2.0 */
/* Split masters of parameters in a device's memory against FP32 masters there, whoever steps: the same bits. */
#include "host_run.h"

enum { ITERATIONS = 12, SAVED_AT = 7 };

static const struct {
    enum stepping stepping;
    amp_optim_kind rule;
} trainings[] = {
    { STEP_FUSED, AMP_OPTIM_ADAMW }, { STEP_FUSED, AMP_OPTIM_LAMB }, { STEP_FUSED, AMP_OPTIM_LARC },
    { STEP_FUSED, AMP_OPTIM_NOVOGRAD }, { STEP_KNOWS, AMP_OPTIM_SGD }, { STEP_THERE, AMP_OPTIM_SGD },
};

/* What a training leaves at each point. */
struct left {
    float weights[ITERATIONS][ELEMENTS], end[ELEMENTS];
    char state[STATE_BYTES];
    size_t bytes;
};

static uint64_t masters_of(const struct run *run) {
    amp_memory memory = AMP_MEMORY_INIT;
    ck_ok(amp_get_memory(run->context, &memory));
    return memory.masters;
}

static uint64_t remainders(const struct host *host) {
    uint64_t bytes = 0;
    for (int i = 0; i < HOST_PARAMS; i++) bytes += amp_remainder_bytes((uint64_t)host->params[i].size);
    return bytes;
}

static void train(int which, bool on_cpu, bool split, const struct left *from, struct left *left) {
    const struct kind kind = { .level = AMP_O5, .stepping = trainings[which].stepping, .split = split,
                               .static_scale = AMP_DYNAMIC };
    struct host *host = host_of(&kind, on_cpu);
    ck_ok(amp_optim_defaults(trainings[which].rule, &host->rule));
    host->rule.lr = 0.125;
    struct run run = run_with(host, config_of(&kind, 0));
    if (from) ck_ok(amp_state_load_memory(run.context, from->state, from->bytes));
    for (int i = from ? SAVED_AT : 0; i < ITERATIONS; i++) {
        if (i == SAVED_AT && TEST_STATES && !from) left->bytes = run_save(&run, left->state);
        run_iterate(host, &kind, i == 3 ? INFINITY : 0.25f);
        if (split) ck_assert_uint_eq(masters_of(&run), remainders(host));
        host_clear(host);
        host_read(host, left->weights[i], ELEMENTS);
    }
    ck_ok(amp_shutdown(run.context));
    for (int i = 0; i < HOST_PARAMS; i++) ck_assert_int_eq(host->params[i].dtype, AMP_FLOAT32);
    host_read(host, left->end, ELEMENTS);
    host_free(host);
}

static void ck_same(const struct left *a, const struct left *b, int first) {
    for (int i = first; i < ITERATIONS; i++)
        ck_assert_msg(!memcmp(a->weights[i], b->weights[i], sizeof *a->weights), "iteration %d", i);
    ck_assert_mem_eq(a->end, b->end, sizeof a->end);
}

/* After every iteration, in the file, after a load of the other's file, and in FP32 at the end. */
TEST_TIMES(test_as_fp32_masters, sizeof trainings / sizeof *trainings) {
    static struct left whole, split, loaded;
    train(_i, false, false, NULL, &whole);
    train(_i, false, true, NULL, &split);
    ck_same(&whole, &split, 0);
    ck_assert(memcmp(split.weights[0], split.weights[ITERATIONS - 1], sizeof *split.weights));
    if (!TEST_STATES) return;
    ck_assert_uint_eq(split.bytes, whole.bytes);
    ck_assert_mem_eq(split.state, whole.state, whole.bytes);
    for (int on_cpu = 0; on_cpu < 1 + (trainings[_i].rule == AMP_OPTIM_SGD); on_cpu++) { /* others' sums differ there */
        train(_i, on_cpu, true, &whole, &loaded);
        ck_same(&whole, &loaded, SAVED_AT);
    }
}

/* ---- masters that are written between steps ---- */

/* All elements. */
static void write_masters(struct host *host, bool on_cpu, float value) {
    static float values[ELEMENTS];
    amp_master masters[HOST_PARAMS] = { AMP_MASTER_INIT };
    size_t count = 0;
    for (int i = 0; i < ELEMENTS; i++) values[i] = value;
    ck_ok(amp_master_params(&host->optimizer, masters, HOST_PARAMS, &count));
    for (size_t i = 0; i < count; i++)
        memory_in(on_cpu, masters[i].data, values, (size_t)masters[i].size * sizeof *values);
}

static void ck_all(struct host *host, float value) {
    static float weights[ELEMENTS];
    host_read(host, weights, ELEMENTS);
    for (size_t i = 0; i < host_elements(); i++)
        ck_assert_msg(weights[i] == value, "element %zu: %a, not %a", i, (double)weights[i], (double)value);
}

/* Also again after they were written back, when parameter and remainder had all of them; and what a state then has. All
 * are ties, those that are loaded rounded down. The learning rate is 0. */
TEST_TIMES(test_written_masters, 6) {
    static char state[STATE_BYTES];
    const bool on_cpu = _i % 2;
    const struct kind kind = { .level = AMP_O5, .stepping = (enum stepping)(_i / 2), .split = true };
    struct host *host = host_of(&kind, on_cpu);
    host->rule.lr = 0.0;
    struct run run = run_with(host, config_of(&kind, 0));
    write_masters(host, on_cpu, 2.0f + 0x1p-7f);
    ck_ok(amp_masters_write_back(run.context));
    ck_all(host, 2.0f);
    write_masters(host, on_cpu, 3.0f + 0x1p-7f);
    run_iterate(host, &kind, 0.25f);
    ck_all(host, 3.0f);
    host_clear(host);
    const size_t bytes = TEST_STATES ? run_save(&run, state) : 0;
    if (TEST_STATES) {
        write_masters(host, on_cpu, 3.0f + 0x3p-7f); /* rounded up */
        ck_ok(amp_masters_write_back(run.context));
        write_masters(host, on_cpu, 5.0f);
        ck_ok(amp_state_load_memory(run.context, state, bytes));
    }
    ck_all(host, 3.0f);
    ck_ok(amp_shutdown(run.context));
    ck_all(host, 3.0f + 0x1p-7f);
    host_free(host);
}

TEST_FIXTURE(device_lazily, device_at_once)
