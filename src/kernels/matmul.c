/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp_matmul: d is computed in blocks of BLOCK_M x BLOCK_N sums. For each stretch of BLOCK_K of the depth, panels of
 * op(a) and op(b) are converted to float and packed in the order in which the tile kernel reads them; it adds their
 * products to the sums. Threads take one block of d after the other. Each sum is one float accumulator that takes its
 * products in order of depth, whatever the blocking, so that an element of d depends on nothing but its row, its column
 * and the arguments.
 */
#include "amp_kernels.h"
#include "kernels/fpenv.h"
#include "kernels/kernels.h"
#include "kernels/matmul.h"
#include "kernels/threads.h"

#include <stdatomic.h>
#include <string.h>

/* At most this much at a time, and whole tiles of it. A panel of b stays in the first-level cache while those of a pass
 * by; packed blocks and sums, 1.1 MiB at most, about in the second. Packing an element costs as much as a hundred of
 * its products or fewer, so that both sides must be long: measured in bench/README.md. */
enum { BLOCK_M = 192, BLOCK_N = 512, BLOCK_K = 256 };

static size_t min_size(size_t a, size_t b) { return a < b ? a : b; }
static size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }
static size_t round_down(size_t n, size_t to) { return n / to * to; }

/* ---- checks ---- */

/* One stored matrix. data NULL: absent, or not to be read. */
struct matrix {
    const char *name;
    const void *data;
    amp_dtype dtype;
    int64_t rows, cols, ld;
};

static bool is_matmul_type(amp_dtype dtype) {
    return dtype == AMP_FLOAT32 || dtype == AMP_FLOAT16 || dtype == AMP_BFLOAT16;
}

/* Gives ld 0 its meaning. */
static amp_status check_matrix(struct matrix *x, bool required) {
    if (x->ld == 0) x->ld = x->cols;
    AMP_RETURN_IF(!is_matmul_type(x->dtype), AMP_ERR_INVALID_ARGUMENT,
                  "matmul: %s is %s: use fp32, fp16 or bf16", x->name, amp__dtype_name(x->dtype));
    AMP_RETURN_IF(x->ld < x->cols, AMP_ERR_INVALID_ARGUMENT,
                  "matmul: ld_%s is %lld, less than the %lld element%s of a row", x->name, (long long)x->ld,
                  (long long)x->cols, AMP__S(x->cols));
    AMP_RETURN_IF(x->ld && x->rows > PTRDIFF_MAX / 8 / x->ld, AMP_ERR_INVALID_ARGUMENT,
                  "matmul: %s, %lld row%s of %lld element%s, is larger than memory", x->name, (long long)x->rows,
                  AMP__S(x->rows), (long long)x->ld, AMP__S(x->ld));
    AMP_RETURN_IF(required && x->rows && x->cols && !x->data, AMP_ERR_INVALID_ARGUMENT, "matmul: %s is NULL", x->name);
    return AMP_OK;
}

static amp_status check_flag(const char *name, int32_t flag) {
    AMP_RETURN_IF(flag != 0 && flag != 1, AMP_ERR_INVALID_ARGUMENT, "matmul: transpose_%s is %d: use 0 or 1", name,
                  (int)flag);
    return AMP_OK;
}

/* d's products must not overlap: each after the one before it, or beside it in longer rows. */
static amp_status check_batch(const amp_matmul_args *g) {
    const struct {
        const char *name;
        int64_t stride;
    } strides[] = { { "a", g->stride_a }, { "b", g->stride_b }, { "c", g->stride_c }, { "d", g->stride_d } };
    AMP_RETURN_IF(g->batch < 0, AMP_ERR_INVALID_ARGUMENT, "matmul: batch is %lld", (long long)g->batch);
    if (g->batch < 2 || g->m == 0 || g->n == 0) return AMP_OK;
    for (size_t i = 0; i < AMP_COUNT(strides); i++)
        AMP_RETURN_IF(strides[i].stride < 0 || strides[i].stride > PTRDIFF_MAX / 8 / g->batch, AMP_ERR_INVALID_ARGUMENT,
                      "matmul: stride_%s is %lld: use 0 or more, within the memory", strides[i].name,
                      (long long)strides[i].stride);
    const bool one_after_the_other = g->stride_d >= (g->m - 1) * g->ld_d + g->n;
    const bool side_by_side = g->stride_d >= g->n && g->ld_d >= (g->batch - 1) * g->stride_d + g->n;
    AMP_RETURN_IF(!one_after_the_other && !side_by_side, AMP_ERR_INVALID_ARGUMENT,
                  "matmul: stride_d is %lld: the products of the batch overlap", (long long)g->stride_d);
    AMP_RETURN_IF(g->c && g->c == g->d && g->stride_c != g->stride_d, AMP_ERR_INVALID_ARGUMENT,
                  "matmul: c and d are the same memory with different strides");
    return AMP_OK;
}

