/* SPDX-License-Identifier: Apache-2.0 */
/* The conclusions of a survey from the observations. Losses are exactly those of a cast. */
#include "context/parts.h"
#include "context/policy.h"
#include "survey/survey.h"

#include <math.h>
#include <string.h>

static uint64_t numbers_of(const amp_statistics *s) { return s->elements - s->zeros - amp__nonfinite(s); }

static amp_losses losses_at(const amp_statistics *s, float scale) {
    amp_losses losses = { 0 };
    const amp_status status = amp_statistics_losses(s, AMP_FLOAT16, scale, &losses);
    (void)status; /* of FP64 beyond the binades it is not known */
    return losses;
}

static double percent(uint64_t part, uint64_t whole) { return whole ? 100.0 * (double)part / (double)whole : 0.0; }

/* ---- levels by property, as bits 1u << level ---- */

typedef bool level_test(const struct amp__level *row);

static uint32_t levels_in(amp_dtype low, level_test *holds) {
    uint32_t bits = 0;
    for (amp_level level = 1; level <= AMP__LEVELS; level++) {
        const struct amp__level *row = amp__level_row(level);
        if (row->low == low && holds(row)) bits |= 1u << level;
    }
    return bits;
}

static uint32_t fp16_levels(level_test *holds) { return levels_in(AMP_FLOAT16, holds); }

static uint32_t every_level(void) { return ((1u << AMP__LEVELS) - 1) << 1; }

static bool has_unscaled_gradients(const struct amp__level *row) {
    return amp__level_retypes(row) && row->loss_scale == 1.0f;
}

static bool has_only_low_weights(const struct amp__level *row) {
    return amp__level_retypes(row) && !row->master_weights;
}

static bool has_low_batch_norm(const struct amp__level *row) {
    return amp__level_retypes(row) && !row->keep_batchnorm_fp32;
}

/* ---- ops ---- */

/* The fp16 levels at which the op works in 16 bits: by its class where ops are cast; at the others all ops of a 16-bit
 * model do. What follows the types that it gets does where it was seen to, or where nobody casts yet, unless all its
 * calls got what an op in FP32 made. */
static uint32_t low_levels(const struct amp__seen *seen) {
    const struct amp__op *op = seen->op;
    const bool fp32 = op->listed == AMP_FP32 || op->listed == AMP_BANNED || seen->flows == AMP__FLOWS_WIDE;
    const bool patches = amp__policy_of(op->context)->properties.patch_ops;
    const bool follows = op->listed != AMP_LOWER && patches && !amp__is_low(seen->dtype);
    return fp16_levels(!fp32 && !follows ? amp__level_is_low : amp__level_retypes);
}

static bool uses_fp16(const struct amp__properties *p) {
    return p->low == AMP_FLOAT16 && (p->patch_ops || amp__retypes(p));
}

/* Returns true if its elements have the values of fp16, by their type or by rounding. */
static bool is_in_fp16(const struct amp__seen *seen) {
    const struct amp__properties *p = &amp__policy_of(seen->op->context)->properties;
    const bool rounds = p->emulate && uses_fp16(p) && seen->op->listed != AMP_FP32;
    return seen->dtype == AMP_FLOAT16 || rounds;
}

/* -infinity is how attention is masked. */
static void look_for_nonfinite(struct amp__advice_list *list, const struct amp__seen *seen) {
    const uint64_t nonfinite = seen->total.nans + seen->total.plus_infinities;
    const struct amp__about about = { seen, every_level(), nonfinite, seen->total.elements };
    const bool is_value = seen->op ? !seen->op->is_backward : seen->what == AMP_SEE_WEIGHTS;
    if (nonfinite && is_value)
        amp__advise(list, AMP__NOT_FINITE, &about, "%s%s%s%s: %llu of %llu elements are NaN or infinite as the "
                    "training is", seen->op ? "op " : "parameter ", seen->op ? seen->op->name : "",
                    seen->op ? ", " : "", seen->name, (unsigned long long)nonfinite,
                    (unsigned long long)seen->total.elements);
}

