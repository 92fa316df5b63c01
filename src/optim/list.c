/* SPDX-License-Identifier: Apache-2.0 */
/* amp_optim_list: everything is checked before anything is written, then one tensor is stepped after the other. */
#include "kernels/device.h"
#include "kernels/fpenv.h"
#include "kernels/kernels.h"
#include "optim/optim.h"

#include <math.h>
#include <string.h>

/* ---- checks ---- */

static amp_status check_span(const amp_span *span, const char *list, size_t i, uint64_t size, bool fp32_only) {
    const bool type = span->dtype == AMP_FLOAT32 || (!fp32_only && amp__is_low(span->dtype));
    AMP_RETURN_IF(!type, AMP_ERR_INVALID_ARGUMENT, "%s[%zu].dtype is %s: use fp32%s", list, i,
                  amp__dtype_name(span->dtype), fp32_only ? "" : ", fp16 or bf16");
    AMP_RETURN_IF(span->reserved, AMP_ERR_INVALID_ARGUMENT, "%s[%zu].reserved is not 0", list, i);
    AMP_RETURN_IF(span->size != size, AMP_ERR_INVALID_ARGUMENT, "%s[%zu] has %llu element%s; it needs %llu", list, i,
                  (unsigned long long)span->size, AMP__S(span->size), (unsigned long long)size);
    AMP_RETURN_IF(size && !span->data, AMP_ERR_INVALID_ARGUMENT, "%s[%zu].data is NULL", list, i);
    AMP_RETURN_IF(size > PTRDIFF_MAX / sizeof(float), AMP_ERR_INVALID_ARGUMENT,
                  "%s[%zu] has more elements than there can be", list, i);
    return AMP_OK;
}

static amp_status check_low(const amp_optim_tensors *t, size_t i) {
    if (!t->low || !t->low[i].data) return AMP_OK;
    AMP_RETURN_IF(!amp__is_low(t->low[i].dtype) || t->param[i].dtype != AMP_FLOAT32, AMP_ERR_INVALID_ARGUMENT,
                  "low[%zu] is %s beside param[%zu] in %s: it is the 16-bit copy of an FP32 master", i,
                  amp__dtype_name(t->low[i].dtype), i, amp__dtype_name(t->param[i].dtype));
    return check_span(&t->low[i], "low", i, t->param[i].size, false);
}

static amp_status check_remainder(const amp_optim_tensors *t, size_t i) {
    const void *remainder = t->remainders ? t->remainders[i] : NULL;
    if (!remainder) return AMP_OK;
    AMP_RETURN_IF(t->param[i].dtype != AMP_BFLOAT16, AMP_ERR_INVALID_ARGUMENT,
                  "param[%zu] is %s and has a remainder: a split master is bf16", i,
                  amp__dtype_name(t->param[i].dtype));
    AMP_RETURN_IF(t->low && t->low[i].data, AMP_ERR_INVALID_ARGUMENT,
                  "low[%zu] has data beside remainders[%zu]: the 16-bit parameter is param", i, i);
    AMP_RETURN_IF((uintptr_t)remainder % sizeof(uint32_t), AMP_ERR_INVALID_ARGUMENT,
                  "remainders[%zu] is not aligned to 4 bytes", i);
    return AMP_OK;
}

static const char *const moments[] = { "moments[0]", "moments[1]", "moments[2]" };

static const float *scales_of(const amp_optim_tensors *t, int k, size_t i) {
    return k < 2 && t->scales[k] ? t->scales[k][i] : NULL;
}

/* A bf16 parameter alone: not one with a master, whole or split. */
static bool is_stochastic(const amp_optim_tensors *t, size_t i) {
    const bool alone = t->param[i].dtype != AMP_FLOAT32 && !(t->remainders && t->remainders[i]);
    return (t->flags & AMP_TENSORS_STOCHASTIC) && alone;
}

/* Moments in 8 bits. */
static amp_status check_codes(const amp_optim *rule, const amp_optim_tensors *t, size_t i) {
    AMP_RETURN_IF(!amp__optim_codes(rule), AMP_ERR_INVALID_ARGUMENT,
                  "scales[0][%zu] is given, and moments in 8 bits are for Adam and AdamW without AMP_OPTIM_AMSGRAD", i);
    for (int k = 0; k < 2; k++) {
        const amp_span *span = t->moments[k] ? &t->moments[k][i] : NULL;
        AMP_RETURN_IF(!scales_of(t, k, i), AMP_ERR_INVALID_ARGUMENT,
                      "scales[%d][%zu] is NULL beside the scales of the other moment", k, i);
        AMP_RETURN_IF((uintptr_t)scales_of(t, k, i) % sizeof(float), AMP_ERR_INVALID_ARGUMENT,
                      "scales[%d][%zu] is not aligned to 4 bytes", k, i);
        AMP_RETURN_IF(!span || (!span->data && span->size), AMP_ERR_INVALID_ARGUMENT,
                      "%s has no codes of tensor %zu, and scales[%d] has its scales", moments[k], i, k);
        AMP_RETURN_IF(span->dtype != AMP_DTYPE_OTHER, AMP_ERR_INVALID_ARGUMENT,
                      "%s[%zu].dtype is %s beside scales: codes are AMP_DTYPE_OTHER", moments[k], i,
                      amp__dtype_name(span->dtype));
        AMP_RETURN_IF(span->size != t->param[i].size, AMP_ERR_INVALID_ARGUMENT,
                      "%s[%zu] has %llu code%s; it needs %llu", moments[k], i, (unsigned long long)span->size,
                      AMP__S(span->size), (unsigned long long)t->param[i].size);
    }
    return AMP_OK;
}

