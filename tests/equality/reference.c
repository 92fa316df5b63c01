/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

#include <string.h>

/* ---- types ---- */

/* To the nearest value of the type, ties to even: by hand, on the numbers. */
static float rounded(enum type type, float x) {
    static const struct { int digits, least; float largest; } types[] = {
        [FP32] = { 24, -149, 0 }, [FP16] = { 11, -24, 65504.0f }, [BF16] = { 8, -133, 3.38953139e38f } };
    if (type == FP32 || x == 0.0f || !isfinite(x)) return x;
    int exponent;
    (void)frexpf(x, &exponent);
    int unit = exponent - types[type].digits;
    if (unit < types[type].least) unit = types[type].least;
    const double result = ldexp(rint(ldexp((double)x, -unit)), unit);
    return fabs(result) > (double)types[type].largest ? copysignf(INFINITY, x) : (float)result;
}

static enum type wider(enum type a, enum type b) { return a == b ? a : FP32; }

static enum type type_of(const struct reference *r, int param) {
    return r->recipe.low_params && !(param == G && r->recipe.fp32_norm) ? r->recipe.low : FP32;
}
static bool has_master(const struct reference *r, int param) { return r->recipe.masters && type_of(r, param) != FP32; }
static enum type grad_type(const struct reference *r, int param) { return r->fixed ? FP32 : type_of(r, param); }

/* A gradient, rounded. At every scale between 1 and the largest it must be a normal number of the type. */
static float gradient(struct reference *r, enum type type, float x) {
    const float result = rounded(type, x);
    if (type == FP16 && result != 0.0f && (fabsf(result) < 0x1p-14f || fabsf(result) * LARGEST_SCALE > 65504.0f))
        r->unfit = "a gradient is too large or too small";
    return result;
}

float reference_shown(const struct reference *r, int model, int param, int i) {
    return rounded(type_of(r, param), r->params[model][param].value[i]);
}

/* ---- one forward and backward ---- */

struct pass {
    struct reference *r;
    int model, step, loss, batch;
    enum type lin, ta, ty, tz, tl; /* types of W x, a, y, z, z L */
    float x[SIDE], h[SIDE], a[SIDE], al[SIDE], y[SIDE], z[SIDE];
    float p[N_PARAMS][MOST];  /* parameters as the model has them */
    float cast[N_PARAMS][MOST]; /* as W x + B gets them */
    bool second, late;
    int v; /* V or W */
};

static void times(const float *matrix, const float *x, const float *bias, enum type type, float *out) {
    for (int i = 0; i < SIDE; i++) {
        float sum = 0.0f;
        for (int j = 0; j < SIDE; j++) sum += matrix[i * SIDE + j] * x[j];
        out[i] = rounded(type, bias ? sum + bias[i] : sum);
    }
}

static void forward(struct pass *f) {
    const struct reference *r = f->r;
    f->lin = r->recipe.low_params || r->recipe.cast_ops ? r->recipe.low : FP32;
    for (int p = 0; p < N_PARAMS; p++)
        for (int i = 0; i < sizes[p]; i++) {
            f->p[p][i] = reference_shown(r, f->model, p, i);
            f->cast[p][i] = rounded(f->lin, f->p[p][i]);
        }
    for (int i = 0; i < SIDE; i++) f->x[i] = rounded(f->lin, input(f->step, f->model, f->batch, i));
    times(f->cast[W], f->x, f->cast[B], f->lin, f->h);
    f->ta = wider(f->lin, type_of(r, S));
    f->ty = f->second ? f->lin : f->ta;
    f->tz = wider(f->ty, type_of(r, G));
    f->tl = wider(f->tz, type_of(r, L));
    for (int i = 0; i < SIDE; i++) {
        f->a[i] = rounded(f->ta, f->h[i] * f->p[S][0]);
        f->al[i] = rounded(f->lin, f->a[i]);
        f->y[i] = f->a[i];
    }
    if (f->second) times(f->cast[f->v], f->al, NULL, f->lin, f->y);
    for (int i = 0; i < SIDE; i++) f->z[i] = rounded(f->tz, f->y[i] * f->p[G][i]);
}

