/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ranks of an MPI job as libamp uses them, and what they decide together. Comes with amp_mpi.h, where rules and
 * errors are said.
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

/* ---- What the functions below share ------------------------------------------------------------------------------ */

enum { AMP_MPI_ROOM_ = 1 << 20 }; /* bytes that travel at a time, of what is not a gradient */

/* Ranks, and a model that each of them has. Members are libamp's. */
typedef struct amp_mpi {
    MPI_Comm comm;       /* a duplicate */
    int rank, size;      /* this one, of so many */
    double timeout;      /* seconds; 0: none */
    amp_host host;       /* the model's */
    amp_param *params;   /* the model's; names are copies */
    size_t n_params;     /* entries of params */
    char *room;          /* what travels, AMP_MPI_ROOM_ bytes: MPI may write there after a timeout, */
    MPI_Request request; /* where this one is still open */
    int lost;            /* out of step (AMP_ERR_BACKEND): nothing is sent or freed any more, and `why` stays */
    char why[600];       /* the last error */
} amp_mpi;

/* A tensor by its name. */
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

/* What a function of libamp returned. */
static inline amp_status amp_mpi_said_(amp_mpi *mpi, amp_status status) {
    return status == AMP_OK ? AMP_OK : amp_mpi_fail_(mpi, status, "%s", amp_last_error());
}

/* What a function of MPI returned. */
static inline amp_status amp_mpi_code_(amp_mpi *mpi, int code, const char *what) {
    char words[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS) return AMP_OK;
    MPI_Error_string(code, words, &length);
    return amp_mpi_fail_(mpi, AMP_ERR_BACKEND, "%s: rank %d of %d: MPI says: %.200s", what, mpi->rank, mpi->size,
                         words);
}

/* For what was started with `code`. MPI_Wait where there is no timeout. */
static inline amp_status amp_mpi_wait_(amp_mpi *mpi, int code, MPI_Request *request, const char *what) {
    const double since = MPI_Wtime();
    int done = 0;
    if (code == MPI_SUCCESS && mpi->timeout <= 0.0) code = MPI_Wait(request, MPI_STATUS_IGNORE);
    while (code == MPI_SUCCESS && mpi->timeout > 0.0 && !done) {
        code = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (!done && MPI_Wtime() - since > mpi->timeout)
            return amp_mpi_fail_(
                mpi, AMP_ERR_BACKEND,
                "%s: rank %d of %d has waited %g s for the others: one of them is gone, hangs, or makes "
                "other calls. End the job (MPI_Abort)",
                what, mpi->rank, mpi->size, mpi->timeout);
    }
    return amp_mpi_code_(mpi, code, what);
}

/* `n` elements of `width` bytes, in place: combined over the ranks, or those of rank 0 (MPI_OP_NULL). They travel in
 * `room`: the caller's memory, often its stack, is not there any more when MPI comes to it after a timeout. */
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

