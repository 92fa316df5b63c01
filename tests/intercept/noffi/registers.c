/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The way through registers alone, with everything of src/intercept/ but libffi: what fits is wrapped and called, what
 * does not is refused. Generated signatures arrive unchanged, substituted by copies, and answered for; frames of the
 * host below and above a stub are unwound with their clean-ups. Compiled and run by test_registers.py, on this machine
 * and for arm64.
 */
#include "../signatures.h"
#include "common/common.h"
#include "common/thread.h"
#include "intercept/intercept.h"
#include "intercept/registers.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <unwind.h>

static struct record seen;

static void must(bool true_, const char *what, size_t i) {
    if (true_) return;
    printf("%s, seed %u, signature %zu: %s\n", what, signature_seed, i, i < n_signatures ? signatures[i].schema : "");
    exit(1);
}

void record(struct record *record, const void *value, size_t bytes) {
    must(record->n + bytes <= sizeof record->bytes, "too many bytes", SIZE_MAX);
    if (bytes) memcpy(record->bytes + record->n, value, bytes);
    record->n += bytes;
}
void see(const void *value, size_t bytes) { record(&seen, value, bytes); }
void spoil(void *value, size_t bytes) { memset(value, 0xee, bytes); }
void fill(void *value, size_t bytes, uint64_t seed) { memset(value, (int)seed, bytes); }
void intact(const void *value, size_t bytes, uint64_t seed) {
    const unsigned char *const all = value;
    for (size_t i = 0; i < bytes; i++) must(all[i] == (unsigned char)seed, "a struct", SIZE_MAX);
}

/* ---- handlers ---- */

static void pass(void *user, struct amp__call *call) {
    (void)user;
    amp__call_run(call, call->original, call->args);
}

static void copy_all(void *user, struct amp__call *call) {
    static _Alignas(16) char copies[AMP__MAX_ARGS][16];
    void *argv[AMP__MAX_ARGS];
    (void)user;
    for (uint32_t i = 0; i < call->schema->n_args; i++) {
        argv[i] = memset(copies[i], 0xee, sizeof copies[i]);
        memcpy(copies[i], call->args[i], amp__arg_size(call->schema, &call->schema->args[i]));
    }
    amp__call_run(call, call->original, argv);
}

static void answer(void *user, struct amp__call *call) { amp__call_return(call, ((const struct record *)user)->bytes); }

/* ---- signatures ---- */

/* NULL: refused, for want of closures or of structs. */
static struct amp__patch *wire(const char *schema, amp_fn *slot, amp__handler handler, void *user) {
    static char owner;
    struct amp__patch *patch = NULL;
    bool wrapped = false;
    struct amp__schema *parsed = NULL;
    const amp_status read = amp__schema_parse("op", schema, signature_structs, n_signature_structs, &parsed);
    if (read == AMP_ERR_SCHEMA) return NULL;
    must(read == AMP_OK, amp_last_error(), SIZE_MAX);
    const struct amp__wrap wrap = { .what = "op", .slot = slot, .schema = parsed, .handler = handler, .user = user,
                                    .owner = (const amp_context *)(const void *)&owner };
    must(amp__patch_new(&patch) == AMP_OK, "amp__patch_new", SIZE_MAX);
    const amp_status status = amp__patch_add(patch, &wrap, &wrapped);
    amp__schema_release(parsed);
    must(status == AMP_OK || status == AMP_ERR_CLOSURE_DENIED || status == AMP_ERR_SCHEMA, amp_last_error(), SIZE_MAX);
    if (status == AMP_OK) {
        amp__patch_commit(patch);
        return patch;
    }
    must(amp__patch_undo(patch) == AMP_OK, "amp__patch_undo", SIZE_MAX);
    return NULL;
}

static bool same(const struct record *a, const struct record *b) {
    return a->n == b->n && memcmp(a->bytes, b->bytes, a->n) == 0;
}

