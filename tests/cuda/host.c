/* SPDX-License-Identifier: Apache-2.0 */
#include "host.h"

#include "kernels/backend.h"

#include <stdlib.h>

enum { TENSOR = 1, LOSS = 2, CPU = 1, CUDA = 2 };

static const int64_t sizes[HOST_PARAMS] = { 1, 1000, 7, 4096, 33 };

size_t host_elements(void) {
    size_t n = 0;
    for (int i = 0; i < HOST_PARAMS; i++) n += (size_t)sizes[i];
    return n;
}

/* ---- memory ---- */

static void *stream_of(int32_t id) { return id ? device.second_stream : device.stream; }

static void run(int32_t id, int32_t kind, void **made, void *dst, const void *src, size_t bytes) {
    static void *memories[2]; /* for the life of the process */
    const struct amp__backend *backend = amp__backend_get(AMP__BACKEND_cuda, NULL);
    struct amp__memory_call call = { .kind = kind, .stream = stream_of(id), .dst = dst, .src = src, .bytes = bytes };
    if (!memories[id]) ck_ok(backend->memory_open(id, &memories[id]));
    ck_ok(backend->memory_run(memories[id], &call));
    if (made) *made = call.made;
}

static void *alloc_at(amp_device where, size_t bytes) {
    void *made = NULL;
    if (where.type == CPU) made = aligned_alloc(64, (bytes + 64) / 64 * 64);
    else if (device.fake) {
        const int before = device.fake->current;
        device.fake->current = where.id;
        made = device.tools->alloc(bytes);
        device.fake->current = before;
    } else run(where.id, AMP__MEMORY_ALLOC, &made, NULL, NULL, bytes);
    ck_assert_ptr_nonnull(made);
    return made;
}
static void free_at(amp_device where, void *memory) {
    if (where.type == CPU) free(memory);
    else if (device.fake) device.tools->flush(), device.tools->free(memory);
    else run(where.id, AMP__MEMORY_FREE, NULL, memory, NULL, 0);
}
static void copy_at(amp_device where, int32_t kind, void *dst, const void *src, size_t bytes) {
    if (where.type == CPU) memcpy(dst, src, bytes);
    else if (device.fake) device.tools->flush(), device.tools->copy(dst, src, bytes);
    else run(where.id, kind, NULL, dst, src, bytes);
}
static amp_device first(bool on_cpu) { return (amp_device){ on_cpu ? CPU : CUDA, 0 }; }

void *memory_alloc(bool on_cpu, size_t bytes) { return alloc_at(first(on_cpu), bytes); }
void memory_free(bool on_cpu, void *memory) { free_at(first(on_cpu), memory); }
void memory_in(bool on_cpu, void *dst, const void *src, size_t bytes) {
    copy_at(first(on_cpu), AMP__MEMORY_IN, dst, src, bytes);
}
void memory_out(bool on_cpu, void *dst, const void *src, size_t bytes) {
    copy_at(first(on_cpu), AMP__MEMORY_OUT, dst, src, bytes);
}
static void tensor_in(const struct tensor *to, const void *src, size_t bytes) {
    copy_at(to->device, AMP__MEMORY_IN, to->data, src, bytes);
}

static bool is_here(const struct tensor *tensor) { return tensor->device.type == CPU; }
static size_t width(amp_dtype dtype) { return dtype == AMP_FLOAT32 ? 4 : dtype == AMP_FLOAT64 ? 8 : 2; }
static amp_span span_of(const struct tensor *t) { return (amp_span){ t->data, (uint64_t)t->size, t->dtype, 0 }; }

