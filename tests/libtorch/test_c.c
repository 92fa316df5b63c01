/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp_torch.h from C: the digits at each level, checkpoints, masters, and the traces of Python's GradScaler.
 * usage: test_libtorch_c DIGITS.csv TRACE..., made by trace.py.
 */
#include "../support/levels.h"
#include "digits_net.h"
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char **files; /* argv + 1 */
static int n_files;

/* ---- digits ---- */

enum { IMAGES = 1797, TEST_IMAGES = 597, BATCH = 32, EPOCHS = 4 };

static void read_digits(amp_torch_tensor *images, amp_torch_tensor *labels) {
    static float pixels[IMAGES][PIXELS];
    static int64_t digits[IMAGES];
    FILE *file = fopen(files[0], "r");
    ck_assert_ptr_nonnull(file);
    for (int i = 0; i < IMAGES; i++) {
        for (int j = 0; j < PIXELS; j++) {
            ck_assert_int_eq(fscanf(file, "%f,", &pixels[i][j]), 1);
            pixels[i][j] /= 16.0f;
        }
        ck_assert_int_eq(fscanf(file, "%ld", &digits[i]), 1);
    }
    fclose(file);
    *images = torch_floats(&pixels[0][0], IMAGES, PIXELS);
    *labels = torch_integers(digits, IMAGES);
}

/* The i-th batch of an epoch, of the images behind the tests'; 1201 is a prime number. */
static void batch_rows(int64_t *rows, int epoch, int i) {
    for (int j = 0; j < BATCH; j++)
        rows[j] = TEST_IMAGES + (int64_t)(i * BATCH + j) * (7 + epoch) % (IMAGES - TEST_IMAGES);
}

static int train(const struct net *net, amp_torch_optimizer sgd, amp_torch_tensor images, amp_torch_tensor labels) {
    int64_t rows[BATCH];
    int steps = 0;
    for (int epoch = 0; epoch < EPOCHS; epoch++)
        for (int i = 0; i < (IMAGES - TEST_IMAGES) / BATCH; i++) {
            batch_rows(rows, epoch, i);
            const amp_torch_tensor x = torch_rows(images, rows, BATCH), y = torch_rows(labels, rows, BATCH);
            int32_t stepped = -1;
            const amp_action action = net_backward(net, x, y);
            ck_assert_int_eq(amp_torch_step_optimizer(net->session, 0, sgd, &stepped), AMP_OK);
            ck_assert_int_eq(stepped, action == AMP_STEP);
            steps += stepped;
            torch_free(x);
            torch_free(y);
        }
    return steps;
}

static double accuracy(const struct net *net, amp_torch_tensor images, amp_torch_tensor labels) {
    int64_t rows[TEST_IMAGES];
    for (int i = 0; i < TEST_IMAGES; i++) rows[i] = i;
    const amp_torch_tensor x = torch_rows(images, rows, TEST_IMAGES), y = torch_rows(labels, rows, TEST_IMAGES);
    const amp_torch_tensor logits = net_forward(net, x, 0);
    const double found = (double)torch_correct(logits, y) / TEST_IMAGES;
    const amp_torch_tensor all[] = { x, y, logits };
    for (int i = 0; i < 3; i++) torch_free(all[i]);
    return found;
}

/* FP32 reaches 94.6 % of images that other people wrote; chance is 10 %, three points are other machines'. */
TEST_RANGE(digits, 1, N_EACH_LEVEL + 1) {
    amp_torch_tensor images = NULL, labels = NULL;
    struct net net = net_new(3);
    const amp_dtype low = level_retypes(_i) ? find_level_row(_i).low : AMP_FLOAT32;
    read_digits(&images, &labels);
    const amp_torch_optimizer sgd = torch_sgd(net.params, N_PARAMS, 0.05, 0.9);
    ck_assert_int_eq(net_open(&net, _i, NULL), AMP_OK);
    ck_assert_int_eq(torch_type(net.tensors[FIRST_WEIGHT]), low);
    ck_assert_int_eq(torch_type(net.tensors[NORM]), find_level_row(_i).keeps_batch_norm ? AMP_FLOAT32 : low);
    const int steps = train(&net, sgd, images, labels);
    const double found = accuracy(&net, images, labels);
    ck_assert_msg(found > 0.915 && steps > EPOCHS * 37 - 12, "O%d: %.4f after %d steps", _i - AMP_O0, found, steps);
    torch_optimizer_free(sgd);
    torch_free(images);
    torch_free(labels);
    net_free(&net);
}

