/* SPDX-License-Identifier: Apache-2.0 */
/* Many contexts: ten at once with different levels on one table, ended in any order; a thousand after one another. */
#include "checks.h"
#include "../support/heap.h"
#include "../support/levels.h"

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define LIVES 100
#else
#define LIVES 1000
#endif
enum { CONTEXTS = 10, TRIALS = 40 };

static uint64_t state; /* xorshift64* */

static unsigned below(unsigned n) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (unsigned)((state * 0x2545f4914f6cdd1dull) >> 33) % n;
}

static void shuffle(int *order) {
    for (int i = 0; i < CONTEXTS; i++) order[i] = i;
    for (int i = CONTEXTS - 1; i > 0; i--) {
        const int j = (int)below((unsigned)i + 1), kept = order[i];
        order[i] = order[j];
        order[j] = kept;
    }
}

/* ---- ten at once ---- */

struct crowd {
    struct rig rig;
    amp_fn rom[N_NET_OPS];
    amp_model models[CONTEXTS];
    amp_context *contexts[CONTEXTS];
    amp_level levels[CONTEXTS];
    bool copies;
};

static amp_dtype type_of_call(struct crowd *crowd, enum net_op op, amp_dtype given) {
    struct rig *rig = &crowd->rig;
    struct fake_tensor *x = rig_tensor(rig, given, 2.0);
    fake_release(op == OP_softmax ? net_unary(&rig->net, op, x) : net_binary(&rig->net, op, x, x));
    fake_release(x);
    fake_tape_clear(&rig->host);
    return fake_last(&rig->host)->dtypes[0];
}

static amp_dtype low_of(amp_level level) {
    return level_casts_ops(level) ? level_low(level) : AMP_DTYPE_DEFAULT;
}

/* A product is low and softmax FP32 at the levels that cast ops; elsewhere both run as they come. */
static void check_policy(struct crowd *crowd, amp_level level) {
    const amp_dtype low = low_of(level);
    ck_assert_int_eq(type_of_call(crowd, OP_matmul, AMP_FLOAT32), low ? low : AMP_FLOAT32);
    ck_assert_int_eq(type_of_call(crowd, OP_softmax, AMP_FLOAT16), low ? AMP_FLOAT32 : AMP_FLOAT16);
}

static void check_all(struct crowd *crowd) {
    int clients = 0, last = -1;
    amp_scope scope;
    for (int i = 0; i < CONTEXTS; i++) {
        if (!crowd->contexts[i]) continue;
        ck_ok(amp_scope_enter(crowd->contexts[i], &scope));
        check_policy(crowd, crowd->levels[i]);
        ck_ok(amp_scope_leave(&scope));
        if (!low_of(crowd->levels[i])) continue;
        clients++;
        last = i;
    }
    check_policy(crowd, clients == 1 ? crowd->levels[last] : AMP_O0); /* without a scope: the only one's, or nobody's */
    ck_ok(amp_scope_enter(NULL, &scope));
    check_policy(crowd, AMP_O0);
    ck_ok(amp_scope_leave(&scope));
}

static void join(struct crowd *crowd, int i) {
    crowd->contexts[i] = rig_second(&crowd->rig, &crowd->models[i], crowd->levels[i]);
    if (crowd->copies) ck_ok(amp_wrap_table(crowd->contexts[i], crowd->rom, sizeof crowd->rom, crowd->rig.net.table));
}

static void trial(struct crowd *crowd) {
    int order[CONTEXTS];
    shuffle(order);
    for (int i = 0; i < CONTEXTS; i++) crowd->levels[i] = (amp_level)(AMP_O0 + (i < 6 ? i : (int)below(6)));
    for (int i = 0; i < CONTEXTS; i++) join(crowd, order[i]);
    check_all(crowd);
    shuffle(order);
    for (int i = 0; i < CONTEXTS; i++) {
        ck_ok(amp_shutdown(crowd->contexts[order[i]]));
        crowd->contexts[order[i]] = NULL;
        check_all(crowd);
        bool more = false;
        for (int k = 0; k < CONTEXTS; k++) more |= crowd->contexts[k] && low_of(crowd->levels[k]);
        if (!more && !crowd->copies) ck_assert(net_slots_restored(&crowd->rig.net));
    }
}

