/* SPDX-License-Identifier: Apache-2.0 */
/* Slots: what a transaction changes, what its undo leaves, and what strangers and copies do in between. */
#include "../support/heap.h"
#include "../support/leave.h"
#include "fixture.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* Every closure that libamp asks libffi for (linked with --wrap). */
static unsigned closures_made;

WRAP(void *, ffi_closure_alloc, size_t size, void **code) {
    closures_made++;
    return __real_ffi_closure_alloc(size, code);
}

/* ---- a transaction ---- */

TEST(slots_change_at_commit_and_come_back_at_undo) {
    amp_fn slots[2] = { (amp_fn)host_add, (amp_fn)host_sub };
    struct watcher seen[2] = { 0 };
    struct amp__patch *patch = new_patch();
    add(patch, wrap_of("op add", &slots[0], BINARY, 0, &seen[0]));
    add(patch, wrap_of("op sub", &slots[1], BINARY, 0, &seen[1]));
    ck_assert(slots[0] == (amp_fn)host_add && slots[1] == (amp_fn)host_sub);

    amp__patch_commit(patch);
    ck_assert(slots[0] != (amp_fn)host_add && slots[1] != (amp_fn)host_sub && slots[0] != slots[1]);
    ck_assert_int_eq(call_binary(slots[0], 5, -7), -2);
    ck_assert_int_eq(call_binary(slots[1], 5, -7), 12);
    ck_assert_uint_eq(seen[0].calls, 1);
    ck_assert_uint_eq(seen[1].calls, 1);

    ck_ok(amp__patch_undo(patch));
    ck_assert(slots[0] == (amp_fn)host_add && slots[1] == (amp_fn)host_sub);
}

TEST(undo_before_commit_forgets) {
    amp_fn slot = (amp_fn)host_add;
    struct watcher seen = { 0 };
    struct amp__patch *patch = new_patch();
    add(patch, wrap_of("op add", &slot, BINARY, 0, &seen));
    ck_ok(amp__patch_undo(patch));
    ck_assert(slot == (amp_fn)host_add);
    ck_ok(amp__patch_undo(NULL));
    ck_ok(amp__patch_undo(new_patch()));
    ck_ok(amp__patch_undo(wire(wrap_of("op add", &slot, BINARY, 0, &seen)))); /* nothing in the way */
}

TEST(a_committed_patch_takes_no_more) {
    amp_fn slot = (amp_fn)host_add, other = (amp_fn)host_add;
    struct watcher seen = { 0 };
    struct amp__patch *patch = wire(wrap_of("op add", &slot, BINARY, 0, &seen));
    const struct wrap wrap = wrap_of("op other", &other, BINARY, 0, &seen);
    bool wrapped;
    ck_fails(AMP_ERR_WRONG_STATE, patch_add(patch, &wrap, &wrapped));
    ck_ok(amp__patch_undo(patch));
}

TEST(owners_end_in_any_order) {
    static const int orders[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 }, { 1, 2, 0 }, { 2, 0, 1 }, { 2, 1, 0 } };
    for (size_t order = 0; order < AMP_COUNT(orders); order++) {
        amp_fn slot = (amp_fn)host_add;
        struct watcher seen[3] = { 0 };
        struct amp__patch *patches[3];
        bool alive[3] = { true, true, true };
        for (int i = 0; i < 3; i++) patches[i] = wire(wrap_of("op add", &slot, BINARY, i, &seen[i]));
        const amp_fn wrapped = slot;
        for (int step = 0; step < 3; step++) {
            for (int i = 0; i < 3; i++) {
                const unsigned before = seen[i].calls;
                in_scope(i);
                ck_assert_int_eq(call_binary(slot, 1, 2), 3);
                ck_assert_uint_eq(seen[i].calls, before + alive[i]);
            }
            ck_assert(slot == wrapped);
            ck_ok(amp__patch_undo(patches[orders[order][step]]));
            alive[orders[order][step]] = false;
        }
        ck_assert(slot == (amp_fn)host_add);
    }
}

