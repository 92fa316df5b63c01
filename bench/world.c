/* SPDX-License-Identifier: Apache-2.0 */
#include <amp_raw.h>
#include "world.h"

#include <stdlib.h>
#include <string.h>

static amp_status swap_data(void *self, void *tensor, amp_storage *storage) {
    amp_buffer *buffer = tensor;
    const amp_storage old = { buffer->data, NULL, 0, buffer->dtype, 0 };
    (void)self;
    buffer->data = storage->data;
    buffer->dtype = storage->dtype;
    *storage = old;
    return AMP_OK;
}

static void *table(size_t n, size_t size) {
    void *memory = calloc(n, size);
    if (!memory) bench_must(1, "memory");
    return memory;
}

static void make_tensor(struct bench_world *w, size_t i) {
    const amp_dtype type = w->masters ? AMP_FLOAT16 : AMP_FLOAT32;
    w->params[i] = w->grads[i] = (amp_buffer)AMP_BUFFER_INIT;
    w->params[i].data = w->values + i * w->length;
    w->grads[i].data = (char *)(w->values + w->n * w->length) + i * w->length * (w->masters ? 2 : 4);
    w->params[i].size = w->grads[i].size = (int64_t)w->length;
    w->params[i].grad = &w->grads[i];
    w->grads[i].dtype = type;
    w->trained[i] = &w->params[i];
    w->listed[i] = (amp_param)AMP_PARAM_INIT;
    w->listed[i].tensor = &w->params[i];
    w->src[i] = (amp_span){ w->grads[i].data, w->length, type, 0 };
    w->dst[i] = w->masters ? (amp_span){ w->unscaled + i * w->length, w->length, AMP_FLOAT32, 0 } : w->src[i];
}

static size_t bytes(const struct bench_world *w, size_t blocks) { return blocks * w->n * w->length * sizeof(float); }

void bench_world_make(struct bench_world *w, size_t n, size_t length, bool masters) {
    *w = (struct bench_world){ .n = n, .length = length, .masters = masters, .host = *amp_buffer_host() };
    if (masters) w->host.swap_data = swap_data;
    w->params = table(n, sizeof *w->params);
    w->grads = table(n, sizeof *w->grads);
    w->listed = table(n, sizeof *w->listed);
    w->trained = table(n, sizeof *w->trained);
    w->dst = table(n, sizeof *w->dst);
    w->src = table(n, sizeof *w->src);
    w->values = bench_memory(bytes(w, 2));
    memset(w->values, 0, bytes(w, 2));
    if (masters) w->unscaled = bench_memory(bytes(w, 1));
    for (size_t i = 0; i < n; i++) make_tensor(w, i);
    w->optimizer = (amp_optimizer)AMP_OPTIMIZER_INIT;
    w->optimizer.host = &w->host;
    w->optimizer.params = w->trained, w->optimizer.n_params = n;
    w->model = (amp_model)AMP_MODEL_INIT;
    w->model.host = &w->host;
    w->model.params = w->listed, w->model.n_params = n;
}

void bench_world_free(struct bench_world *w) {
    bench_release(w->values, bytes(w, 2));
    if (w->masters) bench_release(w->unscaled, bytes(w, 1));
    free(w->params), free(w->grads), free(w->listed), free(w->trained), free(w->dst), free(w->src);
}

void bench_world_start(struct bench_world *w) {
    bench_must(amp_initialize(&w->model, &w->optimizer, w->masters ? AMP_O2 : AMP_O1), "amp_initialize");
}

static void set_gradients(const struct bench_world *w, float value) {
    for (size_t i = 0; i < w->n; i++) {
        if (w->masters) *(uint16_t *)w->grads[i].data = amp_float_to_half(value);
        else *(float *)w->grads[i].data = value;
    }
}

void bench_world_train(struct bench_world *w) {
    for (int bracket = 0; bracket < 4; bracket++) {
        bench_world_begin(w);
        set_gradients(w, 1.0f);
        bench_world_end(w);
        bench_world_step(w);
        set_gradients(w, 0.0f);
    }
}

void bench_world_stop(struct bench_world *w) { bench_must(amp_shutdown(w->optimizer.amp), "amp_shutdown"); }

void bench_world_begin(struct bench_world *w) {
    w->scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
    bench_must(amp_scale_loss_begin(&w->optimizer, NULL, &w->scaled), "amp_scale_loss_begin");
    (void)amp_seed_factor(&w->scaled); /* as a host that seeds backward itself */
}

void bench_world_end(struct bench_world *w) { bench_must(amp_scale_loss_end(&w->scaled), "amp_scale_loss_end"); }

void bench_world_step(struct bench_world *w) {
    amp_step_info info = AMP_STEP_INFO_INIT;
    bench_must(amp_step_begin(&w->optimizer, &info), "amp_step_begin");
    bench_must(amp_step_end(&w->optimizer), "amp_step_end");
}

void bench_world_kernels(struct bench_world *w) {
    float found = 0.0f;
    bench_must(amp_scale_list(w->dst, w->src, w->n, 0x1p-16f, &found), "amp_scale_list");
    if (w->masters) bench_must(amp_cast_list(w->src, w->dst, w->n), "amp_cast_list");
}
