/* SPDX-License-Identifier: Apache-2.0 */
/* A load that is going on: read and applied in load.c, matched in match.c. */
#ifndef AMP_STATE_LOAD_H
#define AMP_STATE_LOAD_H

#include "context/devices.h"
#include "context/params.h"
#include "state/dict.h"

/* A parameter, or a moment of one, and where its new value lies in the data. */
struct target {
    const char *name;
    struct amp__param *param;
    const struct amp__state_tensor *tensor; /* in the file (NULL: it is not there) */
    const char *src; /* its bytes */
    void *elements; /* the host's */
    float *moment;  /* moment, or its scales (NULL: the parameter itself, or codes) */
    uint8_t *codes; /* moment in 8 bits (NULL: none) */
    float *scales;  /* its scales */
    bool second;    /* codes of sqrt(v) */
    bool optional;  /* scales, which a file of an FP32 moment lacks */
    bool scaled;    /* the file has the scales of these codes */
    uint64_t size;  /* of the moment */
    struct amp__place *place; /* place with the data (NULL: the CPU) */
};

/* One file of it. */
struct part {
    const struct amp__source *source;
    struct amp__header header;
    void *owned_header;
};

struct load {
    amp_context *context; /* for reports, and for owns */
    const struct amp__policy *policy;
    struct amp__params *params;
    struct amp__brackets *brackets;
    struct amp__devices *devices;
    struct part *parts;
    size_t n_parts;
    struct target *targets;
    size_t n_targets;
    struct amp__state_own *owns; /* parameters of libamp's own optimizers */
    uint64_t *steps;             /* and their steps */
    size_t n_owns, n_foreign;    /* moments that no optimizer here keeps */
    struct amp__state_scaler *scalers;
    size_t n_scalers;
    uint64_t file_scalers;
    void *owned_data;
};

static inline bool is_of_optimizer(const struct target *target) { return target->moment || target->codes; }

/* Adds the name of the part to an error message if there are several parts. */
amp_status amp__load_of_part(const struct load *load, size_t i, amp_status status);
/* Matches tensors with targets. Afterwards every target has its tensor with the position of its elements. */
amp_status amp__load_match(struct load *load);

#endif
