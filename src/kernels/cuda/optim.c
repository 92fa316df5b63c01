/* SPDX-License-Identifier: Apache-2.0 */
/* A step of a fused optimizer: norms where the rule asks for some that the caller has not, each tensor's numbers, the
 * step. Where all tensors have the same numbers, and the host knows them, the step alone. */
#include "kernels/cuda/optim.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/kernels.h"

#include <stdlib.h>

/* Scratch, as offsets. */
struct parts {
    size_t updates, sums, tensor_sums, grad_norms, param_norms, norm, bytes;
};

static size_t take_scratch(struct parts *p, size_t bytes) {
    const size_t at = p->bytes;
    p->bytes += (bytes + 15) / 16 * 16;
    return at;
}

static struct parts parts_of(size_t n, uint32_t n_chunks) {
    struct parts p = { .bytes = CUDA_TICKET_BYTES };
    p.updates = take_scratch(&p, n * sizeof(struct cuda_update));
    p.sums = take_scratch(&p, 2 * (size_t)n_chunks * sizeof(double));
    p.tensor_sums = take_scratch(&p, n * sizeof(double));
    p.grad_norms = take_scratch(&p, n * sizeof(float));
    p.param_norms = take_scratch(&p, n * sizeof(float));
    p.norm = take_scratch(&p, sizeof(float));
    return p;
}

struct step {
    const struct cuda_run *run;
    const struct amp__list_call *call;
    const amp_span *low; /* 16-bit parameters beside FP32 masters, remainders beside split ones */
    bool splits;
    struct cuda_table all, grads, others; /* others: LARC's parameters, NovoGrad's scalars */
    struct parts parts;
    unsigned char *scratch;
    struct cuda_step prepare;
};

static const enum cuda_rule rules[] = {
#define KIND(constant, value, name, title, rule, ...) [AMP_OPTIM_##constant] = cuda_rule_##rule,
    AMP_OPTIM_MAP(KIND)
#undef KIND
};
#define ONE_KIND(...) +1
_Static_assert(sizeof rules / sizeof *rules == 1 AMP_OPTIM_MAP(ONE_KIND), "AMP_OPTIM_MAP leaves out a value");
#undef ONE_KIND

static bool asks_norm(const amp_optim *rule) { return rule->kind == AMP_OPTIM_LAMB && rule->max_grad_norm > 0.0; }
static bool asks_norms(const amp_optim *rule) {
    return rule->kind == AMP_OPTIM_NOVOGRAD || rule->kind == AMP_OPTIM_LARC;
}

/* True for one launch: the host counts the steps, and no norm of a single tensor is needed. */
static bool has_known_numbers(const struct step *s) {
    const amp_optim *rule = s->call->rule;
    return !s->call->tensors->steps && (int)rules[rule->kind] < CUDA_KNOWN_RULES && !asks_norms(rule);
}

static uint32_t max_chunks(const struct step *s) {
    uint32_t most = s->all.n_chunks;
    if (s->grads.n_chunks > most) most = s->grads.n_chunks;
    return s->others.n_chunks > most ? s->others.n_chunks : most;
}

static amp_status plan_step(struct step *s, bool needs_grads) {
    const amp_optim_tensors *t = s->call->tensors;
    const amp_optim *rule = s->call->rule;
    const amp_span *const second = rule->kind == AMP_OPTIM_NOVOGRAD ? t->moments[1] : NULL;
    const amp_span *const others[2] = { rule->kind == AMP_OPTIM_LARC ? t->param : second, s->low };
    const uint32_t n_others = rule->kind == AMP_OPTIM_LARC && s->splits ? 2 : 1;
    const amp_span *const spans[CUDA_UPDATE_SPANS] = {
        t->grad, t->param, s->low, t->moments[0], second ? NULL : t->moments[1], t->moments[2],
    };
    TRY(cuda_use_plan(s->run, CUDA_PLAN_CALL, spans, CUDA_UPDATE_SPANS, t->n, &s->all));
    if (needs_grads) TRY(cuda_use_plan(s->run, CUDA_PLAN_GRADS, &t->grad, 1, t->n, &s->grads));
    if (others[0]) TRY(cuda_use_plan(s->run, CUDA_PLAN_OTHERS, others, n_others, t->n, &s->others));
    if (has_known_numbers(s)) return AMP_OK; /* nothing is kept from launch to launch */
    s->parts = parts_of(t->n, max_chunks(s));
    return cuda_use_scratch(s->run, s->parts.bytes, &s->scratch);
}

/* factors NULL: the parameters'. */
static amp_status sum_norms(const struct step *s, const struct cuda_table *table, const struct cuda_factor factors[2],
                            float *norms, float *norm) {
    double *sums = (void *)(s->scratch + s->parts.sums), *tensor_sums = (void *)(s->scratch + s->parts.tensor_sums);
    const struct cuda_found nowhere = { NULL, NULL, 0 };
    const struct cuda_factor one = { NULL, 1.0f, CUDA_AS_IT_IS }, *by = factors ? factors : &one;
    if (!factors && s->splits) TRY(cuda_explain(cuda_launch_squares(table, sums, s->run->stream)));
    else TRY(cuda_explain(cuda_launch_check(table, by, factors ? by + 1 : by, sums, &nowhere, s->run->stream)));
    return cuda_explain(
        cuda_launch_norms(table, sums, tensor_sums, norms, norm, (void *)s->scratch, s->run->stream));
}

