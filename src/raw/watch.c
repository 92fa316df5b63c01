/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp_config.verify: the accesses of a call are compared with the schema and the hook visit. Read-only buffers must
 * have the same bytes afterwards. Written ones start as signalling NaNs: an element that stays one was not written, one
 * that became quiet was read. Memory of libamp has guards around it.
 */
#include "call/call.h"
#include "common/map.h"
#include "context/addresses.h"
#include "context/devices.h"
#include "context/findings.h"
#include "context/op.h"
#include "context/params.h"
#include "context/parts.h"
#include "context/policy.h"
#include "raw/raw.h"

#include <math.h>
#include <string.h>

/* Signalling NaNs that no arithmetic produces. Reading one makes it quiet. */
#define FILL_FP32 UINT32_C(0x7fa5c3d2)
#define QUIET_FP32 (FILL_FP32 | UINT32_C(0x00400000))
#define FILL_LOW UINT16_C(0x7f9b) /* a NaN as fp16 and as bfloat16 */

/* Something that the op sees: `rows` of `length` elements, `stride` elements from each other. */
struct amp__watched {
    const char *name;
    char *memory;
    size_t rows, length, stride, width;
    enum { READS, WRITES, UPDATES, GUARDED } role; /* GUARDED: no described role */
    bool guarded;
    struct amp__param *summed; /* the op works on the gradient of this parameter */
    bool overwrites;           /* by its description, and does not add to it */
    uint64_t sum;  /* of the bytes before */
    char *before;  /* a copy */
    float *host;   /* the host's memory behind a copy (NULL: it is `memory` itself) */
    bool is_output; /* emulated: without verify the op writes into the host's memory itself */
    size_t guard;  /* bytes on each side of it */
};

size_t amp__guard_of(size_t bytes) {
    enum { LEAST = 64 }; /* and a multiple of it: temporaries are aligned to as much */
    return bytes <= LEAST || bytes > SIZE_MAX / 8 ? LEAST : (bytes + LEAST - 1) / LEAST * LEAST;
}

void amp__watch_fill(void *memory, size_t bytes, bool narrow) {
    const uint32_t fill = narrow ? (uint32_t)FILL_LOW << 16 | FILL_LOW : FILL_FP32;
    for (size_t at = 0; at < bytes; at += sizeof fill)
        memcpy((char *)memory + at, &fill, bytes - at < sizeof fill ? bytes - at : sizeof fill);
}

static size_t span_of(const struct amp__watched *item) {
    return item->rows ? ((item->rows - 1) * item->stride + item->length) * item->width : 0;
}

static char *row_of(const struct amp__watched *item, size_t row) {
    return item->memory + row * item->stride * item->width;
}

static bool is_filled(const struct amp__watched *item, const char *element) {
    if (item->width == sizeof(uint32_t)) return *(const uint32_t *)(const void *)element == FILL_FP32;
    return *(const uint16_t *)(const void *)element == FILL_LOW;
}

static bool is_quiet(const struct amp__watched *item, const char *element) {
    return item->width == sizeof(uint32_t) && *(const uint32_t *)(const void *)element == QUIET_FP32;
}

/* ---- before anything is converted ---- */

static amp_status check_length(const struct amp__casting *casting, const struct amp__raw_buffer *buffer) {
    int64_t rest;
    AMP_TRY(amp__range_rest(casting->context, buffer->host, &rest));
    if (!rest || buffer->extents.span <= rest) return AMP_OK;
    return amp__find_error(casting->context, AMP__EXTENT_TOO_LARGE, AMP_ERR_INVALID_ARGUMENT, casting->op->name,
                           "op %s: %s has %lld element%s by its extents, and %lld are left of the registered buffer "
                           "that it points into", casting->op->name, buffer->name ? buffer->name : "a buffer",
                           (long long)buffer->extents.span, AMP__S(buffer->extents.span), (long long)rest);
}

