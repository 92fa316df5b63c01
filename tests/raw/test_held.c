/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate on hosts of raw buffers: a call that 16 bits would slow down is the host's own FP32 function on the host's
 * own buffers, without a copy, and what the call carries besides (the seed) stays what it is.
 */
#include <amp_all.h>
#include <amp_kernels.h>

#include "test.h"
#include <stdlib.h>
#include <string.h>

#define ck_ok(expression) ck_assert_msg((expression) == AMP_OK, #expression ": %s", amp_last_error())

enum { MOST = 64 };

struct layer {
    float *out, *a, *b;
    int edge;
};

static const void *seen; /* by the function that ran */
static int ran;          /* 32 or 16 */

static void product(float *out, const float *a, const float *b, const float *seed, int m, int n, int k) {
    ran = 32, seen = a;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0.0f;
            for (int p = 0; p < k; p++) sum += a[i * k + p] * b[p * n + j];
            out[i * n + j] = sum * seed[0];
        }
}

static void product_bf16(uint16_t *out, const uint16_t *a, const uint16_t *b, const float *seed, int m, int n, int k) {
    ran = 16, seen = a;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float sum = 0.0f;
            for (int p = 0; p < k; p++)
                sum += amp_bfloat16_to_float(a[i * k + p]) * amp_bfloat16_to_float(b[p * n + j]);
            out[i * n + j] = amp_float_to_bfloat16(sum * seed[0]);
        }
}

static void run_layer(struct layer *l) { ran = 32, l->out[0] = l->a[0] * l->b[0], seen = l->a; }
static void run_layer_bf16(struct layer *l) {
    const uint16_t *a = (const uint16_t *)(const void *)l->a;
    ran = 16, seen = a;
    memset(l->out, 0, sizeof(uint16_t));
}

static struct {
    void (*product)(float *, const float *, const float *, const float *, int, int, int);
    void (*layer)(struct layer *);
} table;

static amp_status visit(void *self, const char *op, void *const *args, amp_emit emit, void *emit_self) {
    struct layer *l = *(struct layer *const *)args[0];
    const struct {
        float **address;
        amp_role role;
    } fields[] = { { &l->a, AMP_ROLE_READ }, { &l->b, AMP_ROLE_READ }, { &l->out, AMP_ROLE_WRITE } };
    (void)self, (void)op;
    for (int i = 0; i < 3; i++) {
        amp_field field = AMP_FIELD_INIT;
        field.address = fields[i].address, field.role = fields[i].role, field.size = l->edge * l->edge;
        const amp_status status = emit(emit_self, &field);
        if (status != AMP_OK) return status;
    }
    return AMP_OK;
}

struct host {
    float a[MOST * MOST], b[MOST * MOST], out[MOST * MOST], one;
    amp_host hooks;
    amp_struct layer;
    amp_op ops[2];
    amp_model model;
    amp_context *context;
};

static void set_up(struct host *host, amp_switch gate, uint32_t flags) {
    amp_config config = AMP_CONFIG_INIT;
    memset(host, 0, sizeof *host);
    table.product = product;
    table.layer = run_layer;
    for (int i = 0; i < MOST * MOST; i++) host->a[i] = host->b[i] = 1.0f + 0x1p-12f; /* bf16 has not this number */
    host->one = 1.0f;
    host->hooks = *amp_buffer_host();
    host->hooks.visit = visit;
    host->layer = (amp_struct)AMP_STRUCT_INIT;
    host->layer.name = "layer";
    for (int i = 0; i < 2; i++)
        host->ops[i] = (amp_op)AMP_OP_INIT, host->ops[i].op_class = AMP_LOWER, host->ops[i].flags = flags;
    host->ops[0].name = "product";
    host->ops[0].schema = "product(float(out a!) out[M,N], float a[M,K], float b[K,N], float(seed) one[1], int32 M, "
                          "int32 N, int32 K) -> void";
    host->ops[0].slot = (amp_fn *)(void *)&table.product;
    host->ops[0].bf16 = (amp_fn)product_bf16;
    host->ops[1].name = "layer";
    host->ops[1].schema = "layer(struct layer *l) -> void";
    host->ops[1].slot = (amp_fn *)(void *)&table.layer;
    host->ops[1].bf16 = (amp_fn)run_layer_bf16;
    host->model = (amp_model)AMP_MODEL_INIT;
    host->model.host = &host->hooks;
    host->model.ops = host->ops, host->model.n_ops = 2;
    host->model.structs = &host->layer, host->model.n_structs = 1;
    config.level = AMP_O4;
    config.gate = gate;
    config.loss_scale = 8.0f;
    amp_model *model = &host->model;
    ck_ok(amp_initialize_many(&model, 1, NULL, 0, &config, &host->context));
}

