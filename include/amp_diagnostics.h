/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Diagnostics as data: events, findings, counters of ops, records of losses, the resolved configuration. amp_explain in
 * amp.h is the report as text.
 */
#ifndef AMP_DIAGNOSTICS_H
#define AMP_DIAGNOSTICS_H

#include "amp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Events ------------------------------------------------------------------------------------------------------ */

/* Kinds of events, with the members of amp_event that they set. Ignore unknown kinds: later versions may add some. */
typedef int32_t amp_event_kind;
enum {
    AMP_EVENT_LOG = 1, /* message */
    AMP_EVENT_WARNING = 2, /* message */
    AMP_EVENT_SKIP = 3, /* a step was skipped: loss_id, scale_before, scale_after, message */
    AMP_EVENT_SCALE_CHANGE = 4, /* the loss scale changed: loss_id, scale_before, scale_after */
    AMP_EVENT_ERROR = 5, /* a wrapped call failed, and the next end or amp_check returns its error: status, message */
    AMP_EVENT_BRACKET = 6 /* each decision of a bracket: loss_id, action, scale_before, scale_after, first_nonfinite;
                             before the events of its skip and its scale change */
};

/* An event, for the hook `event`; borrowed. Members that its kind does not set are 0. */
typedef struct amp_event {
    uint32_t struct_size;
    amp_event_kind kind; /* AMP_EVENT_* */
    amp_status status;   /* status of the error */
    uint32_t loss_id;    /* loss of the scale */
    float scale_before;  /* scale of the gradients */
    float scale_after;   /* scale of the next gradients */
    const char *message; /* borrowed, never NULL. Of skips and scale changes only the first ten of a loss, and later
                            those with a power of two as their number, have a message (others: "") */
    amp_context *context; /* its context */
    amp_action action;    /* AMP_STEP or AMP_SKIP */
    int32_t reserved;     /* 0 */
    const char *first_nonfinite; /* name of the parameter with the first infinite or NaN gradient; NULL: none on this
                                    rank. Valid until amp_shutdown */
    const char *code; /* code of a finding ("AMP-M01"), or NULL. Valid for the life of the process */
} amp_event;

/* amp_config.log: events that are written to standard error, a line each, if the host has no hook `event`. The default
 * is the environment variable AMP_LOG (off, error, warn, info, trace). */
enum {
    AMP_LOG_DEFAULT = 0, /* AMP_LOG, else AMP_LOG_WARN */
    AMP_LOG_OFF = 1,     /* nothing */
    AMP_LOG_ERROR = 2,   /* errors of wrapped calls, and findings that are errors */
    AMP_LOG_WARN = 3,    /* also warnings */
    AMP_LOG_INFO = 4,    /* also skips and scale changes with a message */
    AMP_LOG_TRACE = 5    /* also each bracket */
};

/* amp_config.trace, or AMP_TRACE=FILE in the environment: a file of JSON Lines with every decision, warning, error and
 * finding, and the counters of each op at the end (docs/reference/trace.md). It costs one write a bracket, and nothing
 * in a call. The name is borrowed during amp_initialize, which fails with AMP_ERR_IO if the file cannot be opened. Each
 * process has its own file: the rank (RANK and similar variables) is inserted before the extension, and names in use
 * are skipped. */

/* amp_config.verify, or AMP_VERIFY=1 in the environment: checks for the first run of an adapter, which is a few times
 * slower. Each wrapped call is compared with its schema and the hook visit: extents stay within their registered
 * buffers, outputs are written and not read before, inputs are not written, copies have guards of their own size around
 * them, types are as described, slots still hold their wrappers. An op that accumulates into registered gradients runs
 * a second time, to see that it adds (its sums in other memory then count twice). A 16-bit implementation of an op on
 * raw buffers is compared with the FP32 function of the op, which runs before it on copies, two or three times, in the
 * first two calls of each kind (integers, sizes; 64 kinds of an op) that can show a fault: calls with zeros, constants
 * or overflow cannot. amp_health lists the compared ops, and the others with the reason. Ops with AMP_OP_STATEFUL run
 * once. Faults are findings AMP-M23 to AMP-M29, AMP-M60, AMP-M71 and AMP-M72. Casts are not cached. */

