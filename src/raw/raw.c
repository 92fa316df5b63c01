/* SPDX-License-Identifier: Apache-2.0 */
#include "amp_raw.h"
#include "raw/raw.h"
#include "call/call.h"
#include "context/context.h"
#include "context/findings.h"
#include "context/op.h"
#include "context/optimizer.h"

#include <string.h>

bool amp__raw_takes(const struct amp__op *op) { return op->schema && (op->schema->n_buffers || amp__visits(op)); }

enum amp__raw_mode amp__raw_mode_of(const struct amp__op *op) {
    const struct amp__properties *properties = &op->context->policy.properties;
    if (op->op_class != AMP_LOWER || !amp__raw_takes(op)) return AMP__RAW_NONE;
    if (amp__op_low(op)) return AMP__RAW_REPLACE;
    return properties->emulate ? AMP__RAW_EMULATE : AMP__RAW_NONE;
}

float amp__seed_factor(const struct amp__op *op) {
    return op->seeds ? op->context->progress.seed_scale : 1.0f;
}

/* ---- weights: packed once per version ---- */

static void free_pack(void *context, void *pack) { amp__spare_give(&((amp_context *)context)->spares, pack); }

/* Outside of scopes, on a host that has no versions: do steps say when the weight changes? Not before libamp has seen
 * one of each optimizer: whoever updates behind its back never has one. */
static bool changes_in_steps(const struct amp__casting *casting, const struct amp__param *param) {
    const amp_context *context = casting->context;
    if (!context->policy.properties.cache || casting->host->version || casting->thread->scope.set ||
        !param->in_optimizer)
        return false;
    for (size_t i = 0; i < context->optimizers.n; i++)
        if (!context->optimizers.list[i].decision.last_step) return false;
    return context->optimizers.n != 0;
}

/* Returns a version of the elements between two steps, so that a write by the host (a loaded file, a swapped average)
 * is noticed in any element. Reading is cheaper than packing. Never 0, the version of scopes. */
static uint64_t version_by_elements(const struct amp__param *param) {
    return amp__sum64(0, param->address, (size_t)param->size * sizeof(float)) | 1;
}

static int form_of(const struct amp__raw *raw) {
    return raw->mode == AMP__RAW_REPLACE ? AMP__FORM_NARROWED : AMP__FORM_ROUNDED;
}

/* The whole parameter in the mode's form: one pack serves every slice of it. `taped`: it goes where a bracket ends.
 * NULL with a status on failure. */
static amp_status pack_of(const struct amp__raw *raw, struct amp__casting *casting, struct amp__param *param,
                          uint64_t version, bool taped, void **out) {
    const size_t width = raw->mode == AMP__RAW_REPLACE ? sizeof(uint16_t) : sizeof(float);
    struct amp__raw_buffer whole = { .host = param->address, .extents = { .count = (int64_t)param->size } };
    struct amp__cache_entry *entry = amp__alloc(1, sizeof *entry);
    whole.temporary = entry ? amp__spare_take(&casting->context->spares, param->size * width) : NULL;
    if (!whole.temporary) {
        amp__free(entry);
        return amp__fail_memory();
    }
    amp__raw_fill(raw, &whole, raw->mode == AMP__RAW_REPLACE ? AMP__INTO_NARROWED : AMP__INTO_ROUNDED, NULL);
    *entry = (struct amp__cache_entry){ .handle = whole.temporary, .release = free_pack, .user = casting->context,
                                        .version = version, .recorded = taped };
    amp__casting_keep(casting, param, form_of(raw), entry, param->size * width);
    *out = whole.temporary;
    return AMP_OK;
}

/* *temporary stays NULL if the buffer is no slice of a parameter, or may not be kept. */
static amp_status from_cache(const struct amp__raw *raw, struct amp__casting *casting, struct amp__raw_buffer *buffer) {
    const amp_context *context = casting->context;
    uint64_t offset, version = 0;
    struct amp__param *param = amp__param_at(&context->addresses, buffer->host, &offset);
    if (raw->verify) { /* each has its guards */
        if (param) amp__casting_compare(casting, param);
        return AMP_OK;
    }
    if (!param || offset + (uint64_t)buffer->extents.span > param->size) return AMP_OK;
    const int form = form_of(raw);
    const size_t width = raw->mode == AMP__RAW_REPLACE ? sizeof(uint16_t) : sizeof(float);
    /* else a slice costs less than to look at all */
    const bool whole = !offset && (uint64_t)buffer->extents.span == param->size;
    const bool by_steps = whole && changes_in_steps(casting, param);
    if (by_steps) version = version_by_elements(param);
    void *pack = by_steps ? amp__casting_find_version(casting, param, form, version)
                          : amp__casting_find(casting, param, form, &version);
    if (!pack) {
        if (!by_steps && !amp__casting_may_keep(casting, param)) return AMP_OK;
        AMP_TRY(pack_of(raw, casting, param, version, !by_steps, &pack));
    }
    buffer->temporary = (char *)pack + offset * width;
    buffer->narrow = width == sizeof(uint16_t);
    return AMP_OK;
}

