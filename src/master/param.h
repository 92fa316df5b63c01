/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters and their FP32 masters: re-typing, swapping for a step, reconciling, and the gradients' way through a
 * bracket. One amp__param per storage, however many handles or optimizers hold it.
 */
#ifndef AMP_PARAM_H
#define AMP_PARAM_H

#include "amp_kernels.h"
#include "host/host.h"
#include "kernels/place.h"
#include "master/grad_state.h"

#include <assert.h>

/* The place of a gradient that was set aside for a bracket. */
enum amp__aside {
    AMP__ASIDE_NOTHING,
    AMP__ASIDE_IN_MASTER, /* no more than the master gradient has, which may be too small to show */
    AMP__ASIDE_TAKEN,     /* moved away, to be added at the end */
    AMP__ASIDE_COPIED,    /* with the host still, scaled: the copy is for going back (none: zeros), not to be added */
    AMP__ASIDE_NOT_MOVED, /* the work that was to copy and clear it was dropped: it is where it was */
};
/* When it was set aside. */
enum amp__aside_at {
    AMP__AT_BEGIN,
    AMP__AT_REOPENING, /* a copy of gradients from delayed brackets, for a cancel */
    AMP__ASIDE_TIMES
};
/* Its handle, or for hosts with fixed buffers a copy of its elements. */
struct amp__set_aside {
    void *handle;     /* ours while it is here */
    amp_storage copy; /* also of a handle's elements that are no compact block */
};

/* For hosts with fixed gradient buffers: their contents at the first begin since the last step. */
enum amp__first { AMP__FIRST_UNKNOWN, AMP__FIRST_ZEROS, AMP__FIRST_COPIED };

/* Storage lent to the handles of the host during a step, and storage not yet taken back. */
struct amp__lent {
    void *grad;     /* handle that has the storage of the master gradient */
    uint32_t steps; /* that are running on the master */
    bool stuck;     /* the host refused to take its 16-bit storage back: `master.fp32` still holds it */
    bool unused;    /* no step used the lent storage: writes of a host without versions to the 16-bit blocks stay there
                       until it reports them */
};

struct amp__gradient {
    void *handle;  /* the host's gradient that `master` is the exact value of (NULL: `master` holds nothing) */
    uint8_t state; /* enum amp__grad_state */
    uint8_t aside[AMP__ASIDE_TIMES]; /* enum amp__aside for each of `kept` */
    uint8_t first;    /* enum amp__first */
    bool may_be_left; /* to the step: only an optimizer of libamp's own lists the parameter */
    bool zero;        /* `master` means zeros not yet written */
    bool gaps;        /* the elements that were looked at last are in `flat` */
    bool overflowed;  /* in an end that is tainted: the optimizers of its bracket that list this skip in any case */

    /* With AMP__GRAD_LEFT: the gradient that an optimizer of libamp unscales in its step. handle is NULL otherwise,
     * except in a bracket about to be cancelled after its unscaling was dropped. */
    struct amp__left {
        void *handle, *given;  /* given: the handle that was to be unscaled by work that was added to a place */
        uint64_t version;      /* of the handle at the bracket's end */
        float inverse, factor; /* the gradient is that times inverse times factor (of clipping, or 1) */
        const float *device_inverse; /* on a device: that times this (NULL: inverse) */
        double squares;        /* their sum of squares, before factor */
    } left;
    struct amp__set_aside kept[AMP__ASIDE_TIMES];
    amp_storage master;     /* FP32, allocated at the first bracket */
    uint64_t version;       /* of the handle when it and `master` last agreed */
    uint32_t delayed_loss;  /* loss of its scale while it is delayed */
    float delayed_scale;    /* and which one */
    amp_storage first_copy; /* contents with AMP__FIRST_COPIED, FP32 if there is a master */
    amp_storage lent;       /* the block that lies under lent.grad during a step */
    amp_storage with_gaps;  /* lent.grad has gaps: this block with the same gaps is exchanged instead of `master` */
    void *flat;             /* compact copy of a gradient that is not compact */
    amp_dtype flat_dtype;   /* of this type, kept for the next time */
    amp_storage spare[3];   /* on a device: blocks that are kept for the next bracket */
};

/* The FP32 master of the elements. */
struct amp__master {
    amp_storage fp32;  /* FP32 storage beside the 16-bit one: the master, or without masters the block of a host without
                          alloc, for the way back. Empty: neither, or split */
    amp_storage rest;  /* split master: its 16 bits beyond the bfloat16 parameter (amp_optim.h). fp32 is then a
                          temporary copy, and is the master while it exists */
    bool spent;        /* unless parameter and rest have all of it again */
    uint64_t version;  /* version of the tensor when master and parameter last agreed */
    bool may_differ;   /* the update that should make them agree was dropped */
    uint64_t sum;      /* sum of the elements at that time, for AMP_HOST_VERSION_MISSES_WRITES */
    bool held_by_host; /* its optimizer has the master as a tensor of its own */
};

