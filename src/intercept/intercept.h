/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots and closures. A slot is the address where the host keeps a function pointer. Wrapping puts code there
 * that calls handler(user, call); the handler sees the call's arguments as data, may substitute them in a copy, and
 * runs the original. This room knows nothing of policy, contexts are opaque owners to it.
 *
 * That code is a stub of libamp's own where all arguments and the result travel in registers (registers.h), else a
 * libffi closure. The handler cannot tell them apart.
 *
 * One slot is wrapped once per process, however many clients it has; the slot's state lives in the process's registry
 * (registry.c). Wrapping is a transaction: amp__patch_add validates and prepares, amp__patch_commit swaps all slots and
 * cannot fail, amp__patch_undo takes a transaction's clients away again; the last client of a slot restores it.
 *
 * Whose call it is. A client with match_self takes the calls whose self argument is its own, whatever the
 * scope. Any other call goes by the thread's scope (common/thread.h): inside a wrapped op or a host hook nobody takes
 * it; in a scope its context does, if it is a client; without a scope the only client does, if there is only one. The
 * scope also decides between several clients with one self. A call that nobody takes runs the original untouched and
 * is counted.
 *
 * A wrap with `in_copy` writes nothing into its slot, which may lie in read-only memory: the wrapper's pointer goes
 * into a copy of the table (amp__table_copy), and the host calls through that. Everything else is the same.
 *
 * Threads: calls take no lock and allocate nothing, and go on while other contexts come and go on the same slot. A
 * context's own clients are undone only while no other thread runs its ops (amp.h). Handlers are called without any
 * lock held and may be left by longjmp or an exception. A forked child may go on with everything; slots that another
 * thread had added and not committed at the moment of the fork stay wrapped in the child, and pass calls through.
 */
#ifndef AMP_INTERCEPT_H
#define AMP_INTERCEPT_H

#include "schema/schema.h"

#include <string.h>

struct amp__signature; /* a prepared libffi call interface */
struct amp__registers; /* the caller's argument registers (registers.h) */
struct amp__thread;

/* One call through a wrapped slot, valid while the handler runs. */
struct amp__call {
    const struct amp__schema *schema;
    const struct amp__signature *signature;
    amp_fn original;
    struct amp__thread *thread; /* the caller's */
    struct amp__registers *registers; /* NULL: libffi's closure was called */
    void *const *args; /* args[i] points at the value of argument i, never written through */
    void *ret;         /* where the return value goes */
};

typedef void (*amp__handler)(void *user, struct amp__call *call);

/* Runs `function` with `argv` (args, or a copy with entries repointed) and puts its result where the caller of the
 * wrapped slot gets it. */
void amp__call_run(const struct amp__call *call, amp_fn function, void *const *argv);
/* The same where it is no call of the host's: ops that it calls run as they come, and are not counted. */
void amp__call_rehearse(const struct amp__call *call, amp_fn function, void *const *argv);
/* Return and replace the pointer that the last run returned, for schemas that return Tensor. */
void *amp__call_returned(const struct amp__call *call);
void amp__call_return_pointer(const struct amp__call *call, void *pointer);
/* Returns the value at `value` (of the schema's return type), or zeros for NULL, without calling anything. */
void amp__call_return(const struct amp__call *call, const void *value);
/* Argument helpers, by value. */
static inline void *amp__call_pointer(const struct amp__call *call, uint32_t arg) {
    void *pointer;
    memcpy(&pointer, call->args[arg], sizeof pointer);
    return pointer;
}
/* Returns an argument of any integer kind. uint64 above INT64_MAX: INT64_MAX. */
int64_t amp__call_integer(const struct amp__call *call, uint32_t arg);
/* Returns the number of handles in a list argument, 0 if it is negative. */
size_t amp__call_list_length(const struct amp__call *call, uint32_t arg);
int64_t amp__integer_at(uint8_t kind, const void *address);
/* Returns the address of the value of an argument, amp__arg_size bytes, for a struct by value its bytes. It is the copy
 * of the op, not the object of the caller. To change it, copy it and change the entry of argv. */
