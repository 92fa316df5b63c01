/* SPDX-License-Identifier: Apache-2.0 */
/* A bracket: from its begin to what it decides and tells. */
#ifndef AMP_BRACKET_H
#define AMP_BRACKET_H

#include "amp_diagnostics.h"
#include "context/context.h"
#include "context/optimizer.h"

/* What brings the loss scale into the gradients. */
enum amp__carrier {
    AMP__CARRIER_NONE,  /* nothing yet, */
    AMP__CARRIER_LOSS,  /* the loss, which libamp multiplied, */
    AMP__CARRIER_SEEDS, /* seeds of ops, */
    AMP__CARRIER_HOST,  /* the host, which asked for it */
};

/* What the host knows of a decision that a device made. */
enum amp__last_decision { AMP__DECISION_KNOWN, AMP__DECISION_COPYING, AMP__DECISION_ON_DEVICE };
struct amp__scaler_home;

struct amp__bracket {
    uintptr_t serial; /* of the opening: an amp_scaled_loss that outlived it is told from the present one */
    bool open, with_loss, delay, delay_check;
    bool told_of_skips; /* too many in a row, since the last step */
    bool told_of_most;  /* AMP-M85, once */
    enum amp__carrier carrier;
    uint64_t seeds_before; /* context->progress.seeds_shown at its begin */
    uint32_t loss_id;
    amp_context *context;
    struct amp__optimizer **optimizers; /* n_optimizers of them while open */
    size_t n_optimizers, optimizers_capacity;
    struct amp__scaler scaler;
    float scale;     /* of this bracket, while open */
    float carried;   /* the scale of gradients that delayed, which is this bracket's then; 0: none */
    float found_inf; /* of the last one closed */
    void *temporary[2]; /* scaled loss and its FP32 cast, ours until the end */
    const amp_host *host;
    struct amp__thread *thread; /* that began it: its floating-point traps are masked */
    amp_record record;
    bool *unchecked; /* by optimizer: has its overflow check been delayed? NULL: none ever was */
    bool unchecked_inf; /* what those brackets found */
    const struct amp__param *unchecked_first;
    uint64_t changes;   /* of the scale, so far */

    const struct amp__scaler_home *home;        /* home.h: where the scaler lives, */
    const float *shown_scale, *shown_found_inf; /* and there what amp_scaled_loss points to */
    struct amp__on_device {                     /* where it is a device */
        struct amp__device_scaler *scaler;      /* in its memory; NULL: the scaler lives on the host */
        bool decides_alone; /* nobody on the host needs this bracket's decision: not even the scale, where it moves */
        enum amp__last_decision last; /* the last end's */
        void *copy;              /* in the host's memory, of the scaler after it */
        bool *waiting;           /* by optimizer: its next step waits for it */
        uint32_t *which;         /* room for numbers of optimizers */
        /* the parameters whose gradients that end looked at, as they were numbered there */
        const struct amp__param **looked;
        size_t n_looked, looked_capacity;
        bool looked_changed; /* since the record was read: numbers of before mean nothing */
    } device;
};

/* open.c: the bracket of a loss_id, and its list of optimizers filled; or why not. */
amp_status amp__bracket_find(amp_context *context, uint32_t loss_id, uint32_t flags, struct amp__bracket **out);
amp_status amp__bracket_optimizers(struct amp__bracket *bracket, amp_optimizer *const *users, size_t n);

/* Ends an open bracket's hold on its optimizers, temporaries and thread. The gradients are the caller's business. */
void amp__bracket_close(struct amp__bracket *bracket);

/* ---- decide.c: from what a bracket found to what it decides ---- */

/* Ends without a decision, and without a word to other ranks. */
static inline bool amp__bracket_puts_off(const struct amp__bracket *bracket) {
    return bracket->delay || bracket->delay_check;
}
static inline bool amp__bracket_has_ranks(const struct amp__bracket *bracket) {
    return !amp__bracket_puts_off(bracket) && bracket->host && amp__host_has_ranks(bracket->host);
}
/* The end of a bracket that leaves its check to a later one. */
amp_status amp__bracket_delay_check(struct amp__bracket *bracket, const struct amp__grads_result *result);
/* The end of a bracket that went well here: with the other ranks, if there are any. */
amp_status amp__bracket_conclude(struct amp__bracket *bracket, const struct amp__grads_result *result,
                                 amp_action *action);
/* The end of one that did not, for the optimizers: gradients are as at begin, and the step that follows skips. agreed:
 * the other ranks know. */
void amp__bracket_give_up(struct amp__bracket *bracket, bool agreed);
/* amp_scale_loss_cancel, but for the closing. */
amp_status amp__bracket_cancel(struct amp__bracket *bracket);
/* AMP_ERR_TOO_MANY_SKIPS, once for each row of skips, in words; or AMP_OK. */
amp_status amp__bracket_check_skips(struct amp__bracket *bracket, bool overflow_here);

/* ---- tell.c: what a decided bracket has to tell, by the record that it left ---- */

/* overflow_here: or on another rank. */
void amp__bracket_tell(struct amp__bracket *bracket, amp_action action, bool overflow_here);
/* A rank had an error or cancelled: nothing is counted. */
/* AMP-M85, where most brackets have been skipped. */
void amp__bracket_find_skips(struct amp__bracket *bracket);
void amp__bracket_tell_given_up(const struct amp__bracket *bracket);
/* A gradient of this parameter is not finite, and no step will be skipped for it. */
void amp__bracket_tell_nonfinite(struct amp__bracket *bracket, const char *param);

#endif
