/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a training's numbers are like, while it runs: of each op and argument, each parameter and gradient, how its
 * values lie in the binades (amp_statistics), and where an overflow began. The picture is that of Micikevicius et al.
 * 2017, Mixed Precision Training, figures 2 and 3. Values are read and never changed: an observed run trains the same
 * bits.
 *
 * An iteration is what happens from the end of one bracket to the end of the next, so that a forward before
 * amp_scale_loss_begin belongs to it. Those that are not observed cost nothing. With a trace (docs/trace.md) each
 * observed iteration is written there.
 */
#ifndef AMP_OBSERVE_H
#define AMP_OBSERVE_H

#include "amp.h"
#include "amp_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is looked at. Memory that only a device can read is not. */
enum {
    AMP_SEE_INPUTS = 1u << 0,    /* what an op gets, cast already where it is cast */
    AMP_SEE_OUTPUTS = 1u << 1,   /* what it returned or wrote, as the next one gets it */
    AMP_SEE_WEIGHTS = 1u << 2,   /* parameters under the host's handles, at the bracket's end */
    AMP_SEE_SCALED = 1u << 3,    /* gradients as backward left them, times the loss scale */
    AMP_SEE_GRADIENTS = 1u << 4, /* gradients as the optimizer gets them; not in a bracket that is skipped */
    AMP_SEE_MASTERS = 1u << 5,   /* FP32 masters, where there are some */
    AMP_SEE_UPDATES = 1u << 6    /* what the step changed weights by (masters, where there are some) */
};

/* What is to be looked at, and when. */
typedef struct amp_observe_options {
    uint32_t struct_size;
    uint32_t what;       /* AMP_SEE_*; 0: all of it */
    uint32_t every;      /* one iteration in so many; 0: 200 */
    uint32_t first;      /* and the first so many; 0: 1 */
    uint32_t after_skip; /* and so many after a skipped one, to find where the next overflow begins; 0: 1 */
    uint32_t n_names;    /* of names */
    const char *const *names; /* patterns (*, ?, [a-z] as in a shell) of ops and parameters; NULL: all. Copied */
    uint64_t max_bytes; /* of memory that is kept; what does not fit is counted (amp_observed.left_out). 0: 64 MiB */
} amp_observe_options;

#define AMP_OBSERVE_OPTIONS_INIT AMP_SIZED_(amp_observe_options)

/* Observes from here on, the iteration that is under way too; options NULL: all defaults. Called again it begins
 * anew: what was seen is forgotten. Ops that the level leaves alone have no wrapper unless amp_config.observe was
 * AMP_ON, and are not seen then. AMP_OBSERVE in the environment does both for any host: "1", or any of
 * "every=N,first=N,after_skip=N,what=inputs+outputs+weights+scaled+gradients+masters+updates,names=conv*+fc*".
 * Not while a bracket is open (AMP_ERR_WRONG_STATE). AMP_ERR_INVALID_ARGUMENT: an unknown bit. One thread, as
 * brackets; ops may run on several. */
AMP_API AMP_MUST_CHECK amp_status amp_observe(amp_context *context, const amp_observe_options *options);
/* Ends it, and forgets what was seen. */
AMP_API AMP_MUST_CHECK amp_status amp_observe_stop(amp_context *context);

/* What was seen of one thing. Pointers are valid until the next amp_observe, amp_observe_stop or amp_shutdown; read
 * them between iterations. */
typedef struct amp_observation {
    uint32_t struct_size;
    uint32_t what;     /* one of AMP_SEE_* */
    const char *op;    /* inputs and outputs; else NULL */
    uint32_t index;    /* of the op among those of its name */
    amp_dtype dtype;   /* of its elements, when last seen */
    const char *name;  /* the argument or field ("return": what it returned), or the parameter */
    uint64_t iterations; /* in which it was seen */
    uint64_t lost_fp16, lost_bf16; /* updates other than 0 that weights of this type would not have shown, in total */
    const amp_statistics *last;  /* of the last observed iteration */
    const amp_statistics *total; /* of all */
} amp_observation;

#define AMP_OBSERVATION_INIT AMP_SIZED_(amp_observation)

/* Ops in the order of their first call, then parameters; capacity and count as in amp_master_params. Nothing is
 * observed: 0. */
AMP_API AMP_MUST_CHECK amp_status amp_get_observations(amp_context *context, amp_observation *observations,
                                                       size_t capacity, size_t *count);

/* An argument of a call, in few words. */
typedef struct amp_seen_argument {
    const char *name;    /* argument or field; "return" */
    int32_t is_output;   /* 1: after the call; 0: before it */
    amp_dtype dtype;     /* of its elements */
    uint64_t elements;   /* of all that the call has of this name */
    uint64_t nonfinite;  /* infinities and NaN */
    double largest;      /* greatest finite |x| */
    double least;        /* least |x| that is not 0 */
} amp_seen_argument;

/* So many of a call are remembered. */
#define AMP_SEEN_ARGUMENTS 12

/* Where an overflow began, in an observed iteration: the first op, in the order of execution, forward or backward, that
 * made what is not finite from what was. One that got what is not finite from nobody who was seen counts as well. */
typedef struct amp_culprit {
    uint32_t struct_size;
    uint32_t index;        /* of the op */
    const char *op;        /* NULL: no op was seen to make it (one that libamp does not know, or a device's) */
    uint64_t bracket;      /* that overflowed, counted from 1 as in the trace; 0: none was observed */
    uint64_t call;         /* among the iteration's wrapped calls, from 1 on */
    int32_t was_cast;      /* 1: what it got was finite before libamp cast it to 16 bits */
    int32_t in_backward;   /* 1: it is the backward of that call, as the order of forward tells: the host's backward has
                              no ops of its own, `parameter` was used there last, and arguments are not known */
    int32_t reserved;
    uint32_t n_arguments;  /* of arguments */
    const char *parameter; /* whose gradient was the first, in the order of backward, not to be finite; NULL: unknown */
    amp_seen_argument arguments[AMP_SEEN_ARGUMENTS]; /* what it got, then what it made */
} amp_culprit;

#define AMP_CULPRIT_INIT AMP_SIZED_(amp_culprit)

/* Of the last bracket that overflowed while observed. An AMP_EVENT_LOG says the same when it happens. */
AMP_API AMP_MUST_CHECK amp_status amp_get_culprit(amp_context *context, amp_culprit *culprit);

#ifdef __cplusplus
}
#endif

#endif /* AMP_OBSERVE_H */