/* ---- casts ---- */

static amp_dtype type_of_linear(const struct net *net, amp_torch_tensor x) {
    amp_torch_tensor low = NULL;
    ck_assert_int_eq(amp_torch_cast_inputs(net->session, &x, 1, &low), AMP_OK);
    const amp_torch_tensor out = torch_linear(low, net->tensors[FIRST_WEIGHT], net->tensors[FIRST_BIAS]);
    const amp_dtype type = torch_type(out);
    torch_free(low);
    torch_free(out);
    return type;
}

/* Ops are cast between enter and leave, where nobody's policy is entered inside they are not; inputs always are. */
TEST_RANGE(casts, 1, N_EACH_LEVEL + 1) {
    struct net net = net_new(4);
    const amp_torch_tensor x = torch_full(2, PIXELS, 0.5);
    const amp_dtype low = _i == AMP_O0 ? AMP_FLOAT32 : find_level_row(_i).low;
    const amp_dtype outside = level_casts_ops(_i) ? AMP_FLOAT32 : low;
    amp_torch_guard guard = 0, off = 0;
    ck_assert_int_eq(net_open(&net, _i, NULL), AMP_OK);
    ck_assert_int_eq(type_of_linear(&net, x), outside);
    ck_assert_int_eq(amp_torch_enter(net.session, &guard), AMP_OK);
    ck_assert_int_eq(type_of_linear(&net, x), low);
    ck_assert_int_eq(amp_torch_enter(NULL, &off), AMP_OK);
    ck_assert_int_eq(type_of_linear(&net, x), outside);
    ck_assert_int_eq(amp_torch_leave(off), AMP_OK);
    ck_assert_int_eq(type_of_linear(&net, x), low);
    ck_assert_int_eq(amp_torch_leave(guard), AMP_OK);
    ck_assert_int_eq(type_of_linear(&net, x), outside);
    const amp_torch_tensor logits = net_forward(&net, x, 1);
    ck_assert_int_eq(torch_type(logits), AMP_FLOAT32);
    torch_free(logits);
    torch_free(x);
    net_free(&net);
}

/* ---- checkpoints, masters, steps ---- */

struct batch {
    amp_torch_tensor x, y;
};

static struct batch batch_new(void) {
    int64_t labels[BATCH];
    for (int i = 0; i < BATCH; i++) labels[i] = i % CLASSES;
    return (struct batch){ torch_param(BATCH, PIXELS, 1.0), torch_integers(labels, BATCH) };
}

static void batch_free(struct batch batch) {
    torch_free(batch.x);
    torch_free(batch.y);
}

/* The program's own optimizer: each parameter minus a tenth of its gradient. */
static int32_t descend(void *self) {
    const struct net *net = self;
    for (int i = 0; i < N_PARAMS; i++) {
        const amp_torch_tensor gradient = torch_grad(net->params[i]);
        if (torch_type(net->params[i]) != torch_type(gradient)) return 1;
        torch_add_(net->params[i], gradient, -0.1);
        torch_free(gradient);
    }
    return 0;
}

static void iterate(struct net *net, struct batch batch) {
    int32_t stepped = -1;
    ck_assert_int_eq(net_backward(net, batch.x, batch.y), AMP_STEP);
    ck_assert_int_eq(amp_torch_step(net->session, 0, descend, net, &stepped), AMP_OK);
    ck_assert_int_eq(stepped, 1);
}

static size_t saved(const struct net *net, char **bytes) {
    size_t size = 0;
    ck_assert_int_eq(amp_torch_state_save(net->session, NULL, 0, &size), AMP_OK);
    *bytes = malloc(size);
    ck_assert_int_eq(amp_torch_state_save(net->session, *bytes, size, &size), AMP_OK);
    return size;
}

