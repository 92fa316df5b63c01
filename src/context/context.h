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
#include "master/master.h"
#include "opt_levels/levels.h"
#include "opt_levels/lists.h"
#include "optim/optim.h"

#include <pthread.h>

/* An op, forward, step or zero_grad: the host's descriptor, copied, and what the policy made of it. */
struct amp__op {
    amp_context *context;
    const amp_host *host;
    void *self; /* of its model or optimizer */
    char *name;
    struct amp__schema *schema; /* NULL: AMP_OP_DIRECT without one */
    uint32_t index, flags;      /* index among ops of the same name */
    amp_class op_class;
    const char *reason; /* why it has that class, for explain */
    bool is_backward;   /* backward_of: obeys its class inside backward too */
    amp_fn *slot;
    amp_fn fp16, bf16, fp32;
    const void *on_failure, *on_skip;
    bool wrapped;
    const struct amp__op *shares; /* the op of an earlier model that takes this slot's calls; NULL: none */
    size_t wrap; /* its number in the context's patch, if it was added to it */
    bool added;
    void *target; /* struct amp__model or amp__optimizer it belongs to */

    uint8_t raw_mode; /* enum amp__raw_mode: what is done to its raw buffers */
    bool seeds;       /* backward starts from a buffer of its calls, which carries the loss scale */

    bool by_types;        /* the set of its operands' types decides, by this table */
    uint8_t decided[64];  /* by set (bits 1 << amp_dtype): the target; 0: nothing to be done; 255: see amp__decide */

    /* gate.c. 0: no call is held back, or the gate does not look at the op. */
    _Atomic(uint64_t) gate_least; /* the least size of a call that runs low */
    _Atomic(uint8_t) gate_source; /* enum amp__gate_source */
    bool gate_looks;
    bool gate_watches; /* its products on GPUs are looked at */
    _Atomic(int32_t) gate_capability; /* of the last GPU that multiplied for it: 10 * major + minor */
    _Atomic(uint64_t) gate_misfit;    /* the last dimension that was no multiple of 8: 4 times it, and which: m, n, k */
    const char *gate_who, *gate_unit; /* AMP_OP_MATMUL: what the table was asked for */

    /* The first thread that called counts without locked instructions, in first_*; the others in the rest. Whoever lives
     * at its address after it goes on. */
    _Atomic(const struct amp__thread *) first;
    _Atomic(uint64_t) first_calls, first_hits;
    _Atomic(uint64_t) calls, passed, casts, cache_hits, failures, overflowed, zeroed, subnormal, gated, no_tensor_cores,
        unaligned;
    _Atomic(int32_t) last_target;
};

/* Does this thread count in first_*? */
static inline bool amp__op_is_first(struct amp__op *op, const struct amp__thread *thread) {
    const struct amp__thread *first = atomic_load_explicit(&op->first, memory_order_relaxed);
    return first == thread ||
           (!first && atomic_compare_exchange_strong_explicit(&op->first, &first, thread, memory_order_relaxed,
                                                              memory_order_relaxed));
}
static inline void amp__op_count(struct amp__op *op, const struct amp__thread *thread, _Atomic(uint64_t) *of_first,
                                 _Atomic(uint64_t) *of_others, uint64_t n) {
    if (amp__op_is_first(op, thread))
        atomic_store_explicit(of_first, atomic_load_explicit(of_first, memory_order_relaxed) + n, memory_order_relaxed);
    else atomic_fetch_add_explicit(of_others, n, memory_order_relaxed);
}
static inline uint64_t amp__op_calls(const struct amp__op *op) { return op->first_calls + op->calls; }
static inline uint64_t amp__op_hits(const struct amp__op *op) { return op->first_hits + op->cache_hits; }

struct amp__model {
    amp_model *user;
    amp_host host;
    struct amp__op *ops;
    size_t n_ops;
    struct amp__op forward;
    bool has_forward;
};