struct grads {
    float of[N_PARAMS][MOST];
    bool has[N_PARAMS];
};

static void outer(struct pass *f, const float *left, const float *right, float *out) {
    for (int i = 0; i < SIDE; i++)
        for (int j = 0; j < SIDE; j++) out[i * SIDE + j] = gradient(f->r, f->lin, left[i] * right[j]);
}

/* dz: the gradient of the loss at z L; what comes back is that of a. */
static void backward_top(struct pass *f, struct grads *g, float *da) {
    struct reference *r = f->r;
    float dz[SIDE], dy[SIDE], dal[SIDE];
    for (int i = 0; i < SIDE; i++) dz[i] = gradient(r, f->late ? f->tl : f->tz, loss_weight(f->loss, i));
    if (f->late)
        for (int i = 0; i < SIDE; i++) {
            g->of[L][i] = gradient(r, type_of(r, L), dz[i] * f->z[i]);
            dz[i] = gradient(r, f->tz, dz[i] * f->p[L][i]);
        }
    for (int i = 0; i < SIDE; i++) {
        g->of[G][i] = gradient(r, type_of(r, G), dz[i] * f->y[i]);
        dy[i] = gradient(r, f->ty, dz[i] * f->p[G][i]);
    }
    memcpy(da, dy, sizeof dy);
    if (!f->second) return;
    outer(f, dy, f->al, g->of[V]);
    for (int j = 0; j < SIDE; j++) {
        float sum = 0.0f;
        for (int i = 0; i < SIDE; i++) sum += dy[i] * f->cast[f->v][i * SIDE + j];
        dal[j] = gradient(r, f->lin, sum);
    }
    memcpy(da, dal, sizeof dal);
}

static void backward(struct pass *f, struct grads *g) {
    struct reference *r = f->r;
    const unsigned options = r->plan->options;
    float da[SIDE], dh[SIDE], ds = 0.0f;
    backward_top(f, g, da);
    for (int i = 0; i < SIDE; i++) {
        ds += da[i] * f->h[i];
        dh[i] = gradient(r, f->lin, da[i] * f->p[S][0]);
        g->of[B][i] = dh[i];
    }
    g->of[S][0] = gradient(r, type_of(r, S), ds);
    outer(f, dh, f->x, g->of[W]);
    /* one cast of a weight that is used twice: its gradients meet in the low type */
    const enum type meet = r->recipe.cast_ops && (options & NO_CACHE) ? FP32 : f->lin;
    for (int i = 0; i < MOST && (options & TIED) && f->second; i++)
        g->of[W][i] = gradient(r, meet, g->of[V][i] + g->of[W][i]);
    for (int p = 0; p < N_PARAMS; p++)
        g->has[p] = p != U && trained(r->plan, p, f->step) && !frozen(r->plan, p, f->step, f->loss) &&
                    (p != V || f->second);
}

/* ---- gradients over several backward passes ---- */

static void add(struct reference *r, enum type type, float *sum, bool *has, const float *more, int n) {
    for (int i = 0; i < n; i++) sum[i] = *has ? gradient(r, type, sum[i] + more[i]) : more[i];
    *has = true;
}

static void end_group(struct reference *r, int model) {
    for (int p = 0; p < N_PARAMS; p++) {
        struct reference_param *param = &r->params[model][p];
        if (!param->has_group) continue;
        add(r, has_master(r, p) ? FP32 : grad_type(r, p), param->grad, &param->has_grad, param->group, sizes[p]);
        param->has_group = false;
    }
}

static void one_pass(struct reference *r, int model, int step, int loss, int micro) {
    const int batch = batch_of(r->plan, loss, micro);
    struct pass f = { .r = r, .model = model, .step = step, .loss = loss, .batch = batch,
                      .second = uses_second(r->plan, step, batch), .late = trained(r->plan, L, step),
                      .v = r->plan->options & TIED ? W : V };
    struct grads g;
    memset(&g, 0, sizeof g);
    forward(&f);
    backward(&f, &g);
    for (int p = 0; p < N_PARAMS; p++) {
        struct reference_param *param = &r->params[model][p];
        if (g.has[p]) add(r, grad_type(r, p), param->group, &param->has_group, g.of[p], sizes[p]);
    }
    if (!r->grouped || micro == r->plan->micro - 1) end_group(r, model);
}

