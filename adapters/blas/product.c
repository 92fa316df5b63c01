/* SPDX-License-Identifier: Apache-2.0 */
#include "adapter.h"

#include <amp_call.h>
#include <amp_gate.h>
#include <amp_kernels.h>
#include <amp_raw.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the arguments ---- */

/* 0, 1, or -1 */
static int transposition(int given) {
    switch (given) {
    case CBLAS_PLAIN: case 'N': case 'n': return 0;
    case CBLAS_TRANSPOSED: case CBLAS_CONJUGATED: case 'T': case 't': case 'C': case 'c': return 1;
    default: return -1;
    }
}

bool canonical(enum entry entry, const struct call *given, struct call *call) {
    const int order = strstr(entry_name(entry), "cblas") ? given->order : CBLAS_COLUMNS;
    *call = *given;
    call->order = 0, call->ta = transposition(given->ta), call->tb = transposition(given->tb);
    if (order == CBLAS_COLUMNS) { /* C' = B' A' */
        const struct call c = *call;
        call->a = c.b, call->lda = c.ldb, call->ta = c.tb, call->m = c.n;
        call->b = c.a, call->ldb = c.lda, call->tb = c.ta, call->n = c.m;
    } else if (order != CBLAS_ROWS) return false;
    return call->ta >= 0 && call->tb >= 0 && call->m > 0 && call->n > 0 && call->k > 0 &&
        call->lda >= (call->ta ? call->m : call->k) && call->ldb >= (call->tb ? call->k : call->n) &&
        call->ldc >= call->n;
}

/* ---- the op ---- */

/* What the op's functions need besides a product's arguments: where the call came from, for the original. */
struct origin {
    struct site *site;
    const struct call *given;
};

typedef void product_fn(struct origin *origin, bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha,
                        const void *a, int64_t lda, const void *b, int64_t ldb, float beta, float *c, int64_t ldc);

#define SCHEMA                                                                                                         \
    "gemm(void *origin, bool ta, bool tb, int64 m, int64 n, int64 k, float alpha, float a[ta?k:m, ta?m:k : lda], "     \
    "int64 lda, float b[tb?n:k, tb?k:n : ldb], int64 ldb, float beta, float(a!) c[m,n : ldc], int64 ldc) -> void"

static amp_status matmul(amp_dtype dtype, const struct call *call) {
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    g.transpose_a = call->ta, g.transpose_b = call->tb;
    g.m = call->m, g.n = call->n, g.k = call->k;
    g.alpha = call->alpha, g.beta = call->beta;
    g.a = call->a, g.ld_a = call->lda, g.a_dtype = dtype;
    g.b = call->b, g.ld_b = call->ldb, g.b_dtype = dtype;
    g.c = g.d = call->c, g.ld_c = g.ld_d = call->ldc, g.c_dtype = g.d_dtype = AMP_FLOAT32;
    return amp_matmul(&g);
}

static void original(struct origin *origin, bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha,
                     const void *a, int64_t lda, const void *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    const struct call call = { 0, ta, tb, m, n, k, lda, ldb, ldc, alpha, beta, a, b, c };
    if (origin->site->original) call_original(origin->site->entry, origin->site->original, origin->given);
    else multiply_alone(&call);
}

/* a and b are bfloat16 copies, c is the caller's. Nothing is written if it fails. */
static void in_bfloat16(struct origin *origin, bool ta, bool tb, int64_t m, int64_t n, int64_t k, float alpha,
                        const void *a, int64_t lda, const void *b, int64_t ldb, float beta, float *c, int64_t ldc) {
    const struct call call = { 0, ta, tb, m, n, k, lda, ldb, ldc, alpha, beta, a, b, c };
    if (matmul(AMP_BFLOAT16, &call) == AMP_OK) {
        (void)__atomic_fetch_add(&origin->site->low, 1, __ATOMIC_RELAXED);
        return;
    }
    tell("%s: in FP32: %s", origin->site->name, amp_last_error());
    original(origin, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void multiply_alone(const struct call *call) {
    if (matmul(AMP_FLOAT32, call) == AMP_OK) return;
    tell("a product is not computed: %s", amp_last_error());
    abort(); /* no BLAS here can compute it, and C has no way to report that */
}

void multiply(struct site *site, const struct call *given, const struct call *call) {
    struct origin origin = { site, given };
    ((product_fn *)site->slot)(&origin, call->ta, call->tb, call->m, call->n, call->k, call->alpha, call->a, call->lda,
                               call->b, call->ldb, call->beta, call->c, call->ldc);
}

/* ---- contexts ---- */

static bool wire_op(struct site *site, bool gate) {
    amp_model *model = calloc(1, sizeof *model), *models[] = { model };
    amp_config config = AMP_CONFIG_INIT;
    amp_op op = AMP_OP_INIT;
    if (!model) return false;
    *model = (amp_model)AMP_MODEL_INIT;
    site->slot = (amp_fn)original;
    op.name = site->name, op.aliases = "matmul", op.schema = SCHEMA, op.slot = &site->slot;
    op.flags = AMP_OP_MATMUL, op.bf16 = (amp_fn)in_bfloat16;
    model->host = amp_buffer_host(), model->ops = &op, model->n_ops = 1;
    config.level = AMP_O4, config.gate = gate ? AMP_DEFAULT : AMP_OFF;
    if (amp_initialize_many(models, 1, NULL, 0, &config, &site->context) != AMP_OK) {
        tell("%s: its products stay FP32: %s", site->name, amp_last_error());
        free(model);
        return false;
    }
    site->model = model;
    return true;
}

/* As many threads as the BLAS would use, where nobody has chosen. */
static void choose_threads(void) {
    static bool done;
    const char *most = getenv("OMP_NUM_THREADS");
    if (done || getenv("AMP_NUM_THREADS")) return;
    done = true;
    const long n = most ? strtol(most, NULL, 10) : 0;
    if (amp_set_num_threads(n > 0 && n < 256 ? (int32_t)n : 0) != AMP_OK) tell("%s", amp_last_error());
}

void wire(struct site *site, bool gate) {
    choose_threads();
    (void)wire_op(site, gate);
}

void unwire(struct site *site) {
    if (!site->context) return;
    if (amp_shutdown(site->context) != AMP_OK) tell("%s: %s", site->name, amp_last_error());
    free(site->model);
    site->context = NULL, site->model = NULL;
}
