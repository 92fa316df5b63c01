/* SPDX-License-Identifier: Apache-2.0 */
/* What is refused whatever the level is, also where nothing would be wrapped; and what needs no level. */
#include "../support/levels.h"
#include "world.h"

static void share_slot(amp_op *ops) { ops[OP_relu].slot = ops[OP_sum].slot; }
static void shift_slot(amp_op *ops) { ops[OP_relu].slot = (amp_fn *)(void *)((char *)ops[OP_relu].slot + 1); }
static void use_reserved(amp_op *ops) { ops[OP_add].reserved = 4; }
static void slip_in_schema(amp_op *ops) { ops[OP_add].schema = "add(Tensro a) -> Tensor"; }

static const struct {
    void (*change)(amp_op *ops);
    amp_status status;
    const char *says[2];
} cases[] = {
    { share_slot, AMP_ERR_CONFLICT, { "(relu)", "(sum) are the same slot" } },
    { shift_slot, AMP_ERR_INVALID_ARGUMENT, { "aligned" } },
    { use_reserved, AMP_ERR_INVALID_ARGUMENT, { "reserved is 4" } },
    { slip_in_schema, AMP_ERR_SCHEMA, { "model 0 ops[2]: add: ", "did you mean Tensor?" } },
};
enum { N_CASES = sizeof cases / sizeof cases[0] };

TEST_TIMES(a_wrong_op_is_refused, N_EACH_LEVEL * N_CASES) {
    struct rig rig;
    rig_init(&rig, 0);
    cases[_i % N_CASES].change(rig.net.ops);
    const struct world before = world_of(&rig);
    const amp_status status = cases[_i % N_CASES].status;
    ck_fails(status, rig_try(&rig, config_of(each_level[_i / N_CASES])));
    for (size_t k = 0; k < 2 && cases[_i % N_CASES].says[k]; k++) ck_says(cases[_i % N_CASES].says[k]);
    world_check(&before, &rig);
    fake_destroy(&rig.host);
}

TEST(disabled_needs_no_level) {
    amp_config config = AMP_CONFIG_INIT;
    config.enabled = AMP_OFF;
    RIG_INIT(rig, 0);
    ck_ok(rig_config(&rig, &config));
    ck_assert(net_slots_restored(&rig.net)); /* nothing was wired */
}

TEST(an_index_too_large_says_how_many_there_are) {
    RIG_INIT(rig, 0);
    ck_fails(AMP_ERR_NOT_FOUND, amp_register(&rig.net.model, "linear#5", AMP_FP32));
    ck_says("1 op named linear, numbered from 0");
}

TEST(a_direct_call_says_what_it_could_not_cast) {
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    void *tensors[] = { x };
    fake_fail(&rig.host, FAKE_CAST, 1);
    ck_fails(AMP_ERR_HOST_FAILED, amp_cast_args(rig.context, "linear", tensors, 1, &frame));
    ck_says("op linear: tensor 0: cast from fp32 to fp16");
    ck_assert_ptr_eq(tensors[0], x);
}
