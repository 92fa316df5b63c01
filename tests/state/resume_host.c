/* SPDX-License-Identifier: Apache-2.0 */
#include "amp_diagnostics.h"
#include "resume_host.h"

#include "host/internal.h" /* minitape has no function that sets an optimizer's state */

#include <string.h>

enum { BATCH = 8 };

static int fail(const char *what, const char *why) {
    fprintf(stderr, "# %s: %s\n", what, why);
    return -1;
}

int run_open(struct run *run, const char *digits, bool adam, uint64_t seed) {
    char error[256];
    mt_tensor *params[NET_TENSORS];
    memset(run, 0, sizeof *run);
    run->data = digits_load(digits, error, sizeof error);
    if (!run->data) return fail("digits", error);
    if (net_init(&run->net, mt_ops_default(), seed) != 0) return fail("net", mt_error());
    const size_t n = net_params(&run->net, params);
    run->optimizer = adam ? mt_adam_new(params, n, 0.003F, 0.9F, 0.999F, 1e-8F, 0.0F)
                          : mt_sgd_new(params, n, 0.05F, 0.9F, 1e-4F);
    if (!run->optimizer) return fail("optimizer", mt_error());
    adapter_init(&run->adapter, &run->net, run->optimizer, NULL, NULL);
    return 0;
}

int run_initialize(struct run *run, const amp_config *config) {
    amp_model *model = &run->adapter.model;
    amp_optimizer *optimizer = &run->adapter.optimizer;
    if (amp_initialize_many(&model, 1, &optimizer, 1, config, NULL) != AMP_OK)
        return fail("initialize", amp_last_error());
    return 0;
}

static int step(struct run *run, int number) {
    int indices[BATCH];
    mt_tensor *images, *labels;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    for (int i = 0; i < BATCH; i++) indices[i] = run->data->train[(number * BATCH + i) % DIGITS_TRAIN];
    if (digits_batch(run->data, indices, BATCH, &images, &labels) != 0) return fail("batch", mt_error());
    mt_tensor *scores = mt_then(images, run->net.forward(&run->net, images));
    mt_tensor *loss = mt_then(scores, net_loss(&run->net, scores, labels));
    mt_release(labels);
    if (!loss) return fail("forward", mt_error());
    run->optimizer->zero_grad(run->optimizer);
    if (amp_scale_loss_begin(&run->adapter.optimizer, loss, &scaled) != AMP_OK) return fail("begin", amp_last_error());
    if (mt_backward(scaled.loss) != 0) return fail("backward", mt_error());
    if (amp_scale_loss_end(&scaled) != AMP_OK) return fail("end", amp_last_error());
    mt_release(loss);
    return run->optimizer->step(run->optimizer) >= 0 ? 0 : fail("step", mt_error());
}

int run_train(struct run *run, int first, int count) {
    for (int i = first; i < first + count; i++)
        if (step(run, i) != 0) return -1;
    return 0;
}

int run_close(struct run *run) {
    const amp_status status = amp_shutdown(run->adapter.model.amp);
    mt_optimizer_free(run->optimizer);
    net_done(&run->net);
    free(run->data);
    return status == AMP_OK ? 0 : fail("shutdown", amp_last_error());
}

float run_scale(struct run *run) {
    amp_record record = AMP_RECORD_INIT;
    return amp_get_record(run->adapter.model.amp, 0, &record) == AMP_OK ? record.scale_after : -1.0F;
}

uint64_t run_skipped(struct run *run) {
    amp_record record = AMP_RECORD_INIT;
    return amp_get_record(run->adapter.model.amp, 0, &record) == AMP_OK ? record.skipped : 0;
}

/* ---- the host's checkpoint ---- */

static struct mt_opt_state *state_of(const struct run *run, const mt_tensor *tensor) {
    for (size_t i = 0; i < run->optimizer->n_states; i++)
        if (run->optimizer->states[i].id == tensor->id) return &run->optimizer->states[i];
    return NULL;
}

static void put(FILE *file, const void *data, size_t bytes) {
    if (bytes && fwrite(data, 1, bytes, file) != bytes) perror("# fwrite");
}

