/* SPDX-License-Identifier: Apache-2.0 */
/* amp_observe over a device's memory: what is seen there is what the CPU sees of the same training, and observed
 * trainings have the same bits. */
#include "host_run.h"

#include <stdio.h>

enum { ITERATIONS = 6, SEEN = 64 };

static const struct kind kinds[] = {
    KIND(O0, STEP_FUSED), KIND(O1, STEP_FUSED), KIND(O2, STEP_FUSED), KIND(O2, STEP_KNOWS, .more_brackets = 1),
    KIND(O5, STEP_THERE), KIND(O1, STEP_FUSED, .fixed = true), KIND(O2, STEP_FUSED, .mixed = true),
};

struct seen {
    size_t n;
    uint32_t what[SEEN];
    char names[SEEN][16];
    amp_dtype types[SEEN];
    amp_statistics total[SEEN];
};

static void keep_seen(amp_context *context, struct seen *seen) {
    static amp_observation found[SEEN];
    found[0] = (amp_observation)AMP_OBSERVATION_INIT;
    ck_ok(amp_get_observations(context, found, SEEN, &seen->n));
    ck_assert_uint_le(seen->n, SEEN);
    for (size_t i = 0; i < seen->n; i++) {
        seen->what[i] = found[i].what;
        seen->types[i] = found[i].dtype;
        seen->total[i] = *found[i].total;
        snprintf(seen->names[i], sizeof seen->names[i], "%s", found[i].name);
    }
}

/* seen NULL: it is not observed. */
static void train(const struct kind *kind, bool on_cpu, bool overflows, struct seen *seen, float *weights) {
    const amp_observe_options options = SIZED(amp_observe_options, .every = 1);
    struct run run = run_with(host_of(kind, on_cpu), CONFIG(kind->level, .init_scale = 256.0f)); /* does not overflow */
    if (seen) ck_ok(amp_observe(run.context, &options));
    for (int i = 0; i < ITERATIONS; i++) run_iterate(run.host, kind, overflows && i == 2 ? INFINITY : 0.25f);
    if (seen) keep_seen(run.context, seen);
    host_clear(run.host);
    host_read(run.host, weights, ELEMENTS);
    run_end(&run);
}

/* A device adds in another order, and all in double (docs/reference/numerics.md). `there` gets the CPU's sums. */
static void near_sums(amp_statistics *there, const amp_statistics *here) {
    const double n = (double)here->elements, each = n * 0x1p-52 + 5 * 0x1p-24;
    const double bound = each * sqrt(n * here->sum_squares);
    const bool finite = !(here->nans + here->plus_infinities + here->minus_infinities);
    ck_assert(isfinite(there->sum) == finite && isfinite(there->sum_squares) == finite);
    ck_assert(!finite || fabs(there->sum - here->sum) <= bound);
    ck_assert(!finite || fabs(there->sum_squares - here->sum_squares) <= each * here->sum_squares);
    there->sum = here->sum, there->sum_squares = here->sum_squares;
}

TEST_TIMES(test_the_device_shows_what_the_cpu_does, sizeof kinds / sizeof *kinds) {
    const struct kind *kind = &kinds[_i];
    static float weights[ELEMENTS];
    static struct seen here, there;
    unsigned kinds_seen = 0;
    train(kind, true, true, &here, weights);
    train(kind, false, true, &there, weights);
    for (size_t i = 0, j = 0; i < here.n; i++, j = 0) {
        kinds_seen |= here.what[i];
        while (j < there.n && (there.what[j] != here.what[i] || strcmp(there.names[j], here.names[i]) != 0)) j++;
        ck_assert_msg(j < there.n, "%s: %s (%u) is missing", kind->name, here.names[i], (unsigned)here.what[i]);
        ck_assert_int_eq(there.types[j], here.types[i]);
        near_sums(&there.total[j], &here.total[i]);
        ck_assert_msg(!memcmp(&there.total[j], &here.total[i], sizeof here.total[i]), "%s: %s (%u): %llu elements up "
                      "to %a which are %a together, not %llu up to %a, %a", kind->name, here.names[i],
                      (unsigned)here.what[i], (unsigned long long)there.total[j].elements, there.total[j].largest,
                      there.total[j].sum, (unsigned long long)here.total[i].elements, here.total[i].largest,
                      here.total[i].sum);
    }
    ck_assert_uint_eq(there.n, here.n);
    const unsigned all = AMP_SEE_WEIGHTS | AMP_SEE_SCALED | AMP_SEE_GRADIENTS | AMP_SEE_UPDATES;
    ck_assert_uint_eq(kinds_seen & all, all);
}