static int has_word(const char *bytes, size_t size, const char *word) {
    for (size_t i = 0; i + strlen(word) <= size; i++)
        if (memcmp(bytes + i, word, strlen(word)) == 0) return 1;
    return 0;
}

static int same_states(const struct net *a, const struct net *b) {
    char *one = NULL, *two = NULL;
    const size_t n = saved(a, &one), m = saved(b, &two);
    const int same = n == m && memcmp(one, two, n) == 0;
    free(one);
    free(two);
    return same;
}

/* A state that another session takes up goes on to the bit. */
TEST_RANGE(states, 1, N_EACH_LEVEL + 1) {
    struct net first = net_new(5), second = net_new(6);
    const struct batch batch = batch_new();
    amp_config config = AMP_CONFIG_INIT;
    char *bytes = NULL;
    if (level_is_dynamic(_i)) config.init_scale = 256.0f, config.window = 2;
    ck_assert_int_eq(net_open(&first, _i, &config), AMP_OK);
    for (int i = 0; i < 3; i++) iterate(&first, batch);
    const size_t size = saved(&first, &bytes);
    ck_assert_int_eq(has_word(bytes, size, "first.weight") && has_word(bytes, size, "second.bias"), 1);
    ck_assert_int_eq(net_open(&second, _i, &config), AMP_OK);
    ck_assert_int_eq(same_states(&first, &second), 0);
    ck_assert_int_eq(amp_torch_state_load(second.session, bytes, size), AMP_OK);
    for (int i = 0; i < 3; i++) { /* the running statistics are the model's */
        iterate(&first, batch);
        iterate(&second, batch);
    }
    ck_assert_int_eq(same_states(&first, &second), 1);
    for (int i = 0; i < N_PARAMS; i++) ck_assert_int_eq(torch_same(first.params[i], second.params[i]), 1);
    float scale = 0.0f;
    ck_assert_int_eq(amp_torch_scale(second.session, 0, &scale), AMP_OK);
    ck_assert(scale == (level_is_dynamic(_i) ? 2048.0f : 1.0f)); /* grown three times, once of them before */
    free(bytes);
    batch_free(batch);
    net_free(&first);
    net_free(&second);
}

/* Masters are what the optimizer updates: FP32 where the level has them, and clipped there. */
TEST_RANGE(masters, 1, N_EACH_LEVEL + 1) {
    struct net net = net_new(7);
    const struct batch batch = batch_new();
    amp_torch_tensor shown[N_PARAMS] = { NULL };
    size_t count = 0;
    double norm = 0.0, squares = 0.0;
    int32_t steps = 0;
    ck_assert_int_eq(net_open(&net, _i, NULL), AMP_OK);
    ck_assert_int_eq(net_backward(&net, batch.x, batch.y), AMP_STEP);
    ck_assert_int_eq(amp_torch_clip_grad_norm(net.session, 0, 1e-3, &norm), AMP_OK);
    ck_assert_double_gt(norm, 1e-2);
    ck_assert_int_eq(amp_torch_masters(net.session, 0, NULL, 0, &count), AMP_OK);
    ck_assert_uint_eq(count, N_PARAMS);
    ck_assert_int_eq(amp_torch_masters(net.session, 0, shown, N_PARAMS, &count), AMP_OK);
    for (int i = 0; i < N_PARAMS; i++) {
        const amp_torch_tensor gradient = torch_grad(shown[i]);
        const amp_dtype type = level_loses_fp32(_i) ? find_level_row(_i).low : AMP_FLOAT32;
        ck_assert_int_eq(torch_type(shown[i]), type);
        for (int64_t j = 0; j < torch_numel(gradient); j++) squares += pow(torch_value(gradient, j), 2.0);
        torch_free(gradient);
        amp_torch_tensor_free(shown[i]);
    }
    ck_assert_double_eq_tol(sqrt(squares), 1e-3, 1e-5); /* O3 rounds them to fp16's multiples of 2^-24 */
    const double before = torch_value(net.params[0], 0);
    ck_assert_int_eq(amp_torch_step_begin(net.session, 0, &steps), AMP_OK);
    ck_assert_int_eq(steps, 1);
    ck_assert_int_eq(torch_type(net.params[0]), level_loses_fp32(_i) ? find_level_row(_i).low : AMP_FLOAT32);
    torch_scale_(net.params[0], 0.5);
    ck_assert_int_eq(amp_torch_step_end(net.session, 0), AMP_OK);
    ck_assert_double_eq_tol(torch_value(net.params[0], 0), 0.5 * before, 0x1p-8 * fabs(before)); /* bfloat16 */
    batch_free(batch);
    net_free(&net);
}

