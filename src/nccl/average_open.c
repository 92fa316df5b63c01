/* SPDX-License-Identifier: Apache-2.0 */
/* How a list of gradients is cut into buckets, and where they lie in memory. */
#include "nccl/nccl.h"
#include "kernels/spans.h"

#include <math.h>

enum { ALIGNMENT = 16 };
static const uint64_t default_bucket = (uint64_t)25 << 20;

/* ---- the layout ---- */

static amp_status check_options(const amp_nccl_options *given, amp_nccl_options *options) {
    *options = (amp_nccl_options)AMP_NCCL_OPTIONS_INIT;
    if (given)
        AMP_TRY(amp__copy_struct(options, sizeof *options, sizeof *options, given, given->struct_size,
                                 "amp_nccl_options"));
    AMP_RETURN_IF((uint32_t)options->fp32 > AMP_ON || (uint32_t)options->average > AMP_ON, AMP_ERR_INVALID_ARGUMENT,
                  "amp_nccl_average_open: %s is %d: AMP_OFF, AMP_ON or 0",
                  (uint32_t)options->fp32 > AMP_ON ? "fp32" : "average",
                  (int)((uint32_t)options->fp32 > AMP_ON ? options->fp32 : options->average));
    if (options->predivide == 0.0) options->predivide = 1.0;
    AMP_RETURN_IF(!isgreater(options->predivide, 0.0) || !isfinite((float)options->predivide) ||
                      !isfinite((float)(1.0 / options->predivide)),
                  AMP_ERR_INVALID_ARGUMENT, "amp_nccl_average_open: predivide is %g: a number above 0, or 0 for 1",
                  options->predivide);
    if (!options->bucket_bytes) options->bucket_bytes = default_bucket;
    return AMP_OK;
}

static amp_dtype added_in(amp_dtype dtype, const amp_nccl_options *options) {
    return options->fp32 == AMP_ON && dtype != AMP_FLOAT64 ? AMP_FLOAT32 : dtype;
}

/* Where buckets end. */
static void cut(amp_nccl_average *average, uint64_t bucket_bytes) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < average->n; i++) {
        average->bucket_of[i] = average->n_buckets;
        average->buckets[average->n_buckets].end = i + 1;
        bytes += average->slots[i].size * amp__width(average->slots[i].dtype);
        if (bytes < bucket_bytes && i + 1 < average->n) continue;
        average->buckets[++average->n_buckets].begin = i + 1;
        bytes = 0;
    }
}

/* Offsets, in the place of addresses, of a bucket's gradients of one type; where they end. */
static uint64_t place_bucket(const amp_nccl_average *average, struct amp__bucket *bucket, amp_dtype dtype,
                             uint64_t begin) {
    uint64_t at = begin;
    for (size_t i = bucket->begin; i < bucket->end; i++) {
        if (average->slots[i].dtype != dtype) continue;
        average->slots[i].data = (void *)(uintptr_t)at;
        at += average->slots[i].size * amp__width(dtype) + ALIGNMENT - 1;
        at -= at % ALIGNMENT;
    }
    if (at > begin)
        bucket->sections[bucket->n_sections++] =
            (amp_span){ (void *)(uintptr_t)begin, (at - begin) / amp__width(dtype), dtype, 0 };
    return at;
}

static uint64_t lay_out_all(amp_nccl_average *average) {
    uint64_t at = 0;
    for (size_t b = 0; b < average->n_buckets; b++)
        for (amp_dtype dtype = AMP_FLOAT32; dtype <= AMP__SECTIONS; dtype++)
            at = place_bucket(average, &average->buckets[b], dtype, at);
    return at;
}

/* From offsets to addresses. */
static void place(const amp_nccl_average *average) {
    for (size_t i = 0; i < average->n; i++)
        average->slots[i].data = average->memory + (uintptr_t)average->slots[i].data;
    for (size_t b = 0; b < average->n_buckets; b++)
        for (size_t s = 0; s < average->buckets[b].n_sections; s++)
            average->buckets[b].sections[s].data =
                average->memory + (uintptr_t)average->buckets[b].sections[s].data;
}

/* ---- opening and closing ---- */

static amp_status memory_run(const amp_nccl *nccl, struct amp__memory_call *call) {
    call->stream = nccl->comm.stream;
    return nccl->backend->memory_run(nccl->memory, call);
}

/* Returns a hash of the values that must be equal on all ranks, exact in a float. */
static float digest(const amp_nccl_average *average, const amp_nccl_options *options) {
    const uint64_t of_all[] = { average->n, options->bucket_bytes, (uint64_t)(options->average == AMP_OFF) };
    uint64_t sum = amp__sum64(0, of_all, sizeof of_all);
    sum = amp__sum64(sum, &options->predivide, sizeof options->predivide);
    for (size_t i = 0; i < average->n; i++) {
        const uint64_t of_one[] = { average->slots[i].size, (uint64_t)average->dtypes[i],
                                    (uint64_t)average->slots[i].dtype };
        sum = amp__sum64(sum, of_one, sizeof of_one);
    }
    return (float)((sum ^ sum >> 32) & 0xffffff);
}

