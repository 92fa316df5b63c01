/* SPDX-License-Identifier: Apache-2.0 */
/* The result of a survey: advice, memory, and a level that fits. */
#include "call/gate.h"
#include "context/devices.h"
#include "context/live.h"
#include "context/parts.h"
#include "context/policy.h"
#include "context/progress.h"
#include "context/reporting.h"
#include "survey/survey.h"

#include <math.h>
#include <string.h>

/* ---- levels ---- */

static int32_t fitness(const struct amp__survey *survey, uint32_t bit, bool casts_ops, uint32_t *n_advice) {
    int32_t fits = 1;
    *n_advice = 0;
    for (const struct amp__advised *advised = survey->list.first; advised; advised = advised->next) {
        if (!(advised->advice.levels & bit)) continue;
        ++*n_advice;
        if (amp__is_of_speed(advised->kind) || !fits) continue;
        fits = casts_ops && amp__is_of_an_op(advised->kind) ? 2 : 0;
    }
    return fits;
}

static amp_status describe_level(struct amp__survey *survey, const amp_context *context, amp_level level,
                                 amp_surveyed_level *out) {
    amp_config config = AMP_CONFIG_INIT;
    struct amp__properties p;
    config.level = level;
    AMP_TRY(amp__properties_resolve(&config, &p));
    *out = (amp_surveyed_level){ .struct_size = sizeof *out };
    out->fits = fitness(survey, 1u << level, p.patch_ops, &out->n_advice);
    return amp__memory_at(context, level, &out->memory);
}

/* Is fp16 known not to pay on this CPU? Where bfloat16 does not either it is no slower, and needs no loss scale. */
static bool prefers_bfloat16(const amp_context *context) {
    if (amp__policy_of(context)->properties.gate == AMP_OFF || amp__devices_of(context)->n_places) return false;
    return amp__gate_pays(context, AMP_FLOAT16) == AMP_OFF;
}

/* A 16-bit model with masters saves the most, casts around ops may leave some out; where fp16 does not do, bfloat16 has
 * FP32's range. On a CPU on which fp16 is slower than FP32 bfloat16 comes first. */
static amp_level choose(const amp_context *context, const amp_surveyed_level *surveyed, size_t n) {
    static const struct {
        amp_dtype low;
        bool masters;
        int32_t at_most; /* of fits */
    } order[] = { { AMP_BFLOAT16, true, 1 }, { AMP_BFLOAT16, false, 2 }, { AMP_FLOAT16, true, 1 },
                  { AMP_FLOAT16, false, 2 }, { AMP_BFLOAT16, true, 1 },  { AMP_BFLOAT16, false, 1 } };
    for (size_t i = prefers_bfloat16(context) ? 0 : 2; i < AMP_COUNT(order); i++)
        for (size_t j = 0; j < n; j++) {
            const struct amp__level *row = amp__level_row(surveyed[j].memory.level);
            if (row->low == order[i].low && (order[i].masters ? row->master_weights : row->patch_ops) &&
                surveyed[j].fits && surveyed[j].fits <= order[i].at_most)
                return surveyed[j].memory.level;
        }
    return AMP_O0;
}

float amp__survey_default_scale(void) {
    amp_config config = AMP_CONFIG_INIT;
    struct amp__properties p;
    config.level = AMP_O0;
    config.loss_scale = AMP_DYNAMIC;
    return amp__properties_resolve(&config, &p) == AMP_OK ? p.scaler.init_scale : 1.0f;
}

/* ---- for people ---- */

static const char *words_of(int32_t fits) { return fits == 1 ? "yes" : fits == 2 ? "yes, with ops in FP32" : "no"; }

static void write_levels(const amp_survey_result *result, amp__text *text) {
    amp__text_add(text, "%-6s %-22s %7s %12s %12s %12s %12s %14s\n", "level", "fits", "advice", "weights",
                  "gradients", "masters", "their grads", "ops' outputs");
    for (uint64_t i = 0; i < result->n_levels; i++) {
        const amp_memory *m = &result->levels[i].memory;
        amp__text_add(text, "%-6s %-22s %7u %12llu %12llu %12llu %12llu %14llu\n", amp__level_name(m->level),
                      words_of(result->levels[i].fits), (unsigned)result->levels[i].n_advice,
                      (unsigned long long)m->weights, (unsigned long long)m->gradients,
                      (unsigned long long)m->masters, (unsigned long long)m->master_gradients,
                      (unsigned long long)m->outputs);
    }
}

enum { SHOWN = 8 }; /* of a kind: all are in amp_survey_result.advice */