/* amp_config.enabled: everything is passed through. */
TEST(disabled) {
    struct net net = net_new(7);
    const struct batch batch = batch_new();
    amp_config config = AMP_CONFIG_INIT;
    amp_torch_tensor cast = NULL;
    config.enabled = AMP_OFF;
    ck_assert_int_eq(net_open(&net, AMP_O2, &config), AMP_OK);
    ck_assert_int_eq(amp_torch_cast_inputs(net.session, &batch.x, 1, &cast), AMP_OK);
    ck_assert(torch_type(cast) == AMP_FLOAT32 && torch_type(net.params[0]) == AMP_FLOAT32);
    iterate(&net, batch);
    amp_torch_tensor_free(cast);
    batch_free(batch);
    net_free(&net);
}

/* Two optimizers, two losses: an overflow of one skips its own. */
TEST(several) {
    amp_torch_tensor params[3] = { torch_param(2, 2, 1.0), torch_param(2, 2, 1.0), torch_full(2, 2, 1.0) };
    const uint32_t optimizers[3] = { 1, 0, AMP_TORCH_NOBODY };
    amp_config config = AMP_CONFIG_INIT;
    amp_torch_session *session = NULL;
    config.num_losses = 2;
    config.init_scale = 256.0f; /* the losses are fp16, and so is what the scale goes into */
    ck_assert_int_eq(amp_torch_open(AMP_O2, &config, params, NULL, NULL, optimizers, 3, &session), AMP_OK);
    for (int i = 0; i < 3; i++) ck_assert_int_eq(torch_type(params[i]), AMP_FLOAT16);
    amp_torch_tensor scaled[2] = { NULL };
    for (uint32_t i = 0; i < 2; i++) { /* both are open at once */
        const amp_torch_tensor loss = torch_sum_of(params[i], i ? INFINITY : 0x1p-8);
        ck_assert_int_eq(amp_torch_begin(session, loss, i, &optimizers[i], 1, 0, &scaled[i]), AMP_OK);
        torch_free(loss);
    }
    for (uint32_t i = 0; i < 2; i++) {
        amp_action action = -1;
        torch_backward(scaled[i]);
        ck_assert_int_eq(amp_torch_end(session, i, &action), AMP_OK);
        ck_assert_int_eq(action, i ? AMP_SKIP : AMP_STEP);
        torch_free(scaled[i]);
    }
    for (uint32_t i = 0; i < 2; i++) {
        int32_t steps = -1;
        ck_assert_int_eq(amp_torch_step_begin(session, optimizers[i], &steps), AMP_OK);
        ck_assert_int_eq(steps, i ? 0 : 1);
        ck_assert_int_eq(amp_torch_step_end(session, optimizers[i]), AMP_OK);
    }
    float scales[2] = { 0.0f, 0.0f };
    for (uint32_t i = 0; i < 2; i++) ck_assert_int_eq(amp_torch_scale(session, i, &scales[i]), AMP_OK);
    ck_assert(scales[0] == 256.0f && scales[1] == 128.0f);
    ck_assert_int_eq(amp_torch_close(session), AMP_OK);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(torch_type(params[i]), AMP_FLOAT32);
        torch_free(params[i]);
    }
}

/* ---- Python's GradScaler ---- */

struct follower {
    amp_torch_scaler *scaler;
    amp_torch_tensor params[2];
    int steps;
};

/* SGD with a rate of 1. */
static int32_t subtract_gradient(void *self) {
    const amp_torch_tensor param = self, gradient = torch_grad(param);
    torch_add_(param, gradient, -1.0);
    torch_free(gradient);
    return 0;
}

