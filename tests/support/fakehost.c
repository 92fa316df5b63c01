/* SPDX-License-Identifier: Apache-2.0 */
#include "fakehost.h"

#include "amp_kernels.h"

#include <assert.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* grad_enabled is asked by whatever thread tells of a call. */
static bool breaks(struct fake *host, enum fake_hook hook) {
    return __atomic_add_fetch(&host->calls[hook], 1, __ATOMIC_RELAXED) == host->fail_at && host->fail_hook == hook;
}

/* ---- blocks: `owner` of a block that the host made is the block itself ---- */

/* Not malloc: gcc makes calloc, which tests break, of malloc and memset. */
static void *allocate(size_t bytes) {
    void *block = memalign(64, bytes);
    assert(block);
    return memset(block, 0, bytes);
}

/* Elements begin behind a head: free() on them is an error that malloc notices, for only the host may free them. */
struct block {
    struct block *next, **link; /* all of the host's */
};
enum { BLOCK_HEAD = 64 };

static size_t width_of(amp_dtype dtype) {
    return dtype == AMP_FLOAT64 ? 8 : dtype == AMP_FLOAT16 || dtype == AMP_BFLOAT16 ? 2 : 4;
}

static amp_storage block_new(struct fake *host, uint64_t bytes, amp_dtype dtype) {
    struct block *block = allocate(BLOCK_HEAD + bytes);
    block->next = host->blocks;
    block->link = &host->blocks;
    if (block->next) block->next->link = &block->next;
    host->blocks = block;
    host->live_blocks++;
    return (amp_storage){ (char *)block + BLOCK_HEAD, block, bytes, dtype, 0 };
}

static void block_free(struct fake *host, amp_storage *storage) {
    struct block *block = storage->owner;
    if (!block) { /* libamp's memory: it should have been taken back */
        host->wrong_frees++;
        return;
    }
    *block->link = block->next;
    if (block->next) block->next->link = block->link;
    host->live_blocks--;
    free(block);
    memset(storage, 0, sizeof *storage);
}

/* ---- tensors ---- */

static struct fake_tensor *tensor_new(struct fake *host, int64_t n, amp_storage storage) {
    struct fake_tensor *tensor = allocate(sizeof *tensor);
    *tensor = (struct fake_tensor){ .host = host, .next = host->all, .refs = 1, .owns = true, .storage = storage,
                                    .shape = { n }, .strides = { 1 }, .id = ++host->next_id, .version = 1 };
    host->all = tensor;
    host->live_tensors++;
    return tensor;
}

struct fake_tensor *fake_new(struct fake *host, amp_dtype dtype, int64_t n, double value) {
    struct fake_tensor *tensor = tensor_new(host, n, block_new(host, (uint64_t)n * width_of(dtype), dtype));
    fake_fill(tensor, value);
    return tensor;
}

struct fake_tensor *fake_alias(struct fake_tensor *tensor) {
    struct fake_tensor *alias = tensor_new(tensor->host, tensor->shape[0], tensor->storage);
    alias->owns = false;
    alias->id = tensor->id;
    return alias;
}

void fake_release(struct fake_tensor *tensor) {
    if (!tensor->refs) {
        tensor->host->over_released++;
        return;
    }
    if (--tensor->refs) return;
    if (tensor->grad) fake_release(tensor->grad);
    tensor->grad = NULL;
    if (tensor->owns) block_free(tensor->host, &tensor->storage);
    tensor->host->live_tensors--;
}

void fake_drop_block(struct fake_tensor *tensor) { block_free(tensor->host, &tensor->storage); }

double fake_get(const struct fake_tensor *tensor, int64_t i) {
    const char *at = (const char *)tensor->storage.data + (size_t)i * width_of(tensor->storage.dtype);
    uint16_t half;
    float single;
    double wide;
    int32_t integer;
    switch (tensor->storage.dtype) {
    case AMP_FLOAT16: return memcpy(&half, at, sizeof half), (double)amp_half_to_float(half);
    case AMP_BFLOAT16: return memcpy(&half, at, sizeof half), (double)amp_bfloat16_to_float(half);
    case AMP_FLOAT32: return memcpy(&single, at, sizeof single), (double)single;
    case AMP_FLOAT64: return memcpy(&wide, at, sizeof wide), wide;
    default: return memcpy(&integer, at, sizeof integer), (double)integer;
    }
}