/* ---- Findings ---------------------------------------------------------------------------------------------------- */

/* A probable mistake in the use of libamp; docs/reference/mistakes.md explains each code. Most checks run in the first
 * two brackets of an optimizer that a step follows; AMP-M89 and AMP-M90 come from samples of every fourth bracket from
 * the 13th to the 256th, in CPU memory. Each finding is reported once, as an event. */
typedef struct amp_finding {
    uint32_t struct_size;
    amp_status status;   /* status of the call that failed (AMP_OK: a warning) */
    const char *code;    /* "AMP-M01", valid for the life of the process */
    const char *subject; /* op or parameter, or "", valid until amp_shutdown */
    const char *message; /* the whole line, valid until amp_shutdown */
    uint64_t times;      /* number of times it was found */
} amp_finding;

#define AMP_FINDING_INIT AMP_SIZED_(amp_finding)

/* Lists the findings so far, oldest first. capacity and count: as in amp_master_params. */
AMP_API AMP_MUST_CHECK amp_status amp_get_findings(amp_context *context, amp_finding *findings, size_t capacity,
                                                   size_t *count);

/* Writes a report as text; call it after the first bracket and step. It counts wired and called ops, casts and cached
 * casts, gradients found, missing and unlisted, decisions and steps, names the carrier of the loss scale, and lists
 * every finding. Its last line is "sound" or "N findings". text, capacity and length: as in amp_explain. */
AMP_API AMP_MUST_CHECK amp_status amp_health(amp_context *context, char *text, size_t capacity, size_t *length);

/* ---- The whole step twice ---------------------------------------------------------------------------------------- */

/* One iteration of the host for amp_verify_step: forward, and backward in its brackets, without the step, with the same
 * batch and random numbers each time. Writes the unscaled loss to *loss. */
typedef amp_status (*amp_run)(void *self, double *loss);

/* The first test of an adapter: compares one iteration with and without libamp. Call it before the first step or
 * between steps. It calls `run` without libamp (FP32 parameters, no casts, brackets without effect), in the same way
 * with rounded and with halved parameters, then with libamp (repeatedly if the scale is too large), and without libamp
 * again. It then compares the loss and the gradients of each parameter. At O0 they must be bit-equal (unless the scale
 * is no power of two, or the host does not repeat its bits). At other levels the L2 distance may be 1/16 of the norm in
 * fp16, 1/4 in bfloat16, and eight times the effect of rounding the parameters, but always below 0.95. Elements are
 * also compared with a sixteenth of the largest gradient, since a gradient that is 0 except for rounding cannot repeat.
 * Agreement is an AMP_EVENT_LOG, differences are findings AMP-M61 and AMP-M62, and AMP_ERR_CONFLICT. A graph that was
 * built with libamp has its casts in every pass. Afterwards described parameters and buffers, scales and records are as
 * before; gradients are cleared, fixed buffers set to 0 (a host with momentum there calls it before its first step). It
 * needs the hooks view and grad, and a copy and 20 bytes an element of each trained parameter. An error of run, or
 * of an op in it, is returned. AMP_ERR_WRONG_STATE: run stepped, left a bracket open, left no gradient, or does not
 * repeat. AMP_ERR_UNSUPPORTED: AMP_OPTIMIZER_HOLDS_MASTERS is set. */
AMP_API AMP_MUST_CHECK amp_status amp_verify_step(amp_context *context, amp_run run, void *self);

/* ---- Ops and losses ---------------------------------------------------------------------------------------------- */

