/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer target: views with hostile shapes, strides, offsets, types and devices, which change between calls, through
 * every function that looks at elements. The host tells the truth about its memory: what a view claims and libamp may
 * believe is there, to the byte, with a page behind it that nobody may touch and a pattern around it that nobody may
 * write. What must be refused is refused and changes nothing; what is well-formed is taken.
 */
#include "amp_kernels.h"
#include "amp_serve.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "fuzz.h"
#include "../support/levels.h"
#include "view_looks.h"

/* params, their gradients, ... */
enum { PARAMS = 3, TENSORS = 2 * PARAMS + 2, FREE = 2 * PARAMS, LATE = 2 * PARAMS + 1 };

struct tensor {
    struct look looks[2];
    unsigned now;        /* which of them the host shows */
    amp_storage storage; /* what libamp put there; data NULL: nothing, the look's own block is there */
    struct tensor *grad;
    uint64_t version;
};

static struct {
    struct input input;
    amp_host hooks;
    struct tensor tensors[TENSORS];
    amp_param params[PARAMS];
    void *trained[PARAMS];
    amp_model model;
    amp_optimizer optimizer;
    amp_context *context;
    amp_scaled_loss scaled;
    bool open, stepping;
    int64_t live;
    char state[8192];
    size_t state_size;
} world;

static void need(bool condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "%s: %s\n", what, amp_last_error());
    abort();
}

/* ---- hooks ---- */

static size_t width_of(amp_dtype dtype) { return dtype == AMP_FLOAT64 ? 8 : dtype == AMP_FLOAT32 ? 4 : 2; }

/* A look at memory that is not its own must fit it. */
static const struct look *shown(const struct tensor *tensor, int64_t *flat) {
    const struct look *look = &tensor->looks[tensor->now], *other = &tensor->looks[!tensor->now];
    const uint64_t room = tensor->storage.bytes / width_of(tensor->storage.dtype);
    *flat = -1;
    if (!tensor->storage.data || (look->good && look->span <= room)) return look;
    if (other->good && other->span <= room) return other;
    *flat = (int64_t)room;
    return look;
}

static amp_status hook_view(void *self, void *handle, amp_tensor_view *view) {
    const struct tensor *tensor = handle;
    static int64_t flat;
    (void)self;
    *view = shown(tensor, &flat)->view;
    if (!tensor->storage.data) return AMP_OK;
    view->data = tensor->storage.data;
    view->byte_offset = 0;
    view->device.type = 1;
    view->dtype.code = tensor->storage.dtype == AMP_BFLOAT16 ? 4 : 2;
    view->dtype.bits = (uint8_t)(8 * width_of(tensor->storage.dtype));
    view->dtype.lanes = 1;
    if (flat >= 0) view->ndim = 1, view->shape = &flat, view->strides = NULL;
    return AMP_OK;
}

static amp_status hook_swap(void *self, void *handle, amp_storage *storage) {
    struct tensor *tensor = handle;
    const struct look *look = &tensor->looks[tensor->now];
    const amp_storage given = *storage;
    (void)self;
    *storage = tensor->storage;
    if (!tensor->storage.data)
        *storage = (amp_storage){ look->block, (void *)(uintptr_t)1, look->bytes, look->dtype, 0 };
    tensor->storage = given;
    tensor->version++;
    for (size_t i = 0; i < 2; i++) /* its own block again */
        if (given.data == tensor->looks[i].block) {
            tensor->storage = (amp_storage){ 0 };
            tensor->now = (unsigned)i;
        }
    return AMP_OK;
}

static uint64_t hook_version(void *self, void *handle) { return (void)self, ((struct tensor *)handle)->version; }
static void hook_release(void *self, void *handle) { (void)self, (void)handle; }

static amp_status hook_grad(void *self, void *handle, void **grad) {
    return (void)self, *grad = ((struct tensor *)handle)->grad, AMP_OK;
}
static amp_status hook_set_grad(void *self, void *handle, void *grad) {
    return (void)self, ((struct tensor *)handle)->grad = grad, AMP_OK;
}

static amp_status hook_alloc(void *self, uint64_t bytes, amp_device device, amp_purpose purpose, amp_storage *storage) {
    (void)self, (void)device, (void)purpose;
    storage->data = malloc(bytes);
    storage->bytes = bytes;
    world.live++;
    return storage->data ? AMP_OK : AMP_ERR_NO_MEMORY;
}
static void hook_free(void *self, amp_storage *storage) {
    (void)self;
    if (storage->owner) return; /* a block of the host's own */
    free(storage->data);
    world.live--;
}