TEST_TIMES(test_observed_trainings_have_the_same_bits, sizeof kinds / sizeof *kinds) {
    static float plain[ELEMENTS], observed[ELEMENTS];
    static struct seen seen;
    train(&kinds[_i], false, true, NULL, plain);
    train(&kinds[_i], false, true, &seen, observed);
    for (size_t i = 0; i < host_elements(); i++)
        ck_assert_msg(!memcmp(&plain[i], &observed[i], sizeof plain[i]), "%s: element %zu", kinds[_i].name, i);
}

/* ---- ops ---- */

enum { NUMBERS = 4096 };
static amp_device_list *op_list;
static void (*grow_slot)(void *x, float by, void *y);

/* y = x * by, where they are; as an op of the host's. */
static void grow(void *x, float by, void *y) {
    const struct tensor *from = x, *to = y;
    const amp_span src = { from->data, (uint64_t)from->size, from->dtype, 0 };
    const amp_span dst = { to->data, (uint64_t)to->size, to->dtype, 0 };
    const amp_factor factor = { NULL, by, AMP_FACTOR_AS_IT_IS };
    ck_ok(amp_device_scale(op_list, device.stream, &dst, &src, 1, &factor, NULL));
}

static amp_status cast(void *self, void *handle, amp_dtype to, void **out) {
    struct host *host = self;
    const struct tensor *from = handle;
    struct tensor *made = calloc(1, sizeof *made);
    ck_assert_ptr_nonnull(made);
    *made = (struct tensor){ from->kind, from->device, to, memory_alloc(false, (size_t)from->size * 4), from->size,
                             NULL, 1 };
    const amp_span src = { from->data, (uint64_t)from->size, from->dtype, 0 };
    const amp_span dst = { made->data, (uint64_t)made->size, made->dtype, 0 };
    ck_ok(amp_device_cast(op_list, device.stream, &dst, &src, 1));
    host->tensors++;
    *out = made;
    return AMP_OK;
}

/* A host whose optimizer is kind's, and which calls two ops on tensors of its device. */
struct ops_host {
    struct host *host;
    amp_context *context;
    struct tensor x, y, z; /* on the device, NUMBERS each */
};

static struct ops_host ops_host_new(const struct kind *kind, amp_class grow_class, const amp_observe_options *options) {
    static amp_op op;
    struct host *host = host_of(kind, false);
    struct ops_host ops = { .host = host };
    grow_slot = grow;
    op = OP("grow", "grow(Tensor x, float by, Tensor(out a!) y) -> void", &grow_slot, .op_class = grow_class);
    host->model.ops = &op, host->model.n_ops = 1;
    host->hooks.cast = cast;
    host->hooks.flags |= AMP_HOST_TAPE_RETAINS_INPUTS;
    ck_ok(amp_device_list_open((amp_device){ 2, 0 }, &op_list));
    ops.context = run_with(host, CONFIG(kind->level, .observe = AMP_ON, .init_scale = 256.0f)).context;
    ck_ok(amp_observe(ops.context, options));
    ops.x = (struct tensor){ host->params[0].kind, { 2, 0 }, AMP_FLOAT32, NULL, NUMBERS, NULL, 1 };
    ops.y = ops.z = ops.x;
    ops.x.data = memory_alloc(false, NUMBERS * sizeof(float));
    ops.y.data = memory_alloc(false, NUMBERS * sizeof(float));
    ops.z.data = memory_alloc(false, NUMBERS * sizeof(float));
    return ops;
}

static void ops_host_end(struct ops_host *ops) {
    host_clear(ops->host);
    ck_ok(amp_shutdown(ops->context));
    amp_device_list_close(op_list);
    memory_free(false, ops->x.data);
    memory_free(false, ops->y.data);
    memory_free(false, ops->z.data);
    host_free(ops->host);
}

/* x is this value, but for one that is twice as large. */
static void ops_set(struct ops_host *ops, float value) {
    static float numbers[NUMBERS];
    for (int i = 0; i < NUMBERS; i++) numbers[i] = i == 77 ? 2 * value : value;
    memory_in(false, ops->x.data, numbers, sizeof numbers);
}

static void ops_run(struct ops_host *ops, const struct kind *kind, float by) {
    grow_slot(&ops->x, 2.0f, &ops->y);
    grow_slot(&ops->y, by, &ops->z);
    run_again(ops->host, kind);
}

/* y = x * 2, z = y * by; then a bracket and a step. */
static void ops_iterate(struct ops_host *ops, const struct kind *kind, float by, bool overflows) {
    host_clear(ops->host);
    host_set_targets(ops->host, overflows ? INFINITY : 0.25f);
    ops_run(ops, kind, by);
}

