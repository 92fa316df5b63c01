/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libamp's own optimizers (amp_optim.h): rules as data, one step of one tensor through the kernels, and the state of an
 * optimizer that amp_initialize made. Knows memory only: parameters, masters and brackets are opt_levels' business.
 */
#ifndef AMP_OPTIM_ROOM_H
#define AMP_OPTIM_ROOM_H

#include "amp_optim.h"
#include "common/common.h"
#include "kernels/kernels.h"
#include "kernels/place.h"

#define AMP__MOMENTS 3

#define AMP__OPTIM_COUNT(...) +1
enum { AMP__OPTIM_KINDS = 0 AMP_OPTIM_MAP(AMP__OPTIM_COUNT) };
#undef AMP__OPTIM_COUNT

/* ---- kinds.c ---- */

struct amp__optim_tensor;

/* An entry of AMP_OPTIM_MAP. */
struct amp__optim_kind {
    const char *name;
    uint32_t flags; /* that it takes */
    amp_optim defaults;
    const char *moments[AMP__MOMENTS];
    void (*step)(const amp_optim *rule, const struct amp__optim_tensor *tensor, struct amp__update *u);
};
const struct amp__optim_kind *amp__optim_kind(amp_optim_kind kind); /* NULL: there is none */

static inline bool amp__optim_has(const amp_optim *rule, uint32_t flag) { return (rule->flags & flag) != 0; }

/* ---- rules.c ---- */

/* Checks a rule of the caller. *out has libamp's struct_size. */
amp_status amp__optim_check(const amp_optim *given, const char *what, amp_optim *out);
/* Moment k's name in checkpoints (torch's), NULL: this rule has none. */
const char *amp__optim_moment(const amp_optim *rule, int k);
/* Its elements for a parameter of `size`: NovoGrad has one scalar a tensor. */
uint64_t amp__optim_moment_size(const amp_optim *rule, int k, uint64_t size);
/* The rule can have its moments in 8 bits. */
bool amp__optim_codes(const amp_optim *rule);
/* The rules need the same moments. */
bool amp__optim_same_moments(const amp_optim *a, const amp_optim *b);
/* Does the rule look at norms of gradients: of all, of each tensor? */
static inline bool amp__optim_needs_norm(const amp_optim *rule) {
    return rule->kind == AMP_OPTIM_LAMB && rule->max_grad_norm > 0.0;
}
static inline bool amp__optim_needs_norms(const amp_optim *rule) {
    return rule->kind == AMP_OPTIM_NOVOGRAD || rule->kind == AMP_OPTIM_LARC;
}

/* ---- step.c ---- */

/* beta^t: the same for most tensors, and not to be computed for each. */
struct amp__powers {
    uint64_t step; /* t */
    double of_beta1, of_beta2;
};

/* One tensor as a step finds it. */
struct amp__optim_tensor {
    amp_span grad, param, low; /* low.data NULL: none. param 16-bit: has no master */
    void *remainder;           /* remainder that makes param (bf16) an FP32 master, see amp_optim.h (NULL: none) */
    float *moments[AMP__MOMENTS];
    uint8_t *codes[2]; /* of moments in 8 bits, in place of moments (NULL: none) */
    float *scales[2];
    uint64_t key;      /* key of random numbers, before the step is added */
    bool stochastic;   /* param, bf16 alone, is rounded stochastically */
    uint64_t before;   /* elements of the whole parameter before this tensor */
    uint64_t *steps;
    float inv_scale, factor; /* the gradient is grad * inv_scale * factor */
    double squares;          /* sum of squares of the gradient, if has_squares */
    float grad_norm;         /* L2 norm of the gradient, if has_norm */
    bool has_squares, has_norm; /* if they are known: else they are computed where they are needed */
    const struct amp__powers *powers; /* of this step or of another (NULL: none) */
    bool stream;             /* the step reads and writes more than the caches hold */
    void *elements, *spread; /* the caller's own */
};

/* Returns the powers for a step with `steps` steps before it. */
struct amp__powers amp__optim_powers(const amp_optim *rule, uint64_t steps);
/* Returns the bytes that a step reads and writes for a tensor with a 16-bit copy. codes: moments are in 8 bits. */
uint64_t amp__optim_bytes(const amp_optim *rule, amp_dtype grad, uint64_t size, bool codes);

/* The sum of squares of a tensor's unscaled gradient. The functions of this section run in the default floating-point
 * environment (kernels/fpenv.h). */
double amp__optim_squares(const struct amp__optim_tensor *tensor);
/* Returns the factor of LAMB that brings the norm of all gradients to the limit of the rule, 1 for other rules. */
float amp__optim_limit(const amp_optim *rule, float norm_of_all);
/* The step. `limit` as above. */
void amp__optim_update(const amp_optim *rule, const struct amp__optim_tensor *tensor, float limit);