TEST(one_function_in_several_slots) {
    amp_fn slots[8];
    struct watcher seen[8] = { 0 };
    struct amp__patch *patch = new_patch();
    for (int i = 0; i < 8; i++) {
        slots[i] = (amp_fn)host_add;
        add(patch, wrap_of("op add", &slots[i], BINARY, 0, &seen[i]));
    }
    amp__patch_commit(patch);
    for (int i = 0; i < 8; i++)
        for (int n = 0; n <= i; n++) ck_assert_int_eq(call_binary(slots[i], i, n), i + n);
    for (unsigned i = 0; i < 8; i++) ck_assert_uint_eq(seen[i].calls, i + 1);
    ck_ok(amp__patch_undo(patch));
    for (int i = 0; i < 8; i++) ck_assert(slots[i] == (amp_fn)host_add);
}

TEST(empty_slots_are_passed_over) {
    static const amp_fn constant = NULL;
    amp_fn empty = NULL, slot = (amp_fn)host_add;
    struct watcher seen = { 0 };
    struct amp__patch *patch = new_patch();
    struct wrap wrap = wrap_of("op none", &empty, BINARY, 0, &seen);
    bool wrapped = true;
    ck_ok(patch_add(patch, &wrap, &wrapped));
    ck_assert(!wrapped);
    wrapped = true;
    memcpy(&wrap.slot, &(const amp_fn *){ &constant }, sizeof wrap.slot);
    ck_ok(patch_add(patch, &wrap, &wrapped));
    ck_assert(!wrapped);
    add(patch, wrap_of("op add", &slot, BINARY, 0, &seen));
    amp__patch_commit(patch);
    ck_assert(empty == NULL);
    in_scope(1);
    call_binary(slot, 1, 2);
    ck_assert_uint_eq(amp__patch_passed(patch, 0), 0);
    ck_assert_uint_eq(amp__patch_passed(patch, 2), 1);
    ck_assert_uint_eq(amp__patch_passed(patch, 3), 0);
    ck_ok(amp__patch_undo(patch));
    ck_assert(empty == NULL);
}

/* ---- strangers and copies ---- */

static amp_fn under_stranger;
static int stranger(int a, int b) { return 1000 + call_binary(under_stranger, a, b); }

TEST(what_a_stranger_wrote_is_left) {
    amp_fn slots[3] = { (amp_fn)host_add, (amp_fn)host_add, (amp_fn)host_sub };
    struct watcher seen = { 0 }, again = { 0 };
    struct amp__patch *patch =
        WIRE(wrap_of("op add#0", &slots[0], BINARY, 0, &seen), wrap_of("op add#1", &slots[1], BINARY, 0, &seen),
             wrap_of("op sub", &slots[2], BINARY, 0, &seen));
    under_stranger = slots[1];
    slots[1] = (amp_fn)stranger;
    ck_assert_int_eq(call_binary(slots[1], 1, 2), 1003);
    ck_assert_uint_eq(seen.calls, 1);

    ck_fails(AMP_ERR_SLOT_TAKEN, amp__patch_undo(patch));
    ck_assert_str_eq(amp_last_error(), "another library overwrote 1 wrapped slot, left as they are: op add#1; calls "
                                       "that still reach libamp run unchanged");
    ck_assert(slots[0] == (amp_fn)host_add && slots[1] == (amp_fn)stranger && slots[2] == (amp_fn)host_sub);
    ck_assert_int_eq(call_binary(slots[1], 1, 2), 1003);
    ck_assert_uint_eq(seen.calls, 1);

    /* The next context wraps the stranger, and only once. */
    patch = wire(wrap_of("op add", &slots[1], BINARY, 1, &again));
    ck_assert_int_eq(call_binary(slots[1], 1, 2), 1003);
    ck_assert_uint_eq(again.calls, 1);
    ck_ok(amp__patch_undo(patch));
    ck_assert(slots[1] == (amp_fn)stranger);
}

TEST(contexts_below_and_above_a_stranger) {
    for (int first = 0; first < 2; first++) {
        amp_fn slot = (amp_fn)host_add;
        struct watcher seen[2] = { 0 };
        struct amp__patch *patches[2];
        patches[0] = wire(wrap_of("op below", &slot, BINARY, 0, &seen[0]));
        under_stranger = slot;
        slot = (amp_fn)stranger;
        patches[1] = wire(wrap_of("op above", &slot, BINARY, 1, &seen[1]));
        for (int i = 0; i < 2; i++) {
            in_scope(i);
            ck_assert_int_eq(call_binary(slot, 1, 2), 1003);
        }
        ck_assert_uint_eq(seen[0].calls, 1);
        ck_assert_uint_eq(seen[1].calls, 1);
        for (int i = 0; i < 2; i++) {
            const int which = i ^ first;
            ck_assert_int_eq(amp__patch_undo(patches[which]), which == 0 ? AMP_ERR_SLOT_TAKEN : AMP_OK);
            ck_assert_int_eq(call_binary(slot, 1, 2), 1003);
        }
        ck_assert(slot == (amp_fn)stranger);
    }
}