static bool lies_in(const void *address, const struct amp__elements *block) {
    const uintptr_t at = (uintptr_t)address, begin = (uintptr_t)block->data;
    return at >= begin && at < begin + block->size * amp__dtype_size(block->dtype);
}

/* A `float *` into a parameter that is in 16 bits by now. */
static amp_status check_type(const struct amp__casting *casting, const struct amp__raw_buffer *buffer) {
    const amp_context *context = casting->context;
    struct amp__params *params = amp__params_of(context);
    for (size_t i = 0; i < params->n; i++) {
        struct amp__param *param = params->list[i];
        struct amp__elements now;
        if (param->on_device || param->dtype == AMP_FLOAT32 || !param->host->view) continue;
        if (amp__param_layout(param, param->tensor, param->name, &now) != AMP_OK || !lies_in(buffer->host, &now))
            continue;
        return amp__find_error(casting->context, AMP__TYPE_MISTAKEN, AMP_ERR_INVALID_ARGUMENT, casting->op->name,
                               "op %s: %s is float by the schema, and points into %s, which is %s", casting->op->name,
                               buffer->name ? buffer->name : "a buffer", param->name, amp__dtype_name(now.dtype));
    }
    return AMP_OK;
}

amp_status amp__watch_check(const struct amp__casting *casting, const struct amp__raw_buffer *buffer) {
    AMP_TRY(check_length(casting, buffer));
    return check_type(casting, buffer);
}

/* ---- before the op ---- */

static amp_status add(struct amp__watch *watch, struct amp__casting *casting, struct amp__watched item) {
    if (watch->n == watch->capacity) {
        const size_t capacity = watch->capacity ? 2 * watch->capacity : 16;
        struct amp__watched *grown = amp__casting_memory(casting, capacity * sizeof *grown);
        if (!grown) return amp__fail_memory();
        if (watch->n) memcpy(grown, watch->items, watch->n * sizeof *grown);
        watch->items = grown;
        watch->capacity = capacity;
    }
    watch->items[watch->n++] = item;
    return AMP_OK;
}

/* Checks batch norm, whose parameters stay FP32 if the host marks them: a re-typed parameter of its op is unmarked. */
static void check_norm(const struct amp__casting *casting, const struct amp__param *param) {
    const amp_context *context = casting->context;
    const struct amp__policy *policy = amp__policy_of(context);
    if (!param || param->module_kind == AMP_MODULE_BATCH_NORM || !amp__op_is_norm(casting->op) ||
        !policy->properties.keep_batchnorm_fp32 ||
        !(param->re_typed || amp__keeps_block(&policy->properties, param->host)))
        return;
    amp__find(casting->context, AMP__NORM_UNSAID, param->name, "op %s reads %s, which is not marked as batch norm's "
              "and became 16-bit", casting->op->name, param->name);
}

/* Returns true for weights described as written only. Their contents are not filled over. */
static bool is_misdescribed(const struct amp__casting *casting, const struct amp__param *param,
                            const struct amp__raw_buffer *buffer) {
    if (!param || !param->in_optimizer) return false;
    amp__find(casting->context, AMP__PARAMETER_WRITTEN, param->name,
              "op %s: %s is an output, and lies in the parameter %s", casting->op->name,
              buffer->name ? buffer->name : "a buffer", param->name);
    return true;
}

