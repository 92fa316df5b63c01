/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The interface of instruments. Verify, observe and the watch of the gate are probes on an op: they inspect its calls
 * without an effect on the results. The handler runs the probes on the op without knowing them.
 */
#ifndef AMP_PROBE_H
#define AMP_PROBE_H

#include "context/bound.h"
#include "context/op.h"

struct amp__casting;

/* One raw buffer of one call. */
struct amp__raw_buffer {
    float *host;
    void *temporary; /* temporary for the op (NULL: the buffer of the host) */
    const char *name;
    uint16_t flags;  /* AMP__WRITE, AMP__READ_WRITE: the use by the op */
    bool scratch;    /* a workspace that is not read afterwards */
    bool as_it_is;   /* `lists`: the mode does not touch it */
    bool narrow;     /* the temporary has 16-bit elements */
    struct amp__extents extents;
    enum { AMP__RAW_NOTHING, AMP__RAW_ROUND, AMP__RAW_WIDEN, AMP__RAW_ADD } after;
};

/* A call as probes see it. */
struct amp__probed {
    struct amp__op *op;
    const struct amp__bound *bound;
    struct amp__casting *casting; /* memory until the end of the call; NULL at a glance */
    amp_fn function;              /* on the op's side: the function that runs */
    const struct amp__raw_buffer *buffers;
    size_t n_buffers; /* on the op's side and afterwards: those that it gets */
    amp_dtype low;    /* type of its operands */
    float seed;       /* factor of a seed */
    uint8_t mode;     /* enum amp__raw_mode */
};

/* The two sides of a conversion: arguments as the host passes them and results as it gets them; arguments as the op
 * gets them and results as it leaves them. */
enum amp__side { AMP__HOST_SIDE, AMP__OP_SIDE };

/* A call enters on the host's side, then on the op's, and leaves in reverse. */
struct amp__probe {
    bool strict; /* a call that cannot be converted fails, and does not run as it came */
    /* An error fails the call, before the op has run. `room`: AMP__PROBE_ROOM bytes of the call, none at a glance. */
    amp_status (*enter)(const struct amp__probed *call, enum amp__side side, void *room);
    void (*leave)(const struct amp__probed *call, enum amp__side side, void *room);
};

enum { AMP__PROBE_ROOM = 768 };

/* Puts a probe on an op, or takes it off (NULL): its calls take the long way, with their raw buffers listed. */
void amp__op_put_probe(struct amp__op *op, enum amp__probe_slot slot, const struct amp__probe *probe);
static inline const struct amp__probe *amp__op_probe(const struct amp__op *op, int slot) {
    return atomic_load_explicit(&op->probes[slot], memory_order_relaxed);
}
static inline bool amp__op_is_probed(const struct amp__op *op) {
    return amp__op_probe(op, AMP__PROBE_VERIFY) || amp__op_probe(op, AMP__PROBE_OBSERVE);
}

#endif
