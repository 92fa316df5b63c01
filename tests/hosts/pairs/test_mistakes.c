/* SPDX-License-Identifier: Apache-2.0 */
/* The mistakes that docs/hosts-pairs.md lists, made, and the messages that it quotes. check_docs.py compares the texts. */
#include <amp_raw.h>
#include "trainer.h"

static amp_status start(struct trainer *t, amp_level level) { return adapter_start(&t->adapter, kit_config(level)); }

/* ---- descriptions ---- */

static amp_status no_structs(struct trainer *t) {
    t->adapter.model.n_structs = 0;
    return start(t, AMP_O1);
}

static amp_status no_members(struct trainer *t) {
    t->adapter.structs[2].members = NULL;
    return start(t, AMP_O1);
}

static amp_status missing_member(struct trainer *t) {
    t->adapter.structs[2].members = "int step, float rate";
    return start(t, AMP_O1);
}

static amp_status const_table(struct trainer *t) {
    t->adapter.ops[0].slot = (amp_fn *)(uintptr_t)&duet_default_blas.gemm;
    return start(t, AMP_O1);
}

static amp_status same_slot(struct trainer *t) {
    t->adapter.ops[3].slot = t->adapter.ops[1].slot;
    return start(t, AMP_O1);
}

static amp_status wrong_forward_name(struct trainer *t) {
    t->adapter.ops[2].backward_of = "connected";
    return start(t, AMP_O1);
}

static amp_status overlapping_parameters(struct trainer *t) {
    t->adapter.weights[0].size++; /* one too many: into the biases */
    return start(t, AMP_O1);
}

static amp_status no_emulate(struct trainer *t) {
    amp_model *model = &t->adapter.model;
    amp_optimizer *optimizer = &t->adapter.optimizer;
    amp_context *context;
    const amp_config config = kit_config(AMP_O2);
    return amp_initialize_many(&model, 1, &optimizer, 1, &config, &context);
}

/* ---- visit ---- */

static struct {
    amp_role role;
    int64_t size;
} extra;

static amp_status (*true_visit)(void *, const char *, void *const *, amp_emit, void *);

/* After the adapter's fields, one more for the output of a linear layer. */
static amp_status visit_and_more(void *self, const char *op, void *const *args, amp_emit emit, void *emit_self) {
    amp_field field = AMP_FIELD_INIT;
    layer *l = args[0];
    const amp_status status = true_visit(self, op, args, emit, emit_self);
    if (status != AMP_OK || strcmp(op, "linear")) return status;
    field.role = extra.role;
    field.address = &l->output;
    field.size = extra.size ? extra.size : l->batch * l->outputs;
    field.name = "output";
    return emit(emit_self, &field);
}

static amp_status train_with(struct trainer *t, amp_role role, int64_t size) {
    extra.role = role;
    extra.size = size;
    true_visit = t->adapter.host.visit;
    t->adapter.host.visit = visit_and_more;
    ck_ok(start(t, AMP_O1));
    trainer_feed(t, 0);
    ck_ok(adapter_begin(&t->adapter));
    duet_forward(t->net);
    duet_backward(t->net);
    return adapter_end(&t->adapter);
}

static amp_status two_roles(struct trainer *t) { return train_with(t, AMP_ROLE_READ, 0); }
static amp_status wrong_size(struct trainer *t) { return train_with(t, AMP_ROLE_WRITE, 8); }
static amp_status no_role(struct trainer *t) { return train_with(t, 0, 0); }

/* ---- the loop ---- */

static amp_status update_inside(struct trainer *t) {
    ck_ok(start(t, AMP_O1));
    trainer_feed(t, 0);
    ck_ok(adapter_begin(&t->adapter));
    duet_forward(t->net);
    duet_backward(t->net);
    trainer_update(t, 0);
    return adapter_end(&t->adapter);
}

static amp_status old_layer_put_back(struct trainer *t) {
    const layer old = t->net->layers[0];
    ck_ok(start(t, AMP_O1));
    t->net->layers[0] = old;
    return adapter_stop(&t->adapter);
}

