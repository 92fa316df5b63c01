/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happened, as data: events, counters of ops, the record of a loss, what a configuration came to. amp.h has
 * amp_explain, the text for people.
 */
#ifndef AMP_DIAGNOSTICS_H
#define AMP_DIAGNOSTICS_H

#include "amp.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Events ------------------------------------------------------------------------------------------------------ */

/* What an event is about, and which members of amp_event speak of it. Later versions may have more kinds: ignore those
 * that you do not know. */
typedef int32_t amp_event_kind;
enum {
    AMP_EVENT_LOG = 1, /* message */
    AMP_EVENT_WARNING = 2, /* message: something the user should look at */
    AMP_EVENT_SKIP = 3, /* a step was skipped: loss_id, scale_before, scale_after, message */
    AMP_EVENT_SCALE_CHANGE = 4, /* the loss scale changed: loss_id, scale_before, scale_after */
    AMP_EVENT_ERROR = 5, /* an error was kept inside a wrapped call: status, message */
    AMP_EVENT_BRACKET = 6 /* a bracket has decided, whatever it decided: loss_id, action, scale_before, scale_after,
                             first_nonfinite; before the events of its skip and its scale change */
};

/* What the hook `event` is told. Borrowed. Members that the kind does not name are 0. */
typedef struct amp_event {
    uint32_t struct_size;
    amp_event_kind kind; /* AMP_EVENT_* */
    amp_status status;   /* of an error */
    uint32_t loss_id;    /* whose scale */
    float scale_before;  /* that the gradients carried */
    float scale_after;   /* that the next ones will carry */
    const char *message; /* borrowed; never NULL. Skips and scale changes come each and every time, but with words only
                            the first ten of a kind and loss, then every one whose number is a power of two; "" else */
    amp_context *context; /* whose event it is */
    amp_action action;    /* AMP_STEP or AMP_SKIP */
    int32_t reserved;     /* 0 */
    const char *first_nonfinite; /* parameter whose gradient was the first non-finite one in this bracket; NULL: all
                                    were finite here. Valid until amp_shutdown */
    const char *code; /* of a finding, "AMP-M01", which the message begins with too; else NULL. Static */
} amp_event;

/* amp_config.log: what of it is written to standard error, a line each, where the host has no hook `event`. The
 * environment's AMP_LOG (off, error, warn, info, trace) says it where the configuration does not. */
enum {
    AMP_LOG_DEFAULT = 0, /* AMP_LOG, else AMP_LOG_WARN */
    AMP_LOG_OFF = 1,     /* nothing */
    AMP_LOG_ERROR = 2,   /* errors that wrapped calls kept, and findings that fail a call */
    AMP_LOG_WARN = 3,    /* and warnings */
    AMP_LOG_INFO = 4,    /* and skips and changes of the scale, as far as they have words */
    AMP_LOG_TRACE = 5    /* and each bracket */
};

/* amp_config.trace, or AMP_TRACE=FILE in the environment: every bracket's decision, every warning, error and finding,
 * and in the end what became of each op, as JSON Lines: docs/reference/trace.md. One write a bracket, nothing in a
 * call. The name is borrowed for amp_initialize, which fails with AMP_ERR_IO where the file cannot be opened. Each
 * process has a file of its own: the rank (RANK and the like) stands before the extension, and a name in use is passed
 * over. */

/* amp_config.verify, or AMP_VERIFY=1 in the environment: for the first run of an adapter, a few times slower. Each call
 * of a wrapped op is held against what its schema and the hook visit say: extents reach into no other registered
 * buffer, outputs are written and not read before, inputs are not written, copies of libamp's have guards around them
 * that are as large as they, types are what they are said to be, slots still hold their wrappers. An op that adds to
 * registered gradients runs once more, to see that it adds (what it adds to other memory counts twice then). A 16-bit
 * implementation of an op of raw buffers is compared with the op's own FP32 function, which runs before it on copies,
 * two or three times, in the first two calls of each kind (integers, sizes; 64 kinds of an op) that would show a fault:
 * not those of zeros, constants or overflow. amp_health lists the ops that were compared, and those that were not, with
 * the reason. Ops with AMP_OP_STATEFUL do not run more often than the host calls them. What is found are findings
 * AMP-M23 to AMP-M29, AMP-M60, AMP-M71 and AMP-M72. Casts are not kept. */

