/* SPDX-License-Identifier: Apache-2.0 */
/* A context as the content of a state file. Tensors are streamed from where they lie, never gathered. */
#include "amp_optim.h"
#include "amp_state.h"
#include "bracket/bracket.h"
#include "bracket/fused.h"
#include "bracket/home.h"
#include "context/devices.h"
#include "context/optimizer.h"
#include "context/params.h"
#include "context/parts.h"
#include "state/dict.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool amp__state_holds(const struct amp__param *param) {
    return param->host->view && (param->dtype == AMP_FLOAT32 || amp__is_low(param->dtype));
}

amp_status amp__state_elements(const struct amp__param *param, struct amp__elements *now) {
    AMP_TRY(amp__param_block(param, param->tensor, param->name, now));
    AMP_RETURN_IF(now->size != param->size || now->dtype != param->dtype, AMP_ERR_WRONG_STATE,
                  "%s changed from %llu %s to %llu %s elements behind libamp's back: change its values, not its "
                  "storage",
                  param->name, (unsigned long long)param->size, amp__dtype_name(param->dtype),
                  (unsigned long long)now->size, amp__dtype_name(now->dtype));
    return AMP_OK;
}

/* ---- tensors ---- */

static int by_name(const void *a, const void *b) {
    const struct amp__param *x = *(struct amp__param *const *)a, *y = *(struct amp__param *const *)b;
    const int order = strcmp(x->name, y->name);
    return order ? order : x->index < y->index ? -1 : x->index > y->index;
}

static bool is_saved(const struct amp__param *param) { return param->in_optimizer && amp__state_holds(param); }

static amp_status check_names(const struct amp__params *params) {
    struct amp__param **sorted = amp__alloc(params->n, sizeof *sorted);
    if (!sorted) return amp__fail_memory();
    size_t n = 0;
    for (size_t i = 0; i < params->n; i++)
        if (is_saved(params->list[i])) sorted[n++] = params->list[i];
    qsort(sorted, n, sizeof *sorted, by_name);
    amp_status status = AMP_OK;
    for (size_t i = 1; i < n && status == AMP_OK; i++)
        if (!strcmp(sorted[i - 1]->name, sorted[i]->name))
            status = amp__fail(AMP_ERR_CONFLICT,
                               "parameters %u and %u (handles %p and %p) are both named %s: a state needs names that "
                               "tell them apart", (unsigned)sorted[i - 1]->index, (unsigned)sorted[i]->index,
                               sorted[i - 1]->tensor, sorted[i]->tensor, sorted[i]->name);
    amp__free(sorted);
    return status;
}

static amp_status add_tensor(struct amp__param *param, struct amp__header *header, struct amp__image *image) {
    struct amp__elements now;
    AMP_TRY(amp__master_reconcile(param, true));
    AMP_TRY(amp__state_elements(param, &now));
    const amp_status status = amp__header_add(header, param->name, now.shape, now.ndim, now.size);
    if (status != AMP_OK) return amp__fail_prefix(status, "%s", param->name);
    const void *fp32 = param->has_master ? param->master.fp32.data : NULL;
    image->tensors[image->n_tensors++] =
        fp32 ? (struct amp__image_tensor){ fp32, param->size, AMP_FLOAT32, param->place, NULL, NULL, false }
             : (struct amp__image_tensor){ now.data, now.size, now.dtype, param->place, param->master.rest.data, NULL,
                                           false };
    return AMP_OK;
}

/* Moments have their parameter's shape, but a scalar a tensor. */
static amp_status add_scales(const char *moment, const struct amp__optim_state *state, int k,
                             struct amp__header *header, struct amp__image *image) {
    const int64_t blocks = (int64_t)amp__optim_blocks(state->size);
    char *name = amp__state_scale_name(moment);
    if (!name) return amp__fail_memory();
    const amp_status status = amp__header_add(header, name, &blocks, 1, (uint64_t)blocks);
    amp__free(name);
    AMP_TRY(status);
    image->tensors[image->n_tensors++] =
        (struct amp__image_tensor){ state->scales[k], (uint64_t)blocks, AMP_FLOAT32, state->place, NULL, NULL, false };
    return AMP_OK;
}