/* Did every rank come so far? The worst status and whose it is go to all. */
static inline amp_status amp_mpi_agree_(amp_mpi *mpi, amp_status own, const char *what) {
    int worst[2] = { own, mpi->rank };
    const amp_status status = amp_mpi_exchange_(mpi, worst, 1, sizeof worst, MPI_2INT, MPI_MINLOC, what);
    if (own != AMP_OK || status != AMP_OK) return status != AMP_OK ? status : own;
    if (worst[0] == AMP_OK) return AMP_OK;
    return amp_mpi_fail_(mpi, AMP_ERR_HOST_FAILED, "%s: rank %d failed with %s", what, worst[1],
                         amp_status_name(worst[0]));
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

/* Of `n` pairs of numbers and their complements: the greatest of all ranks. A number is the same everywhere where the
 * complement of the one is the other. */
static inline amp_status amp_mpi_greatest_(amp_mpi *mpi, uint64_t *pairs, size_t n, const char *what) {
    return amp_mpi_exchange_(mpi, pairs, 2 * n, sizeof *pairs, MPI_UINT64_T, MPI_MAX, what);
}

static inline amp_status amp_mpi_same_(amp_mpi *mpi, uint64_t hash, const char *what, const char *differs) {
    uint64_t pair[2];
    pair[0] = hash, pair[1] = ~hash;
    const amp_status status = amp_mpi_greatest_(mpi, pair, 1, what);
    if (status != AMP_OK || pair[0] == ~pair[1]) return status;
    return amp_mpi_fail_(mpi, AMP_ERR_CONFLICT, "%s: %s", what, differs);
}

/* The first rank whose number is not that of rank 0; `size` where there is none. */
static inline amp_status amp_mpi_other_(amp_mpi *mpi, uint64_t number, const char *what, int *rank) {
    uint64_t wanted = number;
    amp_status status = amp_mpi_exchange_(mpi, &wanted, 1, sizeof wanted, MPI_UINT64_T, MPI_OP_NULL, what);
    *rank = number == wanted ? mpi->size : mpi->rank;
    if (status == AMP_OK) status = amp_mpi_exchange_(mpi, rank, 1, sizeof *rank, MPI_INT, MPI_MIN, what);
    return status;
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

/* Elements of a compact block in the CPU's memory. */
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

/* Closes it; a call of all ranks, before MPI_Finalize and after what was opened on it. NULL: nothing; nor is anything
 * freed after AMP_ERR_BACKEND, here and where the others are closed: MPI may still write there. */
static inline void amp_mpi_close(amp_mpi *mpi) {
    if (!mpi || mpi->lost) return;
    for (size_t i = 0; mpi->params && i < mpi->n_params; i++) free((void *)(uintptr_t)mpi->params[i].name);
    free(mpi->params);
    free(mpi->room);
    MPI_Comm_free(&mpi->comm);
    free(mpi);
}

/* The last error on `mpi` in words; NULL: why there is none. */
static inline const char *amp_mpi_error(const amp_mpi *mpi) {
    return mpi ? mpi->why
               : "amp_mpi_open: MPI_Init comes first, the model's host needs the hook view, and there must be "
                 "memory";
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

/* The ranks of `comm`, which stays the host's. `model`: its host's hooks, its parameters and buffers with their names;
 * copied, handles are kept; NULL: for amp_mpi_reduce, settings and masters alone. A call of all ranks.
 * AMP_ERR_WRONG_STATE: before MPI_Init; AMP_ERR_MISSING_HOOK: `view`; AMP_ERR_NO_MEMORY, AMP_ERR_BACKEND: end the
 * job. */
AMP_MUST_CHECK static inline amp_status amp_mpi_open(MPI_Comm comm, const amp_model *model, amp_mpi **mpi) {
    int ready = 0;
    if (!mpi) return AMP_ERR_INVALID_ARGUMENT;
    if (MPI_Initialized(&ready) != MPI_SUCCESS || !ready) return AMP_ERR_WRONG_STATE;
    if (model && (!model->host || !model->host->view)) return AMP_ERR_MISSING_HOOK;
    amp_mpi *made = (amp_mpi *)calloc(1, sizeof *made);
    if (!made) return AMP_ERR_NO_MEMORY;
    if (MPI_Comm_dup(comm, &made->comm) != MPI_SUCCESS) {
        free(made);
        return AMP_ERR_BACKEND;
    }
    MPI_Comm_set_errhandler(made->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(made->comm, &made->rank);
    MPI_Comm_size(made->comm, &made->size);
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

/* How many seconds one rank waits for the others before it says that one is gone; 0 (the default): for ever. More than
 * the slowest rank is ever behind, saving and evaluating included. A launcher ends the job where a process died; this
 * is for those that hang, and for launchers that look away. */
static inline void amp_mpi_set_timeout(amp_mpi *mpi, double seconds) { mpi->timeout = seconds; }

/* ---- Decisions --------------------------------------------------------------------------------------------------- */

/* What the hook amp_host.reduce has to do. */
AMP_MUST_CHECK static inline amp_status amp_mpi_reduce(amp_mpi *mpi, amp_reduction reduction, double *values,
                                                       size_t n) {
    const MPI_Op op = reduction == AMP_REDUCE_MAX ? MPI_MAX : MPI_SUM;
    return amp_mpi_exchange_(mpi, values, n, sizeof *values, MPI_DOUBLE, op, "amp_mpi_reduce");
}

#endif /* AMP_MPI_RANKS_H */