TEST(a_long_list_of_strangers_is_cut) {
    amp_fn slots[200];
    struct watcher seen = { 0 };
    struct amp__patch *patch = new_patch();
    for (int i = 0; i < 200; i++) {
        slots[i] = (amp_fn)host_add;
        add(patch, wrap_of("op with_a_long_name", &slots[i], BINARY, 0, &seen));
    }
    amp__patch_commit(patch);
    for (int i = 0; i < 200; i++) slots[i] = (amp_fn)stranger;
    ck_refused(AMP_ERR_SLOT_TAKEN, "overwrote 200 wrapped slots", amp__patch_undo(patch));
    ck_says("...; calls that still");
}

TEST(a_copied_pointer_is_not_wrapped_twice) {
    amp_fn slot = (amp_fn)host_add, copy;
    struct watcher seen = { 0 }, seen_copy = { 0 };
    struct amp__patch *patch = wire(wrap_of("op add", &slot, BINARY, 0, &seen));
    const amp_fn wrapped = copy = slot;
    struct amp__patch *patch_copy = wire(wrap_of("op copy", &copy, BINARY, 0, &seen_copy));
    ck_assert_int_eq(call_binary(copy, 1, 2), 3);
    ck_assert_uint_eq(seen.calls, 0);
    ck_assert_uint_eq(seen_copy.calls, 1);
    ck_assert_uint_eq(amp__patch_passed(patch, 0), 0); /* the first closure was not on the way */
    ck_ok(amp__patch_undo(patch_copy));
    ck_assert(copy == wrapped);
    ck_assert_int_eq(call_binary(copy, 1, 2), 3);
    ck_assert_uint_eq(seen.calls, 1); /* the copy still goes where it was copied from */
    ck_ok(amp__patch_undo(patch));
    ck_assert(slot == (amp_fn)host_add);
    ck_assert_int_eq(call_binary(copy, 1, 2), 3); /* every context has ended */
    ck_assert_uint_eq(seen.calls, 1);

    /* A copy that outlived its context, wired in its turn. */
    patch_copy = wire(wrap_of("op copy", &copy, BINARY, 2, &seen_copy));
    ck_assert_int_eq(call_binary(copy, 1, 2), 3);
    ck_assert_uint_eq(seen_copy.calls, 2);
    ck_ok(amp__patch_undo(patch_copy));
    ck_assert(copy == wrapped);
}

/* ---- growth ---- */

static void cycle(amp_fn *slots, int n) {
    static struct watcher seen;
    struct amp__patch *patches[3];
    for (int o = 0; o < 3; o++) {
        patches[o] = new_patch();
        for (int i = 0; i < n; i++) add(patches[o], wrap_of("op add", &slots[i], BINARY, o, &seen));
        amp__patch_commit(patches[o]);
    }
    call_binary(slots[0], 1, 2);
    for (int o = 0; o < 3; o++) ck_ok(amp__patch_undo(patches[o]));
}

/* The number of the next stub: one is used for asking. */
static uintptr_t next_stub(void) {
    static struct amp__closure nobody;
    return (uintptr_t)amp__stub_take(&nobody) / 16;
}

/* With stubs, and with closures of libffi. */
TEST_TIMES(a_thousand_cycles_do_not_grow, 2) {
    if (_i) use_up_stubs();
    enum { N = 4, CYCLES = 1000 };
    const uintptr_t first = next_stub();
    const unsigned expected = _i == 0 && first ? 0 : N;
    static amp_fn slots[N * CYCLES];
    for (int i = 0; i < N * CYCLES; i++) slots[i] = (amp_fn)host_add;
    for (int i = 0; i < 10; i++) cycle(slots, N); /* what malloc keeps in its bins counts as used */
    ck_assert_uint_eq(closures_made, expected);
    const size_t used = heap_used();
    for (int i = 0; i < CYCLES; i++) cycle(slots, N);
    for (int i = 0; i < CYCLES; i++) cycle(slots + N * i, N); /* the host's tables move */
    ck_assert_uint_eq(closures_made, expected);
    if (!expected) ck_assert_uint_eq(next_stub() - first, N + 1);
    ck_assert_uint_eq(heap_used(), used);
}