static amp_status add_moments(const struct amp__state_own *own, struct amp__header *header, struct amp__image *image) {
    struct amp__elements now;
    const struct amp__optim_state *state = own->state;
    AMP_TRY(amp__state_put_steps(header, own));
    for (int k = 0; k < AMP__MOMENTS; k++) {
        const uint64_t size = amp__optim_moment_size(own->rule, k, state->size);
        const int64_t one = 1;
        const uint8_t *const codes = k < 2 ? state->codes[k] : NULL;
        if (!state->moments[k] && !codes) continue;
        char *name = amp__state_moment_name(own, k);
        if (!name) return amp__fail_memory();
        amp_status status = amp__param_layout(own->param, own->param->tensor, own->param->name, &now);
        if (status == AMP_OK && size == now.size) status = amp__header_add(header, name, now.shape, now.ndim, size);
        else if (status == AMP_OK) status = amp__header_add(header, name, &one, 1, size);
        if (status == AMP_OK)
            image->tensors[image->n_tensors++] =
                codes ? (struct amp__image_tensor){ codes, size, AMP_DTYPE_OTHER, state->place, NULL, state->scales[k],
                                                    k == 1 }
                      : (struct amp__image_tensor){ state->moments[k], size, AMP_FLOAT32, state->place, NULL, NULL,
                                                    false };
        if (status == AMP_OK && codes) status = add_scales(name, state, k, header, image);
        amp__free(name);
        AMP_TRY(status);
    }
    return AMP_OK;
}

static amp_status add_tensors(amp_context *context, struct amp__header *header, struct amp__image *image) {
    struct amp__params *params = amp__params_of(context);
    struct amp__devices *devices = amp__devices_of(context);
    const struct amp__optimizers *optimizers = amp__optimizers_of(context);
    struct amp__state_own *owns;
    size_t n;
    AMP_TRY(check_names(params));
    for (size_t i = 0; i < optimizers->n; i++)
        if (optimizers->list[i].optim) AMP_TRY(amp__fused_device_steps(&optimizers->list[i], false));
    AMP_TRY(amp__state_owns(context, &owns, &n));
    image->tensors = amp__alloc(params->n + 2 * AMP__MOMENTS * n, sizeof *image->tensors); /* and scales */
    amp_status status = image->tensors ? AMP_OK : amp__fail_memory();
    for (size_t i = 0; i < params->n && status == AMP_OK; i++)
        if (is_saved(params->list[i])) status = add_tensor(params->list[i], header, image);
    for (size_t i = 0; i < n && status == AMP_OK; i++) status = add_moments(&owns[i], header, image);
    amp__state_owns_free(owns, n);
    if (status == AMP_OK) return amp__places_flush(devices); /* the reconciled values */
    amp__places_drop(devices);
    return status;
}

enum { BLOCK = 512, PIECE = 1 << 20 }; /* on small stacks */

static amp_status write_widened(const struct amp__image_tensor *tensor, amp__write_fn *write, void *to) {
    float wide[BLOCK];
    for (uint64_t at = 0; at < tensor->size; at += BLOCK) {
        const uint64_t n = tensor->size - at < BLOCK ? tensor->size - at : BLOCK;
        const amp_span dst = { wide, n, AMP_FLOAT32, 0 };
        const amp_span src = { (char *)(uintptr_t)tensor->data + 2 * at, n, tensor->dtype, 0 };
        AMP_TRY(amp_cast_list(&dst, &src, 1));
        AMP_TRY(write(to, wide, (size_t)n * sizeof *wide));
    }
    return AMP_OK;
}

