/* SPDX-License-Identifier: Apache-2.0 */
/* Ops, and models that have them: the description by the host, and the properties from the policy. */
#ifndef AMP_OP_H
#define AMP_OP_H

#include "common/map.h"
#include "host/host.h"
#include "intercept/intercept.h"
#include "opt_levels/lists.h"

struct amp__comparisons;
struct amp__probe;

/* The places for probes (probe.h) that take part in a call. */
enum amp__probe_slot { AMP__PROBE_VERIFY, AMP__PROBE_OBSERVE, AMP__PROBES };

/* Its implementations besides the slot's own function. NULL: none. */
struct amp__op_functions {
    amp_fn fp16, bf16, fp32;
};

/* Rulings by the set of the operands' types. */
struct amp__op_types {
    bool tabulated;       /* the table has the ruling */
    _Atomic(bool) alone;  /* and no probe is on the op */
    uint8_t cast;         /* types that are cast where they are not the target */
    uint8_t targets[64];  /* target by set of types (bits 1 << amp_dtype). 0: no cast, 255: see amp__ruling_on */
};

/* The data of gate.c for an op. */
struct amp__op_gate {
    _Atomic(uint64_t) least;  /* size of a call that runs low (0: no call is held back) */
    _Atomic(uint8_t) source;  /* enum amp__gate_source */
    bool applies;             /* calls are held back by their size */
    _Atomic(int32_t) capability; /* of the last GPU that multiplied for it: 10 * major + minor */
    _Atomic(uint64_t) misfit;    /* the last dimension that was no multiple of 8: 4 times it, and which: m, n, k */
    const char *who, *unit;      /* AMP_OP_MATMUL: names for the look-up in the table */
};

/* Calls of an op, and their outcome. The first calling thread counts without locked instructions, in first_*, as does a
 * later thread at its address. The others count in the rest. */
struct amp__op_tally {
    _Atomic(const struct amp__thread *) first;
    _Atomic(uint64_t) first_calls, first_hits;
    _Atomic(uint64_t) calls, passed, casts, cache_hits, failures, overflowed, zeroed, subnormal, gated, no_tensor_cores,
        unaligned;
    _Atomic(int32_t) last_target;
};

/* An op, forward, step or zero_grad: a copy of the descriptor, with its properties from the policy. */
struct amp__op {
    amp_context *context;
    const amp_host *host;
    void *self; /* of its model or optimizer */
    char *name;
    struct amp__schema *schema; /* NULL: AMP_OP_DIRECT without one */
    uint32_t index, flags;      /* index among ops of the same name */
    amp_class op_class;
    amp_class listed; /* class at levels that cast ops */
    const char *reason; /* why it has that class, for explain */
    bool is_backward;   /* backward_of: obeys its class inside backward too */
    const struct amp__op *forward; /* the first op with the name in backward_of (NULL: not a backward) */
    amp_fn *slot;
    struct amp__op_functions functions;
    const void *on_failure, *on_skip;
    bool wrapped;
    const struct amp__op *shares; /* the op of an earlier model that takes this slot's calls (NULL: none) */
    size_t wrap; /* 1 + its number in the context's patch (0: it was not added to it) */
    void *target; /* struct amp__model or amp__optimizer it belongs to */

    uint8_t raw_mode; /* enum amp__raw_mode: the handling of its raw buffers */
    bool seeds;       /* backward starts from a buffer of its calls, which carries the loss scale */

    bool only_watched; /* verify: wrapped to check arguments, without the policy */
    _Atomic(bool) cast_seen; /* the type of its first cast was checked */
    struct amp__map probed;  /* verify: calls known to add to a gradient, or not to, under the lock */
    bool is_product; /* by the lists or AMP_OP_MATMUL: sums of products, or backward of such */
    struct amp__comparisons *comparisons; /* verify: comparisons with its FP32 function, under the lock of the
                                             context */

    const struct amp__probe *glance; /* enters each call as it comes: the gate's watch on GPUs (NULL: none) */
    _Atomic(const struct amp__probe *) probes[AMP__PROBES]; /* NULL: none in this slot */

