/* SPDX-License-Identifier: Apache-2.0 */
/* The way of a call from the slot to a client: no lock, no allocation. Then how closures and clients are made. */
#include "intercept/closure.h"
#include "common/thread.h"
#include "intercept/signature.h"

#include <string.h>

/* ---- choice of the client ---- */

struct candidates {
    const struct amp__client *first, *in_scope;
    size_t n;
};

static void add_candidate(struct candidates *candidates, const struct amp__client *client, bool in_scope) {
    if (!candidates->n++) candidates->first = client;
    if (in_scope) candidates->in_scope = client;
}

static const struct amp__client *by_scope(const struct candidates *candidates, const struct amp__scope_state *scope) {
    if (scope->inside) return NULL;
    if (scope->set) return candidates->in_scope;
    return candidates->n == 1 ? candidates->first : NULL;
}

/* Returns the client for a call. Clients with match_self take their own calls in any scope, and the scope only decides
 * between several for one self. Others depend on the scope. NULL: no client. */
static const struct amp__client *choose_of_several(struct amp__closure *closure,
                                                   const struct amp__scope_state *scope, void *const *args) {
    struct candidates of_self = { 0 }, others = { 0 };
    const int32_t self_arg = closure->schema->self_arg;
    const void *self = NULL;
    if (self_arg >= 0) memcpy(&self, args[self_arg], sizeof self);

    for (const struct amp__client *client = &closure->clients; client;
         client = atomic_load_explicit(&client->next, memory_order_acquire)) {
        const amp_context *owner = atomic_load_explicit(&client->owner, memory_order_acquire);
        if (!owner) continue;
        if (!atomic_load_explicit(&client->match_self, memory_order_relaxed))
            add_candidate(&others, client, owner == scope->context);
        else if (atomic_load_explicit(&client->self, memory_order_relaxed) == self)
            add_candidate(&of_self, client, owner == scope->context);
    }
    if (!of_self.n && !others.n && !scope->rehearses)
        atomic_fetch_add_explicit(&closure->strangers, 1, memory_order_relaxed);
    return of_self.n == 1 ? of_self.first : by_scope(of_self.n ? &of_self : &others, scope);
}

/* Nearly always there is one, without a self. */
static inline const struct amp__client *choose(struct amp__closure *closure, const struct amp__scope_state *scope,
                                               void *const *args) {
    const struct amp__client *client = &closure->clients;
    const amp_context *owner = atomic_load_explicit(&client->owner, memory_order_acquire);
    if (!owner || atomic_load_explicit(&client->match_self, memory_order_relaxed) ||
        atomic_load_explicit(&client->next, memory_order_acquire))
        return choose_of_several(closure, scope, args);
    return scope->inside || (scope->set && scope->context != owner) ? NULL : client;
}

/* State of the thread before a call of the host. */
struct entry {
    struct amp__thread *thread;
    struct amp__scope_state scope;
    uint32_t n_marks;
    bool returned;
};

/* Ends a call, also for an exception of a C++ host: its handler finds the state before the call. */
static void leave_call(const struct entry *entry) {
    if (!entry->returned) amp__thread_unwind(entry->thread, entry->n_marks, entry->scope);
}

/* Either way in: registers NULL for libffi's. `frame`: of the caller, in which this is inlined. */
static inline __attribute__((always_inline)) void hand_on(struct amp__closure *closure,
                                                          struct amp__registers *registers, void *ret, void **args,
                                                          const void *frame) {
    struct amp__thread *thread = amp__thread_state();
    amp__thread_recover(thread, frame);
    AMP_CLEANUP(leave_call) struct entry entry = { thread, thread->scope, thread->n_marks, false };
    const struct amp__client *client = choose(closure, &thread->scope, args);
    struct amp__call call = { closure->schema, closure->signature, closure->original, thread, registers, args, ret };
    if (client) client->handler(client->user, &call);
    else {
        if (!thread->scope.rehearses) atomic_fetch_add_explicit(&closure->passed, 1, memory_order_relaxed);
        amp__call_run(&call, closure->original, args);
    }
    entry.returned = true;
}

