/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters that are equal on all ranks: copied from rank 0 at the start, and compared later. Included by amp_mpi.h.
 */
#ifndef AMP_MPI_PARAMS_H
#define AMP_MPI_PARAMS_H

#include "amp_diagnostics.h"
#include "amp_mpi_ranks.h"

static inline amp_status amp_mpi_broadcast_list_(amp_mpi *mpi, amp_status own, const struct amp_mpi_tensor_ *list,
                                                 size_t n, const char *what) {
    amp_status status = amp_mpi_agree_list_(mpi, own, list, n, 0, what);
    for (size_t i = 0; i < n && status == AMP_OK; i++)
        status = amp_mpi_exchange_(mpi, list[i].span.data, list[i].span.size * amp_mpi_width_(list[i].span.dtype), 1,
                                   MPI_BYTE, MPI_OP_NULL, what);
    return status;
}

/* Copies the parameters and buffers of the model from rank 0 to all ranks. Call it before amp_initialize. Afterwards it
 * does not reach masters: call it outside brackets and steps, then amp_masters_reconcile, then
 * amp_mpi_broadcast_masters for each optimizer, since a 16-bit parameter does not have all bits of its master.
 * AMP_ERR_CONFLICT: shapes or names of the models differ between ranks. AMP_ERR_WRONG_STATE: amp_mpi_open was called
 * without a model. */
AMP_MUST_CHECK static inline amp_status amp_mpi_broadcast(amp_mpi *mpi) {
    struct amp_mpi_tensor_ *list = (struct amp_mpi_tensor_ *)calloc(mpi->n_params + 1, sizeof *list);
    amp_status status = list ? amp_mpi_list_(mpi, list) : amp_mpi_fail_(mpi, AMP_ERR_NO_MEMORY, "out of memory");
    status = amp_mpi_broadcast_list_(mpi, status, list, mpi->n_params, "amp_mpi_broadcast");
    free(list);
    return status;
}

/* Reports the first rank with another hash than rank 0. */
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
                                             amp_status status, const char *what) {
    uint64_t *pairs = (uint64_t *)calloc(2 * n + 2, sizeof *pairs);
    if (!pairs && status == AMP_OK)
        status = amp_mpi_fail_(mpi, AMP_ERR_NO_MEMORY, "%s: out of memory", what);
    status = amp_mpi_agree_list_(mpi, status, list, n, 0, what);
    if (status == AMP_OK) status = amp_mpi_compare_(mpi, list, pairs, n);
    free(pairs);
    return status;
}

/* Checks that every parameter and buffer of the model has the same bits on all ranks. It compares hashes, eight bytes a
 * parameter of any size. AMP_ERR_CONFLICT, on all ranks: the message names the first parameter that differs and the
 * first rank that differs from rank 0. */
AMP_MUST_CHECK static inline amp_status amp_mpi_check_equal(amp_mpi *mpi) {
    struct amp_mpi_tensor_ *list = (struct amp_mpi_tensor_ *)calloc(mpi->n_params + 1, sizeof *list);
    amp_status status = list ? amp_mpi_list_(mpi, list) : amp_mpi_fail_(mpi, AMP_ERR_NO_MEMORY, "out of memory");
    status = amp_mpi_check_list_(mpi, list, mpi->n_params, status, "amp_mpi_check_equal");
    free(list);
    return status;
}

/* Lists all masters of the optimizer, `*n` of them. The caller frees the list. */
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

/* Lists the masters as tensors. The caller frees the list. */
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

/* Checks the tensors that the optimizer updates (amp_master_params: FP32 masters if there are any) in the same way.
 * Outside brackets. Not for AMP_OPTIMIZER_SHARDED, since each rank updates others. */
AMP_MUST_CHECK static inline amp_status amp_mpi_check_masters(amp_mpi *mpi, amp_optimizer *optimizer) {
    size_t n = 0;
    struct amp_mpi_tensor_ *list;
    amp_status status = amp_mpi_masters_list_(mpi, optimizer, &list, &n);
    status = amp_mpi_check_list_(mpi, list, n, status, "amp_mpi_check_masters");
    free(list);
    return status;
}

/* Copies the tensors that the optimizer updates from rank 0 to all ranks, after amp_mpi_broadcast (if that came after
 * amp_initialize) and amp_masters_reconcile. Outside brackets and steps. Not for AMP_OPTIMIZER_SHARDED. */
AMP_MUST_CHECK static inline amp_status amp_mpi_broadcast_masters(amp_mpi *mpi, amp_optimizer *optimizer) {
    size_t n = 0;
    struct amp_mpi_tensor_ *list;
    amp_status status = amp_mpi_masters_list_(mpi, optimizer, &list, &n);
    status = amp_mpi_broadcast_list_(mpi, status, list, n, "amp_mpi_broadcast_masters");
    free(list);
    return status;
}

/* ---- Settings ---------------------------------------------------------------------------------------------------- */

/* Members of amp_config that must be equal on all ranks, since casts and scales depend on them. Reporting (log, trace),
 * measuring (gate) and checking (verify, observe) may differ. */
#define AMP_MPI_SETTINGS_(X)                                                                                           \
    X(level) X(enabled) X(patch_ops) X(keep_batchnorm_fp32) X(master_weights) X(cache) X(cast_model_type)              \
    X(cast_model_outputs) X(lists) X(emulate) X(num_losses) X(scaler) X(loss_scale) X(init_scale) X(min_scale)         \
    X(max_scale) X(growth) X(backoff) X(window) X(hysteresis) X(consecutive_hysteresis) X(max_skips) X(check_finite)