static const struct kind op_kinds[] = {
    KIND(O1, STEP_FUSED), /* the device decides alone */
    KIND(O2, STEP_KNOWS), /* the host waits at the step */
    KIND(O2, STEP_THERE),
};
static const amp_observe_options always = { .struct_size = sizeof(amp_observe_options), .every = 1 };

/* The third call makes what is not finite. */
TEST_TIMES(test_culprit, sizeof op_kinds / sizeof *op_kinds) {
    const struct kind *kind = &op_kinds[_i];
    amp_culprit culprit = AMP_CULPRIT_INIT;
    struct ops_host ops = ops_host_new(kind, AMP_FP32, &always);
    ops_set(&ops, 3.0f);
    ops_iterate(&ops, kind, 2.0f, false);
    ck_ok(amp_get_culprit(ops.context, &culprit));
    ck_assert_uint_eq(culprit.bracket, 0);
    ops_set(&ops, 0x1p100f);
    grow_slot(&ops.x, 1.0f, &ops.y);
    ops_iterate(&ops, kind, 0x1p26f, true);
    ck_ok(amp_get_culprit(ops.context, &culprit));
    ck_assert_uint_eq(culprit.bracket, 2);
    ck_assert_str_eq(culprit.op, "grow");
    ck_assert_uint_eq(culprit.call, 3);
    ck_assert_int_eq(culprit.was_cast, 0);
    ck_assert_uint_eq(culprit.n_arguments, 2);
    const amp_seen_argument *x = &culprit.arguments[0], *y = &culprit.arguments[1];
    ck_assert_str_eq(x->name, "x");
    ck_assert(!x->is_output && x->elements == NUMBERS && x->nonfinite == 0 && x->largest == 0x1p102);
    ck_assert_str_eq(y->name, "y");
    ck_assert(y->is_output && y->nonfinite == 1 && y->largest == 0x1p127);
    ck_assert_ptr_nonnull(culprit.parameter);
    ops_host_end(&ops);
}

/* What was finite before libamp cast it. */
TEST(test_culprit_is_a_cast) {
    const struct kind *kind = &kinds[1];
    amp_culprit culprit = AMP_CULPRIT_INIT;
    struct ops_host ops = ops_host_new(kind, AMP_LOWER, &always);
    ops_set(&ops, 40000.0f); /* 80000 is no number of fp16 */
    ops_iterate(&ops, kind, 0.5f, true);
    ck_ok(amp_get_culprit(ops.context, &culprit));
    ck_assert_str_eq(culprit.op, "grow");
    ck_assert_uint_eq(culprit.call, 1);
    ck_assert_int_eq(culprit.was_cast, 1);
    ck_assert_int_eq(culprit.arguments[0].dtype, AMP_FLOAT16);
    ck_assert_uint_eq(culprit.arguments[0].nonfinite, 1);
    ops_host_end(&ops);
}

/* Work of the stream's that runs when somebody waits for it. */
static void reach(const void *given) {
    int *reached;
    memcpy(&reached, given, sizeof reached);
    *reached = 1;
}

/* A device that decides alone is heard an iteration later, without a wait; and the iteration that is observed for it
 * waits for nothing either: what it counted is looked at when it is asked for. */
TEST(test_skips_of_a_device_are_heard) {
    static const bool observed[] = { true, false, false, false, true, false, true };
    const struct kind *kind = &kinds[1];
    const amp_observe_options options = SIZED(amp_observe_options, .every = 1000,
                                              .what = AMP_SEE_INPUTS | AMP_SEE_OUTPUTS);
    amp_culprit culprit = AMP_CULPRIT_INIT;
    struct ops_host ops = ops_host_new(kind, AMP_FP32, &options);
    ops_set(&ops, 3.0f);
    for (size_t i = 0; i < sizeof observed / sizeof *observed; i++) {
        const bool overflows = i == 2 || i == 4;
        static int reached;
        static int *const there = &reached;
        host_clear(ops.host);
        host_set_targets(ops.host, overflows ? INFINITY : 0.25f);
        if (device.fake) device.tools->flush(); /* the device has come this far */
        ck_assert_msg(amp_is_observing(ops.context) == observed[i], "iteration %zu", i);
        reached = 0;
        if (device.fake) device.tools->work(reach, &there, sizeof there);
        ops_run(&ops, kind, overflows ? 0x1p127f : 2.0f);
        ck_assert_msg(!reached || i == 0, "iteration %zu waits", i);
    }
    ck_ok(amp_get_culprit(ops.context, &culprit));
    ck_assert_uint_eq(culprit.bracket, 5);
    ck_assert_uint_eq(culprit.call, 2);
    ops_host_end(&ops);
}

TEST_FIXTURE(device_lazily, device_at_once)
