/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a bracket asks of its host, counted, not timed: so many calls of each hook for each parameter, whatever their
 * number, and not one allocation after the first bracket. Linked with --wrap for
 * the allocations; the fake host makes its own with memalign.
 */
#include "checks.h"

enum { MOST = 1500, ELEMENTS = 3 };
enum { LOOKS = 5 }; /* brackets, or steps, that look at gradients for what is wired wrongly */

static uint64_t allocations;
WRAP(void *, calloc, size_t count, size_t size) { return allocations++, __real_calloc(count, size); }
WRAP(void *, realloc, void *block, size_t bytes) { return allocations++, __real_realloc(block, bytes); }
WRAP(void *, aligned_alloc, size_t alignment, size_t bytes) {
    return allocations++, __real_aligned_alloc(alignment, bytes);
}

/* ---- a host of many parameters ---- */

struct crowd {
    struct fake host;
    struct fake_tensor *tensors[MOST];
    amp_param params[MOST];
    size_t n;
    amp_model model;
    amp_optimizer optimizers[2];
};

/* The optimizers list the same parameters. */
static void crowd_start(struct crowd *crowd, size_t n, amp_level level, unsigned options, size_t n_optimizers) {
    const amp_config config = config_of(level);
    amp_model *model = &crowd->model;
    amp_optimizer *optimizers[] = { &crowd->optimizers[0], &crowd->optimizers[1] };
    fake_init(&crowd->host, options);
    crowd->n = n;
    crowd->model = SIZED(amp_model, .host = &crowd->host.hooks, .params = crowd->params, .n_params = n);
    for (size_t i = 0; i < n; i++) {
        crowd->tensors[i] = fake_new(&crowd->host, AMP_FLOAT32, ELEMENTS, 1.0);
        crowd->params[i] = SIZED(amp_param, .tensor = crowd->tensors[i]);
    }
    for (size_t i = 0; i < 2; i++)
        crowd->optimizers[i] = SIZED(amp_optimizer, .host = &crowd->host.hooks,
                                     .params = (void *const *)crowd->tensors, .n_params = n);
    ck_ok(amp_initialize_many(&model, 1, optimizers, n_optimizers, &config, NULL));
}

static void crowd_end(struct crowd *crowd) {
    ck_ok(amp_shutdown(crowd->model.amp));
    for (size_t i = 0; i < crowd->n; i++) fake_release(crowd->tensors[i]);
    ck_assert_int_eq(crowd->host.live_tensors, 0);
    ck_assert_int_eq(crowd->host.live_blocks, 0);
    fake_destroy(&crowd->host);
}

static bool is_fixed(const struct crowd *crowd) { return !crowd->host.hooks.set_grad; }

/* Backward: new gradients, or the fixed buffers filled. */
static void backward(struct crowd *crowd) {
    for (size_t i = 0; i < crowd->n; i++) {
        struct fake_tensor *tensor = crowd->tensors[i];
        if (!tensor->grad) tensor->grad = fake_new(&crowd->host, fake_dtype(tensor), ELEMENTS, 0.0);
        fake_fill(tensor->grad, 2.0);
    }
}

static void zero_grad(struct crowd *crowd) {
    for (size_t i = 0; i < crowd->n; i++) {
        if (is_fixed(crowd)) fake_fill(crowd->tensors[i]->grad, 0.0);
        else fake_put_grad(crowd->tensors[i], NULL);
    }
}

/* ---- counting ---- */

enum part { BEGIN, END, STEP, N_PARTS };
typedef uint64_t counts[N_PARTS][FAKE_N_HOOKS];

static void count(const struct crowd *crowd, uint64_t (*before)[FAKE_N_HOOKS], uint64_t *part) {
    for (int h = 0; h < FAKE_N_HOOKS; h++) {
        if (part) part[h] = crowd->host.calls[h] - (*before)[h];
        (*before)[h] = crowd->host.calls[h];
    }
}

static void iterate(struct crowd *crowd, size_t n_optimizers, counts made, uint64_t *allocated) {
    amp_optimizer *optimizers[] = { &crowd->optimizers[0], &crowd->optimizers[1] };
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    uint64_t before[FAKE_N_HOOKS];
    count(crowd, &before, NULL);
    const uint64_t first = allocations;
    ck_ok(fake_begin_many(NULL, optimizers, n_optimizers, 0, 0, NULL, &scaled));
    count(crowd, &before, made[BEGIN]);
    const uint64_t second = allocations;
    backward(crowd);
    count(crowd, &before, NULL);
    const uint64_t third = allocations;
    ck_ok(amp_scale_loss_end(&scaled));
    count(crowd, &before, made[END]);
    ck_ok(amp_step_begin(optimizers[0], &info));
    ck_assert_int_eq(info.action, AMP_STEP);
    ck_ok(amp_step_end(optimizers[0]));
    count(crowd, &before, made[STEP]);
    *allocated = second - first + allocations - third;
    if (n_optimizers > 1) {
        ck_ok(amp_step_begin(optimizers[1], &info));
        ck_ok(amp_step_end(optimizers[1]));
    }
    zero_grad(crowd);
}

/* For each parameter: view, version, grad, set_grad, swap. */
struct promise {
    const char *name;
    amp_level level;
    unsigned options;
    int calls[N_PARTS][5];
};
static const enum fake_hook counted[] = { FAKE_VIEW, FAKE_VERSION, FAKE_GRAD, FAKE_SET_GRAD, FAKE_SWAP };