/* ---- what a refused call must leave alone ---- */

struct snapshot {
    unsigned char bytes[TENSORS][2][LOOK_BYTES], stored[TENSORS][LOOK_BYTES];
    struct tensor tensors[TENSORS];
    amp_context *amp[2];
};

static void take(struct snapshot *out) {
    memset(out, 0, sizeof *out);
    memcpy(out->tensors, world.tensors, sizeof world.tensors);
    for (size_t i = 0; i < TENSORS; i++) {
        const struct tensor *tensor = &world.tensors[i];
        for (size_t k = 0; k < 2 && !tensor->storage.data; k++) /* else it is libamp's: a master, which may follow */
            memcpy(out->bytes[i][k], tensor->looks[k].block, tensor->looks[k].bytes);
        if (tensor->storage.data) memcpy(out->stored[i], tensor->storage.data, tensor->storage.bytes);
        out->tensors[i].version = 0; /* swapped there and back */
    }
    out->amp[0] = world.model.amp;
    out->amp[1] = world.optimizer.amp;
}

static amp_status unchanged(const struct snapshot *before, amp_status status, const char *who) {
    static struct snapshot now;
    need(status == AMP_OK || *amp_last_error(), who);
    need(looks_intact(), who);
    if (status == AMP_OK) return status;
    take(&now);
    for (size_t i = 0; i < TENSORS; i++) {
        if (memcmp(now.bytes[i], before->bytes[i], sizeof now.bytes[i]))
            fprintf(stderr, "tensor %zu's block changed; ", i);
        if (memcmp(now.stored[i], before->stored[i], sizeof now.stored[i]))
            fprintf(stderr, "what is under %zu changed; ", i);
        if (memcmp(&now.tensors[i], &before->tensors[i], sizeof now.tensors[i]))
            fprintf(stderr, "tensor %zu changed; ", i);
    }
    need(!memcmp(&now, before, sizeof now), who);
    return status;
}

#define REFUSED_UNCHANGED(call) (take(&before), unchanged(&before, (call), #call))

/* ---- the program ---- */

/* with_low: 16-bit ones too. compact: FP32 ones must be (they are to be re-typed). */
static bool all_well(const struct tensor *tensors, size_t n, bool with_low, bool compact) {
    for (size_t i = 0; i < n; i++) {
        const struct look *look = &tensors[i].looks[tensors[i].now];
        if (compact && look->dtype == AMP_FLOAT32 && !look->compact) return false;
        if (!look->good || (!with_low && (look->dtype == AMP_FLOAT16 || look->dtype == AMP_BFLOAT16))) return false;
    }
    return true;
}

/* Such a view is one for libamp_cuda.so or for a served device (amp_serve.h), which are not here: it is accepted if it
 * needs no work, and else refused. tests/cuda and tests/scaling/test_served.c have what follows. */
static bool is_on_device(const struct tensor *tensor) {
    if (!tensor) return false;
    const int32_t first = tensor->looks[0].view.device.type, second = tensor->looks[1].view.device.type;
    return first == 2 || second == 2 || first == AMP_DEVICE_SERVED || second == AMP_DEVICE_SERVED;
}