static void make(struct tensor *tensor, amp_device where, int64_t size, amp_dtype dtype) {
    *tensor = (struct tensor){ TENSOR, where, dtype, NULL, size, NULL, 1 };
    tensor->data = alloc_at(where, (size_t)size * width(dtype));
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
    free_at(tensor->device, tensor->data);
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
    return (void)self, *(int32_t *)handle == LOSS ? AMP_FLOAT32 : ((struct tensor *)handle)->dtype;
}
static void release(void *self, void *handle) {
    if (*(int32_t *)handle == LOSS) free(handle);
    else drop(self, handle);
}
static uint64_t version(void *self, void *handle) { return (void)self, ((const struct tensor *)handle)->version; }
static amp_status grad(void *self, void *handle, void **out) {
    return (void)self, *out = ((const struct tensor *)handle)->grad, AMP_OK;
}
static amp_status set_grad(void *self, void *handle, void *given) {
    return (void)self, ((struct tensor *)handle)->grad = given, AMP_OK;
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
static amp_status scaled_loss(float factor, const float *factor_there, void **out) {
    struct loss *loss = calloc(1, sizeof *loss);
    if (!loss) return AMP_ERR_NO_MEMORY;
    *loss = (struct loss){ LOSS, factor, factor_there };
    *out = loss;
    return AMP_OK;
}
static amp_status scale(void *self, void *handle, float factor, void **out) {
    return (void)self, (void)handle, scaled_loss(factor, NULL, out);
}
static amp_status scale_by(void *self, void *handle, const float *factor, void **out) {
    return (void)self, (void)handle, scaled_loss(1.0f, factor, out);
}
static amp_status alloc_hook(void *self, uint64_t bytes, amp_device where, amp_purpose purpose, amp_storage *storage) {
    struct host *host = self;
    (void)purpose;
    storage->data = alloc_at(where, bytes);
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
    *stream = stream_of(where.id);
    return AMP_OK;
}

/* ---- a host ---- */

static void describe(struct host *host, enum stepping stepping) {
    const bool one_memory = !host->mixed && !host->two;
    host->hooks = SIZED(amp_host, .self = host, .view = view, .dtype = dtype, .release = release, .grad = grad,
                        .swap_data = swap_data, .version = version, .scale = scale, .event = event,
                        .current_stream = current_stream, .scale_by = stepping == STEP_KNOWS ? NULL : scale_by,
                        .set_grad = host->fixed ? NULL : set_grad, .alloc = one_memory ? alloc_hook : NULL,
                        .free = one_memory ? free_hook : NULL);
    host->model = SIZED(amp_model, .host = &host->hooks, .params = host->listed, .n_params = HOST_PARAMS);
    host->rule = (amp_optim)AMP_OPTIM_INIT;
    ck_ok(amp_optim_defaults(AMP_OPTIM_SGD, &host->rule));
    host->rule.lr = 0.125;
    host->fused = SIZED(amp_fused, .groups = &host->rule, .n_groups = 1);
    host->optimizer = SIZED(amp_optimizer, .host = &host->hooks, .params = host->handles, .n_params = HOST_PARAMS,
                            .fused = stepping == STEP_FUSED ? &host->fused : NULL,
                            .flags = stepping == STEP_THERE ? AMP_OPTIMIZER_SKIPS_ON_DEVICE : 0);
}

static amp_device place_of(const struct host *host, int i) {
    if (host->on_cpu || (host->mixed && i == HOST_PARAMS - 1)) return (amp_device){ CPU, 0 };
    return (amp_device){ CUDA, host->two && i % 2 };
}

static void make_param(struct host *host, int i) {
    static const char *const names[] = { "a", "b", "c", "d", "e" };
    static float values[4096];
    const amp_device where = place_of(host, i);
    make(&host->params[i], where, sizes[i], AMP_FLOAT32);
    make(&host->targets[i], where, sizes[i], AMP_FLOAT32);
    make(&host->scratch[i], where, sizes[i], AMP_FLOAT32);
    for (int64_t e = 0; e < sizes[i]; e++) values[e] = (float)((e * 37 + i) % 101 - 50) / 53.0f;
    tensor_in(&host->params[i], values, (size_t)sizes[i] * sizeof(float));
    host->handles[i] = &host->params[i];
    host->listed[i] = SIZED(amp_param, .tensor = &host->params[i], .name = names[i]);
    if (!host->fixed) return;
    host->params[i].grad = new_like(host, &host->params[i]);
    memset(values, 0, sizeof values);
    tensor_in(host->params[i].grad, values, (size_t)sizes[i] * sizeof(float));
}

static struct host *build(const struct host *like, enum stepping stepping) {
    const uint64_t zeros[2 * HOST_PARAMS] = { 0 };
    struct host *host = malloc(sizeof *host);
    ck_assert_ptr_nonnull(host);
    *host = *like;
    host->loss = (struct loss){ LOSS, 1.0f, NULL };
    for (int i = 0; i < HOST_PARAMS; i++) make_param(host, i);
    for (int id = 0; id < 1 + host->two && !host->on_cpu; id++)
        for (int i = 0; i < 4; i++)
            ck_ok(amp_device_list_open((amp_device){ CUDA, id }, &host->lists[id][i]));
    for (int m = 0; m < 3; m++) {
        const amp_device where = { m && !host->on_cpu ? CUDA : CPU, m == 2 && host->two };
        make(&host->step_rooms[m], where, 4 * HOST_PARAMS, AMP_FLOAT32);
        tensor_in(&host->step_rooms[m], zeros, sizeof zeros);
    }
    describe(host, stepping);
    return host;
}

struct host *host_new(bool on_cpu, bool mixed, bool fixed, enum stepping stepping) {
    return build(&(struct host){ .on_cpu = on_cpu, .mixed = mixed, .fixed = fixed }, stepping);
}

struct host *host_new_on_two(bool mixed, bool fixed, enum stepping stepping) {
    return device.second_stream ? build(&(struct host){ .two = true, .mixed = mixed, .fixed = fixed }, stepping) : NULL;
}

void host_free(struct host *host) {
    for (int i = 0; i < 8; i++) amp_device_list_close(host->lists[i / 4][i % 4]);
    for (int i = 0; i < HOST_PARAMS; i++) {
        drop(host, host->params[i].grad);
        free_at(host->params[i].device, host->params[i].data);
        free_at(host->params[i].device, host->targets[i].data);
        free_at(host->params[i].device, host->scratch[i].data);
    }
    for (int m = 0; m < 3; m++) free_at(host->step_rooms[m].device, host->step_rooms[m].data);
    ck_assert_int_eq(host->tensors, 0); /* libamp gave back all that it was given */
    free(host);
}

void host_set_targets(struct host *host, float value) {
    static float values[4096];
    for (int i = 0; i < HOST_PARAMS; i++) {
        struct tensor *target = &host->targets[i];
        /* one parameter overflows, and not the first */
        for (int64_t e = 0; e < sizes[i]; e++) values[e] = i == 2 || value < 1e30f ? -value / (float)(1 + e % 3) : 0.5f;
        tensor_in(target, values, (size_t)sizes[i] * sizeof(float));
    }
}

/* ---- its kernels: here (0), on the first device (1), on the second (2), by lists of those that are there ---- */

enum { MEMORIES = 3 };

static bool is_at(const struct tensor *tensor, int memory) {
    return is_here(tensor) ? memory == 0 : memory == 1 + tensor->device.id;
}

static size_t gather(struct host *host, int memory, amp_span *spans, struct tensor *tensors, size_t stride) {
    size_t n = 0;
    for (int i = 0; i < HOST_PARAMS; i++) {
        const struct tensor *tensor = (struct tensor *)(void *)((char *)tensors + (size_t)i * stride);
        if (is_at(&host->params[i], memory)) spans[n++] = span_of(tensor);
    }
    return n;
}

static void axpby(struct host *host, int memory, int list, const amp_span *dst, amp_factor a, const amp_span *x,
                  const amp_span *y, size_t n) {
    const int id = memory - 1;
    if (!memory) ck_ok(amp_axpby_list(dst, a.value, x, a.value, y, n, NULL));
    else ck_ok(amp_device_axpby(host->lists[id][list], stream_of(id), dst, &a, x, &a, y, n, NULL));
}

static void backward_on(struct host *host, int memory, const struct loss *loss, float times) {
    amp_span params[HOST_PARAMS], targets[HOST_PARAMS], scratch[HOST_PARAMS], fresh[HOST_PARAMS], old[HOST_PARAMS],
        parts[HOST_PARAMS];
    const amp_factor one = { NULL, 1.0f, AMP_FACTOR_AS_IT_IS };
    amp_factor by = { loss->factor_there, loss->factor * times, AMP_FACTOR_AS_IT_IS };
    size_t n_fresh = 0, n_old = 0, at = 0;
    const size_t n = gather(host, memory, params, host->params, sizeof *host->params);
    (void)gather(host, memory, targets, host->targets, sizeof *host->targets);
    (void)gather(host, memory, scratch, host->scratch, sizeof *host->scratch);
    for (size_t i = 0; i < n; i++) scratch[i].dtype = params[i].dtype; /* gradients have the parameter's type */
    if (!n) return;
    ck_assert(memory || !loss->factor_there);
    axpby(host, memory, 0, scratch, by, params, targets, n);
    for (int i = 0; i < HOST_PARAMS; i++) {
        struct tensor *param = &host->params[i];
        if (!is_at(param, memory)) continue;
        amp_span *to = param->grad ? &old[n_old] : &fresh[n_fresh];
        if (param->grad) parts[n_old++] = scratch[at];
        else param->grad = new_like(host, param), n_fresh++;
        *to = span_of(param->grad);
        param->grad->version++;
        if (n_fresh && to == &fresh[n_fresh - 1]) params[n_fresh - 1] = scratch[at];
        at++;
    }
    const int id = memory - 1;
    if (n_fresh && !memory) ck_ok(amp_cast_list(fresh, params, n_fresh));
    else if (n_fresh) ck_ok(amp_device_cast(host->lists[id][1], stream_of(id), fresh, params, n_fresh));
    if (n_old) axpby(host, memory, 2, old, one, old, parts, n_old);
}

void host_backward(struct host *host, const struct loss *loss, float times) {
    for (int memory = MEMORIES; memory--;) backward_on(host, memory, loss, times);
}

amp_action host_bracket(struct host *host) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    ck_ok(amp_scale_loss_begin(&host->optimizer, &host->loss, &scaled));
    host_backward(host, scaled.loss, 1.0f);
    ck_ok(amp_scale_loss_end(&scaled));
    return scaled.action;
}