static amp_status check_tensor(const amp_optim *rule, const amp_optim_tensors *t, size_t i) {
    const uint64_t size = t->param[i].size;
    AMP_TRY(check_span(&t->param[i], "param", i, size, false));
    AMP_TRY(check_span(&t->grad[i], "grad", i, size, false));
    AMP_TRY(check_low(t, i));
    AMP_TRY(check_remainder(t, i));
    AMP_RETURN_IF(is_stochastic(t, i) && t->param[i].dtype != AMP_BFLOAT16, AMP_ERR_INVALID_ARGUMENT,
                  "param[%zu].dtype is %s: AMP_TENSORS_STOCHASTIC rounds to bf16", i,
                  amp__dtype_name(t->param[i].dtype));
    if (scales_of(t, 0, i) || scales_of(t, 1, i)) return check_codes(rule, t, i);
    for (int k = 0; k < AMP__MOMENTS; k++) {
        if (!amp__optim_moment(rule, k)) continue;
        AMP_RETURN_IF(!t->moments[k], AMP_ERR_INVALID_ARGUMENT, "%s is NULL, and the rule keeps %s there",
                      moments[k], amp__optim_moment(rule, k));
        AMP_TRY(check_span(&t->moments[k][i], moments[k], i, amp__optim_moment_size(rule, k, size), true));
    }
    return AMP_OK;
}

static amp_status check_tensors(const amp_optim *rule, const amp_optim_tensors *t) {
    AMP_RETURN_IF(t->n && (!t->grad || !t->param), AMP_ERR_INVALID_ARGUMENT, "%s is NULL and n is %zu",
                  t->grad ? "param" : "grad", t->n);
    AMP_RETURN_IF(t->flags & ~(uint32_t)AMP_TENSORS_STOCHASTIC, AMP_ERR_INVALID_ARGUMENT, "unknown flags 0x%x",
                  (unsigned)t->flags);
    AMP_RETURN_IF(t->reserved, AMP_ERR_INVALID_ARGUMENT, "reserved is not 0");
    AMP_RETURN_IF(t->n && !t->steps && !t->step, AMP_ERR_INVALID_ARGUMENT,
                  "steps is NULL and step is 0: give each tensor's count, or the number of this step");
    AMP_RETURN_IF(t->n_steps > 1 && t->n_steps != t->n, AMP_ERR_INVALID_ARGUMENT,
                  "n_steps is %zu: steps has 1 entry, or one for each of the %zu tensor%s", t->n_steps, t->n,
                  AMP__S(t->n));
    AMP_RETURN_IF(!(fabsf(t->grad_factor) <= 3.402823466e38f), AMP_ERR_INVALID_ARGUMENT,
                  "grad_factor is not finite");
    for (size_t i = 0; i < t->n; i++) AMP_TRY(check_tensor(rule, t, i));
    return AMP_OK;
}

/* ---- the step ---- */

/* Member by member: a structure made whole and then copied waits for its own stores. */
static void find_tensor(const amp_optim *rule, const amp_optim_tensors *t, size_t i, struct amp__optim_tensor *tensor) {
    memset(tensor, 0, sizeof *tensor);
    tensor->grad = t->grad[i];
    tensor->param = t->param[i];
    if (t->low) tensor->low = t->low[i];
    if (t->remainders) tensor->remainder = t->remainders[i];
    tensor->inv_scale = t->inv_scale ? *t->inv_scale : 1.0f;
    tensor->factor = t->grad_factor == 0.0f ? 1.0f : t->grad_factor;
    tensor->grad_norm = t->grad_norms ? t->grad_norms[i] : 0.0f;
    tensor->has_norm = t->grad_norms != NULL;
    tensor->key = t->keys ? t->keys[i] : i;
    tensor->before = t->before ? t->before[i] : 0;
    tensor->stochastic = is_stochastic(t, i);
    for (int k = 0; k < AMP__MOMENTS; k++) {
        if (!amp__optim_moment(rule, k)) continue;
        if (scales_of(t, k, i)) tensor->codes[k] = t->moments[k][i].data, tensor->scales[k] = t->scales[k][i];
        else tensor->moments[k] = t->moments[k][i].data;
    }
}