/* Members for brackets come first: one cache line for an ordinary parameter. */
struct amp__param {
    const amp_host *host;
    void *tensor; /* the first handle on this storage */
    uint64_t size;
    struct amp__lent lent;
    uint8_t emulated; /* 16-bit type of the values in the FP32 block of the host, with emulate (DEFAULT: none) */
    bool on_device;   /* its elements are in `place`'s memory, and only work that is put there touches them */
    bool has_master;  /* `master` is one */
    bool missed;      /* a write was found by `master.sum` alone: the next ones are looked for at each begin, too */
    struct amp__gradient gradient;

    struct amp__place *place; /* with on_device */
    const char *name;         /* behind the structure, in its block */
    amp_dtype dtype;          /* present type */
    struct amp__master master;
    amp_storage released; /* 16-bit elements after the release of the FP32 block (empty: not released) */
    int64_t *layout; /* shape and strides returned by amp_master_params */

    void **ties; /* further handles on the storage */
    size_t n_ties;
    int32_t module_kind;
    amp_device device;
    uint32_t index;  /* in the context */
    uint32_t owners; /* optimizers that list it (bracket/fused.c) */
    uint32_t named;  /* number of libamp's optimizers that have named it, while a state is written */
    bool in_model, in_optimizer;
    bool re_typed;
    void *address;              /* at initialize, or at the last look (apart.c) */
    _Atomic(uintptr_t) grad_begin, grad_end; /* addresses of its FP32 gradient (gradients.c), 0 if unknown */
    _Atomic(bool) grad_came; /* found by an op since the last begin or end (amp__gradient_came) */
    size_t listed_by;           /* 1 + the last optimizer that lists it */
    struct amp__param *tied_to; /* while ties are being found */
    uint64_t unfit;             /* finite FP32 weights that became infinite */
    uint64_t unwhole;           /* whole numbers that rounding changed, in a buffer of whole numbers */
    struct amp__looked {        /* bracket/wiring.c, when it last looked: */
        bool zeros;             /* its gradient was zero */
        uint64_t sum;           /* at its elements, if no optimizer lists it, else at its gradient (0: it had none) */
    } looked;
};

/* Distance of prefetching in a pass over many parameters. */
enum { AMP__PREFETCH = 16 };
static inline void amp__param_prefetch(const struct amp__param *param) { __builtin_prefetch(param, 1); }
/* The same at initialize, where other members matter too. */
static inline void amp__param_prefetch_all(const struct amp__param *param) {
    __builtin_prefetch(param, 1);
    __builtin_prefetch(&param->dtype, 1);
    __builtin_prefetch(&param->address, 1);
}
static inline void amp__param_prefetch_ahead(struct amp__param *const *params, size_t n, size_t i) {
    if (i + AMP__PREFETCH < n) amp__param_prefetch_all(params[i + AMP__PREFETCH]);
}

/* ---- remote.c: elements and blocks, here or on a device ---- */

/* The parameter's elements, or those of its gradient, on the device that they were on at initialize. */
amp_status amp__param_layout(const struct amp__param *param, void *tensor, const char *name, struct amp__elements *out);
/* By the CPU; true where it cannot read them. */
bool amp__is_finite(void *data, uint64_t size, amp_dtype dtype);
/* The parameter and its master. */
bool amp__param_is_finite(const struct amp__param *param);
/* The same as one compact block. */
amp_status amp__param_block(const struct amp__param *param, void *tensor, const char *name, struct amp__elements *out);
/* Returns the number of weights that became infinite when the type changed. Reads piece by piece, and waits. */
amp_status amp__param_count_unfit(struct amp__param *param);
/* Memory beside the parameter: the host's where it has alloc and free, else libamp's. Of its size, or another. */
amp_status amp__param_alloc_size(const struct amp__param *param, uint64_t size, amp_dtype dtype, amp_purpose purpose,
                                 amp_storage *out);