/* Counters of an op. */
typedef struct amp_op_stats {
    uint32_t struct_size;
    uint32_t index;        /* number among ops of the same name, from 0 */
    const char *name;      /* valid until amp_shutdown */
    amp_class op_class;    /* its casts */
    amp_dtype last_target; /* type of the casts in the last call (AMP_DTYPE_DEFAULT: no call yet) */
    uint64_t calls;        /* calls under the policy */
    uint64_t passed;       /* calls without the policy: in a scope of another context or of none, without a scope if
                              contexts share the slot, inside an op, in backward */
    uint64_t casts;        /* tensors cast */
    uint64_t cache_hits;   /* casts found in the cache */
    uint64_t failures;     /* calls with a failed cast */
    int32_t wrapped;       /* 1: the slot holds a wrapper */
    int32_t reserved;
    uint64_t overflowed; /* finite values in raw buffers that became infinite in 16 bits, without packed weights */
    uint64_t zeroed;     /* nonzero values in raw buffers that became 0, without packed weights */
    uint64_t subnormal;  /* values in raw buffers that became subnormal, without packed weights */
    uint64_t gated;      /* calls that the gate ran in FP32 */
    uint64_t no_tensor_cores; /* AMP_OP_MATMUL: calls on GPUs without tensor cores for the type (0 with the gate off) */
    uint64_t unaligned;       /* AMP_OP_MATMUL: calls on other GPUs with a dimension that is no multiple of 8 */
} amp_op_stats;

#define AMP_OP_STATS_INIT AMP_SIZED_(amp_op_stats)

/* Lists the ops of the context, in the order of amp_initialize. capacity and count: as in amp_master_params. */
AMP_API AMP_MUST_CHECK amp_status amp_get_op_stats(amp_context *context, amp_op_stats *stats, size_t capacity,
                                                   size_t *count);

/* The last bracket of a loss, and its counters. */
typedef struct amp_record {
    uint32_t struct_size;
    amp_action action;     /* its decision */
    float scale_before;    /* scale of its gradients */
    float scale_after;     /* scale of the next gradients */
    uint64_t brackets;     /* brackets with a decision so far: not those that delayed, failed or were cancelled */
    uint64_t skipped;      /* brackets with an overflow */
    uint32_t skips_in_row; /* skips since the last step */
    uint32_t unskipped;    /* brackets without overflow since the last one, or since the window was full */
    const char *first_nonfinite; /* name of the parameter with the first infinite or NaN gradient at the last overflow,
                                    in the order of the lists of optimizers (amp_get_culprit: in that of backward);
                                    NULL: none yet. Valid until amp_shutdown */
    uint32_t hysteresis_left; /* overflows until the scale backs off, from 1 */
    float next_scale;         /* mxnet: scale of the bracket after the next, others: scale_after */
    uint64_t clean_run;       /* deepspeed: brackets without overflow since the last one, others: 0 */
} amp_record;

#define AMP_RECORD_INIT AMP_SIZED_(amp_record)

/* Writes the record of loss_id (from 0 to num_losses - 1). Call it while no other thread ends a bracket. If the scaler
 * is on a device it waits for the device, and includes replayed graphs. AMP_ERR_WRONG_STATE: its stream is being
 * captured. */
AMP_API AMP_MUST_CHECK amp_status amp_get_record(amp_context *context, uint32_t loss_id, amp_record *record);

/* Returns and clears the error of a wrapped call since the last check or end, or AMP_OK. No later end returns it, and
 * no step skips for it. If scalers are on a device it waits for the device, and may return AMP_ERR_TOO_MANY_SKIPS. */
AMP_API AMP_MUST_CHECK amp_status amp_check(amp_context *context);

/* ---- Configuration ----------------------------------------------------------------------------------------------- */

/* Checks a configuration as amp_initialize_many does, and writes it to *resolved with every default filled in, except
 * for gate, log, verify, observe and trace, which are as given. */
AMP_API AMP_MUST_CHECK amp_status amp_config_resolve(const amp_config *config, amp_config *resolved);

/* Writes the configuration of a context, filled in as by amp_config_resolve. trace is NULL. */
AMP_API AMP_MUST_CHECK amp_status amp_get_config(amp_context *context, amp_config *config);

#ifdef __cplusplus
}
#endif

#endif /* AMP_DIAGNOSTICS_H */
