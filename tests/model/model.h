/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Apex's rules in a few hundred lines, written from the documents (docs/guide/loss-scaling.md,
 * docs/reference/numerics.md, docs/internals/apex-differences.md) and not from libamp: what parameters, masters,
 * gradients, scales, decisions and counters are after each call. Every number is a double that holds a value of its
 * type; no function of libamp is called.
 */
#ifndef TEST_MODEL_H
#define TEST_MODEL_H

#include "amp_all.h" /* for constants only */

#include <stdbool.h>

enum { ELEMENTS = 4, LOSSES = 3, OPTIMIZERS = 2 };
enum param { WEIGHT, GAMMA, WIDE, BIAS, EMPTY, LATE, PARAMS };

/* A gradient of the host's. `handle` tells one from another, `version` changes when the host writes. */
struct grad {
    unsigned handle; /* 0: there is none */
    unsigned version;
    amp_dtype type;
    double v[ELEMENTS];
};

struct param_model {
    const char *name;
    int n;
    amp_dtype type;
    bool mastered, batch_norm;
    double host[ELEMENTS], master[ELEMENTS];
    unsigned version, agreed; /* of the host's elements: now, and when master and host last agreed */

    struct grad grad;
    double exact[ELEMENTS]; /* the master gradient, if exact_of names the host's */
    unsigned exact_of, exact_version;
    struct grad stash, delayed; /* set aside; fixed buffers: copies */
    bool stash_is, delayed_is, in_bracket, scaled, delaying;
    bool multiplied; /* the stash is also in the gradient, times the scale */
    bool first_saved;
    double first[ELEMENTS]; /* fixed buffers: what stood there at the first begin since the last step */
};

struct optimizer_model {
    bool in_bracket, delayed, skip, has_late;
    uint32_t delayed_loss;
    float delayed_scale;
};

struct loss_model {
    bool open, delay, delay_check, told; /* told: that max_skips steps in a row were skipped */
    unsigned optimizers; /* bits */
    unsigned unchecked;  /* those for which it is not decided yet, */
    const char *unchecked_first; /* and what was found for them */
    float scale, bracket_scale;
    uint32_t unskipped, hysteresis_left;
    amp_record record;
};

struct saved_model {
    bool is, has_late;
    double values[PARAMS][ELEMENTS];
    struct loss_model losses[LOSSES];
};

struct model {
    amp_config config; /* with every field that matters resolved */
    bool dynamic, masters, keep_batch_norm, trivial;
    amp_dtype low; /* of parameters; AMP_DTYPE_DEFAULT: they keep their types */
    bool fixed, versions, fp32_grads;
    unsigned handles;
    amp_status kept;
    struct param_model params[PARAMS];
    struct optimizer_model optimizers[OPTIMIZERS];
    struct loss_model losses[LOSSES];
    struct saved_model saved;
};

/* Rounds to nearest, ties to even, with subnormals and infinities. */
double model_round(amp_dtype type, double value);
/* As the host stores a double: through float. */
double model_host_round(amp_dtype type, double value);

/* options: of the fake host. The parameters hold their FP32 values in `host`. */
void model_init(struct model *model, const amp_config *config, unsigned options);
bool model_holds(const struct model *model, unsigned optimizer, enum param param);

amp_status model_begin(struct model *model, unsigned optimizers, uint32_t loss, uint32_t flags);
amp_status model_end(struct model *model, uint32_t loss, amp_action *action);
amp_status model_cancel(struct model *model, uint32_t loss);
void model_backward(struct model *model, enum param param, double value);
/* direct: through amp_step_begin, where an error is returned and not kept. */
amp_status model_step(struct model *model, unsigned optimizer, bool direct, float rate, bool *ran);
void model_zero_grad(struct model *model, unsigned optimizer);
void model_host_sets(struct model *model, enum param param, int i, double value);
void model_host_sets_grad(struct model *model, enum param param, int i, double value); /* i < 0: all */
void model_host_drops_grad(struct model *model, enum param param);
amp_status model_clip_norm(struct model *model, unsigned optimizer, float limit, float *norm);
amp_status model_clip_value(struct model *model, unsigned optimizer, float limit);
amp_status model_look(struct model *model, unsigned optimizer); /* amp_master_params */
void model_reconcile(struct model *model);
amp_status model_check(struct model *model);
amp_status model_add_late(struct model *model);
amp_status model_save(struct model *model);
amp_status model_load(struct model *model);
void model_shutdown(struct model *model);

#endif