/* The greatest and the least of all ranks' digests. Its room is the first of the buckets', which hold nothing yet. */
static amp_status compare_digests(const amp_nccl_average *average, const amp_nccl_options *options) {
    const float own = digest(average, options);
    float both[2] = { own, -own };
    const amp_span span = { average->memory, AMP_COUNT(both), AMP_FLOAT32, 0 };
    void *const room = average->memory;
    struct amp__memory_call in = { .kind = AMP__MEMORY_IN, .dst = room, .src = both, .bytes = sizeof both };
    struct amp__memory_call out = { .kind = AMP__MEMORY_OUT, .dst = both, .src = room, .bytes = sizeof both };
    AMP_TRY(memory_run(average->nccl, &in));
    AMP_TRY(amp__nccl_reduce(average->nccl, AMP_REDUCE_MAX, average->nccl->comm.stream, &span, 1));
    AMP_TRY(memory_run(average->nccl, &out));
    AMP_RETURN_IF(both[0] != -both[1], AMP_ERR_CONFLICT,
                  "the ranks do not average the same: sizes, types or order of the gradients, or the options, are not "
                  "equal on all of them");
    return AMP_OK;
}

static amp_status allocate_average(amp_nccl_average *average, const amp_span *grads, const amp_nccl_options *options) {
    const size_t n = average->n;
    average->grads = amp__alloc(n, sizeof *average->grads);
    average->slots = amp__alloc(n, sizeof *average->slots);
    average->dtypes = amp__alloc(n, sizeof *average->dtypes);
    average->bucket_of = amp__alloc(n, sizeof *average->bucket_of);
    average->buckets = amp__alloc(n + 1, sizeof *average->buckets);
    average->announced = amp__alloc(n, sizeof *average->announced);
    if (!average->grads || !average->slots || !average->dtypes || !average->bucket_of || !average->buckets ||
        !average->announced)
        return amp__fail_memory();
    for (size_t i = 0; i < n; i++) {
        average->dtypes[i] = grads[i].dtype;
        average->slots[i] = (amp_span){ NULL, grads[i].size, added_in(grads[i].dtype, options), 0 };
    }
    cut(average, options->bucket_bytes);
    average->bytes = lay_out_all(average) + ALIGNMENT; /* room for compare at least */
    struct amp__memory_call made = { .kind = AMP__MEMORY_ALLOC, .bytes = (size_t)average->bytes };
    AMP_TRY(memory_run(average->nccl, &made));
    average->memory = made.made;
    place(average);
    return AMP_OK;
}

/* Starts an average. Padding between gradients is summed too, and stays 0. */
static amp_status start_average(amp_nccl_average *average, const amp_span *grads, const amp_nccl_options *options) {
    const amp_device device = { AMP__DEVICE_CUDA, average->nccl->comm.id };
    AMP_TRY(allocate_average(average, grads, options));
    AMP_TRY(amp_device_list_open(device, &average->zeros));
    for (size_t b = 0; b < average->n_buckets; b++) {
        AMP_TRY(amp_device_list_open(device, &average->buckets[b].pack));
        AMP_TRY(amp_device_list_open(device, &average->buckets[b].unpack));
    }
    AMP_TRY(compare_digests(average, options));
    struct amp__memory_call zeros = { .kind = AMP__MEMORY_FILL, .dst = average->memory,
                                      .bytes = (size_t)average->bytes };
    return memory_run(average->nccl, &zeros);
}

AMP_API amp_status amp_nccl_average_open(amp_nccl *nccl, const amp_span *grads, size_t n,
                                         const amp_nccl_options *given, amp_nccl_average **average) {
    amp_nccl_options options;
    AMP_RETURN_IF(!nccl || !average || (n && !grads), AMP_ERR_INVALID_ARGUMENT, "amp_nccl_average_open: %s is NULL",
                  !nccl ? "nccl" : !average ? "average" : "grads");
    AMP_TRY(check_options(given, &options));
    for (size_t i = 0; i < n; i++) {
        AMP_RETURN_IF(!amp__width(grads[i].dtype), AMP_ERR_INVALID_ARGUMENT,
                      "amp_nccl_average_open: gradient %zu has no floating type (%d)", i, (int)grads[i].dtype);
        AMP_RETURN_IF(grads[i].size > INT64_MAX / 16 / (n + 1), AMP_ERR_INVALID_ARGUMENT,
                      "amp_nccl_average_open: gradient %zu is too large", i);
    }
    amp_nccl_average *made = amp__alloc(1, sizeof *made);
    if (!made) return amp__fail_memory();
    made->nccl = nccl, made->n = n;
    made->before = (amp_factor){ NULL, (float)(1.0 / options.predivide), AMP_FACTOR_AS_IT_IS };
    made->after = (amp_factor){ NULL, options.average == AMP_OFF ? 1.0f
                                      : (float)(options.predivide / (double)nccl->comm.ranks), AMP_FACTOR_AS_IT_IS };
    const amp_status status = start_average(made, grads, &options);
    if (status != AMP_OK) {
        amp_nccl_average_close(made);
        return amp__fail_prefix(status, "amp_nccl_average_open");
    }
    *average = made;
    return AMP_OK;
}

AMP_API void amp_nccl_average_close(amp_nccl_average *average) {
    if (!average) return;
    struct amp__memory_call freed = { .kind = AMP__MEMORY_FREE, .dst = average->memory };
    for (size_t b = 0; b < average->n_buckets; b++) {
        amp_device_list_close(average->buckets[b].pack);
        amp_device_list_close(average->buckets[b].unpack);
    }
    amp_device_list_close(average->zeros);
    if (average->memory) (void)memory_run(average->nccl, &freed);
    amp__free(average->grads);
    amp__free(average->slots);
    amp__free(average->dtypes);
    amp__free(average->bucket_of);
    amp__free(average->announced);
    amp__free(average->buckets);
    amp__free(average);
}