static const struct promise promises[] = {
    { "O1", AMP_O1, 0, { { 0, 0, 1, 0, 0 }, { 1, 0, 1, 0, 0 }, { 0, 0, 0, 0, 0 } } },
    { "O1, fixed", AMP_O1, FAKE_NO_SET_GRAD, { { 1, 0, 1, 0, 0 }, { 1, 0, 1, 0, 0 }, { 0, 0, 0, 0, 0 } } },
    { "O2", AMP_O2, 0, { { 0, 0, 1, 0, 0 }, { 1, 1, 1, 0, 0 }, { 4, 4, 2, 0, 4 } } },
    { "O2, fixed", AMP_O2, FAKE_NO_SET_GRAD, { { 1, 1, 1, 0, 0 }, { 1, 1, 1, 0, 0 }, { 4, 4, 2, 0, 4 } } },
    { "O2, fixed, no versions", AMP_O2, FAKE_NO_SET_GRAD | FAKE_NO_VERSION,
      { { 1, 0, 1, 0, 0 }, { 1, 0, 1, 0, 0 }, { 4, 0, 2, 0, 4 } } },
};
enum { N_PROMISES = sizeof promises / sizeof *promises };

static void check_calls(const struct promise *promise, size_t n, counts made) {
    for (int part = 0; part < N_PARTS; part++) {
        uint64_t others = 0;
        for (int h = 0; h < FAKE_N_HOOKS; h++) others += made[part][h];
        for (size_t k = 0; k < sizeof counted / sizeof *counted; k++) {
            ck_assert_msg(made[part][counted[k]] == n * (uint64_t)promise->calls[part][k],
                          "%s, %zu parameters, part %d: hook %zu was called %llu times", promise->name, n, part, k,
                          (unsigned long long)made[part][counted[k]]);
            others -= made[part][counted[k]];
        }
        ck_assert_uint_le(others, 2); /* events, for all parameters together */
    }
}

TEST_TIMES(hooks_are_called_as_often_as_promised, N_PROMISES) {
    static struct crowd crowd;
    const struct promise *promise = &promises[_i];
    static const size_t sizes[] = { 1, 10, MOST };
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        counts made;
        uint64_t allocated;
        crowd_start(&crowd, sizes[k], promise->level, promise->options, 1);
        for (int i = 0; i <= LOOKS; i++) iterate(&crowd, 1, made, &allocated);
        check_calls(promise, sizes[k], made);
        crowd_end(&crowd);
    }
}

/* The first bracket makes what the others use. Two optimizers that share all their parameters: each is still unscaled
 * once. */
TEST_TIMES(a_bracket_after_the_first_allocates_nothing, N_PROMISES) {
    static struct crowd crowd;
    const struct promise *promise = &promises[_i];
    for (size_t n_optimizers = 1; n_optimizers <= 2; n_optimizers++) {
        counts made;
        uint64_t allocated = 0;
        crowd_start(&crowd, 100, promise->level, promise->options, n_optimizers);
        const uint64_t before = allocations;
        iterate(&crowd, n_optimizers, made, &allocated);
        ck_assert_uint_gt(allocations, before); /* and the counter counts */
        for (int i = 1; i < LOOKS; i++) iterate(&crowd, n_optimizers, made, &allocated);
        for (int i = 0; i < 5; i++) {
            iterate(&crowd, n_optimizers, made, &allocated);
            ck_assert_uint_eq(allocated, 0);
            ck_assert_uint_eq(made[BEGIN][FAKE_GRAD], 100);
            ck_assert_uint_eq(made[END][FAKE_VIEW], 100);
        }
        crowd_end(&crowd);
    }
}

TEST(a_cast_to_a_type_asks_for_each_type_once) {
    static struct crowd crowd;
    crowd_start(&crowd, 3, AMP_O1, 0, 1);
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    void *tensors[] = { crowd.tensors[0], crowd.tensors[1], crowd.tensors[2] };
    const uint64_t before = crowd.host.calls[FAKE_DTYPE];
    ck_ok(amp_cast_to(crowd.model.amp, AMP_FLOAT16, tensors, 3, &frame));
    ck_assert_uint_eq(crowd.host.calls[FAKE_DTYPE] - before, 3);
    ck_ok(amp_cast_done(&frame));
    ck_ok(amp_tape_done(crowd.model.amp));
    ck_ok(amp_cache_clear(crowd.model.amp));
    crowd_end(&crowd);
}

/* A tensor whose cast the cache has: no cast, no allocation. And a call that made it holds nothing back: without one
 * under way, what is dropped from the cache is released. */
TEST(a_cast_from_the_cache_allocates_nothing) {
    static struct crowd crowd;
    crowd_start(&crowd, 1, AMP_O1, 0, 1);
    amp_context *context = crowd.model.amp;
    void *casts[3];
    const int64_t live = crowd.host.live_tensors;
    for (int i = 0; i < 3; i++) {
        amp_cast_frame frame = AMP_CAST_FRAME_INIT;
        void *tensor = crowd.tensors[0];
        const uint64_t before = allocations;
        ck_ok(amp_cast_to(context, AMP_FLOAT16, &tensor, 1, &frame));
        casts[i] = tensor;
        ck_ok(amp_cast_done(&frame));
        ck_assert_ptr_eq(tensor, crowd.tensors[0]);
        if (i) ck_assert_uint_eq(allocations, before);
    }
    ck_assert(casts[0] != (void *)crowd.tensors[0] && casts[1] == casts[0] && casts[2] == casts[0]);
    ck_assert_int_eq(crowd.host.live_tensors, live + 1);
    ck_ok(amp_tape_done(context));
    ck_ok(amp_cache_clear(context));
    ck_assert_int_eq(crowd.host.live_tensors, live);
    crowd_end(&crowd);
}
