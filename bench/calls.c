/* SPDX-License-Identifier: Apache-2.0 */
/* A wrapped call against what any wrapper through libffi costs. */
#include "bench.h"

#include <amp.h>
#include <amp_raw.h>
#include <ffi.h>

#include <stdlib.h>
#include <string.h>

enum { CALLS = 1000 };

/* ---- the host: tensors that are nothing but their type ---- */

struct tensor {
    amp_dtype dtype;
};

static amp_dtype dtype_of(void *self, void *tensor) {
    (void)self;
    return ((struct tensor *)tensor)->dtype;
}

static amp_status cast(void *self, void *tensor, amp_dtype to, void **out) {
    struct tensor *copy = malloc(sizeof *copy);
    (void)self, (void)tensor;
    if (!copy) return AMP_ERR_NO_MEMORY;
    copy->dtype = to;
    *out = copy;
    return AMP_OK;
}

static void release(void *self, void *tensor) {
    (void)self;
    free(tensor);
}

static uint64_t version_of(void *self, void *tensor) {
    (void)self, (void)tensor;
    return 1;
}

static struct tensor half = { AMP_FLOAT16 }, weight = { AMP_FLOAT32 };

/* ---- two ops: one whose arguments travel in registers, one with a struct by value and arguments on the stack ---- */

typedef int32_t linear_fn(struct tensor *, struct tensor *);
__attribute__((noinline)) static int32_t linear(struct tensor *x, struct tensor *w) { return x->dtype + w->dtype; }

struct padding {
    int64_t left, right, mode;
};
typedef int32_t conv_fn(struct tensor *, struct tensor *, struct padding, int64_t, int64_t, int64_t, int64_t, int64_t,
                        int64_t);
__attribute__((noinline)) static int32_t conv(struct tensor *x, struct tensor *w, struct padding padding, int64_t a,
                                              int64_t b, int64_t c, int64_t d, int64_t e, int64_t f) {
    return x->dtype + w->dtype + (int32_t)(padding.mode + a + b + c + d + e + f);
}

static linear_fn *wrapped_linear = linear, *bare_linear;
static conv_fn *wrapped_conv = conv, *bare_conv;

static void must_be(int32_t sum, int32_t expected) { bench_must(sum != expected, "a call"); }

static void call_linear(void *data) {
    linear_fn *const *slot = data;
    int32_t sum = 0;
    for (int i = 0; i < CALLS; i++) sum += (*slot)(&half, &half);
    must_be(sum, 2 * CALLS * AMP_FLOAT16);
}

/* The weight is FP32, its cast in the cache. */
static void call_linear_on_weight(void *data) {
    linear_fn *const *slot = data;
    int32_t sum = 0;
    for (int i = 0; i < CALLS; i++) sum += (*slot)(&half, &weight);
    must_be(sum, 2 * CALLS * AMP_FLOAT16);
}

static void call_conv(void *data) {
    conv_fn *const *slot = data;
    int32_t sum = 0;
    for (int i = 0; i < CALLS; i++) sum += (*slot)(&half, &half, (struct padding){ 0, 0, 0 }, 0, 0, 0, 0, 0, 0);
    must_be(sum, 2 * CALLS * AMP_FLOAT16);
}

/* ---- the bare closures ---- */

struct bare {
    ffi_cif cif;
    amp_fn function;
    ffi_type *types[9];
};

static void pass_on(ffi_cif *cif, void *result, void **args, void *user) {
    const struct bare *bare = user;
    ffi_call(cif, bare->function, result, args);
}

/* *slot: any function pointer. */
static void make_bare(struct bare *bare, unsigned n, amp_fn function, void *slot) {
    void *code = NULL;
    ffi_closure *closure = ffi_closure_alloc(sizeof *closure, &code);
    bare->function = function;
    if (!closure || ffi_prep_cif(&bare->cif, FFI_DEFAULT_ABI, n, &ffi_type_sint32, bare->types) != FFI_OK ||
        ffi_prep_closure_loc(closure, &bare->cif, pass_on, bare, code) != FFI_OK)
        bench_must(1, "a libffi closure");
    memcpy(slot, &code, sizeof code);
}

static void make_bare_closures(void) {
    static ffi_type *words[] = { &ffi_type_sint64, &ffi_type_sint64, &ffi_type_sint64, NULL };
    static ffi_type padding = { 0, 0, FFI_TYPE_STRUCT, words };
    static struct bare for_linear, for_conv;
    for_conv.types[0] = for_conv.types[1] = for_linear.types[0] = for_linear.types[1] = &ffi_type_pointer;
    for_conv.types[2] = &padding;
    for (size_t i = 3; i < 9; i++) for_conv.types[i] = &ffi_type_sint64;
    make_bare(&for_linear, 2, (amp_fn)linear, &bare_linear);
    make_bare(&for_conv, 9, (amp_fn)conv, &bare_conv);
}

/* ---- */

static const amp_struct structs[] = { { sizeof(amp_struct), 0, "padding", sizeof(struct padding),
                                        _Alignof(struct padding), 0, "int64 left, int64 right, int64 mode" } };

void bench_calls(void) {
    amp_host host = AMP_HOST_INIT;
    amp_op ops[] = { AMP_OP_INIT, AMP_OP_INIT };
    amp_param param = AMP_PARAM_INIT;
    amp_model model = AMP_MODEL_INIT;
    host.flags = AMP_HOST_TAPE_RETAINS_INPUTS;
    host.dtype = dtype_of, host.cast = cast, host.release = release, host.version = version_of;
    ops[0].name = "linear", ops[0].schema = "linear(Tensor input, Tensor weight) -> int32";
    ops[0].slot = (amp_fn *)(void *)&wrapped_linear;
    ops[1].name = "conv2d";
    ops[1].schema = "conv2d(Tensor input, Tensor weight, struct padding, int64, int64, int64, int64, int64, int64)"
                    " -> int32";
    ops[1].slot = (amp_fn *)(void *)&wrapped_conv;
    param.tensor = &weight;
    model.host = &host, model.ops = ops, model.n_ops = 2, model.params = &param, model.n_params = 1;
    model.structs = structs, model.n_structs = 1;
    make_bare_closures();
    bench_must(amp_initialize(&model, NULL, AMP_O1), "amp_initialize");
    struct bench_case c = { .group = "calls", .name = "wrapped, casts nothing", .size = "in registers", .unit = "ns",
                            .calls = CALLS, .ours = call_linear, .ours_data = &wrapped_linear, .reference = call_linear,
                            .reference_data = &bare_linear, .reference_name = "libffi closure and ffi_call",
                            .goal = 1 / 0.6 };
    bench_run(&c);
    c.size = "struct, stack", c.goal = 1 / 1.3;
    c.ours = c.reference = call_conv, c.ours_data = &wrapped_conv, c.reference_data = &bare_conv;
    bench_run(&c);
    bench_run(&(struct bench_case){ .group = "calls", .name = "a weight cast from the cache", .size = "in registers",
                                    .unit = "ns", .calls = CALLS, .ours = call_linear_on_weight,
                                    .ours_data = &wrapped_linear, .reference = call_linear,
                                    .reference_data = &wrapped_linear, .allowed = 30,
                                    .reference_name = "30 ns beyond a call that casts nothing", .goal = 1 });
    bench_must(amp_shutdown(model.amp), "amp_shutdown");
}
