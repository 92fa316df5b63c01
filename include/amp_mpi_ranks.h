/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks of an MPI job in libamp, and their common decisions. Included by amp_mpi.h, which has the rules and errors.
 */
#ifndef AMP_MPI_RANKS_H
#define AMP_MPI_RANKS_H

#include "amp_kernels.h"

#include <mpi.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Common parts ------------------------------------------------------------------------------------------------ */

enum { AMP_MPI_ROOM_ = 1 << 20 }; /* bytes in a message without gradients */

/* Ranks, and the model that each of them has. Members are private. */
typedef struct amp_mpi {
    MPI_Comm comm;       /* a duplicate of the communicator */
    MPI_Datatype word;   /* type of struct amp_mpi_word_ */
    MPI_Op combine;      /* amp_mpi_combine_ as an MPI operation */
    int rank, size;      /* this rank, and the number of ranks */
    double timeout;      /* seconds (0: none) */
    amp_host host;       /* hooks of the host of the model */
    amp_param *params;   /* parameters of the model, with copies of their names */
    size_t n_params;     /* entries of params */
    char *room;          /* message buffer of AMP_MPI_ROOM_ bytes, which MPI may still write to after a timeout */
    MPI_Request request; /* request of the message in room */
    int lost;            /* 1: out of step (AMP_ERR_BACKEND), so that nothing is sent or freed and `why` stays */
    char why[600];       /* message of the last error */
} amp_mpi;

/* A tensor with its name. */
struct amp_mpi_tensor_ {
    const char *name;
    amp_span span;
};

#ifdef __GNUC__
__attribute__((format(printf, 3, 4)))
#endif
static inline amp_status amp_mpi_fail_(amp_mpi *mpi, amp_status status, const char *format, ...) {
    va_list values;
    if (mpi->lost) return AMP_ERR_BACKEND;
    va_start(values, format);
    vsnprintf(mpi->why, sizeof mpi->why, format, values);
    va_end(values);
    mpi->lost = status == AMP_ERR_BACKEND;
    return status;
}

/* Converts the status of a function of libamp. */
static inline amp_status amp_mpi_said_(amp_mpi *mpi, amp_status status) {
    return status == AMP_OK ? AMP_OK : amp_mpi_fail_(mpi, status, "%s", amp_last_error());
}

/* Converts the return code of a function of MPI. */
static inline amp_status amp_mpi_code_(amp_mpi *mpi, int code, const char *what) {
    char words[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS) return AMP_OK;
    MPI_Error_string(code, words, &length);
    return amp_mpi_fail_(mpi, AMP_ERR_BACKEND, "%s: rank %d of %d: MPI says: %.200s", what, mpi->rank, mpi->size,
                         words);
}

/* Calls MPI_Wait for a complete request. Open MPI passes the error of a collective request to the error handler of
 * MPI_COMM_WORLD (MPI 4: of MPI_COMM_SELF), which ends the job. So that handler returns errors during the call. */
static inline int amp_mpi_take_(MPI_Request *request) {
    MPI_Comm comms[2];
    MPI_Errhandler handlers[2];
    comms[0] = MPI_COMM_WORLD, comms[1] = MPI_COMM_SELF;
    for (int i = 0; i < 2; i++) {
        MPI_Comm_get_errhandler(comms[i], &handlers[i]);
        MPI_Comm_set_errhandler(comms[i], MPI_ERRORS_RETURN);
    }
    const int code = MPI_Wait(request, MPI_STATUS_IGNORE);
    for (int i = 0; i < 2; i++) {
        MPI_Comm_set_errhandler(comms[i], handlers[i]);
        MPI_Errhandler_free(&handlers[i]);
    }
    return code;
}

/* Calls MPI_Test with errors as codes. */
static inline int amp_mpi_test_(MPI_Request *request, int *done) {
    const int code = MPI_Request_get_status(*request, done, MPI_STATUS_IGNORE);
    return code == MPI_SUCCESS && *done ? amp_mpi_take_(request) : code;
}