/* ---- Findings ---------------------------------------------------------------------------------------------------- */

/* What is wired wrongly, or looks like it: docs/reference/mistakes.md has each code, why it is wrong and what mends it.
 * Most are looked for in the first two brackets of an optimizer that a step follows; each is told once, as an event. */
typedef struct amp_finding {
    uint32_t struct_size;
    amp_status status;   /* of the call that failed for it; AMP_OK: a warning */
    const char *code;    /* "AMP-M01". Static */
    const char *subject; /* op or parameter; "": of the whole. Valid until amp_shutdown */
    const char *message; /* the whole line. Valid until amp_shutdown */
    uint64_t times;      /* how often it was seen */
} amp_finding;

#define AMP_FINDING_INIT AMP_SIZED_(amp_finding)

/* What was found so far, the oldest first; capacity and count as in amp_master_params. */
AMP_API AMP_MUST_CHECK amp_status amp_get_findings(amp_context *context, amp_finding *findings, size_t capacity,
                                                   size_t *count);

/* A report for people, best after the first bracket and step: what was wired, called, lowered, cast and taken from the
 * cache; what carried the scale; gradients seen, missing, unlisted; decisions and the steps that took them; every
 * finding. Its last line is "sound", or "N findings". Text, capacity and length as in amp_explain. */
AMP_API AMP_MUST_CHECK amp_status amp_health(amp_context *context, char *text, size_t capacity, size_t *length);

/* ---- The whole step twice ---------------------------------------------------------------------------------------- */

/* The host's own forward and backward, for amp_verify_step: what an iteration does up to amp_scale_loss_end, brackets
 * included, without the optimizer's step, on the same batch and from the same random numbers each time. *loss := the
 * loss, not scaled. */
typedef amp_status (*amp_run)(void *self, double *loss);

/* For an adapter's first test: before the first step, or between two. Runs `run` with everything as it would be
 * without libamp (FP32 parameters, ops as they come, brackets that do nothing), thus again with rounded and with
 * halved parameters, then through the wiring (more than once where the scale is too large at first), and as at first
 * once more; and compares the loss and, parameter by parameter, the gradients that the optimizers would see. At O0 the
 * bits must be the same (unless the scale is no power of two, or the host does not repeat its own); at other levels
 * the L2 distance may be 1/16 of the norm in fp16, 1/4 in bfloat16, and eight times what rounding the parameters does,
 * but never 0.95. What fits is told as an AMP_EVENT_LOG; what does not are findings AMP-M61 and AMP-M62, and
 * AMP_ERR_CONFLICT. A graph that was built through the wiring keeps its casts in every pass. A gradient is held
 * against a sixteenth of the largest one, per element, too: one that is 0 but for rounding cannot be the same.
 * Afterwards parameters and buffers that were described, scales and records are as before; gradients are cleared,
 * fixed buffers to zeros (a host that keeps its momentum there calls it before its first step). Needs, while it runs,
 * twenty bytes for each element of a trained parameter, beside a copy of it; and the hooks view and grad.
 * AMP_ERR_WRONG_STATE: run stepped, left a bracket open, left no gradient, or does not repeat itself;
 * AMP_ERR_UNSUPPORTED: an optimizer holds the masters itself (AMP_OPTIMIZER_HOLDS_MASTERS). */
AMP_API AMP_MUST_CHECK amp_status amp_verify_step(amp_context *context, amp_run run, void *self);

/* ---- Ops and losses ---------------------------------------------------------------------------------------------- */

