/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pass of an average: the host announces gradients as backward completes them, complete buckets are sent, and after
 * finish the gradients belong to the host again. Included by amp_mpi_average.h.
 */
#ifndef AMP_MPI_PASS_H
#define AMP_MPI_PASS_H

#include "amp_mpi_average.h"
#include "amp_mpi_params.h"

/* Stores the first error of the pass. Everything is sent in any case, so that no rank waits for this one. */
static inline void amp_mpi_average_note_(amp_mpi_average *average, amp_status status) {
    if (status == AMP_OK || average->failed != AMP_OK) return;
    average->failed = status;
    memcpy(average->why, average->mpi->why, sizeof average->why);
}

static inline amp_status amp_mpi_average_said_(amp_mpi_average *average) {
    if (average->mpi->lost) return AMP_ERR_BACKEND;
    if (average->failed != AMP_OK) memcpy(average->mpi->why, average->why, sizeof average->why);
    return average->failed;
}

/* Finds the mark of gradient i of this rank, which is not 0 if there is a gradient. */
static inline amp_span amp_mpi_average_mark_(const amp_mpi_average *average, size_t i) {
    const struct amp_mpi_bucket_ *bucket = &average->buckets[average->bucket_of[i]];
    const amp_span *last = &average->slots[bucket->end - 1].span;
    amp_span mark = *last;
    mark.data = (char *)last->data + (last->size + (i - bucket->begin)) * amp_mpi_width_(average->wire);
    mark.size = 1;
    return mark;
}

static inline void amp_mpi_average_pack_(amp_mpi_average *average, const struct amp_mpi_bucket_ *bucket) {
    for (size_t i = bucket->begin; i < bucket->end; i++) {
        float has = average->grads[i].data ? 1.0f : 0.0f;
        const amp_span mark = amp_mpi_average_mark_(average, i);
        amp_span one;
        one.data = &has, one.size = 1, one.dtype = AMP_FLOAT32, one.reserved = 0;
        amp_status status = amp_cast_list(&mark, &one, 1);
        if (status == AMP_OK && has == 0.0f) status = amp_zero_list(&average->slots[i].span, 1);
        else if (status == AMP_OK)
            status = amp_scale_list(&average->slots[i].span, &average->grads[i], 1, average->before, NULL);
        amp_mpi_average_note_(average, amp_mpi_said_(average->mpi, status));
    }
}

/* Sends buckets in their order, not in the order of gradients, so that all ranks have the same order of collectives. */
static inline void amp_mpi_average_send_(amp_mpi_average *average) {
    for (; !average->mpi->lost && average->sent < average->n_buckets && !average->buckets[average->sent].missing;
         average->sent++) {
        struct amp_mpi_bucket_ *bucket = &average->buckets[average->sent];
        const int size = (int)bucket->size, share = size / average->mpi->size;
        amp_mpi_average_pack_(average, bucket);
        const int code = bucket->receive ? MPI_Ialltoall(bucket->send, share, MPI_UINT16_T, bucket->receive, share,
                                                         MPI_UINT16_T, average->first, &bucket->request)
                                         : MPI_Iallreduce(MPI_IN_PLACE, bucket->send, size, MPI_FLOAT, MPI_SUM,
                                                          average->first, &bucket->request);
        amp_mpi_average_note_(average, amp_mpi_code_(average->mpi, code, "amp_mpi_average: a bucket was not sent"));
    }
}

