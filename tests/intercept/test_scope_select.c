/* SPDX-License-Identifier: Apache-2.0 */
/* Whose call it is: self, scope, inside, none; counted when it is nobody's; and all of it while other threads wire. */
#include "fixture.h"

#include <pthread.h>
#include <setjmp.h>

enum { NONE = -1, DISABLED = -2 };

/* Calls the slot in a scope and says which of the three watchers took it; -1: none. */
static int taker(amp_fn slot, int scope, struct watcher *seen) {
    unsigned before[3];
    int who = -1;
    for (int i = 0; i < 3; i++) before[i] = seen[i].calls;
    in_scope(scope);
    ck_assert_int_eq(call_binary(slot, 20, 3), 23);
    for (int i = 0; i < 3; i++) {
        if (seen[i].calls == before[i]) continue;
        ck_assert_uint_eq(seen[i].calls, before[i] + 1);
        ck_assert_int_eq(who, -1);
        who = i;
    }
    return who;
}

TEST(the_scope_decides) {
    amp_fn slot = (amp_fn)host_add;
    struct watcher seen[3] = { 0 };
    struct amp__patch *first = wire(wrap_of("op add", &slot, BINARY, 0, &seen[0]));
    ck_assert_int_eq(taker(slot, NONE, seen), 0); /* the only one */
    ck_assert_int_eq(taker(slot, 0, seen), 0);
    ck_assert_int_eq(taker(slot, 1, seen), -1); /* another context's, which is not on this slot */
    ck_assert_int_eq(taker(slot, DISABLED, seen), -1);
    ck_assert_uint_eq(amp__patch_passed(first, 0), 2);

    struct amp__patch *second = wire(wrap_of("op add", &slot, BINARY, 1, &seen[1]));
    ck_assert_uint_eq(amp__patch_passed(second, 0), 0); /* counted from its own commit on */
    ck_assert_int_eq(taker(slot, NONE, seen), -1);      /* two: nobody can say */
    ck_assert_int_eq(taker(slot, 0, seen), 0);
    ck_assert_int_eq(taker(slot, 1, seen), 1);
    ck_assert_int_eq(taker(slot, DISABLED, seen), -1);
    ck_assert_uint_eq(amp__patch_passed(first, 0), 4);
    ck_assert_uint_eq(amp__patch_passed(second, 0), 2);

    ck_ok(amp__patch_undo(first));
    ck_assert_int_eq(taker(slot, NONE, seen), 1); /* the only one again */
    ck_assert_int_eq(taker(slot, 0, seen), -1);
    ck_ok(amp__patch_undo(second));
}

TEST(calls_from_inside_run_as_they_come) {
    amp_fn slot = (amp_fn)host_add;
    struct watcher seen[3] = { 0 };
    struct amp__patch *patch = wire(wrap_of("op add", &slot, BINARY, 0, &seen[0]));
    struct amp__thread *thread = amp__thread_state();
    thread->scope.inside = true;
    for (int scope = DISABLED; scope < 2; scope++) ck_assert_int_eq(taker(slot, scope, seen), -1);
    ck_assert_uint_eq(amp__patch_passed(patch, 0), 4);
    thread->scope.inside = false;
    ck_assert_int_eq(taker(slot, 0, seen), 0);
    ck_ok(amp__patch_undo(patch));
}

static amp_fn nested_slot;
static int nesting(int a, int b) { return call_binary(nested_slot, a, b); }

TEST(an_op_that_calls_an_op) {
    amp_fn slot = (amp_fn)nesting;
    struct watcher outer = { 0 }, inner = { 0 };
    nested_slot = (amp_fn)host_add;
    struct amp__patch *patch = WIRE(wrap_of("op outer", &slot, BINARY, 0, &outer),
                                    wrap_of("op inner", &nested_slot, BINARY, 0, &inner));
    ck_assert_int_eq(call_binary(slot, 1, 2), 3);
    ck_assert_uint_eq(outer.calls, 1);
    ck_assert_uint_eq(inner.calls, 0);
    ck_assert_uint_eq(amp__patch_passed(patch, 0), 0);
    ck_assert_uint_eq(amp__patch_passed(patch, 1), 1);
    ck_ok(amp__patch_undo(patch));
}

TEST(self_decides_whatever_the_scope) {
    amp_fn slot = (amp_fn)host_step;
    struct watcher seen[2] = { 0 };
    int objects[3];
    struct amp__patch *patches[2];
    for (int i = 0; i < 2; i++) patches[i] = wire(wrap_of_self("step", &slot, i, &objects[i], &seen[i]));
    for (int scope = DISABLED; scope < 3; scope++) {
        in_scope(scope);
        amp__thread_state()->scope.inside = scope == 2;
        for (int i = 0; i < 2; i++) {
            const unsigned before = seen[i].calls;
            ck_assert_int_eq(call_method(slot, &objects[i], 7), -7);
            ck_assert_uint_eq(seen[i].calls, before + 1);
        }
        ck_assert_int_eq(call_method(slot, &objects[2], 7), -7); /* nobody's */
        ck_assert_int_eq(call_method(slot, NULL, 7), 7);
    }
    ck_assert_uint_eq(seen[0].calls + seen[1].calls, 10);
    ck_assert_uint_eq(amp__patch_passed(patches[0], 0), 10);
    for (int i = 0; i < 2; i++) ck_ok(amp__patch_undo(patches[i]));
    ck_assert(slot == (amp_fn)host_step);
}