/* ---- one buffer ---- */

static amp_status extents_of(const struct amp__casting *casting, const struct amp__call *call,
                             const struct amp__bound_arg *arg, struct amp__raw_buffer *buffer) {
    if (!(arg->flags & AMP__EXTENT_UNKNOWN)) return amp__buffer_extents(call, arg->index, &buffer->extents);
    int64_t rest;
    AMP_TRY(amp__range_rest(casting->context, buffer->host, &rest));
    AMP_RETURN_IF(!rest, AMP_ERR_NOT_FOUND,
                  "op %s: %s[?] points into no registered parameter, and into no gradient of one that an optimizer "
                  "lists: register its buffer, or write its extents", call->schema->name, arg->name);
    buffer->extents = (struct amp__extents){
        .ndim = 1, .shape = { rest }, .row_stride = rest, .count = rest, .span = rest
    };
    return AMP_OK;
}

static amp_status take_temporary(const struct amp__raw *raw, struct amp__raw_buffer *buffer, size_t width) {
    const size_t own = (size_t)buffer->extents.span * width, guard = raw->verify ? amp__guard_of(own) : 0;
    const size_t bytes = own + 2 * guard;
    char *memory = amp__casting_memory(raw->casting, bytes);
    if (!memory) return amp__fail_memory();
    buffer->narrow = width == sizeof(uint16_t);
    if (guard) amp__watch_fill(memory, bytes, buffer->narrow);
    buffer->temporary = memory + guard;
    return AMP_OK;
}

/* Checks gradients and weights in the first brackets against the role that the op gives them. */
static amp_status look_at_role(const struct amp__raw *raw, const struct amp__raw_buffer *buffer) {
    amp_context *context = raw->casting->context;
    const struct amp__op *op = raw->casting->op;
    const char *name = buffer->name ? buffer->name : "a buffer";
    struct amp__param *param;
    uint64_t offset;
    if (buffer->scratch) return AMP_OK;
    if (atomic_load_explicit(&context->progress.looks, memory_order_relaxed) >= AMP__LOOKS) return AMP_OK;
    const bool written = buffer->flags & (AMP__WRITE | AMP__READ_WRITE);
    if (written) param = amp__param_at(&context->addresses, buffer->host, &offset);
    else AMP_TRY(amp__gradient_at(context, buffer->host, true, &param, &offset));
    if (!param || !param->in_optimizer) return AMP_OK;
    if (written)
        amp__find(context, AMP__PARAMETER_WRITTEN, param->name, "op %s: %s is an output, and lies in the parameter %s",
                  op->name, name, param->name);
    else
        amp__find(context, AMP__GRADIENT_READ, param->name, "op %s: %s is only read, and lies in the gradient of %s",
                  op->name, name, param->name);
    return AMP_OK;
}

/* Checks new gradients for old contents: an op that assigns does not read them, and emulation adds to them. */
static void look_at_new(const struct amp__casting *casting, const struct amp__raw_buffer *buffer,
                        const struct amp__param *param) {
    const struct amp__extents *extents = &buffer->extents;
    const int64_t length = extents->shape[extents->ndim - 1];
    for (int64_t i = 0; i < extents->count && i < 4096; i++) {
        const float value = buffer->host[i / length * extents->row_stride + i % length];
        if (value == 0.0f) continue;
        amp__find(casting->context, AMP__GRADIENT_UNCLEARED, param->name, "op %s adds to the gradient of %s, which "
                  "came inside this bracket and was not cleared: element %lld is %g", casting->op->name, param->name,
                  (long long)i, (double)value);
        return;
    }
}

