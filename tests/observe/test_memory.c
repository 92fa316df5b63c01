/* SPDX-License-Identifier: Apache-2.0 */
/* Where memory is short, less is seen: each allocation of an observed training fails once, and what is trained is what
 * nobody observed. At O0, which makes no casts: all that is allocated is for what is seen. */
#include "checks.h"
#include "wrap.h"

static unsigned long allocations, fails_at; /* 0: none */

static bool refuse(void) { return ++allocations == fails_at; }

WRAP(void *, calloc, size_t count, size_t size) { return refuse() ? NULL : __real_calloc(count, size); }
WRAP(void *, realloc, void *block, size_t size) { return refuse() ? NULL : __real_realloc(block, size); }
WRAP(void *, aligned_alloc, size_t alignment, size_t size) {
    return refuse() ? NULL : __real_aligned_alloc(alignment, size);
}

static bool ck_ok_or_no_memory(amp_status status) {
    ck_assert_msg(status == AMP_OK || status == AMP_ERR_NO_MEMORY, "%s", amp_last_error());
    return status == AMP_OK;
}

/* Handles one by one, in a list, strided forwards and backwards; a step whose gradient overflows. */
static void iterate(struct rig *rig, int i) {
    OWN_TENSOR *a = rig_tensor(rig, AMP_FLOAT32, 2.0), *half = fake_alias(a), *turned = fake_alias(a);
    struct fake_tensor *list[] = { a, half, turned };
    half->shape[0] /= 2, half->strides[0] = 2;
    turned->strides[0] = -1, turned->storage.data = (float *)a->storage.data + NET_SIZE - 1;
    fake_release(net_cat(&rig->net, list, 3));
    fake_release(net_binary(&rig->net, OP_matmul, a, a));
    net_add_(&rig->net, a, a);
    if (i == 1) fake_set(rig->net.bias, 1, 1e30);
    ck_ok(net_train_step(&rig->net, 0.3 + i));
    if (i == 1) fake_set(rig->net.bias, 1, 0.5);
}

/* A call that the host tells of, with a tensor of its own. */
static void tell(struct rig *rig) {
    OWN_TENSOR *x = rig_tensor(rig, AMP_FLOAT32, 3.0);
    const amp_observed_value values[] = { { .name = "x", .tensor = x }, { .name = "y", .tensor = x, .is_output = 1 } };
    amp_observed_call call = AMP_OBSERVED_CALL_INIT;
    call.op = "told", call.where = "here", call.values = values, call.n_values = 2;
    (void)ck_ok_or_no_memory(amp_observe_call(rig->context, &call));
}

/* The weights after three steps, of which allocation `at` fails; at 0: nobody observes. False: there were fewer. */
static bool train(unsigned long at, double *weights) {
    amp_observe_options options = AMP_OBSERVE_OPTIONS_INIT;
    amp_survey_result survey = AMP_SURVEY_RESULT_INIT;
    amp_culprit culprit = AMP_CULPRIT_INIT;
    amp_observation seen = AMP_OBSERVATION_INIT;
    size_t n;
    RIG_WITH(rig, 0, AMP_O0, .observe = AMP_ON, .log = AMP_LOG_OFF);
    options.every = 1;
    iterate(&rig, 0); /* what is allocated once is */
    allocations = 0, fails_at = at;
    const bool observed = at && ck_ok_or_no_memory(amp_observe(rig.context, &options));
    for (int i = 1; i < 4; i++) iterate(&rig, i), tell(&rig);
    ck_ok(amp_get_observations(rig.context, &seen, 1, &n));
    ck_ok(amp_get_culprit(rig.context, &culprit));
    if (observed) (void)ck_ok_or_no_memory(amp_survey(rig.context, &survey));
    const bool failed = allocations >= at;
    fails_at = 0;
    for (int i = 0; i < NET_SIZE; i++) weights[i] = fake_get(rig.net.weight, i);
    return failed;
}

TEST(each_allocation_of_an_observed_training) {
    double plain[NET_SIZE], observed[NET_SIZE];
    unsigned long at = 1;
    (void)train(0, plain);
    for (; train(at, observed); at++)
        ck_assert_msg(!memcmp(plain, observed, sizeof plain), "allocation %lu", at);
    ck_assert_mem_eq(plain, observed, sizeof plain);
    ck_assert_uint_gt(at, 50);
}
