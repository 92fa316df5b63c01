/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context: everything that one initialize made. Built once by initialize.c, immutable afterwards but for what is
 * atomic, under the lock, or belongs to brackets and steps (one thread at a time, see amp.h).
 */
#ifndef AMP_CONTEXT_H
#define AMP_CONTEXT_H

#include "call/cache.h"
#include "common/spare.h"
#include "common/fork.h"
#include "common/names.h"
#include "host/host.h"
#include "intercept/intercept.h"
#include "master/param.h"
#include "opt_levels/levels.h"
#include "opt_levels/lists.h"
#include "optim/optim.h"

#include <pthread.h>

struct amp__handle_entry {
    void *handle;
    struct amp__param *param;
};

struct amp__id_entry {
    uint64_t id;
    struct amp__param *param;
};

/* apart.c: where parameters lie, for those that come late. Zeros: nobody has looked. */
struct amp__apart {
    void *root;    /* of a tree of blocks */
    size_t looked; /* 1 + the parameters at the last look at all of them */
    size_t next;   /* of those that are looked at in turn */
};
void amp__apart_forget(struct amp__apart *apart);

enum { AMP__LOOKS = 2 }; /* brackets in which slips of the wiring are looked for (bracket/wiring.h) */

struct amp__pages {
    uintptr_t begin, end;
};

struct amp_context {
    amp_context *next_live; /* live.c */
    struct amp__properties properties;
    struct amp__model *models;
    size_t n_models;
    struct amp__optimizer *optimizers;
    size_t n_optimizers;

    struct amp__param **params;
    size_t n_params, params_capacity;
    struct amp__handle_entry *by_handle; /* open addressing; ties have an entry each */
    struct amp__id_entry *by_id;
    struct amp__range *ranges; /* sorted addresses of FP32 parameters */
    size_t n_ranges;
    bool has_norm;             /* a parameter is batch norm's */
    _Atomic(bool) raw_calls;   /* an op was called that takes raw buffers */
    _Atomic(bool) grads_absent, grads_move; /* gradients: some did not exist at begin; some were seen to move */
    bool released; /* amp_weights_release: FP32 blocks are not there; these pages of them */
    struct amp__pages *pages;
    size_t n_pages;
    struct amp__apart apart;
    size_t listed_for; /* 1 + the optimizer whose parameters amp__param.listed_by tells; 0: of none */
    size_t table_mask, table_used; /* size - 1 of both tables; handles in them */

    struct amp__names op_names; /* named.c: the models' ops; empty until somebody asks */
    struct amp__patch *patch;
    size_t n_wraps;
    bool seeds; /* an op does: not the host's seed_factor but its seed carries the scale, */
    float seed_scale; /* this one, where a bracket is open; else 1 */
    struct amp__bracket *brackets; /* num_losses of them */
    _Atomic(uint32_t) open;        /* brackets, */
    _Atomic(uint32_t) backward;    /* and those of them that have a loss: backward is running */
    bool has_forward;              /* one of the models described its forward */
    bool ops_checked;              /* for calls, at the end of the first bracket of the last optimizer */
    bool scaled_by_hand;           /* amp_scale or amp_unscale was called */
    uint64_t n_steps;              /* steps and skips of all optimizers */
    bool keeps_blocks;             /* a host without swap_data has a 16-bit model */
    bool verifying;                /* amp_verify_step runs: nothing may step */
    bool verify;                   /* every wrapped call is watched (raw/watch.c) */
    int32_t log;                   /* AMP_LOG_*: what is told where the host has no hook event */
    struct amp__trace *trace;      /* NULL: nobody asked for one */
    struct amp__observer *observer; /* the same */
    _Atomic(bool) observing;       /* this iteration: calls take no short way, and are looked at */
    _Atomic(uint32_t) looks; /* brackets that a step follows; the first AMP__LOOKS of them were looked at */
    _Atomic(uint64_t) seeds_shown; /* to ops, times a scale */
    struct amp__plan plan;         /* of the bracket that is ending; brackets and steps are one thread's business */
    struct amp__param **listed;    /* the parameters of its optimizers, where there are several */
    size_t listed_capacity;
    struct amp__place **places; /* devices that have parameters */
    size_t n_places;
    /* it knows whose memory an address is in; NULL: this process has the CPU's alone */
    const struct amp__backend *cuda;
    struct amp__device_scaler *device_scalers; /* on places[0], by loss, with */
    float *device_skips; /* on places[0], by optimizer; NULL: the scalers live on the host */
    struct amp__packed { /* what amp_pack was given and made of it: since the last bracket; in the iteration before */
        _Atomic(uint64_t) from, to, last_from, last_to;
    } packed;
    struct amp__cache cache;
    struct amp__spares spares; /* memory of calls, and packed weights */

