/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/plan.h"

#include <stdlib.h>
#include <string.h>

/* ---- one tensor ---- */

static unsigned width_of(amp_dtype dtype) {
    static const uint8_t widths[] = { [AMP_FLOAT32] = 4, [AMP_FLOAT16] = 2, [AMP_BFLOAT16] = 2, [AMP_FLOAT64] = 8,
                                      [AMP_DTYPE_OTHER] = 1 /* codes */ };
    return (uint32_t)dtype < sizeof widths ? widths[dtype] : 0;
}

static uint64_t address_of(const amp_span *const lists[], uint32_t k, size_t i) {
    return lists[k] ? (uint64_t)(uintptr_t)lists[k][i].data : 0;
}

static bool on_boundary(uint64_t address, unsigned width, unsigned head) { return (address + head * width) % 16 == 0; }

/* How many spans could be moved 16 bytes at a time from element `head` on? */
static int count_wide(const amp_span *const lists[], uint32_t n_spans, size_t i, unsigned head) {
    int wide = 0;
    for (uint32_t k = 0; k < n_spans; k++) {
        const uint64_t address = address_of(lists, k, i);
        wide += address && on_boundary(address, width_of(lists[k][i].dtype), head);
    }
    return wide;
}

/* The shortest head with the most wide spans. */
static unsigned head_of(const amp_span *const lists[], uint32_t n_spans, size_t i) {
    unsigned best = 0;
    int most = count_wide(lists, n_spans, i, 0);
    for (unsigned head = 1; head < CUDA_GROUP; head++) {
        const int wide = count_wide(lists, n_spans, i, head);
        if (wide > most) most = wide, best = head;
    }
    return most ? best : 0;
}

static uint32_t shape_of(const amp_span *const lists[], uint32_t n_spans, size_t i) {
    const uint64_t size = lists[0][i].size;
    unsigned head = head_of(lists, n_spans, i);
    bool spread = false, even = true;
    uint32_t shape = 0;
    if (head + CUDA_GROUP > size) head = 0; /* too small for a group behind its head */
    for (uint32_t k = 0; k < n_spans; k++) {
        const uint64_t address = address_of(lists, k, i);
        if (!address) continue;
        const unsigned width = width_of(lists[k][i].dtype);
        const uint32_t wide = on_boundary(address, width, head);
        shape |= ((uint32_t)lists[k][i].dtype | wide << 3) << (4 * k);
        spread = spread || width > 2;
        even = even && wide && width < 8;
    }
    return shape | (uint32_t)head << 24 | (uint32_t)spread << 27 | (uint32_t)even << 28;
}

/* ---- is the plan still that of the lists? ---- */

static bool fail_plan(struct cuda_plan_error *error, amp_status status, const char *text, size_t span, size_t tensor) {
    *error = (struct cuda_plan_error){ status, text, span, tensor };
    return false;
}

struct parts { /* of a table, as offsets */
    size_t addresses, shapes, first_chunks, bytes;
};

static struct parts parts_of(uint32_t n_spans, size_t n, size_t n_chunks) {
    struct parts p;
    p.addresses = n_chunks * sizeof(struct cuda_chunk);
    p.shapes = p.addresses + n_spans * n * sizeof(uint64_t);
    p.first_chunks = p.shapes + n * sizeof(uint32_t);
    p.bytes = p.first_chunks + (n + 1) * sizeof(uint32_t);
    return p;
}

struct cuda_table cuda_plan_table(const struct cuda_plan *plan, const void *base) {
    const struct parts p = parts_of(plan->n_spans, plan->n_tensors, plan->n_chunks);
    const unsigned char *at = base;
    const struct cuda_table table = {
        (const void *)at, (const void *)(at + p.addresses), (const void *)(at + p.shapes),
        (const void *)(at + p.first_chunks), plan->n_tensors, plan->n_chunks,
    };
    return table;
}

static bool same_tensor(const struct cuda_plan *plan, const struct cuda_table *t, const amp_span *const lists[],
                        size_t i) {
    if (plan->sizes[i] != lists[0][i].size) return false;
    for (uint32_t k = 0; k < plan->n_spans; k++) {
        const uint64_t address = address_of(lists, k, i);
        if (t->addresses[k * (size_t)plan->n_tensors + i] != address) return false;
        if (address && CUDA_TYPE(t->shapes[i], k) != (uint32_t)lists[k][i].dtype) return false;
    }
    return true;
}

/* Returns the next tensor from i on with a changed size, type or address, or n. */
static size_t next_change(const struct cuda_plan *plan, const amp_span *const lists[], size_t i) {
    const struct cuda_table table = cuda_plan_table(plan, plan->table);
    while (i < plan->n_tensors && same_tensor(plan, &table, lists, i)) i++;
    return i;
}

/* An address that its type cannot have faults on a GPU, and takes the host's whole context with it. */
static bool check_tensor(const amp_span *const lists[], uint32_t n_spans, size_t i, struct cuda_plan_error *error) {
    for (uint32_t k = 0; k < n_spans; k++) {
        const uint64_t address = address_of(lists, k, i);
        if (address && address % width_of(lists[k][i].dtype))
            return fail_plan(error, AMP_ERR_INVALID_ARGUMENT, "is not aligned for its type", k, i);
    }
    return true;
}