amp_status amp__param_alloc(const struct amp__param *param, amp_dtype dtype, amp_purpose purpose, amp_storage *out);
void amp__param_free(const struct amp__param *param, amp_storage *storage); /* and clears it (empty: no effect) */
/* For gradients of a bracket: on a device from the blocks that are kept, and back to them. */
amp_status amp__param_borrow(struct amp__param *param, amp_dtype dtype, amp_storage *out);
void amp__param_give_back(struct amp__param *param, amp_storage *storage);
/* Copies src to dst in the type of dst. On a device with the next flush, as work of this kind. */
amp_status amp__param_copy(const struct amp__param *param, enum amp__work work, const amp_span *dst,
                           const amp_span *src);
static inline amp_status amp__param_add(const struct amp__param *param, enum amp__work work, const amp_span *dst,
                                        const amp_span *src) {
    return amp__place_add(param->place, work, param, dst, src, NULL);
}
/* dst := 0, now or as above. */
amp_status amp__param_zero(const struct amp__param *param, const amp_span *dst);

/* ---- retype.c: another type under the same handles ---- */

/* Which master a parameter of 16 bits gets. */
enum amp__keep { AMP__KEEP_NOTHING, AMP__KEEP_MASTER, AMP__KEEP_SPLIT };

/* Gives the parameter `dtype`. The FP32 elements stay beside it as its master, a split one until the commit. All or
 * nothing. */
amp_status amp__param_retype(struct amp__param *param, amp_dtype dtype, enum amp__keep keep);
/* Finite in FP32, infinite in the 16-bit type: such weights do not fit it. */
uint64_t amp__count_unfit(const float *exact, const uint16_t *low, uint64_t size, amp_dtype dtype);
/* Whole numbers that become others, as positions do: 0 unless all elements are whole. */
uint64_t amp__count_unwhole(const float *exact, const uint16_t *low, uint64_t size, amp_dtype dtype);
/* Its own FP32 block is to be its master: nothing changes but `unfit`. */
amp_status amp__param_look(struct amp__param *param, amp_dtype dtype);
/* A 16-bit parameter without a master gets one, widened from it. split: in two parts, if it is bfloat16. */
amp_status amp__param_make_master(struct amp__param *param, bool split);
/* The way back: FP32 again, from the master where there is one. */
amp_status amp__param_restore(struct amp__param *param);
/* Undoes a retype before it is visible, with the original block. */
amp_status amp__param_undo_retype(struct amp__param *param);
/* Makes the retype final: frees an FP32 block that is not a master, if possible. */
void amp__param_commit_retype(struct amp__param *param);
/* Swaps *storage with that under all handles of the parameter, all or nothing. */
amp_status amp__param_swap(const struct amp__param *param, amp_storage *storage);
/* Writes the storage that remains under the handles after the host refused the way back, or nothing. */
void amp__param_tell_left(const struct amp__param *param, amp__text *text);
/* For amp_verify_step: shows the parameter as without the level, FP32 under the handles with the values of the master,
 * and a 16-bit gradient as FP32 zeros. Then restores both. */
struct amp__exposed {
    amp_storage param, grad; /* storage normally under the handles (empty: unchanged) */
    void *handle;            /* the gradient's */
    bool settled;            /* the master knew the parameter's version */
};
amp_status amp__param_expose(struct amp__param *param, struct amp__exposed *kept);
amp_status amp__param_cover(struct amp__param *param, struct amp__exposed *kept);
/* Frees the rest (gradients). The tensor is not touched. */
void amp__param_destroy(struct amp__param *param);

/* ---- split.c: masters that are a bfloat16 parameter and a remainder ---- */

/* The host has the master under its handle, and `master.fp32` is the 16-bit block that it replaced. */
static inline bool amp__master_is_lent(const struct amp__param *param) {
    return (param->lent.steps || param->lent.stuck) && !param->emulated && !param->master.held_by_host;
}

static inline bool amp__is_split(const struct amp__param *param) { return param->master.rest.data != NULL; }
/* Do parameter and remainder have all of a split master? */
static inline bool amp__split_is_parted(const struct amp__param *param) {
    return amp__is_split(param) && (!param->master.fp32.data || param->master.spent);
}
/* Allocates the remainder, with zeros as for a widened master. */
amp_status amp__remainder_make(struct amp__param *param);
/* The FP32 master, made if it is not there: it stays until the next step. A no-op where masters are not split. */
amp_status amp__master_join(struct amp__param *param);
/* Parameter and remainder := fp32, which is not needed any more: on a device after the next flush. */
void amp__master_split(struct amp__param *param, void *elements);
/* Parameter and remainder were set: an FP32 master beside them goes. */
void amp__master_parted(struct amp__param *param);
/* Frees an FP32 master that is not needed any more. */
void amp__master_release(struct amp__param *param);
/* All of it, where it is there. */
amp_status amp__master_part(struct amp__param *param);

/* ---- emulate.c: the same on hosts that know FP32 only ---- */

