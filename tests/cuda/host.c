/* SPDX-License-Identifier: Apache-2.0 */
#include "host.h"

#include "../kernels/support.h"
#include "kernels/backend.h"

#include <stdlib.h>
#include <string.h>

enum { TENSOR = 1, LOSS = 2, CPU = 1, CUDA = 2 };

static const int64_t sizes[HOST_PARAMS] = { 1, 1000, 7, 4096, 33 };

size_t host_elements(void) {
    size_t n = 0;
    for (int i = 0; i < HOST_PARAMS; i++) n += (size_t)sizes[i];
    return n;
}

/* ---- memory ---- */

static void run(int32_t kind, void **made, void *dst, const void *src, size_t bytes) {
    static void *memory; /* for the life of the process */
    const struct amp__backend *backend = amp__backend_get(AMP__BACKEND_cuda, NULL);
    struct amp__memory_call call = { .kind = kind, .stream = device.stream, .dst = dst, .src = src, .bytes = bytes };
    if (!memory) ck_assert_int_eq(backend->memory_open(0, &memory), AMP_OK);
    ck_assert_int_eq(backend->memory_run(memory, &call), AMP_OK);
    if (made) *made = call.made;
}

void *memory_alloc(bool on_cpu, size_t bytes) {
    void *made = NULL;
    if (on_cpu) made = aligned_alloc(64, (bytes + 64) / 64 * 64);
    else if (device.fake) made = device.tools->alloc(bytes);
    else run(AMP__MEMORY_ALLOC, &made, NULL, NULL, bytes);
    ck_assert_ptr_nonnull(made);
    return made;
}
void memory_free(bool on_cpu, void *memory) {
    if (on_cpu) free(memory);
    else if (device.fake) device.tools->flush(), device.tools->free(memory);
    else run(AMP__MEMORY_FREE, NULL, memory, NULL, 0);
}
void memory_in(bool on_cpu, void *dst, const void *src, size_t bytes) {
    if (on_cpu) memcpy(dst, src, bytes);
    else if (device.fake) device.tools->flush(), device.tools->copy(dst, src, bytes);
    else run(AMP__MEMORY_IN, NULL, dst, src, bytes);
}
void memory_out(bool on_cpu, void *dst, const void *src, size_t bytes) {
    if (on_cpu) memcpy(dst, src, bytes);
    else if (device.fake) device.tools->flush(), device.tools->copy(dst, src, bytes);
    else run(AMP__MEMORY_OUT, NULL, dst, src, bytes);
}

static bool is_here(const struct tensor *tensor) { return tensor->device.type == CPU; }
static size_t width(amp_dtype dtype) { return dtype == AMP_FLOAT32 ? 4 : dtype == AMP_FLOAT64 ? 8 : 2; }
static amp_span span_of(const struct tensor *t) { return (amp_span){ t->data, (uint64_t)t->size, t->dtype, 0 }; }

static void make(struct tensor *tensor, amp_device where, int64_t size, amp_dtype dtype) {
    *tensor = (struct tensor){ TENSOR, where, dtype, NULL, size, NULL, 1 };
    tensor->data = memory_alloc(where.type == CPU, (size_t)size * width(dtype));
}

static struct tensor *new_like(struct host *host, const struct tensor *like) {
    struct tensor *tensor = calloc(1, sizeof *tensor);
    ck_assert_ptr_nonnull(tensor);
    make(tensor, like->device, like->size, like->dtype);
    host->tensors++;
    return tensor;
}

static void drop(struct host *host, struct tensor *tensor) {
    if (!tensor) return;
    memory_free(is_here(tensor), tensor->data);
    free(tensor);
    host->tensors--;
}

/* ---- hooks ---- */

