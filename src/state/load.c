/* SPDX-License-Identifier: Apache-2.0 */
/* The content of a state file, or of several parts, into a context: read, match, verify, and only then change
 * anything. */
#include "bracket/bracket.h"
#include "bracket/fused.h"
#include "bracket/home.h"
#include "bracket/step.h"
#include "call/cache.h"
#include "context/optimizer.h"
#include "context/parts.h"
#include "context/report.h"
#include "kernels/kernels.h"
#include "state/load.h"

#include <string.h>

/* ---- reading ---- */

static amp_status read_header(struct part *part) {
    const struct amp__source *source = part->source;
    void *owned;
    const void *bytes;
    uint64_t length = 0;
    AMP_RETURN_IF(source->size < 8, AMP_ERR_BAD_FILE, "a state of %llu byte%s is cut off",
                  (unsigned long long)source->size, AMP__S(source->size));
    AMP_TRY(amp__source_get(source, 0, 8, &owned, &bytes));
    for (int i = 8; i--;) length = length << 8 | ((const unsigned char *)bytes)[i];
    amp__free(owned);
    AMP_RETURN_IF(length > AMP__STATE_MAX_HEADER, AMP_ERR_BAD_FILE, "the header claims %llu bytes; %u are the limit",
                  (unsigned long long)length, (unsigned)AMP__STATE_MAX_HEADER);
    AMP_RETURN_IF(length > source->size - 8, AMP_ERR_BAD_FILE,
                  "the header claims %llu byte%s, but the whole state has %llu: it is cut off, or not a state",
                  (unsigned long long)length, AMP__S(length), (unsigned long long)source->size);
    AMP_TRY(amp__source_get(source, 0, 8 + length, &part->owned_header, &bytes));
    AMP_TRY(amp__header_parse(bytes, (size_t)(8 + length), &part->header));
    const char *format = amp__header_get(&part->header, "libamp.format");
    AMP_RETURN_IF(!format || strcmp(format, "1"), AMP_ERR_BAD_FILE,
                  "the state's format is not 1: a newer libamp wrote it, load it with that");
    AMP_RETURN_IF(part->header.data_bytes != source->size - 8 - length, AMP_ERR_BAD_FILE,
                  "the header describes %llu byte%s of tensors and %llu follow: the state is cut off or something was "
                  "added", (unsigned long long)part->header.data_bytes, AMP__S(part->header.data_bytes),
                  (unsigned long long)(source->size - 8 - length));
    return AMP_OK;
}

/* Checksums a tensor without a target piece by piece, without holding it, since its size comes from the file. */
static amp_status sum_foreign(const struct amp__source *source, uint64_t at, uint64_t bytes, struct amp__crc64 *crc) {
    enum { PIECE_BYTES = 1 << 18 };
    while (bytes) {
        void *owned;
        const void *data;
        const uint64_t n = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
        AMP_TRY(amp__source_get(source, at, n, &owned, &data));
        amp__crc64_add(crc, data, (size_t)n);
        amp__free(owned);
        at += n;
        bytes -= n;
    }
    return AMP_OK;
}

/* Allocates memory for tensors with targets. Their sizes are those of the targets. A file in memory stays where it
 * is. */
static amp_status hold_ours(struct load *load) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < load->n_targets; i++)
        if (load->targets[i].tensor) bytes += load->targets[i].tensor->end - load->targets[i].tensor->begin;
    if (load->parts->source->memory || !bytes) return AMP_OK;
    load->owned_data = amp__alloc_aligned(bytes);
    return load->owned_data ? AMP_OK : amp__fail_memory();
}

static amp_status read_and_sum(struct load *load, const struct part *part, char **held, struct amp__crc64 *crc) {
    const struct amp__source *source = part->source;
    const uint64_t begin = source->size - part->header.data_bytes;
    for (size_t i = 0; i < part->header.n_tensors; i++) {
        const struct amp__state_tensor *tensor = &part->header.tensors[i];
        const uint64_t at = begin + tensor->begin, bytes = tensor->end - tensor->begin;
        struct target *target = tensor->user ? &load->targets[tensor->user - 1] : NULL;
        if (!target) {
            AMP_TRY(sum_foreign(source, at, bytes, crc));
            continue;
        }
        if (!source->memory) AMP_TRY(amp__source_read(source, at, bytes, *held));
        target->src = source->memory ? source->memory + at : *held;
        *held = source->memory ? NULL : *held + bytes;
        amp__crc64_add(crc, target->src, (size_t)bytes);
    }
    return AMP_OK;
}

