/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The work of one thread on one group of elements: its elements, and their loads and stores. For nvcc and for C: the
 * tests run groups on the processor with the same functions as a GPU.
 *
 * The type of a span is tested once a group. A group moved 16 bytes at a time (`wide`) is first loaded as words, so
 * that a kernel can load the next one before it stores this one.
 */
#ifndef AMP_KERNELS_CUDA_GROUP_H
#define AMP_KERNELS_CUDA_GROUP_H

#include "kernels/cuda/table.h"
#include "kernels/cuda/words.h"

/* ---- which elements ---- */

/* CUDA_GROUP elements: four from `first` on and four from `second` on; or, if count is less, so many from
 * `first` on. */
struct cuda_range {
    uint64_t first, second;
    uint32_t count;
};

CUDA_BOTH uint32_t cuda_head(const struct cuda_chunk *chunk, uint32_t shape) {
    const uint32_t head = chunk->begin ? 0 : CUDA_HEAD(shape);
    return head < chunk->count ? head : chunk->count;
}

/* Returns the number of groups of a chunk: whole ones, then the rest, then the head. */
CUDA_BOTH uint32_t cuda_groups(const struct cuda_chunk *chunk, uint32_t shape) {
    const uint32_t head = cuda_head(chunk, shape), body = chunk->count - head;
    return body / CUDA_GROUP + (body % CUDA_GROUP != 0) + (head != 0);
}

/* Whole tiles of which every group is moved 16 bytes at a time: the first groups of the chunk. */
CUDA_BOTH uint32_t cuda_tiles(const struct cuda_chunk *chunk, uint32_t shape) {
    return CUDA_EVEN(shape) ? (chunk->count - cuda_head(chunk, shape)) / CUDA_TILE : 0;
}

/* A thread's group of the whole tile that begins at element `begin`. Thread after thread moves 16 bytes at a time of
 * the longer type, with no gap between them: unless all spans have 16 bits, a thread's halves lie half a tile apart. */
CUDA_BOTH struct cuda_range cuda_range_in_tile(uint64_t begin, uint32_t shape, uint32_t thread) {
    struct cuda_range at;
    at.first = begin + thread * (CUDA_SPREAD(shape) ? CUDA_GROUP / 2 : CUDA_GROUP);
    at.second = at.first + (CUDA_SPREAD(shape) ? CUDA_TILE / 2 : CUDA_GROUP / 2);
    at.count = CUDA_GROUP;
    return at;
}

/* Group `index`. */
CUDA_BOTH struct cuda_range cuda_range_of(const struct cuda_chunk *chunk, uint32_t shape, uint32_t index) {
    const uint32_t head = cuda_head(chunk, shape), body = chunk->count - head, whole = body / CUDA_GROUP;
    const uint32_t tile = index / CUDA_THREADS;
    const uint64_t begin = chunk->begin + head;
    struct cuda_range at;
    if ((tile + 1) * CUDA_TILE <= body)
        return cuda_range_in_tile(begin + (uint64_t)tile * CUDA_TILE, shape, index % CUDA_THREADS);
    if (index < whole) {
        at.first = begin + (uint64_t)index * CUDA_GROUP;
        at.count = CUDA_GROUP;
    } else {
        const int is_rest = index == whole && body % CUDA_GROUP != 0;
        at.first = is_rest ? begin + (uint64_t)whole * CUDA_GROUP : chunk->begin;
        at.count = is_rest ? body % CUDA_GROUP : head;
    }
    at.second = at.first + CUDA_GROUP / 2;
    return at;
}

/* Element i of a group. */
CUDA_BOTH uint64_t cuda_element(const struct cuda_range *at, uint32_t i) {
    return i < CUDA_GROUP / 2 ? at->first + i : at->second + i - CUDA_GROUP / 2;
}

/* ---- a tensor, taken out of the table ---- */

