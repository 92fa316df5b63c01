/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters that are equal on all ranks: at the start those of rank 0, later compared. Comes with amp_mpi.h.
 */
#ifndef AMP_MPI_PARAMS_H
#define AMP_MPI_PARAMS_H

#include "amp_diagnostics.h"
#include "amp_mpi_ranks.h"

/* Names, sizes and types of the list; data is another matter. */
static inline uint64_t amp_mpi_layout_(const struct amp_mpi_tensor_ *list, size_t n) {
    uint64_t hash = amp_mpi_hash_(n, NULL, 0);
    for (size_t i = 0; i < n; i++) {
        hash = amp_mpi_hash_(hash, list[i].name, strlen(list[i].name));
        hash = amp_mpi_hash_(hash, &list[i].span.size, sizeof list[i].span.size);
        hash = amp_mpi_hash_(hash, &list[i].span.dtype, sizeof list[i].span.dtype);
    }
    return hash;
}

static inline amp_status amp_mpi_broadcast_list_(amp_mpi *mpi, const struct amp_mpi_tensor_ *list, size_t n) {
    static const char what[] = "amp_mpi_broadcast";
    amp_status status = amp_mpi_same_(mpi, amp_mpi_layout_(list, n), what,
                                      "the ranks' models differ in number, names, sizes or types of their parameters");
    for (size_t i = 0; i < n && status == AMP_OK; i++)
        status = amp_mpi_exchange_(mpi, list[i].span.data, list[i].span.size * amp_mpi_width_(list[i].span.dtype), 1,
                                   MPI_BYTE, MPI_OP_NULL, what);
    return status;
}

/* All parameters and buffers of the model become those of rank 0. Before amp_initialize: later it cannot be seen from
 * here, and masters stay as they are; outside brackets and steps amp_masters_reconcile comes next then, and
 * amp_mpi_broadcast_masters for each optimizer: a 16-bit parameter does not have all of its master. AMP_ERR_CONFLICT:
 * the ranks' models are not of one shape, or name their parameters differently; AMP_ERR_WRONG_STATE: amp_mpi_open was
 * given no model. */
AMP_MUST_CHECK static inline amp_status amp_mpi_broadcast(amp_mpi *mpi) {
    struct amp_mpi_tensor_ *list = (struct amp_mpi_tensor_ *)calloc(mpi->n_params + 1, sizeof *list);
    amp_status status = list ? amp_mpi_list_(mpi, list) : amp_mpi_fail_(mpi, AMP_ERR_NO_MEMORY, "out of memory");
    status = amp_mpi_agree_(mpi, status, "amp_mpi_broadcast");
    if (status == AMP_OK) status = amp_mpi_broadcast_list_(mpi, list, mpi->n_params);
    free(list);
    return status;
}

/* Which rank has another number than rank 0? */
static inline amp_status amp_mpi_blame_(amp_mpi *mpi, uint64_t hash, const char *name, size_t differing, size_t n) {
    int rank = 0;
    const amp_status status = amp_mpi_other_(mpi, hash, "amp_mpi_check_equal", &rank);
    if (status != AMP_OK) return status;
    return amp_mpi_fail_(
        mpi, AMP_ERR_CONFLICT,
        "%s is not equal on all ranks: rank %d is the first that does not have what rank 0 has (%zu of "
        "%zu parameters differ, this is the first)",
        name, rank, differing, n);
}

static inline amp_status amp_mpi_compare_(amp_mpi *mpi, const struct amp_mpi_tensor_ *list, uint64_t *pairs, size_t n) {
    size_t first = n, differing = 0;
    for (size_t i = 0; i < n; i++) {
        pairs[2 * i] = amp_mpi_hash_(i, list[i].span.data, list[i].span.size * amp_mpi_width_(list[i].span.dtype));
        pairs[2 * i + 1] = ~pairs[2 * i];
    }
    amp_status status = amp_mpi_greatest_(mpi, pairs, n, "amp_mpi_check_equal");
    for (size_t i = n; i-- && status == AMP_OK;)
        if (pairs[2 * i] != ~pairs[2 * i + 1]) first = i, differing++;
    if (status != AMP_OK || first == n) return status;
    const amp_span *span = &list[first].span;
    return amp_mpi_blame_(mpi, amp_mpi_hash_(first, span->data, span->size * amp_mpi_width_(span->dtype)),
                          list[first].name, differing, n);
}

