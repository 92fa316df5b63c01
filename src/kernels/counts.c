/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/counts.h"

#include <pthread.h>

enum { SLOTS = 64 }; /* of a block */
#define BLOCK_BYTES (SLOTS * sizeof(amp_statistics))

struct block {
    amp_statistics *device, *here;
    void *copy; /* on its way */
};

struct amp__counts {
    struct amp__place *place;
    void *stream;
    pthread_mutex_t lock; /* threads may share a stream */
    amp_device_list *counting, *working;
    struct block *blocks;
    size_t n_blocks, n; /* slots taken */
};

static const amp_factor one = { NULL, 1.0f, AMP_FACTOR_AS_IT_IS }, minus_one = { NULL, -1.0f, AMP_FACTOR_AS_IT_IS };

/* On the counts' stream, whatever the thread's is. */
static amp_status run_on_stream(const struct amp__counts *counts, struct amp__memory_call *call) {
    call->stream = counts->stream;
    return counts->place->backend->memory_run(counts->place->memory, call);
}

static amp_status allocate_memory(const struct amp__counts *counts, uint64_t bytes, void **out) {
    struct amp__memory_call call = { .kind = AMP__MEMORY_ALLOC, .bytes = (size_t)bytes };
    AMP_TRY(run_on_stream(counts, &call));
    *out = call.made;
    return AMP_OK;
}

static void free_memory(const struct amp__counts *counts, void *memory) {
    struct amp__memory_call call = { .kind = AMP__MEMORY_FREE, .dst = memory };
    if (memory) (void)run_on_stream(counts, &call);
}

/* ---- slots ---- */

static amp_status add_counts_block(struct amp__counts *counts) {
    struct block block = { NULL, amp__alloc(SLOTS, sizeof *block.here), NULL };
    void *device = NULL;
    struct block *grown = amp__grow(counts->blocks, counts->n_blocks, counts->n_blocks + 1, sizeof *grown);
    if (grown) counts->blocks = grown;
    const amp_status status = block.here && grown ? allocate_memory(counts, BLOCK_BYTES, &device) : amp__fail_memory();
    block.device = device;
    if (status == AMP_OK) counts->blocks[counts->n_blocks++] = block;
    else amp__free(block.here);
    return status;
}

/* Counts a tensor, with the lock held. */
static amp_status count_tensor(struct amp__counts *counts, const amp_span *src, size_t *slot) {
    const size_t n = counts->n;
    if (n == SLOTS * counts->n_blocks) AMP_TRY(add_counts_block(counts));
    amp_statistics *device = counts->blocks[n / SLOTS].device;
    struct amp__memory_call zero = { .kind = AMP__MEMORY_FILL, .dst = device, .bytes = BLOCK_BYTES };
    if (n % SLOTS == 0) AMP_TRY(run_on_stream(counts, &zero));
    AMP_TRY(amp_device_statistics(counts->counting, counts->stream, src, 1, device + n % SLOTS));
    *slot = counts->n++;
    return AMP_OK;
}

static amp_status count_scaled(struct amp__counts *counts, const amp_span *src, const amp_factor *factors,
                               size_t n_factors, size_t *slot) {
    amp_span scaled = { NULL, src->size, src->dtype == AMP_FLOAT64 ? AMP_FLOAT64 : AMP_FLOAT32, 0 };
    AMP_TRY(allocate_memory(counts, src->size * amp__dtype_size(scaled.dtype), &scaled.data));
    amp_status status = AMP_OK;
    for (size_t i = 0; i < n_factors && status == AMP_OK; i++)
        status = amp_device_scale(counts->working, counts->stream, &scaled, i ? &scaled : src, 1, &factors[i], NULL);
    if (status == AMP_OK) status = count_tensor(counts, &scaled, slot);
    free_memory(counts, scaled.data);
    return status;
}

amp_status amp__counts_add(struct amp__counts *counts, const amp_span *src, const amp_factor *factors,
                           size_t n_factors, size_t *slot) {
    pthread_mutex_lock(&counts->lock);
    const amp_status status =
        n_factors ? count_scaled(counts, src, factors, n_factors, slot) : count_tensor(counts, src, slot);
    pthread_mutex_unlock(&counts->lock);
    return status;
}

/* ---- updates ---- */

static amp_status axpby(const struct amp__counts *counts, const amp_span *dst, const amp_span *x,
                        const amp_factor *b, const amp_span *y) {
    return amp_device_axpby(counts->working, counts->stream, dst, &one, x, b, y, 1, NULL);
}

