/* SPDX-License-Identifier: Apache-2.0 */
/* The scaler on the device against the one on the host, tick by tick; and the memory that it lies in. */
#include "device.h"

#include "kernels/backend.h"
#include "scaler/scaler.h"

#include <math.h>

enum { TICKS = 3000, SKIPS = 40 };

static const struct amp__backend *backend;
static void *memory;

static void open_memory(void) {
    amp_status status = AMP_OK;
    backend = amp__backend_get(AMP__BACKEND_cuda, &status);
    ck_ok(status);
    ck_ok(backend->memory_open(0, &memory));
}

static void *allocate(size_t bytes) {
    struct amp__memory_call call = { .kind = AMP__MEMORY_ALLOC, .stream = device.stream, .bytes = bytes };
    ck_ok(backend->memory_run(memory, &call));
    return call.made;
}

static void run(int32_t kind, void *dst, const void *src, size_t bytes) {
    struct amp__memory_call call = { .kind = kind, .stream = device.stream, .dst = dst, .src = src, .bytes = bytes };
    ck_ok(backend->memory_run(memory, &call));
}

static const struct amp__scaler_settings modes[] = {
    { AMP_SCALER_APEX, true, 65536.0f, 0x1p-126f, 0x1p24f, 2.0, 0.5, 7, 1, true, false },
    { AMP_SCALER_TORCH, true, 0x1p100f, 0x1p-126f, 3.402823466e38f, 1.0001, 0.9, 3, 1, true, false },
    { AMP_SCALER_MEGATRON, true, 0x1p32f, 1.0f, 0x1p127f, 2.0, 0.5, 5, 2, false, false },
    { AMP_SCALER_DEEPSPEED, true, 65536.0f, 1.0f, 0x1p127f, 3.0, 0.0, 4, 3, false, false },
    { AMP_SCALER_DEEPSPEED, true, 65536.0f, 1.0f, 0x1p127f, 2.0, 0.0, 4, 3, true, false },
    { AMP_SCALER_JMP, true, 32768.0f, 1.0f, 3.402823466e38f, 3.0, 0.0, 6, 1, true, false },
    { AMP_SCALER_MXNET, true, 65536.0f, 0x1p-126f, 0x1p24f, 2.0, 0.0, 5, 1, true, false },
    { AMP_SCALER_APEX, false, 128.0f, 128.0f, 128.0f, 2.0, 0.5, 7, 1, true, false },
    { AMP_SCALER_APEX, false, 1.0f, 1.0f, 1.0f, 2.0, 0.5, 7, 1, true, false },
    { AMP_SCALER_APEX, false, 1.0f, 1.0f, 1.0f, 2.0, 0.5, 7, 1, true, true },
/* every mode as it is where nothing is set, but for the window */
#define MODE(constant, value, text, name, rule, init, min, max, growth, backoff, window, hysteresis, consecutive, \
             fp32) \
    { constant, true, init, min, max, growth, backoff, 5, hysteresis, consecutive, false },
    AMP_SCALER_MAP(MODE)
#undef MODE
};

struct rig {
    struct amp__device_scaler *scaler;
    float *skips;
    struct amp__scaler host;
    uint64_t brackets, skipped;
    bool unchecked;
};

static void compare(const struct rig *rig, const struct amp__device_scaler *now, float scale_before, int tick) {
    ck_assert_msg(now->state.scale == rig->host.scale && now->state.next_scale == rig->host.next_scale,
                  "tick %d: %a is not %a", tick, (double)now->state.scale, (double)rig->host.scale);
    ck_assert_uint_eq(now->state.unskipped, rig->host.unskipped);
    ck_assert_uint_eq(now->state.hysteresis_left, rig->host.hysteresis_left);
    ck_assert_uint_eq(now->state.skips_in_row, rig->host.skips_in_row);
    ck_assert(now->state.clean_run == rig->host.clean_run);
    ck_assert(now->brackets == rig->brackets && now->skipped == rig->skipped);
    ck_assert(now->scale_before == scale_before);
    ck_assert(now->inverse == (float)(1.0 / (double)rig->host.scale));
    ck_assert(now->left == (float)(1.0 / (double)scale_before));
    ck_assert(now->found == 0.0f && now->first == AMP__NO_TENSOR);
}

static void tick(struct rig *rig, const struct amp__scaler_settings *settings, int tick) {
    static const uint32_t which[SKIPS] = { 3, 1, 39 }; /* the rest: 0 */
    struct amp__device_scaler now;
    float skips[SKIPS], expected[SKIPS] = { 0 };
    const bool found = random_bits() % 5 == 0, elsewhere = random_bits() % 11 == 0, decides = random_bits() % 7 != 0;
    const float scale_before = rig->host.scale;
    const size_t n = random_bits() % 2 ? SKIPS : 3;
    run(AMP__MEMORY_FILL, rig->skips, NULL, sizeof skips);
    if (found) {
        const struct { float found; uint32_t first; } raised = { tick % 2 ? NAN : 1.0f, (uint32_t)tick };
        run(AMP__MEMORY_IN, &rig->scaler->found, &raised, sizeof raised);
    }
    struct amp__memory_call call = { .kind = AMP__MEMORY_SCALER, .stream = device.stream, .scaler = rig->scaler,
                                     .settings = settings, .decides = decides, .found_elsewhere = elsewhere,
                                     .skips = rig->skips, .which = which, .n = n };
    ck_ok(backend->memory_run(memory, &call));
    rig->unchecked |= found || elsewhere;
    run(AMP__MEMORY_OUT, &now, rig->scaler, sizeof now);
    run(AMP__MEMORY_OUT, skips, rig->skips, sizeof skips);
    ck_assert(now.found_inf == (rig->unchecked ? 1.0f : 0.0f));
    if (decides) {
        const amp_action action = amp__scaler_update(&rig->host, settings, rig->unchecked);
        rig->brackets++;
        rig->skipped += action == AMP_SKIP;
        ck_assert_int_eq(now.action, action);
        compare(rig, &now, scale_before, tick);
        if (found) ck_assert_uint_le(now.first_nonfinite, (uint32_t)tick);
        rig->unchecked = false;
        if (action == AMP_SKIP) {
            expected[3] = expected[1] = expected[39] = 1.0f;
            if (n == SKIPS) expected[0] = 1.0f;
        }
    }
    ck_assert_mem_eq(skips, expected, sizeof skips);
}