/* Returns true for an op that reads or writes -infinity, the mask of attention: it did not make it from finite
 * values. */
static bool is_masked(const struct amp__seen *seen) {
    if (amp__observe_fills(seen->op)) return true;
    if (!amp__observe_takes_masks(seen->op)) return false;
    const struct amp__seen *other = amp__map_get(&amp__observer_of(seen->op->context)->by_owner, (uintptr_t)seen->op);
    for (; other; other = other->sibling)
        if (other->what == AMP_SEE_INPUTS && other->total.minus_infinities) return true;
    return false;
}

static uint64_t infinite_in(const struct amp__seen *seen, const amp_statistics *s) {
    const uint64_t infinite = losses_at(s, 1.0f).infinities;
    if (!is_in_fp16(seen)) return infinite;
    return infinite + s->plus_infinities + (is_masked(seen) ? 0 : s->minus_infinities);
}

/* Returns true if all values beyond fp16 are one large negative number, the same in each iteration: a mask of -1e9. The
 * sum shows it, since values within fp16 are small beside it. */
static bool is_a_mask(const struct amp__seen *seen, uint64_t infinite) {
    const amp_statistics *s = &seen->total;
    const double masked = s->largest * (double)infinite;
    return s->largest >= 1e6 && s->largest == seen->last.largest && !amp__nonfinite(s) &&
           !seen->op->is_backward && amp__observe_takes_masks(seen->op) && fabs(s->sum + masked) <= 1e-3 * masked;
}

void amp__survey_decided(amp_context *context, bool skipped) {
    struct amp__observer *observer = amp__observer_of(context);
    if (!amp__policy_of(context)->properties.scaler.dynamic) return;
    pthread_mutex_lock(observer->lock);
    for (struct amp__seen *seen = observer->first; seen; seen = seen->next) {
        if (seen->iteration != observer->observed || !seen->op || !seen->op->is_backward) continue;
        if (!skipped) {
            seen->skipped.kept_largest = fmax(seen->skipped.kept_largest, seen->last.largest);
            continue;
        }
        seen->skipped.iterations++;
        seen->skipped.elements += seen->last.elements;
        seen->skipped.infinite += infinite_in(seen, &seen->last);
    }
    pthread_mutex_unlock(observer->lock);
}

/* Where every iteration was skipped the scale is no excuse. */
static void look_for_overflow(struct amp__advice_list *list, const struct amp__seen *seen) {
    const bool excused = seen->skipped.iterations && seen->skipped.iterations < seen->iterations;
    const uint64_t infinite = infinite_in(seen, &seen->total) - (excused ? seen->skipped.infinite : 0);
    const uint64_t elements = seen->total.elements - (excused ? seen->skipped.elements : 0);
    if (!infinite) return;
    const struct amp__about about = { seen, low_levels(seen), infinite, elements };
    if (is_a_mask(seen, infinite))
        amp__advise(list, AMP__CONSTANT_UNFIT, &about, "op %s, %s: %.4g is infinite in fp16", seen->op->name,
                    seen->name, -seen->total.largest);
    else
        amp__advise(list, AMP__OVERFLOWS, &about, "op %s, %s: %.3g %% of %llu elements are infinite in fp16, the "
                    "largest is %.4g", seen->op->name, seen->name, percent(infinite, elements),
                    (unsigned long long)elements, excused ? seen->skipped.kept_largest : seen->total.largest);
}

static void look_for_inverse(struct amp__advice_list *list, const struct amp__seen *seen) {
    static const char *const inverses[] = { "log", "log2", "log10", "div", "true_divide", "reciprocal", "rsqrt",
                                            "__div__", "__truediv__", "__rdiv__", "__rtruediv__" };
    const uint64_t zeros = losses_at(&seen->total, 1.0f).zeros;
    if (seen->what != AMP_SEE_INPUTS || !zeros) return;
    if (!amp__op_is_one_of(seen->op->name, inverses, AMP_COUNT(inverses))) return;
    const struct amp__about about = { seen, low_levels(seen), zeros, seen->total.elements };
    amp__advise(list, AMP__INVERSE_OF_ZERO, &about, "op %s, %s: %.3g %% of %llu elements are 0 in fp16, the smallest "
                "is %.4g", seen->op->name, seen->name, percent(zeros, seen->total.elements),
                (unsigned long long)seen->total.elements, seen->total.least);
}

