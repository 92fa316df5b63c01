/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics of a training while it runs: for each op and argument, each parameter and each gradient a histogram of its
 * values by binades (amp_statistics), and the op at which an overflow began. After the figures 2 and 3 of Micikevicius
 * et al. 2017, Mixed Precision Training. Values are read and never changed: an observed run trains the same bits.
 *
 * An iteration lasts from the end of one bracket to the end of the next, so that it includes the forward before
 * amp_scale_loss_begin. Between brackets, calls during which the hook grad_enabled returns 0 are an evaluation and are
 * not observed. Without that hook an evaluation is observed like a training. Iterations that are not observed cost
 * nothing. With a trace (docs/reference/trace.md) each observed iteration is written to it.
 */
#ifndef AMP_OBSERVE_H
#define AMP_OBSERVE_H

#include "amp.h"
#include "amp_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The values to observe. A CUDA device with parameters counts values in its own memory. (Strided tensors are copied to
 * the CPU, which waits for the device, unless a graph is captured.) No call waits for these counts: they are read when
 * the host knows the decision of the bracket anyway, or else before the next observed iteration, at the end of the next
 * bracket or on request, whichever comes first. So culprits and trace lines may come an iteration late. A host that
 * launches ahead waits if more than eight tables of lists are in flight. */
enum {
    AMP_SEE_INPUTS = 1u << 0,    /* arguments of ops, after their casts */
    AMP_SEE_OUTPUTS = 1u << 1,   /* return values and written arguments of ops, as the next op receives them */
    AMP_SEE_WEIGHTS = 1u << 2,   /* parameters under the handles of the host, at the end of the bracket */
    AMP_SEE_SCALED = 1u << 3,    /* gradients after backward, times the loss scale */
    AMP_SEE_GRADIENTS = 1u << 4, /* gradients for the optimizer, if the bracket is not skipped */
    AMP_SEE_MASTERS = 1u << 5,   /* FP32 masters, if there are any */
    AMP_SEE_UPDATES = 1u << 6    /* changes of weights (of masters, if there are any) by the step */
};

/* Options of amp_observe: the values and iterations to observe. */
typedef struct amp_observe_options {
    uint32_t struct_size;
    uint32_t what;       /* AMP_SEE_* (0: all) */
    uint32_t every;      /* period: one iteration in `every` is observed (0: 200) */
    uint32_t first;      /* number of observed iterations at the start (0: 1) */
    uint32_t after_skip; /* number of observed iterations after a skipped one, to find the next overflow (0: 1). If a
                            device decides, they start an iteration later or more, since no call waits for it */
    uint32_t n_names;    /* number of names */
    const char *const *names; /* patterns (*, ?, [a-z] as in a shell) of ops and parameters, copied (NULL: all) */
    uint64_t max_bytes; /* memory for statistics (0: 64 MiB). The text of amp_survey says if it was too small */
    uint32_t sample;    /* values in CPU memory: one cache line of so many is counted, by amp_statistics_sample, for
                           observing all the time (every 1) in little more time than reading (0: 1, exact counts).
                           Non-finite values and the largest |x| are exact, losses estimated. Updates are exact */
    uint32_t reserved;  /* 0 */
} amp_observe_options;

#define AMP_OBSERVE_OPTIONS_INIT AMP_SIZED_(amp_observe_options)

/* Starts to observe, with the current iteration. options NULL: defaults. A second call starts again without the earlier
 * statistics. Ops that the level does not cast have no wrapper, and are not observed, unless amp_config.observe is
 * AMP_ON. The environment variable AMP_OBSERVE sets both for any host: "1", or any of
 * "every=N,first=N,after_skip=N,sample=N,what=inputs+outputs+weights+scaled+gradients+masters+updates,names=conv*+fc*".
 * Thread rule of brackets, and no other thread may run ops during the call. AMP_ERR_WRONG_STATE: a bracket is open.
 * AMP_ERR_INVALID_ARGUMENT: an unknown bit, or sample above AMP_SAMPLE_MOST. */