static amp_status check_choices(const amp_matmul_args *g) {
    AMP_RETURN_IF(g->activation < AMP_ACTIVATION_NONE || g->activation > AMP_ACTIVATION_GELU_TANH,
                  AMP_ERR_INVALID_ARGUMENT, "matmul: activation is %d: use AMP_ACTIVATION_...", (int)g->activation);
    AMP_RETURN_IF(g->backend < AMP_MATMUL_AUTO || g->backend > AMP_MATMUL_ONEDNN, AMP_ERR_INVALID_ARGUMENT,
                  "matmul: backend is %d: use AMP_MATMUL_...", (int)g->backend);
    AMP_RETURN_IF(g->flags & ~(uint32_t)(AMP_MATMUL_TF32 | AMP_MATMUL_FAST_RELU) || g->reserved,
                  AMP_ERR_INVALID_ARGUMENT,
                  "matmul: flags is 0x%x: use AMP_MATMUL_TF32 and AMP_MATMUL_FAST_RELU; reserved is 0",
                  (unsigned)g->flags);
    AMP_RETURN_IF(g->device.type < 0 || g->device.type > AMP__DEVICE_CUDA, AMP_ERR_UNSUPPORTED,
                  "matmul: device type %d: 1 is the CPU and 2 CUDA", (int)g->device.type);
    AMP_RETURN_IF(g->device.type == AMP__DEVICE_CUDA && g->backend != AMP_MATMUL_AUTO, AMP_ERR_INVALID_ARGUMENT,
                  "matmul: backend is %d, which is for CPUs: the operands are on a device", (int)g->backend);
    return AMP_OK;
}

/* Fills in the distances between rows, and batch. */
static amp_status check_args(amp_matmul_args *g) {
    AMP_RETURN_IF(g->m < 0 || g->n < 0 || g->k < 0, AMP_ERR_INVALID_ARGUMENT,
                  "matmul: m, n, k are %lld, %lld, %lld: none may be negative", (long long)g->m, (long long)g->n,
                  (long long)g->k);
    AMP_TRY(check_flag("a", g->transpose_a));
    AMP_TRY(check_flag("b", g->transpose_b));
    const bool reads = g->alpha != 0.0f && g->m && g->n;
    struct matrix a = { "a", g->a, g->a_dtype, g->transpose_a ? g->k : g->m, g->transpose_a ? g->m : g->k, g->ld_a };
    struct matrix b = { "b", g->b, g->b_dtype, g->transpose_b ? g->n : g->k, g->transpose_b ? g->k : g->n, g->ld_b };
    struct matrix c = { "c", g->c, g->c_dtype, g->m, g->n, g->ld_c };
    struct matrix d = { "d", g->d, g->d_dtype, g->m, g->n, g->ld_d };
    AMP_TRY(check_matrix(&a, reads));
    AMP_TRY(check_matrix(&b, reads));
    AMP_TRY(check_matrix(&d, true));
    if (c.data) AMP_TRY(check_matrix(&c, true));
    AMP_RETURN_IF(c.data && c.data == d.data && (c.dtype != d.dtype || c.ld != d.ld), AMP_ERR_INVALID_ARGUMENT,
                  "matmul: c and d are the same memory with different types or distances between rows");
    AMP_RETURN_IF(g->bias && !is_matmul_type(g->bias_dtype), AMP_ERR_INVALID_ARGUMENT,
                  "matmul: bias is %s: use fp32, fp16 or bf16", amp__dtype_name(g->bias_dtype));
    g->ld_a = a.ld, g->ld_b = b.ld, g->ld_c = c.ld, g->ld_d = d.ld;
    AMP_TRY(check_choices(g));
    AMP_TRY(check_batch(g));
    if (g->batch == 0) g->batch = 1;
    return AMP_OK;
}

amp_status amp__matmul_read(amp_matmul_args *g, const amp_matmul_args *args) {
    AMP_TRY(amp__copy_struct(g, sizeof *g, AMP__MATMUL_OLDEST, args, args->struct_size, "amp_matmul_args"));
    g->struct_size = sizeof *g;
    return check_args(g);
}

static const void *advance(const void *data, int64_t elements, amp_dtype dtype) {
    return data ? (const char *)data + elements * (int64_t)amp__dtype_size(dtype) : NULL;
}