/* Advises on the sum over a tensor in the last iteration. */
static void look_for_sums(struct amp__advice_list *list, const struct amp__seen *seen) {
    static const char *const sums[] = { "sum", "mean", "cumsum", "logsumexp" };
    static const char *const squares[] = { "norm", "var", "std", "mse_loss", "layer_norm", "group_norm", "rms_norm",
                                           "instance_norm" };
    const bool squared = amp__op_is_one_of(seen->op->name, squares, AMP_COUNT(squares));
    if (seen->what != AMP_SEE_INPUTS || !(squared || amp__op_is_one_of(seen->op->name, sums, AMP_COUNT(sums)))) return;
    const double total = squared ? seen->last.sum_squares : fabs(seen->last.sum);
    const double each = seen->tensors ? total / (double)seen->tensors : 0.0;
    if (!(each > 65504.0) || isinf(each)) return;
    const struct amp__about about = { seen, low_levels(seen), seen->last.elements, seen->last.elements };
    amp__advise(list, AMP__SUM_OVERFLOWS, &about, "op %s, %s: its %s come to %.4g in a call", seen->op->name,
                seen->name, squared ? "squares" : "elements", each);
}

/* A power of two among the scales that are tried, and nothing else: backward's seed of 1 times the loss scale. The
 * product with 1 / n fits. */
static bool is_a_scaled_seed(const struct amp__seen *seen) {
    const struct amp__scaler_settings *scaler = &amp__policy_of(seen->op->context)->properties.scaler;
    const double number = seen->total.largest;
    int exponent;
    if (seen->op->seeds) return true;
    return scaler->dynamic && number > 65504.0 && number <= (double)scaler->max_scale &&
           frexp(number, &exponent) == 0.5; /* exact */
}

/* A number by value, or a tensor of one element in each call. */
static void look_for_constants(struct amp__advice_list *list, const struct amp__seen *seen) {
    const amp_losses lost = losses_at(&seen->total, 1.0f);
    if (seen->what != AMP_SEE_INPUTS || seen->last.elements != seen->tensors || !(lost.zeros + lost.infinities)) return;
    if (!lost.zeros && is_a_scaled_seed(seen)) return;
    const struct amp__about about = { seen, low_levels(seen), lost.zeros + lost.infinities, seen->total.elements };
    amp__advise(list, AMP__CONSTANT_UNFIT, &about, "op %s, %s: %.4g is %s in fp16", seen->op->name, seen->name,
                lost.zeros ? seen->total.least : seen->total.largest, lost.zeros ? "0" : "infinite");
}

static void look_for_shapes(struct amp__advice_list *list, const struct amp__seen *seen) {
    const uint32_t low = fp16_levels(amp__level_is_low) | levels_in(AMP_BFLOAT16, amp__level_is_low);
    const struct amp__about about = { seen, low, 0, 0 };
    if (seen->op->listed == AMP_LOWER && seen->odd)
        amp__advise(list, AMP__ODD_DIMENSIONS, &about, "op %s, %s: a dimension of %lld", seen->op->name, seen->name,
                    (long long)seen->odd);
}

