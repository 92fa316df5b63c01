/* SPDX-License-Identifier: Apache-2.0 */
/* Scopes: the context with the policy on this thread. Values that save and restore, so that they nest and survive error
 * paths. */
#include "amp_call.h"
#include "call/cache.h"
#include "common/thread.h"
#include "context/live.h"
#include "context/op.h"
#include "context/parts.h"

enum { SAVED = 0x5c0be, CAPTURED = 0xca97 }; /* distinguish a used or unset amp_scope from a valid one */
enum { SET = 1, INSIDE = 2, REHEARSES = 4 };

static void store_scope(amp_scope *scope, const struct amp__scope_state *state, uintptr_t kind) {
    scope->v[0] = (uintptr_t)state->context;
    scope->v[1] = (state->set ? SET : 0u) | (state->inside ? INSIDE : 0u) | (state->rehearses ? REHEARSES : 0u);
    scope->v[2] = kind;
    scope->v[3] = 0;
}

static struct amp__scope_state load_scope(const amp_scope *scope) {
    return (struct amp__scope_state){ (amp_context *)scope->v[0], (scope->v[1] & SET) != 0,
                                      (scope->v[1] & INSIDE) != 0, (scope->v[1] & REHEARSES) != 0 };
}

static struct amp__thread *present_thread(const void *frame) {
    struct amp__thread *thread = amp__thread_state();
    amp__thread_recover(thread, frame);
    return thread;
}

/* The context around it must not end before the scope does: amp_shutdown looks for it. */
static void save_scope(amp_scope *scope, struct amp__thread *thread) {
    store_scope(scope, &thread->scope, SAVED);
    if (thread->scopes < AMP__AROUND) thread->around[thread->scopes] = thread->scope.context;
    scope->v[3] = ++thread->scopes;
}

AMP_API amp_status amp_scope_enter(amp_context *context, amp_scope *scope) {
    AMP_RETURN_IF(!scope, AMP_ERR_INVALID_ARGUMENT, "amp_scope_enter: scope is NULL");
    struct amp__thread *thread = present_thread(__builtin_frame_address(0));
    save_scope(scope, thread);
    /* ops inside a rehearsal run as they come, whatever scope it enters */
    thread->scope = (struct amp__scope_state){ context, true, thread->scope.rehearses, thread->scope.rehearses };
    return AMP_OK;
}

/* Casts that nothing but the scope keeps valid (hosts without versions) go with the outermost one of their context. */
static void leave_context(const struct amp__thread *thread, amp_context *left) {
    if (!left || (thread->scope.set && thread->scope.context == left)) return;
    const struct amp__models *models = amp__models_of(left);
    for (size_t i = 0; i < models->n; i++)
        if (!models->list[i].host.version) {
            amp__cache_drop(amp__cache_of(left), false);
            return;
        }
}

AMP_API amp_status amp_scope_leave(amp_scope *scope) {
    AMP_RETURN_IF(!scope, AMP_ERR_INVALID_ARGUMENT, "amp_scope_leave: scope is NULL");
    AMP_RETURN_IF(scope->v[2] != SAVED, AMP_ERR_WRONG_STATE,
                  "amp_scope_leave: this scope was not entered, or was left already");
    struct amp__thread *thread = present_thread(__builtin_frame_address(0));
    scope->v[2] = 0;
    AMP_RETURN_IF(scope->v[3] > thread->scopes, AMP_ERR_WRONG_STATE,
                  "amp_scope_leave: a scope around this one was left before it: leave the innermost first, on the "
                  "thread that entered it");
    thread->scopes = (uint32_t)scope->v[3] - 1; /* those inside that an error path did not leave are gone with it */
    amp_context *left = thread->scope.set ? thread->scope.context : NULL;
    thread->scope = load_scope(scope);
    leave_context(thread, left);
    return AMP_OK;
}

AMP_API int32_t amp_scope_current(amp_context **context) {
    const struct amp__thread *thread = present_thread(__builtin_frame_address(0));
    if (context) *context = thread->scope.set && !thread->scope.inside ? thread->scope.context : NULL;
    return thread->scope.set || thread->scope.inside;
}

AMP_API amp_status amp_scope_capture(amp_scope *scope) {
    AMP_RETURN_IF(!scope, AMP_ERR_INVALID_ARGUMENT, "amp_scope_capture: scope is NULL");
    store_scope(scope, &present_thread(__builtin_frame_address(0))->scope, CAPTURED);
    return AMP_OK;
}

AMP_API amp_status amp_scope_adopt(const amp_scope *captured, amp_scope *previous) {
    AMP_RETURN_IF(!captured || !previous, AMP_ERR_INVALID_ARGUMENT, "amp_scope_adopt: an argument is NULL");
    AMP_RETURN_IF(captured->v[2] != CAPTURED, AMP_ERR_WRONG_STATE,
                  "amp_scope_adopt: the first argument does not come from amp_scope_capture");
    struct amp__thread *thread = present_thread(__builtin_frame_address(0));
    const struct amp__scope_state adopted = load_scope(captured);
    AMP_RETURN_IF(adopted.context && !amp__context_is_live(adopted.context), AMP_ERR_WRONG_STATE,
                  "amp_scope_adopt: the context of this scope was shut down");
    save_scope(previous, thread);
    thread->scope = adopted;
    return AMP_OK;
}
