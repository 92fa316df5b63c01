/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the gate; amp_gate_set and amp_gate_measure: sizes set by the host, and measured with amp_matmul. */
#include "amp_gate.h"
#include "amp_kernels.h"
#include "call/gate.h"
#include "context/op.h"
#include "context/parts.h"
#include "context/policy.h"

#include <stdlib.h>
#include <string.h>

/* ---- the table ---- */

AMP_API amp_status amp_get_gate_rows(amp_gate_row *rows, size_t capacity, size_t *count) {
    AMP_RETURN_IF(!count || (capacity && !rows), AMP_ERR_INVALID_ARGUMENT, "amp_get_gate_rows: an argument is NULL");
    if (capacity) AMP_TRY(amp__check_struct(rows->struct_size, sizeof *rows, "amp_gate_row"));
    const uint32_t stride = capacity ? rows->struct_size : 0;
    size_t n;
    const amp_gate_row *table = amp__gate_rows(&n);
    for (size_t i = 0; i < n && i < capacity; i++) {
        amp_gate_row *row = (amp_gate_row *)(void *)((char *)rows + i * stride);
        row->struct_size = stride;
        AMP_TRY(amp__fill_struct(row, stride, sizeof *row, &table[i], sizeof *row, "amp_gate_row"));
    }
    *count = n;
    return AMP_OK;
}

/* ---- the host's word ---- */

AMP_API amp_status amp_gate_set(amp_context *context, const char *op, uint64_t least) {
    const struct amp__keyed *entries;
    size_t n, found = 0;
    AMP_RETURN_IF(!context || !op, AMP_ERR_INVALID_ARGUMENT, "amp_gate_set: %s is NULL", context ? "op" : "context");
    AMP_TRY(amp__ops_named(context, op, &entries, &n));
    for (size_t i = 0; i < n; i++) {
        struct amp__op *one = entries[i].value;
        if (strcmp(op, one->name) != 0 && !amp__op_is_numbered(one, op)) continue;
        found++;
        amp__gate_set_least(one, least, AMP__GATE_SET);
    }
    AMP_RETURN_IF(!found, AMP_ERR_NOT_FOUND, "amp_gate_set: the context has no op named \"%.140s\"", op);
    return AMP_OK;
}

/* ---- a measurement ---- */

enum { LARGEST = 256, EDGES = 5, ROUNDS = 7 };

struct measurement {
    amp_clock clock;
    void *self;
    amp_dtype low;
    float *fp32;        /* a, b, d: LARGEST squared elements each */
    uint16_t *narrowed; /* the same */
    amp_status status;  /* of the first call that failed */
};

static void keep_status(struct measurement *m, amp_status status) {
    if (m->status == AMP_OK) m->status = status;
}

static void run_product(struct measurement *m, amp_dtype type, void *base, int64_t edge) {
    const size_t width = type == AMP_FLOAT32 ? sizeof(float) : sizeof(uint16_t),
                 matrix = (size_t)LARGEST * LARGEST * width;
    amp_matmul_args args = AMP_MATMUL_ARGS_INIT;
    args.a_dtype = args.b_dtype = args.d_dtype = type;
    args.m = args.n = args.k = edge;
    args.a = base;
    args.b = (char *)base + matrix;
    args.d = (char *)base + 2 * matrix;
    keep_status(m, amp_matmul(&args));
}

static void in_fp32(struct measurement *m, int64_t edge) { run_product(m, AMP_FLOAT32, m->fp32, edge); }

/* As in a call: the activation is cast, the weight was, and the result becomes FP32 again. */
static void in_low(struct measurement *m, int64_t edge) {
    const uint64_t n = (uint64_t)(edge * edge);
    const size_t matrix = (size_t)LARGEST * LARGEST;
    const amp_span wide[2] = { { m->fp32, n, AMP_FLOAT32, 0 }, { m->fp32 + 2 * matrix, n, AMP_FLOAT32, 0 } };
    const amp_span low[2] = { { m->narrowed, n, m->low, 0 }, { m->narrowed + 2 * matrix, n, m->low, 0 } };
    keep_status(m, amp_cast_list(&low[0], &wide[0], 1));
    run_product(m, m->low, m->narrowed, edge);
    keep_status(m, amp_cast_list(&wide[1], &low[1], 1));
}

/* About as long at each edge. */
static uint64_t time_of(struct measurement *m, void (*piece)(struct measurement *, int64_t), int64_t edge) {
    const int64_t times = (LARGEST / edge) * (LARGEST / edge);
    const uint64_t begin = m->clock(m->self);
    for (int64_t i = 0; i < times; i++) piece(m, edge);
    return m->clock(m->self) - begin;
}

static int by_time(const void *a, const void *b) {
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static bool low_wins(struct measurement *m, int64_t edge) {
    uint64_t fp32[ROUNDS], low[ROUNDS];
    in_fp32(m, edge); /* prepared once for a shape */
    in_low(m, edge);
    for (int i = 0; i < ROUNDS; i++) {
        fp32[i] = time_of(m, in_fp32, edge);
        low[i] = time_of(m, in_low, edge);
    }
    qsort(fp32, ROUNDS, sizeof fp32[0], by_time);
    qsort(low, ROUNDS, sizeof low[0], by_time);
    return fp32[ROUNDS / 2] > 0 && 100.0 * (double)fp32[ROUNDS / 2] >= 105.0 * (double)low[ROUNDS / 2];
}

/* From the largest edge down to the last one that wins. */
static uint64_t least_edge(struct measurement *m) {
    uint64_t least = AMP_GATE_NEVER;
    for (int64_t edge = LARGEST, i = 0; i < EDGES && low_wins(m, edge); edge /= 2, i++) least = (uint64_t)edge;
    return least;
}

/* Sets the measured sizes and returns the number of ops. NULL: only counts them. */
static size_t decide_measured(amp_context *context, const uint64_t *least) {
    const struct amp__models *models = amp__models_of(context);
    size_t ops = 0;
    for (size_t i = 0; i < models->n; i++)
        for (size_t j = 0; j < models->list[i].n_ops; j++) {
            struct amp__op *op = &models->list[i].ops[j];
            if (!op->gate.applies || !(op->flags & AMP_OP_MATMUL)) continue;
            if (least) amp__gate_set_least(op, *least, AMP__GATE_MEASURED);
            ops++;
        }
    return ops;
}

static void free_floats(float *const *memory) { amp__free(*memory); }

AMP_API amp_status amp_gate_measure(amp_context *context, amp_clock clock, void *self) {
    const size_t matrices = 3 * (size_t)LARGEST * LARGEST;
    AMP_RETURN_IF(!context || !clock, AMP_ERR_INVALID_ARGUMENT, "amp_gate_measure: %s is NULL",
                  context ? "clock" : "context");
    if (!decide_measured(context, NULL)) return AMP_OK;
    AMP_CLEANUP(free_floats) float *memory = amp__alloc_aligned(matrices * (sizeof(float) + sizeof(uint16_t)));
    if (!memory) return amp__fail_memory();
    for (size_t i = 0; i < matrices; i++) memory[i] = (float)(i % 7) - 3.0f;
    memset(memory + matrices, 0, matrices * sizeof(uint16_t)); /* zeros in any type */
    const amp_dtype low = amp__policy_of(context)->properties.low;
    struct measurement m = { clock, self, low, memory, (uint16_t *)(memory + matrices), AMP_OK };
    const uint64_t least = least_edge(&m);
    AMP_TRY(m.status);
    (void)decide_measured(context, &least);
    return AMP_OK;
}