/* Sums this rank's share of a 16-bit bucket in FP32, in the order of the ranks, and starts to gather all shares. */
static inline void amp_mpi_average_add_(amp_mpi_average *average, struct amp_mpi_bucket_ *bucket) {
    const int ranks = average->mpi->size, share = (int)bucket->size / ranks;
    amp_span sum, part;
    sum.data = average->sum, sum.size = (uint64_t)share, sum.dtype = AMP_FLOAT32, sum.reserved = 0;
    part = sum, part.dtype = average->wire, part.data = bucket->receive;
    amp_status status = amp_cast_list(&sum, &part, 1);
    for (int rank = 1; rank < ranks && status == AMP_OK; rank++) {
        part.data = bucket->receive + 2 * (size_t)rank * (size_t)share;
        status = amp_axpby_list(&sum, 1.0f, &sum, 1.0f, &part, 1, NULL);
    }
    part.data = bucket->send + 2 * (size_t)average->mpi->rank * (size_t)share;
    if (status == AMP_OK) status = amp_scale_list(&part, &sum, 1, average->after, NULL);
    amp_mpi_average_note_(average, amp_mpi_said_(average->mpi, status));
    const int code = MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, bucket->send, share, MPI_UINT16_T,
                                    average->second, &bucket->request);
    amp_mpi_average_note_(average, amp_mpi_code_(average->mpi, code, "amp_mpi_average: a sum was not sent"));
}

/* Sums the received buckets, in their order. It also calls MPI, which makes progress only inside its calls. */
static inline void amp_mpi_average_progress_(amp_mpi_average *average) {
    for (; average->added < average->sent; average->added++) {
        struct amp_mpi_bucket_ *bucket = &average->buckets[average->added];
        int done = 0;
        const int code = amp_mpi_test_(&bucket->request, &done);
        amp_mpi_average_note_(average, amp_mpi_code_(average->mpi, code, "amp_mpi_average"));
        if (!done || average->mpi->lost) return;
        if (bucket->receive) amp_mpi_average_add_(average, bucket);
    }
}

/* Begins a pass, in which gradients are announced until finish: inside the bracket, before backward.
 * AMP_ERR_WRONG_STATE: the last pass is not finished. */
AMP_MUST_CHECK static inline amp_status amp_mpi_average_begin(amp_mpi_average *average) {
    if (average->mpi->lost) return AMP_ERR_BACKEND;
    if (average->passing)
        return amp_mpi_fail_(average->mpi, AMP_ERR_WRONG_STATE,
                             "amp_mpi_average_begin: the pass before is not over: call amp_mpi_average_finish first");
    memset(average->announced, 0, average->n + 1);
    average->passing = 1;
    average->sent = average->added = average->guess = 0;
    average->failed = AMP_OK;
    for (size_t b = 0; b < average->n_buckets; b++)
        average->buckets[b].missing = average->buckets[b].end - average->buckets[b].begin;
    return AMP_OK;
}

static inline void amp_mpi_average_announce_(amp_mpi_average *average, size_t i, const amp_span *grad) {
    average->grads[i].data = NULL, average->grads[i].size = average->slots[i].span.size;
    if (grad && grad->size == average->slots[i].span.size) average->grads[i] = *grad;
    average->announced[i] = 1;
    average->buckets[average->bucket_of[i]].missing--;
}

/* Reads gradient i with the hook of the host. */
static inline void amp_mpi_average_fetch_(amp_mpi_average *average, size_t i) {
    amp_mpi *mpi = average->mpi;
    const char *name = average->slots[i].name;
    void *grad = NULL;
    amp_span span;
    amp_status status = mpi->host.grad(mpi->host.self, average->handles[i], &grad);
    if (status != AMP_OK) status = amp_mpi_fail_(mpi, AMP_ERR_HOST_FAILED, "the hook grad failed for %s", name);
    else if (grad) status = amp_mpi_look_(mpi, grad, "the gradient of", name, &span);
    if (status == AMP_OK && grad && (span.size != average->slots[i].span.size || span.dtype == AMP_FLOAT64))
        status = amp_mpi_fail_(mpi, AMP_ERR_UNSUPPORTED, "the gradient of %s has %llu elements of %s for %llu", name,
                               (unsigned long long)span.size, span.dtype == AMP_FLOAT64 ? "64 bits" : "its type",
                               (unsigned long long)average->slots[i].span.size);
    amp_mpi_average_note_(average, status);
    amp_mpi_average_announce_(average, i, status == AMP_OK && grad ? &span : NULL);
}

