/* SPDX-License-Identifier: Apache-2.0 */
/*
 * dlopen_host [LIBRARY]: a host that is not linked with libamp. It knows amp.h alone, opens libamp.so.N, looks up one
 * symbol, and trains y = W x + b under O1: its `linear` runs in fp16, and `misfit`, a function of its own that no list
 * knows, in FP32, because it registers it so.
 *
 * It has no tape: each function notes what it was called with, backward() is written by hand and seeded with the loss
 * scale. A tensor of type fp16 keeps floats that are rounded to fp16.
 */
#include <amp.h>
#include <amp_api.h>
#include <amp_diagnostics.h>

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IN = 4, OUT = 2, BATCH = 16, BATCHES = 16, EPOCHS = 12 };
#define RATE 0.2F
#define GOOD_LOSS 1e-3F

/* ---- the host: tensors and a table of functions ---- */

struct tensor {
    int64_t shape[2];
    amp_dtype type;
    float *data;
    struct tensor *grad; /* of a parameter; always there */
};

static int64_t size_of(const struct tensor *t) { return t->shape[0] * t->shape[1]; }

/* To the nearest fp16: 11 bits, fewer below 2^-14, infinity above 65504. */
static float to_half(float value) {
    const int exponent = isfinite(value) ? (int)fmaxf(logbf(value), -14.0F) - 10 : 0; /* of the last bit */
    const float rounded = ldexpf(rintf(ldexpf(value, -exponent)), exponent);
    return fabsf(rounded) > 65504.0F ? copysignf(INFINITY, value) : rounded;
}

static float to_type(amp_dtype type, float value) { return type == AMP_FLOAT16 ? to_half(value) : value; }

static void clear(struct tensor *t) { memset(t->data, 0, (size_t)size_of(t) * sizeof *t->data); }

static struct tensor *new_tensor(int64_t rows, int64_t cols, amp_dtype type) {
    struct tensor *t = malloc(sizeof *t);
    float *data = calloc((size_t)(rows * cols), sizeof *data);
    if (!t || !data) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    *t = (struct tensor){ .shape = { rows, cols }, .type = type, .data = data };
    return t;
}

static void free_tensor(struct tensor *t) {
    if (!t) return;
    free_tensor(t->grad);
    free(t->data);
    free(t);
}

/* What the last forward was called with; under O1 these are casts, which libamp keeps until the step. */
static struct {
    const struct tensor *x, *w, *prediction, *target;
} noted;

/* x [n, in], w [out, in], b [1, out] -> [n, out] of the type of x */
static struct tensor *linear(struct tensor *x, struct tensor *w, struct tensor *b) {
    const int64_t in = x->shape[1], out = w->shape[0];
    struct tensor *y = new_tensor(x->shape[0], out, x->type);
    for (int64_t at = 0; at < size_of(y); at++) {
        float sum = b->data[at % out];
        for (int64_t k = 0; k < in; k++) sum += x->data[at / out * in + k] * w->data[at % out * in + k];
        y->data[at] = to_type(y->type, sum);
    }
    noted.x = x;
    noted.w = w;
    return y;
}

/* The mean of the squared distances. */
static struct tensor *misfit(struct tensor *prediction, struct tensor *target) {
    struct tensor *loss = new_tensor(1, 1, prediction->type);
    for (int64_t i = 0; i < size_of(prediction); i++) {
        const float d = prediction->data[i] - target->data[i];
        loss->data[0] = to_type(loss->type, loss->data[0] + d * d / (float)size_of(prediction));
    }
    noted.prediction = prediction;
    noted.target = target;
    return loss;
}

static struct {
    struct tensor *(*linear)(struct tensor *x, struct tensor *w, struct tensor *b);
    struct tensor *(*misfit)(struct tensor *prediction, struct tensor *target);
} functions = { linear, misfit };

/* Adds seed * the gradients of misfit(linear(x, w, b)) to those of w and b; those of linear have its type. */
static void backward(struct tensor *w, struct tensor *b, float seed) {
    const struct tensor *x = noted.x, *y = noted.prediction;
    const int64_t in = x->shape[1], out = y->shape[1];
    for (int64_t at = 0; at < size_of(y); at++) {
        const float d = to_type(noted.w->type,
                                seed * 2.0F * (y->data[at] - noted.target->data[at]) / (float)size_of(y));
        for (int64_t k = 0; k < in; k++) w->grad->data[at % out * in + k] += d * x->data[at / out * in + k];
        b->grad->data[at % out] += d;
    }
}

struct descent {
    struct tensor *params[2];
    int32_t (*step)(struct descent *self);
};

static int32_t step(struct descent *self) {
    for (int p = 0; p < 2; p++)
        for (int64_t i = 0; i < size_of(self->params[p]); i++)
            self->params[p]->data[i] -= RATE * self->params[p]->grad->data[i];
    return 1;
}

/* ---- what libamp asks of it: five hooks are enough for O1 ---- */

static amp_status view(void *self, void *handle, amp_tensor_view *out) {
    struct tensor *t = handle;
    (void)self;
    out->data = t->data;
    out->device.type = 1; /* CPU */
    out->ndim = 2;
    out->dtype.code = 2; /* float; of 32 bits, whatever values it holds */
    out->dtype.bits = 32;
    out->dtype.lanes = 1;
    out->shape = t->shape;
    return AMP_OK;
}

static amp_dtype dtype(void *self, void *handle) { return (void)self, ((struct tensor *)handle)->type; }

static void release(void *self, void *handle) { (void)self, free_tensor(handle); }

