/* SPDX-License-Identifier: Apache-2.0 */
/*
 * To make a primitive takes oneDNN as long as a small product. So the last ones are kept, by shape, and counted: a
 * thread may still run one that another thread has just pushed out.
 */
#include "kernels/onednn/product.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { CACHED = 64 };

struct product {
    struct shape shape;
    atomic_int count;
    dnnl_primitive_desc_t pd;
    dnnl_primitive_t primitive;
    uint64_t used; /* when, in calls */
};

static dnnl_engine_t engine;
pthread_mutex_t product_lock = PTHREAD_MUTEX_INITIALIZER;
static struct product *cached[CACHED];
static uint64_t calls;

dnnl_status_t product_init(void) { return dnnl_engine_create(&engine, dnnl_cpu, 0); }

/* ---- making one ---- */

static dnnl_data_type_t type_of(amp_dtype type) {
    return type == AMP_FLOAT16 ? dnnl_f16 : type == AMP_BFLOAT16 ? dnnl_bf16 : dnnl_f32;
}

/* A matrix of oneDNN's, with a leading dimension for the batch if there is one. strides NULL: any order. */
static dnnl_status_t make_desc(desc *x, const struct shape *shape, int64_t rows, int64_t cols, amp_dtype type,
                               const int64_t *strides) {
    const int ndims = shape->batch > 1 ? 3 : 2, first = 3 - ndims;
    const int64_t batch = strides && strides[0] == 0 ? 1 : shape->batch;
    /* The stride of a dimension of one element means nothing, but must not look like an overlap. */
    const int64_t past = strides ? (rows - 1) * strides[1] + (cols - 1) * strides[2] + 1 : 0;
    const dnnl_dims_t all = { batch, rows, cols };
    dnnl_dims_t dims = { 0 }, apart = { 0 };
    for (int i = 0; i < ndims; i++) {
        dims[i] = all[i + first];
        if (strides) apart[i] = all[i + first] > 1 || i + 1 == ndims ? strides[i + first] : past;
    }
    return strides ? desc_strided(x, ndims, dims, type_of(type), apart) : desc_any(x, ndims, dims, type_of(type));
}

/* The bias is a row of floats. */
static dnnl_status_t make_bias_desc(desc *x, const struct shape *shape) {
    const int ndims = shape->batch > 1 ? 3 : 2;
    const dnnl_dims_t two = { 1, shape->n }, three = { 1, 1, shape->n };
    const dnnl_dims_t apart2 = { shape->n, 1 }, apart3 = { shape->n, shape->n, 1 };
    return desc_strided(x, ndims, ndims == 2 ? two : three, dnnl_f32, ndims == 2 ? apart2 : apart3);
}

static dnnl_status_t make_attr(dnnl_primitive_attr_t attr, int32_t activation) {
    static const dnnl_alg_kind_t kinds[] = {
        [AMP_ACTIVATION_GELU] = dnnl_eltwise_gelu_erf,
        [AMP_ACTIVATION_GELU_TANH] = dnnl_eltwise_gelu_tanh,
    };
    /* The library's own scratchpad belongs to the thread that made the primitive: ours does not. */
    dnnl_status_t status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (status != dnnl_success || activation == AMP_ACTIVATION_NONE) return status;
    dnnl_post_ops_t ops;
    status = dnnl_post_ops_create(&ops);
    if (status != dnnl_success) return status;
    status = append_eltwise(ops, kinds[activation]);
    if (status == dnnl_success) status = dnnl_primitive_attr_set_post_ops(attr, ops);
    dnnl_post_ops_destroy(ops);
    return status;
}

static dnnl_status_t make_pd_of(dnnl_primitive_desc_t *pd, const struct shape *shape, const desc *const x[4]) {
    dnnl_primitive_attr_t attr;
    dnnl_status_t status = dnnl_primitive_attr_create(&attr);
    if (status != dnnl_success) return status;
    status = make_attr(attr, shape->activation);
    if (status == dnnl_success) status = matmul_desc(pd, engine, x[0], x[1], x[2], x[3], attr);
    dnnl_primitive_attr_destroy(attr);
    return status;
}