static struct amp__watched item_of(const struct amp__raw_buffer *buffer) {
    const struct amp__extents *extents = &buffer->extents;
    const int64_t last = extents->shape[extents->ndim - 1];
    const bool gaps = extents->row_stride != last;
    struct amp__watched item = { .name = buffer->name ? buffer->name : "a buffer",
                                 .memory = buffer->temporary ? buffer->temporary : (void *)buffer->host,
                                 .rows = gaps ? (size_t)(extents->count / last) : 1,
                                 .length = (size_t)(gaps ? last : extents->count),
                                 .stride = (size_t)(gaps ? extents->row_stride : extents->count),
                                 .width = buffer->narrow ? sizeof(uint16_t) : sizeof(float),
                                 .guarded = buffer->temporary != NULL,
                                 .host = buffer->temporary ? buffer->host : NULL };
    item.guard = item.guarded ? amp__guard_of((size_t)extents->span * item.width) : 0;
    item.is_output = item.guarded && !buffer->narrow && buffer->flags & AMP__WRITE;
    item.role = buffer->scratch                 ? GUARDED
        : buffer->flags & AMP__WRITE            ? WRITES
        : buffer->flags & AMP__READ_WRITE       ? UPDATES
                                                : READS;
    return item;
}

static amp_status add_buffer(struct amp__watch *watch, struct amp__casting *casting,
                             const struct amp__raw_buffer *buffer) {
    struct amp__watched item = item_of(buffer);
    uint64_t offset;
    struct amp__param *gradient_of = NULL;
    const struct amp__param *param = amp__param_at(amp__addresses_of(casting->context), buffer->host, &offset);
    check_norm(casting, param);
    if (item.role == UPDATES || item.role == WRITES)
        AMP_TRY(amp__gradient_at(casting->context, buffer->host, true, &gradient_of, &offset));
    item.overwrites = item.role == WRITES && gradient_of;
    if (item.role == UPDATES || item.overwrites) item.summed = gradient_of;
    if (item.role == WRITES && !buffer->narrow && (is_misdescribed(casting, param, buffer) || item.overwrites))
        item.role = GUARDED; /* is not filled over: the training stays what it was */
    return add(watch, casting, item);
}

/* A handle that the op only reads, as it is handed to it. */
static amp_status add_handle(struct amp__watch *watch, struct amp__casting *casting, const char *name, void *handle) {
    const amp_host *host = casting->host;
    struct amp__elements now;
    if (handle) check_norm(casting, amp__param_of_handle(amp__params_of(casting->context), handle));
    if (!handle || !host->view || amp__host_find(host, handle, name, &now) != AMP_OK) return AMP_OK;
    amp_device where;
    if (now.strides || !now.size || amp__is_device(now.device) ||
        amp__places_where(amp__devices_of(casting->context), now.data, &where) != AMP_OK ||
        where.type == AMP__DEVICE_CUDA)
        return AMP_OK;
    const amp_dtype dtype = amp__host_dtype(host, handle);
    if (!amp__policy_of(casting->context)->properties.emulate && amp__is_floating(dtype) && dtype != now.dtype)
        amp__find(casting->context, AMP__TYPE_MISTAKEN, casting->op->name, "op %s: %s is %s by the hook dtype, and %s "
                  "by the hook view", casting->op->name, name, amp__dtype_name(dtype), amp__dtype_name(now.dtype));
    return add(watch, casting, (struct amp__watched){ .name = name, .memory = now.data, .rows = 1,
                                                      .length = (size_t)now.size, .stride = (size_t)now.size,
                                                      .width = amp__dtype_size(now.dtype), .role = READS });
}

static amp_status add_handles(struct amp__watch *watch, struct amp__casting *casting,
                              const struct amp__bound *bound) {
    for (uint32_t i = 0; i < bound->n_tensors; i++) {
        const struct amp__bound_arg *arg = &bound->tensors[i];
        if (arg->flags & (AMP__READ_WRITE | AMP__WRITE)) continue;
        void *const *handles = amp__bound_shown(bound, arg);
        for (size_t j = 0; j < arg->count; j++)
            AMP_TRY(add_handle(watch, casting, arg->name[0] ? arg->name : "an argument", handles[j]));
    }
    return AMP_OK;
}

/* Returns true if no other argument uses the buffer. Otherwise it is not filled, since the op may work in place. */
static bool is_alone(const struct amp__watch *watch, const struct amp__watched *item) {
    for (size_t i = 0; i < watch->n; i++) {
        const struct amp__watched *other = &watch->items[i];
        if (other != item && item->memory < other->memory + span_of(other) &&
            other->memory < item->memory + span_of(item))
            return false;
    }
    return true;
}