/* Writes a tensor in device memory through a block of ours, piece by piece. */
static amp_status write_from(const struct amp__image_tensor *tensor, amp__write_fn *write, void *to) {
    const size_t width = amp__dtype_size(tensor->dtype);
    void *piece = amp__alloc(PIECE, width);
    amp_status status = piece ? AMP_OK : amp__fail_memory();
    for (uint64_t at = 0; at < tensor->size && status == AMP_OK; at += PIECE) {
        const uint64_t n = tensor->size - at < PIECE ? tensor->size - at : PIECE;
        const struct amp__image_tensor part = { piece, n, tensor->dtype, NULL, NULL, NULL, false };
        status = amp__place_out(tensor->place, piece, (const char *)tensor->data + at * width, n * width);
        if (status != AMP_OK) break;
        status = part.dtype == AMP_FLOAT32 ? write(to, piece, (size_t)n * width) : write_widened(&part, write, to);
    }
    amp__free(piece);
    return status;
}

/* Split masters, piece by piece. The remainder of a piece has the layout of a whole one. */
struct joined {
    float wide[PIECE];
    uint16_t low[PIECE], rest[PIECE + PIECE / 16];
};

static amp_status fetch_bytes(const struct amp__place *place, void *to, const char *from, size_t bytes) {
    if (place) return amp__place_out(place, to, from, bytes);
    memcpy(to, from, bytes);
    return AMP_OK;
}

static amp_status write_part(const struct amp__image_tensor *tensor, uint64_t at, size_t n, struct joined *piece,
                             amp__write_fn *write, void *to) {
    const char *low = tensor->data, *rest = tensor->rest, *ties = rest + 4 * ((tensor->size + 1) / 2);
    const size_t words = (n + 1) / 2 * 2; /* the ties' place in a remainder of n */
    void *const remainder = piece->rest;
    const amp_span dst = { piece->wide, n, AMP_FLOAT32, 0 }, src = { piece->low, n, AMP_BFLOAT16, 0 };
    AMP_TRY(fetch_bytes(tensor->place, piece->low, low + 2 * at, 2 * n));
    AMP_TRY(fetch_bytes(tensor->place, piece->rest, rest + 2 * at, 2 * n));
    AMP_TRY(fetch_bytes(tensor->place, piece->rest + words, ties + at / 8, 4 * ((n + 31) / 32)));
    AMP_TRY(amp_join_list(&dst, &src, &remainder, 1));
    return write(to, piece->wide, n * sizeof(float));
}

static amp_status write_joined(const struct amp__image_tensor *tensor, amp__write_fn *write, void *to) {
    struct joined *piece = amp__alloc(1, sizeof *piece);
    amp_status status = piece ? AMP_OK : amp__fail_memory();
    for (uint64_t at = 0; at < tensor->size && status == AMP_OK; at += PIECE) {
        const uint64_t left = tensor->size - at;
        status = write_part(tensor, at, left < PIECE ? (size_t)left : PIECE, piece, write, to);
    }
    amp__free(piece);
    return status;
}

/* Moments in 8 bits, piece by piece: their values. */
struct decoded {
    float values[PIECE], scales[PIECE / AMP_STATE_BLOCK];
    uint8_t codes[PIECE];
};

static amp_status write_decoded_part(const struct amp__image_tensor *tensor, uint64_t at, uint64_t n,
                                     struct decoded *piece, amp__write_fn *write, void *to) {
    const size_t bytes = amp__optim_blocks(n) * sizeof(float);
    AMP_TRY(fetch_bytes(tensor->place, piece->codes, (const char *)tensor->data + at, (size_t)n));
    AMP_TRY(fetch_bytes(tensor->place, piece->scales, (const void *)(tensor->scales + at / AMP_STATE_BLOCK), bytes));
    AMP_TRY(amp_decode_moment(piece->values, piece->codes, piece->scales, n, tensor->second));
    return write(to, piece->values, (size_t)n * sizeof *piece->values);
}

static amp_status write_decoded(const struct amp__image_tensor *tensor, amp__write_fn *write, void *to) {
    struct decoded *piece = amp__alloc(1, sizeof *piece);
    amp_status status = piece ? AMP_OK : amp__fail_memory();
    for (uint64_t at = 0; at < tensor->size && status == AMP_OK; at += PIECE) {
        const uint64_t left = tensor->size - at;
        status = write_decoded_part(tensor, at, left < PIECE ? left : PIECE, piece, write, to);
    }
    amp__free(piece);
    return status;
}