    struct amp__op_types types;
    struct amp__op_gate gate;
    struct amp__op_tally tally;
};

/* Does this thread count in first_*? */
static inline bool amp__op_counts_first(struct amp__op_tally *tally, const struct amp__thread *thread) {
    const struct amp__thread *first = atomic_load_explicit(&tally->first, memory_order_relaxed);
    return first == thread ||
           (!first && atomic_compare_exchange_strong_explicit(&tally->first, &first, thread, memory_order_relaxed,
                                                              memory_order_relaxed));
}
static inline void amp__op_tally_add(struct amp__op_tally *tally, const struct amp__thread *thread,
                                    _Atomic(uint64_t) *of_first, _Atomic(uint64_t) *of_others, uint64_t n) {
    if (amp__op_counts_first(tally, thread))
        atomic_store_explicit(of_first, atomic_load_explicit(of_first, memory_order_relaxed) + n, memory_order_relaxed);
    else atomic_fetch_add_explicit(of_others, n, memory_order_relaxed);
}
static inline void amp__op_count_call(struct amp__op *op, const struct amp__thread *thread) {
    amp__op_tally_add(&op->tally, thread, &op->tally.first_calls, &op->tally.calls, 1);
}
static inline void amp__op_count_hits(struct amp__op *op, const struct amp__thread *thread, uint64_t n) {
    amp__op_tally_add(&op->tally, thread, &op->tally.first_hits, &op->tally.cache_hits, n);
}
static inline uint64_t amp__op_calls(const struct amp__op *op) { return op->tally.first_calls + op->tally.calls; }
static inline uint64_t amp__op_hits(const struct amp__op *op) { return op->tally.first_hits + op->tally.cache_hits; }

static inline bool amp__op_takes_handles(const struct amp__op *op) {
    return !op->schema || op->schema->n_tensors || op->schema->ret.kind == AMP__TENSOR;
}
/* Does the host look into the structs of its calls? */
static inline bool amp__visits(const struct amp__op *op) {
    return op->host->visit && op->schema && op->schema->takes_structs;
}
/* Handles inside structs are operands too. Hosts of raw buffers alone have no cast, and no handles. */
static inline bool amp__looks_for_handles(const struct amp__op *op) { return op->host->cast && amp__visits(op); }
amp_fn amp__op_low(const struct amp__op *op); /* its implementation for the level's 16-bit type (NULL: none) */

struct amp__model {
    amp_model *user;
    amp_host host;
    struct amp__op *ops;
    size_t n_ops;
    struct amp__op forward;
    bool has_forward;
    bool whole_table; /* AMP_MODEL_WHOLE_TABLE */
};

/* The models of a context. */
struct amp__models {
    struct amp__model *list;
    size_t n;
};

/* By its name, batch norm's forward or backward? */
bool amp__op_is_norm(const struct amp__op *op);
/* Does the level keep batch norm in FP32, and is no parameter said to be batch norm's? */
bool amp__norm_is_missing(const amp_context *context);
/* AMP-M64, if so and if an op of batch norm was called: a model need not use all of a table. */
void amp__norm_check(amp_context *context);
/* named.c: the ops with possibly this name, or name#index: the caller compares. */
amp_status amp__ops_named(amp_context *context, const char *name, const struct amp__keyed **entries, size_t *n);
bool amp__op_is_numbered(const struct amp__op *op, const char *name); /* name#index */

/* ---- slots that saw no call ---- */

uint64_t amp__op_passed(const struct amp__op *op); /* calls that ran as they came */
/* Returns the number of calls for undescribed objects, if its slot had no others. */
uint64_t amp__op_strangers(const struct amp__op *op);
bool amp__op_unused(const struct amp__op *op);
/* Adds the ops of `ops` without a call, by name, behind `found` others in the text, and returns their number. */
size_t amp__name_unused(amp__text *names, const struct amp__op *ops, size_t n, size_t found);
/* Adds its name, with its number, to a list of `found` names. */
void amp__name_op(amp__text *names, const struct amp__op *op, size_t found);

#endif
