/* SPDX-License-Identifier: Apache-2.0 */
#include "mill_adapter.h"
#include "problem.h"

#include <amp_kernels.h>

#include <stdlib.h>
#include <string.h>

/* A stand-in for a fast kernel: widens everything, computes, rounds. Memory of one call. */
struct wide {
    float *block, *next;
    amp_dtype dtype;
};

static float *take(struct wide *wide, int n) {
    float *taken = wide->next;
    wide->next += n;
    return taken;
}

static float *widened(struct wide *wide, const void *low, int n) {
    float *taken = take(wide, n);
    const amp_span dst = { taken, (uint64_t)n, AMP_FLOAT32, 0 };
    const amp_span src = { (void *)(uintptr_t)low, (uint64_t)n, wide->dtype, 0 };
    return amp_cast_list(&dst, &src, 1) == AMP_OK ? taken : NULL;
}

static int rounded(const struct wide *wide, void *low, const float *from, int n) {
    const amp_span dst = { low, (uint64_t)n, wide->dtype, 0 };
    const amp_span src = { (void *)(uintptr_t)from, (uint64_t)n, AMP_FLOAT32, 0 };
    return amp_cast_list(&dst, &src, 1) == AMP_OK ? MILL_OK : MILL_ERROR;
}

/* A gradient that leaves a 16-bit kernel is 16-bit; the sum that it is added to is the host's own, in FP32. */
static int add_rounded(struct wide *wide, float *sum, const float *part, int n) {
    uint16_t *low = (uint16_t *)(void *)take(wide, n);
    if (rounded(wide, low, part, n) != MILL_OK) return MILL_ERROR;
    const float *exact = widened(wide, low, n);
    for (int i = 0; exact && i < n; i++) sum[i] += exact[i];
    return exact ? MILL_OK : MILL_ERROR;
}

static int forward(mill_node *p, struct wide *wide) {
    const mill_node *x = p->in[0], *w = p->in[1], *b = p->in[2];
    const float *wide_x = widened(wide, x->x, mill_size(x)), *wide_w = widened(wide, w->x, mill_size(w));
    const float *wide_b = widened(wide, b->x, mill_size(b));
    float *y = take(wide, mill_size(p));
    math_linear(y, wide_x, wide_w, wide_b, p->rows, x->cols, p->cols);
    return rounded(wide, p->x, y, mill_size(p));
}

static int backward(mill_node *p, struct wide *wide) {
    const mill_node *x = p->in[0], *w = p->in[1], *b = p->in[2];
    const float *dy = widened(wide, p->g, mill_size(p));
    const float *wide_x = widened(wide, x->x, mill_size(x)), *wide_w = widened(wide, w->x, mill_size(w));
    float *dx = take(wide, mill_size(x)), *dw = take(wide, mill_size(w)), *db = take(wide, mill_size(b));
    math_linear_backward(dx, dw, db, dy, wide_x, wide_w, p->rows, x->cols, p->cols);
    if (add_rounded(wide, w->g, dw, mill_size(w)) || add_rounded(wide, b->g, db, mill_size(b))) return MILL_ERROR;
    return x->g ? add_rounded(wide, x->g, dx, mill_size(x)) : MILL_OK;
}

/* Calls for sizes, in which visit emits nothing, do not come here. */
static int run(mill_node *p, int action, amp_dtype dtype) {
    const int n = 4 * (mill_size(p) + mill_size(p->in[0]) + mill_size(p->in[1]) + mill_size(p->in[2]));
    struct wide wide = { calloc((size_t)n, sizeof(float)), NULL, dtype };
    wide.next = wide.block;
    int result = MILL_ERROR;
    if (wide.block && action == MILL_FORWARD) result = forward(p, &wide);
    if (wide.block && action == MILL_BACKWARD) result = backward(p, &wide);
    free(wide.block);
    return result;
}

int mill_linear_fp16(mill_node *p, int action) { return run(p, action, AMP_FLOAT16); }
int mill_linear_bf16(mill_node *p, int action) { return run(p, action, AMP_BFLOAT16); }