/* Announces that the gradient of a parameter is complete: no later backward adds to it. The hook `grad` must return it
 * now. libamp averages it in place and owns it until finish. Sends each complete bucket once all earlier ones are sent.
 * Gradients come in any order, each once. A host that does not know when gradients are complete need not call it, since
 * finish sends the rest. After an error call finish all the same. */
AMP_MUST_CHECK static inline amp_status amp_mpi_ready(amp_mpi_average *average, const void *param) {
    if (average->mpi->lost) return AMP_ERR_BACKEND;
    size_t i = average->guess;
    for (size_t tried = 0; tried < average->n && average->handles[i] != param; tried++)
        i = i + 1 < average->n ? i + 1 : 0;
    if (!average->passing)
        return amp_mpi_fail_(average->mpi, AMP_ERR_WRONG_STATE,
                             "amp_mpi_ready: call amp_mpi_average_begin before backward");
    if (!average->n || average->handles[i] != param)
        return amp_mpi_fail_(average->mpi, AMP_ERR_NOT_FOUND, "amp_mpi_ready: %s is not in the list that is averaged",
                             amp_mpi_name_(average->mpi, param));
    if (average->announced[i])
        return amp_mpi_fail_(
            average->mpi, AMP_ERR_WRONG_STATE,
            "amp_mpi_ready: %s was announced before: one that several backward passes add to is announced "
            "in the last of them",
            amp_mpi_name_(average->mpi, param));
    average->guess = i + 1 < average->n ? i + 1 : 0;
    amp_mpi_average_fetch_(average, i);
    amp_mpi_average_send_(average);
    amp_mpi_average_progress_(average);
    return amp_mpi_average_said_(average);
}

/* Copies averages to the host. A gradient that no rank has stays absent. A gradient that only other ranks have is an
 * error on this rank, since its parameter would diverge from theirs. */
static inline void amp_mpi_average_unpack_(amp_mpi_average *average, const struct amp_mpi_bucket_ *bucket) {
    const float factor = bucket->receive ? 1.0f : average->after;
    for (size_t i = bucket->begin; i < bucket->end; i++) {
        const amp_span mark = amp_mpi_average_mark_(average, i);
        const char zeros[4] = { 0, 0, 0, 0 };
        amp_status status = AMP_OK;
        if (average->grads[i].data)
            status = amp_mpi_said_(average->mpi, amp_scale_list(&average->grads[i], &average->slots[i].span, 1, factor,
                                                                NULL));
        else if (average->grads[i].size && memcmp(mark.data, zeros, (size_t)amp_mpi_width_(average->wire)))
            status =
                amp_mpi_fail_(average->mpi, AMP_ERR_WRONG_STATE,
                              "%s has no gradient on rank %d, but on another: zeros were sent for it. Give it one, or "
                              "cancel the bracket",
                              average->slots[i].name, average->mpi->rank);
        amp_mpi_average_note_(average, status);
    }
}

/* Sends the gradients that were not announced and waits for all. After an error the gradients of this rank differ from
 * the others: cancel the bracket, and all ranks skip. After AMP_ERR_BACKEND end the job. AMP_ERR_WRONG_STATE: a
 * parameter has a gradient on other ranks but not here, or no pass was begun. */