AMP_API AMP_MUST_CHECK amp_status amp_observe(amp_context *context, const amp_observe_options *options);
/* Stops observing and drops the statistics. No other thread may run ops during the call. */
AMP_API AMP_MUST_CHECK amp_status amp_observe_stop(amp_context *context);

/* The statistics of one argument, parameter or gradient. Pointers are valid until the next amp_observe,
 * amp_observe_stop or amp_shutdown, and may be read between iterations. */
typedef struct amp_observation {
    uint32_t struct_size;
    uint32_t what;     /* one of AMP_SEE_* */
    const char *op;    /* op of an input or output (NULL for others) */
    uint32_t index;    /* index of the op among those of its name */
    amp_dtype dtype;   /* type of the elements in the last observation */
    const char *name;  /* the argument or field ("return": the return value), or the parameter */
    uint64_t iterations; /* number of iterations with elements of it */
    uint64_t lost_fp16, lost_bf16; /* total number of nonzero updates too small to change a weight of this type */
    const amp_statistics *last;  /* statistics of the last observed iteration */
    const amp_statistics *total; /* statistics of all observed iterations */
} amp_observation;

#define AMP_OBSERVATION_INIT AMP_SIZED_(amp_observation)

/* Lists the observations: ops in the order of their first call, each with its inputs and then its outputs in the order
 * of its arguments; then parameters. capacity and count as in amp_master_params. *count is 0 if nothing is observed. */
AMP_API AMP_MUST_CHECK amp_status amp_get_observations(amp_context *context, amp_observation *observations,
                                                       size_t capacity, size_t *count);

/* Summary of an argument of a call. */
typedef struct amp_seen_argument {
    const char *name;    /* the argument or field, or "return" */
    int32_t is_output;   /* 1: value after the call, 0: value before it */
    amp_dtype dtype;     /* type of the elements */
    uint64_t elements;   /* number of elements of this name in the call */
    uint64_t nonfinite;  /* number of infinities and NaN */
    double largest;      /* largest finite |x| */
    double least;        /* least |x| above 0 */
} amp_seen_argument;

/* The largest number of arguments in an amp_culprit. */
#define AMP_SEEN_ARGUMENTS 12

/* The cause of an overflow. */
enum {
    AMP_CAUSE_UNKNOWN = 0, /* no observed op produced it */
    AMP_CAUSE_OP = 1,      /* the op produced it from finite values */
    AMP_CAUSE_CAST = 2,    /* the input of the op was finite before its cast to 16 bits */
    AMP_CAUSE_INPUT = 3,   /* the input of the op was not finite and no observed op produced it: the batch, a constant,
                              or an op unknown to libamp */
    AMP_CAUSE_WEIGHT = 4   /* a parameter is not finite: amp_culprit.weight */
};

/* The origin of an overflow in an observed iteration: the first op, in the order of execution, forward or backward,
 * that produced NaN or infinity from finite values, or received them from outside and passed them on. A -infinity from
 * arithmetic counts if an op made NaN of it. A -infinity that was filled in, as in a mask, counts only if there is no
 * other culprit. */