struct amp__optimizer {
    amp_optimizer *user;
    amp_context *context;
    amp_host host;
    struct amp__param **params;
    size_t n_params, params_capacity; /* 0: n_params */
    struct amp__op *steps, *zero_grads;
    size_t n_steps, n_zero_grads;
    struct amp__optim *optim; /* libamp's own; NULL: the host steps */

    bool sharded; /* AMP_OPTIMIZER_SHARDED */
    bool holds;   /* AMP_OPTIMIZER_HOLDS_MASTERS */
    bool skips_there;        /* its step reads the flag on the device: the host need not know what was decided */
    bool in_bracket;
    bool delayed; /* gradients still carry the scale of loss `delayed_loss` */
    uint32_t delayed_loss;
    float delayed_scale; /* which that was */
    uint32_t unchecked;    /* losses that found nothing yet, or something, and have not decided (delayed check) */
    bool skip;             /* decided by the brackets since the last step */
    bool failed;           /* a delayed bracket ended with an error that the other ranks have not heard of */
    size_t steps_called;   /* step slots called since the decision was new, */
    size_t steps_expected; /* of so many */
    uint32_t stepping;     /* steps running now */
    amp_action running;    /* what amp_step_begin answered, for its end, */
    bool begun;            /* which has not come yet */
    amp_scope scope;       /* held between amp_step_begin and amp_step_end */
    uint64_t last_step;    /* context->n_steps when it last stepped or skipped */
    uint32_t last_loss;    /* loss_id of its last bracket */
    bool told_of_steps;    /* unseen.c: there is no more to say */
    bool noted;            /* what its parameters were when a bracket began, while no step was seen: */
    uint64_t noted_sum, noted_steps; /* their sum, and context->n_steps; */
    uint32_t unseen_changes;         /* how often it was another one since */
};

struct amp__bracket {
    uintptr_t serial; /* of the opening: an amp_scaled_loss that outlived it is told from the present one */
    bool open, with_loss, delay, delay_check;
    bool seeded; /* the ops' seeds carry the scale */
    uint32_t loss_id;
    amp_context *context;
    struct amp__optimizer **optimizers; /* n_optimizers of them while open */
    size_t n_optimizers, optimizers_capacity;
    struct amp__scaler scaler;
    float scale;     /* of this bracket, while open */
    float carried;   /* the scale of gradients that delayed, which is this bracket's then; 0: none */
    float found_inf; /* of the last one closed */
    void *temporary[2]; /* scaled loss and its FP32 cast, ours until the end */
    const amp_host *host;
    struct amp__thread *thread; /* that began it: its floating-point traps are masked */
    amp_record record;
    bool *unchecked; /* by optimizer: has its overflow check been delayed? NULL: none ever was */
    bool unchecked_inf; /* what those brackets found */
    const struct amp__param *unchecked_first;
    uint64_t changes; /* of the scale, so far */

    /* Where the scaler lives on a device (there.c). */
    struct amp__device_scaler *there; /* in its memory; NULL: on the host */
    bool blind;    /* nobody on the host needs to know: not even the scale, where it moves */
    bool posted;   /* the last end's decision is on its way here, */
    void *letter;  /* in this */
    bool unheard;  /* or the device alone knows it */
    bool *told;    /* by optimizer: its next step waits for it */
    uint32_t *which; /* room for numbers of optimizers */
    const void **looked; /* the parameters whose gradients the last end looked at, as they were numbered there */
    size_t n_looked, looked_capacity;
    bool looked_changed; /* since the record was read: numbers of before mean nothing */
};

/* A cast that a tape which does not retain its inputs still needs. */
struct amp__taped {
    const amp_host *host;
    void *handle;
    uint64_t made; /* context->n_steps at the time */
};

struct amp__handle_entry {
    void *handle;
    struct amp__param *param;
};

struct amp__id_entry {
    uint64_t id;
    struct amp__param *param;
};

