/* SPDX-License-Identifier: Apache-2.0 */
/* The way of a struct's descriptor from amp_model and amp_optimizer to the wrapped slot. */
#include "suite.h"

#include <stddef.h>

struct vec {
    float x, y;
    int32_t n;
};

typedef struct vec (*turn_fn)(struct vec);
static struct vec turn(struct vec v) { return (struct vec){ -v.y, v.x, v.n + 1 }; }

static amp_dtype dtype(void *self, void *tensor) {
    (void)self;
    (void)tensor;
    return AMP_FLOAT32;
}
static amp_status cast(void *self, void *tensor, amp_dtype to, void **out) {
    (void)self;
    (void)to;
    *out = tensor;
    return AMP_OK;
}
static void release(void *self, void *tensor) {
    (void)self;
    (void)tensor;
}

struct host {
    amp_host hooks;
    amp_fn slots[2];
    amp_op op, step;
    amp_struct structs[1];
    amp_model model;
    amp_optimizer optimizer;
};

static void set_up(struct host *h) {
    *h = (struct host){ AMP_HOST_INIT,       { (amp_fn)turn, (amp_fn)turn }, AMP_OP_INIT, AMP_OP_INIT,
                        { AMP_STRUCT_INIT }, AMP_MODEL_INIT,                AMP_OPTIMIZER_INIT };
    h->hooks.dtype = dtype;
    h->hooks.cast = cast;
    h->hooks.release = release;
    h->structs[0].name = "vec";
    h->structs[0].size = sizeof(struct vec);
    h->structs[0].alignment = _Alignof(struct vec);
    h->structs[0].members = "float x, float y, int32 n";
    h->op.name = "turn";
    h->op.schema = h->step.schema = "turn(struct vec v) -> struct vec";
    h->op.op_class = AMP_FP32;
    h->op.slot = &h->slots[0];
    h->step.name = "step";
    h->step.slot = &h->slots[1];
    h->model.host = h->optimizer.host = &h->hooks;
    h->model.ops = &h->op;
    h->optimizer.steps = &h->step;
    h->model.n_ops = h->optimizer.n_steps = 1;
    h->model.structs = h->optimizer.structs = h->structs;
    h->model.n_structs = h->optimizer.n_structs = 1;
}

TEST(structs_go_by_value_through_a_wired_op_and_step) {
    struct host h;
    set_up(&h);
    ck_ok(amp_initialize(&h.model, &h.optimizer, AMP_O1));
    memset(h.structs, 0x5a, sizeof h.structs); /* copied */
    for (int i = 0; i < 2; i++) {
        ck_assert(h.slots[i] != (amp_fn)turn);
        const struct vec got = ((turn_fn)h.slots[i])((struct vec){ 1.0f, 2.0f, 3 });
        ck_assert(got.x == -2.0f && got.y == 1.0f && got.n == 4);
    }
    ck_ok(amp_shutdown(h.model.amp));
    ck_assert(h.slots[0] == (amp_fn)turn && h.slots[1] == (amp_fn)turn);
}