static int get(FILE *file, void *data, size_t bytes) {
    return fread(data, 1, bytes, file) == bytes ? 0 : fail("the host's checkpoint", "it is too short");
}

static void put_optimizer(const struct run *run, FILE *file) {
    put(file, &run->optimizer->steps, sizeof run->optimizer->steps);
    for (int i = 0; i < run->net.n_list; i++) {
        const struct mt_opt_state *state = state_of(run, run->net.list[i].tensor);
        const int steps = state ? state->steps : -1;
        put(file, &steps, sizeof steps);
        for (int slot = 0; state && slot < 2; slot++) {
            const size_t bytes = state->slot[slot] ? state->slot[slot]->bytes : 0;
            put(file, &bytes, sizeof bytes);
            if (bytes) put(file, state->slot[slot]->data, bytes);
        }
    }
}

static int get_slot(FILE *file, mt_storage **slot) {
    size_t bytes;
    if (get(file, &bytes, sizeof bytes) != 0) return -1;
    if (!bytes) return 0;
    *slot = mt_storage_new(bytes, MT_MEM_OPTIMIZER);
    return *slot ? get(file, (*slot)->data, bytes) : -1;
}

static int get_optimizer(struct run *run, FILE *file) {
    if (get(file, &run->optimizer->steps, sizeof run->optimizer->steps) != 0) return -1;
    run->optimizer->states = calloc((size_t)run->net.n_list, sizeof *run->optimizer->states);
    for (int i = 0; run->optimizer->states && i < run->net.n_list; i++) {
        struct mt_opt_state state = { .id = run->net.list[i].tensor->id };
        if (get(file, &state.steps, sizeof state.steps) != 0) return -1;
        if (state.steps < 0) continue;
        for (int slot = 0; slot < 2; slot++)
            if (get_slot(file, &state.slot[slot]) != 0) return -1;
        run->optimizer->states[run->optimizer->n_states++] = state;
    }
    return run->optimizer->states ? 0 : -1;
}

int run_save_host(const struct run *run, const char *path) {
    FILE *file = fopen(path, "wb");
    if (!file) return fail(path, "cannot be written");
    for (int i = 0; i < run->net.n_list; i++) {
        const mt_tensor *tensor = run->net.list[i].tensor;
        float values[8192];
        if (mt_numel(tensor) > sizeof values / sizeof *values) return fail(run->net.list[i].name, "it is too large");
        mt_read(tensor, values);
        put(file, values, mt_numel(tensor) * sizeof *values);
    }
    put_optimizer(run, file);
    return fclose(file);
}

int run_load_host(struct run *run, const char *path) {
    FILE *file = fopen(path, "rb");
    int status = 0;
    if (!file) return fail(path, "cannot be read");
    for (int i = 0; i < run->net.n_list && status == 0; i++) {
        float values[8192];
        status = get(file, values, mt_numel(run->net.list[i].tensor) * sizeof *values);
        if (status == 0) mt_write(run->net.list[i].tensor, values);
    }
    if (status == 0) status = get_optimizer(run, file);
    fclose(file);
    return status;
}

/* ---- for comparing ---- */

int run_dump(struct run *run, const char *path) {
    amp_master masters[NET_TENSORS] = { AMP_MASTER_INIT };
    amp_record record = AMP_RECORD_INIT;
    size_t n;
    FILE *file = fopen(path, "wb");
    if (!file) return fail(path, "cannot be written");
    if (amp_master_params(&run->adapter.optimizer, masters, NET_TENSORS, &n) != AMP_OK ||
        amp_get_record(run->adapter.model.amp, 0, &record) != AMP_OK)
        return fail("dump", amp_last_error());
    for (int i = 0; i < run->net.n_list; i++) {
        const mt_tensor *tensor = run->net.list[i].tensor;
        put(file, tensor->storage->data, mt_numel(tensor) * mt_dtype_size(tensor->dtype));
    }
    for (size_t i = 0; i < n; i++) put(file, masters[i].data, (size_t)masters[i].size * (masters[i].is_master ? 4 : 0));
    put_optimizer(run, file);
    record.first_nonfinite = NULL; /* an address */
    record.action = 0;
    record.scale_before = record.scale_after;
    put(file, &record, sizeof record);
    return fclose(file);
}