static void fill(const struct amp__watched *item) {
    for (size_t row = 0; row < item->rows; row++)
        amp__watch_fill(row_of(item, row), item->length * item->width, item->width == sizeof(uint16_t));
}

static amp_status copy(struct amp__casting *casting, struct amp__watched *item) {
    item->before = amp__casting_memory(casting, span_of(item));
    if (!item->before) return amp__fail_memory();
    memcpy(item->before, item->memory, span_of(item));
    return AMP_OK;
}

amp_status amp__watch_enter(struct amp__watch *watch, const struct amp__probed *call) {
    struct amp__casting *casting = call->casting;
    *watch = (struct amp__watch){ 0 };
    amp__strays_note(call);
    for (size_t i = 0; i < call->n_buffers; i++) AMP_TRY(add_buffer(watch, casting, &call->buffers[i]));
    AMP_TRY(add_handles(watch, casting, call->bound));
    for (size_t i = 0; i < watch->n; i++) {
        struct amp__watched *item = &watch->items[i];
        if (item->role == WRITES && !is_alone(watch, item)) item->role = GUARDED;
        if (item->role == READS && !is_alone(watch, item)) item->role = GUARDED;
        if (item->role == READS) item->sum = amp__sum64(0, item->memory, span_of(item));
        if (item->role == WRITES) AMP_TRY(copy(casting, item));
    }
    for (size_t i = 0; i < watch->n; i++)
        if (watch->items[i].role == WRITES) fill(&watch->items[i]);
    return AMP_OK;
}

/* ---- does it add? ---- */

/* The contents of a gradient in a probe, and then their negative: far above any sum of the op, but a number, since a
 * NaN would survive a product with 0 (c = beta * c + s). Both signs, since the op may bound its sums on either side. */
static const float standing = 0x1p100f;
enum { PROBES = 4 }; /* calls for each gradient */

static bool is_probed(const struct amp__watched *item) { return item->summed && item->width == sizeof(float); }

static float *elements_at(const struct amp__watched *item, size_t row) { return (float *)(void *)row_of(item, row); }

static void stand(const struct amp__watched *item, float value) {
    for (size_t row = 0; row < item->rows; row++)
        for (size_t i = 0; i < item->length; i++) elements_at(item, row)[i] = value;
}

static void put_back(const struct amp__watch *watch) {
    for (size_t i = 0; i < watch->n; i++) {
        const struct amp__watched *item = &watch->items[i];
        if (item->role != READS) memcpy(item->memory, item->before, span_of(item));
        if (item->role == WRITES) fill(item);
    }
}

/* Threads may add in another order. */
static bool is_same(float a, float b) {
    return isfinite(a) && isfinite(b) && fabsf(a - b) <= 0x1p-10f * fmaxf(fabsf(a), fabsf(b));
}

/* made: the elements of the other run. */
static bool is_assigned(const struct amp__watched *item, const float *made) {
    for (size_t row = 0; row < item->rows; row++)
        for (size_t i = 0; i < item->length; i++)
            if (is_same(elements_at(item, row)[i], made[row * item->stride + i])) return true;
    return false;
}

/* Whatever stood there, the same is there: an infinity too. */
static bool is_added_to(const struct amp__watched *item, const float *made) {
    for (size_t row = 0; row < item->rows; row++)
        for (size_t i = 0; i < item->length; i++) {
            const float *now = elements_at(item, row) + i, *then = made + row * item->stride + i;
            if (memcmp(now, then, sizeof *now) && !is_same(*now, *then)) return true;
        }
    return false;
}