/* ---- clipping ---- */

/* The order of docs/reference/numerics.md: 16 lanes, folded in halves. */
static double squares(const float *x, int n) {
    double lanes[16] = { 0 };
    for (int i = 0; i < n; i++) lanes[i % 16] += (double)x[i] * (double)x[i];
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) lanes[i] += lanes[i + half];
    return lanes[0];
}

static void clip(struct reference *r, int model, int optimizer) {
    double sum = 0.0;
    struct reference_param *params = r->params[model];
    for (int p = 0; p < N_PARAMS; p++)
        if (params[p].has_grad && optimizer_of(r->plan, p) == optimizer) sum += squares(params[p].grad, sizes[p]);
    const float norm = (float)sqrt(sum), factor = (float)((double)MAX_NORM / ((double)norm + 1e-6));
    for (int p = 0; p < N_PARAMS; p++) {
        if (!params[p].has_grad || optimizer_of(r->plan, p) != optimizer) continue;
        const enum type type = has_master(r, p) ? FP32 : grad_type(r, p);
        for (int i = 0; i < sizes[p]; i++) {
            float *at = &params[p].grad[i];
            if ((r->plan->options & CLIP_NORM) && factor < 1.0f) *at = rounded(type, *at * factor);
            if ((r->plan->options & CLIP_VALUE) && *at > MAX_VALUE) *at = MAX_VALUE;
        }
    }
}

/* ---- the run ---- */

static void drop_gradients(struct reference *r, struct reference_param *param) {
    memset(param->grad, 0, sizeof param->grad);
    param->has_grad = r->fixed;
}

void reference_init(struct reference *r) {
    for (int m = 0; m < r->plan->models; m++)
        for (int p = 0; p < N_PARAMS; p++) {
            struct reference_param *param = &r->params[m][p];
            for (int i = 0; i < sizes[p]; i++) {
                param->value[i] = first_value(m, p, i);
                if (!r->recipe.masters) param->value[i] = rounded(type_of(r, p), param->value[i]);
            }
            drop_gradients(r, param);
        }
}

/* An element that the load leaves as the rounded master keeps the master's bits. */
static void load(struct reference *r) {
    for (int m = 0; m < r->plan->models; m++)
        for (int p = 0; p < N_PARAMS; p++)
            for (int i = 0; i < sizes[p]; i++) {
                const float loaded = i ? rounded(type_of(r, p), loaded_value(m, p, i)) : reference_shown(r, m, p, i);
                if (reference_shown(r, m, p, i) != loaded) r->params[m][p].value[i] = loaded;
            }
}

static void step_optimizer(struct reference *r, int model, int optimizer, int step) {
    clip(r, model, optimizer);
    for (int p = 0; p < N_PARAMS; p++) {
        struct reference_param *param = &r->params[model][p];
        if (optimizer_of(r->plan, p) != optimizer || !trained(r->plan, p, step) || !param->has_grad) continue;
        optimize(r->adam, param->value, param->grad, &param->moments, sizes[p]);
        for (int i = 0; i < sizes[p] && !has_master(r, p); i++)
            param->value[i] = rounded(type_of(r, p), param->value[i]);
    }
}

void reference_step(struct reference *r, int step) {
    const struct plan *plan = r->plan;
    if ((plan->options & LOAD) && step == LOAD_STEP) load(r);
    for (int m = 0; m < plan->models; m++)
        for (int l = 0; l < plan->losses; l++)
            for (int k = 0; k < plan->micro; k++) one_pass(r, m, step, l, k);
    for (int m = 0; m < plan->models; m++)
        for (int o = 0; o < plan->optimizers; o++) {
            /* the infinity is in the first model's first bracket: its optimizers drop the step, the others do not */
            const bool dropped = overflows(plan, step) && m == 0 && (!(plan->options & LOSS_PER_OPTIM) || o == 0);
            if (!dropped) step_optimizer(r, m, o, step);
        }
    for (int m = 0; m < plan->models; m++)
        for (int p = 0; p < N_PARAMS && zeroes(plan, step); p++) drop_gradients(r, &r->params[m][p]);
}
