/* SPDX-License-Identifier: Apache-2.0 */
/* A wrapped call that casts nothing against what any wrapper through libffi costs. */
#include "bench.h"

#include <amp.h>
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

typedef int32_t linear_fn(struct tensor *, struct tensor *);
__attribute__((noinline)) static int32_t linear(struct tensor *x, struct tensor *weight) {
    return x->dtype + weight->dtype;
}
static linear_fn *wrapped_slot = linear, *bare_slot;
static struct tensor half = { AMP_FLOAT16 };

static void call_slot(void *data) {
    linear_fn *const *slot = data;
    int32_t sum = 0;
    for (int i = 0; i < CALLS; i++) sum += (*slot)(&half, &half);
    if (sum != 2 * CALLS * AMP_FLOAT16) bench_must(1, "a call");
}

/* ---- the bare closure ---- */

static ffi_cif cif;

static void pass_on(ffi_cif *c, void *result, void **args, void *user) {
    (void)user;
    ffi_call(c, FFI_FN(linear), result, args);
}

static void make_bare_closure(void) {
    static ffi_type *types[] = { &ffi_type_pointer, &ffi_type_pointer };
    void *code = NULL;
    ffi_closure *closure = ffi_closure_alloc(sizeof *closure, &code);
    if (!closure || ffi_prep_cif(&cif, FFI_DEFAULT_ABI, 2, &ffi_type_sint32, types) != FFI_OK ||
        ffi_prep_closure_loc(closure, &cif, pass_on, NULL, code) != FFI_OK)
        bench_must(1, "a libffi closure");
    memcpy(&bare_slot, &code, sizeof code);
}

static void run_call(void) {
    amp_host host = AMP_HOST_INIT;
    amp_op op = AMP_OP_INIT;
    amp_model model = AMP_MODEL_INIT;
    host.flags = AMP_HOST_TAPE_RETAINS_INPUTS;
    host.dtype = dtype_of, host.cast = cast, host.release = release;
    op.name = "linear", op.schema = "linear(Tensor input, Tensor weight) -> int32";
    op.slot = (amp_fn *)(void *)&wrapped_slot;
    model.host = &host, model.ops = &op, model.n_ops = 1;
    make_bare_closure();
    bench_must(amp_initialize(&model, NULL, AMP_O1), "amp_initialize");
    bench_run(&(struct bench_case){ .group = "calls", .name = "wrapped, casts nothing", .size = "2 tensors", .unit = "ns",
                                    .calls = CALLS, .ours = call_slot, .ours_data = &wrapped_slot, .reference = call_slot,
                                    .reference_data = &bare_slot, .reference_name = "libffi closure and ffi_call",
                                    .goal = 1 / 1.3 });
    bench_must(amp_shutdown(model.amp), "amp_shutdown");
}

void bench_calls(void) { run_call(); }
