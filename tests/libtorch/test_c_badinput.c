/* SPDX-License-Identifier: Apache-2.0 */
/* What amp_torch.h refuses, with which status and words, and that what goes on afterwards is as if nothing had been
 * asked. */
#include "digits_net.h"
#include "test.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The status, and words of the message. */
#define REFUSED(call, status, words)                                                                                   \
    do {                                                                                                               \
        ck_assert_int_eq(call, status);                                                                                \
        ck_assert_msg(strstr(amp_torch_last_error(), words) != NULL, "no \"%s\" in: %s", words,                        \
                      amp_torch_last_error());                                                                         \
    } while (0)
#define IS_NULL(call, what) REFUSED(call, AMP_ERR_INVALID_ARGUMENT, what " is NULL")

/* The calls that need a session and find none. */
#define SESSION_CALLS(X, session)                                                                                      \
    X(amp_torch_cast_inputs(session, &x, 1, &out))                                                                     \
    X(amp_torch_cast_outputs(session, &x, 1, &out))                                                                    \
    X(amp_torch_cache_clear(session))                                                                                  \
    X(amp_torch_begin(session, x, 0, NULL, 0, 0, &out))                                                                \
    X(amp_torch_end(session, 0, &action))                                                                              \
    X(amp_torch_cancel(session, 0))                                                                                    \
    X(amp_torch_scale(session, 0, &scale))                                                                             \
    X(amp_torch_masters(session, 0, &out, 1, &size))                                                                   \
    X(amp_torch_clip_grad_norm(session, 0, 1.0, NULL))                                                                 \
    X(amp_torch_step(session, 0, nothing, NULL, NULL))                                                                 \
    X(amp_torch_step_begin(session, 0, &steps))                                                                        \
    X(amp_torch_step_end(session, 0))                                                                                  \
    X(amp_torch_state_save(session, NULL, 0, &size))                                                                   \
    X(amp_torch_state_load(session, "", 0))

static struct net net;
static amp_torch_tensor x, y;

static int32_t nothing(void *self) {
    (void)self;
    return 0;
}

static void open_net(void) {
    const int64_t labels[4] = { 1, 2, 3, 4 };
    amp_config config = AMP_CONFIG_INIT;
    config.num_losses = 2;
    config.init_scale = 256.0f;
    net = net_new(1);
    x = torch_param(4, PIXELS, 1.0);
    y = torch_integers(labels, 4);
    ck_assert_int_eq(net_open(&net, AMP_O2, &config), AMP_OK);
}

/* It trains as ever. */
static void close_net(void) {
    int32_t stepped = 0;
    ck_assert_int_eq(net_backward(&net, x, y), AMP_STEP);
    ck_assert_int_eq(amp_torch_step(net.session, 0, nothing, NULL, &stepped), AMP_OK);
    ck_assert_int_eq(stepped, 1);
    net_free(&net);
    torch_free(x);
    torch_free(y);
}

TEST_FIXTURE(open_net, close_net)

TEST(null_sessions) {
    amp_torch_tensor out = NULL;
    amp_action action;
    size_t size = 0;
    int32_t steps;
    float scale;
#define NULL_SESSION(call) IS_NULL(call, "session");
    SESSION_CALLS(NULL_SESSION, NULL)
    ck_assert_ptr_null(amp_torch_context(NULL));
    ck_assert_int_eq(amp_torch_close(NULL), AMP_OK);
    ck_assert_ptr_null(out);
}

