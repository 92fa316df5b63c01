/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sharded optimizers (AMP_OPTIMIZER_SHARDED, stage 1 of ZeRO): each rank has masters and moments of the parameters that
 * it updates, and the other ranks receive these parameters after the step. Checkpoints have one file a rank and can be
 * loaded by any number of ranks. Included by amp_mpi.h.
 *
 *     amp_mpi_shard_open(mpi, params, n, &shard);                           before amp_initialize; all parameters
 *     optimizer.params = params + shard->first, optimizer.n_params = shard->count;
 *     optimizer.flags |= AMP_OPTIMIZER_SHARDED;
 *     amp_initialize(&model, &optimizer, AMP_O2);
 *     for (...) {
 *         ... begin, backward, amp_mpi_average of all gradients, end, amp_clip_grad_norm, step ...
 *         amp_mpi_shard_gather(shard, model.amp);
 *         ... clear all gradients, the others' too ...
 *     }
 *     amp_mpi_state_save(mpi, model.amp, "run/step-1000");
 *     amp_shutdown(model.amp);
 *     amp_mpi_shard_gather(shard, NULL);                                    FP32 everywhere
 */
#ifndef AMP_MPI_SHARD_H
#define AMP_MPI_SHARD_H

#include "amp_call.h"
#include "amp_mpi_ranks.h"
#include "amp_state.h"

/* ---- Parts ------------------------------------------------------------------------------------------------------- */

/* The distribution of parameters: one range of the list a rank, with about equally many elements. */
typedef struct amp_mpi_shard {
    amp_mpi *mpi;          /* the ranks */
    size_t first, count;   /* range of this rank in params (count 0: none) */
    size_t n;              /* length of the arrays below */
    void **handles;        /* all parameters */
    int *owners;           /* rank that updates each parameter */
    struct amp_mpi_tensor_ *tensors; /* names and current memory of the parameters */
    MPI_Request *requests; /* requests of a gather */
} amp_mpi_shard;

/* Frees the shard. NULL: no effect. */
static inline void amp_mpi_shard_close(amp_mpi_shard *shard) {
    if (!shard || shard->mpi->lost) return;
    free(shard->handles);
    free(shard->owners);
    free(shard->tensors);
    free(shard->requests);
    free(shard);
}

/* Assigns each parameter to the rank with the share of all elements that contains its middle. */
static inline void amp_mpi_shard_deal_(amp_mpi_shard *shard) {
    uint64_t total = 0, before = 0;
    for (size_t i = 0; i < shard->n; i++) total += shard->tensors[i].span.size;
    for (size_t i = 0; i < shard->n; before += shard->tensors[i++].span.size) {
        const double half = (double)shard->tensors[i].span.size / 2.0;
        shard->owners[i] = (int)(((double)before + half) / ((double)total + 1e-9) * shard->mpi->size);
        if (shard->owners[i] >= shard->mpi->size) shard->owners[i] = shard->mpi->size - 1;
        if (shard->owners[i] < shard->mpi->rank) shard->first = i + 1;
        if (shard->owners[i] == shard->mpi->rank) shard->count++;
    }
}

static inline amp_status amp_mpi_shard_look_(amp_mpi_shard *shard) {
    amp_status status = AMP_OK;
    for (size_t i = 0; i < shard->n && status == AMP_OK; i++)
        status = amp_mpi_look_(shard->mpi, shard->handles[i], "parameter", shard->tensors[i].name,
                               &shard->tensors[i].span);
    return status;
}

static inline amp_status amp_mpi_shard_fill_(amp_mpi_shard *shard, void *const *params) {
    amp_mpi *mpi = shard->mpi;
    shard->handles = (void **)calloc(shard->n + 1, sizeof *shard->handles);
    shard->tensors = (struct amp_mpi_tensor_ *)calloc(shard->n + 1, sizeof *shard->tensors);
    shard->owners = (int *)calloc(shard->n + 1, sizeof *shard->owners);
    shard->requests = (MPI_Request *)calloc(shard->n + 1, sizeof *shard->requests);
    if (!shard->handles || !shard->tensors || !shard->owners || !shard->requests)
        return amp_mpi_fail_(mpi, AMP_ERR_NO_MEMORY, "amp_mpi_shard_open: out of memory");
    for (size_t i = 0; i < shard->n; i++)
        shard->handles[i] = params[i], shard->tensors[i].name = amp_mpi_name_(mpi, params[i]);
    const amp_status status = amp_mpi_shard_look_(shard);
    for (size_t i = 0; i < shard->n && status == AMP_OK; i++)
        if (shard->tensors[i].span.size > INT_MAX / 8)
            return amp_mpi_fail_(mpi, AMP_ERR_UNSUPPORTED, "amp_mpi_shard_open: %s has more than 2^28 elements",
                                 shard->tensors[i].name);
    if (status == AMP_OK) amp_mpi_shard_deal_(shard);
    return status;
}

