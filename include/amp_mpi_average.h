/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients averaged over the ranks, in buckets that are sent while backward goes on. Comes with amp_mpi.h.
 *
 * On the wire. FP32 (the default): MPI_Iallreduce adds up; 16-bit gradients are widened before, and rounded once when
 * they come back. FP16 and BF16, half the bytes: MPI's own sum would round after every addition, by up to one unit in
 * the last place a rank, and adding ones stops at 256 in bf16; so each rank gets one share of the bucket
 * from all others (MPI_Ialltoall), adds it up in FP32 in the order of the ranks, divides, rounds once, and all shares
 * are gathered (MPI_Iallgather). Two roundings whatever the number of ranks, an average of finite numbers is finite,
 * the bits do not depend on MPI's algorithms, and the bytes are those of a ring's allreduce.
 *
 * Gradients are averaged inside the bracket, where they carry the loss scale: what became infinite on one rank, or on
 * the wire, is so on all, and all skip. The bits are the same on every rank: of 16 bits by construction, of FP32 where
 * MPI's allreduce gives all ranks one result, as Open MPI's and MPICH's do.
 */
#ifndef AMP_MPI_AVERAGE_H
#define AMP_MPI_AVERAGE_H

#include "amp_mpi_ranks.h"

/* How gradients are averaged; NULL or zeros: as FP32, divided by the number of ranks. Source:
 * apex.parallel.DistributedDataParallel; its names are behind. */
typedef struct amp_mpi_average_options {
    uint32_t struct_size;
    amp_dtype wire;        /* AMP_FLOAT32 (0 too), AMP_FLOAT16 or AMP_BFLOAT16 */
    amp_switch average;    /* OFF: summed, not divided by the number of ranks (gradient_average = False) */
    int32_t reserved;      /* 0 */
    uint64_t bucket_bytes; /* on the wire, until a bucket is sent; 0: 25 MiB (message_size) */
    double predivide;      /* gradients are multiplied by 1 / predivide before they are sent, and the sum by predivide /
                              ranks; 2^-10 to 2^20, 0: 1 (gradient_predivide_factor) */
} amp_mpi_average_options;

#define AMP_MPI_AVERAGE_OPTIONS_INIT AMP_SIZED_(amp_mpi_average_options)

/* A stretch of the list, sent together: its gradients, a mark for each, and zeros up to a multiple of the ranks. */
struct amp_mpi_bucket_ {
    size_t begin, end, missing; /* missing: gradients that were not announced yet */
    uint64_t size;              /* elements on the wire */
    char *send, *receive;       /* receive: 16 bits alone */
    MPI_Request request;
};

/* A list of parameters whose gradients are averaged over and over. Members are libamp's. */
typedef struct amp_mpi_average {
    amp_mpi *mpi;           /* whose ranks */
    MPI_Comm first, second; /* duplicates: collectives come in one order on each, that of the buckets */
    amp_dtype wire;         /* the type of what is sent */
    float before, after;    /* factors */
    size_t n, n_buckets;    /* entries of what follows */
    void **handles;         /* parameters, in the order in which backward is done with them: from the last one */
    struct amp_mpi_tensor_ *slots; /* the part of its bucket that is each gradient's, and the parameter's name */
    amp_span *grads;        /* and at the host; data NULL: this rank has none */
    size_t *bucket_of;      /* each gradient's */
    char *announced;        /* 1: it is done */
    struct amp_mpi_bucket_ *buckets; /* in the order of sending */
    float *sum;                      /* of a rank's share */
    size_t sent, added, guess;       /* buckets sent, and added up; where ready looks first */
    int passing;                     /* between begin and finish */
    amp_status failed;               /* the pass's first error, */
    char why[600];                   /* and its words */
} amp_mpi_average;

/* ---- Opening and closing ----------------------------------------------------------------------------------------- */

/* Frees it; a call of all ranks, outside a pass, before amp_mpi_close. NULL: nothing. */
static inline void amp_mpi_average_close(amp_mpi_average *average) {
    if (!average || average->mpi->lost) return;
    for (size_t b = 0; average->buckets && b < average->n_buckets; b++) {
        free(average->buckets[b].send);
        free(average->buckets[b].receive);
    }
    if (average->first != MPI_COMM_NULL) MPI_Comm_free(&average->first);
    if (average->second != MPI_COMM_NULL) MPI_Comm_free(&average->second);
    free(average->handles);
    free(average->slots);
    free(average->grads);
    free(average->bucket_of);
    free(average->announced);
    free(average->buckets);
    free(average->sum);
    free(average);
}