typedef struct amp_culprit {
    uint32_t struct_size;
    uint32_t index;        /* index of the op among those of its name */
    const char *op;        /* the op (NULL: no observed op produced the overflow, so it is an op unknown to libamp) */
    uint64_t bracket;      /* number of the bracket that overflowed, from 1 as in the trace (0: no observed overflow) */
    uint64_t call;         /* number of the call among the wrapped calls of the iteration, from 1 */
    int32_t was_cast;      /* 1: AMP_CAUSE_CAST */
    int32_t in_backward;   /* 1: the backward of that call, derived from the order of forward, since backward of this
                              host has no ops; `parameter` was last used there, and arguments are unknown */
    int32_t cause;         /* AMP_CAUSE_* */
    uint32_t n_arguments;  /* entries of arguments */
    const char *parameter; /* parameter with the first non-finite gradient in the order of backward: the order in which
                              ops wrote gradients or the host reported them (amp_observe_call), else the reverse of the
                              order in which forward used the parameters, else the reverse of the list of the optimizer;
                              NULL: unknown */
    amp_seen_argument arguments[AMP_SEEN_ARGUMENTS]; /* inputs, then outputs of the call */
    const char *weight;    /* first parameter that is not finite, for AMP_CAUSE_WEIGHT, else NULL */
    uint64_t since;        /* latest bracket in which `weight` can have become non-finite */
    uint64_t since_least;  /* earliest such bracket, equal to `since` if every bracket was checked */
} amp_culprit;

#define AMP_CULPRIT_INIT AMP_SIZED_(amp_culprit)

/* Describes the last observed bracket that overflowed. An AMP_EVENT_LOG reports the same at once, one time for each
 * parameter. */
AMP_API AMP_MUST_CHECK amp_status amp_get_culprit(amp_context *context, amp_culprit *culprit);

/* ---- Hosts that call ops themselves (amp_cast_args), or name what no slot shows ---------------------------------- */

/* One tensor of a call. */
typedef struct amp_observed_value {
    const char *name;  /* name of the argument, copied, shared by tensors that are counted together */
    void *tensor;      /* handle, read with the hook view (NULL: `span` is used) */
    amp_span span;     /* compact elements in CPU memory, aligned as in amp_kernels.h */
    int32_t is_output; /* 1: output of the call. In backward, with the handle of a parameter: its gradient is
                          complete */
    int32_t reserved;
} amp_observed_value;

/* A call that has returned. */
typedef struct amp_observed_call {
    uint32_t struct_size;
    int32_t in_backward;  /* 1: backward of the op, observed as a separate op "linear (backward)" */
    const char *op;       /* name in the cast lists ("linear"), copied */
    const char *where;    /* prefix of the name, "encoder.layers.3" for "encoder.layers.3: linear" (NULL: none) */
    const amp_observed_value *values; /* inputs and outputs in any order */
    uint64_t n_values;    /* entries of values */
    int32_t is_cast;      /* 1: a cast instead of an op: an infinity from it is reported as the cast of the input of the
                             next op */
    int32_t reserved;
    const char *line;     /* line of the program that calls the op, "model.py:41", copied at the first call (NULL: not
                             known), for the trace */
} amp_observed_call;

#define AMP_OBSERVED_CALL_INIT AMP_SIZED_(amp_observed_call)

/* Returns 1 if the current iteration is observed. Any thread. Costs two reads. */
AMP_API int32_t amp_is_observing(const amp_context *context);
/* Adds a call to the statistics, like the call of a wrapped op: for amp_get_observations, the culprit, the survey and
 * the trace. No effect outside an observed iteration. Tensors that cannot be read (sparse, other devices) are left out.
 * Pass an input that the call overwrote as an output only. Any thread. AMP_ERR_INVALID_ARGUMENT: op or a value has no
 * name. */
AMP_API AMP_MUST_CHECK amp_status amp_observe_call(amp_context *context, const amp_observed_call *call);

/* ---- What only the host knows, for the trace --------------------------------------------------------------------- */

/* Writes a loss, unscaled, beside the loss scale: in the line of the next decision of loss_id. amp_scale_loss_begin
 * does it for a loss of one element in CPU memory that the hook view shows. Without a trace it has no effect. Thread
 * rule of brackets. AMP_ERR_INVALID_ARGUMENT: there is no such loss_id. */
AMP_API AMP_MUST_CHECK amp_status amp_observe_loss(amp_context *context, uint32_t loss_id, double loss);
/* Writes a remark about the training, in words: ("gate", "products in FP32 below 256"), ("data", "day 3"). The report
 * shows the last one about each subject. Without a trace it has no effect. AMP_ERR_INVALID_ARGUMENT: a text is NULL or
 * empty. */
