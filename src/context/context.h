/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context: everything that one initialize made. Built once by initialize.c, immutable afterwards but for what is
 * atomic, under the lock, or belongs to brackets and steps (one thread at a time, see amp.h).
 */
#ifndef AMP_CONTEXT_H
#define AMP_CONTEXT_H

#include "call/cache.h"
#include "common/fork.h"
#include "common/spare.h"
#include "context/addresses.h"
#include "context/brackets.h"
#include "context/devices.h"
#include "context/params.h"
#include "context/policy.h"
#include "context/progress.h"
#include "context/reporting.h"
#include "context/tape.h"
#include "context/wiring.h"
#include "host/host.h"
#include "intercept/intercept.h"
#include "master/param.h"
#include "opt_levels/levels.h"
#include "opt_levels/lists.h"
#include "optim/optim.h"

#include <pthread.h>

struct amp_context {
    amp_context *next_live; /* live.c */
    struct amp__policy policy;
    struct amp__progress progress;
    struct amp__model *models;
    size_t n_models;
    struct amp__optimizer *optimizers;
    size_t n_optimizers;
    struct amp__params params;
    struct amp__addresses addresses;
    struct amp__wiring wiring;
    struct amp__brackets brackets;
    struct amp__devices devices;
    struct amp__tape tape;
    struct amp__reporting reporting;
    struct amp__observer *observer; /* NULL: not asked for */
    struct amp__cache cache;
    struct amp__spares spares; /* memory of calls, and packed weights */
    struct amp__forkable forkable; /* of the lock */
    pthread_mutex_t lock;          /* of the parts' members that name it */
};

/* ---- live.c: the contexts there are ---- */

amp_status amp__live_add(amp_context *context);
void amp__live_remove(amp_context *context);
/* Is this the address of a context that was not shut down? Anything may be asked. */
bool amp__context_is_live(const amp_context *context);
/* Is any other context so? */
bool amp__live_any(bool (*is)(const amp_context *live, const amp_context *context), const amp_context *context);
/* Never 0, never the same twice. */
uintptr_t amp__new_serial(void);

/* ---- named.c ---- */

/* AMP-M76: a model's parameters, those from this index on, that a checkpoint could not tell apart. */
void amp__params_check_names(amp_context *context, size_t first, size_t model);

/* ---- places.c: parameters in the memory of devices ---- */

/* Says where the parameter is, once its device is known; a place is opened for the first one there. */
amp_status amp__place_param(amp_context *context, struct amp__param *param);
void amp__places_end(amp_context *context);
static inline amp_status amp__places_flush(const amp_context *context) {
    return context->devices.n_places ? amp__places_launch(context->devices.places, context->devices.n_places) : AMP_OK;
}
/* The place of a device; NULL: it had no parameter at amp_initialize. */
struct amp__place *amp__place_on(const amp_context *context, amp_device device);
/* Whose memory it is: { 2, id }: a device's that the CPU cannot touch; else { 1, 0 }. */
amp_status amp__places_where(const amp_context *context, const void *address, amp_device *where);
/* Once parameters were re-typed: those whose weights became infinite, counted, which takes a copy of them. */
amp_status amp__places_count_unfit(amp_context *context);
static inline void amp__places_drop(const amp_context *context) {
    amp__places_forget(context->devices.places, context->devices.n_places);
}

#endif
