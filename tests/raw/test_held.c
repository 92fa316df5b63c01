/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gate on hosts of raw buffers: a call that 16 bits would slow down is the host's own FP32 function on the host's
 * own buffers, without a copy, and what the call carries besides (the seed) stays what it is.
 */
#include "raw.h"

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
        const amp_field field = FIELD(NULL, fields[i].role, .address = fields[i].address, .size = l->edge * l->edge);
        const amp_status status = emit(emit_self, &field);
        if (status != AMP_OK) return status;
    }
    return AMP_OK;
}

static float a[MOST * MOST], b[MOST * MOST], out[MOST * MOST];
static const float one = 1.0f, value = 1.0f + 0x1p-12f; /* bf16 has not this number */
static struct raw raw;

static void start(amp_switch gate, uint32_t flags) {
    table.product = product;
    table.layer = run_layer;
    for (int i = 0; i < MOST * MOST; i++) a[i] = b[i] = value;
    raw_init(&raw);
    raw.host.visit = visit;
    raw_struct(&raw, "layer");
    raw_op(&raw, OP("product", "product(float(out a!) out[M,N], float a[M,K], float b[K,N], float(seed) one[1], "
                    "int32 M, int32 N, int32 K) -> void", &table.product, .flags = flags, .op_class = AMP_LOWER,
                    .bf16 = (amp_fn)product_bf16));
    raw_op(&raw, OP("layer", "layer(struct layer *l) -> void", &table.layer, .flags = flags, .op_class = AMP_LOWER,
                    .bf16 = (amp_fn)run_layer_bf16));
    raw_start(&raw, CONFIG(AMP_O4, .gate = gate, .loss_scale = 8.0f));
}

static void tear_down(void) { raw_stop(&raw); }

TEST_FIXTURE(NULL, tear_down)

/* The product, once: what ran, what came out, how many calls were held back up to now. */
static void ck_product(int edge, int who, float result, uint64_t gated) {
    table.product(out, a, b, &one, edge, edge, edge);
    ck_assert_int_eq(ran, who);
    if (edge == 1) ck_assert_float_eq(out[0], result);
    ck_assert_uint_eq(raw_stats(&raw, 0).gated, gated);
}

/* FP32 there and back in either case: by default the gate may choose, and so it may where it is on. */
TEST_TIMES(a_held_call_runs_on_the_hosts_buffers, 2) {
    start(_i ? AMP_ON : AMP_DEFAULT, 0);
    ck_ok(amp_gate_set(raw.context, "product", AMP_GATE_NEVER));
    ck_product(1, 32, value * value, 1); /* rounded nowhere */
    ck_assert_ptr_eq(seen, a);
    ck_ok(amp_gate_set(raw.context, "product", AMP_GATE_ALWAYS));
    ck_product(1, 16, 1.0f, 1);
}

/* AMP_OP_MATMUL: what is known of amp_matmul holds, and it says that the built-in code gains nothing. */
TEST_TIMES(what_is_known_is_used, 2) {
    start(AMP_DEFAULT, _i ? AMP_OP_MATMUL : 0);
    ck_product(MOST, _i ? 32 : 16, 0.0f, (uint64_t)_i);
}

static const struct {
    uint32_t flags;
    const char *name;
    int m, n, k;
    uint64_t least;
} sizes[] = {
    { AMP_OP_MATMUL, "product", 48, 48, 48, 48 },
    { AMP_OP_MATMUL, "product", 64, 16, 48, 30 }, /* 3 / (1/64 + 1/16 + 1/48) */
    { AMP_OP_MATMUL, "layer", 20, 20, 20, 20 },   /* behind a struct */
    { 0, "product", 2, 3, 4, 2 * 4 + 4 * 3 + 2 * 3 },
    { 0, "layer", 5, 5, 5, 75 },
};

TEST_TIMES(buffers_have_sizes, sizeof sizes / sizeof sizes[0]) {
    struct layer layer = { out, a, b, sizes[_i].m };
    start(AMP_ON, sizes[_i].flags);
    for (uint64_t extra = 0; extra < 2; extra++) {
        ck_ok(amp_gate_set(raw.context, sizes[_i].name, sizes[_i].least + extra));
        if (sizes[_i].name[0] == 'l') table.layer(&layer);
        else table.product(out, a, b, &one, sizes[_i].m, sizes[_i].n, sizes[_i].k);
        ck_assert_int_eq(ran, extra ? 32 : 16);
    }
}

TEST_TIMES(the_seed_still_carries_the_scale, 2) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    start(_i ? AMP_ON : AMP_DEFAULT, 0);
    ck_ok(amp_gate_set(raw.context, "product", AMP_GATE_NEVER));
    ck_ok(amp_scale_loss_begin_many(raw.context, NULL, 0, 0, 0, NULL, &scaled));
    ck_product(1, 32, 8.0f * value * value, 1);
    ck_ok(amp_scale_loss_end(&scaled));
}

int main(void) {
    amp_set_cpu_mask(0); /* a row of the gate's table that holds on every machine */
    return suite_run();
}