static inline amp_status amp_mpi_average_check_(amp_mpi *mpi, const amp_mpi_average_options *given,
                                                amp_mpi_average_options *options) {
    static const amp_mpi_average_options none = AMP_MPI_AVERAGE_OPTIONS_INIT;
    *options = none;
    if (given && given->struct_size != sizeof *given)
        return amp_mpi_fail_(mpi, AMP_ERR_ABI_MISMATCH,
                             "amp_mpi_average_open: begin with AMP_MPI_AVERAGE_OPTIONS_INIT");
    if (given) *options = *given;
    if (!options->wire) options->wire = AMP_FLOAT32;
    if (options->predivide == 0.0) options->predivide = 1.0;
    if (!options->bucket_bytes) options->bucket_bytes = (uint64_t)25 << 20;
    if (options->wire < AMP_FLOAT32 || options->wire > AMP_BFLOAT16)
        return amp_mpi_fail_(mpi, AMP_ERR_INVALID_ARGUMENT,
                             "amp_mpi_average_open: wire is %d: AMP_FLOAT32, AMP_FLOAT16 or AMP_BFLOAT16",
                             options->wire);
    if (!(options->predivide >= 1.0 / 1024 && options->predivide <= 1048576.0))
        return amp_mpi_fail_(mpi, AMP_ERR_INVALID_ARGUMENT,
                             "amp_mpi_average_open: predivide is %g: from 2^-10 to 2^20, or 0 for 1",
                             options->predivide);
    if (mpi->host.grad) return AMP_OK;
    return amp_mpi_fail_(mpi, AMP_ERR_MISSING_HOOK, "amp_mpi_average_open: the model's host has no hook grad");
}

/* Where buckets end, and which bucket is whose. */
static inline void amp_mpi_average_cut_(amp_mpi_average *average, uint64_t bucket_bytes) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < average->n; i++) {
        struct amp_mpi_bucket_ *bucket = &average->buckets[average->n_buckets];
        average->bucket_of[i] = average->n_buckets;
        bucket->end = i + 1;
        bucket->size += average->slots[i].span.size + 1;
        bytes += average->slots[i].span.size * amp_mpi_width_(average->wire);
        if (bytes < bucket_bytes && i + 1 < average->n) continue;
        average->buckets[++average->n_buckets].begin = i + 1;
        bytes = 0;
    }
}

static inline amp_status amp_mpi_average_room_(amp_mpi_average *average) {
    const uint64_t width = amp_mpi_width_(average->wire), ranks = (uint64_t)average->mpi->size;
    uint64_t most = 0;
    for (size_t b = 0; b < average->n_buckets; b++) {
        struct amp_mpi_bucket_ *bucket = &average->buckets[b];
        bucket->size = (bucket->size + ranks - 1) / ranks * ranks;
        most = bucket->size > most ? bucket->size : most;
        if (bucket->size > INT_MAX)
            return amp_mpi_fail_(average->mpi, AMP_ERR_UNSUPPORTED,
                                 "amp_mpi_average_open: a bucket of %llu elements: MPI "
                                 "counts to 2^31",
                                 (unsigned long long)bucket->size);
        bucket->send = (char *)calloc((size_t)bucket->size, (size_t)width);
        if (width == 2) bucket->receive = (char *)calloc((size_t)bucket->size, (size_t)width);
        if (!bucket->send || (width == 2 && !bucket->receive)) return AMP_ERR_NO_MEMORY;
        char *at = bucket->send;
        for (size_t i = bucket->begin; i < bucket->end; at += average->slots[i++].span.size * width)
            average->slots[i].span.data = at;
    }
    average->sum = (float *)calloc((size_t)(most / ranks) + 1, sizeof *average->sum);
    return average->sum ? AMP_OK : AMP_ERR_NO_MEMORY;
}