static inline amp_status amp_mpi_check_list_(amp_mpi *mpi, const struct amp_mpi_tensor_ *list, size_t n,
                                             amp_status status) {
    uint64_t *pairs = (uint64_t *)calloc(2 * n + 2, sizeof *pairs);
    if (!pairs && status == AMP_OK)
        status = amp_mpi_fail_(mpi, AMP_ERR_NO_MEMORY, "amp_mpi_check_equal: out of memory");
    status = amp_mpi_agree_(mpi, status, "amp_mpi_check_equal");
    if (status == AMP_OK)
        status = amp_mpi_same_(mpi, amp_mpi_layout_(list, n), "amp_mpi_check_equal",
                               "the ranks differ in number, names, sizes or types of their parameters");
    if (status == AMP_OK) status = amp_mpi_compare_(mpi, list, pairs, n);
    free(pairs);
    return status;
}

/* Have all ranks the same bits in every parameter and buffer of the model? A hash of each is compared: eight bytes a
 * parameter, whatever its size. AMP_ERR_CONFLICT, on all: the words name the first parameter that differs, and the
 * first rank that does not have what rank 0 has. */
AMP_MUST_CHECK static inline amp_status amp_mpi_check_equal(amp_mpi *mpi) {
    struct amp_mpi_tensor_ *list = (struct amp_mpi_tensor_ *)calloc(mpi->n_params + 1, sizeof *list);
    amp_status status = list ? amp_mpi_list_(mpi, list) : amp_mpi_fail_(mpi, AMP_ERR_NO_MEMORY, "out of memory");
    status = amp_mpi_check_list_(mpi, list, mpi->n_params, status);
    free(list);
    return status;
}

/* The optimizer's masters, all of them; *n is how many. To be freed. */
static inline amp_status amp_mpi_masters_(amp_mpi *mpi, amp_optimizer *optimizer, amp_master **masters, size_t *n) {
    amp_master one = AMP_MASTER_INIT;
    amp_status status = amp_master_params(optimizer, &one, 0, n);
    *masters = NULL;
    if (status != AMP_OK) return amp_mpi_said_(mpi, status);
    *masters = (amp_master *)calloc(*n + 1, sizeof **masters);
    if (!*masters) return amp_mpi_fail_(mpi, AMP_ERR_NO_MEMORY, "out of memory");
    **masters = one;
    return amp_mpi_said_(mpi, amp_master_params(optimizer, *masters, *n, n));
}

/* The same as a list, to be freed. */
static inline amp_status amp_mpi_masters_list_(amp_mpi *mpi, amp_optimizer *optimizer, struct amp_mpi_tensor_ **made,
                                               size_t *n) {
    amp_master *masters;
    amp_status status = amp_mpi_masters_(mpi, optimizer, &masters, n);
    struct amp_mpi_tensor_ *list = *made = (struct amp_mpi_tensor_ *)calloc(*n + 1, sizeof *list);
    if (!list && status == AMP_OK) status = amp_mpi_fail_(mpi, AMP_ERR_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < *n && status == AMP_OK; i++) {
        list[i].name = masters[i].name;
        list[i].span.data = masters[i].data, list[i].span.size = masters[i].size, list[i].span.dtype = masters[i].dtype;
        if (masters[i].strides)
            status = amp_mpi_fail_(mpi, AMP_ERR_UNSUPPORTED, "%s is no compact block", masters[i].name);
    }
    free(masters);
    return status;
}

