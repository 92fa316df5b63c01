/* SPDX-License-Identifier: Apache-2.0 */
/* What amp__patch_add refuses, and that a refusal, or memory that runs out at any point, changes nothing. */
#include "fixture.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- failing allocations (linked with --wrap) ---- */

static int countdown = -1; /* the allocation that fails, counted from 0; below: none */
static unsigned failed;
static bool all_denied; /* closures */

static bool fails(void) {
    const bool now = countdown == 0;
    if (countdown >= 0) countdown--;
    failed += now;
    return now;
}

WRAP(void *, calloc, size_t count, size_t size) { return fails() ? NULL : __real_calloc(count, size); }
WRAP(void *, realloc, void *block, size_t size) { return fails() ? NULL : __real_realloc(block, size); }
WRAP(void *, ffi_closure_alloc, size_t size, void **code) {
    return fails() || all_denied ? NULL : __real_ffi_closure_alloc(size, code);
}

/* Two adds, commit, undo, with the countdown running for all of it. */
static amp_status attempt(const char *schema, amp_fn *slots, struct watcher *seen) {
    struct amp__patch *patch = NULL;
    amp_status status = amp__patch_new(&patch);
    for (int i = 0; i < 2 && status == AMP_OK; i++) {
        const struct wrap wrap = wrap_of("op add", &slots[i], schema, 1, seen);
        bool wrapped = false;
        status = patch_add(patch, &wrap, &wrapped);
        ck_assert(wrapped == (status == AMP_OK));
    }
    if (status == AMP_OK) {
        amp__patch_commit(patch);
        in_scope(1);
        ck_assert_int_eq(call_binary(slots[0], 1, 2), 3);
        in_scope(0);
    }
    const amp_status undone = amp__patch_undo(patch);
    ck_assert_int_eq(undone, AMP_OK);
    return status;
}

TEST(memory_that_runs_out_changes_nothing) {
    use_up_stubs();
    unsigned denied = 0, no_memory = 0;
    for (int at = 0;; at++) {
        /* Another owner is on the second slot already. A schema of its own makes every round start afresh. */
        char schema[128];
        snprintf(schema, sizeof schema, "add%d(int a, int b) -> int", at);
        amp_fn slots[2] = { (amp_fn)host_add, (amp_fn)host_sub };
        struct watcher first = { 0 }, seen = { 0 };
        struct amp__patch *other = wire(wrap_of("op first", &slots[1], schema, 0, &first));
        const amp_fn wrapped = slots[1];

        failed = 0;
        countdown = at;
        const amp_status status = attempt(schema, slots, &seen);
        countdown = -1;
        denied += status == AMP_ERR_CLOSURE_DENIED;
        no_memory += status == AMP_ERR_NO_MEMORY;
        ck_assert_uint_eq(failed, status == AMP_OK ? 0 : 1);
        ck_assert(slots[0] == (amp_fn)host_add && slots[1] == wrapped);
        in_scope(0);
        ck_assert_int_eq(call_binary(slots[1], 1, 2), -1);
        ck_assert_uint_eq(first.calls, 1);
        ck_assert_int_eq(attempt(schema, slots, &seen), AMP_OK); /* and the next try succeeds */
        ck_ok(amp__patch_undo(other));
        ck_assert(slots[1] == (amp_fn)host_sub);
        if (status == AMP_OK) break;
    }
    ck_assert_uint_eq(denied, 1);
    ck_assert_uint_ge(no_memory, 8);
}

TEST(denied_closures_say_what_to_do) {
    use_up_stubs();
    amp_fn slot = (amp_fn)host_add;
    struct watcher seen = { 0 };
    for (countdown = 0;; countdown++) {
        const int at = countdown;
        const amp_status status = attempt(BINARY, &(amp_fn[2]){ slot, slot }[0], &seen);
        countdown = at;
        if (status == AMP_ERR_CLOSURE_DENIED) break;
        ck_assert_int_eq(status, AMP_ERR_NO_MEMORY);
    }
    countdown = -1;
    ck_assert_str_eq(amp_last_error(),
                     "op add: the system denies executable closures. Under SELinux allow execmem, under "
                     "systemd leave MemoryDenyWriteExecute off; or mark the op AMP_OP_DIRECT and call amp_cast_args "
                     "around the function, which needs no closure");
}