static bool check(size_t i) {
    static const amp__handler handlers[] = { pass, copy_all, answer };
    static struct record expected, received, result;
    amp_fn slot = signatures[i].function;
    expected.n = seen.n = 0;
    signatures[i].call(slot, &expected);
    received = seen;
    for (size_t h = 0; h < AMP_COUNT(handlers); h++) {
        struct amp__patch *patch = wire(signatures[i].schema, &slot, handlers[h], &expected);
        if (!patch) return false;
        seen.n = result.n = 0;
        signatures[i].call(slot, &result);
        must(handlers[h] == answer ? seen.n == 0 : same(&seen, &received), "what it receives differs", i);
        must(same(&result, &expected), "what it returns differs", i);
        must(amp__patch_undo(patch) == AMP_OK && slot == signatures[i].function, "the slot is not what it was", i);
    }
    return true;
}

/* ---- unwinding ---- */

/* A register that amp__registers_call saves, with its number in unwind information. */
#if defined(__x86_64__)
#define KEPT "rbx"
enum { KEPT_NUMBER = 3 };
#else
#define KEPT "x19"
enum { KEPT_NUMBER = 19 };
#endif
static const uintptr_t kept_value = 0x5eed5eed;

static jmp_buf back;
static uintptr_t bottom;
static int cleaned, kept_seen;
static void straight(amp_fn function);

static _Unwind_Reason_Code stop(int version, _Unwind_Action actions, _Unwind_Exception_Class class,
                                struct _Unwind_Exception *exception, struct _Unwind_Context *context, void *user) {
    (void)version, (void)class, (void)exception, (void)user;
    if (_Unwind_GetRegionStart(context) == (uintptr_t)straight)
        kept_seen = _Unwind_GetGR(context, KEPT_NUMBER) == kept_value ? 1 : -1;
    if ((actions & _UA_END_OF_STACK) || (uintptr_t)_Unwind_GetCFA(context) >= bottom) longjmp(back, 1);
    return _URC_NO_REASON;
}

static int leaves(int a, double b) {
    static struct _Unwind_Exception exception;
    if (a == 1 && b == 2.0) _Unwind_ForcedUnwind(&exception, stop, NULL);
    return 0;
}

static void clean(const int *value) { cleaned += *value; }

/* Its own variables are in registers that the frames below it have saved. */
static __attribute__((noinline)) int calls(int (*slot)(int, double), int value) {
    __attribute__((cleanup(clean), unused)) const int kept = value;
    return slot(1, 2.0) + value;
}

/* No code of a compiler's between, which would save the register once more. */
static __attribute__((noinline)) void straight(amp_fn function) {
    struct amp__registers image = { .argument = { 1 } };
    const double two = 2.0;
    register uintptr_t kept __asm__(KEPT) = kept_value;
    memcpy(&image.argument[AMP__GENERAL], &two, sizeof two);
    __asm__ volatile("" : "+r"(kept));
    amp__registers_call(&image, function, 1);
    __asm__ volatile("" : : "r"(kept));
}

static void enter(void *user, struct amp__call *call) {
    amp__anchor anchor;
    struct amp__scope_state inside = call->thread->scope;
    __attribute__((cleanup(clean), unused)) const int kept = *(const int *)user;
    inside.inside = true;
    must(amp__mark_push(call->thread, __builtin_frame_address(0), &anchor, inside, NULL, NULL), "a mark", SIZE_MAX);
    amp__call_run(call, call->original, call->args);
    amp__mark_pop(call->thread, &anchor);
}

static void check_unwinding(void) {
    int hundred = 100;
    amp_fn slot = (amp_fn)leaves;
    struct amp__patch *patch = wire("leaves(int a, double b) -> int", &slot, enter, &hundred);
    must(patch != NULL, "a function of registers was refused", SIZE_MAX);
    bottom = (uintptr_t)__builtin_frame_address(0);
    if (!setjmp(back)) (void)calls((int (*)(int, double))slot, 42);
    must(cleaned == 142, "a frame was not unwound", SIZE_MAX);
    must(!amp__thread_state()->n_marks && !amp__thread_state()->scope.inside, "a mark is left", SIZE_MAX);
    must(amp__patch_undo(patch) == AMP_OK, "amp__patch_undo", SIZE_MAX);
    if (!setjmp(back)) straight((amp_fn)leaves);
    must(kept_seen == 1, "a register was not unwound", SIZE_MAX);
}

int main(void) {
    size_t n = 0;
    for (size_t i = 0; i < n_signatures; i++) n += check(i);
    check_unwinding();
    printf("%zu of %zu agree\n", n, n_signatures);
    return 0;
}