static amp_status write_tensors(const struct amp__image *image, amp__write_fn *write, void *to) {
    for (size_t i = 0; i < image->n_tensors; i++) {
        const struct amp__image_tensor *tensor = &image->tensors[i];
        if (tensor->rest) AMP_TRY(write_joined(tensor, write, to));
        else if (tensor->scales) AMP_TRY(write_decoded(tensor, write, to));
        else if (tensor->place) AMP_TRY(write_from(tensor, write, to));
        else if (tensor->dtype != AMP_FLOAT32) AMP_TRY(write_widened(tensor, write, to));
        else if (tensor->size) AMP_TRY(write(to, tensor->data, (size_t)tensor->size * sizeof(float)));
    }
    return AMP_OK;
}

static amp_status add_to_crc(void *user, const void *data, size_t bytes) {
    amp__crc64_add(user, data, bytes);
    return AMP_OK;
}

/* ---- the whole ---- */

static amp_status fill_safetensors(amp_context *context, struct amp__header *header, bool without_data,
                                   struct amp__image *image) {
    AMP_TRY(amp__header_put(header, "libamp.format", "1"));
    AMP_TRY(amp__header_put(header, "libamp.version", amp_version()));
    AMP_TRY(amp__state_put_config(amp__policy_of(context), header));
    AMP_TRY(amp__state_put_scalers(amp__brackets_of(context), header));
    AMP_TRY(amp__state_put_seeds(header, amp__optimizers_of(context)));
    AMP_TRY(add_tensors(context, header, image));
    struct amp__crc64 *crc = amp__alloc(1, sizeof *crc); /* too much for a small stack */
    if (!crc) return amp__fail_memory();
    amp__crc64_init(crc);
    amp_status status = without_data ? AMP_OK : write_tensors(image, add_to_crc, crc);
    const uint64_t sum = amp__crc64_value(crc);
    amp__free(crc);
    if (status == AMP_OK) status = amp__header_bytes(header, sum, &image->block, &image->block_bytes);
    if (status != AMP_OK) return status;
    image->bytes = image->block_bytes + header->data_bytes;
    return AMP_OK;
}

static amp_status make_safetensors(amp_context *context, bool without_data, struct amp__image *image) {
    struct amp__header header;
    AMP_TRY(amp__header_init(&header));
    const amp_status status = fill_safetensors(context, &header, without_data, image);
    amp__header_clear(&header);
    return status;
}

static amp_status make_apex(const struct amp__brackets *brackets, struct amp__image *image) {
    const uint32_t n = brackets->n;
    struct amp__apex_scaler *scalers = amp__alloc(n, sizeof *scalers);
    if (!scalers) return amp__fail_memory();
    for (uint32_t i = 0; i < n; i++) {
        const struct amp__scaler *state = &brackets->list[i].scaler;
        scalers[i] = (struct amp__apex_scaler){ i, state->scale, state->unskipped };
    }
    const amp_status status = amp__apex_text(scalers, n, &image->block, &image->block_bytes);
    amp__free(scalers);
    image->bytes = image->block_bytes;
    return status;
}

amp_status amp__image_make(amp_context *context, amp_state_format format, bool without_data, struct amp__image *out) {
    struct amp__image image = { .block = NULL };
    AMP_TRY(amp__home_refuse_capture(context, "saving a state", "Save before the capture or after it"));
    AMP_TRY(amp__home_read_all(context));
    const amp_status status = format == AMP_STATE_APEX ? make_apex(amp__brackets_of(context), &image)
                                                       : make_safetensors(context, without_data, &image);
    if (status != AMP_OK) {
        amp__image_clear(&image);
        return status;
    }
    *out = image;
    return AMP_OK;
}

amp_status amp__image_write(const struct amp__image *image, amp__write_fn *write, void *to) {
    AMP_TRY(write(to, image->block, image->block_bytes));
    return write_tensors(image, write, to);
}

void amp__image_clear(struct amp__image *image) {
    amp__free(image->block);
    amp__free(image->tensors);
    memset(image, 0, sizeof *image);
}
