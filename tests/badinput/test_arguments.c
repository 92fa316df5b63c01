/* SPDX-License-Identifier: Apache-2.0 */
/* What initialize refuses: status, a message that says what and where, and a world left as it was. */
#include "world.h"

#include <sys/mman.h>

/* The same slot in read-only memory. */
static void constant(struct net *net) {
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(page != MAP_FAILED);
    memcpy(page, &net->table[OP_linear], sizeof(amp_fn));
    ck_assert_int_eq(mprotect(page, 4096, PROT_READ), 0);
    net->ops[OP_linear].slot = page;
}
static void same_slot(struct net *net) {
    net->ops[OP_matmul].slot = net->ops[OP_linear].slot;
    net->ops[OP_matmul].schema = net->ops[OP_linear].schema;
}
static void long_name(struct net *net) {
    static char name[200];
    memset(name, 'x', sizeof name - 1);
    net->ops[3].name = name;
}
static void set_view(struct net *net, uint8_t code, uint8_t bits) {
    net->bias->code = code;
    net->bias->bits = bits;
}

/* X(name, level, status, the change, what the message says) */
#define CASES(X)                                                                                                       \
    X(no_config_size, O1, ABI_MISMATCH, config->struct_size = 0, "amp_config", "struct_size", "_INIT")                 \
    X(small_config, O1, ABI_MISMATCH, config->struct_size = 8, "amp_config", "8")                                      \
    X(no_model_size, O1, ABI_MISMATCH, net->model.struct_size = 0, "amp_model", "struct_size")                         \
    X(small_model, O1, ABI_MISMATCH, net->model.struct_size = 16, "amp_model", "16")                                   \
    X(no_optimizer_size, O1, ABI_MISMATCH, net->optimizer.struct_size = 0, "amp_optimizer", "struct_size")             \
    X(no_host_size, O1, ABI_MISMATCH, rig->host.hooks.struct_size = 0, "amp_host", "struct_size", "model 0")           \
    X(no_op_size, O1, ABI_MISMATCH, net->ops[0].struct_size = 0, "amp_op", "struct_size", "ops[0]")                    \
    X(odd_op_size, O1, ABI_MISMATCH, net->ops[2].struct_size += 8, "ops[2]", "struct_size")                            \
    X(no_param_size, O1, ABI_MISMATCH, net->params[0].struct_size = 0, "amp_param", "struct_size")                     \
    X(odd_param_size, O1, ABI_MISMATCH, net->params[1].struct_size += 8, "params[1]", "struct_size")                   \
    X(no_forward_size, O1, ABI_MISMATCH, net->forward_op.struct_size = 0, "forward", "struct_size")                    \
    X(no_level, O1, INVALID_ARGUMENT, config->level = 0, "opt level 0", "AMP_O1")                                      \
    X(level_seven, O1, INVALID_ARGUMENT, config->level = 7, "opt level 7", "letter O")                                 \
    X(forbidden, O1, CONFLICT, config->master_weights = AMP_ON, "O1", "master_weights", "AMP_DEFAULT")                 \
    X(no_host, O1, INVALID_ARGUMENT, net->model.host = NULL, "model 0", "host", "NULL")                                \
    X(model_flags, O1, INVALID_ARGUMENT, net->model.flags = 8, "model 0", "flags", "0x8")                              \
    X(optimizer_flags, O1, INVALID_ARGUMENT, net->optimizer.flags = 64, "optimizer 0", "flags", "0x40")                \
    X(host_flags, O1, INVALID_ARGUMENT, rig->host.hooks.flags = 1u << 30, "host", "flags")                             \
    X(half_alloc, O2, INVALID_ARGUMENT, rig->host.hooks.free = NULL, "alloc", "free", "both")                          \
    X(no_ops, O1, INVALID_ARGUMENT, net->model.ops = NULL, "model 0", "ops", "NULL")                                   \
    X(no_params, O1, INVALID_ARGUMENT, net->model.params = NULL, "model 0", "params", "NULL")                          \
    X(no_trained, O1, INVALID_ARGUMENT, net->optimizer.params = NULL, "optimizer 0", "params", "NULL")                 \
    X(no_steps, O1, INVALID_ARGUMENT, net->optimizer.steps = NULL, "optimizer 0", "steps", "NULL")                     \
    X(no_name, O1, INVALID_ARGUMENT, net->ops[3].name = NULL, "ops[3]", "name")                                        \
    X(bad_class, O1, INVALID_ARGUMENT, net->ops[3].op_class = 77, "ops[3]", "op_class", "77")                          \
    X(op_flags, O1, INVALID_ARGUMENT, net->ops[3].flags = 1u << 20, "ops[3]", "flags")                                 \
    X(no_slot, O1, INVALID_ARGUMENT, net->ops[OP_linear].slot = NULL, "linear", "slot", "AMP_OP_DIRECT")               \
    X(slot_and_direct, O1, CONFLICT, net->ops[OP_linear].flags = AMP_OP_DIRECT, "linear", "slot", "AMP_OP_DIRECT")     \
    X(no_schema, O1, SCHEMA, net->ops[OP_linear].schema = NULL, "linear", "schema")                                    \
    X(bad_schema, O1, SCHEMA, net->ops[OP_linear].schema = "linear(Tensro x) -> Tensor", "linear", "^", "Tensor")      \
    X(bad_return, O2, SCHEMA, net->ops[OP_linear].schema = "linear(Tensor x)", "linear", "^")                          \
    X(step_schema, O1, SCHEMA, net->step_op.schema = "step(pointer self -> int32", "step", "^")                        \
    X(no_list_count, O1, SCHEMA, net->ops[OP_cat].schema = "cat(Tensor[] xs) -> Tensor", "cat", "^")                   \
    X(same_slot, O1, CONFLICT, same_slot(net), "linear", "matmul", "same slot")                                        \
    X(constant, O1, READ_ONLY, constant(net), "linear", "read-only")                                                   \
    X(long_name, O1, INVALID_ARGUMENT, long_name(net), "ops[3]", "127")                                                \
    X(no_tensor, O1, INVALID_ARGUMENT, net->params[1].tensor = NULL, "bias", "tensor")                                 \
    X(bad_kind, O1, INVALID_ARGUMENT, net->params[1].module_kind = 9, "bias", "module_kind", "9")                      \
    X(trained_twice, O1, INVALID_ARGUMENT, net->trained[1] = net->weight, "weight", "twice", "params[1]")              \
    X(trained_null, O1, INVALID_ARGUMENT, net->trained[1] = NULL, "params[1]", "NULL")                                 \
    X(complex_param, O2, UNSUPPORTED, set_view(net, 5, 64), "bias", "complex")                                         \
    X(fp8_param, O2, UNSUPPORTED, set_view(net, 10, 8), "bias", "8-bit")                                               \
    X(opaque_param, O2, UNSUPPORTED, set_view(net, 3, 64), "bias")                                                     \
    X(gappy, O2, UNSUPPORTED, net->bias->strides[0] = 3, "bias", "contiguous")                                         \
    X(negative, O2, INVALID_ARGUMENT, net->bias->shape[0] = -4, "bias", "negative")

