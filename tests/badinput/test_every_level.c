/* SPDX-License-Identifier: Apache-2.0 */
/* What is refused whatever the level is, also where nothing would be wrapped; and what needs no level. */
#include "../support/levels.h"
#include "world.h"

static const amp_level levels[] = { EACH_LEVEL };

TEST_TIMES(a_slot_is_described_once, N_EACH_LEVEL) {
    struct rig rig;
    struct world before;
    const amp_config config = config_of(levels[_i]);
    rig_init(&rig, 0);
    rig.net.ops[OP_relu].slot = rig.net.ops[OP_sum].slot;
    world_take(&before, &rig);
    ck_fails(AMP_ERR_CONFLICT, rig_config(&rig, &config));
    ck_says("(relu)");
    ck_says("(sum) are the same slot");
    world_check(&before, &rig);
    fake_destroy(&rig.host);
}

TEST_TIMES(a_slot_is_aligned, N_EACH_LEVEL) {
    struct rig rig;
    const amp_config config = config_of(levels[_i]);
    rig_init(&rig, 0);
    rig.net.ops[OP_relu].slot = (amp_fn *)(void *)((char *)rig.net.ops[OP_relu].slot + 1);
    ck_fails(AMP_ERR_INVALID_ARGUMENT, rig_config(&rig, &config));
    ck_says("aligned");
    fake_destroy(&rig.host);
}

TEST_TIMES(reserved_is_zero, N_EACH_LEVEL) {
    struct rig rig;
    const amp_config config = config_of(levels[_i]);
    rig_init(&rig, 0);
    rig.net.ops[OP_add].reserved = 4;
    ck_fails(AMP_ERR_INVALID_ARGUMENT, rig_config(&rig, &config));
    ck_says("reserved is 4");
    fake_destroy(&rig.host);
}

TEST_TIMES(a_schema_says_which_model_and_op, N_EACH_LEVEL) {
    struct rig rig;
    const amp_config config = config_of(levels[_i]);
    rig_init(&rig, 0);
    rig.net.ops[OP_add].schema = "add(Tensro a) -> Tensor";
    ck_fails(AMP_ERR_SCHEMA, rig_config(&rig, &config));
    ck_says("model 0 ops[2]: add: ");
    ck_says("did you mean Tensor?");
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
    struct rig rig;
    rig_init(&rig, 0);
    ck_fails(AMP_ERR_NOT_FOUND, amp_register(&rig.net.model, "linear#5", AMP_FP32));
    ck_says("1 ops named linear, numbered from 0");
    fake_destroy(&rig.host);
}

TEST(a_direct_call_says_what_it_could_not_cast) {
    struct rig rig;
    amp_cast_frame frame = AMP_CAST_FRAME_INIT;
    rig_start(&rig, AMP_O1, FAKE_RETAINS);
    struct fake_tensor *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    void *tensors[] = { x };
    rig.host.fail_hook = FAKE_CAST;
    rig.host.fail_at = rig.host.calls[FAKE_CAST] + 1;
    ck_fails(AMP_ERR_HOST_FAILED, amp_cast_args(rig.context, "linear", tensors, 1, &frame));
    ck_says("op linear: tensor 0: cast from fp32 to fp16");
    ck_assert_ptr_eq(tensors[0], x);
    fake_release(x);
    rig_end(&rig);
}
