/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp_config.verify: a 16-bit implementation is compared with the FP32 function of the op. The function runs first, on
 * copies of all buffers, and its results are dropped. Its inputs have the values for the implementation, rounded and
 * widened again, so that every difference comes from the implementation.
 *
 * The first calls of each kind (integers, sizes, present buffers) are compared, and a call counts only if it would have
 * shown a wrong implementation: zeros, constants, and numbers beyond 16 bits prove nothing. Distances are L2 norms over
 * one buffer, of the changes by the call. Allowed are 16 units of roundoff of the FP32 change: 2^-7 of it in fp16 and
 * 2^-4 in bfloat16. If the terms of a product cancel, rounding exceeds that. So a product may also differ by (u + k *
 * 2^-24) |A||B|, with u for the roundings of its terms, of which k are summed in FP32. |A||B| is the FP32 function of
 * absolute values, for any transposes and strides of the op.
 */
#include "call/call.h"
#include "context/devices.h"
#include "context/parts.h"
#include "raw/reference.h"

#include <string.h>

enum { ENOUGH = 2, TRIES = 64 }; /* calls of a kind: that were compared, that were tried */

static bool is_constant(const struct amp__extents *extents, const float *a) {
    int64_t i = 1;
    while (i < extents->count && a[amp__element_at(extents, i)] == a[0]) i++;
    return extents->count > 1 && i == extents->count;
}

/* ---- compared buffers ---- */

/* The kind of a call, and buffers that the op may write beside its results. */
struct call_seen {
    struct amp__casting *casting;
    uint64_t key;
    bool handles, has_work, unknown; /* unknown: a kept buffer without extents */
    struct kept *kept;
};

/* Memory that is never cast: the op gets the host's own, and it is put back. */
struct kept {
    struct kept *next;
    void *memory, *copy;
    size_t bytes;
};

static void mix(struct call_seen *seen, int64_t value) { seen->key = amp__sum64(seen->key, &value, sizeof value); }

static amp_status keep_memory(struct call_seen *seen, void *memory, size_t bytes) {
    amp_device where;
    if (!memory || !bytes || amp__places_where(amp__devices_of(seen->casting->context), memory, &where) != AMP_OK ||
        where.type == AMP__DEVICE_CUDA)
        return AMP_OK;
    struct kept *kept = amp__casting_memory(seen->casting, sizeof *kept);
    if (!kept) return amp__fail_memory();
    *kept = (struct kept){ seen->kept, memory, NULL, bytes };
    seen->kept = kept;
    return AMP_OK;
}

static amp_status see_field(void *self, const amp_field *field) {
    struct call_seen *seen = self;
    seen->handles |= field->tensor && *field->tensor;
    seen->has_work |= amp__is_work(field);
    if (field->tensor) return AMP_OK;
    mix(seen, field->role), mix(seen, *field->address ? field->size : 0);
    return field->role == AMP_ROLE_KEEP ? keep_memory(seen, *field->address, (size_t)field->size * sizeof(float))
                                        : AMP_OK;
}

static void see_number(struct call_seen *seen, const struct amp__call *call, uint8_t i) {
    if (call->schema->args[i].kind <= AMP__UINT64) mix(seen, amp__call_integer(call, i));
}

static amp_status see_buffer(struct call_seen *seen, const struct amp__call *call, const struct amp__bound_arg *arg) {
    struct amp__extents extents;
    mix(seen, arg->index);
    if (arg->dtype == AMP_FLOAT32 && !(arg->flags & AMP__KEEP)) return AMP_OK;
    if (arg->flags & AMP__EXTENT_UNKNOWN) {
        seen->unknown = true;
        return AMP_OK;
    }
    AMP_TRY(amp__buffer_extents(call, arg->index, &extents));
    return keep_memory(seen, arg->buffer, (size_t)extents.span * amp__dtype_size(arg->dtype));
}

