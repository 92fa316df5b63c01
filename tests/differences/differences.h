/* SPDX-License-Identifier: Apache-2.0 */
/* One test a row of docs/apex-differences.md; check_docs.py holds the two together. */
#ifndef TEST_DIFFERENCES_H
#define TEST_DIFFERENCES_H

#include "checks.h"

/* Each file adds its tests. */
void add_contexts(TCase *tcase);
void add_casts(TCase *tcase);
void add_calls(TCase *tcase);
void add_scaling(TCase *tcase);
void add_gradients(TCase *tcase);
void add_masters(TCase *tcase);
void add_messages(TCase *tcase);
void add_optimizers(TCase *tcase);

/* The types the op that ran last got. */
#define ck_last(fake, op_name, first, second)                                                                          \
    do {                                                                                                               \
        const struct fake_call *ck_call_ = fake_last(fake);                                                            \
        ck_assert_str_eq(ck_call_->op, (op_name));                                                                     \
        ck_assert_int_eq(ck_call_->dtypes[0], (first));                                                                \
        ck_assert_int_eq(ck_call_->dtypes[1], (second));                                                               \
    } while (0)

static inline void rig_start_config(struct rig *rig, const amp_config *config, unsigned options) {
    rig_init(rig, options);
    ck_ok(rig_config(rig, config));
}

/* begin, backward with gradients of size `factor` (times the scale), end. */
static inline amp_status rig_bracket(struct rig *rig, double factor, uint32_t flags, amp_scaled_loss *scaled) {
    amp_optimizer *optimizer = &rig->net.optimizer;
    *scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
    ck_ok(amp_scale_loss_begin_many(NULL, &optimizer, 1, 0, flags, NULL, scaled));
    net_backward(&rig->net, 1.0, factor * (double)*scaled->scale);
    return amp_scale_loss_end(scaled);
}

/* The optimizer's entry for a tensor. */
static inline amp_master rig_master(struct rig *rig, const struct fake_tensor *tensor) {
    amp_master masters[8] = { AMP_MASTER_INIT };
    size_t n = 0;
    ck_ok(amp_master_params(&rig->net.optimizer, masters, 8, &n));
    for (size_t i = 0; i < n; i++)
        if (masters[i].param == tensor) return masters[i];
    ck_abort_msg("the optimizer does not hold this tensor");
    return masters[0];
}

static inline double master_value(struct rig *rig, const struct fake_tensor *tensor) {
    return (double)((const float *)rig_master(rig, tensor).data)[0];
}

static inline amp_dtype target_of(amp_context *context, const char *op, amp_dtype a, amp_dtype b) {
    const amp_dtype dtypes[] = { a, b };
    amp_dtype target = AMP_DTYPE_OTHER;
    ck_ok(amp_op_target(context, op, dtypes, 2, &target));
    return target;
}

#endif