/* All of one kind; the first of the next. */
static const struct amp__advised *write_kind(const struct amp__advice_list *list, const struct amp__advised *first,
                                             amp__text *text) {
    const struct amp__advised *at = first;
    size_t n = 0;
    amp__text_add(text, "%s: %s\n", first->advice.code, amp__advice_title(first->kind));
    for (; at && at->kind == first->kind; at = at->next) {
        if (++n > SHOWN) continue;
        amp__text_add(text, "  %.*s [", (int)at->seen_length, at->seen);
        for (amp_level level = 1, some = 0; level <= AMP__LEVELS; level++)
            if (at->advice.levels & 1u << level)
                amp__text_add(text, "%s%s", some++ ? " " : "", amp__level_name(level));
        amp__text_add(text, "]\n");
    }
    if (n > SHOWN) amp__text_add(text, "  and %zu more\n", n - SHOWN);
    amp__text_add(text, "  -> %s\n", amp__advice_mend(list, first->kind));
    return at;
}

/* Writes about memory that could have fewer bits: docs/guide/memory.md. */
static void write_memory(const amp_survey_result *result, const amp_context *context, amp__text *text) {
    const struct amp__policy *policy = amp__policy_of(context);
    const bool python = amp__is_python(context);
    for (uint64_t i = 0; i < result->n_levels && !policy->properties.split_masters; i++) {
        const amp_memory *m = &result->levels[i].memory;
        if (m->masters <= m->masters_split) continue;
        amp__text_add(text, "memory: at %s split masters (master_weights = %s) take %llu byte%s in place of %llu, with "
                      "the same numbers", amp__level_name(m->level), python ? "\"split\"" : "AMP_SPLIT",
                      (unsigned long long)m->masters_split, AMP__S(m->masters_split), (unsigned long long)m->masters);
        if (m->outputs > m->masters && !atomic_load(&amp__progress_of(context)->packed.last_from))
            amp__text_add(text, "; outputs of ops take more, %llu: pack those that backward needs (%s)",
                          (unsigned long long)m->outputs, python ? "amp.compress_activations" : "amp_pack");
        amp__text_add(text, "\n");
    }
}

static bool has_own_optimizers(const amp_context *context) {
    const struct amp__optimizers *optimizers = amp__optimizers_of(context);
    for (size_t i = 0; i < optimizers->n; i++)
        if (!optimizers->list[i].optim) return false;
    return optimizers->n > 0;
}

/* Writes about state that libamp's own optimizers could round at random: docs/reference/stochastic-rounding.md. */
static void write_state(const amp_survey_result *result, const amp_context *context, amp__text *text) {
    const bool python = amp__is_python(context);
    const struct amp__properties *now = &amp__policy_of(context)->properties;
    const amp_memory *first = &result->levels[0].memory;
    if (first->moments_8bit < first->moments)
        amp__text_add(text, "memory: moments in 8 bits (%s) take %llu byte%s in place of %llu, rounded at random: "
                      "elements far below the largest of their 256 take smaller steps, which no survey measures\n",
                      python ? "FusedAdam, state_bits=8" : "AMP_FUSED_STATE_8BIT",
                      (unsigned long long)first->moments_8bit, AMP__S(first->moments_8bit),
                      (unsigned long long)first->moments);
    for (uint64_t i = 0; i < result->n_levels && (python || has_own_optimizers(context)); i++) {
        const amp_memory *m = &result->levels[i].memory;
        const bool without = m->level == now->level && !now->master_weights; /* now */
        if (without || !m->masters || amp__level_row(m->level)->cast_model_type != AMP_BFLOAT16) continue;
        amp__text_add(text, "memory: at %s weights rounded at random (master_weights = %s, libamp's optimizers) need "
                      "no masters, %llu byte%s. The cost is noise of up to a unit of bfloat16 a step, which no survey "
                      "measures: compare a short training, above all with tiny rates and for norm weights\n",
                      amp__level_name(m->level), python ? "\"stochastic\"" : "AMP_STOCHASTIC",
                      (unsigned long long)m->masters, AMP__S(m->masters));
    }
}

static void write_text(const struct amp__survey *survey, const amp_survey_result *result, const amp_context *context,
                       amp__text *text) {
    const uint64_t left_out = amp__observer_of(context)->left_out;
    amp__text_add(text, "survey of %llu iteration%s at %s\n", (unsigned long long)result->iterations,
                  AMP__S(result->iterations), amp__level_name(amp__policy_of(context)->properties.level));
    write_levels(result, text);
    for (const struct amp__advised *advised = survey->list.first; advised;)
        advised = write_kind(&survey->list, advised, text);
    amp__text_add(text, "advised: %s", amp__level_name(result->level));
    if (amp__level_is_dynamic(amp__level_row(result->level)))
        amp__text_add(text, ", init_scale %.9g", (double)result->init_scale);
    if (prefers_bfloat16(context))
        amp__text_add(text, " (products in fp16 are not faster than FP32's on this CPU: docs/guide/gate.md)");
    amp__text_add(text, "\n");
    write_memory(result, context, text);
    write_state(result, context, text);
    amp__survey_write_fp8(result, text);
    if (left_out)
        amp__text_add(text, "omitted for lack of room (the option max_bytes of observe), tensors and ops: %llu\n",
                      (unsigned long long)left_out);
}