/* Stubs need no executable memory. */
TEST(calls_in_registers_need_no_closure) {
    amp_fn slots[2] = { (amp_fn)host_add, (amp_fn)host_sub };
    struct watcher seen = { 0 };
    all_denied = true;
    ck_assert_int_eq(attempt(BINARY, slots, &seen), AMP__GENERAL ? AMP_OK : AMP_ERR_CLOSURE_DENIED);
    ck_assert_uint_eq(seen.calls, AMP__GENERAL ? 1 : 0);
    use_up_stubs();
    ck_assert_int_eq(attempt("add(int a, int b) -> int32", slots, &seen), AMP_ERR_CLOSURE_DENIED);
}

/* ---- refusals ---- */

static void refuse(struct amp__patch *patch, struct wrap wrap, amp_status status, const char *message) {
    bool wrapped = true;
    ck_assert_int_eq(patch_add(patch, &wrap, &wrapped), status);
    ck_says(message);
    ck_assert(wrapped); /* untouched */
}

/* `wrap`, but for one field. */
#define REFUSE_WITH(field, status, message)                                                                            \
    do {                                                                                                               \
        struct wrap changed = wrap;                                                                                    \
        changed field;                                                                                                 \
        refuse(patch, changed, status, message);                                                                       \
    } while (0)

TEST(bad_wraps_are_refused_by_name) {
    amp_fn slot = (amp_fn)host_add, slots[2] = { (amp_fn)host_add, (amp_fn)host_add };
    struct watcher seen = { 0 };
    struct amp__patch *patch = new_patch();
    struct wrap wrap = wrap_of("op add", &slot, BINARY, 0, &seen);
    bool wrapped;
    ck_fails(AMP_ERR_INVALID_ARGUMENT, patch_add(NULL, &wrap, &wrapped));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp__patch_add(patch, NULL, &wrapped));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, patch_add(patch, &wrap, NULL));
    const struct amp__wrap without = { .what = "op add", .slot = &slot, .handler = watch, .owner = owner(0) };
    ck_refused(AMP_ERR_INVALID_ARGUMENT, "op add: it has no schema", amp__patch_add(patch, &without, &wrapped));
    REFUSE_WITH(.slot = NULL, AMP_ERR_INVALID_ARGUMENT, "op add: the slot is NULL: give the address");
    REFUSE_WITH(.slot = (amp_fn *)((uintptr_t)slots + 1), AMP_ERR_INVALID_ARGUMENT,
                "is not aligned as a function pointer");
    REFUSE_WITH(.handler = NULL, AMP_ERR_INVALID_ARGUMENT, "op add: a handler and an owner are needed");
    REFUSE_WITH(.owner = NULL, AMP_ERR_INVALID_ARGUMENT, "op add: a handler and an owner are needed");
    REFUSE_WITH(.schema = NULL, AMP_ERR_SCHEMA, "op add: it has no schema");
    REFUSE_WITH(.schema = "add(int a, flaot b) -> int", AMP_ERR_SCHEMA,
                "op add: expected a type\n  add(int a, flaot b) -> int\n             ^ did");
    REFUSE_WITH(.match_self = true, AMP_ERR_SCHEMA, "op add: the schema has no Tensor or pointer argument named self");
    wrap.what = NULL;
    add(patch, wrap); /* after all that the patch is as new */
    amp__patch_commit(patch);
    ck_assert_int_eq(call_binary(slot, 1, 2), 3);
    ck_assert_uint_eq(seen.calls, 1);
    ck_ok(amp__patch_undo(patch));
    ck_assert(slot == (amp_fn)host_add);
}

TEST(one_slot_twice_is_a_conflict) {
    amp_fn slot = (amp_fn)host_step;
    struct watcher seen = { 0 };
    int a, b;
    struct amp__patch *patch = new_patch(), *later = new_patch();
    add(patch, wrap_of_self("step 0", &slot, 0, &a, &seen));
    add(patch, wrap_of_self("step 1", &slot, 0, &b, &seen));
    refuse(patch, wrap_of_self("step 2", &slot, 0, &a, &seen), AMP_ERR_CONFLICT, "step 0 and step 2 are the same slot");
    ck_says("with the same self");
    refuse(patch, wrap_of("op step", &slot, METHOD, 0, &seen), AMP_ERR_CONFLICT, " and op step are the same slot");
    amp__patch_commit(patch);
    refuse(later, wrap_of_self("step 3", &slot, 0, &a, &seen), AMP_ERR_CONFLICT, "step 0 and step 3 are the same slot");
    add(later, wrap_of_self("step 3", &slot, 1, &a, &seen)); /* another owner may */
    ck_ok(amp__patch_undo(later));
    ck_ok(amp__patch_undo(patch));
    ck_assert(slot == (amp_fn)host_step);
}

