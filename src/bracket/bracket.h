/* SPDX-License-Identifier: Apache-2.0 */
/* A bracket, from its begin to its decision and its events. */
#ifndef AMP_BRACKET_H
#define AMP_BRACKET_H

#include "amp_diagnostics.h"
#include "context/brackets.h"
#include "context/optimizer.h"
#include "opt_levels/levels.h"

/* The carrier of the loss scale into the gradients. */
enum amp__carrier {
    AMP__CARRIER_NONE,  /* none yet */
    AMP__CARRIER_LOSS,  /* the loss, multiplied by libamp */
    AMP__CARRIER_SEEDS, /* seeds of ops */
    AMP__CARRIER_HOST,  /* the host, by amp_seed_factor */
};

/* The knowledge of the host about a decision of a device. */
enum amp__last_decision { AMP__DECISION_KNOWN, AMP__DECISION_COPYING, AMP__DECISION_ON_DEVICE };
struct amp__scaler_home;

/* CLOSED, or the work of the open bracket's end. */
enum amp__bracket_state {
    AMP__BRACKET_CLOSED,
    AMP__BRACKET_DECIDES,      /* unscale the gradients and decide */
    AMP__BRACKET_DELAYS,       /* leave the scale in the gradients: AMP_DELAY_UNSCALE */
    AMP__BRACKET_DELAYS_CHECK, /* unscale the gradients, and leave the decision: AMP_DELAY_OVERFLOW_CHECK */
};

/* A bracket from its begin to its end. */
struct amp__opening {
    uintptr_t serial; /* an amp_scaled_loss that outlived an earlier bracket has another */
    bool with_loss;
    enum amp__carrier carrier;
    uint64_t seeds_before;      /* progress.seeds_shown at its begin */
    float carried;              /* scale of gradients that were delayed, which becomes the bracket's (0: none) */
    void *temporary[2];         /* scaled loss and its FP32 cast, ours until the end */
    struct amp__thread *thread; /* that began it: its floating-point traps are masked */
};

/* Checks that earlier brackets of the loss delayed. */
struct amp__unchecked {
    bool *by_optimizer; /* optimizers with a delayed check (NULL: never any) */
    bool found_inf;
    const struct amp__param *first; /* first parameter with a non-finite gradient */
};

/* Reports about a loss so far. */
struct amp__bracket_told {
    bool skips;       /* too many in a row, since the last step */
    bool most;        /* AMP-M85, once */
    uint64_t changes; /* of the scale */
};

/* A scaler in the memory of a device. */
struct amp__on_device {
    struct amp__device_scaler *scaler; /* NULL: the scaler lives on the host */
    bool decides_alone; /* the host does not need the decision of this bracket, not even the scale */
    enum amp__last_decision last; /* the last end's */
    void *copy;                   /* of the scaler after it, in the host's memory */
    bool *waiting;                /* by optimizer: its next step waits for the decision */
    uint32_t *which;              /* room for numbers of optimizers */
    const struct amp__param **looked; /* parameters by the numbers that the last end gave their gradients */
    size_t n_looked, looked_capacity;
    bool looked_changed; /* since the record was read: numbers of before mean nothing */
};

struct amp__bracket {
    amp_context *context;
    uint32_t loss_id;
    enum amp__bracket_state state;
    struct amp__opening opening;
    struct amp__optimizer **optimizers; /* n_optimizers of them while open */
    size_t n_optimizers, optimizers_capacity;
    const amp_host *host; /* of the last opening */
    struct amp__scaler scaler;
    float scale;     /* of this bracket, while open */
    float found_inf; /* of the last one closed */
    amp_record record;
    struct amp__unchecked unchecked;
    struct amp__bracket_told told;
    const struct amp__scaler_home *home; /* home.h: where the scaler lives */
    struct amp__shown {                  /* amp_scaled_loss points to them, at home */
        const float *scale, *found_inf;
    } shown;
    struct amp__on_device device;
};

/* ---- open.c ---- */

/* One for each loss, at the beginning of a context. */
amp_status amp__brackets_make(amp_context *context, struct amp__brackets *brackets,
                              const struct amp__properties *properties);
/* The bracket of a loss_id, and its list of optimizers filled; or why not. */
amp_status amp__bracket_find(amp_context *context, uint32_t loss_id, uint32_t flags, struct amp__bracket **out);
amp_status amp__bracket_optimizers(struct amp__bracket *bracket, amp_optimizer *const *users, size_t n);

/* Ends an open bracket's hold on its optimizers, temporaries and thread. The gradients are the caller's business. */
void amp__bracket_close(struct amp__bracket *bracket);

static inline bool amp__bracket_is_open(const struct amp__bracket *bracket) {
    return bracket->state != AMP__BRACKET_CLOSED;
}

/* ---- decide.c: from the results of a bracket to its decision ---- */

/* Ends without a decision, and without a word to other ranks. */
static inline bool amp__bracket_puts_off(const struct amp__bracket *bracket) {
    return bracket->state == AMP__BRACKET_DELAYS || bracket->state == AMP__BRACKET_DELAYS_CHECK;
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

/* ---- tell.c: events of a decided bracket, from its record ---- */

/* Writes the loss to the trace, where it is one element in CPU memory. */
void amp__bracket_tell_loss(const struct amp__bracket *bracket, void *loss);

/* overflow_here: or on another rank. */
void amp__bracket_tell(struct amp__bracket *bracket, amp_action action, bool overflow_here);
/* A rank had an error or cancelled: nothing is counted. */
/* AMP-M85, where most brackets have been skipped. */
void amp__bracket_find_skips(struct amp__bracket *bracket);
void amp__bracket_tell_given_up(const struct amp__bracket *bracket);
/* A gradient of this parameter is not finite, and no step will be skipped for it. */
void amp__bracket_tell_nonfinite(struct amp__bracket *bracket, const char *param);

#endif