/* Distributes the parameters over the ranks. `params`: handles of all trained parameters, with equal names, sizes,
 * types and order on all ranks. The array is borrowed. A call of all ranks. With more ranks than parameters some have
 * none. AMP_ERR_CONFLICT: lists differ between ranks. */
AMP_MUST_CHECK static inline amp_status amp_mpi_shard_open(amp_mpi *mpi, void *const *params, size_t n,
                                                           amp_mpi_shard **shard) {
    amp_mpi_shard *made = (amp_mpi_shard *)calloc(1, sizeof *made);
    amp_status status = AMP_OK;
    if (!made) status = amp_mpi_fail_(mpi, AMP_ERR_NO_MEMORY, "amp_mpi_shard_open: out of memory");
    else {
        made->mpi = mpi, made->n = n;
        status = amp_mpi_shard_fill_(made, params);
    }
    status = amp_mpi_agree_list_(mpi, status, made ? made->tensors : NULL, n, 0, "amp_mpi_shard_open");
    if (status == AMP_OK) *shard = made;
    else amp_mpi_shard_close(made);
    return status;
}

/* Copies each parameter from the rank that updates it to all others. A call of all ranks after every step, skipped ones
 * included. Parameters have their current type, 16 bits in a 16-bit model. `context`: its cached casts are dropped.
 * NULL after amp_shutdown, when each rank has FP32 values of its own range only. With the hook `version` the host must
 * count its parameters as changed. AMP_ERR_CONFLICT, on all ranks: type or size of a parameter differs; nothing has
 * changed. */
AMP_MUST_CHECK static inline amp_status amp_mpi_shard_gather(amp_mpi_shard *shard, amp_context *context) {
    static const char what[] = "amp_mpi_shard_gather";
    amp_mpi *mpi = shard->mpi;
    amp_status status = amp_mpi_agree_list_(mpi, amp_mpi_shard_look_(shard), shard->tensors, shard->n, 0, what);
    for (size_t i = 0; i < shard->n && status == AMP_OK; i++) {
        const int bytes = (int)(shard->tensors[i].span.size * amp_mpi_width_(shard->tensors[i].span.dtype));
        const int code =
            MPI_Ibcast(shard->tensors[i].span.data, bytes, MPI_BYTE, shard->owners[i], mpi->comm, &shard->requests[i]);
        status = amp_mpi_code_(mpi, code, what);
    }
    for (size_t i = 0; i < shard->n && status == AMP_OK; i++)
        status = amp_mpi_wait_(mpi, MPI_SUCCESS, &shard->requests[i], what);
    if (status == AMP_OK && context) status = amp_mpi_said_(mpi, amp_cache_clear(context));
    return status;
}

/* ---- Checkpoints ------------------------------------------------------------------------------------------------- */

static inline amp_status amp_mpi_part_(amp_mpi *mpi, const char *path, int part, int parts, char *name) {
    if (snprintf(name, FILENAME_MAX, "%s-%05d-of-%05d.safetensors", path, part, parts) < FILENAME_MAX) return AMP_OK;
    return amp_mpi_fail_(mpi, AMP_ERR_INVALID_ARGUMENT, "a path is too long: %.200s...", path);
}

/* Returns another number for each save. The clock of MPI may start with the job, but addresses differ between jobs. */
static inline uint64_t amp_mpi_state_number_(const amp_mpi *mpi, const char *path) {
    const double tick = MPI_Wtime();
    return amp_mpi_hash_(amp_mpi_hash_(amp_mpi_hash_(0, path, strlen(path)), &tick, sizeof tick), &mpi, sizeof mpi);
}

/* Checks that rank 0 sees the files of all ranks. Otherwise ranks had different paths or folders. */
static inline amp_status amp_mpi_state_sees_(amp_mpi *mpi, const char *path) {
    char name[FILENAME_MAX];
    amp_status status = AMP_OK;
    for (int part = 1; part <= mpi->size && status == AMP_OK; part++) {
        status = amp_mpi_part_(mpi, path, part, mpi->size, name);
        FILE *file = status == AMP_OK ? fopen(name, "rb") : NULL;
        if (status == AMP_OK && !file)
            status = amp_mpi_fail_(mpi, AMP_ERR_NOT_FOUND,
                                   "amp_mpi_state_save: rank 0 does not find %.400s, which rank %d has written: give "
                                   "all ranks one path, in a folder that all see",
                                   name, part - 1);
        if (file) fclose(file);
    }
    return status;
}

/* Writes the file at `path` with the number of parts and the number of the save, last, and by an atomic rename. */
static inline amp_status amp_mpi_state_seal_(amp_mpi *mpi, const char *path) {
    char name[FILENAME_MAX];
    if (snprintf(name, sizeof name, "%s.part", path) >= FILENAME_MAX)
        return amp_mpi_fail_(mpi, AMP_ERR_INVALID_ARGUMENT, "a path is too long: %.200s...", path);
    FILE *file = fopen(name, "w");
    const unsigned long long number = amp_mpi_state_number_(mpi, path);
    int good = file && fprintf(file, "libamp state in %d parts, save %016llx\n", mpi->size, number) > 0;
    if (file) good = !fclose(file) && good;
    if (good && !rename(name, path)) return AMP_OK;
    return amp_mpi_fail_(mpi, AMP_ERR_IO, "amp_mpi_state_save: cannot write %.400s", path);
}