/* FP32, as it is. */
static amp_status take_copy(const struct amp__raw *raw, struct amp__raw_buffer *buffer) {
    AMP_TRY(take_temporary(raw, buffer, sizeof(float)));
    amp__raw_fill(raw, buffer, AMP__INTO_COPIED, NULL);
    return AMP_OK;
}

static amp_status enter_copied(struct amp__raw *raw, struct amp__raw_buffer *buffer) {
    if (buffer->flags & (AMP__WRITE | AMP__READ_WRITE)) return take_copy(raw, buffer);
    AMP_TRY(take_temporary(raw, buffer, sizeof(float)));
    amp__raw_fill(raw, buffer, AMP__INTO_ROUNDED, NULL);
    return AMP_OK;
}

static amp_status enter_emulated(struct amp__raw *raw, struct amp__raw_buffer *buffer) {
    struct amp__casting *casting = raw->casting;
    if (buffer->flags & AMP__WRITE) {
        buffer->after = AMP__RAW_ROUND;
        return raw->verify ? take_copy(raw, buffer) : AMP_OK; /* with guards */
    }
    if (!(buffer->flags & AMP__READ_WRITE)) {
        AMP_TRY(from_cache(raw, casting, buffer));
        if (buffer->temporary) return AMP_OK;
        AMP_TRY(take_temporary(raw, buffer, sizeof(float)));
        amp__raw_fill(raw, buffer, AMP__INTO_ROUNDED, &raw->counts);
        return AMP_OK;
    }
    struct amp__param *summed;
    uint64_t rest;
    AMP_TRY(amp__gradient_at(casting->context, buffer->host, true, &summed, &rest));
    AMP_TRY(take_temporary(raw, buffer, sizeof(float)));
    /* in place, but on a copy: the host's stays as it is until the op is through */
    if (!summed) {
        amp__raw_fill(raw, buffer, AMP__INTO_ROUNDED, &raw->counts);
        buffer->after = AMP__RAW_ROUND;
        return AMP_OK;
    }
    if (amp__gradient_came(casting->context, summed)) look_at_new(casting, buffer, summed);
    memset(buffer->temporary, 0, (size_t)buffer->extents.span * sizeof(float));
    buffer->after = AMP__RAW_ADD;
    return AMP_OK;
}

static amp_status enter_replaced(struct amp__raw *raw, struct amp__raw_buffer *buffer) {
    struct amp__casting *casting = raw->casting;
    /* FP32 sums stay FP32. An implementation could not distinguish a registered one, so all are passed as they are */
    if (buffer->flags & AMP__READ_WRITE) return AMP_OK;
    if (!(buffer->flags & AMP__WRITE)) AMP_TRY(from_cache(raw, casting, buffer));
    if (buffer->temporary) return AMP_OK;
    AMP_TRY(take_temporary(raw, buffer, sizeof(uint16_t)));
    if (buffer->flags & AMP__WRITE) buffer->after = AMP__RAW_WIDEN;
    else amp__raw_fill(raw, buffer, AMP__INTO_NARROWED, &raw->counts);
    return AMP_OK;
}

/* Makes room for one more buffer, which counts once raw->n does. Device memory is not read by the CPU. */
static amp_status new_buffer(struct amp__raw *raw, float *host, struct amp__raw_buffer **out) {
    amp_device where;
    AMP_TRY(amp__places_where(&raw->casting->context->devices, host, &where));
    AMP_RETURN_IF(where.type == AMP__DEVICE_CUDA, AMP_ERR_UNSUPPORTED,
                  "it is in the memory of CUDA device %d, and libamp converts raw buffers in the CPU's memory only: "
                  "give the op Tensor arguments (hooks view and cast), or the class AMP_LEAVE", (int)where.id);
    if (raw->n == raw->capacity) {
        const size_t capacity = raw->capacity ? 2 * raw->capacity : 16;
        struct amp__raw_buffer *grown = amp__casting_memory(raw->casting, capacity * sizeof *grown);
        if (!grown) return amp__fail_memory();
        if (raw->n) memcpy(grown, raw->buffers, raw->n * sizeof *grown);
        raw->buffers = grown;
        raw->capacity = capacity;
    }
    *out = &raw->buffers[raw->n];
    **out = (struct amp__raw_buffer){ .host = host };
    return AMP_OK;
}

