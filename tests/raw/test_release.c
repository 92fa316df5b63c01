/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inference in 16 bits: the copies are the only ones, and the host's FP32 blocks go back to the system. Nobody who is
 * described notices; who reads there without libamp is stopped.
 */
#define _DEFAULT_SOURCE /* mincore, MAP_ANONYMOUS */
#include "raw.h"

#include <amp_diagnostics.h>
#include <amp_observe.h>
#include <amp_train.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* Two layers and a norm in one allocation, a head before them and a tail behind, none of them whole pages. */
enum { EDGE = 96, LAYER = EDGE * EDGE, HEAD = 5, NORM = 7, TAIL = 11, ALL = HEAD + 2 * LAYER + NORM + TAIL };
enum { FIRST = HEAD, SECOND = HEAD + LAYER, GAMMA = HEAD + 2 * LAYER };

static float *block, before[ALL];
static size_t block_bytes, page;
static struct raw raw;

static float through(float x) { return amp_bfloat16_to_float(amp_float_to_bfloat16(x)); }

/* ---- ops ---- */

static void linear(float *y, const float *w, int n) {
    for (int i = 0; i < n; i++) y[i] = -w[i];
}

static const uint16_t *got; /* the weights that the implementation was given */
static void linear_bf16(uint16_t *y, const uint16_t *w, int n) {
    got = w;
    for (int i = 0; i < n; i++) y[i] = w[i];
}

static float sum(const float *w, int n) {
    float total = 0.0f;
    for (int i = 0; i < n; i++) total += w[i];
    return total;
}

static void decay(float *w, int n) {
    for (int i = 0; i < n; i++) w[i] *= 0.5f;
}

static void (*linear_slot)(float *, const float *, int);
static float (*sum_slot)(const float *, int);
static void (*decay_slot)(float *, int);
static void (*decay_low_slot)(float *, int);