static float limit_of(const amp_optim *rule, const amp_optim_tensors *t) {
    double squares = 0.0;
    if (!amp__optim_needs_norm(rule)) return 1.0f;
    if (t->grad_norm) return amp__optim_limit(rule, *t->grad_norm);
    for (size_t i = 0; i < t->n; i++) {
        struct amp__optim_tensor tensor;
        find_tensor(rule, t, i, &tensor);
        squares += amp__optim_squares(&tensor);
    }
    return amp__optim_limit(rule, (float)sqrt(squares));
}

/* Returns true if the first results are out of the caches at the end anyway. */
static bool exceeds_caches(const amp_optim *rule, const amp_optim_tensors *t) {
    uint64_t bytes = 0;
    if (!t->low) return false;
    for (size_t i = 0; i < t->n; i++)
        bytes += amp__optim_bytes(rule, t->grad[i].dtype, t->param[i].size, scales_of(t, 0, i) != NULL);
    return bytes > amp__cache_bytes();
}

/* One count holds for all tensors. */
static bool is_shared(const amp_optim_tensors *t) { return !t->steps || (t->n_steps == 1 && t->n > 1); }

struct step {
    const amp_optim *rule;
    const amp_optim_tensors *t;
    bool shared;
    uint64_t steps; /* where it is shared */
    struct amp__powers powers;
    float limit;
    bool stream;
};

static uint64_t size_of(void *step, size_t i) { return ((const struct step *)step)->t->param[i].size; }

static void update(void *step, size_t i) {
    const struct step *s = step;
    struct amp__optim_tensor tensor;
    find_tensor(s->rule, s->t, i, &tensor);
    uint64_t steps = s->steps;
    tensor.steps = s->shared ? &steps : &s->t->steps[i];
    tensor.powers = &s->powers;
    tensor.stream = s->stream;
    amp__optim_update(s->rule, &tensor, s->limit);
}

/* Apart, so that no arithmetic is moved out of the environment that the caller sets. */
__attribute__((noinline)) static void step(const amp_optim *rule, const amp_optim_tensors *t) {
    const uint64_t first = !t->n ? 0 : t->steps ? t->steps[0] : t->step - 1;
    struct step s = { rule, t, is_shared(t), first, amp__optim_powers(rule, first), limit_of(rule, t),
                      exceeds_caches(rule, t) };
    amp__optim_update_all(t->n, size_of, update, &s);
    if (s.shared && t->steps) t->steps[0]++;
}

static amp_status check_call(const amp_optim *given, const amp_optim_tensors *tensors, const char *function,
                             amp_optim *rule, amp_optim_tensors *t) {
    AMP_RETURN_IF(!tensors, AMP_ERR_INVALID_ARGUMENT, "%s: tensors is NULL", function);
    AMP_TRY(amp__copy_struct(t, sizeof *t, sizeof *t, tensors, tensors->struct_size, "amp_optim_tensors"));
    AMP_TRY(amp__optim_check(given, function, rule));
    const amp_status status = check_tensors(rule, t);
    return status == AMP_OK ? AMP_OK : amp__fail_prefix(status, "%s", function);
}

AMP_API amp_status amp_optim_list(const amp_optim *given, const amp_optim_tensors *tensors) {
    amp_optim rule;
    amp_optim_tensors t;
    AMP_TRY(check_call(given, tensors, "amp_optim_list", &rule, &t));
    if (t.found_inf && *t.found_inf != 0.0f) return AMP_OK;
    const amp__fpenv saved = amp__fpenv_enter();
    step(&rule, &t);
    amp__fpenv_leave(saved);
    return AMP_OK;
}

AMP_API amp_status amp_device_optim(amp_device_list *list, void *stream, const amp_optim *given,
                                    const amp_optim_tensors *tensors) {
    amp_optim rule;
    amp_optim_tensors t;
    AMP_TRY(check_call(given, tensors, "amp_device_optim", &rule, &t));
    for (int k = 0; k < AMP__MOMENTS; k++)
        if (!amp__optim_moment(&rule, k)) t.moments[k] = NULL;
    const struct amp__list_call call = {
        .kind = AMP__LIST_OPTIM, .stream = stream, .n = t.n, .rule = &rule, .tensors = &t
    };
    const amp__fpenv saved = amp__fpenv_enter(); /* the backend may compute a tensor's numbers here */
    const amp_status status = amp__device_run(list, &call, "amp_device_optim");
    amp__fpenv_leave(saved);
    return status;
}