/* Finds a weight with a released FP32 block. */
static const struct amp__param *find_released(const struct amp__raw *raw, const float *address, uint64_t *offset) {
    const amp_context *context = raw->casting->context;
    if (!context->addresses.released) return NULL;
    const struct amp__param *param = amp__param_at(&context->addresses, address, offset);
    return param && param->released.data ? param : NULL;
}

/* The op gets its 16-bit elements as they lie, or, where it knows FP32 alone, widened. */
static amp_status enter_released(struct amp__raw *raw, struct amp__raw_buffer *buffer, const struct amp__param *param,
                                 uint64_t offset) {
    const uint64_t n = (uint64_t)buffer->extents.span;
    const amp_dtype to = raw->mode == AMP__RAW_REPLACE ? raw->low : AMP_FLOAT32;
    uint16_t *elements = (uint16_t *)param->released.data + offset;
    AMP_RETURN_IF(buffer->flags & (AMP__WRITE | AMP__READ_WRITE) || buffer->scratch || offset + n > param->size,
                  AMP_ERR_WRONG_STATE, "op %s: %s is written, or reaches beyond %s, and its FP32 block was released: "
                  "call amp_weights_restore first", raw->casting->op->name,
                  buffer->name ? buffer->name : "a buffer", param->name);
    if (to == raw->low && !raw->verify) {
        buffer->temporary = elements;
        buffer->narrow = true;
        return AMP_OK;
    }
    AMP_TRY(take_temporary(raw, buffer, amp__dtype_size(to)));
    const amp_span dst = { buffer->temporary, n, to, 0 };
    const amp_span src = { elements, n, raw->casting->context->policy.properties.cast_model_type, 0 };
    return amp_cast_list(&dst, &src, 1);
}

/* True for buffers that the mode leaves alone. Parameters, statistics and gradients of batch norm stay FP32 in a 16-bit
 * model. */
static bool stays(const struct amp__raw *raw, const float *address, uint16_t flags, bool seed) {
    amp_context *context = raw->casting->context;
    uint64_t offset;
    if (raw->mode == AMP__RAW_COPY && flags & (AMP__WRITE | AMP__READ_WRITE)) return false;
    if (find_released(raw, address, &offset)) return false;
    if (seed ? raw->seed == 1.0f : raw->mode == AMP__RAW_SEED) return true;
    if (!amp__retypes(&context->policy.properties) || !context->params.has_norm) return false;
    struct amp__param *param = amp__param_at(&context->addresses, address, &offset);
    const bool updates = (flags & AMP__READ_WRITE) != 0;
    if (!param && amp__gradient_at(context, address, updates, &param, &offset) != AMP_OK) return false;
    return amp__param_stays_fp32(&context->policy, param);
}

/* The op sees a seed times the loss scale, and a workspace as it is, in FP32 whatever the mode is. */
static amp_status enter(struct amp__raw *raw, struct amp__raw_buffer *buffer, bool seed) {
    uint64_t offset;
    const struct amp__param *released = find_released(raw, buffer->host, &offset);
    if (released) {
        AMP_TRY(enter_released(raw, buffer, released, offset));
        raw->n++;
        return AMP_OK;
    }
    if (seed || buffer->scratch) AMP_TRY(take_temporary(raw, buffer, sizeof(float)));
    if (seed) {
        if (raw->mode != AMP__RAW_COPY)
            atomic_fetch_add_explicit(&raw->casting->context->progress.seeds_shown, 1, memory_order_relaxed);
        amp__raw_fill(raw, buffer, AMP__INTO_SCALED, NULL);
    }
    else if (buffer->scratch)
        memcpy(buffer->temporary, buffer->host, (size_t)buffer->extents.span * sizeof(float));
    else if (raw->mode == AMP__RAW_COPY) AMP_TRY(enter_copied(raw, buffer));
    else {
        AMP_TRY(look_at_role(raw, buffer));
        AMP_TRY(raw->mode == AMP__RAW_EMULATE ? enter_emulated(raw, buffer) : enter_replaced(raw, buffer));
    }
    raw->n++;
    return AMP_OK;
}

/* Shares a temporary: two arguments on one buffer that the op updates see each other's writes, as without libamp. An
 * overlap that would lose writes is an error. */