static void on_call(ffi_cif *cif, void *ret, void **args, void *user) {
    (void)cif;
    hand_on(user, NULL, ret, args, __builtin_frame_address(0));
}

void amp__stub_call(struct amp__closure *closure, struct amp__registers *registers) {
    const struct amp__register_map *map = &closure->signature->map;
    void *args[AMP_COUNT(registers->argument)];
    for (uint32_t i = 0; i < closure->schema->n_args; i++) args[i] = &registers->argument[map->argument[i]];
    hand_on(closure, registers, &registers->result[map->result], args, __builtin_frame_address(0));
}

/* ---- closures ---- */

/* A closure's memory is libffi's and is not kept: nothing is ever done with it again. */
static amp_status make_code(struct amp__closure *closure) {
    void *code;
    ffi_closure *writable = ffi_closure_alloc(sizeof *writable, &code);
    AMP_RETURN_IF(!writable, AMP_ERR_CLOSURE_DENIED,
                  "the system denies executable closures. Under SELinux allow execmem, under systemd leave "
                  "MemoryDenyWriteExecute off; or mark the op AMP_OP_DIRECT and call amp_cast_args around the "
                  "function, which needs no closure");
    if (ffi_prep_closure_loc(writable, &closure->signature->cif, on_call, closure, code) != FFI_OK) {
        ffi_closure_free(writable);
        return amp__fail(AMP_ERR_UNSUPPORTED, "libffi cannot make a closure of this signature");
    }
    memcpy(&closure->code, &code, sizeof closure->code); /* ISO C has no cast from data to function pointers */
    return AMP_OK;
}

amp_status amp__closure_new(amp_fn original, struct amp__schema *schema, struct amp__closure **out) {
    struct amp__closure *closure = amp__alloc(1, sizeof *closure);
    if (!closure) return amp__fail_memory();
    amp_status status;
    closure->original = original;
    AMP_TRY_GOTO(amp__signature_new(schema, &closure->signature), fail);
    closure->schema = schema;
    closure->n_vector = closure->signature->map.n_vector;
    if (closure->signature->map.fit) closure->code = amp__stub_take(closure);
    if (!closure->code) AMP_TRY_GOTO(make_code(closure), fail);
    (void)amp__schema_hold(schema);
    *out = closure;
    return AMP_OK;
fail:
    amp__free(closure->signature);
    amp__free(closure);
    return status;
}

/* ---- clients ---- */

static struct amp__client *free_client(struct amp__closure *closure) {
    for (struct amp__client *client = &closure->clients; client; client = atomic_load(&client->next))
        if (!client->reserved_for) return client;
    struct amp__client *client = amp__alloc(1, sizeof *client);
    if (!client) return NULL;
    atomic_init(&client->next, atomic_load(&closure->clients.next));
    atomic_store_explicit(&closure->clients.next, client, memory_order_release);
    return client;
}

struct amp__client *amp__client_reserve(struct amp__closure *closure, const struct amp__wrap *wrap, const char *what) {
    struct amp__client *client = free_client(closure);
    if (!client) return NULL;
    client->handler = wrap->handler;
    client->user = wrap->user;
    atomic_store_explicit(&client->self, wrap->self, memory_order_relaxed);
    atomic_store_explicit(&client->match_self, wrap->match_self, memory_order_relaxed);
    client->reserved_for = wrap->owner;
    client->what = what;
    closure->n_reserved++;
    return client;
}

void amp__client_activate(struct amp__client *client) {
    atomic_store_explicit(&client->owner, client->reserved_for, memory_order_release);
}

void amp__client_release(struct amp__closure *closure, struct amp__client *client) {
    atomic_store_explicit(&client->owner, NULL, memory_order_release);
    client->reserved_for = NULL;
    client->what = NULL;
    closure->n_reserved--;
}