/* Waits for a request that was started with `code`. */
static inline amp_status amp_mpi_wait_(amp_mpi *mpi, int code, MPI_Request *request, const char *what) {
    const double since = MPI_Wtime();
    int done = 0;
    while (code == MPI_SUCCESS && !done) {
        code = amp_mpi_test_(request, &done);
        if (code == MPI_SUCCESS && !done && mpi->timeout > 0.0 && MPI_Wtime() - since > mpi->timeout)
            return amp_mpi_fail_(
                mpi, AMP_ERR_BACKEND,
                "%s: rank %d of %d has waited %g s for the others: one of them is gone, hangs, or makes "
                "other calls. End the job (MPI_Abort)",
                what, mpi->rank, mpi->size, mpi->timeout);
    }
    return amp_mpi_code_(mpi, code, what);
}

/* Combines `n` elements of `width` bytes over the ranks in place, or copies those of rank 0 (MPI_OP_NULL). They travel
 * in `room`, since the memory of the caller, often its stack, may be gone when MPI uses it after a timeout. */
static inline amp_status amp_mpi_exchange_(amp_mpi *mpi, void *data, uint64_t n, size_t width, MPI_Datatype type,
                                           MPI_Op op, const char *what) {
    amp_status status = mpi->lost ? AMP_ERR_BACKEND : AMP_OK;
    for (char *at = (char *)data; n && status == AMP_OK;) {
        const uint64_t most = AMP_MPI_ROOM_ / width, count = n < most ? n : most;
        memcpy(mpi->room, at, (size_t)count * width);
        const int code = op == MPI_OP_NULL ? MPI_Ibcast(mpi->room, (int)count, type, 0, mpi->comm, &mpi->request)
                                           : MPI_Iallreduce(MPI_IN_PLACE, mpi->room, (int)count, type, op, mpi->comm,
                                                            &mpi->request);
        status = amp_mpi_wait_(mpi, code, &mpi->request, what);
        if (status == AMP_OK) memcpy(at, mpi->room, (size_t)count * width);
        at += count * width, n -= count;
    }
    return status;
}

static inline uint64_t amp_mpi_hash_(uint64_t hash, const void *data, uint64_t bytes) {
    const char *at = (const char *)data;
    for (; bytes; at += bytes < 8 ? bytes : 8, bytes -= bytes < 8 ? bytes : 8) {
        uint64_t word = 0;
        memcpy(&word, at, bytes < 8 ? (size_t)bytes : 8);
        hash = ((hash ^ word) + UINT64_C(0x9e3779b97f4a7c15)) * UINT64_C(0xff51afd7ed558ccd);
        hash ^= hash >> 32;
    }
    return hash;
}

static inline uint64_t amp_mpi_width_(amp_dtype dtype) {
    return dtype == AMP_FLOAT64 ? 8 : dtype == AMP_FLOAT32 ? 4 : dtype == AMP_FLOAT16 || dtype == AMP_BFLOAT16 ? 2 : 0;
}

/* ---- Words ------------------------------------------------------------------------------------------------------- */

/* The first message of every call of all ranks. It has the same size for every call, so that ranks with different
 * calls, or different arguments, find out before anything else is sent. */
#define AMP_MPI_VALUES_ 4 /* values in a word */
struct amp_mpi_word_ {
    uint64_t call;                   /* hash of the call (0: calls differ between ranks) */
    uint64_t same;                   /* hash of arguments that must be equal */
    int32_t differs;                 /* 1: `same` differs between ranks */
    int32_t reduction;               /* AMP_REDUCE_* for values */
    int32_t status;                  /* worst status of any rank */
    int32_t rank;                    /* first rank with that status */
    double values[AMP_MPI_VALUES_];  /* values combined by `reduction` */
};

/* Combines `n` words of `in` and `out` into `out`, as an MPI_Op. The buffers of MPI may have any alignment. */
static inline void amp_mpi_combine_(void *in, void *out, int *n, MPI_Datatype *type) {
    (void)type;
    for (int i = 0; i < *n; i++) {
        struct amp_mpi_word_ a, b;
        char *at = (char *)out + (size_t)i * sizeof b;
        memcpy(&a, (char *)in + (size_t)i * sizeof a, sizeof a);
        memcpy(&b, at, sizeof b);
        if (a.call != b.call) b.call = 0;
        if (a.differs || a.same != b.same) b.differs = 1;
        if (a.status < b.status || (a.status == b.status && a.rank < b.rank)) b.status = a.status, b.rank = a.rank;
        for (int k = 0; k < AMP_MPI_VALUES_; k++) /* NaN counts as the largest */
            if (b.reduction != AMP_REDUCE_MAX) b.values[k] += a.values[k];
            else if (a.values[k] > b.values[k] || a.values[k] != a.values[k]) b.values[k] = a.values[k];
        memcpy(at, &b, sizeof b);
    }
}