amp_matmul_args amp__matmul_item(const amp_matmul_args *g, int64_t i) {
    amp_matmul_args item = *g;
    item.a = advance(g->a, i * g->stride_a, g->a_dtype);
    item.b = advance(g->b, i * g->stride_b, g->b_dtype);
    item.c = advance(g->c, i * g->stride_c, g->c_dtype);
    item.d = (char *)g->d + i * g->stride_d * (int64_t)amp__dtype_size(g->d_dtype);
    item.batch = 1;
    return item;
}

/* ---- packing ---- */

/* op(a) or the transpose of op(b): `lines` are rows of op(a) or columns of op(b), each as long as the depth. */
struct operand {
    const char *data;
    size_t ld, width; /* elements between stored rows, and bytes of an element */
    amp__cast_fn *to_float;
    bool along_depth; /* a stored row is one line, rather than one depth of all lines */
};

/* Part of an operand. */
struct part {
    size_t line, lines, depth, depths; /* first and number of both */
};

/* Stored rows run along the depth: each line is converted, then dealt out with `side` elements between. */
static void pack_lines(float *dst, size_t side, const struct operand *x, const struct part *part) {
    float run[BLOCK_K];
    for (size_t first = 0; first < part->lines; first += side, dst += side * part->depths) {
        for (size_t i = 0; i < side; i++) {
            const bool there = first + i < part->lines;
            if (there)
                x->to_float(run, x->data + ((part->line + first + i) * x->ld + part->depth) * x->width, part->depths);
            for (size_t p = 0; p < part->depths; p++) dst[p * side + i] = there ? run[p] : 0.0f;
        }
    }
}

/* A stored row is one depth of all lines: converted a stretch of panels at a time, then copied panel by panel. */
static void pack_depths(float *dst, size_t side, const struct operand *x, const struct part *part) {
    float run[BLOCK_N];
    const size_t panel = side * part->depths;
    for (size_t p = 0; p < part->depths; p++) {
        x->to_float(run, x->data + ((part->depth + p) * x->ld + part->line) * x->width, part->lines);
        memset(run + part->lines, 0, (round_up(part->lines, side) - part->lines) * sizeof *run);
        float *to = dst + p * side;
        for (size_t i = 0; i < part->lines; i += side, to += panel) memcpy(to, run + i, side * sizeof *run);
    }
}

/* Packs a part into panels of `side` lines: panel after panel, in each depth after depth, in each line after line. The
 * last panel is filled up with zeros. */
static void pack(float *dst, size_t side, const struct operand *x, const struct part *part) {
    (x->along_depth ? pack_lines : pack_depths)(dst, side, x, part);
}

/* ---- the product ---- */

/* All of it, as the threads see it that take block after block. A block of d is block_m x block_n. */
struct product {
    const struct amp__kernels *k;
    const amp_matmul_args *g;
    size_t block_m, block_n;            /* whole tiles */
    size_t row_blocks, col_blocks;      /* of one product */
    size_t scratch_a, scratch_b, sums;  /* elements of a thread's scratch */
    size_t blocks;                      /* of all products */
    _Atomic size_t next;
    float *_Atomic scratch;             /* for the first thread that comes */
};

/* A thread's own. */
struct scratch {
    float *a, *b;   /* packed blocks */
    float *sums;    /* of one block, row-major */
    size_t sums_ld; /* elements between rows of sums */
    size_t packed;  /* which columns of which product's op(b) are packed, counted through; SIZE_MAX: none, or not all */
};

/* sums += the block's part of op(a) * op(b). */
static void multiply_tiles(const struct amp__tile *tile, const struct scratch *s, size_t rows, size_t cols,
                           size_t depths) {
    for (size_t j = 0; j < cols; j += tile->cols)
        for (size_t i = 0; i < rows; i += tile->rows)
            tile->fn(s->sums + i * s->sums_ld + j, s->sums_ld, s->a + i * depths, s->b + j * depths, depths);
}