AMP_MUST_CHECK static inline amp_status amp_mpi_average_finish(amp_mpi_average *average) {
    if (average->mpi->lost) return AMP_ERR_BACKEND;
    if (!average->passing)
        return amp_mpi_fail_(average->mpi, AMP_ERR_WRONG_STATE,
                             "amp_mpi_average_finish: no pass was begun: call amp_mpi_average_begin before backward");
    for (size_t i = 0; i < average->n; i++)
        if (!average->announced[i]) amp_mpi_average_fetch_(average, i);
    amp_mpi_average_send_(average);
    for (; average->added < average->n_buckets && !average->mpi->lost; average->added++) {
        struct amp_mpi_bucket_ *bucket = &average->buckets[average->added];
        amp_mpi_average_note_(average,
                              amp_mpi_wait_(average->mpi, MPI_SUCCESS, &bucket->request, "amp_mpi_average_finish"));
        if (bucket->receive && !average->mpi->lost) amp_mpi_average_add_(average, bucket);
    }
    for (size_t b = 0; b < average->n_buckets && !average->mpi->lost; b++) {
        struct amp_mpi_bucket_ *bucket = &average->buckets[b];
        amp_mpi_average_note_(average,
                              amp_mpi_wait_(average->mpi, MPI_SUCCESS, &bucket->request, "amp_mpi_average_finish"));
        if (!average->mpi->lost) amp_mpi_average_unpack_(average, bucket);
    }
    average->passing = 0;
    return amp_mpi_average_said_(average);
}

/* Finds the gradient in the optimizer for parameter i of the list, which has the reverse order of the optimizer. */
static inline amp_status amp_mpi_average_master_(amp_mpi_average *average, const amp_master *masters, size_t n,
                                                 size_t i, amp_span *grad) {
    const amp_master *master = i < n ? &masters[n - 1 - i] : NULL;
    for (size_t k = 0; k < n && (!master || master->param != average->handles[i]); k++) master = &masters[k];
    if (!master || master->param != average->handles[i])
        return amp_mpi_fail_(average->mpi, AMP_ERR_NOT_FOUND,
                             "amp_mpi_average_masters: the optimizer does not update %s", average->slots[i].name);
    if (master->grad_strides || master->dtype == AMP_FLOAT64)
        return amp_mpi_fail_(average->mpi, AMP_ERR_UNSUPPORTED,
                             "amp_mpi_average_masters: the gradient of %s is no "
                             "compact block of up to 32 bits",
                             average->slots[i].name);
    grad->data = master->grad, grad->size = master->size, grad->dtype = master->dtype, grad->reserved = 0;
    return AMP_OK;
}

/* Averages in one pass after the bracket, without overlap with backward: the gradients that the optimizer uses
 * (amp_master_params), which are FP32 with masters, so that nothing is rounded to 16 bits after the average. Call it
 * between amp_scale_loss_end, if the action is not AMP_SKIP, and clipping. AMP_ERR_UNSUPPORTED: FP16 messages, since
 * unscaled gradients vanish in them and an overflow would come too late for a skip. Not for AMP_OPTIMIZER_SHARDED. */
AMP_MUST_CHECK static inline amp_status amp_mpi_average_masters(amp_mpi_average *average, amp_optimizer *optimizer) {
    amp_mpi *mpi = average->mpi;
    amp_master *masters;
    size_t n = 0;
    if (average->wire == AMP_FLOAT16)
        return amp_mpi_fail_(mpi, AMP_ERR_UNSUPPORTED,
                             "amp_mpi_average_masters: FP16 on the wire: average inside the "
                             "bracket, where gradients are scaled, or as FP32 or BF16");
    amp_status status = amp_mpi_average_begin(average);
    if (status != AMP_OK) return status;
    status = amp_mpi_masters_(mpi, optimizer, &masters, &n);
    amp_mpi_average_note_(average, status);
    for (size_t i = 0; i < average->n; i++) {
        amp_span grad;
        if (average->failed == AMP_OK) status = amp_mpi_average_master_(average, masters, n, i, &grad);
        amp_mpi_average_note_(average, status);
        amp_mpi_average_announce_(average, i, status == AMP_OK ? &grad : NULL);
    }
    free(masters);
    return amp_mpi_average_finish(average);
}

#endif /* AMP_MPI_PASS_H */