void host_clear(struct host *host) {
    for (int i = 0; i < HOST_PARAMS; i++) {
        static const float zeros[4096];
        struct tensor *param = &host->params[i];
        if (!param->grad) continue;
        if (host->fixed) {
            const amp_span one = span_of(param->grad);
            const int id = param->device.id;
            if (is_here(param)) memcpy(param->grad->data, zeros, (size_t)param->size * width(param->grad->dtype));
            else ck_ok(amp_device_zero(host->lists[id][3], stream_of(id), &one, 1));
            param->grad->version++;
        } else {
            drop(host, param->grad);
            param->grad = NULL;
        }
    }
}

static void own_step(struct host *host, int memory, const float *found_inf) {
    amp_span params[HOST_PARAMS], grads[HOST_PARAMS];
    const size_t n = gather(host, memory, params, host->params, sizeof *host->params);
    const amp_optim_tensors t = SIZED(amp_optim_tensors, .n = n, .grad = grads, .param = params,
                                      .steps = host->step_rooms[memory].data, .found_inf = found_inf);
    size_t at = 0;
    for (int i = 0; i < HOST_PARAMS; i++)
        if (is_at(&host->params[i], memory)) grads[at++] = span_of(host->params[i].grad);
    if (!n) return;
    const int id = memory - 1;
    if (!memory) ck_ok(amp_optim_list(&host->rule, &t));
    else ck_ok(amp_device_optim(host->lists[id][3], stream_of(id), &host->rule, &t));
    for (int i = 0; i < HOST_PARAMS; i++)
        if (is_at(&host->params[i], memory)) host->params[i].version++;
}

