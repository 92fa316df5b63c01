/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Casts for the time of one call. Temporaries are in one heap block that a mark on the thread knows, so that a longjmp
 * out of the op leaks nothing. Calls with all casts in the cache allocate nothing.
 */
#ifndef AMP_CALL_CALL_H
#define AMP_CALL_CALL_H

#include "call/cache.h"
#include "common/thread.h"
#include "context/bound.h"
#include "context/op.h"
#include "context/policy.h"
#include "context/progress.h"
#include "master/param.h"
#include "opt_levels/policy.h"

struct amp__block {
    struct amp__block *next;
};

struct amp__patched {
    struct amp__patched *next;
    float **field, *value, *shown; /* of the host, and what the op sees */
};

struct amp__temporaries {
    amp_context *context;
    const amp_host *host;
    struct amp__block *blocks; /* memory of this call */
    struct amp__patched *patched; /* the host's pointers that were replaced for it, last first */
    bool taped;                /* a place on the tape is reserved for each */
    uint64_t bytes;            /* of all of them, in the ledger */
    size_t n, capacity;
    void *handles[];
};

/* One call's casting under way; on the handler's stack. */
struct amp__casting {
    amp_context *context;
    const amp_host *host;
    struct amp__op *op; /* for the counters (may be NULL) */
    struct amp__thread *thread;
    struct amp__temporaries *temporaries;
    size_t capacity; /* temporaries this call can need at most */
    bool recording;  /* the tape records */
    bool entered;    /* the cache knows of us */
    struct amp__mark *mark; /* the call's, or NULL */
};

/* `thread`: this one. `marked`: the mark on top of it is the call's. */
void amp__casting_begin(struct amp__casting *casting, amp_context *context, const amp_host *host, struct amp__op *op,
                        size_t capacity, struct amp__thread *thread, bool marked);
/* *handle becomes its cast from one type to another, from the cache or fresh, which is valid until amp__casting_end. */
amp_status amp__casting_cast(struct amp__casting *casting, amp_dtype from, amp_dtype to, void **handle);
/* One operand, by the ruling. */
static inline amp_status amp__casting_operand(struct amp__casting *casting, const struct amp__ruling *ruling,
                                              const struct amp__operand *operand, void **handle) {
    return *handle && amp__needs_cast(ruling, operand)
        ? amp__casting_cast(casting, operand->dtype, ruling->target, handle)
        : AMP_OK;
}
/* Casts with the hook of the host, and counts it. `taped`: with a place on the tape, for its result. */
amp_status amp__cast(amp_context *context, const amp_host *host, struct amp__op *op, void *tensor, amp_dtype to,
                     bool taped, void **out);
/* Returns true if the cache may have data of a parameter that are no handles, found by parameter and form
 * (AMP__FORM_...). */
bool amp__casting_may_keep(const struct amp__casting *casting, const struct amp__param *param);
void *amp__casting_find(struct amp__casting *casting, const struct amp__param *param, int form, uint64_t *version);
/* Verify: AMP-M78 where a cast that is kept is older than the parameter's elements. */
void amp__casting_compare(struct amp__casting *casting, const struct amp__param *param);
/* Finds such data without a tape, with a version of the caller. */
void *amp__casting_find_version(struct amp__casting *casting, const struct amp__param *param, int form,
                                uint64_t version);
void amp__casting_keep(struct amp__casting *casting, const struct amp__param *param, int form,
                       struct amp__cache_entry *entry, uint64_t bytes);
/* The short way where each operand is a handle by itself, of these types (0: no operand), and the cache has the cast of
 * each that must be cast: argv gets the call's arguments, with those pointing into `handles`, until amp__cached_leave.
 * Under the call's mark. False: nothing has happened. */
bool amp__cached_enter(struct amp__op *op, const struct amp__call *call, const uint8_t *types,
                       const struct amp__ruling *ruling, void **argv, void **handles);
void amp__cached_leave(struct amp__op *op, const struct amp__call *call);
/* The same for one handle outside a wrapped call: its cast, valid until the cache is left. NULL: the cache has none,
 * nothing has happened. */
void *amp__cached_enter_one(amp_context *context, const amp_host *host, const struct amp__thread *thread, void *tensor,
                            amp_dtype to);
/* `bytes` of memory, 64-byte aligned, until the call's end, NULL when out of memory. */
void *amp__casting_memory(struct amp__casting *casting, size_t bytes);
/* Returns the original pointer of a field of the host, or the present one if it was not replaced. */
float *amp__casting_original(const struct amp__casting *casting, float **field);
/* Replaces a pointer of the host's until the call's end, however it ends. */
amp_status amp__casting_patch(struct amp__casting *casting, float **field, void *value);
/* Room for `n` handles until the call's end, NULL when out of memory. */
void **amp__casting_array(struct amp__casting *casting, size_t n);
/* Ends the temporaries, or hands them to the tape. */
void amp__casting_end(struct amp__casting *casting);
/* The same without the op having seen them: all are released. */
void amp__casting_abandon(struct amp__casting *casting);

/* ---- outputs.c: results of an op ---- */

/* The handles that an op makes, returned or in out-parameters: enter has it write into slots of the call's, leave hands
 * them on in the type `wanted`. Casts take the places of the op's own, which are released or left to the tape. */
amp_status amp__outputs_enter(struct amp__casting *casting, struct amp__bound *bound, void **pointers);
amp_status amp__outputs_leave(struct amp__op *op, const struct amp__bound *bound, amp_dtype wanted);
/* Emulate: casts results through the low type, and rounds elements that the op wrote under its handles. */
amp_status amp__outputs_round(struct amp__op *op, const struct amp__bound *bound, amp_dtype low);
/* Rounds a handle that the op wrote. */
void amp__round_handle(struct amp__op *op, void *tensor, amp_dtype low);
struct amp__counts;
void amp__op_add_counts(struct amp__op *op, const struct amp__counts *counts);
/* Adds the losses of `cast` against `source` to the counters of the op, if both are readable FP32. */
void amp__count_cast(struct amp__op *op, void *source, void *cast, amp_dtype low);

/* Returns true if ops of this context follow their class on this thread now. False in backward without a scope, since
 * the casts are on the tape. In an emulated 16-bit model ops of forward and backward are rounded, others are not part
 * of the model; without a described forward all are rounded. */
static inline bool amp__ops_obey(const struct amp__policy *policy, const struct amp__progress *progress,
                                 const struct amp__thread *thread) {
    if (thread->scope.set) return true;
    if (amp__emulates_model(&policy->properties))
        return !policy->has_forward || atomic_load_explicit(&progress->open, memory_order_relaxed) != 0;
    return atomic_load_explicit(&progress->backward, memory_order_relaxed) == 0;
}

/* ---- handler.c: the policy around one call ---- */

/* Fills op->types, after everything else of the op is set. */
void amp__op_tabulate(struct amp__op *op);
void amp__op_handler(void *user, struct amp__call *call);
void amp__forward_handler(void *user, struct amp__call *call);

#endif