#define CHANGE(name, level, status, change, ...)                                                                       \
    static void make_##name(struct rig *rig, struct net *net, amp_config *config) {                                    \
        (void)rig, (void)net, (void)config, change;                                                                    \
    }
CASES(CHANGE)

static const struct {
    void (*make)(struct rig *rig, struct net *net, amp_config *config);
    amp_level level;
    amp_status status;
    const char *says[3];
} cases[] = {
#define CASE(name, level, status, change, ...) { make_##name, AMP_##level, AMP_ERR_##status, { __VA_ARGS__ } },
    CASES(CASE)
};
#undef CASE

TEST_TIMES(initialize_refuses, sizeof cases / sizeof cases[0]) {
    struct rig rig;
    amp_config config = config_of(cases[_i].level);
    rig_init(&rig, 0);
    cases[_i].make(&rig, &rig.net, &config);
    const struct world before = world_of(&rig);
    ck_fails(cases[_i].status, rig_config(&rig, &config));
    for (size_t k = 0; k < 3 && cases[_i].says[k]; k++) ck_says(cases[_i].says[k]);
    ck_assert_ptr_null(rig.context);
    world_check(&before, &rig);
    fake_destroy(&rig.host); /* whatever the case did to the net's handles, the host knows all tensors */
}

static const amp_dtype low[] = { AMP_FLOAT16, AMP_BFLOAT16 };