static amp_status view(void *self, void *handle, amp_tensor_view *out) {
    struct tensor *tensor = handle;
    (void)self;
    out->data = tensor->data;
    out->device = tensor->device;
    out->ndim = 1;
    out->shape = &tensor->size;
    out->dtype.code = tensor->dtype == AMP_BFLOAT16 ? 4 : 2;
    out->dtype.bits = (uint8_t)(8 * width(tensor->dtype));
    out->dtype.lanes = 1;
    return AMP_OK;
}
static amp_dtype dtype(void *self, void *handle) {
    (void)self;
    return *(int32_t *)handle == LOSS ? AMP_FLOAT32 : ((struct tensor *)handle)->dtype;
}
static void release(void *self, void *handle) {
    if (*(int32_t *)handle == LOSS) free(handle);
    else drop(self, handle);
}
static uint64_t version(void *self, void *handle) {
    (void)self;
    return ((const struct tensor *)handle)->version;
}
static amp_status grad(void *self, void *handle, void **out) {
    (void)self;
    *out = ((const struct tensor *)handle)->grad;
    return AMP_OK;
}
static amp_status set_grad(void *self, void *handle, void *given) {
    (void)self;
    ((struct tensor *)handle)->grad = given;
    return AMP_OK;
}
static amp_status swap_data(void *self, void *handle, amp_storage *storage) {
    struct tensor *tensor = handle;
    (void)self;
    const amp_storage old = { tensor->data, NULL, (uint64_t)tensor->size * width(tensor->dtype), tensor->dtype, 0 };
    tensor->data = storage->data;
    tensor->dtype = storage->dtype;
    *storage = old;
    return AMP_OK;
}
static amp_status scale(void *self, void *handle, float factor, void **out) {
    struct loss *loss = calloc(1, sizeof *loss);
    (void)self, (void)handle;
    *loss = (struct loss){ LOSS, factor, NULL };
    *out = loss;
    return AMP_OK;
}
static amp_status scale_by(void *self, void *handle, const float *factor, void **out) {
    struct loss *loss = calloc(1, sizeof *loss);
    (void)self, (void)handle;
    *loss = (struct loss){ LOSS, 1.0f, factor };
    *out = loss;
    return AMP_OK;
}
static amp_status alloc_hook(void *self, uint64_t bytes, amp_device where, amp_purpose purpose, amp_storage *storage) {
    struct host *host = self;
    (void)purpose;
    storage->data = memory_alloc(where.type == CPU, bytes);
    storage->owner = where.type == CPU ? host : NULL;
    host->tensors++;
    return AMP_OK;
}
static void free_hook(void *self, amp_storage *storage) {
    struct host *host = self;
    memory_free(storage->owner != NULL || host->on_cpu, storage->data);
    host->tensors--;
}
static void event(void *self, const amp_event *told) {
    ((struct host *)self)->event_skips += told->kind == AMP_EVENT_SKIP;
}
static amp_status current_stream(void *self, amp_device where, void **stream) {
    ((struct host *)self)->streams_asked++;
    ck_assert_int_eq(where.type, CUDA);
    *stream = device.stream;
    return AMP_OK;
}

/* ---- a host ---- */

static void describe(struct host *host, enum stepping stepping) {
    host->hooks = (amp_host)AMP_HOST_INIT;
    host->hooks.self = host;
    host->hooks.view = view;
    host->hooks.dtype = dtype;
    host->hooks.release = release;
    host->hooks.grad = grad;
    host->hooks.swap_data = swap_data;
    host->hooks.version = version;
    host->hooks.scale = scale;
    host->hooks.event = event;
    host->hooks.current_stream = current_stream;
    if (stepping != STEP_KNOWS) host->hooks.scale_by = scale_by;
    if (!host->fixed) host->hooks.set_grad = set_grad;
    if (!host->mixed) host->hooks.alloc = alloc_hook, host->hooks.free = free_hook;
    host->model = (amp_model)AMP_MODEL_INIT;
    host->model.host = &host->hooks;
    host->model.params = host->listed;
    host->model.n_params = HOST_PARAMS;
    host->optimizer = (amp_optimizer)AMP_OPTIMIZER_INIT;
    host->optimizer.host = &host->hooks;
    host->optimizer.params = host->handles;
    host->optimizer.n_params = HOST_PARAMS;
    host->rule = (amp_optim)AMP_OPTIM_INIT;
    ck_assert_int_eq(amp_optim_defaults(AMP_OPTIM_SGD, &host->rule), AMP_OK);
    host->rule.lr = 0.125;
    host->fused = (amp_fused)AMP_FUSED_INIT;
    host->fused.groups = &host->rule;
    host->fused.n_groups = 1;
    if (stepping == STEP_FUSED) host->optimizer.fused = &host->fused;
    if (stepping == STEP_THERE) host->optimizer.flags = AMP_OPTIMIZER_SKIPS_ON_DEVICE;
}

