/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters that are equal on all ranks: at the start those of rank 0, later compared. Comes with amp_mpi.h.
 */
#ifndef AMP_MPI_PARAMS_H
#define AMP_MPI_PARAMS_H

#include "amp_mpi_ranks.h"

/* Sizes and types of the list; data is another matter. */
static inline uint64_t amp_mpi_layout_(const struct amp_mpi_tensor_ *list, size_t n) {
    uint64_t hash = amp_mpi_hash_(n, NULL, 0);
    for (size_t i = 0; i < n; i++) {
        hash = amp_mpi_hash_(hash, &list[i].span.size, sizeof list[i].span.size);
        hash = amp_mpi_hash_(hash, &list[i].span.dtype, sizeof list[i].span.dtype);
    }
    return hash;
}

static inline amp_status amp_mpi_broadcast_list_(amp_mpi *mpi, const struct amp_mpi_tensor_ *list) {
    static const char what[] = "amp_mpi_broadcast";
    amp_status status = amp_mpi_same_(mpi, amp_mpi_layout_(list, mpi->n_params), what,
                                      "the ranks' models differ in number, sizes or types of their parameters");
    for (size_t i = 0; i < mpi->n_params && status == AMP_OK; i++)
        status = amp_mpi_exchange_(mpi, list[i].span.data, list[i].span.size * amp_mpi_width_(list[i].span.dtype), 1,
                                   MPI_BYTE, MPI_OP_NULL, what);
    return status;
}

/* All parameters and buffers of the model become those of rank 0. Before amp_initialize; if later, outside brackets and
 * steps, and amp_masters_reconcile comes next (or the host counts its versions). AMP_ERR_CONFLICT: the ranks' models
 * are not of one shape. */
AMP_MUST_CHECK static inline amp_status amp_mpi_broadcast(amp_mpi *mpi) {
    struct amp_mpi_tensor_ *list = (struct amp_mpi_tensor_ *)calloc(mpi->n_params + 1, sizeof *list);
    amp_status status = list ? amp_mpi_list_(mpi, list) : amp_mpi_fail_(mpi, AMP_ERR_NO_MEMORY, "out of memory");
    status = amp_mpi_agree_(mpi, status, "amp_mpi_broadcast");
    if (status == AMP_OK) status = amp_mpi_broadcast_list_(mpi, list);
    free(list);
    return status;
}

/* Which rank has another number than rank 0? */
static inline amp_status amp_mpi_blame_(amp_mpi *mpi, uint64_t hash, const char *name, size_t differing, size_t n) {
    static const char what[] = "amp_mpi_check_equal";
    uint64_t wanted = hash;
    amp_status status = amp_mpi_exchange_(mpi, &wanted, 1, sizeof wanted, MPI_UINT64_T, MPI_OP_NULL, what);
    int rank = hash == wanted ? mpi->size : mpi->rank;
    if (status == AMP_OK) status = amp_mpi_exchange_(mpi, &rank, 1, sizeof rank, MPI_INT, MPI_MIN, what);
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
                               "the ranks differ in number, sizes or types of their parameters");
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

/* The same for what an optimizer updates (amp_master_params): FP32 masters, where there are any. Outside brackets. Not
 * for AMP_OPTIMIZER_SHARDED, where each rank has others. */
AMP_MUST_CHECK static inline amp_status amp_mpi_check_masters(amp_mpi *mpi, amp_optimizer *optimizer) {
    size_t n = 0;
    amp_master *masters;
    amp_status status = amp_mpi_masters_(mpi, optimizer, &masters, &n);
    struct amp_mpi_tensor_ *list = (struct amp_mpi_tensor_ *)calloc(n + 1, sizeof *list);
    if (!list && status == AMP_OK) status = amp_mpi_fail_(mpi, AMP_ERR_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < n && status == AMP_OK; i++) {
        list[i].name = masters[i].name;
        list[i].span.data = masters[i].data, list[i].span.size = masters[i].size, list[i].span.dtype = masters[i].dtype;
        if (masters[i].strides)
            status = amp_mpi_fail_(mpi, AMP_ERR_UNSUPPORTED, "%s is no compact block", masters[i].name);
    }
    status = amp_mpi_check_list_(mpi, list, n, status);
    free(list);
    free(masters);
    return status;
}

#endif /* AMP_MPI_PARAMS_H */