static char *make_text(const struct amp__survey *survey, const amp_survey_result *result,
                       const amp_context *context) {
    amp__text measured = { NULL, 0, 0 };
    write_text(survey, result, context, &measured);
    char *data = amp__alloc(measured.length + 1, 1);
    amp__text text = { data, measured.length + 1, 0 };
    if (data) write_text(survey, result, context, &text);
    return data;
}

/* ---- a survey ---- */

void amp__survey_free(struct amp__survey *survey) {
    if (!survey) return;
    amp__advice_free(&survey->list);
    amp__free(survey->advice);
    amp__free(survey->levels);
    amp__free(survey->fp8);
    amp__free(survey->text);
    amp__free(survey);
}

static amp_status conclude(struct amp__survey *survey, const amp_context *context, amp_survey_result *result) {
    struct amp__observer *observer = amp__observer_of(context);
    int exponent;
    size_t n = 0;
    survey->list.python = amp__is_python(context);
    amp__survey_rules(&survey->list, context);
    AMP_TRY(survey->list.status);
    survey->advice = amp__alloc(survey->list.n + 1, sizeof *survey->advice);
    survey->levels = amp__alloc(AMP__LEVELS, sizeof *survey->levels);
    if (!survey->advice || !survey->levels) return amp__fail_memory();
    for (const struct amp__advised *advised = survey->list.first; advised; advised = advised->next)
        survey->advice[n++] = advised->advice;
    for (amp_level level = 1; level <= AMP__LEVELS; level++)
        AMP_TRY(describe_level(survey, context, level, &survey->levels[level - 1]));
    *result = (amp_survey_result){
        .struct_size = sizeof *result, .level = choose(context, survey->levels, AMP__LEVELS),
        .init_scale = amp__survey_default_scale(),
        .iterations = observer->seen_iterations + (observer->calls != 0),
        .advice = survey->advice, .n_advice = n, .levels = survey->levels, .n_levels = AMP__LEVELS,
    };
    AMP_TRY(amp__survey_fp8(context, &survey->fp8, &result->n_fp8));
    result->fp8 = survey->fp8;
    if (amp__survey_scale(context, &exponent)) result->init_scale = ldexpf(1.0f, exponent);
    survey->text = make_text(survey, result, context);
    result->text = survey->text;
    return survey->text ? AMP_OK : amp__fail_memory();
}

static amp_status make_survey(amp_context *context, amp_survey_result *made, bool at_end) {
    pthread_mutex_t *lock = amp__lock_of(context);
    struct amp__observer *observer = amp__observer_of(context);
    struct amp__survey *survey = amp__alloc(1, sizeof *survey);
    if (!survey) return amp__fail_memory();
    amp__observe_collect(context);
    pthread_mutex_lock(lock);
    const amp_status status = conclude(survey, context, made);
    if (status == AMP_OK) {
        struct amp__survey *old = observer->survey;
        observer->survey = survey;
        survey = old;
    }
    pthread_mutex_unlock(lock);
    amp__survey_free(survey);
    if (status == AMP_OK) amp__survey_tell(context, made, at_end);
    return status;
}

void amp__survey_at_end(amp_context *context) {
    struct amp__observer *observer = amp__observer_of(context);
    amp_survey_result made;
    if (!amp__reporting_of(context)->trace || !observer || !observer->first) return;
    const amp_status status = make_survey(context, &made, true);
    (void)status; /* the trace goes without it */
}

AMP_API amp_status amp_survey(amp_context *context, amp_survey_result *result) {
    amp_survey_result made;
    AMP_RETURN_IF(!context || !result || !amp__context_is_live(context), AMP_ERR_INVALID_ARGUMENT,
                  "amp_survey: %s", !result ? "result is NULL" : "there is no such context: was it shut down?");
    struct amp__observer *observer = amp__observer_of(context);
    AMP_TRY(amp__check_struct(result->struct_size, sizeof *result, "amp_survey_result"));
    AMP_RETURN_IF(!observer || !observer->first, AMP_ERR_WRONG_STATE, "amp_survey: nothing was "
                  "observed: call amp_observe after amp_initialize, with amp_config.observe on, and train some steps");
    AMP_TRY(make_survey(context, &made, false));
    return amp__fill_struct(result, result->struct_size, sizeof made, &made, sizeof made, "amp_survey_result");
}