static amp_status see_call(struct call_seen *seen, const struct amp__bound *bound) {
    const struct amp__schema *schema = bound->call->schema;
    const struct amp__op *op = seen->casting->op;
    seen->has_work |= bound->has_buffers;
    for (uint8_t i = 0; i < schema->n_numbers; i++) see_number(seen, bound->call, schema->numbers[i]);
    for (uint32_t i = 0; i < bound->n_buffers; i++) AMP_TRY(see_buffer(seen, bound->call, &bound->buffers[i]));
    return amp__visits(op) ? amp__visit(op, bound->call->args, see_field, seen) : AMP_OK;
}

static struct amp__comparisons *comparisons_of(struct amp__op *op) {
    if (!op->comparisons) op->comparisons = amp__alloc(1, sizeof *op->comparisons);
    return op->comparisons;
}

/* Under the lock. */
static bool wants(struct amp__comparisons *known, const struct call_seen *seen, size_t *kind) {
    size_t i = 0;
    if (seen->handles) known->why = "its structs have handles";
    if (seen->unknown) known->why = "a buffer that is kept has no extents";
    if (known->why || !seen->has_work) return false;
    while (i < known->n && known->kinds[i].key != seen->key) i++;
    if (i == AMP__KINDS) known->further++;
    if (i == AMP__KINDS || known->kinds[i].compared >= ENOUGH || known->kinds[i].tried >= TRIES) return false;
    if (i == known->n) known->kinds[known->n++].key = seen->key;
    known->kinds[i].tried++;
    *kind = i;
    return true;
}

/* ---- the FP32 function ---- */

struct rehearsal {
    const struct amp__bound *bound;
    struct amp__casting *casting;
    struct amp__raw raw;
    struct kept *kept;
    float **before; /* of each of raw.buffers; of the call's memory, as all here */
    void *argv[AMP__MAX_ARGS], *pointers[AMP__MAX_ARGS];
};

static bool is_written(const struct amp__raw_buffer *buffer) {
    return (buffer->flags & (AMP__WRITE | AMP__READ_WRITE)) && !buffer->scratch;
}

static amp_status duplicate(struct amp__casting *casting, const void *memory, size_t bytes, void *copy) {
    void *made = amp__casting_memory(casting, bytes);
    if (!made) return amp__fail_memory();
    memcpy(made, memory, bytes);
    memcpy(copy, &made, sizeof made);
    return AMP_OK;
}

static size_t bytes_of(const struct amp__raw_buffer *buffer) { return (size_t)buffer->extents.span * sizeof(float); }

static amp_status pass_over(void *self, const amp_field *field) {
    (void)self, (void)field;
    return AMP_OK;
}

/* Enters the rehearsal. Structs point to the copies of the call until it ends. */
static amp_status enter(struct rehearsal *r) {
    memcpy(r->argv, r->bound->argv, sizeof r->argv);
    AMP_TRY(amp__raw_enter(&r->raw, r->bound, r->argv, r->pointers));
    if (amp__visits(r->casting->op)) AMP_TRY(amp__raw_visit(&r->raw, r->bound, r->argv, pass_over, NULL));
    r->before = amp__casting_memory(r->casting, r->raw.n * sizeof *r->before + 1);
    if (!r->before) return amp__fail_memory();
    for (size_t i = 0; i < r->raw.n; i++) {
        r->before[i] = NULL;
        if (r->raw.buffers[i].temporary)
            AMP_TRY(duplicate(r->casting, r->raw.buffers[i].temporary, bytes_of(&r->raw.buffers[i]), &r->before[i]));
    }
    for (struct kept *kept = r->kept; kept; kept = kept->next)
        AMP_TRY(duplicate(r->casting, kept->memory, kept->bytes, &kept->copy));
    return AMP_OK;
}

/* Restores changed buffers only, since others may be read-only. */
static void put_kept_back(const struct rehearsal *r) {
    for (const struct kept *kept = r->kept; kept; kept = kept->next)
        if (kept->copy && memcmp(kept->memory, kept->copy, kept->bytes))
            memcpy(kept->memory, kept->copy, kept->bytes);
}

