/* SPDX-License-Identifier: Apache-2.0 */
/* A small host (functions and a table of pointers to them) and clients that look on. */
#ifndef TEST_INTERCEPT_FIXTURE_H
#define TEST_INTERCEPT_FIXTURE_H

#include "common/common.h"
#include "common/thread.h"
#include "../support/closures.h"
#include "suite.h"

#include <stdatomic.h>

/* ---- the host ---- */

typedef int (*binary_fn)(int, int);
typedef int (*method_fn)(void *, int);

#define BINARY "add(int a, int b) -> int"
#define METHOD "step(pointer self, int n) -> int"

static inline int host_add(int a, int b) { return a + b; }
static inline int host_sub(int a, int b) { return a - b; }
static inline int host_step(void *self, int n) { return self ? -n : n; }

static inline int call_binary(amp_fn f, int a, int b) { return ((binary_fn)f)(a, b); }
static inline int call_method(amp_fn f, void *self, int n) { return ((method_fn)f)(self, n); }

/* ---- libamp's side ---- */

/* Contexts are opaque here: any address will do. */
static char owner_bytes[16];
static inline amp_context *owner(int i) { return (amp_context *)&owner_bytes[i]; }

struct watcher {
    _Atomic unsigned calls;
};

/* Counts, and runs the original on a copy of the argument vector, inside a scope as the policy does it. */
static inline void watch(void *user, struct amp__call *call) {
    struct watcher *watcher = user;
    struct amp__thread *thread = amp__thread_state();
    struct amp__scope_state inside = thread->scope;
    void *argv[AMP__MAX_ARGS];
    inside.inside = true;
    watcher->calls++;
    for (uint32_t i = 0; i < call->schema->n_args; i++) argv[i] = call->args[i];
    amp__anchor anchor;
    const bool marked = amp__mark_push(thread, __builtin_frame_address(0), &anchor, inside, NULL, NULL);
    amp__call_run(call, call->original, argv);
    if (marked) amp__mark_pop(thread, &anchor);
}

/* An amp__wrap whose schema is a text yet. */
struct wrap {
    const char *what;
    amp_fn *slot;
    const char *schema;
    const amp_struct *structs;
    size_t n_structs;
    amp__handler handler;
    void *user;
    const amp_context *owner;
    const void *self;
    bool match_self, in_copy;
};

static inline amp_status patch_add(struct amp__patch *patch, const struct wrap *wrap, bool *wrapped) {
    struct amp__schema *schema = NULL;
    AMP_TRY(amp__schema_parse(wrap->what, wrap->schema, wrap->structs, wrap->n_structs, &schema));
    const struct amp__wrap parsed = { wrap->what,  wrap->slot, schema,           wrap->handler, wrap->user,
                                      wrap->owner, wrap->self, wrap->match_self, wrap->in_copy };
    const amp_status status = amp__patch_add(patch, &parsed, wrapped);
    amp__schema_release(schema);
    return status;
}

static inline struct wrap wrap_of(const char *what, amp_fn *slot, const char *schema, int owner_index,
                                  struct watcher *watcher) {
    return (struct wrap){ .what = what, .slot = slot, .schema = schema, .handler = watch, .user = watcher,
                          .owner = owner(owner_index) };
}

static inline struct wrap wrap_of_self(const char *what, amp_fn *slot, int owner_index, const void *self,
                                       struct watcher *watcher) {
    struct wrap wrap = wrap_of(what, slot, METHOD, owner_index, watcher);
    wrap.match_self = true;
    wrap.self = self;
    return wrap;
}

static inline void add(struct amp__patch *patch, struct wrap wrap) {
    bool wrapped = false;
    ck_ok(patch_add(patch, &wrap, &wrapped));
    ck_assert(wrapped);
}

static inline struct amp__patch *new_patch(void) {
    struct amp__patch *patch = NULL;
    ck_ok(amp__patch_new(&patch));
    return patch;
}

/* A transaction of one wrap, or of some, committed. */
static inline struct amp__patch *wire_all(const struct wrap *wraps, size_t n) {
    struct amp__patch *patch = new_patch();
    for (size_t i = 0; i < n; i++) add(patch, wraps[i]);
    amp__patch_commit(patch);
    return patch;
}
static inline struct amp__patch *wire(struct wrap wrap) { return wire_all(&wrap, 1); }
#define WIRE(...) \
    wire_all((const struct wrap[]){ __VA_ARGS__ }, sizeof((const struct wrap[]){ __VA_ARGS__ }) / sizeof(struct wrap))

/* Runs the rest of the test in this scope; -1: none at all, -2: amp_scope_enter(NULL). */
static inline void in_scope(int owner_index) {
    struct amp__scope_state *scope = &amp__thread_state()->scope;
    scope->set = owner_index != -1;
    scope->context = owner_index >= 0 ? owner(owner_index) : NULL;
}

#endif