const void *amp__call_value(const struct amp__call *call, uint32_t arg);

/* A raw buffer in one call. Elements are compact but for the rows of a strided one. */
struct amp__extents {
    int32_t ndim;
    int64_t shape[AMP__MAX_DIMS];
    int64_t row_stride; /* elements from one row (last dimension) to the next */
    int64_t count;      /* number of elements (0 is allowed) */
    int64_t span;       /* elements from the first to the last, with the gaps between rows (0 if count is 0) */
};

/* Works out the extents of argument `arg`, an AMP__BUFFER without AMP__EXTENT_UNKNOWN. AMP_ERR_INVALID_ARGUMENT, naming
 * op, argument and expression: an overflow, a division by zero, a negative extent, rows that overlap. */
amp_status amp__buffer_extents(const struct amp__call *call, uint32_t arg, struct amp__extents *out);

/* A request for a transaction. Strings are for messages. */
struct amp__wrap {
    const char *what; /* "op linear#2", "optimizer 0 step" */
    amp_fn *slot;
    struct amp__schema *schema; /* a closure that has to be made holds it, too */
    amp__handler handler;
    void *user;
    const amp_context *owner; /* owner of the scope, not NULL, never dereferenced */
    const void *self; /* with match_self: the client takes calls with this value of the argument named self */
    bool match_self;
    bool in_copy; /* the slot is read only: amp__table_copy gives the wrapper's pointer */
};

struct amp__patch; /* a transaction, and after commit its installed clients */

amp_status amp__patch_new(struct amp__patch **out);
/*
 * Validates one wrap and prepares its closure; nothing visible changes. *wrapped = false: the slot is empty
 * (*slot == NULL, also in read-only memory) and was passed over. Strings are copied. After an error the patch is as
 * before and may go on. The host must not write to the slot between add and commit. Errors:
 *   AMP_ERR_SCHEMA            match_self with a schema without self
 *   AMP_ERR_INVALID_ARGUMENT  slot NULL, misaligned, without memory; handler or owner NULL
 *   AMP_ERR_READ_ONLY         the slot's memory is not writable (found without writing), and the wrap not in_copy
 *   AMP_ERR_CONFLICT          the owner has the slot already, naming both (but not if both have match_self and the
 *                             selves differ); the slot is wrapped under another schema or other structs
 *   AMP_ERR_CLOSURE_DENIED    with what to do (SELinux execmem, MemoryDenyWriteExecute; amp_cast_args works without)
 */
amp_status amp__patch_add(struct amp__patch *patch, const struct amp__wrap *wrap, bool *wrapped);
void amp__patch_commit(struct amp__patch *patch);
/*
 * Before commit: drops the patch. After commit: removes its clients. A slot without clients is restored bit for bit,
 * unless other code has written to it since (AMP_ERR_SLOT_TAKEN) or its memory is not writable any more
 * (AMP_ERR_READ_ONLY): then it stays, and the error, with the `what` of the slots, is returned after everything else is
 * undone. Frees the patch. NULL: no effect.
 */
amp_status amp__patch_undo(struct amp__patch *patch);

/* Fills `copy` with the `bytes` at `table`, but for the slots in it that committed wraps hold with in_copy, whoever's:
 * there the wrapper's pointer. A slot goes from one pointer to another without an intermediate value, so that a copy
 * may be filled again while other threads call through it. */
void amp__table_copy(void *copy, const void *table, size_t bytes);

/* Does a committed wrap's slot hold something else by now? It may be gone. */
bool amp__patch_taken(struct amp__patch *patch, size_t wrap);
/* Calls through a committed wrap's slot that ran as they came because no client took them: no scope, a scope without a
 * client here, inside an op, another self. `wrap` counts the successful adds of the patch from 0, passed-over ones
 * included (they count 0). Any thread. */
uint64_t amp__patch_passed(const struct amp__patch *patch, size_t wrap);
/* Returns the number of these calls with a self that belongs to no client. */
uint64_t amp__patch_strangers(const struct amp__patch *patch, size_t wrap);

#endif