static void follow_step(struct follower *follower, int which, double value, double expected) {
    const amp_torch_tensor param = follower->params[which];
    amp_torch_tensor gradient = torch_grad(param);
    int32_t stepped = -1;
    ck_assert_int_eq(amp_torch_scaler_step(follower->scaler, (uint64_t)which, &gradient, 1, subtract_gradient, param,
                                           &stepped), AMP_OK);
    const double found = torch_value(gradient, 0);
    ck_assert_int_eq(stepped, isfinite(found) != 0);
    ck_assert(torch_value(param, 0) == value && (found == expected || (isnan(found) && isnan(expected))));
    torch_free(gradient);
    torch_clear_grad(param);
    follower->steps++;
}

static void follow_backward(struct follower *follower, int which, double factor) {
    const amp_torch_tensor loss = torch_sum_of(follower->params[which], factor);
    amp_torch_tensor scaled = NULL;
    ck_assert_int_eq(amp_torch_scaler_scale(follower->scaler, loss, &scaled), AMP_OK);
    torch_backward(scaled);
    torch_free(scaled);
    torch_free(loss);
}

static void check_scale(struct follower *follower, double scale, int64_t tracker) {
    amp_torch_scaler_state state = { 0 };
    ck_assert_int_eq(amp_torch_scaler_get_state(follower->scaler, &state), AMP_OK);
    ck_assert_msg(state.scale == scale && state.growth_tracker == tracker, "step %d: %g, %ld; Python has %g, %ld",
                  follower->steps, state.scale, (long)state.growth_tracker, scale, (long)tracker);
}

/* A line of the trace: trace.py has the words. */
static void follow(struct follower *follower, const char *line) {
    double a = 0.0, b = 0.0;
    int which = 0;
    amp_torch_scaler_state state = { 0 };
    if (sscanf(line, "new %lf %lf %lf %ld", &state.scale, &state.growth_factor, &state.backoff_factor,
               &state.growth_interval) == 4) {
        ck_assert_int_eq(amp_torch_scaler_new(&state, &follower->scaler), AMP_OK);
    } else if (sscanf(line, "backward %d %lf", &which, &a) == 2) {
        follow_backward(follower, which, a);
    } else if (sscanf(line, "unscale %d", &which) == 1) {
        const amp_torch_tensor gradient = torch_grad(follower->params[which]);
        ck_assert_int_eq(amp_torch_scaler_unscale(follower->scaler, (uint64_t)which, &gradient, 1, NULL), AMP_OK);
        torch_free(gradient);
    } else if (sscanf(line, "step %d %lf %lf", &which, &a, &b) == 3) {
        follow_step(follower, which, a, b);
    } else if (sscanf(line, "update %lf %d", &a, &which) == 2) {
        ck_assert_int_eq(amp_torch_scaler_update(follower->scaler, 0.0), AMP_OK);
        check_scale(follower, a, which);
    } else {
        ck_assert_int_eq(sscanf(line, "set %lf", &a), 1);
        ck_assert_int_eq(amp_torch_scaler_update(follower->scaler, a), AMP_OK);
    }
}

TEST(grad_scaler_traces) {
    ck_assert_int_gt(n_files, 1);
    for (int i = 1; i < n_files; i++) {
        struct follower follower = { NULL, { torch_full(3, 0, 1.0), torch_full(2, 0, 1.0) }, 0 };
        char line[256];
        FILE *file = fopen(files[i], "r");
        ck_assert_ptr_nonnull(file);
        for (int j = 0; j < 2; j++) torch_require_grad(follower.params[j]);
        while (fgets(line, sizeof line, file)) follow(&follower, line);
        ck_assert_int_gt(follower.steps, 100);
        fclose(file);
        amp_torch_scaler_free(follower.scaler);
        for (int j = 0; j < 2; j++) torch_free(follower.params[j]);
    }
}

int main(int argc, char **argv) {
    files = argv + 1;
    n_files = argc - 1;
    return suite_run_here(NULL); /* a process for each would copy torch's pages each time */
}
