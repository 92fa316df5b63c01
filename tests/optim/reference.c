/* SPDX-License-Identifier: Apache-2.0 */
#include "reference.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

/* ---- numbers with bounds ---- */

static struct number rounded(double value, double bound) {
    return (struct number){ value, bound + fabs(value) * 0x1p-24 + 0x1p-150 };
}
static struct number exact(double value) { return (struct number){ value, 0.0 }; }
static struct number setting(double value) { return rounded(value, 0.0); }

static struct number add(struct number a, struct number b) { return rounded(a.value + b.value, a.bound + b.bound); }
static struct number sub(struct number a, struct number b) { return rounded(a.value - b.value, a.bound + b.bound); }
static struct number mul(struct number a, struct number b) {
    return rounded(a.value * b.value, fabs(a.value) * b.bound + fabs(b.value) * a.bound + a.bound * b.bound);
}
static struct number quotient(struct number a, struct number b) {
    const double value = a.value / b.value;
    return rounded(value, (a.bound + fabs(value) * b.bound) / fmax(fabs(b.value) - b.bound, 0x1p-149));
}
/* Between the roots of value - bound and value + bound. */
static struct number root(struct number a) {
    const double value = sqrt(a.value), low = sqrt(fmax(a.value - a.bound, 0.0));
    return rounded(value, fmax(sqrt(a.value + a.bound) - value, value - low));
}

/* The norm of bounds is a bound of the norm. */
static struct number norm(const struct number *x, size_t n) {
    double squares = 0.0, bounds = 0.0;
    for (size_t i = 0; i < n; i++) {
        squares += x[i].value * x[i].value;
        bounds += x[i].bound * x[i].bound;
    }
    return rounded(sqrt(squares), sqrt(bounds));
}

static struct number norm_of_floats(const float *x, size_t n) {
    double squares = 0.0;
    for (size_t i = 0; i < n; i++) squares += (double)x[i] * (double)x[i];
    return setting(sqrt(squares));
}

/* ---- the rules ---- */

struct step {
    const amp_optim *rule;
    const struct reference *t;
    double number; /* of the step, from 1 on */
    struct number factor; /* LAMB's */
    struct number lr, decay, eps, beta1, beta2, rest1, rest2, corr1, corr2, grad_share;
};

static bool has(const struct step *s, uint32_t flag) { return (s->rule->flags & flag) != 0; }

static struct step prepare(const amp_optim *rule, const struct reference *t) {
    struct step s = { .rule = rule, .t = t, .number = (double)t->steps + 1.0 };
    const bool correct = has(&s, AMP_OPTIM_BIAS_CORRECTION);
    s.lr = setting(rule->lr), s.decay = setting(rule->weight_decay), s.eps = setting(rule->eps);
    s.beta1 = setting(rule->beta1), s.beta2 = setting(rule->beta2);
    s.rest1 = setting(1.0 - rule->beta1), s.rest2 = setting(1.0 - rule->beta2);
    s.corr1 = correct ? setting(1.0 - pow(rule->beta1, s.number)) : exact(1.0);
    s.corr2 = correct ? setting(1.0 - pow(rule->beta2, s.number)) : exact(1.0);
    s.grad_share = has(&s, AMP_OPTIM_GRAD_AVERAGING) ? s.rest1 : exact(1.0);
    return s;
}

static struct number param(const struct step *s, size_t i) { return exact((double)s->t->param[i]); }
static struct number moment(const struct step *s, int k, size_t i) { return exact((double)s->t->moments[k][i]); }

static void put(const struct step *s, size_t i, struct number update) {
    s->t->new_param[i] = sub(param(s, i), update);
}

/* value + d * p, which changes nothing for d = 0 */
static struct number decayed(const struct step *s, size_t i, struct number value) {
    return s->rule->weight_decay == 0.0 ? value : add(value, mul(s->decay, param(s, i)));
}

/* d: the gradient as the momentum sees it. torch.optim.SGD's formulas, after Sutskever et al., 2013. */
static void momentum(const struct step *s, size_t i, struct number d) {
    const struct number mu = setting(s->rule->momentum);
    if (s->rule->momentum != 0.0) {
        const struct number old = mul(mu, moment(s, 0, i)), new = mul(setting(1.0 - s->rule->dampening), d);
        const struct number b = s->t->steps ? add(old, new) : d;
        s->t->new_moments[0][i] = b;
        d = has(s, AMP_OPTIM_NESTEROV) ? add(d, mul(mu, b)) : b;
    }
    if (has(s, AMP_OPTIM_DECAY_AFTER_MOMENTUM)) d = decayed(s, i, d);
    put(s, i, mul(s->lr, d));
}

static void sgd(const struct step *s) {
    for (size_t i = 0; i < s->t->n; i++) {
        const struct number g = exact((double)s->t->grad[i]);
        momentum(s, i, has(s, AMP_OPTIM_DECAY_AFTER_MOMENTUM) ? g : decayed(s, i, g));
    }
}

static void larc(const struct step *s) {
    const struct number of_p = norm_of_floats(s->t->param, s->t->n), of_g = norm_of_floats(s->t->grad, s->t->n);
    struct number rate = exact(1.0);
    if (of_p.value > 0.0 && of_g.value > 0.0) {
        const struct number below = add(add(of_g, mul(s->decay, of_p)), s->eps);
        rate = quotient(mul(setting(s->rule->trust_coefficient), of_p), below);
        if (has(s, AMP_OPTIM_CLIP)) rate = quotient(rate, s->lr);
        if (has(s, AMP_OPTIM_CLIP) && rate.value > 1.0) rate = exact(1.0);
    }
    for (size_t i = 0; i < s->t->n; i++)
        momentum(s, i, mul(rate, decayed(s, i, exact((double)s->t->grad[i]))));
}

