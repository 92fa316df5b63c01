/* SPDX-License-Identifier: Apache-2.0 */
/* Fixed gradient buffers that hold something at begin: FP32 ones are scaled in place, 16-bit ones set aside. */
#include "bracket.h"

#include <float.h>
#include <math.h>

static const struct {
    amp_level level;
    unsigned options;
} hosts[] = {
    { AMP_O0, FAKE_NO_SET_GRAD }, { AMP_O1, FAKE_NO_SET_GRAD }, { AMP_O4, FAKE_NO_SET_GRAD },
    { AMP_O2, FAKE_NO_SET_GRAD | FAKE_FP32_GRADS }, { AMP_O1, FAKE_NO_SET_GRAD | FAKE_NO_VERSION },
    { AMP_O5, FAKE_NO_SET_GRAD | FAKE_FP32_GRADS | FAKE_NO_VERSION },
};
enum { N_HOSTS = sizeof hosts / sizeof *hosts };

struct fixed {
    struct rig rig;
    struct fake_tensor *grad;
    amp_scaled_loss scaled;
};

/* The weight's buffer, of this type, holds `old` in all elements and `first` in the first. */
static void fixed_start(struct fixed *f, amp_level level, unsigned options, float scale, amp_dtype type, double old,
                        double first) {
    amp_config config = config_of(level);
    config.loss_scale = scale;
    rig_init(&f->rig, options);
    ck_ok(rig_config(&f->rig, &config));
    f->scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
    if (f->rig.net.weight->grad) fake_put_grad(f->rig.net.weight, NULL);
    f->grad = fake_new(&f->rig.host, type, NET_SIZE, old);
    fake_put_grad(f->rig.net.weight, f->grad);
    fake_set(f->grad, 0, first);
    ck_ok(fake_begin(&f->rig.net.optimizer, NULL, &f->scaled));
}

static void fixed_end(struct fixed *f) { rig_end(&f->rig); }
#define FIXED(name) __attribute__((cleanup(fixed_end))) struct fixed name

static void ck_grad(const struct fixed *f, double first, double others) {
    ck_assert_double_eq(fake_get(f->grad, 0), first);
    for (int i = 1; i < NET_SIZE; i++) ck_assert_double_eq(fake_get(f->grad, i), others);
}

static void add(const struct fixed *f, double value) {
    for (int i = 0; i < NET_SIZE; i++) fake_set(f->grad, i, fake_get(f->grad, i) + value);
}

/* In FP32 it matters where 1 is added: 2^24 + 1 - 2^24 is 0. */
TEST_TIMES(backward_adds_to_what_was_there, N_HOSTS) {
    FIXED(f);
    fixed_start(&f, hosts[_i].level, hosts[_i].options, 1024.0f, AMP_FLOAT32, 0.75, 0x1p24);
    ck_grad(&f, 0x1p34, 768.0);
    add(&f, 1024.0);
    add(&f, -0x1p34);
    ck_ok(amp_scale_loss_end(&f.scaled));
    ck_grad(&f, 0.0, (double)((0.75f + 1.0f) - 0x1p24f));
    ck_assert_float_eq(seen_grad(&f.rig, 0), 0.0f);
}

TEST_TIMES(a_backward_that_clears_has_its_own_gradients_alone, N_HOSTS) {
    FIXED(f);
    fixed_start(&f, hosts[_i].level, hosts[_i].options, 1024.0f, AMP_FLOAT32, 0.75, 3.0);
    fake_fill(f.grad, 0.0);
    add(&f, 256.0);
    ck_ok(amp_scale_loss_end(&f.scaled));
    ck_grad(&f, 0.25, 0.25);
    ck_assert_float_eq(seen_grad(&f.rig, 0), 0.25f);
}

TEST_TIMES(a_cancel_gives_back_what_was_there, N_HOSTS) {
    FIXED(f);
    fixed_start(&f, hosts[_i].level, hosts[_i].options, 1024.0f, AMP_FLOAT32, 0x1.234568p-3, 0x1p-149);
    add(&f, 1.0);
    ck_ok(amp_scale_loss_cancel(&f.scaled));
    ck_grad(&f, 0x1p-149, 0x1.234568p-3);
}

/* The end itself, or the skipped step after a bracket that was clean again. */
TEST_TIMES(a_skip_gives_back_what_was_there, N_HOSTS) {
    FIXED(f);
    fixed_start(&f, hosts[_i].level, hosts[_i].options, 1024.0f, AMP_FLOAT32, 0x1.234568p-3, 0x1p-149);
    add(&f, INF);
    ck_ok(amp_scale_loss_end(&f.scaled));
    ck_assert_int_eq(f.scaled.action, AMP_SKIP);
    ck_grad(&f, 0x1p-149, 0x1.234568p-3);
    f.scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
    ck_ok(fake_begin(&f.rig.net.optimizer, NULL, &f.scaled));
    ck_grad(&f, 0x1p-139, 0x1.234568p7);
    add(&f, 1024.0);
    ck_ok(amp_scale_loss_end(&f.scaled));
    ck_assert_int_eq(f.scaled.action, AMP_STEP);
    ck_assert_int_eq(net_step(&f.rig.net), 0);
    ck_grad(&f, 0x1p-149, 0x1.234568p-3);
}

