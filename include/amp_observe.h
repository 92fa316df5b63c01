/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a training's numbers are like, while it runs: of each op and argument, each parameter and gradient, how its
 * values lie in the binades (amp_statistics), and where an overflow began. The picture is that of Micikevicius et al.
 * 2017, Mixed Precision Training, figures 2 and 3. Values are read and never changed: an observed run trains the same
 * bits.
 *
 * An iteration is what happens from the end of one bracket to the end of the next, so that a forward before
 * amp_scale_loss_begin belongs to it. An evaluation between brackets does not: calls during which the host's hook
 * grad_enabled says 0 are not looked at there. Without that hook nothing tells them from a training's, and they are
 * counted with it. Iterations that are not observed cost nothing. With a trace (docs/reference/trace.md) each
 * observed iteration is written there.
 */
#ifndef AMP_OBSERVE_H
#define AMP_OBSERVE_H

#include "amp.h"
#include "amp_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What is looked at. A CUDA device that has parameters counts itself what is in its memory (strided tensors are copied
 * to the CPU, which waits for the device), not while a graph is captured. Nobody waits for these counts: they are
 * looked at when the host knows the bracket's decision anyway, or else before the next observed iteration, at the end
 * of the next bracket, or when asked for, whichever comes first; so culprits and lines of the trace may come an
 * iteration late. A host that launches ahead is held up where more than eight tables of lists are on their way. */
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
    uint32_t after_skip; /* and so many after a skipped one, to find where the next overflow begins; 0: 1. Where a
                            device decides, they begin an iteration later at the earliest: nobody waits for it */
    uint32_t n_names;    /* of names */
    const char *const *names; /* patterns (*, ?, [a-z] as in a shell) of ops and parameters; NULL: all. Copied */
    uint64_t max_bytes; /* of memory that is kept; amp_survey's text says what did not fit. 0: 64 MiB */
} amp_observe_options;

#define AMP_OBSERVE_OPTIONS_INIT AMP_SIZED_(amp_observe_options)

/* Observes from here on, the iteration that is under way too; options NULL: all defaults. Called again it begins
 * anew: what was seen is forgotten. Ops that the level leaves alone have no wrapper unless amp_config.observe was
 * AMP_ON, and are not seen then. AMP_OBSERVE in the environment does both for any host: "1", or any of
 * "every=N,first=N,after_skip=N,what=inputs+outputs+weights+scaled+gradients+masters+updates,names=conv*+fc*".
 * Not while a bracket is open (AMP_ERR_WRONG_STATE), nor while other threads run ops. AMP_ERR_INVALID_ARGUMENT: an
 * unknown bit. One thread, as brackets; ops may run on several. */
AMP_API AMP_MUST_CHECK amp_status amp_observe(amp_context *context, const amp_observe_options *options);
/* Ends it, and forgets what was seen. Not while other threads run ops. */
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

/* What an overflow came from. */
enum {
    AMP_CAUSE_UNKNOWN = 0, /* no op was seen to make it */
    AMP_CAUSE_OP = 1,      /* the op made it of finite values */
    AMP_CAUSE_CAST = 2,    /* the op's input was finite before it was cast to 16 bits */
    AMP_CAUSE_INPUT = 3,   /* the op's input was not finite, and no op that was seen made it: the batch, a constant, an
                              op that libamp does not see */
    AMP_CAUSE_WEIGHT = 4   /* a parameter itself is not finite: amp_culprit.weight */
};

/* Where an overflow began, in an observed iteration: the first op, in the order of execution, forward or backward, that
 * made NaN or infinity from finite values, or got them from outside and passed them on. -infinity counts where an op
 * made NaN of it, if arithmetic made it; one that was filled in, as in a mask, only where there is no other culprit. */