struct host *host_new(bool on_cpu, bool mixed, bool fixed, enum stepping stepping) {
    struct host *host = calloc(1, sizeof *host);
    ck_assert_ptr_nonnull(host);
    host->on_cpu = on_cpu, host->mixed = mixed, host->fixed = fixed;
    host->loss = (struct loss){ LOSS, 1.0f, NULL };
    for (int i = 0; i < HOST_PARAMS; i++) {
        static float values[4096];
        const bool here = on_cpu || (mixed && i == HOST_PARAMS - 1);
        const amp_device where = { here ? CPU : CUDA, 0 };
        make(&host->params[i], where, sizes[i], AMP_FLOAT32);
        make(&host->targets[i], where, sizes[i], AMP_FLOAT32);
        make(&host->scratch[i], where, sizes[i], AMP_FLOAT32);
        for (int64_t e = 0; e < sizes[i]; e++) values[e] = (float)((e * 37 + i) % 101 - 50) / 53.0f;
        memory_in(here, host->params[i].data, values, (size_t)sizes[i] * sizeof(float));
        host->listed[i] = (amp_param)AMP_PARAM_INIT;
        host->listed[i].tensor = host->handles[i] = &host->params[i];
        static const char *const names[] = { "a", "b", "c", "d", "e" };
        host->listed[i].name = names[i];
        if (!fixed) continue;
        host->params[i].grad = new_like(host, &host->params[i]);
        memset(values, 0, sizeof values);
        memory_in(here, host->params[i].grad->data, values, (size_t)sizes[i] * sizeof(float));
    }
    for (int i = 0; i < 4 && !on_cpu; i++) ck_assert_int_eq(amp_device_list_open((amp_device){ CUDA, 0 }, &host->lists[i]), AMP_OK);
    make(&host->step_room, (amp_device){ on_cpu ? CPU : CUDA, 0 }, 4 * HOST_PARAMS, AMP_FLOAT32);
    const uint64_t zeros[2 * HOST_PARAMS] = { 0 };
    memory_in(on_cpu, host->step_room.data, zeros, sizeof zeros);
    host->steps = host->step_room.data;
    describe(host, stepping);
    return host;
}

void host_free(struct host *host) {
    for (int i = 0; i < 4; i++) amp_device_list_close(host->lists[i]);
    for (int i = 0; i < HOST_PARAMS; i++) {
        drop(host, host->params[i].grad);
        memory_free(is_here(&host->params[i]), host->params[i].data);
        memory_free(is_here(&host->params[i]), host->targets[i].data);
        memory_free(is_here(&host->params[i]), host->scratch[i].data);
    }
    memory_free(host->on_cpu, host->step_room.data);
    ck_assert_int_eq(host->tensors, 0); /* libamp gave back all that it was given */
    free(host);
}

void host_set_targets(struct host *host, float value) {
    static float values[4096];
    for (int i = 0; i < HOST_PARAMS; i++) {
        struct tensor *target = &host->targets[i];
        /* one parameter overflows, and not the first */
        for (int64_t e = 0; e < sizes[i]; e++) values[e] = i == 2 || value < 1e30f ? -value / (float)(1 + e % 3) : 0.5f;
        memory_in(is_here(target), target->data, values, (size_t)sizes[i] * sizeof(float));
    }
}

/* ---- its kernels: on the device or here, by lists of those that are there ---- */

static size_t gather(struct host *host, bool here, amp_span *spans, struct tensor *tensors, size_t stride) {
    size_t n = 0;
    for (int i = 0; i < HOST_PARAMS; i++) {
        const struct tensor *tensor = (struct tensor *)(void *)((char *)tensors + (size_t)i * stride);
        if (is_here(&host->params[i]) == here) spans[n++] = span_of(tensor);
    }
    return n;
}

static void axpby(struct host *host, bool here, int list, const amp_span *dst, amp_factor a, const amp_span *x, const amp_span *y,
                  size_t n) {
    if (here) ck_assert_int_eq(amp_axpby_list(dst, a.value, x, a.value, y, n, NULL), AMP_OK);
    else ck_assert_int_eq(amp_device_axpby(host->lists[list], device.stream, dst, &a, x, &a, y, n, NULL), AMP_OK);
}

static void backward_on(struct host *host, bool here, const struct loss *loss, float times) {
    amp_span params[HOST_PARAMS], targets[HOST_PARAMS], scratch[HOST_PARAMS], fresh[HOST_PARAMS], old[HOST_PARAMS], parts[HOST_PARAMS];
    const amp_factor one = { NULL, 1.0f, AMP_FACTOR_AS_IT_IS };
    amp_factor by = { loss->factor_there, loss->factor * times, AMP_FACTOR_AS_IT_IS };
    size_t n_fresh = 0, n_old = 0, at = 0;
    const size_t n = gather(host, here, params, host->params, sizeof *host->params);
    (void)gather(host, here, targets, host->targets, sizeof *host->targets);
    (void)gather(host, here, scratch, host->scratch, sizeof *host->scratch);
    for (size_t i = 0; i < n; i++) scratch[i].dtype = params[i].dtype; /* gradients have the parameter's type */
    if (!n) return;
    ck_assert(!here || !loss->factor_there);
    axpby(host, here, 0, scratch, by, params, targets, n);
    for (int i = 0; i < HOST_PARAMS; i++) {
        struct tensor *param = &host->params[i];
        if (is_here(param) != here) continue;
        amp_span *to = param->grad ? &old[n_old] : &fresh[n_fresh];
        if (param->grad) parts[n_old++] = scratch[at];
        else {
            param->grad = new_like(host, param);
            n_fresh++;
        }
        *to = span_of(param->grad);
        param->grad->version++;
        if (n_fresh && to == &fresh[n_fresh - 1]) params[n_fresh - 1] = scratch[at];
        at++;
    }
    if (n_fresh && here) ck_assert_int_eq(amp_cast_list(fresh, params, n_fresh), AMP_OK);
    else if (n_fresh) ck_assert_int_eq(amp_device_cast(host->lists[1], device.stream, fresh, params, n_fresh), AMP_OK);
    if (n_old) axpby(host, here, 2, old, one, old, parts, n_old);
}