TEST(another_schema_on_a_wrapped_slot_is_a_conflict) {
    amp_fn slot = (amp_fn)host_add;
    struct watcher seen = { 0 };
    struct amp__patch *patch = wire(wrap_of("op add", &slot, BINARY, 0, &seen)), *other = new_patch();
    refuse(other, wrap_of("op sum", &slot, "sum(int a, int64 b) -> int", 1, &seen), AMP_ERR_CONFLICT,
           "op sum: its slot is wrapped already for op add under another schema: " BINARY);
    ck_ok(amp__patch_undo(patch));
    add(other, wrap_of("op sum", &slot, "sum(int a, int32 b) -> int", 1, &seen)); /* now it is free */
    ck_ok(amp__patch_undo(other));
}

/* ---- memory that cannot be written ---- */

static const struct {
    amp_fn add;
} constant_table = { (amp_fn)host_add };

static amp_fn *map_slot(void) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    amp_fn *slot = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(slot != MAP_FAILED);
    *slot = (amp_fn)host_add;
    return slot;
}

static void protect(amp_fn *slot, int protection) {
    ck_assert_int_eq(mprotect(slot, (size_t)sysconf(_SC_PAGESIZE), protection), 0);
}

TEST(read_only_memory_is_found_without_writing) {
    amp_fn *slot = map_slot(), *constant;
    struct watcher seen = { 0 };
    struct amp__patch *patch = new_patch();
    protect(slot, PROT_READ);
    refuse(patch, wrap_of("op add#7", slot, BINARY, 0, &seen), AMP_ERR_READ_ONLY, "op add#7: the slot ");
    memcpy(&constant, &(const amp_fn *){ &constant_table.add }, sizeof constant);
    refuse(patch, wrap_of("op add", constant, BINARY, 0, &seen), AMP_ERR_READ_ONLY, "lies in read-only memory");
    protect(slot, PROT_NONE);
    refuse(patch, wrap_of("op add", slot, BINARY, 0, &seen), AMP_ERR_INVALID_ARGUMENT, "there is no memory at");
    ck_assert_int_eq(munmap(slot, (size_t)sysconf(_SC_PAGESIZE)), 0);
    refuse(patch, wrap_of("op add", slot, BINARY, 0, &seen), AMP_ERR_INVALID_ARGUMENT, "op add: there is no memory at");
    refuse(patch, wrap_of("op add", (amp_fn *)64, BINARY, 0, &seen), AMP_ERR_INVALID_ARGUMENT, "no memory at");
    ck_ok(amp__patch_undo(patch));
}

TEST(memory_that_became_read_only_or_went_is_left) {
    amp_fn *slots[3] = { map_slot(), map_slot(), map_slot() };
    struct watcher seen = { 0 };
    struct amp__patch *patch =
        WIRE(wrap_of("op sealed", slots[0], BINARY, 0, &seen), wrap_of("op gone", slots[1], BINARY, 0, &seen));
    protect(slots[0], PROT_READ);
    ck_assert_int_eq(munmap(slots[1], (size_t)sysconf(_SC_PAGESIZE)), 0);
    ck_fails(AMP_ERR_READ_ONLY, amp__patch_undo(patch));
    ck_says("2 wrapped slots is gone or became read-only: op gone, op sealed ");
    ck_assert_ptr_null(strstr(amp_last_error(), "another library"));
    protect(slots[0], PROT_READ | PROT_WRITE);
    struct amp__patch *second =
        WIRE(wrap_of("op sealed", slots[2], BINARY, 0, &seen), wrap_of("op taken", slots[0], BINARY, 0, &seen));
    *slots[0] = (amp_fn)host_add;
    protect(slots[2], PROT_READ);
    ck_fails(AMP_ERR_SLOT_TAKEN, amp__patch_undo(second)); /* both are told, each by its name */
    ck_says("another library overwrote 1 wrapped slot, left as they are: op taken;");
    ck_says("1 wrapped slot is gone or became read-only: op sealed ");
    ck_assert_int_eq(call_binary(*slots[0], 1, 2), 3);
    ck_assert_uint_eq(seen.calls, 0);
}