/* Algorithm 1 of Kingma and Ba: the direction m^ / (sqrt(v^) + eps). */
static struct number adam_direction(const struct step *s, size_t i, struct number g, struct number share) {
    const struct number m = add(mul(s->beta1, moment(s, 0, i)), mul(share, g));
    const struct number v = add(mul(s->beta2, moment(s, 1, i)), mul(s->rest2, mul(g, g)));
    struct number largest = v;
    s->t->new_moments[0][i] = m;
    s->t->new_moments[1][i] = v;
    if (has(s, AMP_OPTIM_AMSGRAD)) {
        if (moment(s, 2, i).value > v.value) largest = moment(s, 2, i);
        largest.bound = fmax(largest.bound, v.bound);
        s->t->new_moments[2][i] = largest;
    }
    return quotient(quotient(m, s->corr1), add(root(quotient(largest, s->corr2)), s->eps));
}

static void adam(const struct step *s) {
    const bool decoupled = s->rule->kind == AMP_OPTIM_ADAMW;
    for (size_t i = 0; i < s->t->n; i++) {
        const struct number g = exact((double)s->t->grad[i]);
        struct number u = adam_direction(s, i, decoupled ? g : decayed(s, i, g), s->rest1);
        if (decoupled) u = decayed(s, i, u);
        put(s, i, mul(s->lr, u));
    }
}

static void adamw(const struct step *s) { adam(s); }

static void lamb(const struct step *s) {
    struct number *u = calloc(s->t->n, sizeof *u);
    for (size_t i = 0; i < s->t->n; i++) {
        const struct number g = mul(exact((double)s->t->grad[i]), s->factor);
        u[i] = adam_direction(s, i, has(s, AMP_OPTIM_DECOUPLED) ? g : decayed(s, i, g), s->grad_share);
        if (has(s, AMP_OPTIM_DECOUPLED)) u[i] = decayed(s, i, u[i]);
    }
    const struct number of_p = norm_of_floats(s->t->param, s->t->n), of_u = norm(u, s->t->n);
    struct number rate = s->lr;
    if ((s->rule->weight_decay > 0.0 || has(s, AMP_OPTIM_NVLAMB)) && of_p.value > 0.0 && of_u.value > 0.0)
        rate = mul(s->lr, quotient(of_p, of_u));
    for (size_t i = 0; i < s->t->n; i++) put(s, i, mul(rate, u[i]));
    free(u);
}

/* Algorithm 1 of Ginsburg et al., with Apex's switches; the second moment is kept as its root. */
static void novograd(const struct step *s) {
    const struct number of_g = norm_of_floats(s->t->grad, s->t->n);
    const double old = (double)s->t->moments[1][0], b = s->rule->beta2;
    const double v = s->t->steps || has(s, AMP_OPTIM_INIT_ZERO) ? b * old * old + (1.0 - b) * of_g.value * of_g.value
                                                                : of_g.value * of_g.value;
    const struct number kept = rounded(sqrt(v), of_g.bound);
    const struct number below = add(quotient(kept, root(s->corr2)), s->eps);
    s->t->new_moments[1][0] = kept;
    for (size_t i = 0; i < s->t->n; i++) {
        struct number g = exact((double)s->t->grad[i]);
        if (!has(s, AMP_OPTIM_DECOUPLED)) g = decayed(s, i, quotient(g, below));
        const struct number m = add(mul(s->beta1, moment(s, 0, i)), mul(s->grad_share, g));
        s->t->new_moments[0][i] = m;
        struct number u = quotient(m, s->corr1);
        if (has(s, AMP_OPTIM_DECOUPLED)) u = decayed(s, i, quotient(u, below));
        put(s, i, mul(s->lr, u));
    }
}

static void adagrad(const struct step *s) {
    for (size_t i = 0; i < s->t->n; i++) {
        struct number g = exact((double)s->t->grad[i]);
        if (!has(s, AMP_OPTIM_DECOUPLED)) g = decayed(s, i, g);
        const struct number h = add(moment(s, 0, i), mul(g, g));
        s->t->new_moments[0][i] = h;
        struct number u = quotient(g, add(root(h), s->eps));
        if (has(s, AMP_OPTIM_DECOUPLED)) u = decayed(s, i, u);
        put(s, i, mul(s->lr, u));
    }
}

struct number reference_factor(const amp_optim *rule, const struct reference *tensors, size_t n) {
    double squares = 0.0;
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < tensors[k].n; i++) squares += (double)tensors[k].grad[i] * (double)tensors[k].grad[i];
    if (rule->kind != AMP_OPTIM_LAMB || rule->max_grad_norm == 0.0 || sqrt(squares) <= rule->max_grad_norm)
        return exact(1.0);
    return rounded(rule->max_grad_norm / sqrt(squares), 0x1p-24);
}

void reference_step(const amp_optim *rule, const struct reference *tensor, struct number factor) {
    struct step s = prepare(rule, tensor);
    s.factor = factor;
    switch (rule->kind) {
#define STEP(constant, value, name, ...)                                                                               \
    case value: name(&s); break;
        AMP_OPTIM_MAP(STEP)
#undef STEP
    default: abort();
    }
}