/* Elements for each mean: those of the largest input over those of the smallest that is more than a number. */
static void look_at_norm(struct amp__advice_list *list, const struct amp__seen *seen,
                         const struct amp__observer *observer) {
    enum { FEW = 16 };
    uint64_t channels = 0;
    if (seen->what != AMP_SEE_INPUTS || !amp__op_is_norm(seen->op) || !seen->tensors) return;
    const uint64_t elements = seen->last.elements / seen->tensors;
    for (const struct amp__seen *other = observer->first; other; other = other->next) {
        if (other->op != seen->op || other->what != AMP_SEE_INPUTS || other->last.elements <= other->tensors) continue;
        const uint64_t each = other->last.elements / other->tensors;
        if (each > elements) return; /* seen is none of the input */
        if (!channels || each < channels) channels = each;
    }
    const struct amp__about about = { seen, fp16_levels(amp__level_is_low), elements, elements };
    if (channels && channels < elements && elements / channels < FEW)
        amp__advise(list, AMP__SMALL_BATCH, &about, "op %s, %s: %llu element%s for each of %llu channel%s",
                    seen->op->name, seen->name, (unsigned long long)(elements / channels),
                    AMP__S(elements / channels), (unsigned long long)channels, AMP__S(channels));
}

/* ---- parameters ---- */

static bool is_gradient(const struct amp__seen *seen) { return seen->what == AMP_SEE_GRADIENTS; }

/* Made on the way to gradients. */
static bool is_backward(const struct amp__seen *seen) {
    return seen->op && seen->op->is_backward && seen->what == AMP_SEE_OUTPUTS;
}

bool amp__survey_scale(const amp_context *context, int *exponent) {
    struct amp__observer *observer = amp__observer_of(context);
    /* the outputs of backward carry the scale */
    const bool unscaled = amp__scaling_is_trivial(&amp__policy_of(context)->properties);
    double largest = 0.0;
    for (const struct amp__seen *seen = observer->first; seen; seen = seen->next)
        if (is_gradient(seen) || (unscaled && is_backward(seen))) largest = fmax(largest, seen->total.largest);
    if (!(largest > 0.0)) return false;
    int power = 0;
    while (power < 24 && ldexp(largest, power + 2) < 65504.0) power++;
    *exponent = power;
    return true;
}

enum { SMALL_PART = 20 }; /* one in so many may be lost: fewer are noise beside the batch's own */

/* Advises on underflow. The loss scale of O3 is 1 by default. A training with another scale may show none. */
static void look_for_underflow(struct amp__advice_list *list, const struct amp__seen *seen,
                               const amp_context *context) {
    const struct amp__policy *policy = amp__policy_of(context);
    const uint64_t numbers = numbers_of(&seen->total), zeros = losses_at(&seen->total, 1.0f).zeros;
    const uint32_t levels = fp16_levels(has_unscaled_gradients);
    const struct amp__about about = { seen, levels, zeros, numbers };
    if (numbers && zeros >= numbers / SMALL_PART + 1)
        amp__advise(list, AMP__UNDERFLOWS, &about, "parameter %s: %.3g %% of its gradient is 0 in fp16 at a loss scale "
                    "of 1", seen->name, percent(zeros, numbers));
    const struct amp__about all = { seen, levels, seen->total.zeros, seen->total.elements };
    if (seen->total.zeros == seen->total.elements && uses_fp16(&policy->properties) &&
        amp__scaling_is_trivial(&policy->properties))
        amp__advise(list, AMP__UNDERFLOWS, &all, "parameter %s: all of its gradient is 0, in fp16 at a loss scale of 1",
                    seen->name);
}

static void look_at_gradient(struct amp__advice_list *list, const struct amp__seen *seen, int exponent,
                             const amp_context *context) {
    look_for_underflow(list, seen, context);
    const uint64_t numbers = numbers_of(&seen->total), zeros = losses_at(&seen->total, ldexpf(1.0f, exponent)).zeros;
    if (!numbers || zeros < numbers / SMALL_PART + 1) return;
    const struct amp__about about = { seen, fp16_levels(amp__level_is_low), zeros, numbers };
    amp__advise(list, AMP__GRADIENTS_SPAN, &about, "parameter %s: %.3g %% of its gradient is 0 in fp16 at 2^%d, the "
                "greatest scale that %s", seen->name, percent(zeros, numbers), exponent,
                exponent < 24 ? "others bear" : "is tried by default (max_scale)");
}

