/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that only a device can read: counted there, or copied to where it can be looked at. Both wait for the device,
 * in observed iterations alone; where a graph is being captured there is neither. */
#include "observe/observe.h"

static bool is_capturing(const struct amp__place *place) {
    bool capturing = true;
    return amp__place_capturing(place, &capturing) != AMP_OK || capturing;
}

/* *place NULL: the CPU can read it. False: nobody can. */
static bool find_place(const amp_context *context, const void *memory, struct amp__place **place) {
    amp_device where;
    *place = NULL;
    if (amp__places_where(context, memory, &where) != AMP_OK) return false;
    if (where.type == AMP__DEVICE_CUDA) *place = amp__place_on(context, where);
    return *place || where.type != AMP__DEVICE_CUDA;
}

/* ---- counted ---- */

/* Rounded to FP32, as an unscaled gradient is. */
static bool count_scaled(const amp_span *span, float factor, amp_statistics *out) {
    enum { CHUNK = 4096 };
    float chunk[CHUNK], unused = 0.0f;
    for (uint64_t at = 0; at < span->size; at += CHUNK) {
        const uint64_t size = span->size - at < CHUNK ? span->size - at : CHUNK;
        const amp_span from = { (char *)span->data + at * amp__dtype_size(span->dtype), size, span->dtype, 0 };
        const amp_span to = { chunk, size, AMP_FLOAT32, 0 };
        if (amp_scale_list(&to, &from, 1, factor, &unused) != AMP_OK) return false;
        amp__observe_count(&to, out);
    }
    return true;
}

bool amp__observe_statistics(struct amp__place *place, const amp_span *span, float factor, amp_statistics *out) {
    if (place) return !is_capturing(place) && amp__place_statistics(place, span, factor, out) == AMP_OK;
    return factor == 1.0f ? amp_statistics_list(span, 1, out) == AMP_OK : count_scaled(span, factor, out);
}

bool amp__observe_statistics_unknown(const amp_context *context, const amp_span *span, amp_statistics *out) {
    struct amp__place *place;
    return find_place(context, span->data, &place) && amp__observe_statistics(place, span, 1.0f, out);
}

/* ---- copied ---- */

bool amp__observe_reach(const struct amp__place *place, const void **memory, uint64_t bytes, void **copy) {
    *copy = NULL;
    if (!place) return true;
    if (is_capturing(place)) return false;
    void *block = amp__alloc_aligned((size_t)bytes);
    if (!block || amp__place_out(place, block, *memory, bytes) != AMP_OK) {
        amp__free(block);
        return false;
    }
    *memory = *copy = block;
    return true;
}

bool amp__observe_reach_unknown(const amp_context *context, const void **memory, uint64_t bytes, void **copy) {
    struct amp__place *place;
    *copy = NULL;
    return find_place(context, *memory, &place) && amp__observe_reach(place, memory, bytes, copy);
}
