/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a bracket costs the host whose 200 parameters are in a GPU's memory: the time of begin and end, the time with
 * the step, and how often an iteration waits for the device. The host makes its gradients anew in each iteration, at
 * the same addresses, as a caching allocator does.
 */
#include "bench.h"
#include "cuda.h"

#include <amp.h>
#include <amp_raw.h>
#include <amp_optim.h>

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { TENSORS = 200, LENGTH = 64, CUDA = 2 };

static struct world {
    amp_host host;
    amp_buffer params[TENSORS], grads[TENSORS];
    amp_param listed[TENSORS];
    void *trained[TENSORS];
    amp_model model;
    amp_optimizer optimizer;
    amp_optim rule;
    amp_fused fused;
    bool steps;
} world;

/* ---- the host ---- */

static amp_status view(void *self, void *handle, amp_tensor_view *out) {
    const amp_status status = amp_buffer_host()->view(self, handle, out);
    out->device = (amp_device){ CUDA, 0 };
    return status;
}

static amp_status set_grad(void *self, void *handle, void *grad) {
    (void)self;
    ((amp_buffer *)handle)->grad = grad;
    return AMP_OK;
}

static amp_status swap_data(void *self, void *handle, amp_storage *storage) {
    amp_buffer *buffer = handle;
    const amp_storage old = { buffer->data, NULL, 0, buffer->dtype, 0 };
    (void)self;
    buffer->data = storage->data, buffer->dtype = storage->dtype;
    *storage = old;
    return AMP_OK;
}

static void release(void *self, void *handle) { (void)self, (void)handle; }

static amp_status current_stream(void *self, amp_device device, void **stream) {
    (void)self, (void)device;
    *stream = bench_cuda_stream;
    return AMP_OK;
}

static void make(amp_level level) {
    const size_t bytes = (size_t)TENSORS * LENGTH * sizeof(float);
    char *params = bench_cuda_memory(bytes, 0), *grads = bench_cuda_memory(bytes, 0);
    memset(&world, 0, sizeof world);
    world.host = *amp_buffer_host();
    world.host.flags |= AMP_HOST_SEEDS_ON_DEVICE;
    world.host.view = view, world.host.set_grad = set_grad, world.host.swap_data = swap_data,
        world.host.release = release;
    world.host.current_stream = current_stream;
    for (size_t i = 0; i < TENSORS; i++) {
        world.params[i] = world.grads[i] = (amp_buffer)AMP_BUFFER_INIT;
        world.params[i].data = params + i * LENGTH * sizeof(float),
            world.grads[i].data = grads + i * LENGTH * sizeof(float);
        world.params[i].size = world.grads[i].size = LENGTH;
        world.grads[i].dtype = level == AMP_O2 ? AMP_FLOAT16 : AMP_FLOAT32;
        world.listed[i] = (amp_param)AMP_PARAM_INIT;
        world.listed[i].tensor = world.trained[i] = &world.params[i];
    }
    world.rule = (amp_optim)AMP_OPTIM_INIT, world.fused = (amp_fused)AMP_FUSED_INIT;
    bench_must(amp_optim_defaults(AMP_OPTIM_ADAM, &world.rule), "amp_optim_defaults");
    world.fused.groups = &world.rule, world.fused.n_groups = 1;
    world.model = (amp_model)AMP_MODEL_INIT, world.optimizer = (amp_optimizer)AMP_OPTIMIZER_INIT;
    world.model.host = world.optimizer.host = &world.host;
    world.model.params = world.listed, world.model.n_params = TENSORS;
    world.optimizer.params = world.trained, world.optimizer.n_params = TENSORS;
    world.optimizer.fused = &world.fused;
    bench_must(amp_initialize(&world.model, &world.optimizer, level), "amp_initialize");
}

/* ---- an iteration ---- */

static void iterate(void *data) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    (void)data;
    bench_must(amp_scale_loss_begin(&world.optimizer, NULL, &scaled), "amp_scale_loss_begin");
    (void)amp_seed_factor(&scaled); /* as a host that seeds backward itself */
    for (size_t i = 0; i < TENSORS; i++) world.params[i].grad = &world.grads[i];
    bench_must(amp_scale_loss_end(&scaled), "amp_scale_loss_end");
    if (world.steps) bench_must(amp_fused_step(&world.optimizer, NULL), "amp_fused_step");
    for (size_t i = 0; i < TENSORS; i++) world.params[i].grad = NULL;
}

static void nothing(void *data) { (void)data; }

static void run_time(const char *name, double goal) {
    const double allowed = 0.1e6;
    bench_run(&(struct bench_case){ .group = "bracket", .name = name, .size = "200 x 64", .unit = "ns", .calls = 1,
                                    .wall = true,
                                    .ours = iterate, .reference = nothing,
                                    .reference_name = "0.1 ms of the host's time", .allowed = allowed, .goal = goal });
}

/* ---- waits ---- */

/* The plugin's counters; NULL: it has none. */
static const int *counters(void) {
    static amp_backend_info infos[8] = { AMP_BACKEND_INFO_INIT };
    size_t n = 0;
    void *plugin = NULL;
    bench_must(amp_get_backends(infos, 8, &n), "amp_get_backends");
    for (size_t i = 0; i < n && i < 8; i++)
        if (!strcmp(infos[i].name, "cuda")) plugin = dlopen(infos[i].file, RTLD_NOW | RTLD_NOLOAD);
    return plugin ? dlsym(plugin, "amp_bench_waits") : NULL;
}

static void count_waits(const char *level) {
    enum { ITERATIONS = 1000 };
    const int *waits = counters();
    char name[64];
    int before[2];
    if (!waits) {
        bench_left_out("bracket", "waits: this libamp_cuda.so does not count them (AMP_BACKEND_PATH)");
        return;
    }
    memcpy(before, waits, sizeof before);
    for (int i = 0; i < ITERATIONS; i++) iterate(NULL);
    for (int kind = 0; kind < 2; kind++) {
        snprintf(name, sizeof name, "waits for %s, %s", kind ? "events" : "streams", level);
        bench_count(&(struct bench_case){ .group = "bracket", .name = name, .size = "1000 steps",
                                          .reference_name = "none", .goal = 1 },
                    waits[kind] - before[kind], 0);
    }
    bench_cuda_wait();
}

void bench_cuda_bracket(void) {
    for (int masters = 0; masters < 2; masters++) {
        make(masters ? AMP_O2 : AMP_O1);
        for (int i = 0; i < 3; i++) iterate(NULL); /* makes what stays */
        run_time(masters ? "begin and end, masters" : "begin and end, fp32", 1);
        world.steps = true;
        run_time(masters ? "with the fused step, masters" : "with the fused step, fp32", 0);
        count_waits(masters ? "masters" : "fp32");
        bench_must(amp_shutdown(world.optimizer.amp), "amp_shutdown");
    }
}