static void set_up(void) {
    page = (size_t)sysconf(_SC_PAGESIZE);
    block_bytes = (ALL * sizeof(float) + page - 1) / page * page;
    block = mmap(NULL, block_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(block, MAP_FAILED);
    for (int i = 0; i < ALL; i++) before[i] = block[i] = 1.0f / (float)(i + 3);
    linear_slot = linear, sum_slot = sum, decay_slot = decay_low_slot = decay;
    raw_init(&raw);
    raw_param(&raw, "first", block + FIRST, NULL, LAYER);
    raw_param(&raw, "second", block + SECOND, NULL, LAYER);
    raw_param(&raw, "gamma", block + GAMMA, NULL, NORM)->module_kind = AMP_MODULE_BATCH_NORM;
    raw_op(&raw, OP("linear", "f(float(out a!) y[n], float w[n], int n) -> void", &linear_slot,
                    .bf16 = (amp_fn)linear_bf16));
    raw_op(&raw, OP("sum", "f(float w[n], int n) -> float", &sum_slot, .op_class = AMP_LEAVE));
    raw_op(&raw, OP("decay", "f(float(a!) w[n], int n) -> void", &decay_slot));
    raw_op(&raw, OP("decay_low", "f(float(a!) w[n], int n) -> void", &decay_low_slot, .bf16 = (amp_fn)decay));
}

static void tear_down(void) {
    raw_stop(&raw);
    ck_assert(linear_slot == linear && sum_slot == sum && decay_slot == decay);
    munmap(block, block_bytes);
}

TEST_FIXTURE(set_up, tear_down)

/* ---- what is there ---- */

static bool is_readable(const float *address) {
    static int pipes[2];
    char byte;
    if (!pipes[1]) ck_assert_int_eq(pipe(pipes), 0);
    if (write(pipes[1], address, 1) != 1) {
        ck_assert_int_eq(errno, EFAULT);
        return false;
    }
    ck_assert_int_eq(read(pipes[0], &byte, 1), 1);
    return true;
}

static size_t resident(void) {
    unsigned char pages[1024];
    size_t n = 0;
    ck_assert_uint_le(block_bytes / page, sizeof pages);
    ck_assert_int_eq(mincore(block, block_bytes, pages), 0);
    for (size_t i = 0; i < block_bytes / page; i++) n += (pages[i] & 1) * page;
    return n;
}

static size_t whole_pages(size_t first, size_t end) {
    return end * sizeof(float) / page * page - (first * sizeof(float) + page - 1) / page * page;
}

static void ck_runs(void) {
    float y[LAYER];
    for (int layer = 0; layer < 2; layer++) {
        const float *w = block + FIRST + layer * LAYER, *was = before + FIRST + layer * LAYER;
        linear_slot(y, w, LAYER);
        for (int i = 0; i < LAYER; i++) ck_assert_float_eq(y[i], through(was[i]));
        linear_slot(y, w + LAYER / 2, LAYER / 2); /* a slice */
        for (int i = 0; i < LAYER / 2; i++) ck_assert_float_eq(y[i], through(was[LAYER / 2 + i]));
    }
    ck_assert_float_eq(sum_slot(block + GAMMA, NORM), sum(before + GAMMA, NORM));
}

static uint64_t release(amp_config config) {
    uint64_t bytes = 1;
    raw_start(&raw, config);
    ck_runs();
    ck_ok(amp_weights_release(raw.context, &bytes));
    return bytes;
}

static const amp_level levels[] = { AMP_O5, AMP_O3 };

static amp_config config_of(int i) {
    return CONFIG(levels[i], .cast_model_type = AMP_BFLOAT16, .keep_batchnorm_fp32 = AMP_ON);
}

static void square(float *y, const float *w, int n) {
    for (int i = 0; i < n; i++) y[i] = w[i] * w[i];
}

/* Of a class that needs a wrapper anyway: it gets a widened temporary as others do. */
TEST_TIMES(an_op_that_is_lowered_without_an_implementation_reads_copies, 2) {
    static void (*slot)(float *, const float *, int);
    float y[LAYER];
    slot = square;
    raw_op(&raw, OP("square", "f(float(out a!) y[n], float w[n], int n) -> void", &slot, .op_class = AMP_LOWER));
    ck_assert_uint_gt(release(config_of(_i)), 0);
    slot(y, block + FIRST, LAYER);
    for (int i = 0; i < LAYER; i++) ck_assert_float_eq(y[i], through(before[FIRST + i]) * through(before[FIRST + i]));
    ck_assert(!is_readable(block + FIRST + LAYER / 2));
}

TEST_TIMES(copies_are_the_only_ones, 2) {
    const size_t whole = whole_pages(FIRST, GAMMA);
    amp_memory memory = AMP_MEMORY_INIT;
    ck_assert_uint_eq(resident(), block_bytes);
    ck_assert_uint_eq(release(config_of(_i)), whole);
    ck_assert_uint_eq(resident(), block_bytes - whole);
    ck_assert(!is_readable(block + SECOND) && is_readable(block) && is_readable(block + GAMMA));
    ck_explains(raw.context, NULL, "masters none (blocks released)");
    ck_runs();
    const uint16_t *once = got;
    ck_runs();
    ck_assert_ptr_eq(got, once); /* where they lie */
    ck_ok(amp_get_memory(raw.context, &memory));
    ck_assert_uint_eq(memory.weights, 2 * LAYER * 2 + NORM * 4);
}

/* What was given back is rounded, and nothing else has changed. */
TEST_TIMES(they_come_back, 2) {
    size_t rounded = 0;
    (void)release(config_of(0));
    if (_i) ck_ok(amp_weights_restore(raw.context));
    else raw_stop(&raw);
    for (size_t i = 0; i < ALL; i++) {
        const bool given = block[i] < before[i] || block[i] > before[i];
        if (given) ck_assert_float_eq(block[i], through(before[i]));
        rounded += given;
    }
    ck_assert_uint_gt(rounded, LAYER);
    ck_assert_mem_eq(block, before, page); /* the head shares it with the first layer */
    const size_t tail = GAMMA * sizeof(float) / page * page / sizeof(float);
    ck_assert_mem_eq(block + tail, before + tail, (ALL - tail) * sizeof(float)); /* nor is the last page a whole one */
    if (!_i) return;
    amp_memory memory = AMP_MEMORY_INIT;
    ck_ok(amp_get_memory(raw.context, &memory));
    ck_assert_uint_eq(memory.weights, 4 * (2 * LAYER + NORM));
    ck_runs();
    block[SECOND + 4] = before[SECOND + 4] = 8.0f; /* and is the host's */
    ck_runs();
    ck_ok(amp_weights_restore(raw.context));
    ck_ok(amp_weights_release(raw.context, NULL));
    ck_runs();
}

/* An op that knows FP32 alone gets them widened; so does everyone under verify, between guards. */
TEST_TIMES(who_knows_fp32_alone_gets_floats, 2) {
    float total = 0.0f;
    for (int i = 0; i < LAYER; i++) total += through(before[FIRST + i]);
    amp_config config = config_of(0);
    config.verify = _i ? AMP_ON : AMP_OFF;
    raw.ops[0].flags = AMP_OP_STATEFUL; /* by its sign a result says who made it: that is not to be compared */
    (void)release(config);
    ck_assert_float_eq(sum_slot(block + FIRST, LAYER), total);
    ck_runs();
    size_t findings;
    ck_ok(amp_get_findings(raw.context, NULL, 0, &findings));
    ck_assert_uint_eq(findings, 0);
}

/* What lies between blocks is somebody's, and batch norm's parameters are read in FP32. */
TEST_TIMES(what_is_not_copied_stays, 2) {
    size_t first = whole_pages(FIRST, FIRST + LAYER / 3);
    if (_i) raw.params[0].module_kind = AMP_MODULE_BATCH_NORM, first = 0;
    else raw.buffers[0].size = LAYER / 3;
    raw_start(&raw, config_of(0));
    uint64_t bytes;
    ck_ok(amp_weights_release(raw.context, &bytes));
    ck_assert_uint_eq(bytes, first + whole_pages(SECOND, GAMMA));
    for (size_t i = _i ? FIRST : FIRST + LAYER / 3; i < SECOND; i++) ck_assert(block[i] == before[i]);
    ck_ok(amp_weights_restore(raw.context));
    for (size_t i = 0; i < ALL; i++)
        ck_assert(block[i] == before[i] || block[i] == through(before[i]));
}

/* A bias that is no page, and the weights behind it: together they are. */
TEST(neighbours_count_together) {
    raw_param(&raw, "head", block, NULL, HEAD);
    raw_start(&raw, config_of(0));
    uint64_t bytes;
    ck_ok(amp_weights_release(raw.context, &bytes));
    ck_assert_uint_eq(bytes, whole_pages(0, GAMMA));
    ck_assert(!is_readable(block));
    ck_runs();
}

/* By its implementation, and without one. */
TEST_TIMES(what_an_op_gets_is_seen, 2) {
    amp_observation seen[8] = { AMP_OBSERVATION_INIT };
    amp_config config = config_of(0);
    float y[LAYER];
    size_t n, found = 0;
    config.observe = AMP_ON;
    (void)release(config);
    ck_ok(amp_observe(raw.context, &SIZED(amp_observe_options, .every = 1)));
    if (_i) (void)sum_slot(block + SECOND, LAYER);
    else linear_slot(y, block + SECOND, LAYER);
    ck_ok(amp_get_observations(raw.context, seen, 8, &n));
    for (size_t i = 0; i < n; i++) {
        if (strcmp(seen[i].name, "w")) continue;
        found++;
        ck_assert_int_eq(seen[i].dtype, _i ? AMP_FLOAT32 : AMP_BFLOAT16);
        ck_assert_uint_eq(seen[i].last->elements, LAYER);
        ck_assert(seen[i].last->largest == (double)through(before[SECOND]));
    }
    ck_assert_uint_eq(found, 1);
}

/* ---- what stands in the way ---- */

TEST_TIMES(a_write_is_refused_and_does_not_run, 3) {
    (void)release(config_of(0));
    if (_i == 0) decay_slot(block + SECOND, LAYER);
    if (_i == 1) decay_low_slot(block + SECOND, LAYER);
    if (_i == 2) (void)sum_slot(block + SECOND, LAYER + 1);
    ck_refused(AMP_ERR_WRONG_STATE, "second, and its FP32 block was released", amp_check(raw.context));
    ck_ok(amp_weights_restore(raw.context));
    decay_slot(block + SECOND, LAYER);
    ck_assert_float_eq(block[SECOND + 9], 0.5f * through(before[SECOND + 9]));
}

static amp_status no_pass(void *self, double *loss) { return (void)self, *loss = 0.0, AMP_OK; }

TEST(what_needs_the_blocks_is_refused) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_context *other;
    struct raw second;
    (void)release(config_of(0));
    ck_refused(AMP_ERR_WRONG_STATE, "released already", amp_weights_release(raw.context, NULL));
    ck_refused(AMP_ERR_WRONG_STATE, "amp_weights_restore first",
               amp_scale_loss_begin_many(raw.context, NULL, 0, 0, 0, NULL, &scaled));
    ck_refused(AMP_ERR_WRONG_STATE, "amp_weights_restore first", amp_verify_step(raw.context, no_pass, NULL));
    raw_init(&second);
    raw_param(&second, "the same", block + SECOND + 8, NULL, 4);
    amp_model *model = &second.model;
    const amp_config config = CONFIG(AMP_O4);
    ck_refused(AMP_ERR_WRONG_STATE, "another context has released",
               amp_initialize_many(&model, 1, NULL, 0, &config, &other));
    second.buffers[0].data = block + GAMMA + NORM; /* other memory may be used */
    ck_ok(amp_initialize_many(&model, 1, NULL, 0, &config, &other));
    ck_ok(amp_shutdown(other));
    second.buffers[0].data = block + SECOND + 8;
    ck_ok(amp_weights_restore(raw.context));
    ck_ok(amp_initialize_many(&model, 1, NULL, 0, &config, &other));
    ck_refused(AMP_ERR_CONFLICT, "another context", amp_weights_release(raw.context, NULL));
    ck_ok(amp_shutdown(other));
    ck_ok(amp_scale_loss_begin_many(raw.context, NULL, 0, 0, 0, NULL, &scaled));
    ck_refused(AMP_ERR_WRONG_STATE, "inside a bracket", amp_weights_release(raw.context, NULL));
    ck_refused(AMP_ERR_WRONG_STATE, "inside a bracket", amp_weights_restore(raw.context));
    ck_ok(amp_scale_loss_end(&scaled));
    ck_ok(amp_weights_release(raw.context, NULL));
    ck_runs();
}