static amp_status read_part(struct load *load, const struct part *part, char **held, struct amp__crc64 *crc) {
    amp__crc64_init(crc);
    AMP_TRY(read_and_sum(load, part, held, crc));
    AMP_RETURN_IF(amp__crc64_value(crc) != part->header.data_crc, AMP_ERR_BAD_FILE,
                  "the tensors' bytes are damaged: their checksum does not match");
    return AMP_OK;
}

static amp_status read_data(struct load *load) {
    AMP_TRY(hold_ours(load));
    char *held = load->owned_data;
    struct amp__crc64 *crc = amp__alloc(1, sizeof *crc);
    amp_status status = crc ? AMP_OK : amp__fail_memory();
    for (size_t i = 0; i < load->n_parts && status == AMP_OK; i++)
        status = amp__load_of_part(load, i, read_part(load, &load->parts[i], &held, crc));
    amp__free(crc);
    return status;
}

/* ---- applying ---- */

/* A caller's memory has no alignment, so values pass through a block of ours. */
static void round_into(const struct target *target, const char *src) {
    float wide[1024];
    for (uint64_t at = 0; at < target->param->size; at += AMP_COUNT(wide)) {
        const uint64_t left = target->param->size - at, n = left < AMP_COUNT(wide) ? left : AMP_COUNT(wide);
        memcpy(wide, src + 4 * at, (size_t)n * sizeof *wide);
        const amp_span dst = { (char *)target->elements + 2 * at, n, target->param->dtype, 0 };
        const amp_span from = { wide, n, AMP_FLOAT32, 0 };
        const amp_status status = amp_cast_list(&dst, &from, 1);
        (void)status; /* it fails only on spans that are none */
    }
}

/* The arrays of a split master's remainder, from element `at`, a multiple of 32, on; and their bytes for n elements. */
struct rest {
    uint16_t *lower;
    uint32_t *ties;
    size_t lower_bytes, ties_bytes;
};

static struct rest rest_of(void *remainder, uint64_t size, uint64_t at, uint64_t n) {
    return (struct rest){ amp__rest_of(remainder) + at, amp__ties_of(remainder, size) + at / 32,
                          (size_t)(n + 1) / 2 * 4, (size_t)(n + 31) / 32 * 4 };
}

static void split_into(const struct target *target, const char *src) {
    float wide[1024];
    uint32_t block[AMP_COUNT(wide) / 2 + AMP_COUNT(wide) / 32];
    void *const remainder = block;
    const uint64_t size = target->param->size;
    for (uint64_t at = 0; at < size; at += AMP_COUNT(wide)) {
        const uint64_t n = size - at < AMP_COUNT(wide) ? size - at : AMP_COUNT(wide);
        const amp_span dst = { (char *)target->elements + 2 * at, n, AMP_BFLOAT16, 0 };
        const amp_span from = { wide, n, AMP_FLOAT32, 0 };
        const struct rest to = rest_of(target->param->master.rest.data, size, at, n), piece = rest_of(block, n, 0, n);
        memcpy(wide, src + 4 * at, (size_t)n * sizeof *wide);
        const amp_status status = amp_split_list(&dst, &remainder, &from, 1);
        (void)status; /* as above */
        memcpy(to.lower, piece.lower, piece.lower_bytes);
        memcpy(to.ties, piece.ties, piece.ties_bytes);
    }
    amp__master_parted(target->param);
}

/* Room for a piece that is rounded on its way to a device. */
enum { PIECE = 1 << 18 };
struct piece {
    float wide[PIECE];
    uint16_t low[PIECE];
    uint32_t rest[PIECE / 2 + PIECE / 32];
};

static amp_status copy_split(const struct target *target, const char *src, struct piece *piece) {
    void *const remainder = piece->rest;
    const uint64_t size = target->param->size;
    for (uint64_t at = 0; at < size; at += PIECE) {
        const uint64_t n = size - at < PIECE ? size - at : PIECE;
        const amp_span dst = { piece->low, n, AMP_BFLOAT16, 0 }, from = { piece->wide, n, AMP_FLOAT32, 0 };
        const struct rest to = rest_of(target->param->master.rest.data, size, at, n);
        const struct rest here = rest_of(piece->rest, n, 0, n);
        memcpy(piece->wide, src + 4 * at, (size_t)n * sizeof *piece->wide);
        AMP_TRY(amp_split_list(&dst, &remainder, &from, 1));
        AMP_TRY(amp__place_in(target->place, (uint16_t *)target->elements + at, piece->low, n * sizeof *piece->low));
        AMP_TRY(amp__place_in(target->place, to.lower, here.lower, here.lower_bytes));
        AMP_TRY(amp__place_in(target->place, to.ties, here.ties, here.ties_bytes));
    }
    amp__master_parted(target->param);
    return AMP_OK;
}

