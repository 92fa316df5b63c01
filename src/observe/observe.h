/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Observed iterations: calls of wrapped ops (calls.c), parameters at the end of a bracket (params.c), the origin of an
 * overflow (culprit.c), messages (tell.c), and counts of devices, which come later (later.c). Nothing here fails a call
 * or a bracket: unreadable tensors are left out.
 */
#ifndef AMP_OBSERVE_ROOM_H
#define AMP_OBSERVE_ROOM_H

#include "amp_observe.h"
#include "common/map.h"
#include "context/op.h"
#include "context/probe.h"
#include "context/ranges.h"
#include "context/optimizer.h"
#include "context/parts.h"
#include "context/progress.h"
#include "kernels/counts.h"

/* The type of a call at O1, by the class of its op, or for a class that follows its inputs by their types. */
enum { AMP__FLOWS_LOW = 1, AMP__FLOWS_WIDE = 2 }; /* low: or not known */

/* The two formats of FP8, and the nonzero elements that a cast to one would change: to 0, to subnormals (in magnitude
 * below its least normal number), and, in blocks alone, to its largest number. */
enum amp__fp8 { AMP__E4M3, AMP__E5M2, AMP__FP8S };
struct amp__fp8_losses {
    uint64_t zeros, subnormals, saturated;
};
/* Sampled blocks of 32 elements: their nonzero elements, and the losses of both formats. */
struct amp__fp8_blocks {
    uint64_t numbers;
    struct amp__fp8_losses losses[AMP__FP8S];
};

/* One thing that is looked at. */
struct amp__seen {
    struct amp__seen *next, *sibling; /* of the same op or parameter */
    const struct amp__op *op; /* op of inputs and outputs, NULL for others */
    const struct amp__param *param; /* else NULL */
    const char *name;         /* copied name of the argument or the parameter */
    uint32_t what;            /* AMP_SEE_* */
    amp_dtype dtype;
    uint64_t rank;       /* order in lists among those of its op */
    uint64_t iteration;  /* the last one */
    uint64_t iterations; /* so many */
    uint64_t tensors;    /* in the last one */
    _Atomic(int64_t) odd; /* last dimension of its matrices that was no multiple of 8, or 0 */
    uint8_t flows;        /* AMP__FLOWS_* bits of the calls of its op */
    struct amp__skipped {     /* iterations skipped by a dynamic scale, with scaled gradients */
        uint64_t iterations, elements, infinite; /* in fp16 */
        double kept_largest;  /* of the others */
    } skipped;
    uint64_t lost_fp16, lost_bf16, lost_last[2]; /* updates: in total, and in the last one of both types */
    struct amp__fp8_losses fp8_before[AMP__FP8S]; /* of a product's input: in the iterations before the last one */
    struct amp__fp8_blocks blocks_last, blocks;   /* in the last one, and in all */
    amp_statistics last, total;
};

/* One call, as the ring remembers it. */
struct amp__seen_call {
    const struct amp__op *op;
    uint64_t number; /* in the iteration, from 1 on */
    bool is_cast; /* a cast reported by the host */
    bool may_be_cast; /* the input that is counted now may be libamp's cast of the host's */
    bool finite, came_finite; /* its inputs, and the same before they were cast */
    bool is_wide; /* at O1 it would work in FP32 */
    bool got_bad, made_bad; /* NaN or +infinity: -infinity alone is how masks are written */
    int32_t cause; /* AMP_CAUSE_*, once it was judged */
    const void *got, *made; /* memory, as the host has it, of the first input and output that are not finite */
    struct amp__later_call *later; /* a device counts some of its tensors (NULL: none) */
    uint32_t n;      /* number of arguments, without those beyond the room */
    amp_seen_argument arguments[AMP_SEEN_ARGUMENTS];
};

/* The value of a parameter before a step, in FP32. */
struct amp__before {
    struct amp__before *next;
    struct amp__param *param;
    uint64_t size;
    float *elements; /* where the parameter is: behind this, or in the device's memory */
};

/* Counts of devices that the host has not read. */
struct amp__later {
    struct amp__pending *pending;
    size_t n, capacity;
    struct amp__later_call *calls, *last; /* in the order in which they began */
    struct amp__counted_stream *streams;
};

/* A bracket that has ended. */
struct amp__decided_bracket {
    uint64_t number; /* of its loss, from 1 on */
    bool skips, overflowed; /* as far as the host knows: */
    const struct amp__device_scaler *on_device; /* in this place's memory, which knows (NULL: the host does) */
    const struct amp__place *place;
    uint32_t loss_id;
};

/* The copy of a decision that a device made. */
struct amp__coming_decision {
    const struct amp__place *place;
    void *copy;  /* NULL: none yet */
    bool coming; /* on its way, and not looked at */
    uint32_t loss_id;
};