static inline amp_status amp_mpi_average_fill_(amp_mpi_average *average, void *const *params, size_t n,
                                               uint64_t bucket_bytes) {
    average->handles = (void **)calloc(n + 1, sizeof *average->handles);
    average->slots = (struct amp_mpi_tensor_ *)calloc(n + 1, sizeof *average->slots);
    average->grads = (amp_span *)calloc(n + 1, sizeof *average->grads);
    average->bucket_of = (size_t *)calloc(n + 1, sizeof *average->bucket_of);
    average->announced = (char *)calloc(n + 1, 1);
    average->buckets = (struct amp_mpi_bucket_ *)calloc(n + 1, sizeof *average->buckets);
    if (!average->handles || !average->slots || !average->grads || !average->bucket_of || !average->announced ||
        !average->buckets)
        return AMP_ERR_NO_MEMORY;
    for (size_t i = 0; i < n; i++) {
        void *handle = average->handles[i] = params[n - 1 - i];
        struct amp_mpi_tensor_ *slot = &average->slots[i];
        slot->name = amp_mpi_name_(average->mpi, handle);
        const amp_status status = amp_mpi_look_(average->mpi, handle, "parameter", slot->name, &slot->span);
        if (status != AMP_OK) return status;
        slot->span.dtype = average->wire;
    }
    average->n = n;
    amp_mpi_average_cut_(average, bucket_bytes);
    return amp_mpi_average_room_(average);
}

static inline uint64_t amp_mpi_average_hash_(const amp_mpi_average_options *options) {
    uint64_t hash = amp_mpi_hash_(0, &options->wire, sizeof options->wire);
    hash = amp_mpi_hash_(hash, &options->average, sizeof options->average);
    hash = amp_mpi_hash_(hash, &options->bucket_bytes, sizeof options->bucket_bytes);
    return amp_mpi_hash_(hash, &options->predivide, sizeof options->predivide);
}

/* `params`: handles of the model's parameters that are trained, in the order of forward, as amp_optimizer.params has
 * them (with AMP_OPTIMIZER_SHARDED: those of all ranks); the array is borrowed. They are cut into buckets from the last
 * one on. A call of all ranks. AMP_ERR_CONFLICT: the ranks' lists (the parameters' names, sizes and order) or options
 * are not equal; AMP_ERR_MISSING_HOOK: `grad`; AMP_ERR_UNSUPPORTED: memory that is not the CPU's, or more than 2^31
 * elements in a bucket. */
AMP_MUST_CHECK static inline amp_status amp_mpi_average_open(amp_mpi *mpi, void *const *params, size_t n,
                                                             const amp_mpi_average_options *given,
                                                             amp_mpi_average **average) {
    amp_mpi_average_options options;
    amp_mpi_average *made = (amp_mpi_average *)calloc(1, sizeof *made);
    amp_status status = amp_mpi_average_check_(mpi, given, &options);
    if (!made) status = amp_mpi_fail_(mpi, AMP_ERR_NO_MEMORY, "amp_mpi_average_open: out of memory");
    status = amp_mpi_agree_(mpi, status, "amp_mpi_average_open");
    if (status != AMP_OK) {
        free(made);
        return status;
    }
    made->mpi = mpi, made->wire = options.wire;
    made->first = made->second = MPI_COMM_NULL;
    status = amp_mpi_code_(mpi, amp_mpi_dup_(mpi->comm, &made->first), "amp_mpi_average_open");
    if (status == AMP_OK) status = amp_mpi_code_(mpi, amp_mpi_dup_(mpi->comm, &made->second), "amp_mpi_average_open");
    made->before = (float)(1.0 / options.predivide);
    made->after = (float)(options.average == AMP_OFF ? options.predivide : options.predivide / mpi->size);
    if (status == AMP_OK) status = amp_mpi_average_fill_(made, params, n, options.bucket_bytes);
    if (status == AMP_ERR_NO_MEMORY) amp_mpi_fail_(mpi, status, "amp_mpi_average_open: out of memory");
    status =
        amp_mpi_agree_list_(mpi, status, made->slots, n, amp_mpi_average_hash_(&options), "amp_mpi_average_open");
    if (status == AMP_OK) *average = made;
    else amp_mpi_average_close(made);
    return status;
}

#endif /* AMP_MPI_AVERAGE_H */