void host_backward(struct host *host, const struct loss *loss, float times) {
    backward_on(host, false, loss, times);
    backward_on(host, true, loss, times);
}

void host_clear(struct host *host) {
    for (int i = 0; i < HOST_PARAMS; i++) {
        static const float zeros[4096];
        struct tensor *param = &host->params[i];
        if (!param->grad) continue;
        if (host->fixed) {
            const amp_span one = span_of(param->grad);
            if (is_here(param)) memcpy(param->grad->data, zeros, (size_t)param->size * width(param->grad->dtype));
            else ck_assert_int_eq(amp_device_zero(host->lists[3], device.stream, &one, 1), AMP_OK);
            param->grad->version++;
        } else {
            drop(host, param->grad);
            param->grad = NULL;
        }
    }
}

static void own_step(struct host *host, bool here, const float *found_inf) {
    amp_span params[HOST_PARAMS], grads[HOST_PARAMS];
    uint64_t steps[HOST_PARAMS] = { 0 };
    amp_optim_tensors t = AMP_OPTIM_TENSORS_INIT;
    t.n = gather(host, here, params, host->params, sizeof *host->params);
    size_t at = 0;
    for (int i = 0; i < HOST_PARAMS; i++)
        if (is_here(&host->params[i]) == here) grads[at++] = span_of(host->params[i].grad);
    t.grad = grads, t.param = params;
    t.steps = here ? steps : host->steps;
    t.found_inf = found_inf;
    if (!t.n) return;
    if (here) ck_assert_int_eq(amp_optim_list(&host->rule, &t), AMP_OK);
    else ck_assert_int_eq(amp_device_optim(host->lists[3], device.stream, &host->rule, &t), AMP_OK);
    for (int i = 0; i < HOST_PARAMS; i++)
        if (is_here(&host->params[i]) == here) host->params[i].version++;
}

void host_step(struct host *host, enum stepping stepping) {
    amp_step_info info = AMP_STEP_INFO_INIT;
    if (stepping == STEP_FUSED) {
        ck_assert_msg(amp_fused_step(&host->optimizer, NULL) == AMP_OK, "%s", amp_last_error());
        return;
    }
    ck_assert_msg(amp_step_begin(&host->optimizer, &info) == AMP_OK, "%s", amp_last_error());
    if (stepping == STEP_KNOWS) ck_assert_int_ne(info.action, AMP_STEP_ON_DEVICE);
    if (info.action != AMP_SKIP) {
        const bool there = info.action == AMP_STEP_ON_DEVICE;
        own_step(host, false, there ? info.found_inf : NULL);
        own_step(host, true, NULL);
    }
    ck_assert_msg(amp_step_end(&host->optimizer) == AMP_OK, "%s", amp_last_error());
}

void host_read(struct host *host, float *out, size_t n) {
    size_t at = 0;
    for (int i = 0; i < HOST_PARAMS; i++) {
        static uint16_t low[4096];
        const struct tensor *param = &host->params[i];
        ck_assert_uint_le(at + (size_t)sizes[i], n);
        void *to = param->dtype == AMP_FLOAT32 ? (void *)(out + at) : (void *)low;
        memory_out(is_here(param), to, param->data, (size_t)sizes[i] * width(param->dtype));
        const amp_span wide = { out + at, (uint64_t)sizes[i], AMP_FLOAT32, 0 }, from = { low, (uint64_t)sizes[i], param->dtype, 0 };
        if (param->dtype != AMP_FLOAT32) ck_assert_int_eq(amp_cast_list(&wide, &from, 1), AMP_OK);
        at += (size_t)sizes[i];
    }
}