/* Members of the amp_record of a loss that determine its next scales. */
#define AMP_MPI_COURSE_(X)                                                                                             \
    X(scale_after) X(next_scale) X(unskipped) X(hysteresis_left) X(clean_run) X(skips_in_row)

enum { AMP_MPI_MOST_ = 32 }; /* most numbers compared at a time */

/* Lists the configuration (`loss` 0) or the state of loss `loss` - 1 as numbers, which are exact in a double.
 * AMP_ERR_NOT_FOUND: no such loss. */
static inline amp_status amp_mpi_settings_(amp_mpi *mpi, amp_context *context, uint32_t loss,
                                           const char *names[AMP_MPI_MOST_], double numbers[AMP_MPI_MOST_]) {
    amp_config config = AMP_CONFIG_INIT;
    amp_record record = AMP_RECORD_INIT;
    size_t n = 0;
    memset(numbers, 0, AMP_MPI_MOST_ * sizeof *numbers);
    amp_status status = amp_get_config(context, &config);
    if (status == AMP_OK && loss > config.num_losses) return AMP_ERR_NOT_FOUND;
    if (status == AMP_OK && loss) status = amp_get_record(context, loss - 1, &record);
    if (status != AMP_OK) return amp_mpi_said_(mpi, status);
#define AMP_MPI_NUMBER_(member) names[n] = #member, numbers[n++] = (double)config.member;
    if (!loss) { AMP_MPI_SETTINGS_(AMP_MPI_NUMBER_) }
#undef AMP_MPI_NUMBER_
#define AMP_MPI_NUMBER_(member) names[n] = #member, numbers[n++] = (double)record.member;
    if (loss) { AMP_MPI_COURSE_(AMP_MPI_NUMBER_) }
#undef AMP_MPI_NUMBER_
    return AMP_OK;
}

static inline void amp_mpi_number_(const char *name, double number, char text[40]) {
    snprintf(text, 40, "%.12g", number);
    if (strcmp(name, "level")) return;
#define AMP_MPI_LEVEL_(constant, value, ...)                                                                           \
    if ((int)number == value) strcpy(text, #constant);
    AMP_LEVEL_MAP(AMP_MPI_LEVEL_)
#undef AMP_MPI_LEVEL_
}

/* Compares the numbers on all ranks. AMP_ERR_CONFLICT: the message names the first member that differs and the first
 * rank that differs from rank 0. */
static inline amp_status amp_mpi_settings_differ_(amp_mpi *mpi, const char *const *names, const double *own,
                                                  uint32_t loss, const char *what) {
    double wanted[AMP_MPI_MOST_], theirs[AMP_MPI_MOST_] = { 0 };
    char of_loss[32] = "", text[2][40];
    int rank = 0, i = 0;
    amp_status status = amp_mpi_other_(mpi, amp_mpi_hash_(0, own, sizeof wanted), what, &rank);
    if (status != AMP_OK || rank == mpi->size) return status;
    memcpy(wanted, own, sizeof wanted);
    if (mpi->rank == rank) memcpy(theirs, own, sizeof theirs);
    status = amp_mpi_exchange_(mpi, wanted, sizeof wanted, 1, MPI_BYTE, MPI_OP_NULL, what);
    if (status == AMP_OK) /* zeros from all other ranks: a sum of bits, since MPI_MAX of bytes is signed in MPICH */
        status = amp_mpi_exchange_(mpi, theirs, AMP_MPI_MOST_, sizeof *theirs, MPI_UINT64_T, MPI_SUM, what);
    if (status != AMP_OK) return status;
    while (i + 1 < AMP_MPI_MOST_ && !memcmp(&theirs[i], &wanted[i], sizeof wanted[i])) i++;
    amp_mpi_number_(names[i], theirs[i], text[0]);
    amp_mpi_number_(names[i], wanted[i], text[1]);
    if (loss) snprintf(of_loss, sizeof of_loss, " of loss %u", (unsigned)loss - 1);
    return amp_mpi_fail_(mpi, AMP_ERR_CONFLICT,
                         "%s: the ranks' settings differ: rank %d has %s %s%s, rank 0 has %s", what, rank, names[i],
                         text[0], of_loss, text[1]);
}

/* Checks that all ranks have the same configuration, as far as ops and scales depend on it, and that each loss has the
 * same scale and scaler state on all ranks. Call it after amp_initialize and after amp_mpi_state_load, outside
 * brackets: gradients with different scales cannot be averaged. AMP_ERR_CONFLICT, on all ranks: the message names the
 * member of amp_config or amp_record, the first rank that differs from rank 0, and both values. */
AMP_MUST_CHECK static inline amp_status amp_mpi_check_settings(amp_mpi *mpi, amp_context *context) {
    static const char what[] = "amp_mpi_check_settings";
    const char *names[AMP_MPI_MOST_];
    double numbers[AMP_MPI_MOST_];
    uint64_t hash = 0;
    int differs = 0;
    amp_status status = AMP_OK;
    for (uint32_t loss = 0; status == AMP_OK; loss++) {
        status = amp_mpi_settings_(mpi, context, loss, names, numbers);
        if (status == AMP_OK) hash = amp_mpi_hash_(hash, numbers, sizeof numbers);
    }
    if (status == AMP_ERR_NOT_FOUND) status = AMP_OK;
    status = amp_mpi_agree_on_(mpi, status, hash, what, &differs);
    for (uint32_t loss = 0; status == AMP_OK && differs; loss++) {
        status = amp_mpi_settings_(mpi, context, loss, names, numbers);
        if (status == AMP_OK) status = amp_mpi_settings_differ_(mpi, names, numbers, loss, what);
    }
    return status;
}

#endif /* AMP_MPI_PARAMS_H */