/* rounded(rounded(before) + update) - rounded(before) into `shown`. */
static amp_status round_updates(const struct amp__counts *counts, const amp_span *before, const amp_span *update,
                                amp_dtype low, const amp_span *shown) {
    amp_span was = { NULL, before->size, low, 0 }, is = was;
    void *block = NULL;
    AMP_TRY(allocate_memory(counts, 2 * before->size * amp__dtype_size(low), &block));
    was.data = block;
    is.data = (char *)block + before->size * amp__dtype_size(low);
    amp_status status = amp_device_cast(counts->working, counts->stream, &was, before, 1);
    if (status == AMP_OK) status = axpby(counts, &is, &was, &one, update);
    if (status == AMP_OK) status = axpby(counts, shown, &is, &minus_one, &was);
    free_memory(counts, block);
    return status;
}

static amp_status count_update(struct amp__counts *counts, const amp_span *now, const amp_span *before,
                               const amp_span *update, const amp_span *shown, size_t slots[3]) {
    AMP_TRY(axpby(counts, update, now, &minus_one, before));
    AMP_TRY(count_tensor(counts, update, &slots[0]));
    AMP_TRY(round_updates(counts, before, update, AMP_FLOAT16, shown));
    AMP_TRY(count_tensor(counts, shown, &slots[1]));
    AMP_TRY(round_updates(counts, before, update, AMP_BFLOAT16, shown));
    return count_tensor(counts, shown, &slots[2]);
}

amp_status amp__counts_add_update(struct amp__counts *counts, const amp_span *now, const amp_span *before,
                                  size_t slots[3]) {
    const uint64_t bytes = before->size * sizeof(float);
    amp_span update = { NULL, before->size, AMP_FLOAT32, 0 }, shown = update;
    pthread_mutex_lock(&counts->lock);
    amp_status status = allocate_memory(counts, 2 * bytes, &update.data);
    shown.data = (char *)update.data + bytes;
    if (status == AMP_OK) status = count_update(counts, now, before, &update, &shown, slots);
    free_memory(counts, update.data);
    pthread_mutex_unlock(&counts->lock);
    return status;
}

amp_status amp__counts_copy(struct amp__counts *counts, const amp_span *dst, const amp_span *src) {
    pthread_mutex_lock(&counts->lock);
    const amp_status status = amp_device_cast(counts->working, counts->stream, dst, src, 1);
    pthread_mutex_unlock(&counts->lock);
    return status;
}

/* ---- to the host ---- */

static size_t used(const struct amp__counts *counts) { return (counts->n + SLOTS - 1) / SLOTS; }

amp_status amp__counts_send(struct amp__counts *counts) {
    for (size_t i = 0; i < used(counts); i++) {
        struct block *block = &counts->blocks[i];
        struct amp__memory_call call = { .kind = AMP__MEMORY_FETCH, .src = block->device, .bytes = BLOCK_BYTES,
                                         .made = block->copy };
        AMP_TRY(run_on_stream(counts, &call));
        block->copy = call.made;
    }
    return AMP_OK;
}

amp_status amp__counts_receive(struct amp__counts *counts) {
    for (size_t i = 0; i < used(counts); i++) {
        const struct block *block = &counts->blocks[i];
        struct amp__memory_call call = { .kind = AMP__MEMORY_FETCHED, .dst = block->here, .bytes = BLOCK_BYTES,
                                         .made = block->copy };
        AMP_TRY(run_on_stream(counts, &call));
    }
    return AMP_OK;
}

const amp_statistics *amp__counts_at(const struct amp__counts *counts, size_t slot) {
    amp_statistics *found = &counts->blocks[slot / SLOTS].here[slot % SLOTS];
    found->struct_size = sizeof *found; /* the device does not look at it */
    return found;
}

void amp__counts_clear(struct amp__counts *counts) { counts->n = 0; }

/* ---- opening and closing ---- */

amp_status amp__counts_open(struct amp__place *place, void *stream, struct amp__counts **out) {
    struct amp__counts *counts = amp__alloc(1, sizeof *counts);
    if (!counts) return amp__fail_memory();
    counts->place = place;
    counts->stream = stream;
    pthread_mutex_init(&counts->lock, NULL);
    amp_status status = amp_device_list_open(place->device, &counts->counting);
    if (status == AMP_OK) status = amp_device_list_open(place->device, &counts->working);
    if (status == AMP_OK) *out = counts;
    else amp__counts_close(counts);
    return status;
}

void amp__counts_close(struct amp__counts *counts) {
    if (!counts) return;
    for (size_t i = 0; i < counts->n_blocks; i++) {
        amp__place_fetch_free(counts->place, counts->blocks[i].copy);
        amp__place_free(counts->place, counts->blocks[i].device); /* the counts' stream may be gone */
        amp__free(counts->blocks[i].here);
    }
    amp_device_list_close(counts->counting);
    amp_device_list_close(counts->working);
    pthread_mutex_destroy(&counts->lock);
    amp__free(counts->blocks);
    amp__free(counts);
}
