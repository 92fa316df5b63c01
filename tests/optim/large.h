/* SPDX-License-Identifier: Apache-2.0 */
/* A net whose optimizer is libamp's own, with a parameter that is large enough for moments in 8 bits. */
#ifndef TEST_OPTIM_LARGE_H
#define TEST_OPTIM_LARGE_H

#include "fused.h"

enum { LARGE = AMP_STATE_LEAST + 300, STATE_BYTES = 1 << 18 };

/* The net, and a parameter large enough for 8 bits. */
struct large {
    struct rig rig;
    struct fake_tensor *wide;
};

#define LARGE_SCALE .loss_scale = AMP_DYNAMIC, .init_scale = 64.0f, .window = 3

static inline void large_rule(struct large *x, amp_optim rule, amp_config config, uint32_t flags, uint64_t seed) {
    const amp_fused fused = SIZED(amp_fused, .flags = flags, .groups = &rule, .n_groups = 1, .seed = seed);
    rig_init(&x->rig, 0);
    x->rig.net.optimizer.fused = &fused;
    x->rig.net.optimizer.steps = x->rig.net.optimizer.zero_grads = NULL;
    x->rig.net.optimizer.n_steps = x->rig.net.optimizer.n_zero_grads = 0;
    ck_ok(rig_try(&x->rig, config));
    x->wide = fake_new(&x->rig.host, AMP_FLOAT32, LARGE, 1.0);
    const amp_param param = { sizeof(amp_param), 0, x->wide, "large" };
    ck_ok(amp_add_params(&x->rig.net.optimizer, &param, 1));
}

static inline void large_start(struct large *x, amp_config config, uint32_t flags, uint64_t seed) {
    large_rule(x, optim_of(AMP_OPTIM_ADAMW, 0.01), config, flags, seed);
}

static inline void large_end(struct large *x) {
    rig_stop(&x->rig);
    fake_release(x->wide);
    rig_end(&x->rig);
}
#define LARGE_START(name, ...) __attribute__((cleanup(large_end))) struct large name; large_start(&name, __VA_ARGS__)

/* Step 3 of 5 overflows. */
static inline void train(struct large *x, int from, int n, bool overflows) {
    amp_optimizer *optimizer = &x->rig.net.optimizer;
    for (int s = from; s < from + n; s++) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        if (s % 5 == 3 && !overflows) continue;
        ck_ok(fake_begin_many(NULL, &optimizer, 1, 0, 0, NULL, &scaled));
        fake_put_grad(x->wide, fake_new(&x->rig.host, fake_dtype(x->wide), LARGE, 0.0));
        for (int64_t i = 0; i < LARGE; i++) {
            const double value = 0x1p-10 * (double)((i * 7 + s * 13) % 31 - 15);
            fake_set(x->wide->grad, i, s % 5 == 3 ? INF : fake_seed(&scaled) * value);
        }
        ck_ok(amp_scale_loss_end(&scaled));
        ck_ok(amp_fused_step(optimizer, NULL));
        ck_ok(amp_fused_zero_grad(optimizer));
    }
}

static inline void compare_large(const struct large *a, const struct large *b) {
    const size_t width = fake_dtype(a->wide) == AMP_FLOAT32 ? 4 : 2;
    ck_assert(!memcmp(a->wide->storage.data, b->wide->storage.data, width * LARGE));
}

static inline size_t save(struct large *x, char *state) {
    size_t size = 0;
    ck_ok(amp_state_save_memory(x->rig.context, AMP_STATE_SAFETENSORS, state, STATE_BYTES, &size));
    return size;
}

#endif
