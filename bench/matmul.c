/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A host's matmul, wrapped, that calls amp_matmul through the backend onednn, against the same oneDNN primitive called
 * directly; and low precision against fp32 through the same backend; one thread. The built-in code stands beside it,
 * without a goal.
 */
#include "bench.h"

#include <amp.h>
#include <amp_diagnostics.h>
#include <amp_kernels.h>

#include <stdio.h>
#include <string.h>

#ifdef BENCH_ONEDNN
#include "kernels/onednn/compat.h"

extern void omp_set_num_threads(int threads) __attribute__((weak));

/* ---- oneDNN by itself ---- */

static void must(dnnl_status_t status, const char *what) { bench_must(status != dnnl_success, what); }

struct direct {
    dnnl_primitive_t primitive;
    dnnl_stream_t stream;
    dnnl_exec_arg_t args[3];
};

static void run_direct(void *data) {
    const struct direct *d = data;
    must(dnnl_primitive_execute(d->primitive, d->stream, 3, d->args), "dnnl_primitive_execute");
    must(dnnl_stream_wait(d->stream), "dnnl_stream_wait");
}

static struct direct make_direct(const amp_matmul_args *g, dnnl_data_type_t in, dnnl_data_type_t out) {
    static dnnl_engine_t engine;
    const dnnl_dims_t dims = { g->n, g->n }, strides = { g->n, 1 };
    const dnnl_data_type_t types[] = { in, in, out };
    const int names[] = { DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST };
    void *const data[] = { (void *)(uintptr_t)g->a, (void *)(uintptr_t)g->b, g->d };
    struct direct d;
    desc x[3];
    dnnl_primitive_desc_t pd;
    if (omp_set_num_threads) omp_set_num_threads(1);
    if (!engine) must(dnnl_engine_create(&engine, dnnl_cpu, 0), "dnnl_engine_create");
    for (int i = 0; i < 3; i++) must(desc_strided(&x[i], 2, dims, types[i], strides), "a description");
    must(matmul_desc(&pd, engine, &x[0], &x[1], NULL, &x[2], NULL), "oneDNN's matmul");
    must(dnnl_primitive_create(&d.primitive, pd), "dnnl_primitive_create");
    must(dnnl_stream_create(&d.stream, engine, dnnl_stream_default_flags), "dnnl_stream_create");
    for (int i = 0; i < 3; i++) {
        d.args[i].arg = names[i];
        must(dnnl_memory_create(&d.args[i].memory, desc_of(&x[i]), engine, data[i]), "dnnl_memory_create");
    }
    return d; /* a handful, kept to the end */
}