static void put_back(const struct rehearsal *r) {
    struct amp__temporaries *temporaries = r->casting->temporaries;
    put_kept_back(r);
    if (!temporaries) return;
    for (const struct amp__patched *patched = temporaries->patched; patched; patched = patched->next)
        *patched->field = patched->value;
    temporaries->patched = NULL;
}

/* Runs the function on the old contents, or on absolute values with zeros in place of them. */
static void run(const struct rehearsal *r, bool absolute) {
    const struct amp__call *call = r->bound->call;
    struct amp__traps traps;
    for (size_t i = 0; i < r->raw.n; i++) {
        const struct amp__raw_buffer *buffer = &r->raw.buffers[i];
        float *temporary = buffer->temporary;
        if (!temporary) continue;
        memcpy(temporary, r->before[i], bytes_of(buffer));
        for (int64_t k = 0; k < buffer->extents.count && absolute && !buffer->scratch; k++) {
            float *element = temporary + amp__element_at(&buffer->extents, k);
            *element = is_written(buffer) ? 0.0f : fabsf(*element);
        }
    }
    put_kept_back(r);
    amp__traps_mask(&traps);
    if (traps.masked) amp__mark_top(call->thread)->traps = traps;
    amp__call_rehearse(call, call->original, r->argv);
    amp__traps_restore(&traps);
}

/* Returns the inputs of the op in FP32. */
static const float *elements_of(const struct rehearsal *r, size_t i) {
    return r->before[i] ? r->before[i] : r->raw.buffers[i].host;
}

static bool is_finite(const struct rehearsal *r) {
    for (size_t i = 0; i < r->raw.n; i++) {
        const struct amp__raw_buffer *buffer = &r->raw.buffers[i];
        if (buffer->scratch || buffer->flags & AMP__WRITE) continue;
        if (isnan(amp__largest(&buffer->extents, elements_of(r, i)))) return false;
    }
    return true;
}

/* Have the two largest inputs two values at least? Fills their sizes. */
static bool tells_apart(const struct rehearsal *r, double sizes[2]) {
    bool varies[2] = { true, true };
    sizes[0] = sizes[1] = 0.0;
    for (size_t i = 0; i < r->raw.n; i++) {
        const struct amp__raw_buffer *buffer = &r->raw.buffers[i];
        const double size = (double)buffer->extents.count;
        if (buffer->scratch || buffer->flags & (AMP__WRITE | AMP__READ_WRITE) || size <= sizes[1]) continue;
        const size_t place = size <= sizes[0];
        if (!place) sizes[1] = sizes[0], varies[1] = varies[0];
        sizes[place] = size;
        varies[place] = !is_constant(&buffer->extents, elements_of(r, i));
    }
    return varies[0] && varies[1];
}

/* Of the first run. */
static amp_status take_outcomes(struct amp__reference *reference, const struct rehearsal *r) {
    size_t n = 0;
    struct amp__outcome *outcomes = amp__casting_memory(r->casting, r->raw.n * sizeof *outcomes + 1);
    if (!outcomes) return amp__fail_memory();
    for (size_t i = 0; i < r->raw.n; i++) {
        const struct amp__raw_buffer *buffer = &r->raw.buffers[i];
        if (!is_written(buffer)) continue;
        struct amp__outcome *out = &outcomes[n++];
        *out = (struct amp__outcome){ .name = buffer->name ? buffer->name : "a buffer", .host = buffer->host,
                                      .extents = buffer->extents,
                                      .before = buffer->flags & AMP__READ_WRITE ? r->before[i] : NULL };
        AMP_TRY(duplicate(r->casting, buffer->temporary, bytes_of(buffer), &out->made));
        out->changed = amp__l2_distance(&out->extents, out->made, out->before);
        out->norm = amp__l2_distance(&out->extents, out->made, NULL);
        out->largest = amp__largest(&out->extents, out->made);
    }
    reference->outcomes = outcomes;
    reference->n = n;
    return AMP_OK;
}