void host_step(struct host *host, enum stepping stepping) {
    amp_step_info info = AMP_STEP_INFO_INIT;
    if (stepping == STEP_FUSED) ck_ok(amp_fused_step(&host->optimizer, NULL));
    if (stepping == STEP_FUSED) return;
    ck_ok(amp_step_begin(&host->optimizer, &info));
    if (stepping == STEP_KNOWS) ck_assert_int_ne(info.action, AMP_STEP_ON_DEVICE);
    if (info.action != AMP_SKIP) {
        const bool there = info.action == AMP_STEP_ON_DEVICE;
        for (int memory = MEMORIES; memory--;) own_step(host, memory, there && memory ? info.found_inf : NULL);
    }
    ck_ok(amp_step_end(&host->optimizer));
}

void host_read(struct host *host, float *out, size_t n) {
    size_t at = 0;
    for (int i = 0; i < HOST_PARAMS; i++) {
        static uint16_t low[4096];
        const struct tensor *param = &host->params[i];
        ck_assert_uint_le(at + (size_t)sizes[i], n);
        void *to = param->dtype == AMP_FLOAT32 ? (void *)(out + at) : (void *)low;
        copy_at(param->device, AMP__MEMORY_OUT, to, param->data, (size_t)sizes[i] * width(param->dtype));
        const amp_span wide = { out + at, (uint64_t)sizes[i], AMP_FLOAT32, 0 },
                       from = { low, (uint64_t)sizes[i], param->dtype, 0 };
        if (param->dtype != AMP_FLOAT32) ck_ok(amp_cast_list(&wide, &from, 1));
        at += (size_t)sizes[i];
    }
}
