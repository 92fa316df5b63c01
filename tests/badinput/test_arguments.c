/* SPDX-License-Identifier: Apache-2.0 */
/* What initialize refuses: status, a message that says what and where, and a world left as it was. */
#include "world.h"

#include <sys/mman.h>

struct change {
    struct rig *rig;
    amp_config *config;
};

static amp_fn constant_slot(amp_fn value) { /* a slot in read-only memory; its address as a value, see below */
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert(page != MAP_FAILED);
    memcpy(page, &value, sizeof value);
    ck_assert_int_eq(mprotect(page, 4096, PROT_READ), 0);
    amp_fn address;
    memcpy(&address, &page, sizeof page);
    return address;
}

static struct net *net_of(const struct change *c) { return &c->rig->net; }

static void no_config_size(struct change *c) { c->config->struct_size = 0; }
static void small_config(struct change *c) { c->config->struct_size = 8; }
static void no_model_size(struct change *c) { net_of(c)->model.struct_size = 0; }
static void small_model(struct change *c) { net_of(c)->model.struct_size = 16; }
static void no_optimizer_size(struct change *c) { net_of(c)->optimizer.struct_size = 0; }
static void no_host_size(struct change *c) { c->rig->host.hooks.struct_size = 0; }
static void no_op_size(struct change *c) { net_of(c)->ops[0].struct_size = 0; }
static void odd_op_size(struct change *c) { net_of(c)->ops[2].struct_size += 8; }
static void no_param_size(struct change *c) { net_of(c)->params[0].struct_size = 0; }
static void odd_param_size(struct change *c) { net_of(c)->params[1].struct_size += 8; }
static void no_forward_size(struct change *c) { net_of(c)->forward_op.struct_size = 0; }
static void no_level(struct change *c) { c->config->level = 0; }
static void level_seven(struct change *c) { c->config->level = 7; }
static void forbidden(struct change *c) { c->config->master_weights = AMP_ON; }
static void no_host(struct change *c) { net_of(c)->model.host = NULL; }
static void model_flags(struct change *c) { net_of(c)->model.flags = 8; }
static void optimizer_flags(struct change *c) { net_of(c)->optimizer.flags = 8; }
static void host_flags(struct change *c) { c->rig->host.hooks.flags = 1u << 30; }
static void half_alloc(struct change *c) { c->rig->host.hooks.free = NULL; }
static void no_ops(struct change *c) { net_of(c)->model.ops = NULL; }
static void no_params(struct change *c) { net_of(c)->model.params = NULL; }
static void no_trained(struct change *c) { net_of(c)->optimizer.params = NULL; }
static void no_steps(struct change *c) { net_of(c)->optimizer.steps = NULL; }
static void no_name(struct change *c) { net_of(c)->ops[3].name = NULL; }
static void bad_class(struct change *c) { net_of(c)->ops[3].op_class = 77; }
static void op_flags(struct change *c) { net_of(c)->ops[3].flags = 1u << 20; }
static void no_slot(struct change *c) { net_of(c)->ops[OP_linear].slot = NULL; }
static void slot_and_direct(struct change *c) { net_of(c)->ops[OP_linear].flags = AMP_OP_DIRECT; }
static void no_schema(struct change *c) { net_of(c)->ops[OP_linear].schema = NULL; }
static void bad_schema(struct change *c) { net_of(c)->ops[OP_linear].schema = "linear(Tensro x) -> Tensor"; }
static void bad_return(struct change *c) { net_of(c)->ops[OP_linear].schema = "linear(Tensor x)"; }
static void step_schema(struct change *c) { net_of(c)->step_op.schema = "step(pointer self -> int32"; }
static void no_list_count(struct change *c) { net_of(c)->ops[OP_cat].schema = "cat(Tensor[] xs) -> Tensor"; }
static void same_slot(struct change *c) { net_of(c)->ops[OP_matmul].slot = net_of(c)->ops[OP_linear].slot,
                                          net_of(c)->ops[OP_matmul].schema = net_of(c)->ops[OP_linear].schema; }
