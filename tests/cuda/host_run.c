/* SPDX-License-Identifier: Apache-2.0 */
#include "host_run.h"

#include "../kernels/support.h"

struct run run_try_start(struct host *host, amp_level level, amp_status *status) {
    struct run run = { host, NULL };
    amp_model *model = &host->model;
    amp_optimizer *optimizer = &host->optimizer;
    amp_config config = AMP_CONFIG_INIT;
    config.level = level;
    *status = amp_initialize_many(&model, 1, &optimizer, 1, &config, &run.context);
    return run;
}

struct run run_start(const struct kind *kind) {
    amp_status status;
    struct run run = run_try_start(host_new(false, kind->mixed, kind->fixed, kind->stepping), kind->level, &status);
    ck_assert_msg(status == AMP_OK, "%s", amp_last_error());
    return run;
}

void run_iterate(struct host *host, const struct kind *kind, float target) {
    host_clear(host);
    host_set_targets(host, target);
    run_again(host, kind);
}

void run_again(struct host *host, const struct kind *kind) {
    for (int k = 0; k < kind->accumulate; k++) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        ck_assert_msg(amp_scale_loss_begin(&host->optimizer, &host->loss, &scaled) == AMP_OK, "%s", amp_last_error());
        host_backward(host, scaled.loss, 1.0f);
        ck_assert_msg(amp_scale_loss_end(&scaled) == AMP_OK, "%s", amp_last_error());
    }
    host_step(host, kind->stepping);
}