static amp_status copy_values(const struct target *target, const char *src, struct piece *piece) {
    const struct amp__param *param = target->param;
    if (param->dtype == AMP_FLOAT32)
        return amp__place_in(target->place, target->elements, src, param->size * sizeof(float));
    for (uint64_t at = 0; at < param->size; at += PIECE) {
        const uint64_t left = param->size - at, n = left < PIECE ? left : PIECE;
        const amp_span dst = { piece->low, n, param->dtype, 0 }, from = { piece->wide, n, AMP_FLOAT32, 0 };
        memcpy(piece->wide, src + 4 * at, (size_t)n * sizeof *piece->wide);
        AMP_TRY(amp_cast_list(&dst, &from, 1));
        AMP_TRY(amp__place_in(target->place, (uint16_t *)target->elements + at, piece->low, n * sizeof *piece->low));
    }
    return AMP_OK;
}

/* Copies a tensor to a device, without allocating there, so that it cannot run out of memory half-way. */
static amp_status copy_to_device(const struct target *target, const char *src, struct piece *piece) {
    struct amp__param *param = target->param;
    if (target->moment) return amp__place_in(target->place, target->moment, src, target->size * sizeof(float));
    if (amp__is_split(param)) return copy_split(target, src, piece);
    if (param->has_master)
        AMP_TRY(amp__place_in(target->place, param->master.fp32.data, src, param->size * sizeof(float)));
    if (!param->has_master || !param->emulated) AMP_TRY(copy_values(target, src, piece));
    if (param->emulated) amp__emulated_show(param, target->elements); /* with the flush */
    else if (param->has_master) amp__master_stepped(param, target->elements);
    return AMP_OK;
}

/* Moments in 8 bits. The scales of a file are in place. */
static amp_status copy_codes(const struct target *target, struct piece *piece) {
    uint8_t *const codes = (void *)piece->low;
    float *const scales = (void *)piece->rest;
    for (uint64_t at = 0; at < target->size; at += PIECE) {
        const uint64_t left = target->size - at, n = left < PIECE ? left : PIECE;
        const size_t bytes = amp__optim_blocks(n) * sizeof *scales;
        float *const there = target->scales + at / AMP_STATE_BLOCK;
        memcpy(piece->wide, target->src + 4 * at, (size_t)n * sizeof *piece->wide);
        if (target->scaled) AMP_TRY(amp__place_out(target->place, scales, there, bytes));
        AMP_TRY(amp_encode_moment(codes, scales, piece->wide, n, target->second, target->scaled));
        AMP_TRY(amp__place_in(target->place, there, scales, bytes));
        AMP_TRY(amp__place_in(target->place, target->codes + at, codes, (size_t)n));
    }
    return AMP_OK;
}

/* Copies to devices first, so that an error of a device leaves the rest unchanged. */
static amp_status copy_all_to_devices(const struct load *load) {
    struct piece *piece = load->devices->n_places ? amp__alloc(1, sizeof *piece) : NULL;
    amp_status status = piece || !load->devices->n_places ? AMP_OK : amp__fail_memory();
    for (size_t i = 0; i < load->n_targets && status == AMP_OK; i++) {
        const struct target *target = &load->targets[i];
        if (target->place && target->tensor && !target->codes) status = copy_to_device(target, target->src, piece);
    }
    for (size_t i = 0; i < load->n_targets && status == AMP_OK; i++) {
        const struct target *target = &load->targets[i];
        if (target->place && target->tensor && target->codes) status = copy_codes(target, piece);
    }
    amp__free(piece);
    return status;
}

/* Makes devices use the loaded values. Only a lost device can fail here. */
static amp_status tell_devices(const struct load *load) {
    amp_context *context = load->context;
    const struct amp__optimizers *optimizers = amp__optimizers_of(context);
    AMP_TRY(amp__places_flush(load->devices));
    for (size_t i = 0; i < optimizers->n; i++)
        if (optimizers->list[i].optim) AMP_TRY(amp__fused_device_steps(&optimizers->list[i], true));
    for (uint32_t i = 0; load->devices->skips && i < load->brackets->n; i++)
        AMP_TRY(load->brackets->list[i].home->write(&load->brackets->list[i]));
    return AMP_OK;
}