static void put(struct fake_tensor *tensor, int64_t i, double value) {
    char *at = (char *)tensor->storage.data + (size_t)i * width_of(tensor->storage.dtype);
    const float single = (float)value;
    const uint16_t half = amp_float_to_half(single), brain = amp_float_to_bfloat16(single);
    switch (tensor->storage.dtype) {
    case AMP_FLOAT16: memcpy(at, &half, sizeof half); break;
    case AMP_BFLOAT16: memcpy(at, &brain, sizeof brain); break;
    case AMP_FLOAT32: memcpy(at, &single, sizeof single); break;
    case AMP_FLOAT64: memcpy(at, &value, sizeof value); break;
    default: {
        const int32_t integer = value >= -0x1p31 && value < 0x1p31 ? (int32_t)value : INT32_MIN; /* as x86 converts */
        memcpy(at, &integer, sizeof integer);
    }
    }
}

void fake_set(struct fake_tensor *tensor, int64_t i, double value) {
    put(tensor, i, value);
    tensor->version++;
}

void fake_fill(struct fake_tensor *tensor, double value) {
    for (int64_t i = 0; i < tensor->shape[0]; i++) put(tensor, i, value);
    tensor->version++;
}

void fake_put_grad(struct fake_tensor *tensor, struct fake_tensor *grad) {
    if (tensor->grad) fake_release(tensor->grad);
    tensor->grad = grad;
}

/* ---- the tape ---- */

void fake_record(struct fake_tensor *tensor) {
    struct fake *host = tensor->host;
    if (host->no_grad) return;
    assert(host->n_tape < FAKE_TAPE);
    if (host->options & FAKE_RETAINS) tensor->refs++;
    host->tape[host->n_tape++] = tensor;
}

unsigned fake_tape_dead(const struct fake *host) {
    unsigned dead = 0;
    for (unsigned i = 0; i < host->n_tape; i++) dead += host->tape[i]->refs == 0;
    return dead;
}

void fake_tape_clear(struct fake *host) {
    while (host->n_tape) {
        struct fake_tensor *tensor = host->tape[--host->n_tape];
        if (host->options & FAKE_RETAINS) fake_release(tensor);
    }
}

const struct fake_call *fake_last(const struct fake *host) {
    assert(host->n_log);
    return &host->log[(host->n_log - 1) % FAKE_LOG];
}

/* ---- hooks ---- */

static amp_status hook_view(void *self, void *handle, amp_tensor_view *view) {
    struct fake_tensor *tensor = handle;
    if (breaks(self, FAKE_VIEW)) return AMP_ERR_HOST_FAILED;
    const amp_dtype dtype = tensor->storage.dtype;
    view->data = tensor->storage.data;
    view->device.type = 1;
    view->ndim = 1;
    view->shape = tensor->shape;
    view->strides = tensor->strides;
    view->dtype.code = tensor->code ? tensor->code : dtype == AMP_DTYPE_OTHER ? 0 : dtype == AMP_BFLOAT16 ? 4 : 2;
    view->dtype.bits = tensor->bits ? tensor->bits : (uint8_t)(8 * width_of(dtype));
    view->dtype.lanes = 1;
    return AMP_OK;
}

static amp_dtype hook_dtype(void *self, void *handle) {
    return (void)breaks(self, FAKE_DTYPE), ((struct fake_tensor *)handle)->storage.dtype;
}

static amp_status hook_cast(void *self, void *handle, amp_dtype to, void **out) {
    struct fake_tensor *tensor = handle;
    if (breaks(self, FAKE_CAST)) return AMP_ERR_HOST_FAILED;
    struct fake_tensor *cast = fake_new(self, to, tensor->shape[0], 0.0);
    for (int64_t i = 0; i < tensor->shape[0]; i++) put(cast, i, fake_get(tensor, i));
    cast->cast_of = tensor;
    cast->requires_grad = tensor->requires_grad;
    *out = cast;
    return AMP_OK;
}

static void hook_release(void *self, void *handle) {
    (void)breaks(self, FAKE_RELEASE);
    fake_release(handle);
}

