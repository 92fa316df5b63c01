/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A host made for tests: tensors with real 16-bit storage and reference counts, every hook counted and breakable, and
 * books about what is alive. It knows amp.h only to describe itself.
 *
 * A tensor's structure stays valid until fake_destroy, so that tests can look at handles that were released; `refs` is
 * 0 then. Nothing here calls malloc, calloc, realloc or aligned_alloc: tests break those to see libamp run out of
 * memory.
 */
#ifndef TEST_FAKEHOST_H
#define TEST_FAKEHOST_H

#include "amp_all.h"

#include <stdbool.h>

enum fake_hook {
    FAKE_VIEW, FAKE_DTYPE, FAKE_CAST, FAKE_RELEASE, FAKE_ID, FAKE_VERSION, FAKE_GRAD_ENABLED, FAKE_GRAD, FAKE_SET_GRAD,
    FAKE_SWAP, FAKE_SCALE, FAKE_ALLOC, FAKE_FREE, FAKE_EVENT, FAKE_N_HOOKS
};

/* Options of fake_init. */
enum {
    FAKE_RETAINS = 1u << 0,     /* the tape holds its own references */
    FAKE_NO_SET_GRAD = 1u << 1, /* fixed gradient buffers that backward adds into */
    FAKE_NO_VERSION = 1u << 2,
    FAKE_NO_ID = 1u << 3,
    FAKE_NO_ALLOC = 1u << 4,
    FAKE_NO_SCALE = 1u << 5,
    FAKE_NO_CAST = 1u << 6,
    FAKE_NO_SWAP = 1u << 7,
    FAKE_FP32_GRADS = 1u << 8 /* backward makes FP32 gradients whatever the parameter's type */
};

struct fake_tensor {
    struct fake *host;
    struct fake_tensor *next;
    uint32_t refs;
    bool owns; /* false: another tensor's elements */
    bool requires_grad;
    const struct fake_tensor *cast_of; /* what a cast was made from */
    amp_storage storage;
    uint8_t code; /* != 0: the DLPack code the view shows instead of the true one */
    uint8_t bits;
    int64_t shape[1];
    int64_t strides[1];
    uint64_t id, version;
    struct fake_tensor *grad;
};

/* What an op got, in the order of its tensor arguments (list entries each). */
struct fake_call {
    const char *op;
    unsigned n;
    amp_dtype dtypes[4];
    struct fake_tensor *args[4];
};

enum { FAKE_LOG = 64, FAKE_TAPE = 4096 };

struct fake {
    amp_host hooks; /* what libamp is told */
    unsigned options;
    uint64_t calls[FAKE_N_HOOKS];
    enum fake_hook fail_hook;
    uint64_t fail_at; /* which call of fail_hook fails, from 1 on; 0: none */
    int64_t live_tensors, live_blocks;
    unsigned over_released; /* releases of what is dead */
    unsigned wrong_frees;   /* blocks freed by the side that does not own them */
    bool no_grad;
    uint64_t next_id;
    struct fake_tensor *all;
    struct block *blocks;
    struct fake_call log[FAKE_LOG];
    unsigned n_log; /* ops that ran; log[i % FAKE_LOG] */
    struct fake_tensor *tape[FAKE_TAPE];
    unsigned n_tape;
    unsigned events[AMP_EVENT_BRACKET + 1];
    amp_event last[AMP_EVENT_BRACKET + 1]; /* of each kind; message: see below */
    char last_message[AMP_EVENT_BRACKET + 1][1024];
};

void fake_init(struct fake *host, unsigned options);
void fake_destroy(struct fake *host);

/* From here on the nth call of the hook fails; n 0: none does. */
static inline void fake_fail(struct fake *host, enum fake_hook hook, uint64_t n) {
    host->fail_hook = hook;
    host->fail_at = n ? host->calls[hook] + n : 0;
}

/* `n` elements with one value; the caller holds the reference. */
struct fake_tensor *fake_new(struct fake *host, amp_dtype dtype, int64_t n, double value);
/* Another handle on the same elements. */
struct fake_tensor *fake_alias(struct fake_tensor *tensor);
void fake_release(struct fake_tensor *tensor);
/* Frees the host's block under a tensor that will get another. */
void fake_drop_block(struct fake_tensor *tensor);

/* Elements as double, whatever the type. fake_set counts as a change by the host (version). */
double fake_get(const struct fake_tensor *tensor, int64_t i);
void fake_set(struct fake_tensor *tensor, int64_t i, double value);
void fake_fill(struct fake_tensor *tensor, double value);
static inline amp_dtype fake_dtype(const struct fake_tensor *tensor) { return tensor->storage.dtype; }

/* Put a gradient of the host's own making there, or none. */
void fake_put_grad(struct fake_tensor *tensor, struct fake_tensor *grad);

/* The scale for a backward that is written down by hand. It asks as a host that seeds backward itself does. */
static inline double fake_seed(const amp_scaled_loss *scaled) {
    (void)amp_seed_factor(scaled);
    return (double)*scaled->scale;
}

/* A bracket whose gradients tests write down by hand, with the scale in them: said as a host says it that seeds
 * backward itself. */
static inline amp_status fake_begin_many(amp_context *context, amp_optimizer *const *optimizers, size_t n,
                                         uint32_t loss_id, uint32_t flags, void *loss, amp_scaled_loss *scaled) {
    const amp_status status = amp_scale_loss_begin_many(context, optimizers, n, loss_id, flags, loss, scaled);
    if (status == AMP_OK && !loss) (void)amp_seed_factor(scaled);
    return status;
}
static inline amp_status fake_begin(amp_optimizer *optimizer, void *loss, amp_scaled_loss *scaled) {
    const amp_status status = amp_scale_loss_begin(optimizer, loss, scaled);
    if (status == AMP_OK && !loss) (void)amp_seed_factor(scaled);
    return status;
}

/* The tape: what an op recorded. Backward looks at each; a dead one is an error of whoever released it. */
void fake_record(struct fake_tensor *tensor);
unsigned fake_tape_dead(const struct fake *host);
void fake_tape_clear(struct fake *host);

const struct fake_call *fake_last(const struct fake *host); /* the op that ran last */

#endif