/* What was there at the first begin is scaled once, however many brackets delay. */
TEST_TIMES(brackets_that_delay_scale_once, N_HOSTS) {
    FIXED(f);
    fixed_start(&f, hosts[_i].level, hosts[_i].options, 1024.0f, AMP_FLOAT32, 0.75, 3.0);
    amp_optimizer *optimizer = &f.rig.net.optimizer;
    const bool cancels = _i % 2;
    ck_ok(amp_scale_loss_cancel(&f.scaled));
    for (int i = 0; i < 3; i++) {
        f.scaled = (amp_scaled_loss)AMP_SCALED_LOSS_INIT;
        ck_ok(fake_begin_many(NULL, &optimizer, 1, 0, i < 2 ? AMP_DELAY_UNSCALE : 0, NULL, &f.scaled));
        ck_grad(&f, 3072.0 + i * 512.0, 768.0 + i * 512.0);
        add(&f, 512.0);
        if (i == 2 && cancels) ck_ok(amp_scale_loss_cancel(&f.scaled));
        else ck_ok(amp_scale_loss_end(&f.scaled));
    }
    if (cancels) ck_grad(&f, 3072.0 + 1024.0, 768.0 + 1024.0); /* still scaled */
    else ck_grad(&f, 4.5, 2.25);
}

/* Whatever a buffer holds that nobody has written yet, and at whatever scale, a backward that assigns has what it
 * assigned. */
static const struct {
    float scale;
    double old;
} garbage[] = {
    { 65536.0f, (double)NAN }, { 65536.0f, INF }, { 65536.0f, 1e36 },
    { 0x1p-10f, 0x1p-140 },    { 10.0f, 3.0 },    { 1000.0f, 1e36 },
};
enum { N_GARBAGE = sizeof garbage / sizeof *garbage };

TEST_TIMES(a_backward_that_assigns_has_its_own_gradients_alone, N_HOSTS * N_GARBAGE) {
    FIXED(f);
    const int host = _i % N_HOSTS, hold = _i / N_HOSTS;
    const float scale = garbage[hold].scale, made = 0.75f, unscaled = made * scale * (float)(1.0 / (double)scale);
    fixed_start(&f, hosts[host].level, hosts[host].options, scale, AMP_FLOAT32, garbage[hold].old, garbage[hold].old);
    fake_fill(f.grad, (double)(made * scale));
    ck_ok(amp_scale_loss_end(&f.scaled));
    ck_assert_int_eq(f.scaled.action, AMP_STEP);
    ck_grad(&f, (double)unscaled, (double)unscaled);
    ck_assert_float_eq(seen_grad(&f.rig, 0), unscaled);
}

enum treatment { IN_PLACE, OVERFLOWS, ZEROED };

static const struct {
    amp_level level;
    amp_dtype type;
    float scale;
    double old, first;
    enum treatment treatment;
} edges[] = {
    { AMP_O1, AMP_FLOAT32, 0x1p40f, 1.0, 0x1p87, IN_PLACE },
    { AMP_O1, AMP_FLOAT32, 0x1p40f, 1.0, 0x1p88, OVERFLOWS },
    { AMP_O1, AMP_FLOAT32, 0x1p40f, 1.0, INF, OVERFLOWS },
    { AMP_O1, AMP_FLOAT32, 0x1p16f, 1.0, (double)FLT_TRUE_MIN, IN_PLACE },
    { AMP_O1, AMP_FLOAT32, 0x1p-10f, 1.0, 0x1p-139, IN_PLACE },
    { AMP_O1, AMP_FLOAT32, 1000.0f, 1.0, 2.0, IN_PLACE },
    { AMP_O1, AMP_FLOAT64, 0x1p40f, 1.0, 0x1p88, IN_PLACE },
    { AMP_O1, AMP_FLOAT16, 2.0f, 1.0, 2.0, ZEROED },
    { AMP_O2, AMP_FLOAT16, 2.0f, 1.0, 2.0, ZEROED },
    { AMP_O5, AMP_BFLOAT16, 2.0f, 1.0, 2.0, ZEROED },
};
enum { N_EDGES = sizeof edges / sizeof *edges };

/* Also after an overflow: what stood there is what the buffer holds again. */
TEST_TIMES(what_was_there_comes_through_a_bracket, N_EDGES) {
    FIXED(f);
    const double scale = (double)edges[_i].scale, old = edges[_i].old, first = edges[_i].first;
    const enum treatment treatment = edges[_i].treatment;
    fixed_start(&f, edges[_i].level, FAKE_NO_SET_GRAD, edges[_i].scale, edges[_i].type, old, first);
    if (treatment == ZEROED) ck_grad(&f, 0.0, 0.0);
    else ck_grad(&f, treatment == OVERFLOWS ? INF : first * scale, old * scale);
    add(&f, 0.0);
    ck_ok(amp_scale_loss_end(&f.scaled));
    ck_assert_int_eq(f.scaled.action, treatment == OVERFLOWS ? AMP_SKIP : AMP_STEP);
    ck_grad(&f, first, old);
}