/* Finds the norms that the rule needs: those of the caller, or computed ones. */
static amp_status find_norms(struct step *s, bool needs_grads) {
    const amp_optim_tensors *t = s->call->tensors;
    const amp_optim *rule = s->call->rule;
    const struct cuda_factor factors[2] = { s->prepare.inv_scale, s->prepare.factor };
    float *norm = (void *)(s->scratch + s->parts.norm), *grad_norms = (void *)(s->scratch + s->parts.grad_norms);
    float *param_norms = (void *)(s->scratch + s->parts.param_norms);
    if (asks_norm(rule)) s->prepare.norm = t->grad_norm ? t->grad_norm : norm;
    if (asks_norms(rule)) s->prepare.grad_norms = t->grad_norms ? t->grad_norms : grad_norms;
    if (needs_grads) TRY(sum_norms(s, &s->grads, factors, grad_norms, norm));
    if (rule->kind != AMP_OPTIM_LARC) return AMP_OK;
    s->prepare.param_norms = param_norms;
    return sum_norms(s, &s->others, NULL, param_norms, NULL);
}

static amp_status launch_known(const struct step *s) {
    const amp_optim *rule = s->call->rule;
    const struct cuda_norms none = { 0.0f, 0.0f, 0.0f };
    const struct cuda_update u = cuda_prepare(rule, s->prepare.known, 1.0f, s->prepare.factor.value, &none, NULL);
    return cuda_explain(cuda_launch_step(rules[rule->kind], &s->all, &u, &s->prepare.inv_scale, s->prepare.found_inf,
                                         s->run->stream));
}

/* Launches the step. 16-bit parameters without masters are written as copies are: span CUDA_LOW. */
static amp_status launch_step(const struct step *s) {
    const amp_optim *rule = s->call->rule;
    struct cuda_update *updates = s->prepare.updates;
    TRY(cuda_explain(cuda_launch_prepare(&s->prepare, s->run->stream)));
    if (rule->kind == AMP_OPTIM_LAMB) {
        double *sums = (void *)(s->scratch + s->parts.sums);
        TRY(cuda_explain(cuda_launch_lamb(&s->all, rule, updates, sums, s->run->stream)));
    }
    return cuda_explain(cuda_launch_update(rules[rule->kind], &s->all, updates, s->run->stream));
}

/* Returns spans for the remainders, at the position of the 16-bit copies. */
static amp_span *remainders_of(const amp_optim_tensors *t) {
    amp_span *const low = malloc(t->n * sizeof *low);
    for (size_t i = 0; low && i < t->n; i++) {
        low[i] = t->low ? t->low[i] : (amp_span){ NULL, 0, AMP_BFLOAT16, 0 };
        if (t->remainders[i]) low[i] = (amp_span){ t->remainders[i], t->param[i].size, AMP_BFLOAT16, 0 };
    }
    return low;
}

static bool has_remainder(const amp_optim_tensors *t) {
    for (size_t i = 0; t->remainders && i < t->n; i++)
        if (t->remainders[i]) return true;
    return false;
}

static amp_status run_step(struct step *s) {
    const struct amp__list_call *call = s->call;
    const amp_optim_tensors *t = call->tensors;
    const bool needs_grads =
        (asks_norm(call->rule) && !t->grad_norm) || (asks_norms(call->rule) && !t->grad_norms);
    TRY(plan_step(s, needs_grads));
    s->prepare = (struct cuda_step){
        .rule = *call->rule,
        .inv_scale = { t->inv_scale, 1.0f, CUDA_AS_IT_IS },
        .factor = { NULL, t->grad_factor == 0.0f ? 1.0f : t->grad_factor, CUDA_AS_IT_IS },
        .found_inf = t->found_inf,
        .shapes = call->passes_over ? s->all.shapes : NULL,
        .second = call->rule->kind == AMP_OPTIM_NOVOGRAD ? s->others.addresses : NULL,
        .steps = t->steps,
        .known = t->steps ? 0 : t->step - 1,
        .shares = t->steps && t->n_steps == 1,
        .ticket = (void *)s->scratch,
        .updates = s->scratch ? (void *)(s->scratch + s->parts.updates) : NULL,
        .n_tensors = (uint32_t)t->n,
    };
    if (has_known_numbers(s)) return launch_known(s);
    TRY(find_norms(s, needs_grads));
    return launch_step(s);
}

amp_status cuda_run_optim(const struct cuda_run *run, const struct amp__list_call *call) {
    const bool splits = has_remainder(call->tensors);
    amp_span *const mixed = splits ? remainders_of(call->tensors) : NULL;
    struct step s = { .run = run, .call = call, .low = splits ? mixed : call->tensors->low, .splits = splits };
    if (splits && !mixed) return cuda_fail(AMP_ERR_NO_MEMORY, "out of memory");
    const amp_status status = run_step(&s);
    free(mixed);
    return status;
}

amp_status cuda_run_split(const struct cuda_run *run, const struct amp__list_call *call) {
    const bool join = call->kind == AMP__LIST_JOIN;
    const amp_span *const spans[] = { call->spans[join], call->spans[2], call->spans[!join] };
    struct cuda_table table;
    TRY(cuda_use_plan(run, CUDA_PLAN_CALL, spans, 3, call->n, &table));
    return cuda_explain(cuda_launch_split(&table, join, run->stream));
}