static void open_world(void) {
    static struct snapshot before;
    struct input *in = &world.input;
    const unsigned options = look_byte(in);
    amp_config config = AMP_CONFIG_INIT;
    amp_model *model = &world.model;
    amp_optimizer *optimizer = &world.optimizer;
    for (size_t i = 0; i < TENSORS; i++) {
        struct tensor *tensor = &world.tensors[i];
        look_read(in, &tensor->looks[0], i < PARAMS, (unsigned)(2 * i));
        look_read(in, &tensor->looks[1], i < PARAMS, (unsigned)(2 * i + 1));
        if (i < PARAMS && options & 1u << i) tensor->grad = &world.tensors[PARAMS + i];
    }
    world.hooks = (amp_host){ .struct_size = sizeof(amp_host), .view = hook_view, .version = hook_version,
                              .release = hook_release, .grad = hook_grad, .swap_data = hook_swap };
    if (options & 8) world.hooks.set_grad = hook_set_grad;
    if (options & 16) world.hooks.alloc = hook_alloc, world.hooks.free = hook_free;
    if (options & 32) world.hooks.version = NULL;
    for (size_t i = 0; i < PARAMS; i++) {
        world.params[i] = (amp_param){ sizeof(amp_param), options & 64 && !i ? 1 : 0, &world.tensors[i], NULL };
        world.trained[i] = &world.tensors[i];
    }
    world.model = (amp_model){ .struct_size = sizeof(amp_model), .host = &world.hooks, .params = world.params,
                               .n_params = PARAMS };
    world.optimizer = (amp_optimizer){ .struct_size = sizeof(amp_optimizer), .params = world.trained,
                                       .n_params = PARAMS - 1 };
    config.level = (amp_level)(1 + look_below(in, 6));
    config.loss_scale = options & 128 ? AMP_DYNAMIC : 0.0f;
    config.init_scale = 4.0f;
    const amp_status status = REFUSED_UNCHANGED(amp_initialize_many(&model, 1, &optimizer, 1, &config, &world.context));
    const bool kept = options & 64 && config.level != AMP_O3; /* batch norm */
    const bool retypes = level_retypes(config.level);
    bool well = all_well(world.tensors, kept, false, false) &&
        all_well(world.tensors + kept, PARAMS - kept, false, retypes);
    for (size_t i = 0; i < PARAMS - 1 && !world.hooks.set_grad; i++) /* gradients that stay where they are */
        well &= !world.tensors[i].grad || all_well(world.tensors[i].grad, 1, true, false);
    bool cuda = false;
    for (size_t i = 0; i < PARAMS; i++) cuda |= is_on_device(&world.tensors[i]) || is_on_device(world.tensors[i].grad);
    need((status == AMP_OK) == well || cuda, "initialize and the views' rules disagree");
    world.scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
    if (!cuda || !world.context) return;
    need(amp_shutdown(world.context) == AMP_OK, "amp_shutdown of a context that has seen CUDA's memory");
    world.context = NULL;
}

static float present_scale(void) {
    amp_record record = AMP_RECORD_INIT;
    need(amp_get_record(world.context, 0, &record) == AMP_OK, "amp_get_record");
    return record.scale_after;
}

/* One tensor by itself: accepted if and only if its view is well-formed, and then divided by the scale. */
static void call_unscale(void) {
    static struct snapshot before;
    struct tensor *tensor = &world.tensors[FREE];
    const struct look *look = &tensor->looks[tensor->now];
    void *handle = tensor;
    float found = 0.0f;
    if (tensor->storage.data) return; /* a parameter by now, and re-typed */
    const double was = look->good && look->size ? look_element(look, 0) : 0.0;
    const amp_status status = REFUSED_UNCHANGED(amp_unscale(world.context, 0, &handle, 1, &found));
    need((status == AMP_OK) == (look->good && look->dtype != AMP_DTYPE_OTHER),
         "amp_unscale and the views' rules disagree");
    if (status != AMP_OK || !look->size || fabs(was) < 0x1p-10) return;
    need(look_element(look, 0) == was / (double)present_scale(), "amp_unscale divided wrongly");
}

/* Gradients among them. Elements that the host lets change get another version, as with any op of its own. */
static void call_unscale_several(void) {
    static struct snapshot before;
    void *handles[TENSORS];
    const size_t n = look_below(&world.input, TENSORS - PARAMS + 1), at = look_below(&world.input, TENSORS);
    if (!world.hooks.version) return;
    for (size_t i = 0; i < n; i++) handles[i] = &world.tensors[PARAMS + (at + i) % (TENSORS - PARAMS)];
    if (REFUSED_UNCHANGED(amp_unscale(world.context, 0, handles, n, NULL)) != AMP_OK) return;
    for (size_t i = 0; i < n; i++) ((struct tensor *)handles[i])->version++;
}

static void call_bracket(void) {
    static struct snapshot before;
    static bool kept[PARAMS];
    if (!world.open) {
        world.open = REFUSED_UNCHANGED(amp_scale_loss_begin(&world.optimizer, NULL, &world.scaled)) == AMP_OK;
        if (world.open) /* backward */
            for (size_t i = 0; i < PARAMS; i++)
                if ((kept[i] = look_below(&world.input, 2)) && !world.tensors[i].grad && world.hooks.set_grad)
                    world.tensors[i].grad = &world.tensors[PARAMS + i];
        return;
    }
    const bool cancel = look_below(&world.input, 3) == 2;
    const amp_status status = cancel ? amp_scale_loss_cancel(&world.scaled) : amp_scale_loss_end(&world.scaled);
    need(status == AMP_OK || *amp_last_error(), "the bracket's end failed without a word");
    world.open = false;
}

static void call_clip(void) {
    static struct snapshot before;
    float norm;
    if (look_below(&world.input, 2)) (void)REFUSED_UNCHANGED(amp_clip_grad_norm(&world.optimizer, 0.5f, &norm));
    else (void)REFUSED_UNCHANGED(amp_clip_grad_value(&world.optimizer, 0.25f));
}