TEST(null_arguments) {
    amp_torch_guard guard = 0;
    amp_torch_tensor out = NULL;
    amp_torch_session *session = NULL;
    ck_assert_int_eq(amp_torch_enter(NULL, &guard), AMP_OK); /* nobody's policy */
    ck_assert_int_eq(amp_torch_leave(guard), AMP_OK);
    IS_NULL(amp_torch_enter(net.session, NULL), "guard");
    IS_NULL(amp_torch_open(AMP_O1, NULL, NULL, NULL, NULL, NULL, 1, &session), "tensors");
    IS_NULL(amp_torch_open(AMP_O1, NULL, &x, NULL, NULL, NULL, 1, NULL), "session");
    IS_NULL(amp_torch_cast_inputs(net.session, NULL, 1, &out), "tensors");
    IS_NULL(amp_torch_cast_inputs(net.session, &x, 1, NULL), "cast");
    IS_NULL(amp_torch_begin(net.session, NULL, 0, NULL, 0, 0, &out), "loss");
    IS_NULL(amp_torch_begin(net.session, x, 0, NULL, 0, 0, NULL), "scaled");
    IS_NULL(amp_torch_begin(net.session, x, 0, NULL, 1, 0, &out), "optimizers");
    IS_NULL(amp_torch_scale(net.session, 0, NULL), "scale");
    IS_NULL(amp_torch_masters(net.session, 0, &out, 1, NULL), "count");
    IS_NULL(amp_torch_masters(net.session, 0, NULL, 1, &(size_t){ 0 }), "masters");
    IS_NULL(amp_torch_step(net.session, 0, NULL, NULL, NULL), "update");
    IS_NULL(amp_torch_step_optimizer(net.session, 0, NULL, NULL), "torch_optimizer");
    IS_NULL(amp_torch_step_begin(net.session, 0, NULL), "steps");
    ck_assert_int_eq(amp_torch_state_save(net.session, NULL, 0, NULL), AMP_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(amp_torch_state_load(net.session, NULL, 8), AMP_ERR_INVALID_ARGUMENT);
    amp_torch_tensor none[2] = { NULL, x }, cast[2] = { x, NULL };
    ck_assert_int_eq(amp_torch_cast_inputs(net.session, none, 2, cast), AMP_OK);
    ck_assert(cast[0] == NULL && torch_type(cast[1]) == AMP_FLOAT16);
    amp_torch_tensor_free(cast[1]);
    amp_torch_tensor_free(NULL);
    ck_assert_ptr_null(out);
    ck_assert_ptr_null(session);
}

TEST(sessions) {
    const amp_torch_tensor undefined = torch_undefined(), fresh = torch_full(2, 0, 1.0);
    amp_torch_tensor two[2] = { fresh, undefined };
    const uint32_t gap[2] = { 0, 2 }, zero = 0;
    amp_torch_session *session = NULL;
    amp_config config = AMP_CONFIG_INIT;
    for (amp_level level = -1; level < 9; level += 8)
        REFUSED(amp_torch_open(level, NULL, &fresh, NULL, NULL, NULL, 1, &session), AMP_ERR_INVALID_ARGUMENT, "level");
    REFUSED(amp_torch_open(AMP_O2, NULL, two, NULL, NULL, NULL, 2, &session), AMP_ERR_INVALID_ARGUMENT,
            "tensors[1] is an undefined tensor");
    two[1] = NULL;
    IS_NULL(amp_torch_open(AMP_O2, NULL, two, NULL, NULL, NULL, 2, &session), "tensors[1]");
    two[1] = x;
    REFUSED(amp_torch_open(AMP_O2, NULL, two, NULL, NULL, gap, 2, &session), AMP_ERR_INVALID_ARGUMENT,
            "no tensor has optimizer 1");
    REFUSED(amp_torch_open(AMP_O2, NULL, &y, NULL, NULL, &zero, 1, &session), AMP_ERR_INVALID_ARGUMENT,
            "tensors[0] is no floating tensor");
    REFUSED(amp_torch_open(AMP_O1, NULL, net.tensors, NULL, NULL, NULL, N_TENSORS, &session), AMP_ERR_WRONG_STATE,
            "another session");
    config.struct_size = sizeof config + 8;
    REFUSED(amp_torch_open(AMP_O2, &config, &fresh, NULL, NULL, NULL, 1, &session), AMP_ERR_ABI_MISMATCH,
            "AMP_CONFIG_INIT");
    ck_assert_int_eq(torch_type(fresh), AMP_FLOAT32);
    ck_assert_ptr_null(session);
    torch_free(fresh);
    torch_free(undefined);
}

TEST(brackets) {
    const amp_torch_tensor loss = torch_sum_of(net.params[0], 1.0);
    const uint32_t stranger = 3;
    amp_torch_tensor scaled = NULL;
    amp_action action = -1;
    REFUSED(amp_torch_end(net.session, 0, &action), AMP_ERR_WRONG_STATE, "no bracket of loss 0");
    REFUSED(amp_torch_cancel(net.session, 0), AMP_ERR_WRONG_STATE, "no bracket of loss 0");
    REFUSED(amp_torch_begin(net.session, loss, 0, &stranger, 1, 0, &scaled), AMP_ERR_INVALID_ARGUMENT,
            "no optimizer 3");
    ck_assert_int_eq(amp_torch_begin(net.session, loss, 2, NULL, 0, 0, &scaled), AMP_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(amp_torch_begin(net.session, loss, 0, NULL, 0, 1u << 30, &scaled), AMP_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(amp_torch_begin(net.session, loss, 0, NULL, 0, 0, &scaled), AMP_OK);
    const amp_torch_tensor first = scaled;
    REFUSED(amp_torch_begin(net.session, loss, 0, NULL, 0, 0, &scaled), AMP_ERR_WRONG_STATE, "loss 0 is open");
    ck_assert_int_eq(amp_torch_begin(net.session, loss, 1, NULL, 0, 0, &scaled), AMP_ERR_WRONG_STATE);
    ck_assert_ptr_eq(scaled, first);
    ck_assert(torch_value(scaled, 0) == 256.0 * torch_value(loss, 0));
    torch_backward(scaled);
    ck_assert_int_eq(amp_torch_end(net.session, 0, &action), AMP_OK);
    ck_assert_int_eq(action, AMP_STEP);
    REFUSED(amp_torch_end(net.session, 0, &action), AMP_ERR_WRONG_STATE, "has ended");
    REFUSED(amp_torch_cancel(net.session, 0), AMP_ERR_WRONG_STATE, "has ended");
    torch_free(scaled);
    torch_free(loss);
}

/* Backward that failed: what it left is gone, and the next bracket is as if it had not been. */
TEST(cancelled) {
    const amp_torch_tensor loss = torch_sum_of(net.params[0], INFINITY);
    amp_torch_tensor scaled = NULL;
    float scale = 0.0f;
    torch_clear_grad(net.params[0]);
    ck_assert_int_eq(amp_torch_begin(net.session, loss, 0, NULL, 0, 0, &scaled), AMP_OK);
    torch_backward(scaled);
    ck_assert_int_eq(amp_torch_cancel(net.session, 0), AMP_OK);
    ck_assert_ptr_null(torch_grad(net.params[0]));
    ck_assert_int_eq(amp_torch_scale(net.session, 0, &scale), AMP_OK);
    ck_assert(scale == 256.0f);
    torch_free(scaled);
    torch_free(loss);
}

static int32_t closes(void *self) {
    REFUSED(amp_torch_close(net.session), AMP_ERR_WRONG_STATE, "step");
    REFUSED(amp_torch_step(net.session, 0, nothing, NULL, NULL), AMP_ERR_WRONG_STATE, "");
    return self ? 7 : 0;
}

TEST(steps) {
    int32_t steps = -1;
    REFUSED(amp_torch_step_end(net.session, 0), AMP_ERR_WRONG_STATE, "not begun");
    REFUSED(amp_torch_step_begin(net.session, 1, &steps), AMP_ERR_INVALID_ARGUMENT, "no optimizer 1");
    ck_assert_int_eq(net_backward(&net, x, y), AMP_STEP);
    ck_assert_int_eq(amp_torch_step_begin(net.session, 0, &steps), AMP_OK);
    REFUSED(amp_torch_step_begin(net.session, 0, &steps), AMP_ERR_WRONG_STATE, "has begun");
    REFUSED(amp_torch_close(net.session), AMP_ERR_WRONG_STATE, "has begun");
    ck_assert_int_eq(amp_torch_step(net.session, 0, nothing, NULL, &steps), AMP_ERR_WRONG_STATE);
    ck_assert_int_eq(amp_torch_step_end(net.session, 0), AMP_OK);
    REFUSED(amp_torch_step_end(net.session, 0), AMP_ERR_WRONG_STATE, "has ended");
}

/* The step is over whatever the update did, and parameters are 16-bit again. */
TEST(updates_that_fail) {
    const struct {
        amp_torch_update update;
        void *self;
        const char *words;
    } cases[] = { { closes, &net, "update returned 7" },
                  { torch_throw, NULL, "the update broke" },
                  { torch_throw, &net, "torch broke" } };
    for (int i = 0; i < 3; i++) {
        int32_t stepped = -1;
        ck_assert_int_eq(net_backward(&net, x, y), AMP_STEP);
        REFUSED(amp_torch_step(net.session, 0, cases[i].update, cases[i].self, &stepped), AMP_ERR_HOST_FAILED,
                cases[i].words);
        ck_assert_int_eq(stepped, -1);
        ck_assert_int_eq(torch_type(net.params[0]), AMP_FLOAT16);
    }
    ck_assert_int_eq(net_backward(&net, x, y), AMP_STEP);
    ck_assert_int_eq(amp_torch_step(net.session, 0, closes, NULL, NULL), AMP_OK);
}

TEST(foreign_optimizers) {
    const amp_torch_optimizer other = torch_sgd(&x, 1, 0.1, 0.0), part = torch_sgd(net.params, 2, 0.1, 0.0);
    const amp_torch_optimizer lbfgs = torch_lbfgs(net.params, N_PARAMS);
    ck_assert_int_eq(net_backward(&net, x, y), AMP_STEP);
    REFUSED(amp_torch_step_optimizer(net.session, 0, other, NULL), AMP_ERR_INVALID_ARGUMENT, "0 are of the 6");
    REFUSED(amp_torch_step_optimizer(net.session, 0, part, NULL), AMP_ERR_INVALID_ARGUMENT, "2 are of the 6");
    REFUSED(amp_torch_step_optimizer(net.session, 0, lbfgs, NULL), AMP_ERR_UNSUPPORTED, "LBFGS");
    torch_optimizer_free(other);
    torch_optimizer_free(part);
    torch_optimizer_free(lbfgs);
}

/* ---- guards ---- */

static void *leave_elsewhere(void *guard) {
    REFUSED(amp_torch_leave(*(amp_torch_guard *)guard), AMP_ERR_WRONG_STATE, "this thread has not entered");
    ck_assert_int_eq(amp_torch_enter(net.session, guard), AMP_OK); /* and ends without leaving it */
    return NULL;
}

TEST(guards) {
    amp_torch_guard outer = 0, inner = 0;
    pthread_t thread;
    REFUSED(amp_torch_leave(0), AMP_ERR_WRONG_STATE, "not entered guard 0");
    ck_assert_int_eq(amp_torch_enter(net.session, &outer), AMP_OK);
    ck_assert_int_eq(amp_torch_enter(NULL, &inner), AMP_OK);
    REFUSED(amp_torch_leave(outer), AMP_ERR_WRONG_STATE, "leave it first");
    amp_torch_guard other = inner;
    ck_assert_int_eq(pthread_create(&thread, NULL, leave_elsewhere, &other), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    REFUSED(amp_torch_leave(other), AMP_ERR_WRONG_STATE, "this thread has not entered");
    ck_assert_int_eq(amp_torch_leave(inner), AMP_OK);
    REFUSED(amp_torch_leave(inner), AMP_ERR_WRONG_STATE, "or has left it");
    ck_assert_int_eq(amp_torch_leave(outer), AMP_OK);
    REFUSED(amp_torch_leave(outer), AMP_ERR_WRONG_STATE, "or has left it");
}

/* A guard keeps the model as it is, and ops under it say that the session is gone. */
TEST(guard_outlives_session) {
    const amp_torch_tensor weight = torch_param(2, 2, 1.0);
    amp_torch_session *session = NULL;
    amp_torch_guard guard = 0;
    ck_assert_int_eq(amp_torch_open(AMP_O3, NULL, &weight, NULL, NULL, NULL, 1, &session), AMP_OK);
    ck_assert_int_eq(amp_torch_enter(session, &guard), AMP_OK);
    ck_assert_int_eq(amp_torch_close(session), AMP_OK);
    ck_assert_int_eq(torch_type(weight), AMP_FLOAT16);
    ck_assert_int_eq(amp_torch_leave(guard), AMP_OK);
    ck_assert_int_eq(torch_type(weight), AMP_FLOAT32);
    torch_free(weight);
}

/* ---- states ---- */

TEST(states) {
    char other[64];
    size_t size = 0, again = 0;
    ck_assert_int_eq(amp_torch_state_save(net.session, NULL, 0, &size), AMP_OK);
    ck_assert_int_eq(amp_torch_state_save(net.session, other, 16, &again), AMP_ERR_INVALID_ARGUMENT);
    ck_assert(size > 64 && again == 0);
    char *state = malloc(size), *after = malloc(size);
    ck_assert_int_eq(amp_torch_state_save(net.session, state, size, &size), AMP_OK);
    memset(other, 'x', sizeof other);
    ck_assert_int_eq(amp_torch_state_load(net.session, other, sizeof other), AMP_ERR_BAD_FILE);
    for (size_t n = 1; n < size; n *= 2)
        ck_assert_int_eq(amp_torch_state_load(net.session, state, n), AMP_ERR_BAD_FILE);
    ck_assert_int_eq(amp_torch_state_save(net.session, after, size, &again), AMP_OK);
    ck_assert(again == size && memcmp(state, after, size) == 0);
    free(state);
    free(after);
}

/* ---- GradScaler ---- */

TEST(scalers) {
    const amp_torch_tensor param = torch_param(2, 0, 1.0), undefined = torch_undefined();
    amp_torch_scaler_state state = { 8.0, 1.0, 0.5, 2, 0 };
    amp_torch_scaler *scaler = NULL;
    amp_torch_tensor out = NULL;
    IS_NULL(amp_torch_scaler_new(NULL, NULL), "scaler");
    ck_assert_int_eq(amp_torch_scaler_new(&state, &scaler), AMP_ERR_INVALID_ARGUMENT); /* grows by 1 */
    ck_assert_ptr_null(scaler);
    ck_assert_int_eq(amp_torch_scaler_new(NULL, &scaler), AMP_OK);
    IS_NULL(amp_torch_scaler_scale(NULL, param, &out), "scaler");
    IS_NULL(amp_torch_scaler_scale(scaler, NULL, &out), "tensor");
    IS_NULL(amp_torch_scaler_scale(scaler, param, NULL), "scaled");
    REFUSED(amp_torch_scaler_scale(scaler, undefined, &out), AMP_ERR_INVALID_ARGUMENT, "undefined");
    IS_NULL(amp_torch_scaler_unscale(NULL, 0, &param, 1, NULL), "scaler");
    IS_NULL(amp_torch_scaler_unscale(scaler, 0, NULL, 1, NULL), "gradients");
    IS_NULL(amp_torch_scaler_step(NULL, 0, &param, 1, nothing, NULL, NULL), "scaler");
    IS_NULL(amp_torch_scaler_step(scaler, 0, &param, 1, NULL, NULL, NULL), "update");
    IS_NULL(amp_torch_scaler_update(NULL, 0.0), "scaler");
    IS_NULL(amp_torch_scaler_get_state(NULL, &state), "scaler");
    IS_NULL(amp_torch_scaler_get_state(scaler, NULL), "state");
    IS_NULL(amp_torch_scaler_set_state(NULL, &state), "scaler");
    IS_NULL(amp_torch_scaler_set_state(scaler, NULL), "state");
    ck_assert_int_eq(amp_torch_scaler_set_state(scaler, &(amp_torch_scaler_state){ 0 }), AMP_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(amp_torch_scaler_get_state(scaler, &state), AMP_OK);
    ck_assert(state.scale == 65536.0 && state.growth_factor == 2.0 && state.backoff_factor == 0.5 &&
              state.growth_interval == 2000 && state.growth_tracker == 0);
    amp_torch_scaler_free(NULL);
    amp_torch_scaler_free(scaler);
    torch_free(param);
    torch_free(undefined);
}

TEST(scalers_order) {
    const amp_torch_tensor gradient = torch_full(2, 0, 65536.0), infinite = torch_full(2, 0, INFINITY);
    const amp_torch_tensor half = net.tensors[FIRST_WEIGHT], both[2] = { NULL, gradient };
    amp_torch_scaler *scaler = NULL;
    int32_t found = -1, stepped = -1;
    ck_assert_int_eq(amp_torch_scaler_new(NULL, &scaler), AMP_OK);
    REFUSED(amp_torch_scaler_update(scaler, 0.0), AMP_ERR_WRONG_STATE, "No inf checks");
    REFUSED(amp_torch_scaler_unscale(scaler, 1, &half, 1, NULL), AMP_ERR_INVALID_ARGUMENT, "FP16");
    ck_assert_int_eq(amp_torch_scaler_unscale(scaler, 0, both, 2, &found), AMP_OK);
    ck_assert(found == 0 && torch_value(gradient, 1) == 1.0);
    REFUSED(amp_torch_scaler_unscale(scaler, 0, both, 2, &found), AMP_ERR_WRONG_STATE, "already");
    REFUSED(amp_torch_scaler_step(scaler, 0, both, 2, torch_throw, NULL, &stepped), AMP_ERR_HOST_FAILED, "broke");
    ck_assert_int_eq(amp_torch_scaler_step(scaler, 0, both, 2, nothing, NULL, &stepped), AMP_OK);
    ck_assert_int_eq(stepped, 1);
    REFUSED(amp_torch_scaler_step(scaler, 0, both, 2, nothing, NULL, NULL), AMP_ERR_WRONG_STATE, "already");
    ck_assert_int_eq(amp_torch_scaler_step(scaler, 7, &infinite, 1, nothing, NULL, &stepped), AMP_OK);
    ck_assert_int_eq(stepped, 0);
    REFUSED(amp_torch_scaler_update(scaler, -1.0), AMP_ERR_INVALID_ARGUMENT, "scale");
    amp_torch_scaler_free(scaler);
    torch_free(gradient);
    torch_free(infinite);
}

/* ---- handles ---- */

#define IS_GONE(call, what) REFUSED(call, AMP_ERR_INVALID_ARGUMENT, "no longer one: it ends with " what)

static void all_refuse_session(amp_torch_session *gone) {
    amp_torch_guard guard = 0;
    amp_torch_tensor out = NULL;
    amp_action action;
    size_t size = 0;
    int32_t steps;
    float scale;
    IS_GONE(amp_torch_close(gone), "amp_torch_close");
    IS_GONE(amp_torch_enter(gone, &guard), "amp_torch_close");
#define GONE_SESSION(call) IS_GONE(call, "amp_torch_close");
    SESSION_CALLS(GONE_SESSION, gone)
    ck_assert_ptr_null(amp_torch_context(gone));
    ck_assert(guard == 0 && out == NULL);
}

/* Closed, and others opened in its place, as memory is given again; a number that never was one; another kind's. */
TEST(sessions_that_are_gone) {
    const amp_torch_tensor weight = torch_param(2, 2, 1.0);
    amp_torch_session *gone[2] = { NULL, NULL }, *session = NULL;
    amp_torch_scaler *scaler = NULL;
    char memory[4096] = "";
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(amp_torch_open(AMP_O3, NULL, &weight, NULL, NULL, NULL, 1, &gone[i]), AMP_OK);
        ck_assert_ptr_nonnull(amp_torch_context(gone[i]));
        ck_assert_int_eq(amp_torch_close(gone[i]), AMP_OK);
    }
    ck_assert_int_eq(amp_torch_open(AMP_O3, NULL, &weight, NULL, NULL, NULL, 1, &session), AMP_OK);
    ck_assert_int_eq(amp_torch_scaler_new(NULL, &scaler), AMP_OK);
    for (int i = 0; i < 2; i++) all_refuse_session(gone[i]);
    all_refuse_session((amp_torch_session *)(void *)memory);
    all_refuse_session((amp_torch_session *)(void *)scaler);
    ck_assert_int_eq(torch_type(weight), AMP_FLOAT16); /* the one that is open has heard nothing of it */
    ck_assert_int_eq(amp_torch_close(session), AMP_OK);
    ck_assert_int_eq(torch_type(weight), AMP_FLOAT32);
    ck_assert_int_eq(amp_torch_scaler_free(scaler), AMP_OK);
    torch_free(weight);
}

static void all_refuse_scaler(amp_torch_scaler *gone) {
    amp_torch_scaler_state state = { 8.0, 2.0, 0.5, 2, 0 };
    amp_torch_tensor out = NULL;
    IS_GONE(amp_torch_scaler_free(gone), "amp_torch_scaler_free");
    IS_GONE(amp_torch_scaler_scale(gone, x, &out), "amp_torch_scaler_free");
    IS_GONE(amp_torch_scaler_unscale(gone, 0, &x, 1, NULL), "amp_torch_scaler_free");
    IS_GONE(amp_torch_scaler_step(gone, 0, &x, 1, nothing, NULL, NULL), "amp_torch_scaler_free");
    IS_GONE(amp_torch_scaler_update(gone, 0.0), "amp_torch_scaler_free");
    IS_GONE(amp_torch_scaler_get_state(gone, &state), "amp_torch_scaler_free");
    IS_GONE(amp_torch_scaler_set_state(gone, &state), "amp_torch_scaler_free");
    ck_assert(out == NULL && state.scale == 8.0);
}

static amp_torch_scaler *ticking;

static int32_t frees(void *self) {
    (void)self;
    REFUSED(amp_torch_scaler_free(ticking), AMP_ERR_WRONG_STATE, "its step is running");
    return 0;
}

TEST(scalers_that_are_gone) {
    const amp_torch_tensor gradient = torch_full(2, 0, 1.0);
    amp_torch_scaler *gone = NULL;
    int32_t stepped = 0;
    ck_assert_int_eq(amp_torch_scaler_new(NULL, &gone), AMP_OK);
    ck_assert_int_eq(amp_torch_scaler_free(gone), AMP_OK);
    ck_assert_int_eq(amp_torch_scaler_new(NULL, &ticking), AMP_OK);
    all_refuse_scaler(gone);
    all_refuse_scaler((amp_torch_scaler *)(void *)net.session);
    REFUSED(amp_torch_scaler_update(ticking, NAN), AMP_ERR_INVALID_ARGUMENT, "scale");
    ck_assert_int_eq(amp_torch_scaler_step(ticking, 0, &gradient, 1, frees, NULL, &stepped), AMP_OK);
    ck_assert_int_eq(stepped, 1);
    REFUSED(amp_torch_scaler_step(ticking, 1, &gradient, 1, torch_throw, NULL, NULL), AMP_ERR_HOST_FAILED, "broke");
    ck_assert_int_eq(amp_torch_scaler_free(ticking), AMP_OK); /* the update that threw is over */
    ck_assert_int_eq(amp_torch_scaler_free(NULL), AMP_OK);
    torch_free(gradient);
}

/* A finalizer's thread. */
static void *closes_elsewhere(void *status) {
    *(amp_status *)status = amp_torch_close(net.session);
    return NULL;
}

static int32_t meanwhile(void *status) {
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, closes_elsewhere, status), 0);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    return 0;
}

TEST(closed_by_another_thread) {
    const amp_torch_tensor weight = torch_param(2, 2, 1.0);
    amp_torch_session *const own = net.session;
    amp_status status[2] = { AMP_OK, AMP_OK };
    pthread_t threads[2];
    ck_assert_int_eq(net_backward(&net, x, y), AMP_STEP);
    ck_assert_int_eq(amp_torch_step(net.session, 0, meanwhile, status, NULL), AMP_OK);
    ck_assert_int_eq(status[0], AMP_ERR_WRONG_STATE);
    ck_assert_int_eq(amp_torch_open(AMP_O3, NULL, &weight, NULL, NULL, NULL, 1, &net.session), AMP_OK);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, closes_elsewhere, &status[i]), 0);
    for (int i = 0; i < 2; i++) ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    ck_assert_msg((status[0] == AMP_OK) != (status[1] == AMP_OK), "one of two closes it");
    ck_assert_int_eq(torch_type(weight), AMP_FLOAT32);
    net.session = own;
    torch_free(weight);
}

int main(void) { return suite_run_here(NULL); }
