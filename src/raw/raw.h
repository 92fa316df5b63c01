/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Raw buffers: ops of hosts that pass `float *` and extents. There are two ways. Replace: the op has an implementation
 * for the 16-bit type and gets 16-bit copies of its inputs (weights are packed once per version), and its results are
 * widened. Emulate: the FP32 op of the host runs on inputs rounded to the 16-bit type, and its results are rounded,
 * with the bits of widening 16-bit inputs, computing in FP32 and rounding the outputs. Gradient accumulators
 * (registered gradients that the op adds to) stay FP32 sums: under emulate the op adds to zeros, which are rounded and
 * then added, under replace every updated buffer is passed as it is.
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
    bool lists;  /* buffers that the mode leaves alone are in `buffers` too */
    bool found; /* a buffer or handle that the op works on: not one that is kept, or that is not there */
    size_t n;
    size_t capacity;
    struct amp__raw_buffer *buffers; /* of the call's memory */
    struct amp__casting *casting;
    struct amp__counts counts; /* counts of the inputs */
};

enum amp__raw_mode amp__raw_mode_of(const struct amp__op *op);
/* Returns the factor of a seed in a call of this op now (1: none). */
float amp__seed_factor(const struct amp__op *op);
/* Has the op raw buffers, of its own or behind structs that the host visits? */
bool amp__raw_takes(const struct amp__op *op);

/* Points the entries of `argv` for buffers to their temporaries, by way of `pointers`, until the end of the casting. */
amp_status amp__raw_enter(struct amp__raw *raw, const struct amp__bound *bound, void **argv, void **pointers);
/* Does the same for buffers and handles from the hook visit: structs by value become copies in `argv`, and pointers in
 * them and behind pointers are replaced in place, buffers here and handles by `take`. */
amp_status amp__raw_visit(struct amp__raw *raw, const struct amp__bound *bound, void **argv, amp__take_field *take,
                          void *user);
/* Writes the results of the op to the buffers of the host, and puts the addresses that it keeps right. */
void amp__raw_leave(const struct amp__raw *raw, struct amp__op *op, const struct amp__bound *bound);

/* ---- kept.c: addresses that the op keeps ---- */

/* After the op: where it stored the address of a temporary in a struct that it got, the struct gets the host's. */
void amp__raw_put_addresses(const struct amp__raw *raw, const struct amp__bound *bound);

/* ---- rows.c: elements on their way in ---- */

/* The temporary gets the host's elements: through the low type, in it, times the seed's factor, or as they are. */
enum amp__into { AMP__INTO_ROUNDED, AMP__INTO_NARROWED, AMP__INTO_SCALED, AMP__INTO_COPIED };
void amp__raw_fill(const struct amp__raw *raw, const struct amp__raw_buffer *buffer, enum amp__into how,
                   struct amp__counts *counts); /* counts of the rounding, may be NULL */

/* ---- verify.c ---- */

/* Puts the probe of amp_config.verify on all ops, where that is on. */
void amp__verify_begin(amp_context *context);

/* ---- release.c ---- */

amp_status amp__weights_release(amp_context *context, uint64_t *bytes);
amp_status amp__weights_restore(amp_context *context); /* nothing is lost where it fails: it may be called again */

/* ---- watch.c: verify, the accesses of a call compared with its description ---- */

/* Bytes before a temporary of `bytes`, and behind it: as many, so that FP32 written into 16 bits stays inside. */
size_t amp__guard_of(size_t bytes);

struct amp__reference;
struct amp__watch {
    struct amp__watched *items; /* of the call's memory */
    size_t n, capacity;
};

/* Fills unwritten memory with signalling NaNs. */
void amp__watch_fill(void *memory, size_t bytes, bool narrow);
/* Checks that a buffer has the described size and type, as far as it is registered. */
amp_status amp__watch_check(const struct amp__casting *casting, const struct amp__raw_buffer *buffer);
/* Begins to watch a call. bound->argv has the arguments of the op. */
amp_status amp__watch_enter(struct amp__watch *watch, const struct amp__probed *call);
/* Checks once for each op and gradient that the op adds to it, by running it once more. */
amp_status amp__watch_probe(struct amp__watch *watch, const struct amp__probed *call);
/* Ends watching. Returns false after a finding. `reference`: the FP32 results of the call, or none. */
bool amp__watch_leave(const struct amp__watch *watch, struct amp__op *op, const struct amp__reference *reference);
/* Returns true, and reports it, if there was a write around the temporary of the buffer. */
bool amp__watch_guards(const struct amp__raw_buffer *buffer, struct amp__op *op);

/* ---- reference.c: verify, a 16-bit implementation held against the op's own FP32 function ---- */

struct amp__reference {
    struct amp__outcome *outcomes; /* one for each buffer that the op writes; of the call's memory */
    size_t n;                      /* 0: this call is not compared */
    size_t kind;                   /* of call, a number in op->comparisons */
    bool decides;                  /* its inputs would show a transpose */
};

/* Runs the FP32 function on copies, if the call helps to judge the implementation for `low`, before anything of the
 * call is converted. The call owns the copies. */
amp_status amp__reference_run(struct amp__reference *reference, const struct amp__probed *call);
/* Is memory, read as FP32, the result that the FP32 function had for the buffer at `host`? */
bool amp__reference_is(const struct amp__reference *reference, const float *host, const void *memory);
/* After the implementation, once the host's buffers have its results. */
void amp__reference_judge(const struct amp__reference *reference, struct amp__op *op);
/* For amp_health: ops that were compared, and those that were not, with the reasons. */
void amp__reference_health(const amp_context *context, amp__text *text);

/* ---- strays.c: verify, gradients of undescribed parameters ---- */

void amp__strays_note(const struct amp__probed *call);                 /* the buffers of a call */
void amp__strays_judge(amp_context *context);                          /* at a bracket's end: AMP-M79 */
void amp__strays_free(amp_context *context);

#endif