/* Addresses [begin, end) that belong to a parameter, or to its gradient. */
struct amp__range {
    uintptr_t begin, end;
    struct amp__param *param;
};

/* apart.c: where parameters lie, for those that come late. Zeros: nobody has looked. */
struct amp__apart {
    void *root;    /* of a tree of blocks */
    size_t looked; /* 1 + the parameters at the last look at all of them */
    size_t next;   /* of those that are looked at in turn */
};
void amp__apart_forget(struct amp__apart *apart);

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
    struct amp__range *ranges, *grad_ranges; /* sorted addresses of FP32 parameters, of fixed gradients */
    size_t n_ranges, n_grad_ranges;
    struct amp__apart apart;
    size_t listed_for; /* 1 + the optimizer whose parameters amp__param.listed_by tells; 0: of none */
    size_t table_mask, table_used; /* size - 1 of both tables; handles in them */

    struct amp__names op_names; /* named.c: the models' ops; empty until somebody asks */
    struct amp__patch *patch;
    size_t n_wraps;
    bool seeds; /* an op does: not the host's seed_factor but its seed carries the scale */
    struct amp__bracket *brackets; /* num_losses of them */
    _Atomic(uint32_t) open;        /* brackets, */
    _Atomic(uint32_t) backward;    /* and those of them that have a loss: backward is running */
    bool has_forward;              /* one of the models described its forward */
    uint64_t n_steps;              /* steps and skips of all optimizers */
    struct amp__plan plan;         /* of the bracket that is ending; brackets and steps are one thread's business */
    struct amp__param **listed;    /* the parameters of its optimizers, where there are several */
    size_t listed_capacity;
    struct amp__place **places; /* devices that have parameters */
    size_t n_places;
    const struct amp__backend *cuda; /* it knows whose memory an address is in; NULL: this process has the CPU's alone */
    struct amp__device_scaler *scalers; /* on places[0], by loss, with */
    float *skips;               /* on places[0], by optimizer; NULL: the scalers live on the host */
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
    bool explained_skip, explained_growth, reported_ops;
};

/* ---- live.c: the contexts there are ---- */

amp_status amp__live_add(amp_context *context);
void amp__live_remove(amp_context *context);
/* Is this the address of a context that was not shut down? Anything may be asked. */
bool amp__context_is_live(const amp_context *context);
/* Never 0, never the same twice. */
uintptr_t amp__new_serial(void);

/* ---- register.c ---- */

/* The model's ops are registered: what was kept for looking them up goes. */
void amp__register_over(amp_model *model);

/* ---- params.c: finding parameters by handle ---- */

amp_status amp__params_init(amp_context *context, size_t expected);
/* This handle will be asked for soon. */
void amp__params_prefetch(const amp_context *context, const void *tensor);
amp_status amp__params_insert(amp_context *context, void *handle, struct amp__param *param);
/* The ids of the parameters from this index on, by all their handles; the context's list is final that far. */
amp_status amp__params_index(amp_context *context, size_t from);
void amp__params_remove(amp_context *context, size_t from); /* all handles of the parameters from this index on */
struct amp__param *amp__param_of_handle(const amp_context *context, const void *tensor);
/* By handle, else by the host's id: another handle on a parameter's storage is that parameter. */
struct amp__param *amp__param_find(const amp_context *context, const amp_host *host, void *tensor);

/* ---- call.c: the policy around one call ---- */

/* Fills by_types and decided, once all else about the op stands. */
void amp__op_tabulate(struct amp__op *op);
void amp__op_handler(void *user, struct amp__call *call);
void amp__forward_handler(void *user, struct amp__call *call);

/* ---- places.c: parameters in the memory of devices ---- */

/* Says where the parameter is, once its device is known; a place is opened for the first one there. */
amp_status amp__place_param(amp_context *context, struct amp__param *param);
/* Once all parameters are known: where the scalers live. All on one device: there; else on the host. */
amp_status amp__places_start(amp_context *context);
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
static inline void amp__places_drop(const amp_context *context) { amp__places_forget(context->places, context->n_places); }

