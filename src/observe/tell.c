/* SPDX-License-Identifier: Apache-2.0 */
/* Observations as lines of the trace. */
#include "context/parts.h"
#include "context/trace.h"
#include "context/trace_line.h"
#include "observe/observe.h"
#include "opt_levels/levels.h"

static const char *const words[] = { "input", "output", "weight", "scaled", "gradient", "master", "update" };

static const char *word_of(uint32_t what) { return words[__builtin_ctz(what)]; }

/* "fp16":[zeros,subnormals,infinities]: the losses of a cast to the type without a factor. */
static void add_losses(amp__text *line, const char *name, const amp_statistics *statistics, amp_dtype type) {
    amp_losses losses = { 0 };
    if (amp_statistics_losses(statistics, type, 1.0f, &losses) != AMP_OK) return;
    amp__text_add(line, ",\"%s\":[%llu,%llu,%llu]", name, (unsigned long long)losses.zeros,
                  (unsigned long long)losses.subnormals, (unsigned long long)losses.infinities);
}

/* "e4m3":[zeros,subnormals] at the tensor's best scale, and the sampled blocks, if there are any: their nonzero
 * elements, then zeros, subnormals and saturated ones of E4M3, and of E5M2. */
static void add_fp8(amp__text *line, const struct amp__seen *seen) {
    static const char *const names[] = { [AMP__E4M3] = "e4m3", [AMP__E5M2] = "e5m2" };
    const struct amp__fp8_blocks *blocks = &seen->blocks_last;
    for (int kind = 0; kind < AMP__FP8S; kind++) {
        struct amp__fp8_losses losses;
        amp__fp8_losses(&seen->last, (enum amp__fp8)kind, &losses);
        amp__text_add(line, ",\"%s\":[%llu,%llu]", names[kind], (unsigned long long)losses.zeros,
                      (unsigned long long)losses.subnormals);
    }
    if (amp__fp8_casts(seen)) amp__text_add(line, ",\"product\":true");
    if (!blocks->numbers) return;
    amp__text_add(line, ",\"mxfp8\":[%llu", (unsigned long long)blocks->numbers);
    for (int kind = 0; kind < AMP__FP8S; kind++)
        amp__text_add(line, ",%llu,%llu,%llu", (unsigned long long)blocks->losses[kind].zeros,
                      (unsigned long long)blocks->losses[kind].subnormals,
                      (unsigned long long)blocks->losses[kind].saturated);
    amp__text_add(line, "]");
}

/* From the first binade that has some to the last. */
static void add_binades(amp__text *line, const amp_statistics *statistics) {
    int first = 0, last = AMP_BINADES - 1;
    while (first < AMP_BINADES && !statistics->binades[first].elements) first++;
    while (last >= 0 && !statistics->binades[last].elements) last--;
    amp__text_add(line, ",\"first\":%d,\"binades\":[", first > last ? 0 : first + AMP_BINADE_LEAST);
    for (int i = first; i <= last; i++)
        amp__text_add(line, i == first ? "%llu" : ",%llu", (unsigned long long)statistics->binades[i].elements);
    amp__text_add(line, "]");
}

static void tell_one(amp_context *context, const struct amp__seen *seen, uint64_t bracket) {
    const amp_statistics *s = &seen->last;
    const char *where = amp__observe_line(amp__observer_of(context), seen->op ? seen->op->name : NULL);
    AMP__LINE(line);
    amp__trace_begin(&line, "seen", context);
    amp__line_number(&line, "n", bracket);
    amp__line_string(&line, "what", word_of(seen->what));
    amp__line_string(&line, "op", seen->op ? seen->op->name : NULL);
    amp__line_number(&line, "index", seen->op ? seen->op->index : 0);
    amp__text_add(&line, ",\"in_backward\":%s", seen->op && seen->op->is_backward ? "true" : "false");
    amp__line_string(&line, "name", seen->name);
    amp__line_string(&line, "type", amp__dtype_name(seen->dtype));
    amp__line_number(&line, "tensors", seen->tensors);
    amp__line_number(&line, "elements", s->elements);
    amp__line_number(&line, "zeros", s->zeros);
    amp__line_number(&line, "nans", s->nans);
    amp__line_number(&line, "plus_infinities", s->plus_infinities);
    amp__line_number(&line, "minus_infinities", s->minus_infinities);
    amp__line_double(&line, "largest", s->largest);
    amp__line_double(&line, "least", s->least);
    amp__line_double(&line, "sum", s->sum);
    amp__line_double(&line, "sum_squares", s->sum_squares);
    if (seen->what == AMP_SEE_UPDATES) {
        amp__line_number(&line, "lost_fp16", seen->lost_last[0]);
        amp__line_number(&line, "lost_bf16", seen->lost_last[1]);
    }
    add_losses(&line, "fp16", s, AMP_FLOAT16);
    add_losses(&line, "bf16", s, AMP_BFLOAT16);
    add_fp8(&line, seen);
    add_binades(&line, s);
    if (where) amp__line_string(&line, "line", where);
    amp__trace_end(&line, context);
}

