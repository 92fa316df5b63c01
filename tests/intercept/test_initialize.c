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

static amp_dtype dtype(void *self, void *tensor) { return (void)self, (void)tensor, AMP_FLOAT32; }
static amp_status cast(void *self, void *tensor, amp_dtype to, void **out) {
    return (void)self, (void)to, *out = tensor, AMP_OK;
}
static void release(void *self, void *tensor) { (void)self, (void)tensor; }

struct host {
    amp_host hooks;
    amp_fn slots[2];
    amp_op op, step;
    amp_struct structs[1];
    amp_model model;
    amp_optimizer optimizer;
};

static void set_up(struct host *h) {
    static const char schema[] = "turn(struct vec v) -> struct vec";
    h->hooks = SIZED(amp_host, .dtype = dtype, .cast = cast, .release = release);
    h->slots[0] = h->slots[1] = (amp_fn)turn;
    h->structs[0] = SIZED(amp_struct, .name = "vec", .size = sizeof(struct vec), .alignment = _Alignof(struct vec),
                          .members = "float x, float y, int32 n");
    h->op = SIZED(amp_op, .name = "turn", .schema = schema, .op_class = AMP_FP32, .slot = &h->slots[0]);
    h->step = SIZED(amp_op, .name = "step", .schema = schema, .slot = &h->slots[1]);
    h->model = SIZED(amp_model, .host = &h->hooks, .ops = &h->op, .n_ops = 1, .structs = h->structs, .n_structs = 1);
    h->optimizer = SIZED(amp_optimizer, .host = &h->hooks, .steps = &h->step, .n_steps = 1, .structs = h->structs,
                         .n_structs = 1);
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
