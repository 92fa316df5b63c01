/* SPDX-License-Identifier: Apache-2.0 */
/* The program of include/amp.h's head, as it stands there, on a host of scalars: y = w * x + b towards 3 at x = 1. */
#include <amp.h>
#include <amp_kernels.h>

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- the framework: its tensors, of one number, live as long as the program ---- */

typedef struct scalar {
    bool half;
    union {
        float wide;
        uint16_t low;
    } value;
    float factor;                 /* of a loss */
    struct scalar *grad, *source; /* source: what it was cast from */
} scalar;

static int calls_in_half, released, steps;

static scalar *new_tensor(bool half) {
    static scalar pool[1024];
    static size_t used;
    if (used == sizeof pool / sizeof *pool) exit(2);
    pool[used] = (scalar){ .half = half, .factor = 1.0f };
    return &pool[used++];
}

static bool is_half(const void *handle) { return ((const scalar *)handle)->half; }

static amp_span span(scalar *t) { return (amp_span){ &t->value, 1, t->half ? AMP_FLOAT16 : AMP_FLOAT32, 0 }; }

static void copy(scalar *dst, scalar *src) {
    const amp_span to = span(dst), from = span(src);
    if (amp_cast_list(&to, &from, 1) != AMP_OK) exit(2);
}

static float get(scalar *t) {
    scalar wide = { .half = false };
    copy(&wide, t);
    return wide.value.wide;
}

static scalar *put(bool half, float value) {
    scalar *t = new_tensor(half), wide = { .value.wide = value };
    copy(t, &wide);
    return t;
}

static void *tensor_to(void *handle, bool half) {
    scalar *t = new_tensor(half);
    copy(t, handle);
    t->source = handle;
    return t;
}

static void tensor_free(void *handle) { released += handle != NULL; }

static struct {
    scalar *x, *weight, *bias, *y;
} tape;

static scalar *linear(scalar *x, scalar *weight, scalar *bias) {
    calls_in_half += x->half && weight->half && bias->half;
    tape.x = x, tape.weight = weight, tape.bias = bias;
    return tape.y = put(x->half, get(x) * get(weight) + get(bias));
}

static struct {
    scalar *(*linear)(scalar *, scalar *, scalar *);
} functions = { linear };

static scalar weight = { .factor = 1.0f }, bias = { .factor = 1.0f };
static void *parameters[] = { &weight, &bias };
enum { n = 2, iterations = 40 };

static void *batch(int i) { return put(false, 1.0f); }

static void *forward(void *x) {
    const float error = get(functions.linear(x, &weight, &bias)) - 3.0f;
    return put(false, 0.5f * error * error);
}

static void accumulate(scalar *to, scalar *grad) {
    while (to->source) to = to->source;
    to->grad = put(false, get(grad) + (to->grad ? get(to->grad) : 0.0f));
}

static void backward(void *loss) { /* in the type that linear saw */
    const bool half = tape.y->half;
    scalar *dy = put(half, ((scalar *)loss)->factor * (get(tape.y) - 3.0f));
    accumulate(tape.weight, put(half, get(dy) * get(tape.x)));
    accumulate(tape.bias, dy);
}

static void clear_grads(void **params, int count) {
    for (int i = 0; i < count; i++) ((scalar *)params[i])->grad = NULL;
}

static void update(void **params, int count) {
    for (int i = 0; i < count; i++) ((scalar *)params[i])->value.wide -= 0.25f * get(((scalar *)params[i])->grad);
    steps++;
}

/* ---- the hooks that the head leaves out ---- */

static amp_status view(void *self, void *handle, amp_tensor_view *out) {
    scalar *t = handle;
    out->data = &t->value;
    out->device.type = 1; /* the CPU */
    out->dtype.code = 2;
    out->dtype.bits = t->half ? 16 : 32;
    out->dtype.lanes = 1;
    return AMP_OK;
}

static amp_status grad(void *self, void *handle, void **out) {
    *out = ((scalar *)handle)->grad;
    return AMP_OK;
}

static amp_status scale(void *self, void *loss, float factor, void **out) {
    scalar *scaled = put(false, get(loss) * factor);
    scaled->factor = factor;
    *out = scaled;
    return AMP_OK;
}

#include "head_program.inc"

int main(void) {
    const int result = program();
    const float y = weight.value.wide + bias.value.wide;
    const struct {
        bool holds;
        const char *what;
    } points[] = {
        { result == AMP_OK, "every call succeeds" },
        { calls_in_half == iterations && released > 0, "linear sees fp16, and the casts are released" },
        { steps > iterations / 2 && steps < iterations, "it steps, and skips where a gradient was not finite" },
        { fabsf(y - 3.0f) <= 0x1p-9f, "it is trained: w and b (2^-11) and their sum (2^-10) round to 3 in fp16" },
        { functions.linear == linear, "the slot is as before" },
    };
    for (size_t i = 0; i < sizeof points / sizeof *points; i++)
        printf("%s %zu - %s\n", points[i].holds ? "ok" : "not ok", i + 1, points[i].what);
    printf("1..%zu\n# y %g, %d steps, %d released\n", sizeof points / sizeof *points, (double)y, steps, released);
    return 0;
}
