/* SPDX-License-Identifier: Apache-2.0 */
/* The hosts' common problem over raw FP32 buffers: all but how its ops are described, which each file's start does. */
#ifndef TEST_RAW_PROBLEM_RIG_H
#define TEST_RAW_PROBLEM_RIG_H

#include "kit.h"
#include "plain.h"
#include "raw.h"

static struct plain plain;
static struct raw raw;

static amp_context *start(const amp_config *config);

static void describe_params(void) {
    plain_init(&plain);
    raw_init(&raw);
    for (int p = 0; p < N_PARAMS; p++)
        raw_param(&raw, problem_params[p].name, plain_param(&plain, p), plain_grad(&plain, p), problem_params[p].size)
            ->module_kind = problem_params[p].batch_norm ? AMP_MODULE_BATCH_NORM : AMP_MODULE_OTHER;
}

static void start_at(amp_level level) {
    const amp_config config = kit_config(level);
    (void)start(&config);
}

static int iterate(int number, float *loss) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    const float value = plain_forward(&plain, number);
    if (loss) *loss = value;
    ck_ok(amp_scale_loss_begin(&raw.optimizer, NULL, &scaled));
    plain_backward(&plain, number, amp_seed_factor(&scaled));
    ck_ok(amp_scale_loss_end(&scaled));
    ck_ok(amp_step_begin(&raw.optimizer, &info));
    if (info.action == AMP_STEP) plain_update(&plain);
    memset(plain.grads, 0, sizeof plain.grads);
    ck_ok(amp_step_end(&raw.optimizer));
    return info.action == AMP_STEP;
}

static void finish(float *params) {
    raw_stop(&raw); /* the masters' values are the parameters again */
    ck_assert_mem_eq(&plain.ops, &plain_functions, sizeof plain.ops);
    if (params) memcpy(params, plain.params, PARAM_FLOATS * sizeof(float));
}

static void read_state(struct kit_state *state) {
    memcpy(state->params, plain.params, sizeof state->params);
    memcpy(state->momentum, plain.momentum, sizeof state->momentum);
}

static void write_state(const struct kit_state *state) {
    memcpy(plain.params, state->params, sizeof state->params);
    memcpy(plain.momentum, state->momentum, sizeof state->momentum);
}

static const struct kit_host host = { start, iterate, finish, read_state, write_state };

#endif
