/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients averaged over ranks, in buckets that are sent while backward goes on, on the communicator's stream: one
 * launch brings a bucket's gradients there, multiplied and in the type that they are added in, NCCL adds its sections
 * up in one group, and one launch takes them back. Buckets go in their order, whatever the order of the gradients, for
 * the ranks' calls must be the same.
 */
#include "nccl/nccl.h"

#include <stdio.h>

AMP_API amp_status amp_nccl_average_begin(amp_nccl_average *average, void *stream) {
    AMP_RETURN_IF(!average, AMP_ERR_INVALID_ARGUMENT, "amp_nccl_average_begin: average is NULL");
    AMP_RETURN_IF(!stream, AMP_ERR_INVALID_ARGUMENT,
                  "amp_nccl_average_begin: stream is NULL, CUDA's legacy default stream: make one "
                  "(cudaStreamNonBlocking), or pass cudaStreamPerThread");
    AMP_RETURN_IF(average->stream, AMP_ERR_WRONG_STATE,
                  "amp_nccl_average_begin: the pass before is not over: call amp_nccl_average_finish first");
    const amp_status status = amp__nccl_run(average->nccl, AMP__COMM_CHECK, stream);
    if (status != AMP_OK) return amp__fail_prefix(status, "amp_nccl_average_begin");
    average->stream = stream;
    average->next = 0;
    average->failed = AMP_OK;
    for (size_t i = 0; i < average->n; i++) average->announced[i] = false;
    for (size_t b = 0; b < average->n_buckets; b++)
        average->buckets[b].missing = average->buckets[b].end - average->buckets[b].begin;
    return AMP_OK;
}

static void announce_gradient(amp_nccl_average *average, size_t index, amp_span grad) {
    average->grads[index] = grad;
    average->announced[index] = true;
    average->buckets[average->bucket_of[index]].missing--;
}

static void note_failure(amp_nccl_average *average, amp_status status) {
    if (status == AMP_OK || average->failed != AMP_OK) return;
    average->failed = status;
    snprintf(average->why, sizeof average->why, "%s", amp_last_error());
}

/* Whatever fails, NCCL is called, so that the other ranks are not left waiting. */
static void send(amp_nccl_average *average, const struct amp__bucket *bucket) {
    void *const own = average->nccl->comm.stream;
    const amp_span *grads = average->grads + bucket->begin, *slots = average->slots + bucket->begin;
    const size_t n = bucket->end - bucket->begin;
    note_failure(average, amp__nccl_run(average->nccl, AMP__COMM_FORK, average->stream));
    note_failure(average, amp_device_scale(bucket->pack, own, slots, grads, n, &average->before, NULL));
    note_failure(average, amp__nccl_reduce(average->nccl, AMP_REDUCE_SUM, own, bucket->sections, bucket->n_sections));
    note_failure(average, amp_device_scale(bucket->unpack, own, grads, slots, n, &average->after, NULL));
}

static void send_complete(amp_nccl_average *average) {
    while (average->next < average->n_buckets && !average->buckets[average->next].missing)
        send(average, &average->buckets[average->next++]);
}

AMP_API amp_status amp_nccl_average_ready(amp_nccl_average *average, size_t index, void *data) {
    AMP_RETURN_IF(!average, AMP_ERR_INVALID_ARGUMENT, "amp_nccl_average_ready: average is NULL");
    AMP_RETURN_IF(!average->stream, AMP_ERR_WRONG_STATE,
                  "amp_nccl_average_ready: call amp_nccl_average_begin before backward");
    AMP_RETURN_IF(index >= average->n, AMP_ERR_INVALID_ARGUMENT,
                  "amp_nccl_average_ready: there is no gradient %zu: the list has %zu", index, average->n);
    AMP_RETURN_IF(!data && average->slots[index].size, AMP_ERR_INVALID_ARGUMENT,
                  "amp_nccl_average_ready: data of gradient %zu is NULL", index);
    AMP_RETURN_IF(average->announced[index], AMP_ERR_WRONG_STATE,
                  "amp_nccl_average_ready: gradient %zu was announced before: one that several backward passes add to "
                  "is announced in the last of them",
                  index);
    announce_gradient(average, index, (amp_span){ data, average->slots[index].size, average->dtypes[index], 0 });
    send_complete(average);
    if (average->failed == AMP_OK) return AMP_OK;
    return amp__fail(average->failed, "amp_nccl_average_ready: %s", average->why);
}

/* Writes zeros for gradients that were not announced. Returns the first of them, or n. */
static size_t fill_up(amp_nccl_average *average) {
    size_t first = average->n;
    for (size_t i = average->n; i--;) {
        if (average->announced[i]) continue;
        if (first == average->n) note_failure(average, amp__nccl_run(average->nccl, AMP__COMM_FORK, average->stream));
        note_failure(average, amp_device_zero(average->zeros, average->nccl->comm.stream, &average->slots[i], 1));
        announce_gradient(average, i, average->slots[i]);
        first = i;
    }
    return first;
}

AMP_API amp_status amp_nccl_average_finish(amp_nccl_average *average) {
    AMP_RETURN_IF(!average, AMP_ERR_INVALID_ARGUMENT, "amp_nccl_average_finish: average is NULL");
    AMP_RETURN_IF(!average->stream, AMP_ERR_WRONG_STATE,
                  "amp_nccl_average_finish: no pass was begun: call amp_nccl_average_begin before backward");
    const size_t missing = fill_up(average);
    send_complete(average);
    note_failure(average, amp__nccl_run(average->nccl, AMP__COMM_JOIN, average->stream));
    average->stream = NULL;
    AMP_RETURN_IF(average->failed != AMP_OK, average->failed, "amp_nccl_average_finish: %s", average->why);
    AMP_RETURN_IF(missing < average->n, AMP_ERR_WRONG_STATE,
                  "amp_nccl_average_finish: gradient %zu was not announced, and zeros were sent in its place: call "
                  "amp_nccl_average_ready for each gradient of the list, with zeros for those of parameters that "
                  "backward did not use",
                  missing);
    return AMP_OK;
}
