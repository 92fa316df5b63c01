/* SPDX-License-Identifier: Apache-2.0 */
/* A running survey: its rules (rules.c) and its result (survey.c). */
#ifndef AMP_SURVEY_H
#define AMP_SURVEY_H

#include "survey/advice.h"

struct amp__survey {
    struct amp__advice_list list;
    amp_advice *advice; /* the same, as data */
    amp_surveyed_level *levels;
    size_t n_levels;
    amp_fp8_input *fp8;
    char *text;
};

/* The loss scale that a level with dynamic scaling starts from. */
float amp__survey_default_scale(void);
/* All rules over all that was seen. */
void amp__survey_rules(struct amp__advice_list *list, const amp_context *context);
/* The exponent of the scale that is advised. False: no gradient was seen. */
bool amp__survey_scale(const amp_context *context, int *exponent);

/* The losses in FP8, allocated. fp8.c */
amp_status amp__survey_fp8(const amp_context *context, amp_fp8_input **out, uint64_t *n);
void amp__survey_write_fp8(const amp_survey_result *result, amp__text *text);

/* Writes the result to the trace, if there is one. tell.c */
void amp__survey_tell(amp_context *context, const amp_survey_result *result, bool at_end);

#endif
