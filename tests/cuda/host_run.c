/* SPDX-License-Identifier: Apache-2.0 */
#include "host_run.h"

amp_config config_of(const struct kind *kind, uint32_t window) {
    return CONFIG(kind->level, .master_weights = kind->split ? AMP_SPLIT : AMP_DEFAULT,
                  .loss_scale = kind->static_scale, .window = window);
}

struct host *host_of(const struct kind *kind, bool on_cpu) {
    return host_new(on_cpu, kind->mixed && !on_cpu, kind->fixed, kind->stepping);
}

struct run run_try(struct host *host, amp_config config, amp_status *status) {
    struct run run = { host, NULL };
    amp_model *model = &host->model;
    amp_optimizer *optimizer = &host->optimizer;
    *status = amp_initialize_many(&model, 1, &optimizer, 1, &config, &run.context);
    return run;
}

struct run run_with(struct host *host, amp_config config) {
    amp_status status;
    const struct run run = run_try(host, config, &status);
    ck_ok(status);
    return run;
}

struct run run_start(const struct kind *kind) { return run_with(host_of(kind, false), config_of(kind, 0)); }

void run_iterate(struct host *host, const struct kind *kind, float target) {
    host_clear(host);
    host_set_targets(host, target);
    run_again(host, kind);
}

void run_again(struct host *host, const struct kind *kind) {
    for (int k = 0; k <= kind->more_brackets; k++) (void)host_bracket(host);
    host_step(host, kind->stepping);
}

void run_end(struct run *run) {
    ck_ok(amp_shutdown(run->context));
    host_free(run->host);
}

size_t run_save(const struct run *run, char state[STATE_BYTES]) {
    size_t size = 0;
    ck_ok(amp_state_save_memory(run->context, AMP_STATE_SAFETENSORS, state, STATE_BYTES, &size));
    return size;
}