/* *fits: whatever changed, from tensor *first on, the chunks stay. */
static bool check_changes(const struct cuda_plan *plan, const amp_span *const lists[], uint32_t n_spans, size_t n,
                          bool *fits, size_t *first, struct cuda_plan_error *error) {
    *fits = plan->table && plan->n_spans == n_spans && plan->n_tensors == n;
    *first = *fits ? next_change(plan, lists, 0) : n;
    for (size_t i = *first; *fits && i < n; i = next_change(plan, lists, i + 1)) {
        const uint32_t shape = cuda_plan_table(plan, plan->table).shapes[i];
        if (!check_tensor(lists, n_spans, i, error)) return false;
        *fits = plan->sizes[i] == lists[0][i].size && CUDA_HEAD(shape) == CUDA_HEAD(shape_of(lists, n_spans, i));
    }
    return true;
}

static void write_tensor(const struct cuda_plan *plan, const amp_span *const lists[], size_t i) {
    const struct parts p = parts_of(plan->n_spans, plan->n_tensors, plan->n_chunks);
    uint64_t *addresses = (void *)(plan->table + p.addresses);
    uint32_t *shapes = (void *)(plan->table + p.shapes);
    shapes[i] = shape_of(lists, plan->n_spans, i);
    for (uint32_t k = 0; k < plan->n_spans; k++)
        addresses[k * (size_t)plan->n_tensors + i] = address_of(lists, k, i);
}

/* ---- a new one ---- */

/* Returns the number of chunks of `length` for a tensor of `size` elements, beside the head. */
static uint64_t count_chunks(uint64_t size, unsigned head, uint32_t length) {
    if (!size) return 0;
    return size <= head ? 1 : (size - head + length - 1) / length;
}

/* Chooses the chunk length. The total saturates, since beyond it there are too many chunks anyway. */
static uint32_t choose_length(const amp_span *list, uint32_t n_spans, size_t n) {
    uint64_t total = 0;
    uint32_t length = CUDA_CHUNK_MIN;
    for (size_t i = 0; i < n; i++) total = total + list[i].size < total ? UINT64_MAX : total + list[i].size;
    while (length < CUDA_CHUNK_MAX(n_spans) && total / length > CUDA_CHUNKS_WANTED) length *= 2;
    return length;
}

static uint32_t write_chunks(struct cuda_chunk *chunks, uint32_t at, uint32_t tensor, uint64_t size, unsigned head,
                             uint32_t length) {
    for (uint64_t begin = 0, end; begin < size; begin = end) {
        end = begin + length + (begin ? 0 : head);
        if (end > size) end = size;
        chunks[at++] = (struct cuda_chunk){ begin, (uint32_t)(end - begin), tensor };
    }
    return at;
}

static bool count_all(const amp_span *const lists[], uint32_t n_spans, size_t n, uint32_t length, uint32_t *n_chunks,
                      struct cuda_plan_error *error) {
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (!check_tensor(lists, n_spans, i, error)) return false;
        sum += count_chunks(lists[0][i].size, CUDA_HEAD(shape_of(lists, n_spans, i)), length);
        if (sum > INT32_MAX)
            return fail_plan(error, AMP_ERR_UNSUPPORTED, "more elements than one launch can have", 0, i);
    }
    *n_chunks = (uint32_t)sum;
    return true;
}

static void write_table(struct cuda_plan *plan, const amp_span *const lists[], uint32_t length) {
    const size_t n = plan->n_tensors;
    const struct parts p = parts_of(plan->n_spans, n, plan->n_chunks);
    struct cuda_chunk *chunks = (void *)plan->table;
    const uint32_t *shapes = (const void *)(plan->table + p.shapes);
    uint32_t *first = (void *)(plan->table + p.first_chunks), at = 0;
    for (size_t i = 0; i < n; i++) {
        plan->sizes[i] = lists[0][i].size;
        write_tensor(plan, lists, i);
        first[i] = at;
        at = write_chunks(chunks, at, (uint32_t)i, plan->sizes[i], CUDA_HEAD(shapes[i]), length);
    }
    first[n] = at;
}

bool cuda_plan_update(struct cuda_plan *plan, const amp_span *const lists[], uint32_t n_spans, size_t n, bool *changed,
                      struct cuda_plan_error *error) {
    struct cuda_plan made = { .n_spans = n_spans, .n_tensors = (uint32_t)n };
    size_t first;
    bool fits;
    *changed = false;
    if (!check_changes(plan, lists, n_spans, n, &fits, &first, error)) return false;
    if (n && fits) {
        *changed = first < n;
        for (size_t i = first; i < n; i = next_change(plan, lists, i + 1)) write_tensor(plan, lists, i);
        return true;
    }
    if (n > INT32_MAX) return fail_plan(error, AMP_ERR_UNSUPPORTED, "more tensors than one launch can have", 0, 0);
    const uint32_t length = choose_length(lists[0], n_spans, n);
    if (!count_all(lists, n_spans, n, length, &made.n_chunks, error)) return false;
    made.bytes = parts_of(n_spans, n, made.n_chunks).bytes;
    made.table = malloc(made.bytes);
    made.sizes = malloc((n ? n : 1) * sizeof *made.sizes);
    if (!made.table || !made.sizes) {
        cuda_plan_free(&made);
        return fail_plan(error, AMP_ERR_NO_MEMORY, "out of memory", 0, 0);
    }
    write_table(&made, lists, length);
    cuda_plan_free(plan);
    *plan = made;
    *changed = true;
    return true;
}

void cuda_plan_free(struct cuda_plan *plan) {
    free(plan->table);
    free(plan->sizes);
    *plan = (struct cuda_plan){ 0 };
}
