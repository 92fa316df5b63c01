/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A closure is in a slot for one original function and passes each call to one of its clients. Closures and clients are
 * never freed: hosts copy wrapped pointers, and a copy must stay callable for ever. An idle closure runs its original.
 * Private to src/intercept. Everything but the call itself happens under the mutex of the registry.
 */
#ifndef AMP_CLOSURE_H
#define AMP_CLOSURE_H

#include "intercept/intercept.h"

#include <stdatomic.h>

/*
 * One context's interest in a slot. Calls read the chain without a lock while other contexts come and go: `owner` is
 * written last on the way in and first on the way out, and a call looks at handler and user only after it found an
 * owner that it belongs to. That this owner stays until the call has returned is the thread rule of amp.h: no context
 * is ended while another thread runs its ops.
 */
struct amp__client {
    _Atomic(struct amp__client *) next;
    _Atomic(const amp_context *) owner; /* NULL: not active, calls pass it over */
    _Atomic(const void *) self;
    atomic_bool match_self;
    amp__handler handler;
    void *user;
    /* Under the mutex only. */
    const amp_context *reserved_for; /* from add to undo (NULL: free for the next) */
    const char *what;
};

struct amp__closure {
    uint32_t n_vector; /* of the signature's register map, for the stubs: first */
    amp_fn code;       /* code for the slot: a stub, or a libffi closure */
    amp_fn original;
    struct amp__schema *schema;
    struct amp__signature *signature;
    struct amp__client clients; /* the first of the chain */
    _Atomic uint64_t passed;    /* calls that no client took */
    _Atomic uint64_t strangers; /* of those, with a self that is no client's */
    /* Under the mutex only. */
    struct amp__closure *next_at, *next_by_code, *next_idle, **idle_link; /* closures.c */
    amp_fn *slot;              /* present or last slot */
    amp_fn saved;              /* the slot's bits before; not `original` if those were a closure of ours */
    uint32_t n_reserved;       /* clients (0: idle) */
    bool installed; /* committed, and not undone */
    bool in_copy;   /* nothing is written into the slot: its wrapper lives in copies of the table */
};

/* Holds schema on success. AMP_ERR_CLOSURE_DENIED, AMP_ERR_NO_MEMORY. */
amp_status amp__closure_new(amp_fn original, struct amp__schema *schema, struct amp__closure **out);

/* Fills a free client of the closure for `wrap`, not yet active. NULL: no memory. `what` must live until
 * amp__client_release. */
struct amp__client *amp__client_reserve(struct amp__closure *closure, const struct amp__wrap *wrap, const char *what);
/* Calls may reach the client from here on. */
void amp__client_activate(struct amp__client *client);
/* Takes it away, active or not. */
void amp__client_release(struct amp__closure *closure, struct amp__client *client);

#endif