/* Block numbers run along the rows first, so that these blocks share the packed panel of op(b). */
static void multiply_block(const struct product *x, struct scratch *s, size_t block) {
    const struct amp__kernels *k = x->k;
    const size_t row_block = block % x->row_blocks, columns = block / x->row_blocks;
    const amp_matmul_args g = amp__matmul_item(x->g, (int64_t)(columns / x->col_blocks));
    const struct operand a = { g.a, (size_t)g.ld_a, amp__dtype_size(g.a_dtype), k->cast[AMP_FLOAT32][g.a_dtype],
                               !g.transpose_a };
    const struct operand b = { g.b, (size_t)g.ld_b, amp__dtype_size(g.b_dtype), k->cast[AMP_FLOAT32][g.b_dtype],
                               g.transpose_b };
    const size_t i = row_block * x->block_m, j = columns % x->col_blocks * x->block_n;
    const size_t rows = min_size((size_t)g.m - i, x->block_m), cols = min_size((size_t)g.n - j, x->block_n);
    const size_t depth = g.alpha != 0.0f ? (size_t)g.k : 0;
    memset(s->sums, 0, round_up(rows, k->tile.rows) * s->sums_ld * sizeof *s->sums);
    for (size_t p = 0; p < depth; p += BLOCK_K) {
        const size_t depths = min_size(depth - p, BLOCK_K);
        pack(s->a, k->tile.rows, &a, &(struct part){ i, rows, p, depths });
        if (s->packed != columns) pack(s->b, k->tile.cols, &b, &(struct part){ j, cols, p, depths });
        multiply_tiles(&k->tile, s, rows, cols, depths);
    }
    s->packed = depth <= BLOCK_K ? columns : SIZE_MAX;
    amp__matmul_finish(&g, s->sums, s->sums_ld, i, rows, j, cols);
}

/* The work of one thread. Without memory it leaves the blocks to other threads, of which one has the first scratch. */
static void multiply_blocks(void *product) {
    struct product *x = product;
    float *block = atomic_exchange(&x->scratch, NULL);
    if (!block) block = amp__alloc_aligned((x->scratch_a + x->scratch_b + x->sums) * sizeof *block);
    if (!block) return;
    struct scratch s = { block, block + x->scratch_a, block + x->scratch_a + x->scratch_b,
                         round_up(min_size((size_t)x->g->n, x->block_n), x->k->tile.cols), SIZE_MAX };
    for (size_t i; (i = atomic_fetch_add(&x->next, 1)) < x->blocks;) multiply_block(x, &s, i);
    amp__free(block);
}

int32_t amp__matmul_threads(const amp_matmul_args *g) {
    enum { LEAST = 1 << 20 }; /* tens of microseconds */
    const double products = (double)g->m * (double)g->n * (double)g->k * (double)g->batch;
    if (products < 2.0 * LEAST) return 1;
    const int32_t threads = amp__threads();
    return products < (double)LEAST * threads ? (int32_t)(products / LEAST) : threads;
}

/* Each thread has something like two blocks or more. */
static void divide(struct product *x, int32_t threads) {
    enum { FEWEST_TILES = 4 };
    const amp_matmul_args *g = x->g;
    const struct amp__tile *tile = &x->k->tile;
    x->block_m = round_down(BLOCK_M, tile->rows), x->block_n = round_down(BLOCK_N, tile->cols);
    x->col_blocks = ((size_t)g->n + x->block_n - 1) / x->block_n;
    for (;; x->block_m = round_up(x->block_m / 2, tile->rows)) {
        x->row_blocks = ((size_t)g->m + x->block_m - 1) / x->block_m;
        x->blocks = x->row_blocks * x->col_blocks * (size_t)g->batch;
        if (threads < 2 || x->blocks >= 2 * (size_t)threads || x->block_m <= FEWEST_TILES * tile->rows) return;
    }
}

static amp_status matmul(const amp_matmul_args *args) {
    amp_matmul_args g;
    amp_status status = AMP_OK;
    AMP_TRY(amp__matmul_read(&g, args));
    if (g.device.type == AMP__DEVICE_CUDA) return amp__device_matmul(&g, NULL);
    if (g.m == 0 || g.n == 0 || amp__matmul_offload(&g, &status)) return status;
    struct product x = { .k = amp__kernels_get(), .g = &g };
    const int32_t threads = amp__matmul_threads(&g);
    divide(&x, threads);
    const size_t rows = round_up(min_size((size_t)g.m, x.block_m), x.k->tile.rows);
    const size_t cols = round_up(min_size((size_t)g.n, x.block_n), x.k->tile.cols);
    const size_t depth = min_size((size_t)g.k, BLOCK_K);
    x.scratch_a = rows * depth, x.scratch_b = cols * depth, x.sums = rows * cols;
    float *scratch = amp__alloc_aligned((x.scratch_a + x.scratch_b + x.sums) * sizeof *scratch);
    if (!scratch) return amp__fail_memory();
    atomic_store(&x.scratch, scratch);
    amp__threads_run(threads, multiply_blocks, &x);
    return AMP_OK;
}

AMP_API amp_status amp_matmul(const amp_matmul_args *args) {
    AMP_RETURN_IF(!args, AMP_ERR_INVALID_ARGUMENT, "matmul: args is NULL");
    const amp__fpenv saved = amp__fpenv_enter(); /* checks included: they compare alpha with 0 */
    const amp_status status = matmul(args);
    amp__fpenv_leave(saved);
    return status;
}