static inline amp_status amp_mpi_meet_(amp_mpi *mpi, struct amp_mpi_word_ *word, const char *what) {
    if (mpi->lost) return AMP_ERR_BACKEND;
    word->rank = mpi->rank;
    memcpy(mpi->room, word, sizeof *word);
    const int code = MPI_Iallreduce(MPI_IN_PLACE, mpi->room, 1, mpi->word, mpi->combine, mpi->comm, &mpi->request);
    const amp_status status = amp_mpi_wait_(mpi, code, &mpi->request, what);
    if (status != AMP_OK) return status;
    memcpy(word, mpi->room, sizeof *word);
    if (word->call) return AMP_OK;
    return amp_mpi_fail_(mpi, AMP_ERR_BACKEND,
                         "%s: rank %d of %d makes this call, and another rank makes another one, or the same for other "
                         "values: the ranks are out of step. End the job (MPI_Abort)",
                         what, mpi->rank, mpi->size);
}

/* Waits until every rank has made this call. Returns the worst status, with its rank, on all ranks. `*differs`: the
 * numbers `same` are not equal. */
static inline amp_status amp_mpi_agree_on_(amp_mpi *mpi, amp_status own, uint64_t same, const char *what,
                                           int *differs) {
    struct amp_mpi_word_ word;
    memset(&word, 0, sizeof word);
    word.call = amp_mpi_hash_(1, what, strlen(what)) | 1, word.same = same, word.status = own;
    const amp_status status = amp_mpi_meet_(mpi, &word, what);
    *differs = status == AMP_OK && word.differs;
    if (own != AMP_OK || status != AMP_OK) return status != AMP_OK ? status : own;
    if (word.status == AMP_OK) return AMP_OK;
    return amp_mpi_fail_(mpi, AMP_ERR_HOST_FAILED, "%s: rank %d failed with %s", what, word.rank,
                         amp_status_name(word.status));
}

static inline amp_status amp_mpi_agree_(amp_mpi *mpi, amp_status own, const char *what) {
    int differs;
    return amp_mpi_agree_on_(mpi, own, 0, what, &differs);
}

/* Takes the maxima over the ranks of `n` numbers, each beside its complement. A number is equal on all ranks if the
 * maxima are complements of each other. */
static inline amp_status amp_mpi_greatest_(amp_mpi *mpi, uint64_t *pairs, size_t n, const char *what) {
    return amp_mpi_exchange_(mpi, pairs, 2 * n, sizeof *pairs, MPI_UINT64_T, MPI_MAX, what);
}

/* Finds the first rank with another number than rank 0, or `size` if there is none. */
static inline amp_status amp_mpi_other_(amp_mpi *mpi, uint64_t number, const char *what, int *rank) {
    uint64_t wanted = number;
    amp_status status = amp_mpi_exchange_(mpi, &wanted, 1, sizeof wanted, MPI_UINT64_T, MPI_OP_NULL, what);
    *rank = number == wanted ? mpi->size : mpi->rank;
    if (status == AMP_OK) status = amp_mpi_exchange_(mpi, rank, 1, sizeof *rank, MPI_INT, MPI_MIN, what);
    return status;
}

/* ---- Lists ------------------------------------------------------------------------------------------------------- */

/* Hashes the names, sizes and types of the list, in order, without data. */
static inline uint64_t amp_mpi_layout_(const struct amp_mpi_tensor_ *list, size_t n) {
    uint64_t hash = amp_mpi_hash_(n, NULL, 0);
    for (size_t i = 0; i < n; i++) {
        hash = amp_mpi_hash_(hash, list[i].name, strlen(list[i].name));
        hash = amp_mpi_hash_(hash, &list[i].span.size, sizeof list[i].span.size);
        hash = amp_mpi_hash_(hash, &list[i].span.dtype, sizeof list[i].span.dtype);
    }
    return hash;
}