static amp_status share(struct amp__raw *raw, const struct amp__raw_buffer *buffer, const char *op, const char *name,
                        void **temporary, bool *shared) {
    const uint16_t written = AMP__WRITE | AMP__READ_WRITE;
    for (size_t i = 0; i < raw->n && (buffer->flags & written); i++) {
        const struct amp__raw_buffer *known = &raw->buffers[i];
        const uintptr_t a = (uintptr_t)known->host, b = (uintptr_t)buffer->host;
        const bool apart = a + (uintptr_t)known->extents.span * 4 <= b || b + (uintptr_t)buffer->extents.span * 4 <= a;
        if (apart || !(known->flags & written) || known->as_it_is) continue;
        AMP_RETURN_IF(a != b || known->extents.span != buffer->extents.span ||
                          (known->flags & written) != (buffer->flags & written),
                      AMP_ERR_CONFLICT,
                      "op %s: %s: its output overlaps the output of another argument in part: give the op separate "
                      "buffers",
                      op, name);
        *temporary = known->temporary;
        *shared = true;
    }
    return AMP_OK;
}

/* ---- probed buffers that the mode leaves alone ---- */

static bool may_watch(const struct amp__raw *raw, const float *host) {
    amp_device where;
    return raw->lists && amp__places_where(&raw->casting->context->devices, host, &where) == AMP_OK &&
           where.type != AMP__DEVICE_CUDA;
}

static amp_status watch_only(struct amp__raw *raw, struct amp__raw_buffer *buffer) {
    buffer->as_it_is = true;
    raw->n++;
    return AMP_OK;
}

static amp_status enter_argument(struct amp__raw *raw, const struct amp__call *call, const struct amp__bound_arg *arg,
                                 void **argv, void **pointers) {
    struct amp__raw_buffer *buffer = NULL;
    float *host = arg->buffer;
    const bool seed = (arg->flags & AMP__SEED) != 0;
    if (arg->dtype != AMP_FLOAT32 || arg->flags & AMP__KEEP) return AMP_OK;
    raw->found |= !seed;
    const bool as_it_is = stays(raw, host, arg->flags, seed);
    if (as_it_is && !may_watch(raw, host)) return AMP_OK;
    amp_status status = new_buffer(raw, host, &buffer);
    if (status != AMP_OK) return amp__fail_prefix(status, "op %s: %s", raw->casting->op->name, arg->name);
    buffer->flags = arg->flags;
    buffer->name = arg->name;
    status = extents_of(raw->casting, call, arg, buffer);
    if (as_it_is && status == AMP_ERR_NOT_FOUND) return AMP_OK;
    AMP_TRY(status);
    if (!buffer->extents.count) return AMP_OK;
    if (raw->verify) AMP_TRY(amp__watch_check(raw->casting, buffer));
    if (as_it_is) return watch_only(raw, buffer);
    bool shared = false;
    AMP_TRY(share(raw, buffer, raw->casting->op->name, arg->name, &buffer->temporary, &shared));
    if (!shared) AMP_TRY(enter(raw, buffer, seed));
    if (!buffer->temporary) return AMP_OK;
    pointers[arg->index] = buffer->temporary;
    argv[arg->index] = &pointers[arg->index];
    return AMP_OK;
}

/* ---- buffers behind structs ---- */

/* Joins the same buffer in the same role: the pointer gets the temporary of the first one. Two roles for one buffer, or
 * a partial overlap, are an error. */
static amp_status join(struct amp__raw *raw, const amp_field *field, float *host, uint16_t flags, bool *joined) {
    for (size_t i = 0; i < raw->n; i++) {
        const struct amp__raw_buffer known = raw->buffers[i];
        const uintptr_t a = (uintptr_t)known.host, b = (uintptr_t)host;
        if (known.as_it_is) continue;
        if (a == b && known.extents.span == field->size) {
            const uint16_t roles = known.flags & (AMP__WRITE | AMP__READ_WRITE);
            AMP_RETURN_IF(roles != flags || known.scratch != (field->role == AMP_ROLE_SCRATCH), AMP_ERR_CONFLICT,
                          "it is a buffer of the call already, in another role: one that is read and written is "
                          "AMP_ROLE_UPDATE each time");
            *joined = true;
            return known.temporary && *field->address == host
                ? amp__casting_patch(raw->casting, field->address, known.temporary)
                : AMP_OK;
        }
        const uintptr_t a_end = a + (uintptr_t)known.extents.span * 4, b_end = b + (uintptr_t)field->size * 4;
        AMP_RETURN_IF(a < b_end && b < a_end, AMP_ERR_CONFLICT,
                      "it overlaps another buffer of the call without being the same");
    }
    return AMP_OK;
}