static dnnl_status_t make_pd(dnnl_primitive_desc_t *pd, const struct shape *s) {
    const int64_t d_strides[] = { s->d[0], s->d[1], 1 };
    desc a, b, bias, d;
    int made = 0;
    dnnl_status_t status = make_desc(&a, s, s->m, s->k, s->type, s->a);
    if (status == dnnl_success) made++, status = make_desc(&b, s, s->k, s->n, s->type, s->packed ? NULL : s->b);
    if (status == dnnl_success) made++, status = make_desc(&d, s, s->m, s->n, s->d_type, d_strides);
    if (status == dnnl_success) made++, status = make_bias_desc(&bias, s);
    if (status == dnnl_success) {
        made++;
        const desc *const all[] = { &a, &b, s->has_bias ? &bias : NULL, &d };
        status = make_pd_of(pd, s, all);
    }
    desc *const in_order[] = { &a, &b, &d, &bias };
    while (made > 0) desc_free(in_order[--made]);
    return status;
}

static void free_product(struct product *p) {
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    if (p->pd) dnnl_primitive_desc_destroy(p->pd);
    free(p);
}

static struct product *make_product(const struct shape *shape, dnnl_status_t *status) {
    struct product *p = calloc(1, sizeof *p);
    *status = dnnl_out_of_memory;
    if (!p) return NULL;
    p->shape = *shape;
    atomic_init(&p->count, 1);
    const int32_t before = threads_enter(shape->threads); /* their number is part of the primitive */
    *status = make_pd(&p->pd, shape);
    if (*status == dnnl_success) *status = dnnl_primitive_create(&p->primitive, p->pd);
    threads_leave(before);
    if (*status == dnnl_success) return p;
    free_product(p);
    return NULL;
}

/* ---- keeping them ---- */

static struct product *find_product(const struct shape *shape) {
    for (int i = 0; i < CACHED && cached[i]; i++)
        if (!memcmp(&cached[i]->shape, shape, sizeof *shape)) {
            cached[i]->used = ++calls;
            atomic_fetch_add(&cached[i]->count, 1);
            return cached[i];
        }
    return NULL;
}

/* Into a free place, or that of the one that was used longest ago, which is returned. */
static struct product *cache_product(struct product *p) {
    int place = 0;
    for (int i = 0; i < CACHED; i++) {
        if (!cached[i] || cached[i]->used < cached[place]->used) place = i;
        if (!cached[i]) break;
    }
    struct product *old = cached[place];
    cached[place] = p;
    p->used = ++calls;
    atomic_fetch_add(&p->count, 1);
    return old;
}

struct product *product_get(const struct shape *shape, dnnl_status_t *status) {
    pthread_mutex_lock(&product_lock);
    struct product *p = find_product(shape);
    pthread_mutex_unlock(&product_lock);
    *status = dnnl_success;
    if (p) return p;
    p = make_product(shape, status); /* not under the lock: two threads may both make one, and both be kept */
    if (!p) return NULL;
    pthread_mutex_lock(&product_lock);
    struct product *old = cache_product(p);
    pthread_mutex_unlock(&product_lock);
    product_put(old);
    return p;
}

void product_put(struct product *p) {
    if (p && atomic_fetch_sub(&p->count, 1) == 1) free_product(p);
}

const char *product_name(const struct product *p) {
    const char *name = NULL;
    dnnl_primitive_desc_query(p->pd, dnnl_query_impl_info_str, 0, (void *)&name);
    return name ? name : "unnamed";
}

bool product_is_slow(const struct product *p) { return !strncmp(product_name(p), "ref", 3); }

/* ---- running ---- */

struct run {
    dnnl_exec_arg_t args[5];
    int n;
};

static desc_ref query(const struct product *p, dnnl_query_t what, int index) {
    return dnnl_primitive_desc_query_md(p->pd, what, index);
}