static void judge(const struct amp__op *op, const struct amp__watched *item, const float *made) {
    if (item->overwrites && is_added_to(item, made))
        amp__find(op->context, AMP__OUTPUT_READ, op->name, "op %s: %s is an output, lies in the gradient of %s, and "
                  "depends on what that had before", op->name, item->name, item->summed->name);
    if (item->overwrites || !is_assigned(item, made)) return;
    amp__find(op->context, AMP__GRADIENT_ASSIGNED, op->name, "op %s overwrites the gradient of %s, into which %s "
              "points, and does not add to it", op->name, item->summed->name, item->name);
}

/* One op may serve many parameters, and add to the gradient of one and write over another's; and add in one call and
 * not in the next. A parameter has its address for a key, and the bytes behind it for its further calls. */
static bool is_unprobed(struct amp__op *op, const struct amp__watched *item) {
    pthread_mutex_t *lock = amp__lock_of(op->context);
    bool noted = false;
    if (!is_probed(item)) return false;
    pthread_mutex_lock(lock);
    for (uint64_t key = (uintptr_t)item->summed, end = key + PROBES; key < end; key++) {
        if (amp__map_get(&op->probed, key)) continue;
        noted = amp__map_put(&op->probed, key, item->summed) == AMP_OK;
        break;
    }
    pthread_mutex_unlock(lock);
    return noted;
}

static void rehearse(const struct amp__watch *watch, const struct amp__probed *call, float value) {
    for (size_t i = 0; i < watch->n; i++)
        if (is_probed(&watch->items[i])) stand(&watch->items[i], value);
    amp__call_rehearse(call->bound->call, call->function, call->bound->argv);
}

amp_status amp__watch_probe(struct amp__watch *watch, const struct amp__probed *call) {
    const struct amp__schema *schema = call->bound->call->schema;
    struct amp__casting *casting = call->casting;
    struct amp__op *op = call->op;
    bool any = false;
    if (schema->n_tensors || schema->ret.kind == AMP__TENSOR || op->flags & AMP_OP_STATEFUL) return AMP_OK;
    for (size_t i = 0; i < watch->n; i++) any |= is_unprobed(op, &watch->items[i]);
    if (!any) return AMP_OK;
    float **made = amp__casting_memory(casting, watch->n * sizeof *made);
    if (!made) return amp__fail_memory();
    for (size_t i = 0; i < watch->n; i++) {
        struct amp__watched *item = &watch->items[i];
        if (item->role != READS && !item->before) AMP_TRY(copy(casting, item));
        if (is_probed(item) && !(made[i] = amp__casting_memory(casting, span_of(item)))) return amp__fail_memory();
    }
    rehearse(watch, call, standing);
    for (size_t i = 0; i < watch->n; i++)
        if (is_probed(&watch->items[i])) memcpy(made[i], watch->items[i].memory, span_of(&watch->items[i]));
    put_back(watch);
    rehearse(watch, call, -standing);
    for (size_t i = 0; i < watch->n; i++)
        if (is_probed(&watch->items[i])) judge(op, &watch->items[i], made[i]);
    put_back(watch);
    return AMP_OK;
}

/* ---- after it ---- */

/* False: it found something. */
static bool look_at_written(const struct amp__watched *item, const struct amp__op *op) {
    size_t unwritten = 0, read = 0;
    for (size_t row = 0; row < item->rows; row++)
        for (size_t i = 0; i < item->length; i++) {
            char *element = row_of(item, row) + i * item->width;
            read += is_quiet(item, element);
            if (!is_filled(item, element)) continue;
            unwritten++;
            memcpy(element, item->before + (element - item->memory), item->width);
        }
    if (unwritten)
        amp__find(op->context, AMP__OUTPUT_UNWRITTEN, op->name, "op %s: %s is an output, and %zu of its %zu elements "
                  "were not written", op->name, item->name, unwritten, item->rows * item->length);
    if (read)
        amp__find(op->context, AMP__OUTPUT_READ, op->name, "op %s: %s is an output, and %zu of its %zu elements "
                  "depend on its old contents", op->name, item->name, read, item->rows * item->length);
    return !unwritten && !read;
}