/* Functions for the steps of kinds.c. Norms are the known ones of the tensor, or are computed here. */
float amp__optim_norm_of_grad(const struct amp__optim_tensor *tensor);
float amp__optim_norm_of_param(const struct amp__optim_tensor *tensor);
struct amp__powers amp__optim_powers_of(const amp_optim *rule, const struct amp__optim_tensor *tensor);
void amp__optim_pass(amp__update_fn *kernel, const struct amp__update *u, size_t n);
/* squares += those of each block, in order. */
void amp__optim_pass_squares(amp__update_squares_fn *kernel, const struct amp__update *u, size_t n, double squares[2]);

/* Calls update(user, i), which steps tensor i of size(user, i) elements, for all of n: short ones beside each other and
 * the parts of long ones, on as many threads as there may be. */
typedef uint64_t amp__optim_size_fn(void *user, size_t i);
typedef void amp__optim_update_fn(void *user, size_t i);
void amp__optim_update_all(size_t n, amp__optim_size_fn *size, amp__optim_update_fn *update, void *user);

/* base^n by multiplications alone, squaring: n from 0 on. */
double amp__power(double base, uint64_t n);

/* ---- codes.c: moments in 8 bits ---- */

static inline size_t amp__optim_blocks(uint64_t size) {
    return (size_t)(size / AMP_STATE_BLOCK + (size % AMP_STATE_BLOCK != 0));
}
/* As amp_encode_moment and amp_decode_moment, which check. In the default floating-point environment. */
void amp__encode_moment(uint8_t *codes, float *scales, const float *values, size_t n, bool second, bool keep_scales);
void amp__decode_moment(float *values, const uint8_t *codes, const float *scales, size_t n, bool second);

/* ---- state.c ---- */

/* The state of an optimizer for one parameter. */
struct amp__optim_state {
    float *moments[AMP__MOMENTS];
    uint8_t *codes[2]; /* of moments in 8 bits, in place of moments */
    float *scales[2];  /* in the same blocks of memory */
    uint64_t key;      /* key of random numbers */
    uint64_t size; /* elements of the parameter */
    uint64_t steps; /* where `place` is set, those of the last look at the device */
    uint32_t group;
    struct amp__place *place; /* place with the moments (NULL: the CPU) */
};

/* Parameters on one device (bracket/fused_device.c): they are stepped there, group by group. */
struct amp__optim_on_device {
    struct amp__place *place;
    size_t n;
    uint32_t *which;          /* their indices, group by group */
    size_t *first;            /* group k has which[first[k]] to which[first[k + 1]] */
    uint64_t *steps;          /* on the device, in the order of which */
    amp_span *spans;          /* room for a step: SPANS lists of n */
    void **remainders;        /* remainders of split masters */
    float **scales[2];        /* scales of moments in 8 bits */
    uint64_t *keys;           /* keys of random numbers */
    void **elements;
    amp_device_list **lists;  /* one a group, and one for the norm of all */
};

struct amp__optim {
    bool codes; /* moments of parameters that are not small have 8 bits */
    bool stochastic; /* bf16 parameters without masters are rounded at random */
    uint64_t seed;
    amp_optim *groups;
    struct amp__powers *powers; /* one a group: room for a step */
    size_t n_groups;
    struct amp__optim_state *states; /* one a parameter, in the optimizer's order */
    struct amp__optim_tensor *work;  /* room for a step */
    size_t n, capacity;
    struct amp__optim_on_device *devices; /* one for each device that has some of them */
    size_t n_devices;
};

/* Makes *out from the description of the caller, for amp__optim_destroy. */
amp_status amp__optim_new(const amp_fused *given, size_t n_params, const char *what, struct amp__optim **out);
void amp__optim_destroy(struct amp__optim *optim);
/* Makes room for `n` parameters. New ones join group 0 and have no moments yet. */
amp_status amp__optim_grow(struct amp__optim *optim, size_t n);
/* Zero moments for parameter i, called `name`, of `size` elements, in the memory of `place` or, NULL, here. */
amp_status amp__optim_attach(struct amp__optim *optim, size_t i, const char *name, uint64_t size,
                             struct amp__place *place);
/* Returns the bytes of moment k. 0: there is none. codes: if moments were in 8 bits wherever they can be. */
uint64_t amp__optim_moment_bytes(const struct amp__optim *optim, size_t i, int k, bool codes);
/* Ends `n` of them, also those that were not finished, and their block. */
void amp__optim_on_device_free(struct amp__optim_on_device *devices, size_t n, size_t n_groups);
/* Forgets parameters from `n` on. */
void amp__optim_shrink(struct amp__optim *optim, size_t n);
static inline bool amp__optim_needs_norm_of_all(const struct amp__optim *optim) {
    bool needed = false;
    for (size_t k = 0; k < optim->n_groups; k++) needed |= amp__optim_needs_norm(&optim->groups[k]);
    return needed;
}
static inline const amp_optim *amp__optim_rule(const struct amp__optim *optim, size_t i) {
    return &optim->groups[optim->states[i].group];
}

#endif
