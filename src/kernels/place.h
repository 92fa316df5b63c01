/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A place: the memory and stream of one device in a context. Work on its tensors is collected tensor by tensor and
 * launched as lists, one launch for each kind of work and any number of tensors. Everything goes to the stream of the
 * host. Only amp__place_out, amp__place_fetched and amp__place_close wait.
 */
#ifndef AMP_KERNELS_PLACE_H
#define AMP_KERNELS_PLACE_H

#include "common/common.h"
#include "kernels/served.h"

/* Kinds of work, in the order in which amp__place_flush launches them: a later one may read the results of an earlier
 * one. */
enum amp__work {
    AMP__WORK_JOIN,         /* dst = src and its remainder third */
    AMP__WORK_UNSCALE,      /* dst = src * args.deferred: gradients that the step unscales */
    AMP__WORK_FOLLOW,       /* dst = src */
    AMP__WORK_RECONCILE_GRAD, /* dst = src where dst rounded is not src, and where all of src is 0 */
    AMP__WORK_RECONCILE,    /* dst = src where dst rounded is not src */
    AMP__WORK_ROUND_FIRST,  /* dst = src rounded to args.low; emulated: reconciled values */
    AMP__WORK_SAVE,         /* dst = src */
    AMP__WORK_ASIDE,        /* dst = src */
    AMP__WORK_TAKE_BACK,    /* dst = src */
    AMP__WORK_ZERO,         /* dst = 0 */
    AMP__WORK_CHECK,        /* dst * args.inverse is looked at */
    AMP__WORK_SCALE,        /* dst = src * args.inverse, looked at */
    /* dst = src * args.inverse + third, checked, without elements that are not finite in third */
    AMP__WORK_ADD,
    AMP__WORK_ROUND_GRAD,   /* dst = src rounded to args.low, checked (emulated) */
    AMP__WORK_MULTIPLY,     /* dst = src * args.factor */
    AMP__WORK_CLAMP,        /* dst = src, within args.factor.value of 0 */
    AMP__WORK_RESTORE,      /* dst = src, if args.restore_if shows something */
    AMP__WORK_SHOW,         /* dst = src */
    AMP__WORK_WRITE_BACK,   /* dst = src */
    AMP__WORK_ROUND,        /* dst = src rounded to args.low (emulated) */
    AMP__WORK_SPLIT,        /* dst and its remainder third = src */
    AMP__WORKS
};

struct amp__place_queue {
    amp_device_list *list, *measured; /* NULL: not needed yet */
    amp_span *dst, *src, *third; /* one block, from dst on */
    const void **owners;
    size_t n, capacity;
};

struct amp__place {
    amp_device device;
    const struct amp__backend *backend;
    void *memory; /* the backend's */
    amp_status (*current_stream)(void *self, amp_device device, void **stream);
    void *self;
    void (*dropped)(const void *owner, enum amp__work work); /* called for added work that is never launched */
    struct amp__place_queue queues[AMP__WORKS];
    /* Arguments of the next flush. */
    struct amp__place_args {
        amp_factor inverse, deferred, factor;
        float *found;
        uint32_t *first;
        const float *restore_if;
        amp_dtype low; /* 16-bit type to round FP32 parameters to, for all flushes */
    } args;
    /* owners of tensors checked since amp__place_nothing_found, by tensor number */
    const void **inspected;
    size_t n_inspected, inspected_capacity;
    size_t n_params; /* that are there */
    struct amp__device_scaler *words; /* found and first for contexts with scalers on the host */
    float *norms; /* room for norms, on the device */
    size_t norms_bytes, n_outgrown;
    void *outgrown[64]; /* rooms before it, twice as large each time: a graph may know them */
};

amp_status amp__place_open(amp_device device, amp_status (*current_stream)(void *, amp_device, void **), void *self,
                           void (*dropped)(const void *owner, enum amp__work work), struct amp__place **out);
/* Blocks that the caller made are his to free before. */
void amp__place_close(struct amp__place *place);

/* Adds one tensor to the next flush, with src and third as the kind needs them. */
amp_status amp__place_add(struct amp__place *place, enum amp__work work, const void *owner, const amp_span *dst,
                          const amp_span *src, const amp_span *third);
/* Room for `n` tensors: that many can be added without an error. */
amp_status amp__place_reserve(struct amp__place *place, enum amp__work work, size_t n);
/* Launches the added work. After an error the rest is dropped. */
amp_status amp__place_flush(struct amp__place *place);
/* Drops the added work and calls dropped for each owner. */
void amp__place_drop(struct amp__place *place);
/* Sets the scale of gradients that the step unscales. Launches work added with another scale first. */
amp_status amp__place_set_deferred(struct amp__place *place, const amp_factor *deferred);

amp_status amp__place_stream(const struct amp__place *place, void **stream);
amp_status amp__place_alloc(const struct amp__place *place, uint64_t bytes, void **out);
void amp__place_free(const struct amp__place *place, void *memory); /* NULL is a no-op */
amp_status amp__place_zero(const struct amp__place *place, void *dst, uint64_t bytes);
/* It becomes some number above 0. */
amp_status amp__place_raise(const struct amp__place *place, float *flag);
/* `found` and `first` of a scaler: nothing was found. */
amp_status amp__place_nothing_found(const struct amp__place *place, struct amp__device_scaler *scaler);
amp_status amp__place_in(const struct amp__place *place, void *dst, const void *src, uint64_t bytes);
amp_status amp__place_out(const struct amp__place *place, void *dst, const void *src, uint64_t bytes);
/* *copy NULL: a new one. Ended with amp__place_fetch_free. */
amp_status amp__place_fetch(const struct amp__place *place, void **copy, const void *src, size_t bytes);
amp_status amp__place_arrived(const struct amp__place *place, void *copy, bool *arrived);
amp_status amp__place_fetched(const struct amp__place *place, void *copy, void *dst, size_t bytes);
void amp__place_fetch_free(const struct amp__place *place, void *copy);
amp_status amp__place_capturing(const struct amp__place *place, bool *capturing);
/* Ends a bracket. call: the scaler and its arguments. */
amp_status amp__place_end_bracket(const struct amp__place *place, struct amp__memory_call *call);
/* Returns room for `n` norms, reused. Its contents are lost. */
amp_status amp__place_norms(struct amp__place *place, size_t n, float **out);

#endif