void amp__observe_tell(amp_context *context, uint64_t bracket, uint32_t what) {
    const struct amp__observer *observer = amp__observer_of(context);
    if (!amp__trace_follows(context)) return;
    for (const struct amp__seen *seen = observer->first; seen; seen = seen->next)
        if (seen->what & what && seen->iterations && seen->iteration == observer->observed)
            tell_one(context, seen, bracket);
}

/* ---- memory ---- */

void amp__observe_add_memory(amp__text *line, const amp_memory *m) {
    amp__line_number(line, "weights", m->weights);
    amp__line_number(line, "gradients", m->gradients);
    amp__line_number(line, "masters", m->masters);
    amp__line_number(line, "master_gradients", m->master_gradients);
    amp__line_number(line, "moments", m->moments);
    amp__line_number(line, "casts", m->casts);
    amp__line_number(line, "most_casts", m->most_casts);
    amp__line_number(line, "outputs", m->outputs);
    amp__line_number(line, "packed_from", m->packed_from);
    amp__line_number(line, "packed", m->packed);
    amp__line_number(line, "masters_split", m->masters_split);
    amp__line_number(line, "moments_8bit", m->moments_8bit);
}

void amp__observe_tell_memory(amp_context *context, uint64_t bracket) {
    pthread_mutex_t *lock = amp__lock_of(context);
    amp_memory now;
    if (!amp__trace_follows(context)) return;
    pthread_mutex_lock(lock);
    amp__memory_now(context, &now);
    pthread_mutex_unlock(lock);
    AMP__LINE(line);
    amp__trace_begin(&line, "memory", context);
    amp__line_number(&line, "n", bracket);
    amp__observe_add_memory(&line, &now);
    amp__trace_end(&line, context);
}

/* ---- the culprit ---- */

static void add_argument(amp__text *line, const amp_seen_argument *argument, bool first) {
    amp__text_add(line, "%s{\"output\":%s", first ? "" : ",", argument->is_output ? "true" : "false");
    amp__line_string(line, "name", argument->name);
    amp__line_string(line, "type", amp__dtype_name(argument->dtype));
    amp__line_number(line, "elements", argument->elements);
    amp__line_number(line, "nonfinite", argument->nonfinite);
    amp__line_double(line, "largest", argument->largest);
    amp__line_double(line, "least", argument->least);
    amp__text_add(line, "}");
}

/* The last calls, the oldest first: a line each, so that none is too long. */
static void tell_ring(amp_context *context, uint64_t bracket) {
    const struct amp__observer *observer = amp__observer_of(context);
    const uint64_t n = observer->calls < AMP__RING ? observer->calls : AMP__RING;
    for (uint64_t i = observer->calls - n + 1; i <= observer->calls; i++) {
        const struct amp__seen_call *call = &observer->ring[i % AMP__RING];
        AMP__LINE(line);
        amp__trace_begin(&line, "call", context);
        amp__line_number(&line, "n", bracket);
        amp__line_number(&line, "call", call->number);
        amp__line_string(&line, "op", call->op->name);
        amp__line_number(&line, "index", call->op->index);
        amp__text_add(&line, ",\"arguments\":[");
        for (uint32_t j = 0; j < call->n; j++) add_argument(&line, &call->arguments[j], !j);
        amp__text_add(&line, "]");
        amp__trace_end(&line, context);
    }
}

void amp__observe_tell_culprit(amp_context *context, uint64_t bracket) {
    static const char *const causes[] = { [AMP_CAUSE_UNKNOWN] = "unknown", [AMP_CAUSE_OP] = "op",
                                          [AMP_CAUSE_CAST] = "cast", [AMP_CAUSE_INPUT] = "input",
                                          [AMP_CAUSE_WEIGHT] = "weight" };
    const struct amp__observer *observer = amp__observer_of(context);
    const amp_culprit *culprit = &observer->culprit;
    if (!amp__trace_follows(context)) return;
    tell_ring(context, bracket);
    AMP__LINE(line);
    amp__trace_begin(&line, "culprit", context);
    amp__line_number(&line, "n", bracket);
    amp__line_string(&line, "op", culprit->op);
    amp__line_number(&line, "index", culprit->index);
    amp__line_number(&line, "call", culprit->call);
    amp__text_add(&line, ",\"was_cast\":%s", culprit->was_cast ? "true" : "false");
    amp__text_add(&line, ",\"in_backward\":%s", culprit->in_backward ? "true" : "false");
    amp__line_string(&line, "parameter", culprit->parameter);
    amp__line_string(&line, "cause", causes[culprit->cause]);
    amp__line_string(&line, "weight", culprit->weight);
    amp__line_number(&line, "since", culprit->since);
    amp__line_number(&line, "since_least", culprit->since_least);
    amp__line_string(&line, "line", amp__observe_line(observer, culprit->op));
    amp__text_add(&line, ",\"arguments\":[");
    for (uint32_t i = 0; i < culprit->n_arguments; i++) add_argument(&line, &culprit->arguments[i], !i);
    amp__text_add(&line, "]");
    amp__trace_end(&line, context);
}