static dnnl_status_t add_argument(struct run *run, int arg, desc_ref x, const void *data) {
    union { /* oneDNN takes inputs by the same type as outputs */
        const void *in;
        void *out;
    } any = { data };
    run->args[run->n].arg = arg;
    const dnnl_status_t status = dnnl_memory_create(&run->args[run->n].memory, x, engine, any.out);
    if (status == dnnl_success) run->n++;
    return status;
}

static dnnl_status_t execute(const_dnnl_primitive_t primitive, const struct run *run, int32_t threads) {
    dnnl_stream_t stream;
    dnnl_status_t status = dnnl_stream_create(&stream, engine, dnnl_stream_default_flags);
    if (status != dnnl_success) return dnnl_out_of_memory; /* nothing was written yet */
    const int32_t before = threads_enter(threads);
    status = dnnl_primitive_execute(primitive, stream, run->n, run->args);
    if (status == dnnl_success) status = dnnl_stream_wait(stream);
    threads_leave(before);
    dnnl_stream_destroy(stream);
    return status;
}

static void free_run(struct run *run) {
    while (run->n > 0) dnnl_memory_destroy(run->args[--run->n].memory);
}

dnnl_status_t product_run(const struct product *p, const void *a, const void *b, const float *bias, void *d,
                          int32_t threads) {
    const desc_ref pad = query(p, dnnl_query_scratchpad_md, 0);
    const size_t bytes = dnnl_memory_desc_get_size(pad);
    void *scratch = bytes ? scratch_get(bytes) : NULL;
    if (bytes && !scratch) return dnnl_out_of_memory;
    struct run run = { .n = 0 };
    dnnl_status_t status = add_argument(&run, DNNL_ARG_SRC, query(p, dnnl_query_src_md, 0), a);
    if (status == dnnl_success) status = add_argument(&run, DNNL_ARG_WEIGHTS, query(p, dnnl_query_weights_md, 0), b);
    if (status == dnnl_success) status = add_argument(&run, DNNL_ARG_DST, query(p, dnnl_query_dst_md, 0), d);
    if (status == dnnl_success && bias)
        status = add_argument(&run, DNNL_ARG_BIAS, query(p, dnnl_query_weights_md, 1), bias);
    if (status == dnnl_success && scratch) status = add_argument(&run, DNNL_ARG_SCRATCHPAD, pad, scratch);
    status = status == dnnl_success ? execute(p->primitive, &run, threads) : dnnl_out_of_memory;
    free_run(&run);
    scratch_put(scratch);
    return status;
}

/* ---- for pack.c ---- */

desc_ref product_weights(const struct product *p) { return query(p, dnnl_query_weights_md, 0); }

const struct shape *product_shape(const struct product *p) { return &p->shape; }

void product_retain(struct product *p) { atomic_fetch_add(&p->count, 1); }

dnnl_status_t product_reorder(const struct product *p, const void *b, const int64_t strides[2], void *packed,
                              int32_t threads) {
    const struct shape *s = &p->shape;
    const int64_t all[] = { 0, strides[0], strides[1] };
    struct shape single = *s;
    single.batch = 1;
    struct run run = { .n = 0 };
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_t primitive = NULL;
    desc from;
    dnnl_status_t status = make_desc(&from, &single, s->k, s->n, s->type, all);
    if (status != dnnl_success) return status;
    const int32_t before = threads_enter(threads);
    status = dnnl_reorder_primitive_desc_create(&pd, desc_of(&from), engine, product_weights(p), engine, NULL);
    if (status == dnnl_success) status = dnnl_primitive_create(&primitive, pd);
    threads_leave(before);
    if (status == dnnl_success) status = add_argument(&run, DNNL_ARG_FROM, desc_of(&from), b);
    if (status == dnnl_success) status = add_argument(&run, DNNL_ARG_TO, product_weights(p), packed);
    if (status == dnnl_success) status = execute(primitive, &run, threads);
    free_run(&run);
    if (primitive) dnnl_primitive_destroy(primitive);
    if (pd) dnnl_primitive_desc_destroy(pd);
    desc_free(&from);
    return status;
}