static const struct mistake {
    amp_status (*make)(struct trainer *);
    amp_status status;
    const char *says;
} mistakes[] = {
    { no_structs, AMP_ERR_SCHEMA, "structs does not describe it" },
    { no_members, AMP_ERR_SCHEMA, "a struct of at most 64 bytes travels in registers that depend on its members" },
    { missing_member, AMP_ERR_SCHEMA, "but it is declared with 12 bytes aligned to 4" },
    { const_table, AMP_ERR_READ_ONLY, "lies in read-only memory (a const table?)" },
    { same_slot, AMP_ERR_CONFLICT, "entries 1 (linear) and 3 (batch_norm) are the same slot" },
    { wrong_forward_name, AMP_ERR_NOT_FOUND, "backward_of names connected, which is no op of this model" },
    { overlapping_parameters, AMP_ERR_CONFLICT, "linear0.weights and linear0.biases overlap in memory without being the same" },
    { no_emulate, AMP_ERR_MISSING_HOOK, "or set amp_config.emulate, which rounds them in place" },
    { two_roles, AMP_ERR_CONFLICT, "visit: output: it is a buffer of the call already, in another role" },
    { wrong_size, AMP_ERR_CONFLICT, "visit: output: it overlaps another buffer of the call without being the same" },
    { no_role, AMP_ERR_INVALID_ARGUMENT, "visit: output: its role is 0, which is none of AMP_ROLE_*" },
    { update_inside, AMP_ERR_WRONG_STATE, "step inside the bracket: call amp_scale_loss_end before the optimizer's step" },
    { old_layer_put_back, AMP_ERR_SLOT_TAKEN, "somebody else wrote over 3 wrapped slots" },
};

TEST_TIMES(mistakes_get_the_messages_of_the_guide, sizeof mistakes / sizeof mistakes[0]) {
    const struct mistake *mistake = &mistakes[_i];
    struct trainer trainer;
    trainer_new(&trainer);
    const amp_status status = mistake->make(&trainer);
    ck_assert_msg(status == mistake->status, "%s: %s", amp_status_name(status), amp_last_error());
    ck_assert_msg(strstr(amp_last_error(), mistake->says), "\"%s\" not in: %s", mistake->says, amp_last_error());
    if (trainer.adapter.model.amp) ck_ok(adapter_stop(&trainer.adapter));
    trainer_free(&trainer);
}

/* Layers that are lower, with neither a way to emulate nor an implementation: nothing would be cast, in silence. */
TEST(forgetting_emulate_is_warned_of) {
    struct trainer trainer;
    char text[4096];
    amp_context *context;
    const amp_config config = kit_config(AMP_O1);
    trainer_new(&trainer);
    amp_model *model = &trainer.adapter.model;
    amp_optimizer *optimizer = &trainer.adapter.optimizer;
    ck_ok(amp_initialize_many(&model, 1, &optimizer, 1, &config, &context));
    ck_ok(amp_explain(context, NULL, text, sizeof text, NULL));
    ck_assert_ptr_nonnull(strstr(text, "op linear takes raw FP32 buffers and has no fp16 implementation, so it runs in FP32"));
    ck_ok(amp_shutdown(context));
    trainer_free(&trainer);
}

/* Where products are replaced, the layers around them run as they come: that, too, may be what was meant. */
TEST(a_layer_around_a_replaced_product_may_be_left) {
    struct trainer trainer;
    char text[4096];
    amp_context *context;
    const amp_config config = kit_config(AMP_O1);
    trainer_new(&trainer);
    amp_model *model = &trainer.adapter.model;
    amp_optimizer *optimizer = &trainer.adapter.optimizer;
    size_t products = 0;
    for (size_t i = 0; i < model->n_ops; i++) {
        products += model->ops[i].fp16 != NULL;
        if (strcmp(model->ops[i].name, "linear") == 0) model->ops[i].op_class = AMP_BY_LIST;
    }
    ck_assert_uint_eq(products, 1);
    ck_ok(amp_initialize_many(&model, 1, &optimizer, 1, &config, &context));
    ck_ok(amp_explain(context, NULL, text, sizeof text, NULL));
    ck_assert_msg(strstr(text, "as a layer may around gemm, which has one: give it one") != NULL, "%s", text);
    ck_ok(amp_shutdown(context));
    trainer_free(&trainer);
}