/* Called for each written element of guards and gaps between rows. */
typedef void stray(const struct amp__watched *item, const char *element);

static size_t each_stray(const struct amp__watched *item, stray *visit) {
    const char *end = item->memory + span_of(item) + item->guard;
    size_t n = 0;
    for (const char *at = item->memory - item->guard; at < end; at += item->width) {
        const size_t element = (size_t)(at - item->memory) / item->width;
        if (at >= item->memory && at < item->memory + span_of(item) && element % item->stride < item->length) continue;
        if (is_filled(item, at)) continue;
        n++;
        if (visit) visit(item, at);
    }
    return n;
}

/* An output of the host's own FP32 op: without verify it would be there. */
static void hand_on(const struct amp__watched *item, const char *element) {
    memcpy((char *)item->host + (element - item->memory), element, item->width);
}

/* Returns true if the op wrote FP32: each element would begin at twice its 16-bit offset, and the last half stays
 * unwritten. An element with the fill in both halves is unwritten. */
static bool is_fp32(const struct amp__watched *item) {
    const char *end = item->memory + span_of(item) + item->guard;
    for (size_t row = 0; row < item->rows; row++)
        for (size_t i = 0; i < item->length; i++) {
            const char *element = item->memory + (row * item->stride + i) * sizeof(float);
            if (is_filled(item, element) && is_filled(item, element + item->width)) return false;
        }
    for (const char *at = item->memory + 2 * span_of(item); at < end; at += item->width)
        if (!is_filled(item, at)) return false;
    for (const char *at = item->memory - item->guard; at < item->memory; at += item->width)
        if (!is_filled(item, at)) return false;
    return true;
}

static void tell_stray(const struct amp__watched *item, struct amp__op *op, size_t n,
                       const struct amp__reference *reference) {
    const bool twice = item->role == WRITES && item->width == sizeof(uint16_t) && is_fp32(item);
    const size_t its = item->rows * item->length;
    if (twice)
        amp__find(op->context, AMP__FP32_INTO_LOW, op->name, "op %s: its implementation wrote FP32 into 16 bits: %s "
                  "is %zu element%s of %s, and %s", op->name, item->name, its, AMP__S(its),
                  amp__dtype_name(amp__policy_of(op->context)->properties.low),
                  amp__reference_is(reference, item->host, item->memory)
                      ? "holds the FP32 function's result in twice the bytes"
                      : "twice their bytes were written (or its extents are half of the real ones)");
    else
        amp__find(op->context, AMP__OUT_OF_BOUNDS, op->name, "op %s writes %zu element%s outside of %s, which has %zu "
                  "by its extents", op->name, n, AMP__S(n), item->name, its);
}

bool amp__watch_guards(const struct amp__raw_buffer *buffer, struct amp__op *op) {
    const struct amp__watched item = item_of(buffer);
    const size_t n = item.guarded ? each_stray(&item, NULL) : 0;
    if (n) tell_stray(&item, op, n, NULL);
    return n != 0;
}

bool amp__watch_leave(const struct amp__watch *watch, struct amp__op *op, const struct amp__reference *reference) {
    bool sound = true;
    for (size_t i = 0; i < watch->n; i++) {
        const struct amp__watched *item = &watch->items[i];
        const size_t n = item->guarded ? each_stray(item, item->is_output ? hand_on : NULL) : 0;
        if (n) tell_stray(item, op, n, reference);
        const bool written = item->role == READS && amp__sum64(0, item->memory, span_of(item)) != item->sum;
        if (written)
            amp__find(op->context, AMP__INPUT_WRITTEN, op->name, "op %s writes into %s, which it only reads by its "
                      "description", op->name, item->name);
        sound &= !n && !written;
        if (item->role == WRITES) sound &= look_at_written(item, op);
    }
    return sound;
}
