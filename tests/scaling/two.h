/* SPDX-License-Identifier: Apache-2.0 */
/* Two optimizers of one context, both with step slots: the weight is the first one's, the bias the second one's. */
#ifndef TEST_SCALING_TWO_H
#define TEST_SCALING_TWO_H

#include "bracket.h"

struct two {
    struct rig rig;
    void *first[1], *second[1];
    amp_fn second_step;
    amp_op second_op;
    amp_optimizer other;
};

static int32_t other_steps; /* that ran */
static inline int32_t other_step(void *self) { return (void)self, ++other_steps; }
static inline int32_t call_other(struct two *two) { return ((int32_t (*)(void *))two->second_step)(two); }

/* shared: the weight is the second one's too. */
static inline void two_start(struct two *two, amp_level level, uint32_t num_losses, bool shared) {
    struct rig *rig = &two->rig;
    const amp_config config = CONFIG(level, .num_losses = num_losses);
    rig_init(rig, 0);
    two->first[0] = rig->net.weight;
    two->second[0] = shared ? rig->net.weight : rig->net.bias;
    other_steps = 0;
    two->second_step = (amp_fn)other_step;
    two->second_op = OP("step", "step(pointer self) -> int32", &two->second_step);
    rig->net.optimizer.params = two->first;
    rig->net.optimizer.n_params = 1;
    two->other = SIZED(amp_optimizer, .host = &rig->host.hooks, .self = two, .params = two->second, .n_params = 1,
                       .steps = &two->second_op, .n_steps = 1);
    amp_model *models[] = { &rig->net.model };
    amp_optimizer *optimizers[] = { &rig->net.optimizer, &two->other };
    ck_ok(amp_initialize_many(models, 1, optimizers, 2, &config, &rig->context));
}

static inline void two_end(struct two *two) { rig_end(&two->rig); }

#define TWO(name) __attribute__((cleanup(two_end), unused)) struct two name
#define TWO_START(name, level, num_losses) TWO(name); two_start(&name, level, num_losses, false)
#define TWO_SHARE(name, level, num_losses) TWO(name); two_start(&name, level, num_losses, true)

/* A bracket over the optimizers in `which`: 1 the first, 2 the second, 3 both. */
static inline amp_status begin(struct two *two, unsigned which, uint32_t loss_id, uint32_t flags,
                               amp_scaled_loss *scaled) {
    amp_optimizer *optimizers[2];
    size_t n = 0;
    if (which & 1) optimizers[n++] = &two->rig.net.optimizer;
    if (which & 2) optimizers[n++] = &two->other;
    *scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
    return fake_begin_many(two->rig.context, optimizers, n, loss_id, flags, NULL, scaled);
}

/* A whole one, whose backward adds the values times the scale. */
static inline amp_action run(struct two *two, unsigned which, uint32_t loss_id, uint32_t flags, double weight,
                             double bias) {
    amp_scaled_loss scaled;
    ck_ok(begin(two, which, loss_id, flags, &scaled));
    if (weight != 0.0) add_grad(two->rig.net.weight, weight * fake_seed(&scaled));
    if (bias != 0.0) add_grad(two->rig.net.bias, bias * fake_seed(&scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    return scaled.action;
}

#endif