static uint64_t hook_id(void *self, void *handle) {
    return (void)breaks(self, FAKE_ID), ((struct fake_tensor *)handle)->id;
}

static uint64_t hook_version(void *self, void *handle) {
    return (void)breaks(self, FAKE_VERSION), ((struct fake_tensor *)handle)->version;
}

static int32_t hook_grad_enabled(void *self) {
    (void)breaks(self, FAKE_GRAD_ENABLED);
    return !((struct fake *)self)->no_grad;
}

static amp_status hook_grad(void *self, void *handle, void **grad) {
    if (breaks(self, FAKE_GRAD)) return AMP_ERR_HOST_FAILED;
    *grad = ((struct fake_tensor *)handle)->grad;
    return AMP_OK;
}

static amp_status hook_set_grad(void *self, void *handle, void *grad) {
    if (breaks(self, FAKE_SET_GRAD)) return AMP_ERR_HOST_FAILED;
    ((struct fake_tensor *)handle)->grad = grad;
    return AMP_OK;
}

static amp_status hook_swap(void *self, void *handle, amp_storage *storage) {
    struct fake_tensor *tensor = handle;
    if (breaks(self, FAKE_SWAP)) return AMP_ERR_HOST_FAILED;
    const amp_storage old = tensor->storage;
    tensor->storage = *storage;
    *storage = old;
    tensor->version++;
    return AMP_OK;
}

static amp_status hook_scale(void *self, void *loss, float factor, void **out) {
    const struct fake_tensor *tensor = loss;
    if (breaks(self, FAKE_SCALE)) return AMP_ERR_HOST_FAILED;
    struct fake_tensor *scaled = fake_new(self, tensor->storage.dtype, tensor->shape[0], 0.0);
    for (int64_t i = 0; i < tensor->shape[0]; i++) put(scaled, i, fake_get(tensor, i) * (double)factor);
    *out = scaled;
    return AMP_OK;
}

static amp_status hook_alloc(void *self, uint64_t bytes, amp_device device, amp_purpose purpose, amp_storage *storage) {
    (void)device, (void)purpose;
    if (breaks(self, FAKE_ALLOC)) return AMP_ERR_HOST_FAILED;
    assert(bytes && purpose >= AMP_FOR_PARAMETER && purpose <= AMP_FOR_GRADIENT);
    *storage = block_new(self, bytes, storage->dtype);
    return AMP_OK;
}

static void hook_free(void *self, amp_storage *storage) {
    (void)breaks(self, FAKE_FREE);
    block_free(self, storage);
}

static void hook_event(void *self, const amp_event *event) {
    struct fake *host = self;
    (void)breaks(self, FAKE_EVENT);
    host->events[event->kind]++;
    host->last[event->kind] = *event;
    snprintf(host->last_message[event->kind], sizeof host->last_message[0], "%s", event->message);
}

void fake_init(struct fake *host, unsigned options) {
    memset(host, 0, sizeof *host);
    host->options = options;
    host->hooks = (amp_host){ .struct_size = sizeof(amp_host),
                              .flags = options & FAKE_RETAINS ? AMP_HOST_TAPE_RETAINS_INPUTS : 0,
                              .self = host,
                              .view = hook_view,
                              .dtype = hook_dtype,
                              .cast = options & FAKE_NO_CAST ? NULL : hook_cast,
                              .release = hook_release,
                              .id = options & FAKE_NO_ID ? NULL : hook_id,
                              .version = options & FAKE_NO_VERSION ? NULL : hook_version,
                              .grad_enabled = hook_grad_enabled,
                              .grad = hook_grad,
                              .set_grad = options & FAKE_NO_SET_GRAD ? NULL : hook_set_grad,
                              .swap_data = options & FAKE_NO_SWAP ? NULL : hook_swap,
                              .scale = options & FAKE_NO_SCALE ? NULL : hook_scale,
                              .alloc = options & FAKE_NO_ALLOC ? NULL : hook_alloc,
                              .free = options & FAKE_NO_ALLOC ? NULL : hook_free,
                              .event = hook_event };
}

void fake_destroy(struct fake *host) {
    for (struct fake_tensor *tensor = host->all, *next; tensor; tensor = next) {
        next = tensor->next;
        free(tensor);
    }
    for (struct block *block = host->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
}