TEST(one_self_of_two_contexts_goes_by_the_scope) {
    amp_fn slot = (amp_fn)host_step;
    struct watcher seen[2] = { 0 }, plain = { 0 };
    int object, other;
    struct amp__patch *patches[3];
    for (int i = 0; i < 2; i++) patches[i] = wire(wrap_of_self("step", &slot, i, &object, &seen[i]));
    patches[2] = wire(wrap_of("op step", &slot, METHOD, 2, &plain));
    for (int scope = NONE; scope < 3; scope++) {
        in_scope(scope);
        ck_assert_int_eq(call_method(slot, &object, 7), -7);
        ck_assert_uint_eq(seen[0].calls, scope >= 0);
        ck_assert_uint_eq(seen[1].calls, scope >= 1);
    }
    ck_assert_uint_eq(plain.calls, 0);
    ck_assert_int_eq(call_method(slot, &other, 7), -7); /* scope 2, and nobody's self: the client without one */
    ck_assert_uint_eq(plain.calls, 1);
    for (int i = 0; i < 3; i++) ck_ok(amp__patch_undo(patches[i]));
}

static jmp_buf out;
static int jumping(int a, int b) {
    if (a < 0) longjmp(out, 1);
    return a + b;
}

TEST(marks_of_frames_that_a_longjmp_left_are_dropped) {
    amp_fn slot = (amp_fn)jumping;
    struct watcher seen[3] = { 0 };
    struct amp__patch *patch = wire(wrap_of("op jump", &slot, BINARY, 0, &seen[0]));
    in_scope(0);
    for (volatile int i = 0; i < 100; i++) {
        if (setjmp(out) == 0) call_binary(slot, -1, 0);
        ck_assert_int_eq(call_binary(slot, 20, 3), 23);
    }
    ck_assert_uint_eq(seen[0].calls, 200);
    ck_assert_uint_eq(amp__thread_state()->n_marks, 0);
    ck_ok(amp__patch_undo(patch));
}

/* ---- threads ---- */

enum { CALLERS = 8, ROUNDS = 300 };

/* Slot 0 has owner 0 all the time; others come and go. Slot 1 has only those who come and go. */
static amp_fn shared[2] = { (amp_fn)host_add, (amp_fn)host_sub };
static struct watcher mine, theirs;
static atomic_bool stop;
static _Atomic unsigned mistakes;

static void *call_in_scope_0(void *unused) {
    (void)unused;
    in_scope(0);
    unsigned calls = 0;
    for (; !stop; calls++) {
        mistakes += call_binary(__atomic_load_n(&shared[0], __ATOMIC_ACQUIRE), 1, 2) != 3;
        mistakes += call_binary(__atomic_load_n(&shared[1], __ATOMIC_ACQUIRE), 1, 2) != -1;
    }
    return (void *)(uintptr_t)calls;
}

TEST(threads_call_while_other_contexts_come_and_go) {
    pthread_t threads[CALLERS];
    uintptr_t calls = 0;
    struct amp__patch *keep = wire(wrap_of("op add", &shared[0], BINARY, 0, &mine));
    for (int i = 0; i < CALLERS; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, call_in_scope_0, NULL), 0);
    for (int round = 0; round < ROUNDS; round++) {
        struct amp__patch *patches[3];
        for (int i = 0; i < 3; i++)
            patches[i] = WIRE(wrap_of("op add", &shared[0], BINARY, i + 1, &theirs),
                              wrap_of("op sub", &shared[1], BINARY, i + 1, &theirs));
        for (int i = 0; i < 3; i++) ck_ok(amp__patch_undo(patches[(i + round) % 3]));
    }
    stop = true;
    for (int i = 0; i < CALLERS; i++) {
        void *count;
        ck_assert_int_eq(pthread_join(threads[i], &count), 0);
        calls += (uintptr_t)count;
    }
    ck_assert_uint_eq(mistakes, 0);
    ck_assert_uint_gt(calls, 0);
    ck_assert_uint_eq(mine.calls, calls);
    ck_assert_uint_eq(theirs.calls, 0);
    ck_assert_uint_eq(amp__patch_passed(keep, 0), 0);
    ck_ok(amp__patch_undo(keep));
    ck_assert(shared[0] == (amp_fn)host_add && shared[1] == (amp_fn)host_sub);
}

static amp_fn table[16];

static void *wire_own(void *index) {
    struct watcher seen = { 0 };
    const int me = (int)(intptr_t)index;
    in_scope(me);
    for (unsigned round = 0; round < ROUNDS; round++) {
        struct amp__patch *patch = NULL;
        bool wrapped;
        mistakes += amp__patch_new(&patch) != AMP_OK;
        for (int i = 0; i < 16; i++) {
            const struct wrap wrap = wrap_of("op add", &table[i], BINARY, me, &seen);
            mistakes += patch_add(patch, &wrap, &wrapped) != AMP_OK;
        }
        amp__patch_commit(patch);
        for (int i = 0; i < 16; i++)
            mistakes += call_binary(__atomic_load_n(&table[i], __ATOMIC_ACQUIRE), i, me) != i + me;
        mistakes += seen.calls != 16 * (round + 1);
        mistakes += amp__patch_undo(patch) != AMP_OK;
    }
    return NULL;
}

TEST(ten_contexts_on_one_table_from_ten_threads) {
    pthread_t threads[10];
    for (int i = 0; i < 16; i++) table[i] = (amp_fn)host_add;
    for (intptr_t i = 0; i < 10; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, wire_own, (void *)i), 0);
    for (int i = 0; i < 10; i++) ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    ck_assert_uint_eq(mistakes, 0);
    for (int i = 0; i < 16; i++) ck_assert(table[i] == (amp_fn)host_add);
}