typedef struct amp_culprit {
    uint32_t struct_size;
    uint32_t index;        /* of the op */
    const char *op;        /* NULL: no op was seen to make it: it is one that libamp does not know */
    uint64_t bracket;      /* that overflowed, counted from 1 as in the trace; 0: none was observed */
    uint64_t call;         /* among the iteration's wrapped calls, from 1 on */
    int32_t was_cast;      /* 1: AMP_CAUSE_CAST */
    int32_t in_backward;   /* 1: it is the backward of that call, as the order of forward tells: the host's backward has
                              no ops of its own, `parameter` was used there last, and arguments are not known */
    int32_t cause;         /* AMP_CAUSE_* */
    uint32_t n_arguments;  /* of arguments */
    const char *parameter; /* whose gradient was the first, in the order of backward, not to be finite: the order in
                              which ops wrote gradients or the host told of them (amp_observe_call), else the reverse of
                              that in which forward used the parameters, else of the optimizer's list; NULL: unknown */
    amp_seen_argument arguments[AMP_SEEN_ARGUMENTS]; /* what it got, then what it made */
    const char *weight;    /* AMP_CAUSE_WEIGHT: the first parameter that is not finite; else NULL */
    uint64_t since;        /* the bracket from which on it is not finite: the last that it can be, */
    uint64_t since_least;  /* and the first. They are equal where each bracket was checked */
} amp_culprit;

#define AMP_CULPRIT_INIT AMP_SIZED_(amp_culprit)

/* Of the last bracket that overflowed while observed. An AMP_EVENT_LOG says the same when it happens, once for each
 * parameter. */
AMP_API AMP_MUST_CHECK amp_status amp_get_culprit(amp_context *context, amp_culprit *culprit);

/* ---- Hosts that call ops themselves (amp_cast_args), or name what no slot shows -------------------------------- */

/* What a call got or made: one tensor. */
typedef struct amp_observed_value {
    const char *name;  /* of the argument; copied. Several of one name are counted together */
    void *tensor;      /* the host's handle, read by its hook view; NULL: */
    amp_span span;     /* these elements, compact, in the CPU's memory. Shape: amp_kernels.h */
    int32_t is_output; /* 1: the call made it. In backward a parameter, by its handle: its gradient is made now */
    int32_t reserved;
} amp_observed_value;

/* A call that has returned. */
typedef struct amp_observed_call {
    uint32_t struct_size;
    int32_t in_backward;  /* 1: of the op's backward; it is seen as an op of its own, "linear (backward)" */
    const char *op;       /* as the lists know it ("linear"), copied; */
    const char *where;    /* before it, ("encoder.layers.3": "encoder.layers.3: linear"); NULL: nothing */
    const amp_observed_value *values; /* in any order */
    uint64_t n_values;    /* of values */
    int32_t is_cast;      /* 1: a conversion to another type, no op of its own: an infinity that it made is told as the
                             cast of the next op's input */
    int32_t reserved;
} amp_observed_call;

#define AMP_OBSERVED_CALL_INIT AMP_SIZED_(amp_observed_call)

/* 1: the iteration that is under way is observed. Any thread; costs two reads. */
AMP_API int32_t amp_is_observing(const amp_context *context);
/* Counts a call as those of wrapped ops are: for amp_get_observations, the culprit, the survey and the trace. Outside
 * of an observed iteration it does nothing. What cannot be read (sparse tensors, other devices) is left out. Inputs
 * that the call wrote are to be told as outputs alone. Any thread. AMP_ERR_INVALID_ARGUMENT: op or a value has no
 * name. */
AMP_API AMP_MUST_CHECK amp_status amp_observe_call(amp_context *context, const amp_observed_call *call);

/* ---- Memory: what a training needs beside its program --------------------------------------------------------- */

/* Bytes. */
typedef struct amp_memory {
    uint32_t struct_size;
    amp_level level;    /* the context's, or the one that was asked for */
    uint64_t weights;   /* of parameters, as the host has them */
    uint64_t gradients; /* of those that are trained, in the parameters' types, whether they are there now or not */
    uint64_t masters;   /* of FP32 masters, */
    uint64_t master_gradients; /* and of their FP32 gradients, which libamp keeps from the first bracket on */
    uint64_t moments;   /* of amp_optim.h's optimizers; a host's own are not known */
    uint64_t casts;     /* alive: copies for ops, in the cache, on the tape, in calls; */
    uint64_t most_casts; /* and the most at once. Both of those made in observed iterations, 0 without any */
    uint64_t outputs;   /* of all that ops made in the last observed iteration: activations, and their gradients where
                           ops of backward are seen */
    uint64_t packed_from; /* of tensors that amp_pack was given in the last iteration, for this context, */
    uint64_t packed;      /* and of what it made of them */
    uint64_t masters_split; /* of masters if those that can be were split (AMP_SPLIT): bfloat16 parameters' */
} amp_memory;