/* Finds by bisection the number of leading entries that are equal on all ranks. */
static inline amp_status amp_mpi_bisect_(amp_mpi *mpi, const struct amp_mpi_tensor_ *list, size_t n, const char *what,
                                         size_t *equal) {
    size_t differs = n + 1; /* least number of leading entries known to differ */
    amp_status status = AMP_OK;
    for (*equal = 0; status == AMP_OK && differs - *equal > 1;) {
        const size_t half = differs > n ? n : *equal + (differs - *equal) / 2;
        uint64_t pair[2];
        pair[0] = amp_mpi_layout_(list, half), pair[1] = ~pair[0];
        status = amp_mpi_greatest_(mpi, pair, 1, what);
        if (pair[0] == ~pair[1]) *equal = half;
        else differs = half;
    }
    return status;
}

/* Compares lists on all ranks. AMP_ERR_CONFLICT names the first entry and rank that differ. AMP_OK: the lists are
 * equal. */
static inline amp_status amp_mpi_lists_differ_(amp_mpi *mpi, const struct amp_mpi_tensor_ *list, size_t n,
                                               const char *what) {
    static const char differ[] = "the ranks' lists of parameters differ in number, names, sizes, types or order";
    int rank = 0;
    size_t i = 0;
    amp_status status = amp_mpi_other_(mpi, n, what, &rank);
    if (status == AMP_OK && rank < mpi->size)
        return amp_mpi_fail_(mpi, AMP_ERR_CONFLICT,
                             "%s: %s: rank %d does not list as many as rank 0 (%zu on rank %d)", what, differ,
                             rank, n, mpi->rank);
    if (status == AMP_OK) status = amp_mpi_bisect_(mpi, list, n, what, &i);
    if (status != AMP_OK || i == n) return status;
    status = amp_mpi_other_(mpi, amp_mpi_layout_(&list[i], 1), what, &rank);
    if (status != AMP_OK) return status;
    return amp_mpi_fail_(mpi, AMP_ERR_CONFLICT,
                         "%s: %s: rank %d does not have what rank 0 has at place %zu (on rank %d that is %.200s of "
                         "%llu elements of %llu bytes)",
                         what, differ, rank, i, mpi->rank, list[i].name, (unsigned long long)list[i].span.size,
                         (unsigned long long)amp_mpi_width_(list[i].span.dtype));
}

/* Waits until every rank has made this call, with the same list and hash of options. */
static inline amp_status amp_mpi_agree_list_(amp_mpi *mpi, amp_status own, const struct amp_mpi_tensor_ *list, size_t n,
                                             uint64_t options, const char *what) {
    int differs = 0;
    const uint64_t same = own == AMP_OK ? amp_mpi_layout_(list, n) : 0;
    amp_status status = amp_mpi_agree_on_(mpi, own, amp_mpi_hash_(same, &options, sizeof options), what, &differs);
    if (status != AMP_OK || !differs) return status;
    status = amp_mpi_lists_differ_(mpi, list, n, what);
    if (status != AMP_OK) return status;
    return amp_mpi_fail_(mpi, AMP_ERR_CONFLICT, "%s: the ranks' options differ", what);
}

/* ---- Handles of the host ----------------------------------------------------------------------------------------- */

static inline const char *amp_mpi_name_(const amp_mpi *mpi, const void *handle) {
    for (size_t i = 0; i < mpi->n_params; i++)
        if (mpi->params[i].tensor == handle) return mpi->params[i].name;
    return "a parameter that the model does not list";
}

static inline amp_dtype amp_mpi_dtype_(const amp_tensor_view *view) {
    if (view->dtype.code == 4 && view->dtype.bits == 16) return AMP_BFLOAT16;
    if (view->dtype.code != 2) return AMP_DTYPE_OTHER;
    return view->dtype.bits == 16   ? AMP_FLOAT16
           : view->dtype.bits == 32 ? AMP_FLOAT32
           : view->dtype.bits == 64 ? AMP_FLOAT64
                                    : AMP_DTYPE_OTHER;
}

static inline amp_status amp_mpi_modelled_(amp_mpi *mpi) {
    if (mpi->host.view) return AMP_OK;
    return amp_mpi_fail_(mpi, AMP_ERR_WRONG_STATE, "amp_mpi_open was given no model: this call needs its parameters");
}