/* Rounds the FP32 block of the host to `dtype`. The exact values stay separate, as master if keep_master. */
amp_status amp__param_emulate(struct amp__param *param, amp_dtype dtype, bool keep_master);
/* Writes the exact values to the block of the host and frees the copies. */
amp_status amp__emulated_undo(struct amp__param *param);
/* Copies parameters that are not the rounded master into the master, and rounds the block again. */
amp_status amp__emulated_reconcile(struct amp__param *param, float *block);
/* Write the master to the block of the host for a step, and back, rounded. */
amp_status amp__emulated_lend(const struct amp__param *param);
amp_status amp__emulated_take_back(struct amp__param *param);
/* The block becomes the rounded master, or is rounded itself where there is none. */
void amp__emulated_show(struct amp__param *param, void *elements);

/* Returns true if an FP32 master gradient has the exact values of the gradient. */
static inline bool amp__has_master_grad(const struct amp__param *param) {
    return param->has_master && !param->emulated;
}

/* Is a bracket open for it? */
static inline bool amp__in_open_bracket(const struct amp__param *param) {
    return param->gradient.state >= AMP__GRAD_OPEN;
}
/* Or does its gradient still carry the scale of those before, which delayed? */
static inline bool amp__in_bracket(const struct amp__param *param) {
    return param->gradient.state >= AMP__GRAD_DELAYED;
}

static inline void amp__grad_goes(struct amp__param *param, enum amp__grad_state to) {
    assert(amp__grad_may_go(param->gradient.state, to));
    param->gradient.state = (uint8_t)to;
}
/* ---- master.c ---- */

/* The parameter's elements, which must be as many as at initialize, of the present type. */
amp_status amp__param_elements(const struct amp__param *param, struct amp__elements *now);
amp_status amp__param_check(const struct amp__param *param, const struct amp__elements *now);

/* Where the parameter changed outside our write-back: master := parameter, elementwise, only where the parameter is not
 * the rounded master. `always`: also if the version did not change (hosts without versions). */
amp_status amp__master_reconcile(struct amp__param *param, bool always);
/* Records that master and parameter, with these elements, agree now. */
void amp__master_agrees(struct amp__param *param, const void *elements);
/* For AMP_HOST_VERSION_MISSES_WRITES, before the host may write to masters: reconciles parameters with a changed
 * version, or with a write that the version missed before. */
amp_status amp__masters_found(struct amp__param *const *params, size_t n);
/* Put the master (and FP32 gradient) under the host's handles, and back with write-back. Counted. */
amp_status amp__master_swap_in(struct amp__param *param);
/* Back where no step has run, and nothing is written over. An emulated parameter may not have been lent yet on its
 * device, so that its master is not taken from there. */
void amp__master_swap_undo(struct amp__param *param);
/* Repeats an operation that the host refused at the end of an earlier step. Every access to the parameter starts with
 * it. */
amp_status amp__master_settle_now(struct amp__param *param);
static inline amp_status amp__master_settle(struct amp__param *param) {
    return param->lent.grad || param->lent.stuck ? amp__master_settle_now(param) : AMP_OK;
}
amp_status amp__master_swap_out(struct amp__param *param);
/* Sets master[i] = low[i] where master[i] rounded differs from low[i]. NaNs count as equal. */
amp_status amp__reconcile(float *master, const uint16_t *low, uint64_t size, amp_dtype dtype);
/* The parameter's elements := the master, rounded. */
amp_status amp__master_write_back(struct amp__param *param);
/* The same for elements just read. Cannot fail. */
void amp__master_round(struct amp__param *param, void *elements);
/* libamp's own optimizer has updated the master, or the parameter where it has none, and written a 16-bit one. */
void amp__master_stepped(struct amp__param *param, void *elements);

/* ---- grads.c: one bracket over a list of parameters ---- */

struct amp__grads_result {
    bool found_inf;
    const struct amp__param *first_nonfinite; /* with found_inf */
};