static int by_code(const void *a, const void *b) { return memcmp(a, b, sizeof(amp_fn)); }

/* More closures than the registry begins with places for: each is found, by slot, by code and by function. */
TEST(many_slots_of_one_function) {
    enum { N = 700 };
    static amp_fn slots[2 * N], codes[N], sorted[2][N];
    struct watcher seen = { 0 }, seen_sub = { 0 };
    amp_fn early = (amp_fn)host_sub, late = (amp_fn)host_sub;
    for (int i = 0; i < 2 * N; i++) slots[i] = (amp_fn)host_add;
    struct amp__patch *alone = wire(wrap_of("op sub", &early, BINARY, 0, &seen_sub));
    const amp_fn idle = early; /* through all that follows */
    ck_ok(amp__patch_undo(alone));
    for (int round = 0; round < 4; round++) {
        amp_fn *table = round < 2 ? slots : slots + N; /* twice the same slots, then others */
        struct amp__patch *patch = new_patch();
        for (int i = 0; i < N; i++) add(patch, wrap_of("op add", &table[i], BINARY, 0, &seen));
        amp__patch_commit(patch);
        for (int i = 0; i < N; i++) {
            if (round % 2) ck_assert(table[i] == codes[i]); /* its own again */
            codes[i] = table[i];
            ck_assert_int_eq(call_binary(table[i], 1, 2), 3);
        }
        ck_assert_uint_eq(seen.calls, (unsigned)(N * (round + 1)));
        memcpy(sorted[round / 2], codes, sizeof codes);
        amp_fn copy = table[N / 2]; /* wired in its turn, it stands for the function */
        struct watcher seen_copy = { 0 };
        struct amp__patch *patch_copy = wire(wrap_of("op copy", &copy, BINARY, 1, &seen_copy));
        ck_assert_int_eq(call_binary(copy, 1, 2), 3);
        ck_assert_uint_eq(seen_copy.calls, 1);
        ck_ok(amp__patch_undo(patch_copy));
        ck_ok(amp__patch_undo(patch));
        for (int i = 0; i < N; i++) ck_assert(table[i] == (amp_fn)host_add);
    }
    alone = wire(wrap_of("op sub", &late, BINARY, 0, &seen_sub));
    ck_assert(late == idle);
    ck_ok(amp__patch_undo(alone));
    int both = 0;
    for (int k = 0; k < 2; k++) qsort(sorted[k], N, sizeof(amp_fn), by_code);
    for (int i = 1; i < N; i++) ck_assert(sorted[0][i] != sorted[0][i - 1]);
    for (int i = 0, j = 0; i < N && j < N;) {
        const int order = by_code(&sorted[0][i], &sorted[1][j]);
        both += order == 0;
        i += order <= 0;
        j += order >= 0;
    }
    ck_assert_int_ge(both, N - 1); /* the other slots got the same closures, but perhaps for the copy's */
}

TEST(a_slot_gets_its_own_closure_back) {
    amp_fn slots[4], first[4];
    struct watcher seen = { 0 };
    for (int round = 0; round < 4; round++) {
        struct amp__patch *patch = new_patch();
        for (int i = 0; i < 4; i++) {
            const int at = (i * 3 + round) % 4; /* in another order each time */
            slots[at] = (amp_fn)host_add;
            add(patch, wrap_of("op add", &slots[at], BINARY, 0, &seen));
        }
        amp__patch_commit(patch);
        for (int i = 0; i < 4; i++) {
            if (round == 0) first[i] = slots[i];
            ck_assert(slots[i] == first[i]);
        }
        ck_ok(amp__patch_undo(patch));
    }
}

/* ---- fork ---- */

TEST(a_forked_child_calls_and_undoes) {
    amp_fn slot = (amp_fn)host_add;
    struct watcher seen = { 0 };
    struct amp__patch *patch = wire(wrap_of("op add", &slot, BINARY, 0, &seen));
    const pid_t child = fork();
    if (child == 0) {
        const bool called = call_binary(slot, 1, 2) == 3 && seen.calls == 1;
        leave(called && amp__patch_undo(patch) == AMP_OK && slot == (amp_fn)host_add ? 0 : 1);
    }
    int status = -1;
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(call_binary(slot, 1, 2), 3);
    ck_assert_uint_eq(seen.calls, 1);
    ck_ok(amp__patch_undo(patch));
}