static amp_status enter_field(struct amp__raw *raw, const amp_field *given) {
    const amp_field field = *given;
    struct amp__raw_buffer *buffer = NULL;
    bool joined = false;
    if (raw->mode == AMP__RAW_NONE) return AMP_OK;
    const bool seed = field.role == AMP_ROLE_SEED;
    const struct amp__op *op = raw->casting->op;
    const struct amp__scaler_settings *scaler = &op->context->policy.properties.scaler;
    AMP_RETURN_IF(seed && !op->seeds && raw->mode != AMP__RAW_SEED && (scaler->dynamic || scaler->init_scale != 1.0f),
                  AMP_ERR_CONFLICT,
                  "it is a seed, but the op lacks the flag AMP_OP_SEEDS: without it the host must "
                  "multiply its seed with amp_seed_factor(&scaled)");
    float *const host = amp__casting_original(raw->casting, field.address);
    AMP_RETURN_IF(field.role == AMP_ROLE_KEEP && host != *field.address, AMP_ERR_CONFLICT,
                  "it is a buffer of the call already, in another role: a kept buffer has AMP_ROLE_KEEP each time");
    if (field.role == AMP_ROLE_KEEP || !host || !field.size) return AMP_OK;
    const uint16_t flags = field.role == AMP_ROLE_WRITE ? AMP__WRITE
        : field.role == AMP_ROLE_UPDATE                 ? AMP__READ_WRITE
                                                        : 0;
    const bool as_it_is = stays(raw, host, flags, seed);
    if (as_it_is && !may_watch(raw, host)) return AMP_OK;
    if (!as_it_is) AMP_TRY(join(raw, &field, host, flags, &joined));
    if (joined) return AMP_OK;
    AMP_TRY(new_buffer(raw, host, &buffer));
    buffer->extents = (struct amp__extents){ .ndim = 1, .shape = { field.size }, .row_stride = field.size,
                                            .count = field.size, .span = field.size };
    buffer->flags = flags;
    buffer->name = field.name;
    buffer->scratch = field.role == AMP_ROLE_SCRATCH;
    if (raw->verify) AMP_TRY(amp__watch_check(raw->casting, buffer));
    if (as_it_is) return watch_only(raw, buffer);
    AMP_TRY(enter(raw, buffer, seed));
    return buffer->temporary ? amp__casting_patch(raw->casting, field.address, buffer->temporary) : AMP_OK;
}

struct visit {
    struct amp__raw *raw;
    amp__take_field *take;
    void *user;
};

static amp_status enter_visited(void *self, const amp_field *field) {
    const struct visit *visit = self;
    visit->raw->found |= amp__is_work(field);
    if (!field->tensor) return enter_field(visit->raw, field);
    return field->role == AMP_ROLE_KEEP || !*field->tensor ? AMP_OK : visit->take(visit->user, field);
}

/* The caller's own structs never change. */
amp_status amp__raw_visit(struct amp__raw *raw, const struct amp__bound *bound, void **argv, amp__take_field *take,
                          void *user) {
    struct visit visit = { raw, take, user };
    const struct amp__schema *schema = bound->call->schema;
    for (uint8_t j = 0; j < schema->n_struct_args; j++) {
        const uint8_t i = schema->struct_args[j];
        const size_t size = amp__arg_size(schema, &schema->args[i]);
        void *copy = amp__casting_memory(raw->casting, size);
        if (!copy) return amp__fail_memory();
        memcpy(copy, argv[i], size);
        argv[i] = copy;
    }
    return amp__visit(raw->casting->op, argv, enter_visited, &visit);
}

/* ---- the call ---- */

amp_status amp__raw_enter(struct amp__raw *raw, const struct amp__bound *bound, void **argv, void **pointers) {
    amp_context *context = raw->casting->context;
    raw->low_sums = amp__emulates_model(&context->policy.properties);
    raw->verify = context->policy.verify;
    if (!atomic_load_explicit(&context->progress.raw_calls, memory_order_relaxed)) context->progress.raw_calls = true;
    for (uint32_t i = 0; i < bound->n_buffers; i++)
        AMP_TRY(enter_argument(raw, bound->call, &bound->buffers[i], argv, pointers));
    return AMP_OK;
}