static amp_status cast(void *self, void *handle, amp_dtype to, void **out) {
    const struct tensor *t = handle;
    struct tensor *copy = new_tensor(t->shape[0], t->shape[1], to);
    (void)self;
    for (int64_t i = 0; i < size_of(t); i++) copy->data[i] = to_type(to, t->data[i]);
    *out = copy;
    return AMP_OK;
}

static amp_status grad(void *self, void *handle, void **out) {
    (void)self;
    *out = ((struct tensor *)handle)->grad;
    return AMP_OK;
}

/* ---- libamp, opened and wired ---- */

static const amp_api *amp;

static void check(amp_status status) {
    if (status == AMP_OK) return;
    fprintf(stderr, "%s\n", amp->last_error());
    exit(1);
}

/* The N of libamp.so.N comes from the header that this was compiled with. */
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

static const amp_api *open_libamp(const char *path) {
    void *library = dlopen(path ? path : "libamp.so." TEXT(AMP_SOVERSION), RTLD_NOW);
    union { /* ISO C has no cast from an object's pointer to a function's */
        void *object;
        const amp_api *(*function)(uint32_t version);
    } get_api = { library ? dlsym(library, "amp_get_api") : NULL };
    if (!get_api.object) fprintf(stderr, "%s\n", dlerror());
    return get_api.object ? get_api.function(AMP_API_VERSION) : NULL;
}

static amp_op op(const char *name, const char *schema, void *slot) {
    amp_op described = AMP_OP_INIT;
    described.name = name;
    described.schema = schema;
    described.slot = slot;
    return described;
}

static void train(amp_optimizer *optimizer, struct descent *descent, float *loss) {
    struct tensor *x = new_tensor(BATCH, IN, AMP_FLOAT32), *y = new_tensor(BATCH, OUT, AMP_FLOAT32), *guess, *error;
    *loss = 0.0F;
    for (int n = 0; n < BATCHES; n++) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        for (int i = 0; i < BATCH * IN; i++) x->data[i] = (float)rand() / (float)RAND_MAX * 2.0F - 1.0F;
        for (int i = 0; i < BATCH; i++) { /* what is to be found */
            y->data[i * OUT] = 0.5F * x->data[i * IN] + x->data[i * IN + 1] + 3.0F;
            y->data[i * OUT + 1] = x->data[i * IN + 2] - 0.25F * x->data[i * IN + 3] - 2.0F;
        }
        guess = functions.linear(x, descent->params[0], descent->params[1]);
        error = functions.misfit(guess, y);
        *loss += error->data[0] / BATCHES;
        for (int p = 0; p < 2; p++) clear(descent->params[p]->grad);
        check(amp->scale_loss_begin(optimizer, NULL, &scaled));
        backward(descent->params[0], descent->params[1], amp->seed_factor(&scaled));
        check(amp->scale_loss_end(&scaled));
        descent->step(descent);
        free_tensor(guess);
        free_tensor(error);
    }
    free_tensor(x);
    free_tensor(y);
}

static void print_counters(amp_context *context) {
    amp_op_stats stats[2] = { AMP_OP_STATS_INIT, AMP_OP_STATS_INIT };
    amp_record record = AMP_RECORD_INIT;
    size_t n;
    check(amp->get_op_stats(context, stats, 2, &n));
    for (size_t i = 0; i < n; i++)
        printf("%-7s %s, %d calls, %d casts\n", stats[i].name, stats[i].last_target == AMP_FLOAT16 ? "fp16" : "fp32",
               (int)stats[i].calls, (int)stats[i].casts);
    check(amp->get_record(context, 0, &record));
    printf("loss scale %g, %d of %d steps skipped\n", (double)record.scale_after, (int)record.skipped,
           (int)record.brackets);
}

int main(int argc, char **argv) {
    struct descent descent = { { new_tensor(OUT, IN, AMP_FLOAT32), new_tensor(1, OUT, AMP_FLOAT32) }, step };
    amp_op ops[] = { op("linear", "linear(Tensor x, Tensor w, Tensor b) -> Tensor", &functions.linear),
                     op("misfit", "misfit(Tensor prediction, Tensor target) -> Tensor", &functions.misfit) };
    amp_op steps[] = { op("step", "step(pointer self) -> int32", &descent.step) };
    amp_host host = { .struct_size = sizeof host, .view = view, .dtype = dtype, .release = release, .cast = cast,
                      .grad = grad };
    amp_model model = { .struct_size = sizeof model, .host = &host, .ops = ops, .n_ops = 2 };
    amp_optimizer optimizer = { .struct_size = sizeof optimizer, .host = &host, .self = &descent, .n_params = 2,
                                .params = (void *const *)descent.params, .steps = steps, .n_steps = 1 };
    float loss = INFINITY;
    if (!(amp = open_libamp(argc > 1 ? argv[1] : NULL))) return 1;
    for (int p = 0; p < 2; p++)
        descent.params[p]->grad = new_tensor(descent.params[p]->shape[0], descent.params[p]->shape[1], AMP_FLOAT32);
    check(amp->register_op(&model, "misfit", AMP_FP32));
    check(amp->initialize(&model, &optimizer, AMP_O1));
    for (int epoch = 1; epoch <= EPOCHS; epoch++) {
        train(&optimizer, &descent, &loss);
        printf("epoch %2d: loss %g\n", epoch, (double)loss);
    }
    print_counters(model.amp);
    check(amp->shutdown(model.amp));
    for (int p = 0; p < 2; p++) free_tensor(descent.params[p]);
    return loss < GOOD_LOSS ? 0 : 1;
}