/* ---- there.c: brackets whose gradients are on devices, and scalers that live there ---- */

/* Before anything changes: who will know what is decided, and the scale where the host must have it. */
amp_status amp__there_begin(struct amp__bracket *bracket, bool with_loss);
/* Is the loss scaled by a number that only the device knows? */
static inline bool amp__there_scales(const struct amp__bracket *bracket) {
    return bracket->blind && bracket->host && bracket->host->scale_by && bracket->context->properties.scaler.dynamic;
}
/* Before gradients are looked at: what the launches work with. */
amp_status amp__there_arm(const struct amp__bracket *bracket);
/* After it: what devices found, where the scaler lives on the host and so must wait for it. */
amp_status amp__there_find(const struct amp__bracket *bracket, struct amp__grads_result *result);
/* Has the device found something? For what the ranks tell one another; waits. */
amp_status amp__there_ask(const struct amp__bracket *bracket, bool *found_inf);
/* The end on the device. found_elsewhere: on another rank. */
amp_status amp__there_decide(struct amp__bracket *bracket, bool decides, bool found_elsewhere);
/* What was found is forgotten: the bracket did not end. */
void amp__there_forget(struct amp__bracket *bracket);

/* What the host may not yet know of brackets that have ended: their decisions, for the optimizers whose steps wait for
 * them. Waits for letters alone. */
amp_status amp__there_hear(amp_context *context);
/* The same for one loss, and asks the device where no letter was sent. Not while its stream is being captured. */
amp_status amp__there_learn(struct amp__bracket *bracket);
/* Of all losses. */
amp_status amp__there_learn_all(amp_context *context);
/* The flag of an optimizer on the device, and the end of a step that read it. */
const float *amp__there_skip(const struct amp__optimizer *optimizer);
amp_status amp__there_stepped(struct amp__optimizer *optimizer);
/* The scaler on the device := the host's. */
amp_status amp__there_set(struct amp__bracket *bracket);
/* ---- tell.c: what a decided bracket has to tell, by the record that it left ---- */

/* overflow_here: or on another rank. */
void amp__bracket_tell(struct amp__bracket *bracket, amp_action action, bool overflow_here);

/* ---- clip_there.c ---- */

/* amp_clip_grad_norm where parameters are on devices. Waits only if the norm is wanted here, or is more than one device's. */
amp_status amp__clip_there(struct amp__optimizer *optimizer, float max_norm, float *norm);

/* ---- unscale_there.c ---- */

/* amp_unscale of compact tensors in one device's memory. found_inf may be NULL, in that memory, or in the CPU's: then it waits. */
amp_status amp__unscale_there(const struct amp__bracket *bracket, amp_device device, const amp_span *spans, size_t n,
                              float *found_inf);

/* ---- step.c ---- */

/* The context's record of a caller's optimizer. */
amp_status amp__optimizer_find(amp_optimizer *user, struct amp__optimizer **out);
/* Is a step running on its parameters, of this optimizer or of another that shares one? */
bool amp__optimizer_is_lent(const struct amp__optimizer *optimizer);
/* Once its own brackets are over: a parameter whose gradient the bracket of another optimizer has, or left scaled; NULL: none. */
const struct amp__param *amp__optimizer_scaled_elsewhere(const struct amp__optimizer *optimizer);
/* The decision of the brackets holds for one call of each of the optimizer's step slots (some hosts have one per layer).
 * Called after the last of them, or when the next bracket begins. */
void amp__decision_used(struct amp__optimizer *optimizer);
/* The end of a step, or of one that was skipped, for gradients and flags. */
amp_status amp__step_over(struct amp__optimizer *optimizer, amp_action action);
/* May it step now? */
amp_status amp__step_check(const struct amp__optimizer *optimizer);
void amp__step_handler(void *user, struct amp__call *call);
void amp__zero_grad_handler(void *user, struct amp__call *call);