TEST_TIMES(ten_contexts_end_in_any_order, 2) {
    struct crowd crowd = { .copies = _i };
    rig_init(&crowd.rig, FAKE_RETAINS);
    memcpy(crowd.rom, crowd.rig.net.original, sizeof crowd.rom);
    for (size_t i = 0; _i && i < N_NET_OPS; i++) {
        crowd.rig.net.ops[i].slot = &crowd.rom[i];
        crowd.rig.net.ops[i].flags |= AMP_OP_COPY;
    }
    for (int i = 0; i < TRIALS; i++) trial(&crowd);
    ck_assert_mem_eq(crowd.rom, crowd.rig.net.original, sizeof crowd.rom);
    memcpy(crowd.rig.net.table, crowd.rig.net.original, sizeof crowd.rom);
    rig_end(&crowd.rig);
}

/* ---- a thousand after one another ---- */

static unsigned mappings(void) {
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned lines = 0;
    if (!maps) return 0;
    for (int c; (c = getc(maps)) != EOF;) lines += c == '\n';
    (void)fclose(maps);
    return lines;
}

static void live(struct rig *rig, amp_level level) {
    rig_wire(rig, config_of(level));
    ck_ok(net_train_step(&rig->net, 0.5));
    rig_stop(rig);
    ck_assert(net_slots_restored(&rig->net));
}

/* A whole life each time, with training. Counted is what malloc has handed out, and what the process has mapped. The
 * host keeps the structures of dead tensors, so the count is of lives whose host is new. A block counts 16 bytes more
 * where the rest of its chunk is too small to be one, which depends on who lay there before. */
enum { PADDING = 256 };
static void lives(int n, amp_level level, unsigned options) {
    for (int i = 0; i < n; i++) {
        RIG_INIT(rig, options);
        live(&rig, level);
        live(&rig, level);
    }
}

TEST_TIMES(a_thousand_lives_do_not_grow, 12) {
    const amp_level level = (amp_level)(AMP_O0 + _i % 6);
    const unsigned options = _i < 6 ? FAKE_RETAINS : FAKE_NO_ALLOC;
    lives(10, level, options); /* what malloc keeps in its bins counts as used */
    (void)mappings();
    const size_t used = heap_used();
    const unsigned maps = mappings();
    ck_assert_uint_gt(maps, 0);
    lives(LIVES / 2, level, options);
/* others' malloc maps at will, and the sanitizers' counts nothing: they find leaks themselves */
#if LIVES == 1000 && defined(__GLIBC__)
    ck_assert_uint_eq(mappings(), maps);
    ck_assert_uint_gt(used, 0);
#endif
    ck_assert_uint_le(heap_used(), used + PADDING); /* a leak is 32 bytes a life at least */
}

/* ---- a stranger on top ---- */

static amp_fn below_stranger;
static struct fake_tensor *stranger(struct fake_tensor *a, struct fake_tensor *b) {
    return ((struct fake_tensor * (*)(struct fake_tensor *, struct fake_tensor *))below_stranger)(a, b);
}

TEST(a_slot_that_a_stranger_took_is_left_and_named) {
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    below_stranger = rig.net.table[OP_matmul];
    rig.net.table[OP_matmul] = (amp_fn)stranger;
    ck_refused(AMP_ERR_SLOT_TAKEN, "op matmul", amp_shutdown(rig.context));
    ck_assert_ptr_null(strstr(amp_last_error(), "linear"));
    ck_assert_ptr_null(rig.net.model.amp); /* gone all the same */
    ck_assert(rig.net.table[OP_matmul] == (amp_fn)stranger);
    ck_assert(rig.net.table[OP_linear] == rig.net.original[OP_linear]);
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT32, 2.0);
    fake_release(net_binary(&rig.net, OP_matmul, x, x)); /* through the stranger and the idle wrapper */
    fake_release(x);
    ck_assert_int_eq(fake_last(&rig.host)->dtypes[0], AMP_FLOAT32);
    rig.net.table[OP_matmul] = rig.net.original[OP_matmul];
    rig.context = NULL;
}

/* malloc's cache for each thread counts as used, and what it holds changes: this program runs without. */
static void run_without_cache(char **argv) {
    static const char without[] = "glibc.malloc.tcache_count=0";
    const char *now = getenv("GLIBC_TUNABLES");
    if ((now && !strcmp(now, without)) || setenv("GLIBC_TUNABLES", without, 1) != 0) return;
    execv("/proc/self/exe", argv);
}

int main(int argc, char **argv) {
    if (argc) run_without_cache(argv);
    const char *given = getenv("AMP_TEST_SEED");
    state = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) * 0x9e3779b97f4a7c15ull | 1;
    printf("# AMP_TEST_SEED=0x%llx\n", (unsigned long long)state);
    (void)fflush(stdout);
    return suite_run();
}