static bool has_bf16_unit(void) {
    return ((unsigned)dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
}
#endif

/* ---- amp_matmul ---- */

static void run_ours(void *data) { bench_must(amp_matmul(data), amp_last_error()); }

static amp_matmul_args square(int64_t n, amp_dtype in, amp_dtype out, void *a, void *b, void *d, int32_t backend) {
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    g.a_dtype = g.b_dtype = in, g.d_dtype = out;
    g.m = g.n = g.k = n, g.a = a, g.b = b, g.d = d, g.backend = backend;
    return g;
}

static void compare(const char *name, const char *size, bench_fn *reference, void *reference_data,
                    const char *reference_name, amp_matmul_args *g, double goal) {
    bench_run(&(struct bench_case){ .group = "matmul", .name = name, .size = size, .unit = "ns", .calls = 1,
                                    .ours = run_ours, .ours_data = g, .reference = reference,
                                    .reference_data = reference_data, .reference_name = reference_name, .goal = goal });
}

/* ---- a host whose op is called through its slot ---- */

#ifdef BENCH_ONEDNN
/* Square. */
struct matrix {
    amp_dtype dtype;
    int64_t n;
    void *data;
};

static amp_dtype dtype_of(void *self, void *matrix) {
    (void)self;
    return ((struct matrix *)matrix)->dtype;
}

/* Nothing is cast here: the matrices have the type that their op runs in. */
static amp_status cast(void *self, void *matrix, amp_dtype to, void **out) {
    (void)self, (void)matrix, (void)to, (void)out;
    return AMP_ERR_UNSUPPORTED;
}
static void release(void *self, void *matrix) { (void)self, (void)matrix; }

typedef void host_matmul_fn(struct matrix *, struct matrix *, struct matrix *);
static void host_matmul(struct matrix *d, struct matrix *a, struct matrix *b) {
    const amp_matmul_args g = square(a->n, a->dtype, d->dtype, a->data, b->data, d->data, AMP_MATMUL_ONEDNN);
    bench_must(amp_matmul(&g), "amp_matmul");
}
static host_matmul_fn *low_slot = host_matmul, *fp32_slot = host_matmul;

struct wrapped {
    host_matmul_fn **slot;
    struct matrix a, b, d;
};

static void run_wrapped(void *data) {
    struct wrapped *w = data;
    (*w->slot)(&w->d, &w->a, &w->b);
}

static void compare_wrapped(const char *name, const char *size, struct direct *direct, const amp_matmul_args *g) {
    amp_host host = AMP_HOST_INIT;
    amp_op ops[] = { AMP_OP_INIT, AMP_OP_INIT };
    amp_model model = AMP_MODEL_INIT;
    const bool low = g->a_dtype != AMP_FLOAT32;
    struct wrapped w = { low ? &low_slot : &fp32_slot, { g->a_dtype, g->n, (void *)(uintptr_t)g->a },
                         { g->b_dtype, g->n, (void *)(uintptr_t)g->b }, { g->d_dtype, g->n, g->d } };
    host.flags = AMP_HOST_TAPE_RETAINS_INPUTS;
    host.dtype = dtype_of, host.cast = cast, host.release = release;
    ops[0].name = "matmul", ops[0].slot = (amp_fn *)(void *)&low_slot;
    ops[1].name = "fp32_matmul", ops[1].slot = (amp_fn *)(void *)&fp32_slot, ops[1].op_class = AMP_FP32;
    ops[0].schema = ops[1].schema = "matmul(Tensor(out a!) d, Tensor a, Tensor b) -> void";
    model.host = &host, model.ops = ops, model.n_ops = 2;
    bench_must(amp_initialize(&model, NULL, AMP_O4), "amp_initialize");
    bench_run(&(struct bench_case){ .group = "matmul", .name = name, .size = size, .unit = "ns", .calls = 1,
                                    .ours = run_wrapped, .ours_data = &w, .reference = run_direct,
                                    .reference_data = direct, .reference_name = "oneDNN's primitive", .goal = 0.95 });
    bench_must(amp_check(model.amp), "amp_check");
    bench_must(amp_shutdown(model.amp), "amp_shutdown");
}
#endif

/* ---- the lines ---- */

static void run_size(int64_t n, void *a, void *b, void *d) {
    char size[32];
    snprintf(size, sizeof size, "%lld", (long long)n);
    amp_matmul_args fp32 = square(n, AMP_FLOAT32, AMP_FLOAT32, a, b, d, AMP_MATMUL_BUILTIN);
#ifdef BENCH_ONEDNN
    amp_matmul_args builtin = fp32;
    amp_matmul_args fp16 = square(n, AMP_FLOAT16, AMP_FLOAT16, a, b, d, AMP_MATMUL_ONEDNN);
    amp_matmul_args bf16 = square(n, AMP_BFLOAT16, AMP_BFLOAT16, a, b, d, AMP_MATMUL_ONEDNN);
    fp32.backend = AMP_MATMUL_ONEDNN;
    struct direct direct = make_direct(&fp32, dnnl_f32, dnnl_f32);
    compare_wrapped("fp32, a wrapped op", size, &direct, &fp32);
    if (has_bf16_unit()) {
        direct = make_direct(&bf16, dnnl_bf16, dnnl_bf16);
        compare_wrapped("bf16, a wrapped op", size, &direct, &bf16);
    }
    compare("bf16", size, run_ours, &fp32, "fp32, same backend", &bf16, has_bf16_unit() ? 1.8 * 0.95 : 0.9);
    compare("fp16", size, run_ours, &fp32, "fp32, same backend", &fp16, 0.9);
    compare("fp32, built-in", size, run_ours, &fp32, "onednn", &builtin, 0.0);
#endif
    amp_matmul_args low = square(n, AMP_FLOAT16, AMP_FLOAT16, a, b, d, AMP_MATMUL_BUILTIN);
    fp32.backend = AMP_MATMUL_BUILTIN;
    compare("fp16, built-in", size, run_ours, &fp32, "fp32, built-in", &low, 0.9);
}

void bench_matmul(void) {
    enum { LARGEST = 2048 };
    const size_t bytes = sizeof(float) * LARGEST * LARGEST;
    void *a = bench_memory(bytes), *b = bench_memory(bytes), *d = bench_memory(bytes);
    memset(a, 0x38, bytes), memset(b, 0x38, bytes); /* ordinary numbers in each of the types */
    for (int64_t n = 512; n <= LARGEST; n *= 2) run_size(n, a, b, d);
    bench_release(a, bytes), bench_release(b, bytes), bench_release(d, bytes);
}