/* ---- unseen.c: steps that go past the wired slot ---- */

/* When a bracket begins: a warning, once, if its parameters changed since the last began and no step was seen. */
amp_status amp__report_unseen_steps(struct amp__optimizer *optimizer);
/* Parameters change in another way: a state is loaded, masters are reconciled. */
void amp__unseen_steps_forget(amp_context *context);

/* ---- fused.c: optimizers of libamp's own ---- */

/* Moments for the parameters from `from` on, once their sizes are known. */
amp_status amp__fused_attach(struct amp__optimizer *optimizer, size_t from);
/* Which gradients may stay scaled until the step: after every change of the optimizers' lists. */
void amp__fused_mark(amp_context *context);
/* The same after the optimizer has grown, from its parameter `from` on. */
void amp__fused_mark_late(const struct amp__optimizer *optimizer, size_t from);

/* ---- fused_there.c: their parameters on a device ---- */

/* After the list of parameters has changed. */
amp_status amp__fused_there_attach(struct amp__optimizer *optimizer);
/* What the step will work on, as far as the host can refuse it; and the step. */
amp_status amp__fused_there_find(const struct amp__optimizer *optimizer);
amp_status amp__fused_there_step(const struct amp__optimizer *optimizer, const float *norm_of_all);
/* LAMB's norm of all gradients where they are in several memories: is it to be added up here? Then norm_of_all is it, else NULL. */
bool amp__fused_adds_norms(const struct amp__optimizer *optimizer);
/* Adds the squares of what devices have; waits. After find. */
amp_status amp__fused_there_squares(const struct amp__optimizer *optimizer, double *squares);
/* states[i].steps := the device's; and the way back. */
amp_status amp__fused_there_steps(const struct amp__optimizer *optimizer, bool to_device);

/* ---- report.c: errors kept for the bracket's end, events, warnings ---- */

/* Keeps the thread's last error as the context's, if it has none yet, and tells the host. */
void amp__keep_error(amp_context *context, amp_status status);
/* Takes the kept error away, leaving its text as the thread's last error. */
amp_status amp__take_error(amp_context *context);
bool amp__has_error(amp_context *context);
void amp__event(amp_context *context, const amp_host *host, const amp_event *event);
/* A line for the host's event hook and for amp_explain. */
amp_status amp__warn(amp_context *context, const char *format, ...) AMP_PRINTF(2, 3);

/* Names, once, the wired slots that no call has reached: after the first bracket the model's, before the second the
 * optimizers'. A host that copied its pointers before they were wired would otherwise train as if libamp were not there. */
uint64_t amp__op_passed(const struct amp__op *op); /* calls that ran as they came */
void amp__report_unused_ops(amp_context *context);
/* Those of `ops` that saw no call, by name; their number. */
size_t amp__name_unused(char *names, size_t capacity, const struct amp__op *ops, size_t n);

/* ---- tape.c: temporaries that outlive their call ---- */

/* Room for one more, so that the amp__tape_add that follows cannot fail; given back if none follows. */
amp_status amp__tape_reserve(amp_context *context);
void amp__tape_unreserve(amp_context *context, size_t n);
void amp__tape_add(amp_context *context, const amp_host *host, void *handle);
/* Releases what no tape needs any more: everything, or what every optimizer has stepped past. */
void amp__tape_release(amp_context *context, bool everything);
static inline bool amp__tape_retains(const amp_host *host) {
    return (host->flags & AMP_HOST_TAPE_RETAINS_INPUTS) != 0;
}

/* named.c: the ops whose name, or name#index, may be this one: the caller compares. */
amp_status amp__ops_named(amp_context *context, const char *name, const struct amp__keyed **entries, size_t *n);
bool amp__op_is_numbered(const struct amp__op *op, const char *name); /* name#index */

#endif