AMP_API AMP_MUST_CHECK amp_status amp_observe_remark(amp_context *context, const char *about, const char *text);

/* ---- Memory of a training ---------------------------------------------------------------------------------------- */

/* Memory of a training in bytes, by purpose. */
typedef struct amp_memory {
    uint32_t struct_size;
    amp_level level;    /* level of the context, or the predicted one */
    uint64_t weights;   /* parameters, in the types that the host has now */
    uint64_t gradients; /* gradients of the trained parameters, in the types of the parameters, present now or not */
    uint64_t masters;   /* FP32 masters */
    uint64_t master_gradients; /* FP32 gradients of masters, allocated at the first bracket that needs them:
                                  those of amp_optimizer.fused stay in 16 bits, if amp_fused_zero_grad clears them */
    uint64_t moments;   /* moments of the optimizers of amp_optim.h, and those of amp_observe_moments */
    uint64_t casts;     /* casts alive now: in the cache, on the tape and in calls, if made in observed iterations */
    uint64_t most_casts; /* largest value of casts, from observed iterations */
    uint64_t outputs;   /* outputs of all ops in the last observed iteration: activations, and their gradients if
                           backward has ops */
    uint64_t packed_from; /* tensors passed to amp_pack with this context in the last iteration, before packing */
    uint64_t packed;      /* the same tensors after packing */
    uint64_t masters_split; /* masters if all bfloat16 parameters had split masters (AMP_SPLIT) */
    uint64_t moments_8bit;  /* moments if those of Adam and AdamW had 8 bits (AMP_FUSED_STATE_8BIT) */
} amp_memory;

#define AMP_MEMORY_INIT AMP_SIZED_(amp_memory)

/* Writes the memory of the context now. */
AMP_API AMP_MUST_CHECK amp_status amp_get_memory(amp_context *context, amp_memory *memory);
/* Reports the bytes of moments of the host's own optimizers, in place of an earlier report. moments_8bit: the bytes if
 * they had 8 bits where libamp can store them so, else `moments` again. Any thread. */
AMP_API AMP_MUST_CHECK amp_status amp_observe_moments(amp_context *context, uint64_t moments, uint64_t moments_8bit);
/* Predicts the memory of the same training at another level with its defaults (AMP_STOCHASTIC has all but masters and
 * master_gradients), from 8 bytes for each trained FP32 weight with its gradient and 4 bytes for each element of the
 * outputs. casts and most_casts: one cast of each weight at levels that cast ops, the largest possible cache. Nothing
 * is packed. outputs needs an observed iteration, and is halved for ops that run in 16 bits.
 * AMP_ERR_INVALID_ARGUMENT: unknown level. */
AMP_API AMP_MUST_CHECK amp_status amp_predict_memory(amp_context *context, amp_level level, amp_memory *memory);

/* ---- Survey: the losses of this training in 16 bits -------------------------------------------------------------- */

/* One advice of a survey. Its codes: docs/guide/choose-a-level.md. */
typedef struct amp_advice {
    uint32_t struct_size;
    uint32_t levels;     /* levels concerned: bits 1u << AMP_O1 and so on */
    const char *code;    /* "AMP-A01", static */
    const char *op;      /* op concerned (NULL: a parameter, or all) */
    uint32_t index;      /* index of the op among those of its name */
    uint32_t reserved;
    const char *name;    /* the argument, field or parameter (NULL: all) */
    uint64_t elements;   /* number of elements concerned */
    uint64_t of;         /* number of elements observed */
    double largest;      /* largest finite |x| of them */
    const char *message; /* the observation and the remedy, after the code */
} amp_advice;