/* Reads a handle as a compact block in CPU memory. */
static inline amp_status amp_mpi_look_(amp_mpi *mpi, void *handle, const char *what, const char *name, amp_span *span) {
    amp_tensor_view view;
    int64_t size = 1;
    int compact = 1;
    memset(&view, 0, sizeof view);
    if (!mpi->host.view) return amp_mpi_modelled_(mpi);
    if (mpi->host.view(mpi->host.self, handle, &view) != AMP_OK)
        return amp_mpi_fail_(mpi, AMP_ERR_HOST_FAILED, "%s %s: the hook view failed", what, name);
    for (int32_t i = view.ndim; i--; size *= view.shape[i])
        compact &= !view.strides || view.shape[i] == 1 || view.strides[i] == size;
    if (!compact || view.device.type > 1)
        return amp_mpi_fail_(mpi, AMP_ERR_UNSUPPORTED, "%s %s is no compact block in the CPU's memory", what, name);
    span->data = (char *)view.data + view.byte_offset;
    span->size = (uint64_t)size;
    span->dtype = amp_mpi_dtype_(&view);
    span->reserved = 0;
    if (span->dtype != AMP_DTYPE_OTHER) return AMP_OK;
    return amp_mpi_fail_(mpi, AMP_ERR_UNSUPPORTED, "%s %s has no floating type", what, name);
}

static inline amp_status amp_mpi_list_(amp_mpi *mpi, struct amp_mpi_tensor_ *list) {
    amp_status status = amp_mpi_modelled_(mpi);
    for (size_t i = 0; i < mpi->n_params && status == AMP_OK; i++) {
        list[i].name = mpi->params[i].name;
        status = amp_mpi_look_(mpi, mpi->params[i].tensor, "parameter", list[i].name, &list[i].span);
    }
    return status;
}

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

/* Returns 1 between MPI_Init and MPI_Finalize. Outside, any other call of MPI ends the job. */
static inline int amp_mpi_runs_(void) {
    int begun = 0, ended = 0;
    return MPI_Initialized(&begun) == MPI_SUCCESS && begun && MPI_Finalized(&ended) == MPI_SUCCESS && !ended;
}

/* Duplicates a communicator with errors as codes, without a call of the error handler of the host, which often ends the
 * job. */
static inline int amp_mpi_dup_(MPI_Comm comm, MPI_Comm *made) {
    MPI_Errhandler handler;
    int code = MPI_Comm_get_errhandler(comm, &handler);
    *made = MPI_COMM_NULL;
    if (code != MPI_SUCCESS) return code;
    code = MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS) code = MPI_Comm_dup(comm, made);
    if (code == MPI_SUCCESS) code = MPI_Comm_set_errhandler(*made, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(comm, handler);
    MPI_Errhandler_free(&handler);
    return code;
}

/* Closes the ranks. A call of all ranks, before MPI_Finalize and after closing what was opened on it. NULL: no effect.
 * After AMP_ERR_BACKEND nothing is freed, by this or other closing functions, since MPI may still write to the
 * memory. */
static inline void amp_mpi_close(amp_mpi *mpi) {
    if (!mpi || mpi->lost) return;
    for (size_t i = 0; mpi->params && i < mpi->n_params; i++) free((void *)(uintptr_t)mpi->params[i].name);
    free(mpi->params);
    free(mpi->room);
    if (amp_mpi_runs_()) {
        if (mpi->combine != MPI_OP_NULL) MPI_Op_free(&mpi->combine);
        if (mpi->word != MPI_DATATYPE_NULL) MPI_Type_free(&mpi->word);
        MPI_Comm_free(&mpi->comm);
    }
    free(mpi);
}

/* Returns the message of the last error on `mpi`. NULL: the conditions of amp_mpi_open. */
static inline const char *amp_mpi_error(const amp_mpi *mpi) {
    return mpi ? mpi->why
               : "amp_mpi_open: MPI_Init comes first and MPI_Finalize after amp_mpi_close, the communicator has one "
                 "group, the model's host needs the hook view, and there must be memory";
}

static inline int amp_mpi_copy_params_(amp_mpi *mpi, const amp_model *model) {
    mpi->params = (amp_param *)calloc(model->n_params + 1, sizeof *mpi->params);
    for (size_t i = 0; mpi->params && i < model->n_params; i++) {
        const amp_param *param = (const amp_param *)((const char *)model->params + i * model->params->struct_size);
        char *name = (char *)malloc(param->name ? strlen(param->name) + 1 : 32);
        if (!name) return 0;
        if (param->name) strcpy(name, param->name);
        else snprintf(name, 32, "param.%zu", i);
        mpi->params[i].tensor = param->tensor, mpi->params[i].name = name;
        mpi->n_params = i + 1;
    }
    return mpi->params != NULL;
}