static void call_masters(void) {
    static struct snapshot before;
    amp_master masters[TENSORS];
    size_t count;
    for (size_t i = 0; i < TENSORS; i++) masters[i] = (amp_master)AMP_MASTER_INIT;
    if (look_below(&world.input, 2)) (void)REFUSED_UNCHANGED(amp_masters_reconcile(world.context));
    if (REFUSED_UNCHANGED(amp_master_params(&world.optimizer, masters, TENSORS, &count)) != AMP_OK) return;
    for (size_t i = 0; i < count; i++) { /* what it shows is there, to the last element */
        const size_t width = width_of(masters[i].dtype);
        int64_t last = (int64_t)masters[i].size - 1;
        volatile unsigned char byte = 0;
        if (masters[i].strides) last = 0;
        for (int32_t d = 0; masters[i].strides && d < masters[i].ndim; d++)
            last += (masters[i].shape[d] - 1) * masters[i].strides[d];
        if (masters[i].size && masters[i].data && masters[i].dtype != AMP_DTYPE_OTHER)
            byte = *((unsigned char *)masters[i].data + last * (int64_t)width + width - 1);
        (void)byte;
    }
}

static void call_add(void) {
    static struct snapshot before;
    const unsigned which = look_below(&world.input, 3);
    amp_param params[] = { { sizeof(amp_param), 0, &world.tensors[which ? LATE : PARAMS - 1], "late" },
                           { sizeof(amp_param), 0, &world.tensors[FREE], "free" } };
    (void)REFUSED_UNCHANGED(amp_add_params(&world.optimizer, params, 1 + which / 2));
}

static void call_state(void) {
    static struct snapshot before;
    size_t size = 0;
    if (look_below(&world.input, 2)) {
        const amp_status status = REFUSED_UNCHANGED(
            amp_state_save_memory(world.context, AMP_STATE_SAFETENSORS, world.state, sizeof world.state, &size));
        if (status == AMP_OK) world.state_size = size;
    } else {
        (void)REFUSED_UNCHANGED(amp_state_load_memory(world.context, world.state, world.state_size));
    }
}

static void call_step(void) {
    static struct snapshot before;
    amp_step_info info = AMP_STEP_INFO_INIT;
    if (!world.stepping) {
        world.stepping = REFUSED_UNCHANGED(amp_step_begin(&world.optimizer, &info)) == AMP_OK;
    } else {
        need(amp_step_end(&world.optimizer) == AMP_OK || *amp_last_error(), "amp_step_end");
        world.stepping = false;
    }
}

static void call_host(void) {
    struct tensor *tensor = &world.tensors[look_below(&world.input, TENSORS)];
    switch (look_below(&world.input, 4)) {
    case 0: tensor->version++; break;
    case 1:
        if (world.hooks.set_grad && !(world.stepping && !world.hooks.alloc)) tensor->grad = NULL;
        break;
    case 2:
        if (tensor->storage.data) break; /* what libamp put there stays */
        tensor->now = !tensor->now;
        tensor->version++;
        break;
    default: tensor->now = tensor->storage.data ? tensor->now : 0; break;
    }
}

static void close_world(void) {
    if (world.stepping) need(amp_step_end(&world.optimizer) == AMP_OK || *amp_last_error(), "the last amp_step_end");
    if (world.context) {
        const amp_status status = amp_shutdown(world.context);
        need(status == AMP_OK || *amp_last_error(), "amp_shutdown");
    }
    for (size_t i = 0; i < TENSORS; i++) { /* what a shutdown that failed left under a handle */
        const amp_storage *left = &world.tensors[i].storage;
        if (left->data && !left->owner) free(left->data), world.live -= world.hooks.free != NULL;
    }
    need(looks_intact(), "memory outside of every view was written");
    need(world.live == 0, "a block of the host's is left, or was freed twice");
    for (size_t i = 0; i < TENSORS; i++)
        for (size_t k = 0; k < 2; k++) look_free(&world.tensors[i].looks[k]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static void (*const calls[])(void) = { call_unscale, call_unscale_several, call_bracket, call_bracket, call_clip,
                                           call_masters, call_add, call_state, call_step, call_host };
    if (size > 512) return 0;
    memset(&world, 0, sizeof world);
    world.input = (struct input){ data, data + size };
    open_world();
    while (world.context && world.input.at < world.input.end) {
        calls[look_below(&world.input, sizeof calls / sizeof calls[0])]();
        need(looks_intact(), "memory outside of every view was written");
    }
    close_world();
    return 0;
}
