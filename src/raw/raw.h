/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Raw buffers: ops of hosts that pass `float *` and extents. Two ways. Replace: the op has an implementation for the
 * 16-bit type, and gets 16-bit copies of its inputs (weights are packed once per version); what it writes is widened
 * back. Emulate: the host's own FP32 op runs on inputs rounded through the 16-bit type, and what it writes is rounded,
 * so that the result is, bit for bit, that of widening 16-bit inputs, computing in FP32 and rounding the outputs.
 * Gradient accumulators, which the op adds to (registered gradients), stay FP32 sums: under emulate the op adds into
 * zeros, which are rounded and then added. Under replace whatever the op updates is passed as it is.
 */
#ifndef AMP_RAW_ROOM_H
#define AMP_RAW_ROOM_H

#include "amp_raw.h"
#include "context/op.h"
#include "context/probe.h"
#include "context/ranges.h"
#include "context/visit.h"
#include "kernels/round.h"
#include "call/call.h"

/* SEED: only the seed is looked after, and weights that were released. COPY: private FP32 copies of all buffers, the
 * inputs rounded as REPLACE rounds them, and nothing goes back (reference.c). */
enum amp__raw_mode { AMP__RAW_NONE, AMP__RAW_REPLACE, AMP__RAW_EMULATE, AMP__RAW_SEED, AMP__RAW_COPY };

struct amp__raw {
    enum amp__raw_mode mode;
    amp_dtype low;
    bool low_sums; /* an emulated 16-bit model: gradient sums are rounded too */
    float seed; /* the factor for the constant that backward starts from */
    bool verify; /* watch.c looks at the call */
    bool lists;  /* what the mode does not touch is in `buffers` too */
    bool found; /* a buffer or handle that the op works on: not one that is kept, or that is not there */
    size_t n;
    size_t capacity;
    struct amp__raw_buffer *buffers; /* of the call's memory */
    struct amp__casting *casting;
    struct amp__counts counts; /* of what came in */
};

enum amp__raw_mode amp__raw_mode_of(const struct amp__op *op);
/* What a seed in a call of this op is to be multiplied with now; 1: nothing. */
float amp__seed_factor(const struct amp__op *op);
/* Has the op raw buffers, of its own or behind structs that the host visits? */
bool amp__raw_takes(const struct amp__op *op);

/* Repoints the entries of `argv` for buffers, whose pointers then lie in `pointers`, until the casting's end. */
amp_status amp__raw_enter(struct amp__raw *raw, const struct amp__bound *bound, void **argv, void **pointers);
/* The same for what the host's visit finds: structs by value become copies in `argv`; what they point to, and what it
 * finds behind pointers, is repointed where it is, buffers here and handles by `take`. */
amp_status amp__raw_visit(struct amp__raw *raw, const struct amp__bound *bound, void **argv, amp__take_field *take,
                          void *user);
/* After the op: what it wrote goes where the host looks for it. */
void amp__raw_leave(const struct amp__raw *raw, struct amp__op *op);

/* ---- rows.c: elements on their way in ---- */

/* The temporary gets the host's elements: through the low type, in it, times the seed's factor, or as they are. */
enum amp__into { AMP__INTO_ROUNDED, AMP__INTO_NARROWED, AMP__INTO_SCALED, AMP__INTO_COPIED };
void amp__raw_fill(const struct amp__raw *raw, const struct amp__raw_buffer *buffer, enum amp__into how,
                   struct amp__counts *counts); /* counts: what rounding did; may be NULL */

/* ---- verify.c ---- */

/* Puts the probe of amp_config.verify on all ops, where that is on. */
void amp__verify_begin(amp_context *context);

/* ---- release.c ---- */

amp_status amp__weights_release(amp_context *context, uint64_t *bytes);
amp_status amp__weights_restore(amp_context *context); /* nothing is lost where it fails: it may be called again */

/* ---- watch.c: verify, what a call does to its arguments held against what was said of them ---- */

/* Bytes before a temporary of `bytes`, and behind it: as many, so that FP32 written into 16 bits stays inside. */
size_t amp__guard_of(size_t bytes);

struct amp__reference;
struct amp__watch {
    struct amp__watched *items; /* of the call's memory */
    size_t n, capacity;
};

/* Fills what nobody has written yet: a signalling NaN. */
void amp__watch_fill(void *memory, size_t bytes, bool narrow);
/* Is there as much memory as the op was told, and of that type, as far as it is registered? */
amp_status amp__watch_check(const struct amp__casting *casting, const struct amp__raw_buffer *buffer);
/* On the op's side: bound->argv is what it will get. */
amp_status amp__watch_enter(struct amp__watch *watch, const struct amp__probed *call);
/* Once for each op and each gradient that it adds to: does it add? It runs one more time to tell. */
amp_status amp__watch_probe(struct amp__watch *watch, const struct amp__probed *call);
/* False: it found something. `reference`: what FP32 made of the call, or nothing. */
bool amp__watch_leave(const struct amp__watch *watch, struct amp__op *op, const struct amp__reference *reference);
/* Was something written around the buffer's temporary? Then that is told. */
bool amp__watch_guards(const struct amp__raw_buffer *buffer, struct amp__op *op);

/* ---- reference.c: verify, a 16-bit implementation held against the op's own FP32 function ---- */

struct amp__reference {
    struct amp__outcome *outcomes; /* one for each buffer that the op writes; of the call's memory */
    size_t n;                      /* 0: this call is not compared */
    size_t kind;                   /* of call, a number in op->comparisons */
    bool decides;                  /* its inputs would show a transpose */
};

/* Runs the FP32 function on copies, if the call adds to what is known of the implementation for `low`. Before anything
 * of the call is converted; the copies are the call's. */
amp_status amp__reference_run(struct amp__reference *reference, const struct amp__probed *call);
/* Is memory, read as FP32, the result that the FP32 function had for the buffer at `host`? */
bool amp__reference_is(const struct amp__reference *reference, const float *host, const void *memory);
/* After the implementation, once the host's buffers have its results. */
void amp__reference_judge(const struct amp__reference *reference, struct amp__op *op);
/* For amp_health: ops that were compared, and those that were not, with the reasons. */
void amp__reference_health(const amp_context *context, amp__text *text);

/* ---- strays.c: verify, gradients of parameters that nobody described ---- */

void amp__strays_note(const struct amp__probed *call);                 /* the buffers of a call */
void amp__strays_judge(amp_context *context);                          /* at a bracket's end: AMP-M79 */
void amp__strays_free(amp_context *context);

#endif
