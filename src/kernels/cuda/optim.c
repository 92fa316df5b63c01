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

/* The lists of the plans: the caller's, or lists of libamp in one block. */
struct lists {
    const amp_span *grad, *low, *moments[2];  /* low: copies beside FP32 masters, remainders beside split ones */
    const amp_span *codes[CUDA_CODED_SPANS]; /* of adam8.h */
    amp_span *made;
    bool splits, coded, stochastic;
};

struct step {
    const struct cuda_run *run;
    const struct amp__list_call *call;
    struct lists lists;
    struct cuda_table all, grads, others; /* others: LARC's parameters, NovoGrad's scalars */
    struct cuda_table codes;
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

static bool is_random(const struct lists *lists) { return lists->coded || lists->stochastic; }

/* True for one launch: the host counts the steps, and no norm of a single tensor is needed, nor a key. */
static bool has_known_numbers(const struct step *s) {
    const amp_optim *rule = s->call->rule;
    if (s->call->tensors->steps || is_random(&s->lists)) return false;
    return (int)rules[rule->kind] < CUDA_KNOWN_RULES && !asks_norms(rule);
}

static uint32_t max_chunks(const struct step *s) {
    uint32_t most = s->all.n_chunks;
    if (s->grads.n_chunks > most) most = s->grads.n_chunks;
    return s->others.n_chunks > most ? s->others.n_chunks : most;
}

static amp_status plan_step(struct step *s, bool needs_grads) {
    const amp_optim_tensors *t = s->call->tensors;
    const amp_optim *rule = s->call->rule;
    const struct lists *l = &s->lists;
    const amp_span *const second = rule->kind == AMP_OPTIM_NOVOGRAD ? t->moments[1] : NULL;
    const amp_span *const others[2] = { rule->kind == AMP_OPTIM_LARC ? t->param : second, l->low };
    const uint32_t n_others = rule->kind == AMP_OPTIM_LARC && l->splits ? 2 : 1;
    const amp_span *const spans[CUDA_UPDATE_SPANS] = {
        l->grad, t->param, l->low, l->moments[0], second ? NULL : l->moments[1], t->moments[2],
    };
    TRY(cuda_use_plan(s->run, CUDA_PLAN_CALL, spans, CUDA_UPDATE_SPANS, t->n, &s->all));
    if (is_random(l)) TRY(cuda_use_plan(s->run, CUDA_PLAN_CODES, l->codes, CUDA_CODED_SPANS, t->n, &s->codes));
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
    if (!factors && s->lists.splits) TRY(cuda_explain(cuda_launch_squares(table, sums, s->run->stream)));
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
    if (s->lists.coded) TRY(cuda_explain(cuda_launch_adam8(&s->all, &s->codes, updates, s->run->stream)));
    return cuda_explain(
        cuda_launch_update(rules[rule->kind], s->lists.stochastic, &s->all, updates, s->run->stream));
}

/* ---- lists ---- */

static bool is_coded(const amp_optim_tensors *t, size_t i) { return t->scales[0] && t->scales[0][i]; }

/* Remainders at the position of the 16-bit copies. */
static void list_remainders(const amp_optim_tensors *t, amp_span *low) {
    for (size_t i = 0; i < t->n; i++) {
        low[i] = t->low ? t->low[i] : (amp_span){ NULL, 0, AMP_BFLOAT16, 0 };
        if (t->remainders[i]) low[i] = (amp_span){ t->remainders[i], t->param[i].size, AMP_BFLOAT16, 0 };
    }
}

/* Tensors with codes have no elements in the table of the call, and thus no chunks. */
static void list_others(const amp_optim_tensors *t, amp_span *grad, amp_span *m, amp_span *v) {
    for (size_t i = 0; i < t->n; i++) {
        grad[i] = t->grad[i], m[i] = t->moments[0][i], v[i] = t->moments[1][i];
        if (is_coded(t, i)) grad[i].size = 0, m[i].data = v[i].data = NULL;
    }
}

_Static_assert(sizeof(void *) == sizeof(uint64_t), "a table has keys in place of addresses");

static void list_codes(const amp_optim_tensors *t, amp_span *to) {
    for (size_t i = 0; i < t->n; i++) {
        const bool coded = is_coded(t, i);
        const uint64_t key = t->keys ? t->keys[i] : i, before = t->before ? t->before[i] : 0;
        const void *const data[CUDA_CODED_SPANS] = {
            coded ? t->moments[0][i].data : NULL, coded ? t->moments[1][i].data : NULL,
            coded ? t->scales[0][i] : NULL,       coded ? t->scales[1][i] : NULL,
            (const void *)(uintptr_t)key,         (const void *)(uintptr_t)before,
        };
        for (int k = 0; k < CUDA_CODED_SPANS; k++) {
            const bool scales = k == CUDA_SCALES || k == CUDA_SCALES + 1;
            to[(size_t)k * t->n + i] = (amp_span){ (void *)(uintptr_t)data[k], coded ? t->param[i].size : 0,
                                                   scales ? AMP_FLOAT32 : AMP_DTYPE_OTHER, 0 };
        }
    }
}

enum { MADE_LOW, MADE_GRAD, MADE_MOMENTS, MADE_CODES = MADE_MOMENTS + 2, MADE = MADE_CODES + CUDA_CODED_SPANS };

/* Fills *l. l->made is the caller's to free. */
static amp_status make_lists(const amp_optim_tensors *t, struct lists *l) {
    *l = (struct lists){ .grad = t->grad, .low = t->low, .moments = { t->moments[0], t->moments[1] } };
    l->stochastic = t->flags & AMP_TENSORS_STOCHASTIC;
    for (size_t i = 0; i < t->n; i++) {
        l->splits |= t->remainders && t->remainders[i];
        l->coded |= is_coded(t, i);
    }
    if (!l->splits && !is_random(l)) return AMP_OK;
    l->made = malloc(MADE * t->n * sizeof *l->made);
    if (!l->made) return cuda_fail(AMP_ERR_NO_MEMORY, "out of memory");
    amp_span *made[MADE];
    for (int k = 0; k < MADE; k++) made[k] = l->made + (size_t)k * t->n;
    if (l->splits) list_remainders(t, made[MADE_LOW]), l->low = made[MADE_LOW];
    if (is_random(l)) list_codes(t, made[MADE_CODES]);
    for (int k = 0; k < CUDA_CODED_SPANS; k++) l->codes[k] = made[MADE_CODES + k];
    if (!l->coded) return AMP_OK;
    list_others(t, made[MADE_GRAD], made[MADE_MOMENTS], made[MADE_MOMENTS + 1]);
    l->grad = made[MADE_GRAD];
    for (int k = 0; k < 2; k++) l->moments[k] = made[MADE_MOMENTS + k];
    return AMP_OK;
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
        .random = { is_random(&s->lists) ? s->codes.addresses + CUDA_KEYS * t->n : NULL,
                    is_random(&s->lists) ? s->codes.addresses + CUDA_BEFORE * t->n : NULL, s->lists.stochastic },
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
    struct step s = { .run = run, .call = call };
    amp_status status = make_lists(call->tensors, &s.lists);
    if (status == AMP_OK) status = run_step(&s);
    free(s.lists.made);
    return status;
}

amp_status cuda_run_split(const struct cuda_run *run, const struct amp__list_call *call) {
    const bool join = call->kind == AMP__LIST_JOIN;
    const amp_span *const spans[] = { call->spans[join], call->spans[2], call->spans[!join] };
    struct cuda_table table;
    TRY(cuda_use_plan(run, CUDA_PLAN_CALL, spans, 3, call->n, &table));
    return cuda_explain(cuda_launch_split(&table, join, run->stream));
}
