/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libamp_blas.so: bfloat16 products for programs that multiply by BLAS, by LD_PRELOAD. docs/start/blas.md is the
 * user's page.
 *
 *     entries.c  the BLAS functions that this library stands before, and how a call of each reaches the original
 *     sites.c    call sites: who calls, which BLAS that object is linked to, is it listed in AMP_BLAS_CALLERS
 *     product.c  a product as an op of libamp
 *     report.c   what is said at the end
 */
#ifndef ADAPTER_H
#define ADAPTER_H

#include <amp.h>

#include <stdarg.h>
#include <stdbool.h>

/* ---- entries.c ---- */

/* The arguments of a call, as they came. Fortran's are column-major, with a letter for each transposition. */
struct call {
    int order, ta, tb; /* of CBLAS: CBLAS_ROWS, ... */
    int64_t m, n, k, lda, ldb, ldc;
    float alpha, beta;
    const float *a, *b;
    float *c;
};

enum { CBLAS_ROWS = 101, CBLAS_COLUMNS = 102, CBLAS_PLAIN = 111, CBLAS_TRANSPOSED = 112, CBLAS_CONJUGATED = 113 };

/* name, interface (fortran or cblas), integers. The prefix and suffix of 64-bit names are those of OpenBLAS's builds:
 * Debian's, NumPy's and SciPy's wheels, Julia. */
#define ENTRIES(X)                                                                                                     \
    X(sgemm_, fortran, int32_t)                                                                                        \
    X(sgemm_64_, fortran, int64_t)                                                                                     \
    X(scipy_sgemm_, fortran, int32_t)                                                                                  \
    X(scipy_sgemm_64_, fortran, int64_t)                                                                               \
    X(cblas_sgemm, cblas, int32_t)                                                                                     \
    X(cblas_sgemm64_, cblas, int64_t)                                                                                  \
    X(scipy_cblas_sgemm, cblas, int32_t)                                                                               \
    X(scipy_cblas_sgemm64_, cblas, int64_t)

enum entry {
#define ENTRY(name, interface, integer) ENTRY_##name,
    ENTRIES(ENTRY)
#undef ENTRY
    N_ENTRIES
};

const char *entry_name(enum entry entry);
/* The function of this library by that name. */
amp_fn entry_function(enum entry entry);
/* Calls the original with the arguments of `call`. */
void call_original(enum entry entry, amp_fn original, const struct call *call);
/* From now on every call goes to the original. false: a thread is inside a product of libamp still. */
bool close_calls(void);
/* In a forked child: threads that were inside products are not here. */
void forget_other_threads(void);
/* Nanoseconds of a clock that never goes back. */
uint64_t now(void);

/* ---- sites.c ---- */

/* A place that calls an entry. Never freed. The counts are atomic. */
struct site {
    const void *address; /* the return address */
    enum entry entry;
    amp_fn original;  /* of the BLAS that the caller is linked to; NULL: there is none */
    bool inside_blas; /* the caller is that BLAS itself: its calls pass */
    bool listed;      /* in AMP_BLAS_CALLERS, and AMP_LEVEL is O4 */
    char caller[64], name[96]; /* "libdlib.so.19", "libdlib.so.19+0x2a41c" */
    amp_context *context; /* of a listed site: its op */
    amp_model *model;
    amp_fn slot;
    uint64_t calls, low, operations; /* low: in bfloat16; operations: 2 m n k */
    uint64_t nanoseconds;            /* without a list */
    int64_t most[3];                         /* m, n, k of its largest product */
};

/* What the environment asks for, read once at the first call. */
struct wish {
    bool off, quiet, gate, counts; /* counts: there is no list, or no level */
    const char *callers;
};

const struct wish *wish(void);
/* A line on standard error, unless AMP_LOG is off. */
void tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The site of a call, made now if it is the first. Without memory, or after 4,096, it is *spare, which passes. */
struct site *site_of(const void *address, enum entry entry, struct site *spare);
/* Says which names of AMP_BLAS_CALLERS none of these sites has. */
void tell_unknown(struct site *const *sites, size_t n);
/* All sites, in the order of their first calls. Returns their number. */
size_t all_sites(struct site **sites, size_t capacity);

/* ---- product.c ---- */

/* m, n and k of row-major C[m,n] = A[m,k] B[k,n], in `call` with order 0 and ta, tb 0 or 1. false: arguments that the
 * original answers, because they are wrong or there is nothing to multiply. */
bool canonical(enum entry entry, const struct call *given, struct call *call);
/* Makes the op of a site, without the gate if a gain is to be measured. If libamp cannot it says so and leaves
 * site->context NULL. */
void wire(struct site *site, bool gate);
void multiply(struct site *site, const struct call *given, const struct call *call);
/* In FP32 by libamp's own kernels: for a caller without any BLAS. */
void multiply_alone(const struct call *call);
/* Ends the op of a site, and with the last one the trace. */
void unwire(struct site *site);

/* ---- report.c ---- */

void report(void);

#endif /* ADAPTER_H */