/* The result of a survey for one level. */
typedef struct amp_surveyed_level {
    uint32_t struct_size;
    int32_t fits;         /* 1: all advice for the level is about speed, 2: the level fits once the ops of the advice
                             are FP32, 0: it does not fit */
    uint32_t n_advice;    /* number of advice for the level */
    uint32_t reserved;
    amp_memory memory;    /* amp_predict_memory of memory.level */
} amp_surveyed_level;

/* Nonzero elements that a cast to an FP8 format changes. */
typedef struct amp_fp8_losses {
    uint64_t zeros;      /* become 0 */
    uint64_t subnormals; /* do not become 0, and are below the least normal number: they have fewer bits */
    uint64_t saturated;  /* are beyond the largest number of the format by more than half a step, and become it: in
                            blocks alone */
} amp_fp8_losses;

/* A dry run of FP8 for one input of a product: nothing is computed in FP8. The formats are those of the OCP: E4M3
 * without infinities, up to 448, and E5M2, up to 57344. The scale of a tensor in an iteration is the greatest power of
 * two at which no element overflows, so casts that saturate lose the same as others. Counts are exact, unless
 * amp_observe_options.sample is above 1. Blocks: MXFP8, 32 consecutive elements with a scale of their own, the exponent
 * of their largest, saturating (OCP Microscaling Formats 1.0); a few of each compact tensor in CPU memory are cast. */
typedef struct amp_fp8_input {
    uint32_t struct_size;
    uint32_t index;       /* index of the op among those of its name */
    const char *op;       /* the product */
    const char *name;     /* the argument or field */
    int32_t in_backward;  /* 1: op of backward */
    int32_t stays;        /* 1: more than a twentieth of its nonzero elements become 0, in E4M3, or in backward in E5M2:
                             this product would have to stay in 16 bits */
    uint64_t numbers;     /* nonzero elements in all observed iterations */
    amp_fp8_losses e4m3, e5m2; /* of `numbers` */
    uint64_t block_numbers;    /* nonzero elements of sampled blocks */
    amp_fp8_losses e4m3_blocks, e5m2_blocks; /* of `block_numbers` */
} amp_fp8_input;

/* The result of a survey. The struct_size of the first element of an array is its stride. Pointers are valid until the
 * next amp_survey, amp_observe, amp_observe_stop or amp_shutdown. */
typedef struct amp_survey_result {
    uint32_t struct_size;
    amp_level level;      /* recommended level: O2, else O1, else O5, else O4, the first that fits (O1 also with ops in
                             FP32), or O0 if none does. On a CPU without faster products in fp16 than in FP32
                             (amp_gate.h), O5 and O4 come first, unless amp_config.gate is off */
    float init_scale;     /* recommended scale at O1 and O2: a power of two, one binade below the largest without an
                             overflow in any gradient; the default if no gradient was observed */
    int32_t reserved;
    uint64_t iterations;  /* number of observed iterations */
    const amp_advice *advice; /* advice, most important first */
    uint64_t n_advice;    /* entries of advice */
    const amp_surveyed_level *levels; /* one entry a level, from O0 */
    uint64_t n_levels;    /* entries of levels */
    const char *text;     /* the whole result as text */
    const amp_fp8_input *fp8; /* each input of a product, in the order of the first calls */
    uint64_t n_fp8;       /* entries of fp8 */
} amp_survey_result;

#define AMP_SURVEY_RESULT_INIT AMP_SIZED_(amp_survey_result)

/* Estimates the losses at each level from all observations of amp_observe. Run some iterations of the training first,
 * best at O0 with amp_config.observe on and amp_observe_options.every 1. The result covers the observed values only:
 * another batch may have larger ones. AMP_ERR_WRONG_STATE: nothing was observed. */
AMP_API AMP_MUST_CHECK amp_status amp_survey(amp_context *context, amp_survey_result *result);

#ifdef __cplusplus
}
#endif

#endif /* AMP_OBSERVE_H */