TEST_TIMES(test_ticks, sizeof modes / sizeof *modes) {
    const struct amp__scaler_settings *settings = &modes[_i];
    struct rig rig = { NULL, NULL, { 0 }, 0, 0, false };
    struct amp__device_scaler first;
    open_memory();
    rig.scaler = allocate(sizeof first);
    rig.skips = allocate(SKIPS * sizeof(float));
    amp__scaler_init(&rig.host, settings);
    amp__scaler_for_device(&first, &rig.host, 0, 0);
    run(AMP__MEMORY_IN, rig.scaler, &first, sizeof first);
    for (int i = 0; i < (device.fake ? TICKS : TICKS / 10); i++) tick(&rig, settings, i);
    ck_assert_uint_gt(rig.brackets, 0);
    run(AMP__MEMORY_FREE, rig.scaler, NULL, 0);
    run(AMP__MEMORY_FREE, rig.skips, NULL, 0);
    backend->memory_close(memory);
}

/* Copies of any length come back as they went, in pieces or not. */
TEST(test_copies) {
    static unsigned char given[(9 << 20) + 5], taken[sizeof given];
    const size_t lengths[] = { 1, 4096, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, sizeof given };
    open_memory();
    void *block = allocate(sizeof given);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        for (size_t k = 0; k < lengths[i]; k++) given[k] = (unsigned char)random_bits();
        run(AMP__MEMORY_IN, block, given, lengths[i]);
        const unsigned char first = given[0];
        given[0] ^= 1; /* it may change at once */
        run(AMP__MEMORY_OUT, taken, block, lengths[i]);
        given[0] = first;
        ck_assert(!memcmp(given, taken, lengths[i]));
    }
    run(AMP__MEMORY_FREE, block, NULL, 0);
    backend->memory_close(memory);
}

/* A letter says what was there when it was posted. */
TEST(test_posts) {
    struct amp__memory_call post = { .kind = AMP__MEMORY_FETCH, .stream = device.stream, .bytes = sizeof(int) };
    open_memory();
    int *word = allocate(sizeof *word), value = 1, taken = 0;
    post.src = word;
    for (value = 1; value < 20; value++) {
        const int later = -value;
        run(AMP__MEMORY_IN, word, &value, sizeof value);
        post.kind = AMP__MEMORY_FETCH;
        ck_ok(backend->memory_run(memory, &post));
        run(AMP__MEMORY_IN, word, &later, sizeof later);
        if (value % 3 == 0) continue; /* nobody asks */
        post.kind = AMP__MEMORY_FETCHED, post.dst = &taken;
        ck_ok(backend->memory_run(memory, &post));
        ck_assert_int_eq(taken, value);
    }
    post.kind = AMP__MEMORY_FETCH_FREE;
    ck_ok(backend->memory_run(memory, &post));
    run(AMP__MEMORY_FREE, word, NULL, 0);
    backend->memory_close(memory);
}

/* What would go to the host's memory or come from there is refused while the stream is captured, whatever was under
 * way, and goes on afterwards. */
TEST(test_copies_in_capture) {
    struct amp__memory_call calls[] = { { .kind = AMP__MEMORY_IN }, { .kind = AMP__MEMORY_OUT },
                                        { .kind = AMP__MEMORY_FETCH } };
    int value = 7, taken = 0;
    open_memory();
    int *word = allocate(sizeof *word);
    for (int before = 0; before < 2; before++) {
        device_capture_begin();
        for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
            calls[i].stream = device.stream, calls[i].bytes = sizeof value;
            calls[i].dst = calls[i].kind == AMP__MEMORY_IN ? word : &taken;
            calls[i].src = calls[i].kind == AMP__MEMORY_IN ? &value : word;
            ck_refused(AMP_ERR_WRONG_STATE, "being captured", backend->memory_run(memory, &calls[i]));
        }
        device_capture_end();
        run(AMP__MEMORY_IN, word, &value, sizeof value);
        run(AMP__MEMORY_OUT, &taken, word, sizeof value);
        ck_assert_int_eq(taken, value++);
    }
    if (device.fake) ck_assert_int_eq(device.fake->broke_capture, 0);
    run(AMP__MEMORY_FREE, word, NULL, 0);
    backend->memory_close(memory);
}

TEST_FIXTURE(device_lazily, device_at_once)