/* Through a block of ours, as above. The scales of a file are in place. */
static void encode_into(const struct target *target) {
    float values[4 * AMP_STATE_BLOCK];
    for (uint64_t at = 0; at < target->size; at += AMP_COUNT(values)) {
        const uint64_t n = target->size - at < AMP_COUNT(values) ? target->size - at : AMP_COUNT(values);
        memcpy(values, target->src + 4 * at, (size_t)n * sizeof *values);
        const amp_status status = amp_encode_moment(target->codes + at, target->scales + at / AMP_STATE_BLOCK, values,
                                                    n, target->second, target->scaled);
        (void)status; /* it fails only without memory of ours */
    }
}

static void set_parameter(const struct target *target) {
    const char *src = target->src;
    struct amp__param *param = target->param;
    const size_t bytes = (size_t)param->size * sizeof(float);
    if (target->moment) memcpy(target->moment, src, (size_t)target->size * sizeof(float));
    if (is_of_optimizer(target) || !bytes) return;
    if (amp__is_split(param)) {
        split_into(target, src);
    } else if (param->has_master) {
        memcpy(param->master.fp32.data, src, bytes);
        amp__master_round(param, target->elements);
    } else if (param->dtype == AMP_FLOAT32) {
        memcpy(target->elements, src, bytes);
        if (param->emulated) amp__emulated_show(param, target->elements);
    } else {
        round_into(target, src);
    }
}

static bool is_sharded(const amp_context *context) {
    const struct amp__optimizers *optimizers = amp__optimizers_of(context);
    for (size_t i = 0; i < optimizers->n; i++)
        if (optimizers->list[i].sharded) return true;
    return false;
}

static void report_load(struct load *load, bool same_mode) {
    char line[800] = "";
    amp__text text = { line, sizeof line, 0 };
    amp__state_compare(load->policy, &load->parts->header, &text);
    amp__state_compare_seeds(&load->parts->header, amp__optimizers_of(load->context), &text);
    if (!same_mode)
        amp__text_add(&text, "; the loss scalers keep their present state, because the file's follow another rule");
    else if (load->file_scalers != load->policy->properties.num_losses)
        amp__text_add(&text, "; %zu of the file's %llu loss scalers were loaded", load->n_scalers,
                      (unsigned long long)load->file_scalers);
    if (load->n_foreign && !is_sharded(load->context)) /* else they are other ranks' */
        amp__text_add(&text, "%sleft out: %zu moment%s of optimizers that this context does not have",
                      text.length ? "; " : "", load->n_foreign, AMP__S(load->n_foreign));
    if (text.length) (void)amp__warn(load->context, "the loaded state was saved under another configuration: %s", line);
}

static amp_status apply_state(struct load *load) {
    const bool same_mode = amp__state_same_mode(load->policy, &load->parts->header);
    AMP_TRY(amp__places_flush(load->devices)); /* pending work would undo it */
    AMP_TRY(copy_all_to_devices(load));
    for (size_t i = 0; i < load->n_targets; i++)
        if (load->targets[i].tensor && !load->targets[i].place) set_parameter(&load->targets[i]);
    for (size_t i = 0; i < load->n_targets; i++)
        if (load->targets[i].tensor && load->targets[i].codes && !load->targets[i].place)
            encode_into(&load->targets[i]);
    for (size_t i = 0; i < load->n_owns; i++) load->owns[i].state->steps = load->steps[i];
    /* the elements changed and the host's versions did not */
    amp__cache_drop(amp__cache_of(load->context), false);
    report_load(load, same_mode);
    for (uint32_t i = 0; same_mode && i < load->n_scalers; i++)
        amp__state_set_scaler(&load->brackets->list[i], load->policy, &load->scalers[i]);
    return tell_devices(load);
}

/* Parts of one save have the same loss scalers, to the count of their brackets. */
static amp_status compare_scalers(const struct load *load, const struct part *part) {
    struct amp__state_scaler *scalers;
    size_t n;
    uint64_t in_file;
    AMP_TRY(amp__state_get_scalers(load->brackets, &part->header, &scalers, &n, &in_file));
    const bool same = n == load->n_scalers && in_file == load->file_scalers &&
                      !memcmp(scalers, load->scalers, n * sizeof *scalers);
    amp__free(scalers);
    AMP_RETURN_IF(!same, AMP_ERR_CONFLICT,
                  "its loss scalers are not those of the first part: the parts are not of one save");
    return AMP_OK;
}

static amp_status load_safetensors(struct load *load) {
    for (size_t i = 0; i < load->n_parts; i++) AMP_TRY(amp__load_of_part(load, i, read_header(&load->parts[i])));
    AMP_TRY(amp__state_get_scalers(load->brackets, &load->parts->header, &load->scalers, &load->n_scalers,
                                   &load->file_scalers));
    for (size_t i = 1; i < load->n_parts; i++)
        AMP_TRY(amp__load_of_part(load, i, compare_scalers(load, &load->parts[i])));
    AMP_TRY(amp__load_match(load));
    AMP_TRY(read_data(load));
    return apply_state(load);
}

