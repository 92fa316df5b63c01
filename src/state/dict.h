/* SPDX-License-Identifier: Apache-2.0 */
/* Common parts of checkpoints: a context as the content of a file, and back. */
#ifndef AMP_STATE_DICT_H
#define AMP_STATE_DICT_H

#include "amp_state.h"
#include "context/brackets.h"
#include "context/policy.h"
#include "state/state.h"

/* ---- state_config.c: configuration and scalers as the header's metadata ---- */

struct amp__state_scaler {
    struct amp__scaler state;
    uint64_t brackets, skipped; /* of the record */
};

amp_status amp__state_put_config(const struct amp__policy *policy, struct amp__header *header);
amp_status amp__state_put_scalers(const struct amp__brackets *brackets, struct amp__header *header);

/* The file's scalers, at most as many as there are brackets; *file_has is how many the file has. */
amp_status amp__state_get_scalers(const struct amp__brackets *brackets, const struct amp__header *header,
                                  struct amp__state_scaler **scalers, size_t *n, uint64_t *file_has);
/* Does the file's scaler follow the same rule? */
bool amp__state_same_mode(const struct amp__policy *policy, const struct amp__header *header);
/* "level O2 -> O5, low fp16 -> bf16": nothing if nothing differs. */
void amp__state_compare(const struct amp__policy *policy, const struct amp__header *header, amp__text *text);
/* Sets the scaler of the bracket within the present bounds, and reports a changed scale to the host. Cannot fail. */
void amp__state_set_scaler(struct amp__bracket *bracket, const struct amp__policy *policy,
                           const struct amp__state_scaler *scaler);

/* ---- state_moments.c: moments of libamp's own optimizers ---- */

struct amp__optimizers;
/* The seeds of those that round at random, and which of them differ, in the words of amp__state_compare. */
amp_status amp__state_put_seeds(struct amp__header *header, const struct amp__optimizers *optimizers);
void amp__state_compare_seeds(const struct amp__header *header, const struct amp__optimizers *optimizers,
                              amp__text *text);

/* One parameter of one of them. */
struct amp__state_own {
    char *name; /* the parameter's; with "optimizer<k>." before it where an earlier one has the parameter as well */
    struct amp__param *param;
    struct amp__optim_state *state;
    const amp_optim *rule;
};

amp_status amp__state_owns(const amp_context *context, struct amp__state_own **owns, size_t *n);
void amp__state_owns_free(struct amp__state_own *owns, size_t n);
/* "<name>.<moment>", ours to free. NULL: no memory. */
char *amp__state_moment_name(const struct amp__state_own *own, int k);
/* "<moment>.scale": the scales of a moment in 8 bits, ours to free. NULL: no memory. */
char *amp__state_scale_name(const char *moment);
/* Is this the name of a moment, of any rule's? */
bool amp__state_is_moment(const char *name);
/* Is this the name of a moment's scales? */
bool amp__state_is_scale(const char *name);
amp_status amp__state_put_steps(struct amp__header *header, const struct amp__state_own *own);
amp_status amp__state_get_steps(const struct amp__header *header, const struct amp__state_own *own, uint64_t *steps);

/* ---- state_save.c ---- */

/* The file's content, made up but for the tensors' bytes. */
struct amp__image {
    char *block; /* header, or all of Apex's form */
    size_t block_bytes;
    struct amp__image_tensor {
        const void *data;
        uint64_t size;
        amp_dtype dtype; /* fp32, or 16 bits that are widened on the way, or codes (AMP_DTYPE_OTHER) */
        const struct amp__place *place; /* place with the data (NULL: the CPU) */
        const void *rest;               /* remainder beside data of a split master, else NULL */
        const float *scales;            /* scales of codes */
        bool second;                    /* codes of sqrt(v) */
    } *tensors;
    size_t n_tensors;
    uint64_t bytes; /* all */
};

/* Is this parameter's value libamp's to keep? Floats of up to 32 bits that the host lets it see. */
bool amp__state_holds(const struct amp__param *param);
/* Its elements, still of the type and size that libamp knows. */
amp_status amp__state_elements(const struct amp__param *param, struct amp__elements *now);

/* without_data: only for measuring, without the checksum of the data. */
amp_status amp__image_make(amp_context *context, amp_state_format format, bool without_data, struct amp__image *image);
amp_status amp__image_write(const struct amp__image *image, amp__write_fn *write, void *to);
void amp__image_clear(struct amp__image *image);

/* ---- state_load.c ---- */

/* The parts of one state. Everything is checked first, then applied, which cannot fail. */
amp_status amp__state_apply(amp_context *context, const struct amp__source *sources, size_t n);

#endif