/* The nth written buffer of a later run. */
static const float *nth_written(const struct rehearsal *r, size_t n) {
    size_t i = 0;
    while (!is_written(&r->raw.buffers[i]) || n--) i++;
    return r->raw.buffers[i].temporary;
}

/* Compares two runs. Threads may add in another order: a sixteenth of the allowed difference. */
static bool repeats(const struct amp__reference *reference, const struct rehearsal *r) {
    for (size_t i = 0; i < reference->n; i++) {
        const struct amp__outcome *out = &reference->outcomes[i];
        const double d = amp__l2_distance(&out->extents, nth_written(r, i), out->made);
        if (!(d <= amp__roundoff(r->raw.low) * out->norm) && !isnan(out->largest)) return false;
    }
    return true;
}

/* k from the sizes m * k, k * n and m * n. */
static void take_magnitudes(struct amp__reference *reference, const struct rehearsal *r, const double sizes[2]) {
    double most = 1.0;
    for (size_t i = 0; i < reference->n; i++) most = fmax(most, (double)reference->outcomes[i].extents.count);
    const double k = fmax(1.0, sqrt(sizes[0] * sizes[1] / most));
    for (size_t i = 0; i < reference->n; i++) {
        struct amp__outcome *out = &reference->outcomes[i];
        const double norm = amp__l2_distance(&out->extents, nth_written(r, i), NULL);
        out->magnitude = (amp__roundoff(r->raw.low) + k * 0x1p-24) * norm;
    }
}

static amp_status rehearse(struct amp__reference *reference, struct rehearsal *r) {
    double sizes[2];
    struct amp__op *op = r->casting->op;
    pthread_mutex_t *lock = amp__lock_of(op->context);
    AMP_TRY(enter(r));
    if (!is_finite(r)) return AMP_OK;
    reference->decides = tells_apart(r, sizes);
    run(r, false);
    bool strays = false;
    for (size_t i = 0; i < r->raw.n; i++) strays |= amp__watch_guards(&r->raw.buffers[i], op);
    AMP_TRY(take_outcomes(reference, r));
    run(r, false);
    if (!repeats(reference, r)) {
        pthread_mutex_lock(lock);
        op->comparisons->why = "its FP32 function makes something else the second time: it seems to keep state, which "
                                "these runs of verify's moved: set AMP_OP_STATEFUL";
        pthread_mutex_unlock(lock);
        reference->n = 0;
    }
    if (strays) reference->n = 0; /* reported: the results are incomplete */
    if (!reference->n || !op->is_product) return AMP_OK;
    run(r, true);
    take_magnitudes(reference, r, sizes);
    return AMP_OK;
}

amp_status amp__reference_run(struct amp__reference *reference, const struct amp__probed *call) {
    struct amp__op *op = call->op;
    pthread_mutex_t *lock = amp__lock_of(op->context);
    struct call_seen seen = { .casting = call->casting };
    *reference = (struct amp__reference){ 0 };
    if (amp__reference_never(op)) return AMP_OK;
    AMP_TRY(see_call(&seen, call->bound));
    pthread_mutex_lock(lock);
    struct amp__comparisons *known = comparisons_of(op);
    const bool wanted = known && wants(known, &seen, &reference->kind);
    pthread_mutex_unlock(lock);
    if (!known) return amp__fail_memory();
    if (!wanted) return AMP_OK;
    struct rehearsal r = { .bound = call->bound, .casting = call->casting, .kept = seen.kept,
                           .raw = { .mode = AMP__RAW_COPY, .low = call->low, .seed = call->seed, .lists = true,
                                    .casting = call->casting } };
    const amp_status status = rehearse(reference, &r);
    put_back(&r);
    if (status == AMP_OK) return AMP_OK;
    reference->n = 0;
    return status == AMP_ERR_CONFLICT ? AMP_OK : status; /* buffers overlap: the call itself refuses them, or not */
}

