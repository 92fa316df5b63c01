/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters that are equal on all ranks: at the start those of rank 0, later compared. Comes with amp_mpi.h.
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

/* All parameters and buffers of the model become those of rank 0. Before amp_initialize: later it cannot be seen from
 * here, and masters stay as they are; outside brackets and steps amp_masters_reconcile comes next then, and
 * amp_mpi_broadcast_masters for each optimizer: a 16-bit parameter does not have all of its master. AMP_ERR_CONFLICT:
 * the ranks' models are not of one shape, or name their parameters differently; AMP_ERR_WRONG_STATE: amp_mpi_open was
 * given no model. */
AMP_MUST_CHECK static inline amp_status amp_mpi_broadcast(amp_mpi *mpi) {
    struct amp_mpi_tensor_ *list = (struct amp_mpi_tensor_ *)calloc(mpi->n_params + 1, sizeof *list);
    amp_status status = list ? amp_mpi_list_(mpi, list) : amp_mpi_fail_(mpi, AMP_ERR_NO_MEMORY, "out of memory");
    status = amp_mpi_broadcast_list_(mpi, status, list, mpi->n_params, "amp_mpi_broadcast");
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
                                             amp_status status, const char *what) {
    uint64_t *pairs = (uint64_t *)calloc(2 * n + 2, sizeof *pairs);
    if (!pairs && status == AMP_OK)
        status = amp_mpi_fail_(mpi, AMP_ERR_NO_MEMORY, "%s: out of memory", what);
    status = amp_mpi_agree_list_(mpi, status, list, n, 0, what);
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
    status = amp_mpi_check_list_(mpi, list, mpi->n_params, status, "amp_mpi_check_equal");
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
    status = amp_mpi_check_list_(mpi, list, n, status, "amp_mpi_check_masters");
    free(list);
    return status;
}

/* What an optimizer updates becomes what rank 0 has: behind an amp_mpi_broadcast that came after amp_initialize, and
 * amp_masters_reconcile. Outside brackets and steps; not for AMP_OPTIMIZER_SHARDED. */
AMP_MUST_CHECK static inline amp_status amp_mpi_broadcast_masters(amp_mpi *mpi, amp_optimizer *optimizer) {
    size_t n = 0;
    struct amp_mpi_tensor_ *list;
    amp_status status = amp_mpi_masters_list_(mpi, optimizer, &list, &n);
    status = amp_mpi_broadcast_list_(mpi, status, list, n, "amp_mpi_broadcast_masters");
    free(list);
    return status;
}

/* ---- Settings ---------------------------------------------------------------------------------------------------- */

/* Members of amp_config that the ranks share: what is cast, and the scale's course. Not those that say how a rank
 * reports (log, trace), measures (gate) or is watched (verify, observe). */
#define AMP_MPI_SETTINGS_(X)                                                                                           \
    X(level) X(enabled) X(patch_ops) X(keep_batchnorm_fp32) X(master_weights) X(cache) X(cast_model_type)              \
    X(cast_model_outputs) X(lists) X(emulate) X(num_losses) X(scaler) X(loss_scale) X(init_scale) X(min_scale)         \
    X(max_scale) X(growth) X(backoff) X(window) X(hysteresis) X(consecutive_hysteresis) X(max_skips) X(check_finite)
/* Members of a loss's amp_record that decide its next scales. */
#define AMP_MPI_COURSE_(X)                                                                                             \
    X(scale_after) X(next_scale) X(unskipped) X(hysteresis_left) X(clean_run) X(skips_in_row)

enum { AMP_MPI_MOST_ = 32 }; /* numbers that are compared at a time */

/* The configuration (`loss` 0), or loss `loss` - 1; all of it is exact in a double. AMP_ERR_NOT_FOUND: there is no such
 * loss. */
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

/* Of settings that differ, on all ranks: AMP_ERR_CONFLICT with the first member, and the first rank that has another
 * than rank 0. */
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
    if (status == AMP_OK) /* zeros of all others; the sum of bits, for MPICH's maximum of bytes has a sign */
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

/* Have all ranks one configuration, in all that the ops and the course of the scale hang on, and do their losses have
 * the same scales at the same place of that course? After amp_initialize and amp_mpi_state_load, outside brackets:
 * gradients of two scales have no average. AMP_ERR_CONFLICT, on all: the words have the member of amp_config or
 * amp_record, the first rank with another than rank 0, and both. */
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
