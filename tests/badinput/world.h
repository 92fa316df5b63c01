/* SPDX-License-Identifier: Apache-2.0 */
/* Everything of the host's that libamp could have touched; and a whole program's life to break somewhere. */
#ifndef TEST_WORLD_H
#define TEST_WORLD_H

#include "checks.h"

struct world {
    struct net net; /* slots, descriptors, models */
    amp_storage storages[NET_PARAMS];
    double values[NET_PARAMS];
    void *grads[NET_PARAMS];
    int64_t live_tensors, live_blocks;
    uint32_t refs[NET_PARAMS];
};

static inline struct fake_tensor *world_param(const struct net *net, size_t i) {
    struct fake_tensor *const all[] = { net->weight, net->bias, net->gamma, net->mean, net->count, net->wide };
    return all[i];
}

static inline struct world world_of(const struct rig *rig) {
    struct world world;
    memset(&world, 0, sizeof world);
    world.net = rig->net;
    for (size_t i = 0; i < NET_PARAMS; i++) {
        const struct fake_tensor *param = world_param(&rig->net, i);
        world.storages[i] = param->storage;
        world.values[i] = fake_get(param, 0);
        world.grads[i] = param->grad;
        world.refs[i] = param->refs;
    }
    world.live_tensors = rig->host.live_tensors;
    world.live_blocks = rig->host.live_blocks;
    return world;
}

static inline void world_check(const struct world *world, const struct rig *rig) {
    const struct world now = world_of(rig);
    ck_assert_mem_eq(now.net.table, world->net.table, sizeof now.net.table);
    ck_assert(now.net.forward == world->net.forward && now.net.step == world->net.step);
    ck_assert(now.net.zero_grad == world->net.zero_grad);
    ck_assert_mem_eq(now.net.ops, world->net.ops, sizeof now.net.ops);
    ck_assert_ptr_eq(now.net.model.amp, world->net.model.amp);
    ck_assert_ptr_eq(now.net.optimizer.amp, world->net.optimizer.amp);
    for (size_t i = 0; i < NET_PARAMS; i++) {
        ck_assert_ptr_eq(now.storages[i].data, world->storages[i].data);
        ck_assert_int_eq(now.storages[i].dtype, world->storages[i].dtype);
        ck_assert_double_eq(now.values[i], world->values[i]);
        ck_assert_ptr_eq(now.grads[i], world->grads[i]);
        ck_assert_uint_eq(now.refs[i], world->refs[i]);
    }
    ck_assert_int_eq(now.live_tensors, world->live_tensors);
    ck_assert_int_eq(now.live_blocks, world->live_blocks);
}

/* One life: initialize, three training steps, shutdown. */
struct life {
    amp_level level;
    unsigned options;
};

static const struct life lives[] = { { AMP_O1, 0 },
                                     { AMP_O1, FAKE_RETAINS | FAKE_NO_VERSION },
                                     { AMP_O2, 0 },
                                     { AMP_O2, FAKE_NO_SET_GRAD },
                                     { AMP_O2, FAKE_NO_ALLOC | FAKE_NO_VERSION },
                                     { AMP_O3, FAKE_RETAINS } };
enum { N_LIVES = sizeof lives / sizeof lives[0] };

/* A training step with a gradient that is there already: begin must set it aside. */
static inline amp_status live_step(struct rig *rig) {
    net_backward(&rig->net, 0.5, 0.0);
    return net_train_step(&rig->net, 0.5);
}

/* What went wrong first, if anything did; the rest of the life is lived in any case. */
static inline void first_error(amp_status *first, amp_status status) {
    if (*first == AMP_OK) *first = status;
}

/* The parameter is its master, rounded. */
static inline void ck_consistent(struct rig *rig) {
    amp_master masters[3] = { AMP_MASTER_INIT, AMP_MASTER_INIT, AMP_MASTER_INIT };
    size_t count;
    ck_ok(amp_master_params(&rig->net.optimizer, masters, 3, &count));
    for (size_t k = 0; k < 3; k++) {
        struct fake_tensor *rounded = fake_new(&rig->host, fake_dtype(rig->net.trained[k]), 1,
                                               *(float *)masters[k].data);
        if (masters[k].is_master) ck_assert_double_eq(fake_get(rig->net.trained[k], 0), fake_get(rounded, 0));
        fake_release(rounded);
    }
}

/* The books at a life's end: nothing is alive that was not before. */
static inline void ck_nothing_left(struct rig *rig, const struct world *before) {
    net_zero_grad(&rig->net);
    ck_assert_msg(net_slots_restored(&rig->net), "a slot is not what it was");
    ck_assert_ptr_null(rig->net.model.amp);
    ck_assert_ptr_null(rig->net.optimizer.amp);
    ck_assert_int_eq(rig->host.live_tensors, before->live_tensors);
    ck_assert_int_eq(rig->host.live_blocks, before->live_blocks);
    ck_assert_uint_eq(rig->host.over_released, 0);
}

#endif