#define AMP_MEMORY_INIT AMP_SIZED_(amp_memory)

/* As it is now. */
AMP_API AMP_MUST_CHECK amp_status amp_get_memory(amp_context *context, amp_memory *memory);
/* What the same training would take at another level, with that level's defaults; the seed is FP32's 8 bytes a trained
 * weight with its gradient, and 4 an element of the outputs. casts and most_casts: each weight once, where the level
 * casts ops; the most there can be in the cache. Nothing is packed. outputs needs an observed iteration, and is halved
 * where the op works in 16 bits. AMP_ERR_INVALID_ARGUMENT: there is no such level. */
AMP_API AMP_MUST_CHECK amp_status amp_predict_memory(amp_context *context, amp_level level, amp_memory *memory);

/* ---- Survey: would this training survive with 16 bits, and where not? ------------------------------------------- */

/* One advice. Codes: docs/guide/choose-a-level.md. */
typedef struct amp_advice {
    uint32_t struct_size;
    uint32_t levels;     /* that it concerns: bits 1u << AMP_O1 and so on */
    const char *code;    /* "AMP-A01". Static */
    const char *op;      /* NULL: of a parameter, or of all */
    uint32_t index;      /* of the op among those of its name */
    uint32_t reserved;
    const char *name;    /* of the argument, the field or the parameter; NULL: of all */
    uint64_t elements;   /* that it is about, */
    uint64_t of;         /* of so many that were seen */
    double largest;      /* greatest finite |x| of these */
    const char *message; /* what was seen and what to do; begins with the code */
} amp_advice;

/* A level, as far as what was seen tells of it. */
typedef struct amp_surveyed_level {
    uint32_t struct_size;
    int32_t fits;         /* 1: no advice but on speed concerns it; 2: it fits once the ops of the advice are FP32 */
    uint32_t n_advice;    /* that concern it */
    uint32_t reserved;
    amp_memory memory;    /* as amp_predict_memory says; memory.level: which level */
} amp_surveyed_level;

/* What a survey found. Elements of both arrays are struct_size of the first apart. Pointers are valid until the next
 * amp_survey, amp_observe, amp_observe_stop or amp_shutdown. */
typedef struct amp_survey_result {
    uint32_t struct_size;
    amp_level level;      /* advised: O2, else O1, if they fit, else their twins in bfloat16; these first on a CPU on
                             which products in fp16 are not faster than FP32's (amp_gate.h), unless
                             amp_config.gate is off */
    float init_scale;     /* advised at O1 and O2: a power of two, one binade below the greatest at which no gradient
                             overflows; the default where no gradient was seen */
    int32_t reserved;
    uint64_t iterations;  /* that were observed */
    const amp_advice *advice; /* those that matter most first */
    uint64_t n_advice;    /* of advice */
    const amp_surveyed_level *levels; /* O0, O1 and so on */
    uint64_t n_levels;    /* of levels */
    const char *text;     /* all of it, for people */
} amp_survey_result;

#define AMP_SURVEY_RESULT_INIT AMP_SIZED_(amp_survey_result)

/* What each level would make of all that amp_observe has seen: run some iterations of the training as it is, best at O0
 * with amp_config.observe on and amp_observe_options.every 1, then ask. It says what would be lost by the values that
 * were seen, no more: another batch may have larger ones. AMP_ERR_WRONG_STATE: nothing was observed. */
AMP_API AMP_MUST_CHECK amp_status amp_survey(amp_context *context, amp_survey_result *result);

#ifdef __cplusplus
}
#endif

#endif /* AMP_OBSERVE_H */