static void finish(struct host *host) {
    ck_ok(amp_check(host->context));
    ck_ok(amp_shutdown(host->context));
}

static uint64_t gated(struct host *host, int op) {
    amp_op_stats stats[2] = { AMP_OP_STATS_INIT };
    size_t count;
    ck_ok(amp_get_op_stats(host->context, stats, 2, &count));
    return stats[op].gated;
}

/* FP32 there and back in either case: by default the gate may choose, and so it may where it is on. */
TEST_TIMES(a_held_call_runs_on_the_hosts_buffers, 2) {
    struct host host;
    set_up(&host, _i ? AMP_ON : AMP_DEFAULT, 0);
    ck_ok(amp_gate_set(host.context, "product", AMP_GATE_NEVER));
    table.product(host.out, host.a, host.b, &host.one, 1, 1, 1);
    ck_assert_int_eq(ran, 32);
    ck_assert_ptr_eq(seen, host.a);
    ck_assert_float_eq(host.out[0], (1.0f + 0x1p-12f) * (1.0f + 0x1p-12f)); /* rounded nowhere */
    ck_assert_uint_eq(gated(&host, 0), 1);
    ck_ok(amp_gate_set(host.context, "product", AMP_GATE_ALWAYS));
    table.product(host.out, host.a, host.b, &host.one, 1, 1, 1);
    ck_assert_int_eq(ran, 16);
    ck_assert_float_eq(host.out[0], 1.0f);
    ck_assert_uint_eq(gated(&host, 0), 1);
    finish(&host);
}

/* AMP_OP_MATMUL: what is known of amp_matmul holds, and it says that the built-in code gains nothing. */
TEST_TIMES(what_is_known_is_used, 2) {
    struct host host;
    set_up(&host, AMP_DEFAULT, _i ? AMP_OP_MATMUL : 0);
    table.product(host.out, host.a, host.b, &host.one, MOST, MOST, MOST);
    ck_assert_int_eq(ran, _i ? 32 : 16);
    ck_assert_uint_eq(gated(&host, 0), (uint64_t)_i);
    finish(&host);
}

static void ck_least(struct host *host, const char *name, int m, int n, int k, uint64_t least) {
    struct layer layer = { host->out, host->a, host->b, m };
    for (uint64_t extra = 0; extra < 2; extra++) {
        ck_ok(amp_gate_set(host->context, name, least + extra));
        if (name[0] == 'l') table.layer(&layer);
        else table.product(host->out, host->a, host->b, &host->one, m, n, k);
        ck_assert_msg(ran == (extra ? 32 : 16), "%s %d %d %d: least %llu", name, m, n, k,
                      (unsigned long long)(least + extra));
    }
}

TEST(buffers_have_sizes) {
    struct host host;
    set_up(&host, AMP_ON, AMP_OP_MATMUL);
    ck_least(&host, "product", 48, 48, 48, 48);
    ck_least(&host, "product", 64, 16, 48, 30); /* 3 / (1/64 + 1/16 + 1/48) */
    ck_least(&host, "layer", 20, 20, 20, 20);   /* behind a struct */
    finish(&host);
    set_up(&host, AMP_ON, 0);
    ck_least(&host, "product", 2, 3, 4, 2 * 4 + 4 * 3 + 2 * 3);
    ck_least(&host, "layer", 5, 5, 5, 75);
    finish(&host);
}

TEST_TIMES(the_seed_still_carries_the_scale, 2) {
    struct host host;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    set_up(&host, _i ? AMP_ON : AMP_DEFAULT, 0);
    ck_ok(amp_gate_set(host.context, "product", AMP_GATE_NEVER));
    ck_ok(amp_scale_loss_begin_many(host.context, NULL, 0, 0, 0, NULL, &scaled));
    table.product(host.out, host.a, host.b, &host.one, 1, 1, 1);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_int_eq(ran, 32);
    ck_assert_float_eq(host.out[0], 8.0f * (1.0f + 0x1p-12f) * (1.0f + 0x1p-12f));
    ck_assert_uint_eq(gated(&host, 0), 1);
    finish(&host);
}

int main(void) {
    amp_set_cpu_mask(0); /* a row of the gate's table that holds on every machine */
    return suite_run();
}