static void constant(struct change *c) {
    const amp_fn address = constant_slot(net_of(c)->table[OP_linear]);
    memcpy(&net_of(c)->ops[OP_linear].slot, &address, sizeof address);
}
static void long_name(struct change *c) {
    static char name[200];
    memset(name, 'x', sizeof name - 1);
    net_of(c)->ops[3].name = name;
}
static void no_tensor(struct change *c) { net_of(c)->params[1].tensor = NULL; }
static void bad_kind(struct change *c) { net_of(c)->params[1].module_kind = 9; }
static void trained_twice(struct change *c) { net_of(c)->trained[1] = net_of(c)->weight; }
static void trained_null(struct change *c) { net_of(c)->trained[1] = NULL; }
static void set_view(struct change *c, uint8_t code, uint8_t bits) {
    net_of(c)->bias->code = code;
    net_of(c)->bias->bits = bits;
}
static void complex_param(struct change *c) { set_view(c, 5, 64); }
static void fp8_param(struct change *c) { set_view(c, 10, 8); }
static void opaque_param(struct change *c) { set_view(c, 3, 64); }
static void gappy(struct change *c) { net_of(c)->bias->strides[0] = 3; }
static void negative(struct change *c) { net_of(c)->bias->shape[0] = -4; }

static const struct {
    void (*make)(struct change *c);
    amp_level level;
    amp_status status;
    const char *says[3];
} cases[] = {
    { no_config_size, AMP_O1, AMP_ERR_ABI_MISMATCH, { "amp_config", "struct_size", "_INIT" } },
    { small_config, AMP_O1, AMP_ERR_ABI_MISMATCH, { "amp_config", "8" } },
    { no_model_size, AMP_O1, AMP_ERR_ABI_MISMATCH, { "amp_model", "struct_size" } },
    { small_model, AMP_O1, AMP_ERR_ABI_MISMATCH, { "amp_model", "16" } },
    { no_optimizer_size, AMP_O1, AMP_ERR_ABI_MISMATCH, { "amp_optimizer", "struct_size" } },
    { no_host_size, AMP_O1, AMP_ERR_ABI_MISMATCH, { "amp_host", "struct_size", "model 0" } },
    { no_op_size, AMP_O1, AMP_ERR_ABI_MISMATCH, { "amp_op", "struct_size", "ops[0]" } },
    { odd_op_size, AMP_O1, AMP_ERR_ABI_MISMATCH, { "ops[2]", "struct_size" } },
    { no_param_size, AMP_O1, AMP_ERR_ABI_MISMATCH, { "amp_param", "struct_size" } },
    { odd_param_size, AMP_O1, AMP_ERR_ABI_MISMATCH, { "params[1]", "struct_size" } },
    { no_forward_size, AMP_O1, AMP_ERR_ABI_MISMATCH, { "forward", "struct_size" } },
    { no_level, AMP_O1, AMP_ERR_INVALID_ARGUMENT, { "opt level 0", "AMP_O1" } },
    { level_seven, AMP_O1, AMP_ERR_INVALID_ARGUMENT, { "opt level 7", "letter O" } },
    { forbidden, AMP_O1, AMP_ERR_CONFLICT, { "O1", "master_weights", "AMP_DEFAULT" } },
    { no_host, AMP_O1, AMP_ERR_INVALID_ARGUMENT, { "model 0", "host", "NULL" } },
    { model_flags, AMP_O1, AMP_ERR_INVALID_ARGUMENT, { "model 0", "flags", "0x8" } },
    { optimizer_flags, AMP_O1, AMP_ERR_INVALID_ARGUMENT, { "optimizer 0", "flags", "0x8" } },
    { host_flags, AMP_O1, AMP_ERR_INVALID_ARGUMENT, { "host", "flags" } },
    { half_alloc, AMP_O2, AMP_ERR_INVALID_ARGUMENT, { "alloc", "free", "both" } },
    { no_ops, AMP_O1, AMP_ERR_INVALID_ARGUMENT, { "model 0", "ops", "NULL" } },
    { no_params, AMP_O1, AMP_ERR_INVALID_ARGUMENT, { "model 0", "params", "NULL" } },
    { no_trained, AMP_O1, AMP_ERR_INVALID_ARGUMENT, { "optimizer 0", "params", "NULL" } },
    { no_steps, AMP_O1, AMP_ERR_INVALID_ARGUMENT, { "optimizer 0", "steps", "NULL" } },
    { no_name, AMP_O1, AMP_ERR_INVALID_ARGUMENT, { "ops[3]", "name" } },
    { bad_class, AMP_O1, AMP_ERR_INVALID_ARGUMENT, { "ops[3]", "op_class", "77" } },
    { op_flags, AMP_O1, AMP_ERR_INVALID_ARGUMENT, { "ops[3]", "flags" } },
    { no_slot, AMP_O1, AMP_ERR_INVALID_ARGUMENT, { "linear", "slot", "AMP_OP_DIRECT" } },
    { slot_and_direct, AMP_O1, AMP_ERR_CONFLICT, { "linear", "slot", "AMP_OP_DIRECT" } },
    { no_schema, AMP_O1, AMP_ERR_SCHEMA, { "linear", "schema" } },
    { bad_schema, AMP_O1, AMP_ERR_SCHEMA, { "linear", "^", "Tensor" } },
    { bad_return, AMP_O2, AMP_ERR_SCHEMA, { "linear", "^" } },
    { step_schema, AMP_O1, AMP_ERR_SCHEMA, { "step", "^" } },
    { no_list_count, AMP_O1, AMP_ERR_SCHEMA, { "cat", "^" } },
    { same_slot, AMP_O1, AMP_ERR_CONFLICT, { "linear", "matmul", "same slot" } },
    { constant, AMP_O1, AMP_ERR_READ_ONLY, { "linear", "read-only" } },
    { long_name, AMP_O1, AMP_ERR_INVALID_ARGUMENT, { "ops[3]", "127" } },
    { no_tensor, AMP_O1, AMP_ERR_INVALID_ARGUMENT, { "bias", "tensor" } },
    { bad_kind, AMP_O1, AMP_ERR_INVALID_ARGUMENT, { "bias", "module_kind", "9" } },
    { trained_twice, AMP_O1, AMP_ERR_INVALID_ARGUMENT, { "weight", "twice", "params[1]" } },
    { trained_null, AMP_O1, AMP_ERR_INVALID_ARGUMENT, { "params[1]", "NULL" } },
    { complex_param, AMP_O2, AMP_ERR_UNSUPPORTED, { "bias", "complex" } },
    { fp8_param, AMP_O2, AMP_ERR_UNSUPPORTED, { "bias", "8-bit" } },
    { opaque_param, AMP_O2, AMP_ERR_UNSUPPORTED, { "bias" } },
    { gappy, AMP_O2, AMP_ERR_UNSUPPORTED, { "bias", "contiguous" } },
    { negative, AMP_O2, AMP_ERR_INVALID_ARGUMENT, { "bias", "negative" } },
};