/* The same for what an optimizer updates (amp_master_params): FP32 masters, where there are any. Outside brackets. Not
 * for AMP_OPTIMIZER_SHARDED, where each rank has others. */
AMP_MUST_CHECK static inline amp_status amp_mpi_check_masters(amp_mpi *mpi, amp_optimizer *optimizer) {
    size_t n = 0;
    struct amp_mpi_tensor_ *list;
    amp_status status = amp_mpi_masters_list_(mpi, optimizer, &list, &n);
    status = amp_mpi_check_list_(mpi, list, n, status);
    free(list);
    return status;
}

/* What an optimizer updates becomes what rank 0 has: behind an amp_mpi_broadcast that came after amp_initialize, and
 * amp_masters_reconcile. Outside brackets and steps; not for AMP_OPTIMIZER_SHARDED. */
AMP_MUST_CHECK static inline amp_status amp_mpi_broadcast_masters(amp_mpi *mpi, amp_optimizer *optimizer) {
    size_t n = 0;
    struct amp_mpi_tensor_ *list;
    amp_status status = amp_mpi_masters_list_(mpi, optimizer, &list, &n);
    status = amp_mpi_agree_(mpi, status, "amp_mpi_broadcast_masters");
    if (status == AMP_OK) status = amp_mpi_broadcast_list_(mpi, list, n);
    free(list);
    return status;
}

/* ---- Settings ---------------------------------------------------------------------------------------------------- */

/* The level with its properties as amp_explain has them, and the scales that the next brackets carry. */
static inline amp_status amp_mpi_settings_(amp_mpi *mpi, amp_context *context, char *text, size_t capacity) {
    amp_record record = AMP_RECORD_INIT;
    amp_status status = amp_explain(context, NULL, text, capacity, NULL);
    if (status != AMP_OK) return amp_mpi_said_(mpi, status);
    size_t length = strcspn(text, "\n");
    memset(text + length, 0, capacity - length);
    for (uint32_t loss = 0; length < capacity && amp_get_record(context, loss, &record) == AMP_OK; loss++)
        length += (size_t)snprintf(text + length, capacity - length, loss ? " and %g" : ", now %g",
                                   (double)record.scale_after);
    return AMP_OK;
}

/* Have all ranks the same level, with all that it stands for, as many losses, and the same scales? After amp_initialize
 * and amp_mpi_state_load, outside brackets: gradients of two scales have no average. AMP_ERR_CONFLICT, on all: the
 * words have the first rank with others than rank 0, and those of both. */
AMP_MUST_CHECK static inline amp_status amp_mpi_check_settings(amp_mpi *mpi, amp_context *context) {
    static const char what[] = "amp_mpi_check_settings";
    char own[256] = "", theirs[256] = "", wanted[256];
    int rank = 0;
    amp_status status = amp_mpi_agree_(mpi, amp_mpi_settings_(mpi, context, own, sizeof own), what);
    if (status == AMP_OK) status = amp_mpi_other_(mpi, amp_mpi_hash_(0, own, sizeof own), what, &rank);
    if (status != AMP_OK || rank == mpi->size) return status;
    memcpy(wanted, own, sizeof own);
    if (mpi->rank == rank) memcpy(theirs, own, sizeof own);
    status = amp_mpi_exchange_(mpi, wanted, sizeof wanted, 1, MPI_BYTE, MPI_OP_NULL, what);
    if (status == AMP_OK) status = amp_mpi_exchange_(mpi, theirs, sizeof theirs, 1, MPI_UNSIGNED_CHAR, MPI_MAX, what);
    if (status != AMP_OK) return status;
    return amp_mpi_fail_(mpi, AMP_ERR_CONFLICT, "the ranks' settings differ: rank %d has %.250s; rank 0 has %.250s",
                         rank, theirs, wanted);
}

#endif /* AMP_MPI_PARAMS_H */