enum { AMP__RING = 20 };

/* Calls with values that are not finite, the most likely culprits first: made or passed on, got alone, -infinity. */
enum { AMP__MADE, AMP__ABSORBED, AMP__MASKED, AMP__SUSPECTS };

struct amp__suspect {
    struct amp__seen_call call;
    uint64_t at; /* number of the call with the overflow, or of a later call that made NaN of its -infinity */
};

/* Tensors of this iteration that are not finite, by their memory: enough of them to follow an infinity for a layer. */
enum { AMP__TRAILS = 64, AMP__ROOTS = 8, AMP__NO_ROOT = AMP__ROOTS, AMP__OUTSIDE };

struct amp__trail {
    const void *memory;
    bool was_cast; /* finite before a cast */
    uint32_t root; /* for -infinity: index in observer->roots of the call that made it, AMP__NO_ROOT (none, or a mask)
                      or AMP__OUTSIDE (no observed op) */
};

struct amp__observer {
    amp_observe_options options; /* its names are copies */
    uint64_t iterations; /* ended, observed or not */
    uint64_t observed;   /* begun */
    uint64_t seen_iterations; /* observed, and over */
    struct amp__survey *survey; /* the last one (NULL: none yet) */
    uint32_t armed;      /* to be observed because of a skip */
    uint64_t bytes, left_out;
    struct amp__before *before; /* values before the step whose updates are observed, until that step */
    uint64_t before_of;         /* and the bracket that it follows */
    struct amp__later later;
    struct amp__coming_decision decision;
    uint64_t *skips_known; /* by loss: one more than the skips that devices decided, as far as is known (0: none yet) */
    struct amp__due { /* reports that wait for counts */
        bool bracket, updates; /* there are some */
        uint64_t number, updates_of; /* of brackets, as the trace counts */
        struct amp__decided_bracket decided;
    } due;

    pthread_mutex_t *lock; /* lock of the context for the members below */
    struct amp__seen *first, **end;
    struct amp__map by_owner; /* the newest seen of each op and parameter, which has its siblings */
    struct amp__map flow;     /* AMP__FLOWS_* of the tensors of this iteration, by memory */
    struct amp__map told;     /* ops reported by the host (amp_observe_call), by name: struct amp__op */
    uint64_t calls, made; /* calls, and gradients reported by the host, in this iteration */
    struct amp__seen_call ring[AMP__RING]; /* the last of them, call i at i % AMP__RING */
    struct amp__use {              /* by parameter: the last call of forward that used it */
        const struct amp__op *op;
        uint64_t call;
        uint64_t made; /* position of its gradient in the order of backward, from 1 (0: not reported by the host) */
        const struct amp__op *accused; /* op of the last reported culprit with this parameter */
        int32_t accused_cause;         /* and its cause (0: none) */
    } *uses, nobody;   /* of an overflow without a parameter */
    size_t n_uses;
    struct amp__suspect suspects[AMP__SUSPECTS]; /* the first of each kind */
    struct amp__trail trails[AMP__TRAILS]; /* trail i at i % AMP__TRAILS */
    size_t n_trails, n_roots; /* counts in this iteration (roots: those with room) */
    struct amp__seen_call roots[AMP__ROOTS]; /* arithmetic that made -infinity of finite values */
    uint64_t finite_in;  /* the last bracket in which all observed weights were finite (0: none) */
    uint64_t stepped_on; /* first bracket after it with a step on non-finite gradients (0: none) */
    uint64_t since, since_least; /* latest and earliest bracket in which a weight can have become non-finite, or 0 */
    bool suspect_written;          /* by an op that was seen */
    const struct amp__param *suspect_param; /* first parameter in the order of backward with a non-finite gradient */
    amp_culprit culprit;
};

static inline bool amp__observing(const amp_context *context) {
    return atomic_load_explicit(&amp__progress_of(context)->observing, memory_order_relaxed);
}

/* Returns true if calls now belong to the iteration, not to an evaluation between brackets. */
static inline bool amp__observe_trains(const amp_context *context, const amp_host *host) {
    const struct amp__progress *progress = amp__progress_of(context);
    return atomic_load_explicit(&progress->open, memory_order_relaxed) || !host || amp__host_grad_enabled(host);
}

static inline uint64_t amp__nonfinite(const amp_statistics *statistics) {
    return statistics->nans + statistics->plus_infinities + statistics->minus_infinities;
}

/* Exact, or a sample if the options say so. The lines are others in each iteration. */
static inline amp_status amp__observe_count(const struct amp__observer *observer, const amp_span *span,
                                            amp_statistics *statistics) {
    return amp_statistics_sample(span, 1, observer->options.sample, observer->observed, statistics);
}

/* ---- options.c ---- */