static void look_at_scale(struct amp__advice_list *list, int exponent) {
    const struct amp__about about = { NULL, fp16_levels(amp__level_is_dynamic), 0, 0 };
    const float start = amp__survey_default_scale();
    if (ldexpf(1.0f, exponent) < start)
        amp__advise(list, AMP__SCALE_FALLS, &about, "gradients fit fp16 at a loss scale of 2^%d, with a binade to "
                    "spare, and the default is %g", exponent, (double)start);
}

static void look_at_update(struct amp__advice_list *list, const struct amp__seen *seen) {
    const uint64_t numbers = numbers_of(&seen->total);
    const struct amp__about about = { seen, fp16_levels(has_only_low_weights), seen->lost_fp16, numbers };
    if (numbers && seen->lost_fp16 >= numbers / 10 + 1)
        amp__advise(list, AMP__UPDATES_LOST, &about, "parameter %s: %.3g %% of its updates would not show in fp16, "
                    "%.3g %% in bf16", seen->name, percent(seen->lost_fp16, numbers),
                    percent(seen->lost_bf16, numbers));
}

/* A few that become 0 beside others of a usual size change nothing; half of them do. Batch norm stays FP32 at O2. */
static void look_at_weight(struct amp__advice_list *list, const struct amp__seen *seen) {
    const bool norm = seen->param->module_kind == AMP_MODULE_BATCH_NORM;
    const amp_losses lost = losses_at(&seen->total, 1.0f);
    const uint64_t numbers = numbers_of(&seen->total), all = lost.infinities + lost.zeros;
    const uint32_t levels = fp16_levels(norm ? has_low_batch_norm : amp__level_retypes);
    const struct amp__about about = { seen, levels, all, seen->total.elements };
    if (lost.infinities || (lost.zeros && lost.zeros >= numbers / 2))
        amp__advise(list, AMP__WEIGHTS_UNFIT, &about, "parameter %s: of %llu elements, infinite in fp16: %llu, 0: %llu",
                    seen->name, (unsigned long long)seen->total.elements, (unsigned long long)lost.infinities,
                    (unsigned long long)lost.zeros);
}

/* ---- all ---- */

static void look_at_op(struct amp__advice_list *list, const struct amp__seen *seen,
                       const struct amp__observer *observer) {
    const bool is_number = seen->what == AMP_SEE_INPUTS && seen->last.elements == seen->tensors;
    if (is_number && !seen->op->is_backward) look_for_constants(list, seen); /* the loss scale is no constant */
    if (!is_number) look_for_overflow(list, seen);
    look_for_shapes(list, seen);
    if (seen->op->is_backward) return;
    if (!is_number) look_for_inverse(list, seen);
    look_for_sums(list, seen);
    look_at_norm(list, seen, observer);
}

void amp__survey_rules(struct amp__advice_list *list, const amp_context *context) {
    const struct amp__observer *observer = amp__observer_of(context);
    int exponent = 0;
    const bool has_gradients = amp__survey_scale(context, &exponent);
    if (has_gradients) look_at_scale(list, exponent);
    for (const struct amp__seen *seen = observer->first; seen; seen = seen->next) {
        if (!seen->iterations) continue;
        if (seen->op) look_at_op(list, seen, observer);
        else if (is_gradient(seen)) look_at_gradient(list, seen, exponent, context);
        else if (seen->what == AMP_SEE_UPDATES) look_at_update(list, seen);
        else if (seen->what == AMP_SEE_WEIGHTS || seen->what == AMP_SEE_MASTERS) look_at_weight(list, seen);
    }
    /* in fp16 an overflow that was seen explains it */
    if (uses_fp16(&amp__policy_of(context)->properties) && amp__advises(list, AMP__OVERFLOWS)) return;
    for (const struct amp__seen *seen = observer->first; seen; seen = seen->next) look_for_nonfinite(list, seen);
}