/* What became of an op. */
typedef struct amp_op_stats {
    uint32_t struct_size;
    uint32_t index;        /* among ops of the same name */
    const char *name;      /* valid until amp_shutdown */
    amp_class op_class;    /* what the policy does with it */
    amp_dtype last_target; /* type chosen at the last call, AMP_DTYPE_DEFAULT: none yet */
    uint64_t calls;        /* calls that the policy saw */
    uint64_t passed;       /* calls that ran as they came: no scope, another context's, inside an op, backward */
    uint64_t casts;        /* tensors cast */
    uint64_t cache_hits;   /* tensors taken from the cache */
    uint64_t failures;     /* calls whose casts failed */
    int32_t wrapped;       /* 1: the slot holds a wrapper */
    int32_t reserved;
    uint64_t overflowed; /* raw buffers: finite values that became infinite in the 16-bit type, */
    uint64_t zeroed;     /* values other than zero that became zero, */
    uint64_t subnormal;  /* and values that are subnormal in it; weights packed once are not counted */
    uint64_t gated;      /* calls that ran in FP32 because the gate found the 16-bit type slower */
    uint64_t no_tensor_cores; /* AMP_OP_MATMUL: calls on GPUs without tensor cores for the 16-bit type, */
    uint64_t unaligned;       /* and calls on others with a dimension that is no multiple of 8; 0 with the gate off */
} amp_op_stats;

#define AMP_OP_STATS_INIT AMP_SIZED_(amp_op_stats)

/* One entry per op of the context, in the order given to initialize; capacity and count as in amp_master_params. */
AMP_API AMP_MUST_CHECK amp_status amp_get_op_stats(amp_context *context, amp_op_stats *stats, size_t capacity,
                                                   size_t *count);

/* The last bracket of a loss. */
typedef struct amp_record {
    uint32_t struct_size;
    amp_action action;     /* what it decided */
    float scale_before;    /* that its gradients carried */
    float scale_after;     /* that the next ones carry */
    uint64_t brackets;     /* decided so far with this loss_id: not those that delayed, failed or were cancelled */
    uint64_t skipped;      /* of them with an overflow */
    uint32_t skips_in_row; /* now */
    uint32_t unskipped;    /* clean brackets since the last overflow, or since the window was full */
    const char *first_nonfinite; /* parameter whose gradient was the first non-finite one, in the order of the
                                    optimizers' lists, at the last overflow (amp_get_culprit has that of backward);
                                    NULL: none yet. Valid until amp_shutdown */
    uint32_t hysteresis_left; /* overflows until the scale backs off, that one included */
    float next_scale;         /* mxnet: of the bracket after the next; else scale_after */
    uint64_t clean_run;       /* deepspeed: clean brackets since the last overflow; else 0 */
} amp_record;

#define AMP_RECORD_INIT AMP_SIZED_(amp_record)

/* The record of loss_id, from 0 to num_losses - 1. Where the scaler lives on a device, waits for that, and counts what
 * graphs did that were replayed; AMP_ERR_WRONG_STATE while its stream is being captured. */
AMP_API AMP_MUST_CHECK amp_status amp_get_record(amp_context *context, uint32_t loss_id, amp_record *record);

/* The error that a wrapped call kept since the last check or end, now forgotten; AMP_OK if none. Where scalers live on
 * a device, waits for that, and AMP_ERR_TOO_MANY_SKIPS comes from here. */
AMP_API AMP_MUST_CHECK amp_status amp_check(amp_context *context);

/* ---- Configuration ----------------------------------------------------------------------------------------------- */

/* What a configuration comes to at its level, checked as amp_initialize_many checks it: *resolved is the same with
 * every member that has a default filled in. gate and emulate stay as they were given. */
AMP_API AMP_MUST_CHECK amp_status amp_config_resolve(const amp_config *config, amp_config *resolved);

/* The same for the configuration that `context` was made with; trace is NULL. */
AMP_API AMP_MUST_CHECK amp_status amp_get_config(amp_context *context, amp_config *config);

#ifdef __cplusplus
}
#endif

#endif /* AMP_DIAGNOSTICS_H */