/* Checked, with defaults filled in and names copied. */
amp_status amp__observe_resolve(const amp_observe_options *given, amp_observe_options *options);
void amp__observe_free_options(amp_observe_options *options);
/* Reads the options in the environment variable AMP_OBSERVE. *asked: it is set. Fails for an unreadable value. */
amp_status amp__observe_environment(amp_observe_options *options, bool *asked);

/* ---- observe.c ---- */

/* Begins, if the environment asks for it. */
amp_status amp__observe_as_asked(amp_context *context);
void amp__observe_free(amp_context *context);
/* Calls are looked at from here on, or not any more. */
void amp__observe_set(amp_context *context, bool observing);
/* Puts the probe on all ops while that is so, or takes it off: once they are built. */
void amp__observe_ops(amp_context *context);
/* An iteration is over. */
void amp__observe_next(amp_context *context);
/* Waits for pending counts, reads and reports them. */
void amp__observe_collect(amp_context *context);
/* Is it to be looked at, by its name? */
bool amp__observe_wants(const struct amp__observer *observer, uint32_t what, const char *name);
/* The entry of an op's argument, or of a parameter. NULL: there is no room for a new one. */
struct amp__seen *amp__observe_op(struct amp__observer *observer, const struct amp__op *op, const char *name,
                                  uint32_t what);
struct amp__seen *amp__observe_param(struct amp__observer *observer, const struct amp__param *param, uint32_t what);
/* One more tensor of it. */
void amp__observe_add(struct amp__observer *observer, struct amp__seen *seen, amp_dtype dtype,
                      const amp_statistics *statistics);
/* Samples blocks of the tensor that was added, for FP8, if it is an input of a product. */
void amp__observe_sample(struct amp__observer *observer, struct amp__seen *seen, const amp_span *span);

/* ---- src/survey/, which nothing here includes ---- */

void amp__survey_free(struct amp__survey *survey);
/* Writes a survey of the observations to the trace, if there are both. */
void amp__survey_at_end(amp_context *context);

/* ---- rules.c ---- */

/* Records the decision for the observed iteration: infinities in a skipped one come from the scale, if others were
 * finite. */
void amp__survey_decided(amp_context *context, bool skipped);

/* ---- memory.c ---- */

/* Under the context's lock. */
void amp__memory_now(const amp_context *context, amp_memory *out);
amp_status amp__memory_at(const amp_context *context, amp_level level, amp_memory *out);

/* ---- later.c ---- */

/* Each counts something on a device. False: it cannot be had. `entry` is that of the argument. */
bool amp__later_tensor(struct amp__seen_call *call, struct amp__place *place, const amp_span *span,
                       struct amp__seen *entry, bool is_output, const void *handle);
/* The host's tensor, as it was before a cast, if there was one. */
void amp__later_before_cast(struct amp__seen_call *call, struct amp__place *place, const amp_span *span,
                            const void *handle);
/* Times each factor. */
bool amp__later_param(struct amp__observer *observer, const struct amp__param *param, uint32_t what,
                      const amp_span *span, const amp_factor *factors, size_t n_factors);
bool amp__later_update(struct amp__observer *observer, const struct amp__param *param, const amp_span *now,
                       const amp_span *before);
/* The call is over, and has its number. */
void amp__later_call_ended(const struct amp__seen_call *seen);
/* All of it is on its way, or left out. */
void amp__later_send(struct amp__observer *observer);
/* Enters all of it, as if read at once, except for gradients that no step got. Waits. */
void amp__later_receive(struct amp__observer *observer, bool skipped);
/* FP32, in memory of the parameter's place. NULL: it cannot be had. */
float *amp__later_copy(struct amp__observer *observer, const struct amp__param *param, const amp_span *weights);
void amp__later_forget(struct amp__observer *observer);
/* Before the places end. */
void amp__later_end(struct amp__observer *observer);

/* ---- decision.c ---- */

/* A bracket has ended: skips that the host hears of let the next iterations be observed. */
void amp__decision_follow(struct amp__observer *observer, const struct amp__decided_bracket *bracket);
/* Waits for the decision in flight, that of observer->due. */
void amp__decision_wait(struct amp__observer *observer);
void amp__decision_end(struct amp__observer *observer);

/* ---- fp8.c ---- */

/* Writes the losses of a cast to the format at the best scale of these elements, which is a power of two. */
void amp__fp8_losses(const amp_statistics *s, enum amp__fp8 kind, struct amp__fp8_losses *out);
/* Adds a few blocks of the elements, others for another seed. */
void amp__fp8_sample(const amp_span *span, uint64_t seed, struct amp__fp8_blocks *blocks);
void amp__fp8_add(struct amp__fp8_blocks *into, const struct amp__fp8_blocks *blocks);
/* Is it an input of a product, which FP8 would cast? Its bias is none. */
bool amp__fp8_casts(const struct amp__seen *seen);
/* Writes the losses of all iterations, each at a scale of its own. */
void amp__fp8_total(const struct amp__seen *seen, enum amp__fp8 kind, struct amp__fp8_losses *out);