/* Opens the ranks of `comm`, which remains the property of the host. `model`: its hooks, parameters and buffers with
 * their names are copied, handles are kept. model NULL: only amp_mpi_reduce, settings and masters are available. A call
 * of all ranks. AMP_ERR_INVALID_ARGUMENT: MPI_COMM_NULL, or an intercommunicator. AMP_ERR_WRONG_STATE: before MPI_Init
 * or after MPI_Finalize. AMP_ERR_MISSING_HOOK: no hook `view`. AMP_ERR_NO_MEMORY, AMP_ERR_BACKEND: end the job. */
AMP_MUST_CHECK static inline amp_status amp_mpi_open(MPI_Comm comm, const amp_model *model, amp_mpi **mpi) {
    int groups = 0;
    if (!mpi) return AMP_ERR_INVALID_ARGUMENT;
    if (!amp_mpi_runs_()) return AMP_ERR_WRONG_STATE;
    if (comm == MPI_COMM_NULL || MPI_Comm_test_inter(comm, &groups) != MPI_SUCCESS || groups)
        return AMP_ERR_INVALID_ARGUMENT;
    if (model && (!model->host || !model->host->view)) return AMP_ERR_MISSING_HOOK;
    amp_mpi *made = (amp_mpi *)calloc(1, sizeof *made);
    if (!made) return AMP_ERR_NO_MEMORY;
    if (amp_mpi_dup_(comm, &made->comm) != MPI_SUCCESS) {
        free(made);
        return AMP_ERR_BACKEND;
    }
    made->word = MPI_DATATYPE_NULL, made->combine = MPI_OP_NULL;
    MPI_Comm_rank(made->comm, &made->rank);
    MPI_Comm_size(made->comm, &made->size);
    MPI_Type_contiguous((int)sizeof(struct amp_mpi_word_), MPI_BYTE, &made->word);
    MPI_Type_commit(&made->word);
    MPI_Op_create(amp_mpi_combine_, 1, &made->combine);
    if (model)
        memcpy(&made->host, model->host,
               model->host->struct_size < sizeof made->host ? model->host->struct_size : sizeof made->host);
    made->room = (char *)malloc(AMP_MPI_ROOM_);
    if (!made->room || (model && !amp_mpi_copy_params_(made, model))) {
        amp_mpi_close(made);
        return AMP_ERR_NO_MEMORY;
    }
    *mpi = made;
    return AMP_OK;
}

/* Sets the seconds that one rank waits for the others before it reports a lost rank. 0 (the default) or less: no limit.
 * Choose more than the slowest rank can be late, with time for saving and evaluation. It detects ranks that hang, and
 * ranks that died under a launcher that does not end the job. AMP_ERR_INVALID_ARGUMENT: NaN; the timeout stays. */
static inline amp_status amp_mpi_set_timeout(amp_mpi *mpi, double seconds) {
    if (seconds != seconds)
        return amp_mpi_fail_(mpi, AMP_ERR_INVALID_ARGUMENT,
                             "amp_mpi_set_timeout: the timeout is NaN: give it in seconds, or 0 for none");
    mpi->timeout = seconds;
    return AMP_OK;
}

/* ---- Decisions --------------------------------------------------------------------------------------------------- */

/* Reduces values over the ranks, as the hook amp_host.reduce must. AMP_ERR_BACKEND: another rank reduces with another
 * operation or number of values, so it is at another point of the program. */
AMP_MUST_CHECK static inline amp_status amp_mpi_reduce(amp_mpi *mpi, amp_reduction reduction, double *values,
                                                       size_t n) {
    static const char what[] = "amp_mpi_reduce";
    amp_status status = AMP_OK;
    for (size_t at = 0; at < n && status == AMP_OK; at += AMP_MPI_VALUES_) {
        const size_t bytes = (n - at < AMP_MPI_VALUES_ ? n - at : AMP_MPI_VALUES_) * sizeof *values;
        struct amp_mpi_word_ word;
        memset(&word, 0, sizeof word);
        word.call = (amp_mpi_hash_(n, what, sizeof what) ^ (uint64_t)reduction << 32) | 1, word.reduction = reduction;
        memcpy(word.values, values + at, bytes);
        status = amp_mpi_meet_(mpi, &word, what);
        if (status == AMP_OK) memcpy(values + at, word.values, bytes);
    }
    return status;
}

#endif /* AMP_MPI_RANKS_H */