struct cuda_tensor {
    unsigned char *data[CUDA_SPANS];
    uint64_t size; /* elements */
    uint32_t shape;
};

/* The elements of a tensor: its last chunk ends with it. */
CUDA_BOTH uint64_t cuda_elements_of(const struct cuda_table *table, uint32_t tensor) {
    const uint32_t end = table->first_chunks[tensor + 1];
    if (end == table->first_chunks[tensor]) return 0;
    return table->chunks[end - 1].begin + table->chunks[end - 1].count;
}

CUDA_BOTH struct cuda_tensor cuda_tensor_of(const struct cuda_table *table, uint32_t tensor, int n_spans) {
    struct cuda_tensor t;
    t.shape = table->shapes[tensor];
    t.size = cuda_elements_of(table, tensor);
    CUDA_UNROLL
    for (int k = 0; k < CUDA_SPANS; k++) {
        t.data[k] = k < n_spans ? (unsigned char *)(uintptr_t)table->addresses[(uint64_t)k * table->n_tensors + tensor]
                                : 0;
#ifdef __CUDA_ARCH__
        if (k < n_spans) __builtin_assume(__isGlobal(t.data[k])); /* no other memory is tried at each access */
#endif
    }
    return t;
}

/* ---- memory ---- */

CUDA_BOTH int cuda_is_wide(const struct cuda_tensor *t, int k, const struct cuda_range *at) {
    return CUDA_WIDE(t->shape, k) && at->count == CUDA_GROUP;
}

/* A wide group of a span of 32 or 16 bits, as it lies in memory; of 16 bits it is the first half of the words. */
CUDA_BOTH void cuda_fetch(uint32_t w[CUDA_GROUP], const struct cuda_tensor *t, int k, const struct cuda_range *at) {
    const unsigned char *data = t->data[k];
    if (CUDA_TYPE(t->shape, k) == AMP_FLOAT32) {
        cuda_load16(w, data + 4 * at->first);
        cuda_load16(w + 4, data + 4 * at->second);
    } else if (CUDA_SPREAD(t->shape)) {
        cuda_load8(w, data + 2 * at->first);
        cuda_load8(w + 2, data + 2 * at->second);
    } else {
        cuda_load16(w, data + 2 * at->first);
    }
}

CUDA_BOTH void cuda_put(const uint32_t w[CUDA_GROUP], const struct cuda_tensor *t, int k,
                        const struct cuda_range *at) {
    unsigned char *data = t->data[k];
    if (CUDA_TYPE(t->shape, k) == AMP_FLOAT32) {
        cuda_store16(data + 4 * at->first, w);
        cuda_store16(data + 4 * at->second, w + 4);
    } else if (CUDA_SPREAD(t->shape)) {
        cuda_store8(data + 2 * at->first, w);
        cuda_store8(data + 2 * at->second, w + 2);
    } else {
        cuda_store16(data + 2 * at->first, w);
    }
}

/* Loads elements of span k as floats or doubles, with 0 behind the last one. Loops have constant lengths, so that a
 * group stays in registers. Spans of doubles are never loaded as floats. */
CUDA_BOTH float cuda_load_one_f32(const unsigned char *data, uint32_t type, uint64_t i) {
    return type == AMP_FLOAT32 ? ((const float *)data)[i] : cuda_low_to_f32(type, ((const uint16_t *)data)[i]);
}

CUDA_BOTH double cuda_load_one_f64(const unsigned char *data, uint32_t type, uint64_t i) {
    return type == AMP_FLOAT64 ? ((const double *)data)[i] : amp__f32_to_f64(cuda_load_one_f32(data, type, i));
}