    struct amp__forkable forkable; /* the lock */
    pthread_mutex_t lock; /* what follows */
    struct amp__taped *taped;
    size_t n_taped, n_reserved, taped_capacity, taped_warning;
    size_t taped_gone; /* the first so many of them, while they are released */
    amp_status kept;
    char kept_text[512];
    char *warnings; /* lines */
    struct amp__finding *findings; /* the oldest first */
    struct amp__range *grad_ranges; /* sorted addresses of FP32 gradients (raw/gradients.c) */
    size_t n_grad_ranges, grad_ranges_capacity;
    struct amp__strays *strays; /* verify (raw/strays.c); NULL: none yet */
    bool explained_skip, explained_growth;
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

/* ---- params.c: finding parameters by handle ---- */

amp_status amp__params_init(amp_context *context, size_t expected);
/* This handle will be asked for soon. */
void amp__params_prefetch(const amp_context *context, const void *tensor);
amp_status amp__params_insert(amp_context *context, void *handle, struct amp__param *param);
/* The ids of the parameters from this index on, by all their handles; the context's list is final that far. */
amp_status amp__params_index(amp_context *context, size_t from);
void amp__params_remove(amp_context *context, size_t from); /* all handles of the parameters from this index on */
struct amp__param *amp__param_of_handle(const amp_context *context, const void *tensor);
/* AMP-M76: a model's parameters, those from this index on, that a checkpoint could not tell apart. */
void amp__params_check_names(amp_context *context, size_t first, size_t model);
/* By handle, else by the host's id: another handle on a parameter's storage is that parameter. */
struct amp__param *amp__param_find(const amp_context *context, const amp_host *host, void *tensor);
/* A 16-bit model on a host that cannot exchange storage: its ops read 16-bit copies of its FP32 block, which is the
 * master itself where the level has masters (docs/raw-storage.md). */
static inline bool amp__keeps_block(const struct amp__properties *properties, const amp_host *host) {
    return amp__retypes(properties) && !properties->emulate && !host->swap_data;
}
/* Batch norm's, in a 16-bit model whose parameters are FP32 blocks. */
static inline bool amp__param_stays_fp32(const amp_context *context, const struct amp__param *param) {
    const struct amp__properties *properties = &context->properties;
    return param && param->module_kind == AMP_MODULE_BATCH_NORM && properties->keep_batchnorm_fp32 &&
           (amp__emulates_model(properties) || amp__keeps_block(properties, param->host));
}

/* ---- places.c: parameters in the memory of devices ---- */

/* Says where the parameter is, once its device is known; a place is opened for the first one there. */
amp_status amp__place_param(amp_context *context, struct amp__param *param);
void amp__places_end(amp_context *context);
static inline amp_status amp__places_flush(const amp_context *context) {
    return context->n_places ? amp__places_launch(context->places, context->n_places) : AMP_OK;
}
/* The place of a device; NULL: it had no parameter at amp_initialize. */
struct amp__place *amp__place_on(const amp_context *context, amp_device device);
/* Whose memory it is: { 2, id }: a device's that the CPU cannot touch; else { 1, 0 }. */
amp_status amp__places_where(const amp_context *context, const void *address, amp_device *where);
/* Once parameters were re-typed: those whose weights became infinite, counted, which takes a copy of them. */
amp_status amp__places_count_unfit(amp_context *context);
static inline void amp__places_drop(const amp_context *context) {
    amp__places_forget(context->places, context->n_places);
}

#endif
