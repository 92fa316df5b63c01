/* SPDX-License-Identifier: Apache-2.0 */
/* A wrapped call that casts nothing against what any wrapper through libffi costs; a bracket against its kernels. */
#include "bench.h"

#include <amp.h>
#include <amp_kernels.h>
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

/* ---- the bracket ---- */

struct bracket {
    size_t n;
    amp_buffer *params, *grads;
    void **trained;
    amp_span *spans;
    amp_optimizer optimizer;
};

static void open_and_close(void *data) {
    struct bracket *b = data;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    bench_must(amp_scale_loss_begin(&b->optimizer, NULL, &scaled), "amp_scale_loss_begin");
    bench_must(amp_scale_loss_end(&scaled), "amp_scale_loss_end");
    amp_step_info info = AMP_STEP_INFO_INIT;
    bench_must(amp_step_begin(&b->optimizer, &info), "amp_step_begin");
    bench_must(amp_step_end(&b->optimizer), "amp_step_end");
}

static void kernels_alone(void *data) {
    struct bracket *b = data;
    float found = 0.0f;
    bench_must(amp_scale_list(b->spans, b->spans, b->n, 1.0f, &found), "amp_scale_list");
}

static void run_bracket(size_t n, size_t length, const char *size) {
    float *values = bench_memory(2 * n * length * sizeof *values);
    struct bracket b = { .n = n, .params = calloc(n, sizeof *b.params), .grads = calloc(n, sizeof *b.grads),
                         .trained = calloc(n, sizeof *b.trained), .spans = calloc(n, sizeof *b.spans) };
    if (!b.params || !b.grads || !b.trained || !b.spans) bench_must(1, "memory");
    memset(values, 0, 2 * n * length * sizeof *values); /* gradients of 0 stay what they are, however often unscaled */
    for (size_t i = 0; i < n; i++) {
        b.params[i] = b.grads[i] = (amp_buffer)AMP_BUFFER_INIT;
        b.params[i].data = values + i * length, b.grads[i].data = values + (n + i) * length;
        b.params[i].size = b.grads[i].size = (int64_t)length;
        b.params[i].grad = &b.grads[i];
        b.trained[i] = &b.params[i];
        b.spans[i] = (amp_span){ b.grads[i].data, length, AMP_FLOAT32, 0 };
    }
    b.optimizer = (amp_optimizer)AMP_OPTIMIZER_INIT;
    b.optimizer.host = amp_buffer_host();
    b.optimizer.params = b.trained, b.optimizer.n_params = n;
    bench_must(amp_initialize(NULL, &b.optimizer, AMP_O1), "amp_initialize");
    bench_run(&(struct bench_case){ .group = "calls", .name = "bracket and step, over its kernels", .size = size,
                                    .unit = "ns", .calls = 1, .ours = open_and_close, .ours_data = &b,
                                    .reference = kernels_alone, .reference_data = &b,
                                    .reference_name = "amp_scale_list of the gradients" });
    bench_must(amp_shutdown(b.optimizer.amp), "amp_shutdown");
    bench_release(values, 2 * n * length * sizeof *values);
    free(b.params), free(b.grads), free(b.trained), free(b.spans);
}

void bench_calls(void) {
    run_call();
    run_bracket(200, 1000, "200 x 1000");
    run_bracket(2000, 300, "2000 x 300");
}