CUDA_BOTH void cuda_load_f32(float v[CUDA_GROUP], const struct cuda_tensor *t, int k, const struct cuda_range *at) {
    const uint32_t type = CUDA_TYPE(t->shape, k);
    const unsigned char *data = t->data[k];
    if (cuda_is_wide(t, k, at)) {
        uint32_t w[CUDA_GROUP];
        cuda_fetch(w, t, k, at);
        cuda_widen(v, w, type, CUDA_GROUP);
        return;
    }
    CUDA_UNROLL
    for (uint32_t i = 0; i < CUDA_GROUP; i++)
        v[i] = i < at->count ? cuda_load_one_f32(data, type, cuda_element(at, i)) : 0.0f;
}

CUDA_BOTH void cuda_load_f64(double v[CUDA_GROUP], const struct cuda_tensor *t, int k, const struct cuda_range *at) {
    const uint32_t type = CUDA_TYPE(t->shape, k);
    const unsigned char *data = t->data[k];
    if (!cuda_is_wide(t, k, at) || type != AMP_FLOAT64) {
        CUDA_UNROLL
        for (uint32_t i = 0; i < CUDA_GROUP; i++)
            v[i] = i < at->count ? cuda_load_one_f64(data, type, cuda_element(at, i)) : 0.0;
        return;
    }
    CUDA_UNROLL
    for (int i = 0; i < CUDA_GROUP; i += 2) cuda_load16(v + i, (const double *)data + cuda_element(at, (uint32_t)i));
}

/* Stores an element in the type of the span. Returns 1 if it is infinite or NaN there. */
CUDA_BOTH uint32_t cuda_store_one_f32(unsigned char *data, uint32_t type, uint64_t i, float value) {
    if (type == AMP_FLOAT32) {
        ((float *)data)[i] = value;
    } else if (type == AMP_FLOAT64) {
        ((double *)data)[i] = amp__f32_to_f64(value);
    } else {
        const uint16_t low = cuda_f32_to_low(type, value);
        ((uint16_t *)data)[i] = low;
        return cuda_nonfinite_low(type, low);
    }
    return cuda_nonfinite_f32(value);
}

CUDA_BOTH uint32_t cuda_store_f32(const float v[CUDA_GROUP], const struct cuda_tensor *t, int k,
                                  const struct cuda_range *at) {
    const uint32_t type = CUDA_TYPE(t->shape, k);
    unsigned char *data = t->data[k];
    uint32_t nonfinite = 0;
    if (cuda_is_wide(t, k, at) && type != AMP_FLOAT64) {
        uint32_t w[CUDA_GROUP];
        cuda_narrow(w, v, type, CUDA_GROUP);
        cuda_put(w, t, k, at);
        return cuda_nonfinite_words(w, type);
    }
    CUDA_UNROLL
    for (uint32_t i = 0; i < CUDA_GROUP; i++)
        if (i < at->count) nonfinite |= cuda_store_one_f32(data, type, cuda_element(at, i), v[i]);
    return nonfinite;
}

/* Half a group: `count` elements from `first` on; of a whole one four, which lie together in every layout. */
struct cuda_half {
    uint64_t first;
    uint32_t count, is_whole;
};

CUDA_BOTH struct cuda_half cuda_half_of(const struct cuda_range *at, uint32_t done) {
    const uint32_t left = at->count - done;
    struct cuda_half half;
    half.first = done ? at->second : at->first;
    half.count = left < CUDA_HALF ? left : CUDA_HALF;
    half.is_whole = at->count == CUDA_GROUP;
    return half;
}

/* Half a group of span k as it lies in memory: of 16 bits two elements a word. 0 behind the last one. Nothing waits for
 * the loads, so that those of the next span are under way with them. */
CUDA_BOTH void cuda_fetch_half32(uint32_t w[CUDA_HALF], const struct cuda_tensor *t, int k,
                                 const struct cuda_half *at) {
    const uint32_t *data = (const uint32_t *)t->data[k] + at->first;
    if (CUDA_WIDE(t->shape, k) && at->is_whole) {
        cuda_load16(w, data);
        return;
    }
    CUDA_UNROLL
    for (uint32_t i = 0; i < CUDA_HALF; i++) w[i] = i < at->count ? data[i] : 0;
}

