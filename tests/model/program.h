/* SPDX-License-Identifier: Apache-2.0 */
/* The program that is compared with the model: a host with two optimizers, and what it looks like after a call. */
#ifndef TEST_PROGRAM_H
#define TEST_PROGRAM_H

#include "model.h"

#include "../support/fakehost.h"

enum { CALLS = 60, LATE_BUFFERS = 1 << 30 }; /* an option: fixed gradient buffers are made by the first backward */

#define CALL_MAP(X)                                                                                                    \
    X(BEGIN) X(END) X(CANCEL) X(BACKWARD) X(STEP) X(DIRECT_STEP) X(ZERO_GRAD) X(SET) X(SET_GRAD) X(DROP_GRAD)          \
    X(CLIP_NORM) X(CLIP_VALUE) X(MASTERS) X(RECONCILE) X(CHECK) X(ADD_LATE) X(SAVE) X(LOAD) X(CLEAR)
#define CALL_NAME(name) CALL_##name,
enum kind { CALL_MAP(CALL_NAME) N_KINDS };

struct call {
    enum kind kind;
    unsigned which, other; /* optimizers or an optimizer, a loss; a parameter, an element */
    double value;
};

struct sequence {
    amp_config config;
    unsigned options;
    bool removed[CALLS];
    struct call calls[CALLS];
};

struct optimizer {
    struct program *program;
    amp_fn step, zero_grad;
    amp_op step_op, zero_grad_op;
    void *params[3];
    amp_optimizer optimizer;
    size_t n;
};

struct program {
    struct fake host;
    struct fake_tensor *params[PARAMS], *tied;
    amp_param described[LATE + 1];
    struct optimizer optimizers[OPTIMIZERS];
    amp_model model;
    amp_context *context;
    amp_scaled_loss scaled[LOSSES];
    bool ran;
    char state[8192];
    size_t state_size;
    struct model m;
    char why[512];
};

static const float program_rate = 0.125f;

int32_t program_host_step(struct optimizer *optimizer);
bool program_start(struct program *program, const struct sequence *sequence);
/* Whatever state it is in. */
void program_finish(struct program *program);
/* Why they disagree; always false. */
bool program_fails(struct program *program, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool program_same(double a, double b);
bool program_same_host(struct program *program);
bool program_same_records(struct program *program);
bool program_same_masters(struct program *program, unsigned k);
bool program_same_status(struct program *program, amp_status status, amp_status expected);

#endif