TEST_TIMES(initialize_refuses, sizeof cases / sizeof cases[0]) {
    struct rig rig;
    struct world before;
    amp_config config = config_of(cases[_i].level);
    rig_init(&rig, 0);
    cases[_i].make(&(struct change){ &rig, &config });
    world_take(&before, &rig);
    ck_fails(cases[_i].status, rig_config(&rig, &config));
    for (size_t k = 0; k < 3 && cases[_i].says[k]; k++) ck_says(cases[_i].says[k]);
    ck_assert_ptr_null(rig.context);
    world_check(&before, &rig);
    fake_destroy(&rig.host); /* whatever the case did to the net's handles, the host knows all tensors */
}

static const amp_dtype low[] = { AMP_FLOAT16, AMP_BFLOAT16 };

DIFFERENCE_TIMES(incoming_16_bit_parameters_are_refused, 4) {
    struct world before;
    const amp_config config = config_of(_i < 2 ? AMP_O2 : AMP_O1);
    RIG_INIT(rig, 0);
    fake_release(rig.net.bias);
    rig.net.bias = rig_tensor(&rig, low[_i % 2], 0.25);
    rig.net.params[1].tensor = rig.net.trained[1] = rig.net.bias;
    world_take(&before, &rig);
    ck_fails(AMP_ERR_INVALID_ARGUMENT, rig_config(&rig, &config));
    ck_says(_i % 2 ? "bias is bf16 already" : "bias is fp16 already");
    world_check(&before, &rig);
}

/* ---- structures of tomorrow: larger, the tail unknown ---- */

struct larger_config { amp_config known; unsigned char tail[16]; };
struct larger_model { amp_model known; unsigned char tail[16]; };
struct larger_optimizer { amp_optimizer known; unsigned char tail[16]; };
struct larger_host { amp_host known; unsigned char tail[16]; };

TEST_TIMES(unknown_tails_are_accepted_only_when_zero, 8) { /* _i: which structure; bit 2: set a byte of its tail */
    struct rig rig;
    struct world before;
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
    world_take(&before, &rig);
    amp_model *models[] = { &model.known };
    amp_optimizer *optimizers[] = { &optimizer.known };
    const amp_status status = amp_initialize_many(models, 1, optimizers, 1, &config.known, &rig.context);
    ck_assert_int_eq(status, byte ? AMP_ERR_ABI_MISMATCH : AMP_OK);
    if (byte) world_check(&before, &rig);
    rig_end(&rig);
}
