/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp_matmul by products of oneDNN's. What oneDNN can compute as it is goes to it whole. Else
 *   - operands that it has no fast code for (fp16 mostly, bf16 on older processors, mixtures) are converted to fp32 a
 * panel at a time by libamp's kernels, and the product is fp32's: conversion costs n^2, the product n^3;
 *   - results that it cannot store (another type than the operands', alpha, beta c) are sums in fp32 that libamp
 * finishes. A panel is as large as a cache or two holds, and at least as large as the product needs to run at full
 * speed.
 */
#include "kernels/onednn/matmul.h"
#include "kernels/onednn/product.h"

#include <stdio.h>
#include <string.h>

#define PANEL_A ((int64_t)8 << 20) /* bytes */
#define PANEL_B ((int64_t)32 << 20)
#define SCRATCH_LIMIT ((int64_t)512 << 20)
enum { LEAST = 64, WIDEST_SUMS = 16384 };

static const struct amp__backend_host *host;
static bool native[AMP_DTYPE_OTHER]; /* by type: does oneDNN have fast code for it here? */

static int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t size_of(amp_dtype type) { return type == AMP_FLOAT32 ? 4 : 2; }

/* ---- which types are native ---- */

#if defined(__x86_64__)

/* oneDNN may accept a type and compute it with slow code, so the instruction set decides. */
static bool has_unit(amp_dtype type) {
    const unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
#if DNNL_VERSION_MAJOR >= 3
    if (type == AMP_FLOAT16) return (isa & dnnl_cpu_isa_avx512_core_fp16) == dnnl_cpu_isa_avx512_core_fp16;
#endif
    return type == AMP_BFLOAT16 && (isa & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
}

static const char *unit_name(amp_dtype type) {
    const unsigned isa = (unsigned)dnnl_get_effective_cpu_isa();
    if (type == AMP_FLOAT16) return "avx512_core_fp16";
    return (isa & dnnl_cpu_isa_avx512_core_amx) == dnnl_cpu_isa_avx512_core_amx ? "avx512_core_amx"
                                                                                : "avx512_core_bf16";
}

#else

static bool has_unit(amp_dtype type) {
    const struct shape square = { 1, 256, 256, 256, { 0, 256, 1 }, { 0, 256, 1 }, { 0, 256 }, type, type, 0, 0, 0, 1 };
    dnnl_status_t status;
    struct product *product = product_get(&square, &status);
    const bool fast = product && !product_is_slow(product);
    product_put(product);
    return fast;
}

static const char *unit_name(amp_dtype type) { return type == AMP_FLOAT16 ? "fp16" : "bf16"; }

#endif

void onednn_matmul_init(const struct amp__backend_host *given) {
    host = given;
    children_init();
    native[AMP_FLOAT32] = true;
    native[AMP_FLOAT16] = has_unit(AMP_FLOAT16);
    native[AMP_BFLOAT16] = has_unit(AMP_BFLOAT16);
}

const char *onednn_matmul_unit(amp_dtype type) {
    return (type == AMP_FLOAT16 || type == AMP_BFLOAT16) && native[type] ? unit_name(type) : "";
}

/* ---- the plan ---- */

struct plan {
    amp_dtype type; /* that oneDNN multiplies */
    bool convert_a, convert_b;
    bool fused;      /* oneDNN adds the bias and activates */
    bool direct;     /* and stores into d */
    int64_t mb, nb;  /* rows of op(a) and columns of op(b) at a time */
    int32_t threads;
};

/* Equal parts of at most about `bytes`, in multiples of LEAST. */
static int64_t part(int64_t length, int64_t bytes, int64_t bytes_each) {
    const int64_t most = bytes / bytes_each / LEAST * LEAST;
    if (length <= most || length <= LEAST) return length;
    if (most <= LEAST) return LEAST;
    const int64_t parts = (length + most - 1) / most;
    return ((length + parts - 1) / parts + LEAST - 1) / LEAST * LEAST;
}

static struct plan make_plan(const amp_matmul_args *g, amp_dtype type, int32_t threads) {
    struct plan p = { .type = type, .threads = threads };
    p.convert_a = g->a_dtype != type;
    p.convert_b = g->b_dtype != type;
    /* oneDNN's relu makes 0 of a NaN, which would hide an overflow from the loss scaler: that one is libamp's. */
    p.fused = g->alpha == 1.0f && !(g->c && g->beta != 0.0f) && g->activation != AMP_ACTIVATION_RELU;
    p.direct = p.fused && (g->d_dtype == AMP_FLOAT32 || g->d_dtype == type);
    p.nb = p.direct ? g->n : part(g->n, WIDEST_SUMS, 1);
    if (p.convert_b) p.nb = min_of(p.nb, part(g->n, PANEL_B, 4 * g->k));
    const int64_t row = (p.convert_a ? 4 * g->k : 0) + (p.direct ? 0 : 4 * p.nb);
    p.mb = row ? part(g->m, PANEL_A, row) : g->m;
    return p;
}

/* ---- panels ---- */

/* A matrix as oneDNN sees it, or its panel. */
struct matrix {
    const void *data;
    int64_t strides[2]; /* of rows, of columns */
};

/* lines x depth of op(a), or of op(b) transposed, from `first` on; stored rows are lines if along_depth. */
static void convert(float *dst, const void *src, amp_dtype type, int64_t ld, int64_t first, int64_t lines,
                    int64_t depth, bool along_depth) {
    const int64_t rows = along_depth ? lines : depth, cols = along_depth ? depth : lines;
    const char *from = (const char *)src + (along_depth ? first * ld : first) * size_of(type);
    if (cols == ld) /* the panel is one run */
        host->cast(AMP_FLOAT32, dst, type, from, (size_t)(rows * cols));
    for (int64_t i = 0; i < rows && cols != ld; i++)
        host->cast(AMP_FLOAT32, dst + i * cols, type, from + i * ld * size_of(type), (size_t)cols);
}

static struct matrix part_of_a(const amp_matmul_args *g, const struct plan *p, float *scratch, int64_t i,
                               int64_t rows) {
    const bool along = !g->transpose_a;
    if (p->convert_a) {
        convert(scratch, g->a, g->a_dtype, g->ld_a, i, rows, g->k, along);
        return along ? (struct matrix){ scratch, { g->k, 1 } } : (struct matrix){ scratch, { 1, rows } };
    }
    const char *data = (const char *)g->a + (along ? i * g->ld_a : i) * size_of(g->a_dtype);
    return along ? (struct matrix){ data, { g->ld_a, 1 } } : (struct matrix){ data, { 1, g->ld_a } };
}

static struct matrix part_of_b(const amp_matmul_args *g, const struct plan *p, float *scratch, int64_t j,
                               int64_t cols) {
    const bool along = g->transpose_b;
    if (p->convert_b) {
        convert(scratch, g->b, g->b_dtype, g->ld_b, j, cols, g->k, along);
        return along ? (struct matrix){ scratch, { 1, g->k } } : (struct matrix){ scratch, { cols, 1 } };
    }
    const char *data = (const char *)g->b + (along ? j * g->ld_b : j) * size_of(g->b_dtype);
    return along ? (struct matrix){ data, { 1, g->ld_b } } : (struct matrix){ data, { g->ld_b, 1 } };
}

/* ---- one product of a batch, by panels ---- */

struct scratch {
    float *a, *b, *sums, *bias;
};

/* Columns from j on: either they lie as they are, or packed. */
struct columns {
    int64_t first, n;
    struct matrix plain;
    struct pack *pack;
};

static struct shape shape_of(const amp_matmul_args *g, const struct plan *p, int64_t rows, const struct columns *cols) {
    struct shape s = { .batch = 1, .m = rows, .n = cols->n, .k = g->k, .type = p->type, .threads = p->threads };
    s.d_type = p->direct ? g->d_dtype : AMP_FLOAT32;
    s.d[1] = p->direct ? g->ld_d : cols->n;
    s.packed = g->b_id != 0;
    s.has_bias = p->fused && g->bias;
    s.activation = p->fused ? g->activation : AMP_ACTIVATION_NONE;
    if (!s.packed) s.b[1] = cols->plain.strides[0], s.b[2] = cols->plain.strides[1];
    return s;
}

/* The packed weights of these columns, made now if need be. */
static dnnl_status_t get_pack(const amp_matmul_args *g, const struct plan *p, const struct scratch *s,
                              struct product *product, struct columns *cols) {
    const struct pack_name name = { g->b_id, g->b_version, cols->first };
    dnnl_status_t status = dnnl_success;
    if (cols->pack) return status;
    cols->pack = pack_find(product, &name);
    if (cols->pack) return status;
    if (!cols->plain.data) cols->plain = part_of_b(g, p, s->b, cols->first, cols->n);
    cols->pack = pack_make(product, &name, cols->plain.data, cols->plain.strides, p->threads, &status);
    return status;
}

/* Finishes rows after oneDNN: the whole epilogue, or only the rounding to the type of d. */
static void finish_rows(const amp_matmul_args *g, const struct plan *p, float *sums, int64_t i, int64_t rows, int64_t j,
                        int64_t cols) {
    if (!p->fused) {
        host->finish(g, sums, (size_t)cols, (size_t)i, (size_t)rows, (size_t)j, (size_t)cols);
        return;
    }
    char *d = (char *)g->d + (i * g->ld_d + j) * size_of(g->d_dtype);
    const bool one_run = g->ld_d == cols;
    for (int64_t r = 0; r < (one_run ? 1 : rows); r++)
        host->cast(g->d_dtype, d + r * g->ld_d * size_of(g->d_dtype), AMP_FLOAT32, sums + r * cols,
                   (size_t)(one_run ? rows * cols : cols));
}

static dnnl_status_t multiply_panel(const amp_matmul_args *g, const struct plan *p, const struct scratch *s, int64_t i,
                                    int64_t rows, struct columns *cols) {
    const struct matrix a = part_of_a(g, p, s->a, i, rows);
    struct shape shape = shape_of(g, p, rows, cols);
    shape.a[1] = a.strides[0], shape.a[2] = a.strides[1];
    dnnl_status_t status;
    struct product *product = product_get(&shape, &status);
    if (!product) return status;
    if (shape.packed) status = get_pack(g, p, s, product, cols);
    void *d = p->direct ? (char *)g->d + (i * g->ld_d + cols->first) * size_of(g->d_dtype) : (void *)s->sums;
    if (status == dnnl_success)
        status = product_run(product, a.data, shape.packed ? pack_data(cols->pack) : cols->plain.data,
                             shape.has_bias ? s->bias + cols->first : NULL, d, p->threads);
    product_put(product);
    if (status == dnnl_success && !p->direct) finish_rows(g, p, s->sums, i, rows, cols->first, cols->n);
    return status;
}

static dnnl_status_t multiply_all(const amp_matmul_args *g, const struct plan *p, const struct scratch *s,
                                  bool *written) {
    for (int64_t j = 0; j < g->n; j += p->nb) {
        struct columns cols = { .first = j, .n = min_of(p->nb, g->n - j) };
        dnnl_status_t status = dnnl_success;
        if (!g->b_id) cols.plain = part_of_b(g, p, s->b, j, cols.n);
        for (int64_t i = 0; i < g->m && status == dnnl_success; i += p->mb) {
            status = multiply_panel(g, p, s, i, min_of(p->mb, g->m - i), &cols);
            *written |= status == dnnl_success;
        }
        pack_put(cols.pack);
        if (status != dnnl_success) return status;
    }
    return dnnl_success;
}

/* ---- a whole batch ---- */

/* One block of scratch for all of the batch. */
static void *make_scratch(const amp_matmul_args *g, const struct plan *p, struct scratch *s, dnnl_status_t *status) {
    const int64_t a = p->convert_a ? 4 * p->mb * g->k : 0;
    const int64_t b = p->convert_b ? 4 * p->nb * g->k : 0;
    const int64_t sums = p->direct ? 0 : 4 * p->mb * p->nb;
    const int64_t bias = p->fused && g->bias ? 4 * g->n : 0;
    const int64_t parts[] = { a, b, sums, bias };
    int64_t offsets[5] = { 0 };
    *status = dnnl_unimplemented;
    for (int i = 0; i < 4; i++) {
        if (parts[i] > SCRATCH_LIMIT) return NULL;
        offsets[i + 1] = offsets[i] + (parts[i] + 63) / 64 * 64;
    }
    char *block = scratch_get((size_t)offsets[4]);
    *status = block ? dnnl_success : dnnl_out_of_memory;
    if (!block) return NULL;
    *s = (struct scratch){ (float *)(void *)block, (float *)(void *)(block + offsets[1]),
                           (float *)(void *)(block + offsets[2]), (float *)(void *)(block + offsets[3]) };
    if (bias) host->cast(AMP_FLOAT32, s->bias, g->bias_dtype, g->bias, (size_t)g->n);
    return block;
}

static amp_matmul_args item_of(const amp_matmul_args *g, int64_t i) {
    amp_matmul_args item = *g;
    item.a = (const char *)g->a + i * g->stride_a * size_of(g->a_dtype);
    item.b = (const char *)g->b + i * g->stride_b * size_of(g->b_dtype);
    if (g->c) item.c = (const char *)g->c + i * g->stride_c * size_of(g->c_dtype);
    item.d = (char *)g->d + i * g->stride_d * size_of(g->d_dtype);
    return item;
}

/* Folds a batch of consecutive row blocks with a shared b into one tall product. */
static amp_matmul_args fold(const amp_matmul_args *g) {
    amp_matmul_args one = *g;
    const bool rows_follow = g->stride_b == 0 && !g->transpose_a && g->stride_a == g->m * g->ld_a &&
                             g->stride_d == g->m * g->ld_d && (!g->c || g->stride_c == g->m * g->ld_c);
    if (g->batch > 1 && rows_follow) one.m *= g->batch, one.batch = 1;
    return one;
}

/* All of the batch in one call, where nothing needs a panel. */
static struct product *whole_batch(const amp_matmul_args *g, const struct plan *p) {
    if (g->batch == 1 || !p->direct || p->convert_a || p->convert_b || (g->b_id && g->stride_b == 0)) return NULL;
    const struct columns cols = { 0, g->n, part_of_b(g, p, NULL, 0, g->n), NULL };
    const struct matrix a = part_of_a(g, p, NULL, 0, g->m);
    struct shape s = shape_of(g, p, g->m, &cols);
    s.batch = g->batch, s.packed = 0, s.d[0] = g->stride_d;
    s.a[0] = g->stride_a, s.a[1] = a.strides[0], s.a[2] = a.strides[1];
    s.b[0] = g->stride_b, s.b[1] = cols.plain.strides[0], s.b[2] = cols.plain.strides[1];
    dnnl_status_t status;
    struct product *product = product_get(&s, &status);
    if (!product || !product_is_slow(product)) return product;
    product_put(product);
    return NULL;
}

static dnnl_status_t run_plan(const amp_matmul_args *g, const struct plan *p, bool *written) {
    struct scratch s;
    dnnl_status_t status;
    void *block = make_scratch(g, p, &s, &status);
    if (!block) return status;
    struct product *product = whole_batch(g, p);
    if (product) {
        *written = true;
        status = product_run(product, g->a, g->b, g->bias ? s.bias : NULL, g->d, p->threads);
        product_put(product);
    } else {
        for (int64_t i = 0; i < g->batch && status == dnnl_success; i++) {
            amp_matmul_args item = item_of(g, i);
            if (g->stride_b) item.b_id = 0; /* the id names all of them */
            status = multiply_all(&item, p, &s, written);
        }
    }
    scratch_put(block);
    return status;
}

static amp_dtype best_type(const amp_matmul_args *g) {
    return g->a_dtype == g->b_dtype && native[g->a_dtype] ? g->a_dtype : AMP_FLOAT32;
}

static amp_status fail_onednn(dnnl_status_t status, bool written) {
    char text[160];
    snprintf(text, sizeof text, "matmul: oneDNN %s (its status %d)",
             written || (status != dnnl_unimplemented && status != dnnl_out_of_memory) ? "failed"
             : status == dnnl_unimplemented ? "has no code for these types and sizes" : "has no memory",
             (int)status);
    return host->fail(written                         ? AMP_ERR_BACKEND
                      : status == dnnl_out_of_memory ? AMP_ERR_NO_MEMORY
                                                     : AMP_ERR_UNSUPPORTED,
                      text);
}

static amp_status fail_in_child(void) {
    return host->fail(AMP_ERR_UNSUPPORTED, "matmul: this process was forked while another thread used oneDNN, and its "
                                           "locks stay taken here. Fork earlier, or use the built-in code.");
}

static amp_status matmul_onednn(const amp_matmul_args *args, int32_t threads) {
    const amp_matmul_args g = fold(args);
    bool written = false;
    struct plan plan = make_plan(&g, best_type(&g), threads);
    dnnl_status_t status = run_plan(&g, &plan, &written);
    if (status == dnnl_unimplemented && !written && plan.type != AMP_FLOAT32) {
        plan = make_plan(&g, AMP_FLOAT32, threads);
        status = run_plan(&g, &plan, &written);
    }
    return status == dnnl_success ? AMP_OK : fail_onednn(status, written);
}

amp_status onednn_matmul(const amp_matmul_args *args, int32_t threads) {
    if (!children_enter()) return fail_in_child();
    const amp_status status = matmul_onednn(args, children_threads(threads));
    children_leave();
    return status;
}

/* ---- in words ---- */

static const char *name_of(amp_dtype type) {
    return type == AMP_FLOAT32 ? "fp32" : type == AMP_FLOAT16 ? "fp16" : "bf16";
}

/* Returns the product of the first panel. *type: its operand type. */
static struct product *first_product(const amp_matmul_args *g, amp_dtype type, int32_t threads, struct plan *p) {
    float *nowhere = NULL;
    *p = make_plan(g, type, threads);
    struct plan probe = *p;
    struct columns cols = { 0, min_of(p->nb, g->n), { NULL, { 0, 0 } }, NULL };
    const int64_t rows = min_of(p->mb, g->m);
    probe.convert_a = probe.convert_b = false; /* nothing is read */
    struct matrix a = part_of_a(g, &probe, nowhere, 0, rows);
    cols.plain = part_of_b(g, &probe, nowhere, 0, cols.n);
    if (p->convert_a) a.strides[g->transpose_a] = g->transpose_a ? rows : g->k;
    if (p->convert_b) cols.plain.strides[g->transpose_b] = g->transpose_b ? g->k : cols.n;
    struct shape shape = shape_of(g, p, rows, &cols);
    shape.a[1] = a.strides[0], shape.a[2] = a.strides[1];
    dnnl_status_t status;
    return product_get(&shape, &status);
}

static amp_status explain_onednn(const amp_matmul_args *args, int32_t threads, char *text, size_t size) {
    const amp_matmul_args g = fold(args);
    struct plan p;
    struct product *product = first_product(&g, best_type(&g), threads, &p);
    if (!product && p.type != AMP_FLOAT32) product = first_product(&g, AMP_FLOAT32, threads, &p);
    if (!product) return fail_onednn(dnnl_unimplemented, false);
    const dnnl_version_t *v = dnnl_version();
    const int64_t panels = ((g.m + p.mb - 1) / p.mb) * ((g.n + p.nb - 1) / p.nb);
    snprintf(text, size, "onednn (oneDNN %d.%d.%d): %s, %s, %d thread%s, %lld panel%s%s%s%s", v->major, v->minor,
             v->patch, name_of(p.type), product_name(product), (int)threads, threads == 1 ? "" : "s", (long long)panels,
             panels == 1 ? "" : "s", p.convert_a || p.convert_b ? ", operands converted" : "",
             p.direct ? "" : ", finished by libamp", g.b_id ? ", weights packed" : "");
    product_put(product);
    return AMP_OK;
}

amp_status onednn_matmul_explain(const amp_matmul_args *args, int32_t threads, char *text, size_t size) {
    if (!children_enter()) return fail_in_child();
    const amp_status status = explain_onednn(args, children_threads(threads), text, size);
    children_leave();
    return status;
}