/* ---- Apex's form ---- */

static void apply_apex(const struct load *load, const struct amp__apex_scaler *scalers, size_t n) {
    const struct amp__properties *properties = &load->policy->properties;
    size_t used = 0, others = 0;
    for (size_t i = 0; i < n; i++) {
        used += scalers[i].index < properties->num_losses;
        others += scalers[i].loss_scale != properties->scaler.init_scale;
    }
    if (!properties->scaler.dynamic && others)
        (void)amp__warn(load->context, "the loaded state has other loss scales than the static one, %g, which stays",
                        (double)properties->scaler.init_scale);
    else if (used != n || n != properties->num_losses)
        (void)amp__warn(load->context, "the loaded state has %zu loss scaler%s and the context %u: %zu were loaded, "
                        "by the index in their keys", n, AMP__S(n),
                        (unsigned)properties->num_losses, used);
    for (size_t i = 0; i < n; i++) {
        if (scalers[i].index >= properties->num_losses) continue;
        struct amp__bracket *bracket = &load->brackets->list[scalers[i].index];
        struct amp__state_scaler scaler = { .brackets = bracket->record.brackets, .skipped = bracket->record.skipped };
        amp__scaler_init(&scaler.state, &properties->scaler);
        scaler.state.scale = scaler.state.next_scale = scalers[i].loss_scale;
        scaler.state.unskipped = scalers[i].unskipped;
        amp__state_set_scaler(bracket, load->policy, &scaler);
    }
}

static amp_status load_apex(const struct load *load, const struct amp__source *source) {
    void *owned;
    const void *text;
    struct amp__apex_scaler *scalers;
    size_t n;
    AMP_RETURN_IF(source->size > AMP__STATE_MAX_TEXT, AMP_ERR_BAD_FILE,
                  "a state in text has %u bytes at most, this has %llu", (unsigned)AMP__STATE_MAX_TEXT,
                  (unsigned long long)source->size);
    AMP_TRY(amp__source_get(source, 0, source->size, &owned, &text));
    const amp_status status = amp__apex_parse(text, (size_t)source->size, &scalers, &n);
    amp__free(owned);
    if (status != AMP_OK) return status;
    apply_apex(load, scalers, n);
    amp__free(scalers);
    return tell_devices(load);
}

/* Text begins with a brace or a blank and has no zero byte; the length of any header below 2^56 bytes has one. */
static amp_status is_text(const struct amp__source *source, bool *text) {
    void *owned;
    const void *bytes;
    const size_t n = source->size < 8 ? (size_t)source->size : 8;
    AMP_TRY(amp__source_get(source, 0, n, &owned, &bytes));
    *text = n && strchr("{ \t\r\n", *(const char *)bytes) && !memchr(bytes, 0, n);
    amp__free(owned);
    return AMP_OK;
}

static void end_load(struct load *load) {
    for (size_t i = 0; i < load->n_parts; i++) {
        amp__header_clear(&load->parts[i].header);
        amp__free(load->parts[i].owned_header);
    }
    for (size_t i = 0; i < load->n_targets; i++)
        if (is_of_optimizer(&load->targets[i])) amp__free((void *)(uintptr_t)load->targets[i].name);
    amp__free(load->parts);
    amp__free(load->targets);
    amp__free(load->steps);
    amp__state_owns_free(load->owns, load->n_owns);
    amp__free(load->scalers);
    amp__free(load->owned_data);
}

amp_status amp__state_apply(amp_context *context, const struct amp__source *sources, size_t n) {
    bool text;
    AMP_TRY(amp__home_refuse_capture(context, "loading a state", "Load before the capture or after it"));
    AMP_TRY(amp__home_read_all(context));
    amp__unseen_steps_forget(context);
    AMP_TRY(is_text(sources, &text));
    struct load load = { .context = context,
                         .policy = amp__policy_of(context),
                         .params = amp__params_of(context),
                         .brackets = amp__brackets_of(context),
                         .devices = amp__devices_of(context),
                         .n_parts = n };
    if (text && n == 1) return load_apex(&load, sources);
    load.parts = amp__alloc(n, sizeof *load.parts);
    if (!load.parts) return amp__fail_memory();
    for (size_t i = 0; i < n; i++) load.parts[i].source = &sources[i];
    const amp_status status = load_safetensors(&load);
    end_load(&load);
    return status;
}