/* Saves what amp_state_save saves, one file a rank: `path`-00001-of-00004.safetensors and so on, then `path` itself
 * with the number of parts. A call of all ranks where amp_state_save is allowed, into a folder shared by all ranks. Put
 * the step into the path: an interrupted save leaves parts of different ages, and loading refuses them. */
AMP_MUST_CHECK static inline amp_status amp_mpi_state_save(amp_mpi *mpi, amp_context *context, const char *path) {
    char name[FILENAME_MAX];
    amp_status status = mpi->lost ? AMP_ERR_BACKEND : amp_mpi_part_(mpi, path, mpi->rank + 1, mpi->size, name);
    if (status == AMP_OK) status = amp_mpi_said_(mpi, amp_state_save(context, name, AMP_STATE_SAFETENSORS));
    status = amp_mpi_agree_(mpi, status, "amp_mpi_state_save");
    if (status != AMP_OK) return status;
    if (mpi->rank == 0) status = amp_mpi_state_sees_(mpi, path);
    if (mpi->rank == 0 && status == AMP_OK) status = amp_mpi_state_seal_(mpi, path);
    return amp_mpi_agree_(mpi, status, "amp_mpi_state_save");
}

static inline amp_status amp_mpi_state_read_(amp_mpi *mpi, amp_context *context, const char *path, int parts) {
    char *names = (char *)calloc((size_t)parts, FILENAME_MAX);
    const char **paths = (const char **)calloc((size_t)parts, sizeof *paths);
    amp_status status = AMP_OK;
    if (!names || !paths) status = amp_mpi_fail_(mpi, AMP_ERR_NO_MEMORY, "amp_mpi_state_load: out of memory");
    for (int i = 0; i < parts && status == AMP_OK; i++) {
        paths[i] = names + (size_t)i * FILENAME_MAX;
        status = amp_mpi_part_(mpi, path, i + 1, parts, names + (size_t)i * FILENAME_MAX);
    }
    if (status == AMP_OK) status = amp_mpi_said_(mpi, amp_state_load_parts(context, paths, (size_t)parts));
    free(names);
    free(paths);
    return status;
}

/* Checks that all ranks read the same save, since parts of two would mix. */
static inline amp_status amp_mpi_state_one_(amp_mpi *mpi, const char *path, int parts, uint64_t number) {
    int rank = 0;
    const amp_status status =
        amp_mpi_other_(mpi, amp_mpi_hash_(number, &parts, sizeof parts), "amp_mpi_state_load", &rank);
    if (status != AMP_OK || rank == mpi->size) return status;
    return amp_mpi_fail_(mpi, AMP_ERR_CONFLICT,
                         "amp_mpi_state_load: rank %d reads another save than rank 0 (%.400s on rank %d, save %016llx "
                         "in %d parts): give all ranks one path",
                         rank, path, mpi->rank, (unsigned long long)number, parts);
}

/* Loads a save of amp_mpi_state_save from any number of ranks. Each rank reads the masters and moments of its own
 * range, and the values of all other parameters of its model, so no gather is needed. A call of all ranks where
 * amp_state_load is allowed. AMP_ERR_CONFLICT: the paths lead to different saves; nothing has changed. If one rank
 * cannot load, all return an error and the job must end, since other ranks have loaded. */
AMP_MUST_CHECK static inline amp_status amp_mpi_state_load(amp_mpi *mpi, amp_context *context, const char *path) {
    int parts = 0;
    unsigned long long number = 0; /* 0 for a save of an older libamp */
    if (mpi->lost) return AMP_ERR_BACKEND;
    FILE *file = fopen(path, "r");
    amp_status status = AMP_OK;
    if (!file) status = amp_mpi_fail_(mpi, AMP_ERR_NOT_FOUND, "amp_mpi_state_load: cannot open %.400s", path);
    else if (fscanf(file, "libamp state in %d parts, save %llx", &parts, &number) < 1 || parts < 1 || parts > 99999)
        status = amp_mpi_fail_(mpi, AMP_ERR_BAD_FILE, "amp_mpi_state_load: %.400s does not say of how many parts it is",
                               path);
    if (file) fclose(file);
    status = amp_mpi_agree_(mpi, status, "amp_mpi_state_load");
    if (status == AMP_OK) status = amp_mpi_state_one_(mpi, path, parts, number);
    if (status != AMP_OK) return status;
    status = amp_mpi_state_read_(mpi, context, path, parts);
    return amp_mpi_agree_(mpi, status, "amp_mpi_state_load");
}

#endif /* AMP_MPI_SHARD_H */
