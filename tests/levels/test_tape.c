/* SPDX-License-Identifier: Apache-2.0 */
/* Temporaries: released with the call where the tape retains its inputs, else with the tape. */
#include "checks.h"

#include <pthread.h>
#include <semaphore.h>

static void softmax(struct rig *rig) { /* one cast, not cached */
    struct fake_tensor *x = rig_tensor(rig, AMP_FLOAT16, 1.0);
    fake_release(net_unary(&rig->net, OP_softmax, x));
    fake_release(x);
}

static int64_t temporaries(const struct rig *rig) { return rig->host.live_tensors - NET_PARAMS; }

/* The tape retains its inputs, or there is none. */
TEST_TIMES(temporaries_go_at_once, 2) {
    RIG_START(rig, AMP_O1, _i ? FAKE_RETAINS : 0);
    rig.host.no_grad = !_i;
    softmax(&rig);
    ck_assert_uint_eq(rig.host.calls[FAKE_RELEASE], 1);
    if (_i) fake_tape_clear(&rig.host);
    ck_assert_int_eq(temporaries(&rig), 0);
}

TEST(a_tape_that_does_not_retain_keeps_them_alive) {
    RIG_START(rig, AMP_O1, 0);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT32, 1.0);
    OWN_TENSOR *y = net_linear(&rig.net, x, rig.net.weight, rig.net.bias);
    amp_scaled_loss scaled = rig_begin_with(&rig, x);
    ck_assert_uint_eq(fake_tape_dead(&rig.host), 0);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_uint_eq(fake_tape_dead(&rig.host), 0); /* a second loss may still need them */
    fake_tape_clear(&rig.host);
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_int_eq(temporaries(&rig), 2); /* x and y */
}

TEST(tape_done_releases_them) {
    RIG_START(rig, AMP_O1, 0);
    softmax(&rig);
    ck_assert_int_eq(temporaries(&rig), 1);
    fake_tape_clear(&rig.host);
    ck_ok(amp_tape_done(rig.context));
    ck_assert_int_eq(temporaries(&rig), 0);
}

TEST(a_weight_cast_after_tape_done_is_a_new_one) {
    RIG_START(rig, AMP_O1, 0);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT16, 1.0);
    fake_release(net_linear(&rig.net, x, rig.net.weight, NULL));
    fake_tape_clear(&rig.host);
    ck_ok(amp_tape_done(rig.context));
    fake_release(net_linear(&rig.net, x, rig.net.weight, NULL));
    ck_assert_uint_eq(fake_last(&rig.host)->args[1]->refs, 1);
    ck_assert_uint_eq(rig.host.calls[FAKE_CAST], 2);
}

TEST(every_optimizer_must_have_stepped) {
    amp_step_info info = AMP_STEP_INFO_INIT;
    RIG_INIT(rig, 0);
    amp_optimizer second = SIZED(amp_optimizer, .host = &rig.host.hooks);
    rig_wire_two(&rig, &second, config_of(AMP_O1));
    softmax(&rig);
    ck_assert_int_eq(net_step(&rig.net), 1);
    ck_assert_uint_eq(fake_tape_dead(&rig.host), 0);
    ck_assert_int_eq(temporaries(&rig), 1);
    fake_tape_clear(&rig.host);
    ck_ok(amp_step_begin(&second, &info));
    ck_ok(amp_step_end(&second));
    ck_assert_int_eq(temporaries(&rig), 0);
}

TEST(a_skipped_step_releases_too) {
    RIG_START(rig, AMP_O1, 0);
    softmax(&rig);
    amp_scaled_loss scaled = rig_begin(&rig);
    fake_put_grad(rig.net.weight, rig_tensor(&rig, AMP_FLOAT32, (double)__builtin_inff()));
    ck_ok(amp_scale_loss_end(&scaled));
    fake_tape_clear(&rig.host);
    ck_assert_int_eq(net_step(&rig.net), 0);
    ck_assert_int_eq(temporaries(&rig), 1); /* the gradient */
}

TEST(growth_is_warned_about) { /* a host that neither steps nor says amp_tape_done */
    RIG_START(rig, AMP_O1, 0);
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT16, 1.0);
    for (int i = 0; i < 20000; i++) {
        fake_release(net_unary(&rig.net, OP_softmax, x));
        fake_tape_clear(&rig.host);
    }
    ck_assert_uint_ge(rig.host.events[AMP_EVENT_WARNING], 1);
    ck_assert_uint_le(rig.host.events[AMP_EVENT_WARNING], 3);
    ck_warned(&rig, "amp_tape_done");
}

/* ---- what a call reserved must still be there when it ends ---- */

static unsigned casts_inside;

static struct fake_tensor *many_casts(struct rig **self, struct fake_tensor *x) {
    for (unsigned i = 0; i < casts_inside; i++) softmax(*self);
    x->refs++;
    return x;
}

TEST_TIMES(ops_inside_a_forward_do_not_use_up_its_room, 40) {
    RIG_INIT(rig, 0);
    struct rig *self = &rig;
    rig.net.forward = rig.net.original_forward = (amp_fn)many_casts;
    rig.net.model.self = &self;
    rig_wire(&rig, CONFIG(AMP_O1, .cast_model_type = AMP_FLOAT32)); /* forward casts its input, and ops cast theirs */
    OWN_TENSOR *x = rig_tensor(&rig, AMP_FLOAT16, 1.0);
    casts_inside = (unsigned)_i; /* some fill the room exactly */
    fake_release(((struct fake_tensor * (*)(struct rig **, struct fake_tensor *)) rig.net.forward)(&self, x));
    fake_tape_clear(&rig.host);
    ck_ok(amp_tape_done(rig.context));
    ck_assert_int_eq(temporaries(&rig), 1);
}

static sem_t inside, go_on;

static struct fake_tensor *waiting_op(struct fake_tensor *a, struct fake_tensor *b) {
    sem_post(&inside);
    sem_wait(&go_on);
    (void)b;
    a->refs++;
    return a;
}

static void *call_waiting(void *user) {
    struct rig *rig = user;
    struct fake_tensor *x = rig_tensor(rig, AMP_FLOAT32, 1.0);
    fake_release(net_binary(&rig->net, OP_matmul, x, x));
    fake_release(x);
    return NULL;
}

TEST_TIMES(ops_of_another_thread_do_not_use_up_its_room, 40) {
    pthread_t thread;
    RIG_INIT(rig, 0);
    rig.net.table[OP_matmul] = rig.net.original[OP_matmul] = (amp_fn)waiting_op;
    rig_wire(&rig, config_of(AMP_O1));
    sem_init(&inside, 0, 0);
    sem_init(&go_on, 0, 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, call_waiting, &rig), 0);
    sem_wait(&inside);
    for (int i = 0; i <= _i; i++) softmax(&rig);
    sem_post(&go_on);
    pthread_join(thread, NULL);
    fake_tape_clear(&rig.host);
    ck_ok(amp_tape_done(rig.context));
    ck_assert_int_eq(temporaries(&rig), 0);
}