TEST(contexts_that_need_fp32_are_refused) {
    static float gradient[NORM];
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "no such context", amp_weights_release(NULL, NULL));
    raw_start(&raw, CONFIG(AMP_O4));
    ck_refused(AMP_ERR_WRONG_STATE, "level O4 makes no 16-bit copies", amp_weights_release(raw.context, NULL));
    raw_stop(&raw);
    raw_start(&raw, CONFIG(AMP_O5, .emulate = AMP_ON));
    ck_refused(AMP_ERR_WRONG_STATE, "without emulate", amp_weights_release(raw.context, NULL));
    raw_stop(&raw);
    raw_param(&raw, "trained", block + GAMMA + NORM, gradient, 4);
    raw_start(&raw, CONFIG(AMP_O5));
    ck_refused(AMP_ERR_WRONG_STATE, "in a context without optimizers", amp_weights_release(raw.context, NULL));
}

TEST(nothing_is_lost_to_infinity) {
    const size_t far = SECOND + LAYER - 2;
    block[far] = before[far] = 1e6f;
    raw.ops[0].fp16 = (amp_fn)linear_bf16;
    raw_start(&raw, CONFIG(AMP_O2));
    ck_explains(raw.context, NULL, "1 weight too large for fp16 became infinite, in second (1)");
    ck_refused(AMP_ERR_CONFLICT, "1 weight of second too large for fp16", amp_weights_release(raw.context, NULL));
    ck_assert_mem_eq(block, before, sizeof before);
    amp_memory memory = AMP_MEMORY_INIT;
    ck_ok(amp_get_memory(raw.context, &memory));
    ck_assert_uint_eq(memory.weights, 4 * (2 * LAYER + NORM)); /* no copy is left */
    block[far] = 1.0f;
    ck_ok(amp_weights_release(raw.context, NULL));
    ck_assert(!is_readable(block + SECOND));
}

/* A file's pages cost nothing that the system could not take itself, and who else maps them is not known; what may not
 * be written could not come back. */
TEST_TIMES(other_memory_stays, 3) {
    FILE *file = tmpfile();
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(before, 1, sizeof before, file), sizeof before);
    ck_assert_int_eq(fflush(file), 0);
    const int kind = _i == 1 ? MAP_SHARED : MAP_PRIVATE;
    float *mapped = _i ? mmap(NULL, block_bytes, PROT_READ | PROT_WRITE, kind, fileno(file), 0)
                       : mmap(NULL, block_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(mapped, MAP_FAILED);
    if (!_i) memcpy(mapped, before, sizeof before);
    if (!_i) ck_assert_int_eq(mprotect(mapped, block_bytes, PROT_READ), 0);
    munmap(block, block_bytes);
    block = mapped;
    for (int i = 0; i < 3; i++) raw.buffers[i].data = block + (i == 0 ? FIRST : i == 1 ? SECOND : GAMMA);
    ck_assert_uint_eq(release(config_of(0)), 0);
    ck_runs();
    ck_assert(is_readable(block + SECOND));
    raw_stop(&raw);
    ck_assert_mem_eq(block, before, sizeof before);
    fclose(file);
}