DIFFERENCE_TIMES(incoming_16_bit_parameters_are_refused, 4) {
    RIG_INIT(rig, 0);
    fake_release(rig.net.bias);
    rig.net.bias = rig_tensor(&rig, low[_i % 2], 0.25);
    rig.net.params[1].tensor = rig.net.trained[1] = rig.net.bias;
    const struct world before = world_of(&rig);
    ck_fails(AMP_ERR_INVALID_ARGUMENT, rig_try(&rig, config_of(_i < 2 ? AMP_O2 : AMP_O1)));
    ck_says(_i % 2 ? "bias is bf16 already" : "bias is fp16 already");
    ck_says("or set the flag AMP_MODEL_LOW_PARAMS in amp_model.flags");
    world_check(&before, &rig);
}

/* The flag that the message above names, where the host cannot put a master in the parameter's place. */
TEST_TIMES(masters_that_no_step_could_get_are_refused, 4) {
    static uint16_t w[8];
    static float dw[8];
    const amp_dtype dtype = low[_i % 2];
    const bool fused = _i >= 2;
    amp_buffer grad = AMP_BUFFER_INIT, buffer = AMP_BUFFER_INIT;
    amp_param param = AMP_PARAM_INIT;
    amp_optim rule = AMP_OPTIM_INIT;
    amp_fused fused_rules = AMP_FUSED_INIT;
    amp_model model = AMP_MODEL_INIT, *models[] = { &model };
    amp_optimizer optimizer = AMP_OPTIMIZER_INIT, *optimizers[] = { &optimizer };
    amp_config config = config_of(_i % 2 ? AMP_O5 : AMP_O2);
    amp_context *context = NULL;
    void *trained[] = { &buffer };
    grad.data = dw, grad.size = buffer.size = 8, buffer.data = w, buffer.dtype = dtype, buffer.grad = &grad;
    param.tensor = &buffer, param.name = "w";
    model.host = amp_buffer_host(), model.flags = AMP_MODEL_LOW_PARAMS, model.params = &param, model.n_params = 1;
    optimizer.params = trained, optimizer.n_params = 1, optimizer.fused = fused ? &fused_rules : NULL;
    config.emulate = AMP_ON;
    ck_ok(amp_optim_defaults(AMP_OPTIM_ADAMW, &rule));
    fused_rules.groups = &rule, fused_rules.n_groups = 1;
    const amp_status status = amp_initialize_many(models, 1, optimizers, 1, &config, &context);
    if (fused) {
        ck_ok(status); /* libamp's own optimizer has the master */
        ck_ok(amp_shutdown(context));
        return;
    }
    ck_fails(AMP_ERR_MISSING_HOOK, status);
    ck_says("w is");
    ck_says("no hook swap_data");
    config.master_weights = AMP_OFF;
    ck_ok(amp_initialize_many(models, 1, optimizers, 1, &config, &context));
    ck_ok(amp_shutdown(context));
}

/* ---- structures of tomorrow: larger, the tail unknown ---- */

struct larger_config { amp_config known; unsigned char tail[16]; };
struct larger_model { amp_model known; unsigned char tail[16]; };
struct larger_optimizer { amp_optimizer known; unsigned char tail[16]; };
struct larger_host { amp_host known; unsigned char tail[16]; };

TEST_TIMES(unknown_tails_are_accepted_only_when_zero, 8) { /* _i: which structure; bit 2: set a byte of its tail */
    struct rig rig;
    const unsigned char byte = (unsigned char)(_i >> 2);
    rig_init(&rig, 0);
    struct larger_config config = { config_of(AMP_O1), { 0 } };
    struct larger_model model = { rig.net.model, { 0 } };
    struct larger_optimizer optimizer = { rig.net.optimizer, { 0 } };
    struct larger_host host = { rig.host.hooks, { 0 } };
    unsigned char *const tails[] = { config.tail, model.tail, optimizer.tail, host.tail };
    uint32_t *const sizes[] = { &config.known.struct_size, &model.known.struct_size, &optimizer.known.struct_size,
                                &host.known.struct_size };
    static const uint32_t larger[] = { sizeof config, sizeof model, sizeof optimizer, sizeof host };
    tails[_i & 3][3] = byte;
    *sizes[_i & 3] = larger[_i & 3];
    model.known.host = &host.known;
    const struct world before = world_of(&rig);
    amp_model *models[] = { &model.known };
    amp_optimizer *optimizers[] = { &optimizer.known };
    const amp_status status = amp_initialize_many(models, 1, optimizers, 1, &config.known, &rig.context);
    ck_assert_int_eq(status, byte ? AMP_ERR_ABI_MISMATCH : AMP_OK);
    if (byte) world_check(&before, &rig);
    rig_end(&rig);
}
