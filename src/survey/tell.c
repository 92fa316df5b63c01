/* SPDX-License-Identifier: Apache-2.0 */
/* A survey, as lines of the trace. */
#include "context/parts.h"
#include "context/reporting.h"
#include "context/trace.h"
#include "context/trace_line.h"
#include "opt_levels/levels.h"
#include "survey/survey.h"

static void add_levels(amp__text *line, uint32_t bits) {
    bool some = false;
    amp__text_add(line, ",\"levels\":[");
    for (amp_level level = AMP_O0; bits >> level; level++) {
        if (!(bits & 1u << level)) continue;
        amp__text_add(line, "%s\"%s\"", some ? "," : "", amp__level_name(level));
        some = true;
    }
    amp__text_add(line, "]");
}

static void tell_advice(amp_context *context, const amp_advice *advice, enum amp__trace_room room) {
    AMP__LINE(line);
    amp__trace_begin(&line, "advice", context);
    amp__line_string(&line, "code", advice->code);
    amp__line_string(&line, "op", advice->op);
    amp__line_number(&line, "index", advice->index);
    amp__line_string(&line, "name", advice->name);
    add_levels(&line, advice->levels);
    amp__line_number(&line, "elements", advice->elements);
    amp__line_number(&line, "of", advice->of);
    amp__line_string(&line, "message", advice->message);
    amp__trace_end_in(&line, context, room);
}

static void add_level(amp__text *line, const amp_surveyed_level *l, bool first) {
    amp__text_add(line, "%s{\"fits\":%d", first ? "" : ",", (int)l->fits);
    amp__line_string(line, "level", amp__level_name(l->memory.level));
    amp__line_number(line, "advice", l->n_advice);
    amp__observe_add_memory(line, &l->memory);
    amp__text_add(line, "}");
}

void amp__survey_tell(amp_context *context, const amp_survey_result *result, bool at_end) {
    if (!amp__reporting_of(context)->trace) return;
    for (uint64_t i = 0; i < result->n_advice; i++)
        tell_advice(context, &result->advice[i], at_end ? AMP__AT_ITS_END : AMP__WHILE_IT_TRAINS);
    AMP__LINE(line);
    amp__trace_begin(&line, "survey", context);
    amp__line_string(&line, "level", amp__level_name(result->level));
    amp__line_float(&line, "init_scale", result->init_scale);
    amp__line_number(&line, "iterations", result->iterations);
    amp__text_add(&line, ",\"levels\":[");
    for (uint64_t i = 0; i < result->n_levels; i++) add_level(&line, &result->levels[i], !i);
    amp__text_add(&line, "]");
    amp__trace_end_in(&line, context, at_end ? AMP__ITS_SURVEY : AMP__WHILE_IT_TRAINS);
}