/* ---- reach.c ---- */

/* Finds the place of memory on `device`. *place NULL: the CPU can read it. False: it cannot be read. */
bool amp__observe_find(const amp_context *context, amp_device device, const void *memory, struct amp__place **place);
/* place NULL: the CPU can read it. Else *memory becomes *copy, which is the caller's to free. False: it cannot be
 * had. */
bool amp__observe_reach(const struct amp__place *place, const void **memory, uint64_t bytes, void **copy);

/* ---- told.c ---- */

void amp__observe_free_told(struct amp__observer *observer);
/* The line of the program that calls the op of this name, as the host reported it, or NULL. */
const char *amp__observe_line(const struct amp__observer *observer, const char *op);

/* ---- calls.c ---- */

void amp__seen_begin(struct amp__seen_call *seen, struct amp__op *op);
bool amp__observe_wants_op(const struct amp__op *op);
/* Adds one tensor to the call's memory of this argument. `memory`: where the op has it. */
void amp__observe_remember(struct amp__seen_call *seen, const char *name, bool is_output, amp_dtype dtype,
                           const amp_statistics *statistics, const void *memory);
/* One tensor of the call. */
void amp__observe_handle(struct amp__seen_call *seen, void *handle, const char *name, bool is_output);
void amp__observe_span(struct amp__seen_call *seen, const amp_span *span, const char *name, bool is_output);
/* Looks at calls of an op: their inputs on the op's side, their outputs on the host's. */
extern const struct amp__probe amp__observe_probe;

/* ---- params.c ---- */

/* Backward is over, and nothing unscaled yet. */
void amp__observe_scaled(amp_context *context, struct amp__optimizer *const *optimizers, size_t n);
/* The bracket has ended with a decision. */
void amp__observe_decided(amp_context *context, struct amp__optimizer *const *optimizers, size_t n,
                          const struct amp__decided_bracket *bracket);
void amp__observe_forget_before(struct amp__observer *observer);

/* ---- culprit.c ---- */

/* Drops the notes on parameters of this iteration. */
void amp__observe_forget_uses(struct amp__observer *observer);
/* Ops that write a number that the model's author chose. */
bool amp__observe_fills(const struct amp__op *op);
/* Returns true if -infinity in an input of this op is a mask. */
bool amp__observe_takes_masks(const struct amp__op *op);
/* A call is over. */
void amp__observe_call(amp_context *context, struct amp__seen_call *seen);
/* Judges a call with all inputs and outputs known: did it make a non-finite value? */
void amp__observe_judge(struct amp__observer *observer, const struct amp__seen_call *seen);
/* Records that an op wrote a non-finite value to memory, if that is the gradient of a parameter. */
void amp__observe_gradient(amp_context *context, const void *memory);
/* Record that the present call uses the parameter, that its gradient was made now, and, without ops in backward, that
 * this gradient is not finite. */
void amp__observe_use(const struct amp__seen_call *seen, const struct amp__param *param);
void amp__observe_made(amp_context *context, const struct amp__param *param);
void amp__observe_suspect(struct amp__observer *observer, const struct amp__param *param);
/* Returns the first weight that is not finite in this bracket, or NULL, and since when. is_observed: they were read. */
const struct amp__param *amp__observe_bad_weight(const amp_context *context, uint64_t bracket, bool is_observed);
/* A bracket that is not observed: where gradients that are not finite were stepped on, and where wiring.c looks at
 * gradients (at a scale that is always 1: brackets 1, 2, 4, 8, ...), weights are looked at once. */
void amp__observe_follow_weights(const amp_context *context, const struct amp__decided_bracket *bracket);
/* Where the last overflow that was observed began, in words. False: none was. */
bool amp__observe_words(amp_context *context, amp__text *text);
/* Reports the suspect, or the non-finite weight, as culprit of the overflowed bracket, with its number in the trace. */
void amp__observe_accuse(amp_context *context, const struct amp__decided_bracket *bracket, uint64_t number,
                         const struct amp__param *weight);

/* ---- tell.c ---- */

/* Writes the observations of this iteration, and the updates of the bracket before, to the trace. */
void amp__observe_tell(amp_context *context, uint64_t bracket, uint32_t what);
void amp__observe_tell_memory(amp_context *context, uint64_t bracket);
void amp__observe_tell_culprit(amp_context *context, uint64_t bracket);
/* The members of `memory`, in a line. */
void amp__observe_add_memory(amp__text *line, const amp_memory *memory);

#endif