/* Room for the computation of an end, reused. Zeros are an empty one. Ends that share it do not run at once. */
struct amp__plan {
    struct amp__plan_entry *entries;
    uint16_t *what;
    amp_span *fresh, *dst, *set_aside; /* one block from fresh on (dst and set_aside are valid for entries that need
                                          them) */
    size_t n, capacity;
    unsigned all;      /* union of the needs of all entries */
    uint64_t mastered; /* elements of those that have master gradients */
    bool skips;        /* no gradient that is not finite will be stepped on */
    /* an overflow since the last step: gradients set aside may not be finite (`overflowed`) */
    bool tainted;
    struct amp__place *const *places; /* places of the context, with work that is launched before the end returns */
    size_t n_places;
};
/* For amp__place_open: the work on the parameter is dropped, and it is inspected again. */
void amp__param_dropped(const void *owner, enum amp__work work);
/* Launches the work added to places, drops the rest after an error, and returns the first error. */
amp_status amp__places_launch(struct amp__place *const *places, size_t n);
void amp__places_forget(struct amp__place *const *places, size_t n);
void amp__plan_free(struct amp__plan *plan);
/* Prefetches the data of params[i + a few], at the addresses of the last plan. */
void amp__plan_prefetch(const struct amp__plan *plan, struct amp__param *const *params, size_t n, size_t i, bool data);

/* Sets existing gradients aside. Those in fixed FP32 buffers are multiplied by the scale instead, whatever they are, so
 * that backward may add to them or overwrite them. scale 0: unknown here. Gradients left scaled by a delayed bracket
 * stay: the host may reduce them, and its backward adds to them. On an error everything is as before. */
amp_status amp__grads_begin(struct amp__param *const *params, size_t n, float scale, const struct amp__plan *last);
/* The end of a bracket that delays: gradients stay as backward left them, with this loss's scale. */
void amp__grads_delay(struct amp__param *const *params, size_t n, uint32_t loss_id, float scale);
/* unscale.c: writes new / scale + set aside to master gradients or in place. The caller cancels after an error. */
amp_status amp__grads_end(struct amp__param *const *params, size_t n, float scale, bool skips, bool tainted,
                          struct amp__plan *plan, struct amp__grads_result *result);
/* New gradients are dropped, those set aside are put back: with `all` those that stood before the first delayed
 * bracket, else those that stood before this one. */
amp_status amp__grads_cancel(struct amp__param *const *params, size_t n, bool all);
/* Records that a step was taken or skipped: fixed buffers get their contents at the first begin since the last step,
 * since the host cannot drop them. */
void amp__grads_stepped(struct amp__param *const *params, size_t n, bool skipped);
/* Drops master gradients and gradients set aside, after the host cleared its own. Open brackets stay open. */
void amp__grads_forget(struct amp__param *const *params, size_t n);
/* Finds the gradient for the optimizer (data NULL: none), after following changes of the handle by the host. */
amp_status amp__grads_view(struct amp__param *param, amp_span *span);
/* Finds the present gradient, or the reason for refusing it, without changes. now->data NULL: no gradient. */
amp_status amp__grads_check(struct amp__param *param, struct amp__elements *now);
/* The handle shows the master gradient rounded, after the host's optimizer (always: or we) wrote into it. */
amp_status amp__grads_show(struct amp__param *param, bool always);
/* Multiplies all gradients, the masters' and the rounded ones that the host sees. */
amp_status amp__grads_scale(struct amp__param *const *params, size_t n, float factor);
/* ---- left.c: gradients that a bracket leaves scaled to the step ---- */

/* May this gradient be left to the step? */
bool amp__grad_may_be_left(const struct amp__param *param, const amp_span *fresh);
/* Unscales a gradient left scaled. Every access to a gradient starts with it. */
amp_status amp__grads_unscale_now(struct amp__param *param);
static inline amp_status amp__grads_unscale(struct amp__param *param) {
    return param->gradient.state == AMP__GRAD_LEFT ? amp__grads_unscale_now(param) : AMP_OK;
}
/* It is none any more: unscaled, replaced, or gone. */
void amp__grads_forget_left(struct amp__param *param);
/* Can a clipping factor be left beside it? One can. */
static inline bool amp__grads_takes_factor(const struct amp__param *param) {
    return !param->on_device && param->gradient.state == AMP__GRAD_LEFT && param->gradient.left.factor == 1.0f;
}
/* The gradient for a step: span times inverse times factor. data NULL: no gradient. */
struct amp__grad_for_step {
    amp_span span;
    float inverse, factor;
    const float *device_inverse; /* on a device, in place of inverse (NULL: inverse) */
    double squares; /* sum of squares of the products */
    bool has_squares; /* where they are known */
};
amp_status amp__grads_for_step(struct amp__param *param, struct amp__grad_for_step *out);
/* Computes the norm over the gradients for the step. */
amp_status amp__grads_norm_for_step(struct amp__param *const *params, size_t n, float *norm);

/* No gradients, or fixed buffers of zeros. clip.c */
amp_status amp__grads_clear(struct amp__param *const *params, size_t n);
/* Every element into [-limit, limit]. clip.c */
amp_status amp__grads_clamp(struct amp__param *const *params, size_t n, float limit);

#endif