CUDA_BOTH void cuda_fetch_half16(uint32_t w[CUDA_HALF / 2], const struct cuda_tensor *t, int k,
                                 const struct cuda_half *at) {
    const uint16_t *data = (const uint16_t *)t->data[k] + at->first;
    if (CUDA_WIDE(t->shape, k) && at->is_whole) {
        cuda_load8(w, data);
        return;
    }
    CUDA_UNROLL
    for (uint32_t i = 0; i < CUDA_HALF; i += 2) {
        const uint32_t first = i < at->count ? data[i] : 0, second = i + 1 < at->count ? data[i + 1] : 0;
        w[i / 2] = first | second << 16;
    }
}

/* Of a type of at most 32 bits. */
CUDA_BOTH void cuda_load_half(float v[CUDA_HALF], const struct cuda_tensor *t, int k, uint32_t type,
                              const struct cuda_half *at) {
    uint32_t w[CUDA_HALF];
    if (type == AMP_FLOAT32) {
        cuda_fetch_half32(w, t, k, at);
        cuda_widen(v, w, AMP_FLOAT32, CUDA_HALF);
    } else {
        cuda_fetch_half16(w, t, k, at);
        cuda_widen(v, w, type, CUDA_HALF);
    }
}

CUDA_BOTH void cuda_store_half(const float v[CUDA_HALF], const struct cuda_tensor *t, int k, uint32_t type,
                               const struct cuda_half *at) {
    unsigned char *data = t->data[k];
    uint32_t w[CUDA_HALF];
    if (CUDA_WIDE(t->shape, k) && at->is_whole) {
        cuda_narrow(w, v, type, CUDA_HALF);
        if (type == AMP_FLOAT32) cuda_store16(data + 4 * at->first, w);
        else cuda_store8(data + 2 * at->first, w);
        return;
    }
    CUDA_UNROLL
    for (uint32_t i = 0; i < CUDA_HALF; i++) {
        if (i < at->count && type == AMP_FLOAT32) ((float *)data)[at->first + i] = v[i];
        else if (i < at->count) ((uint16_t *)data)[at->first + i] = cuda_f32_to_low(type, v[i]);
    }
}

CUDA_BOTH uint32_t cuda_store_one_f64(unsigned char *data, uint32_t type, uint64_t i, double value) {
    if (type == AMP_FLOAT64) {
        ((double *)data)[i] = value;
        return cuda_nonfinite_f64(value);
    }
    if (type == AMP_FLOAT32) return cuda_store_one_f32(data, type, i, amp__f64_to_f32(value));
    const uint16_t low = cuda_f64_to_low(type, value);
    ((uint16_t *)data)[i] = low;
    return cuda_nonfinite_low(type, low);
}

CUDA_BOTH uint32_t cuda_store_f64(const double v[CUDA_GROUP], const struct cuda_tensor *t, int k,
                                  const struct cuda_range *at) {
    const uint32_t type = CUDA_TYPE(t->shape, k);
    unsigned char *data = t->data[k];
    uint32_t nonfinite = 0;
    if (!cuda_is_wide(t, k, at) || type != AMP_FLOAT64) {
        CUDA_UNROLL
        for (uint32_t i = 0; i < CUDA_GROUP; i++)
            if (i < at->count) nonfinite |= cuda_store_one_f64(data, type, cuda_element(at, i), v[i]);
        return nonfinite;
    }
    CUDA_UNROLL
    for (int i = 0; i < CUDA_GROUP; i += 2) cuda_store16((double *)data + cuda_element(at, (uint32_t)i), v + i);
    CUDA_UNROLL
    for (int i = 0; i < CUDA_GROUP; i++) nonfinite |= cuda_nonfinite_f64(v[i]);
    return nonfinite;
}

#endif
