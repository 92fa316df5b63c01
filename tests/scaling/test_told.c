/* SPDX-License-Identifier: Apache-2.0 */
/* What is told of skips and scale changes: an event each time, words less and less often. */
#include "findings.h"

#include <stdio.h>

static struct told {
    unsigned events, words, explained, rows;
    char last[1024];
} told[AMP_EVENT_BRACKET + 1];

static amp_event last_bracket;
#define CONSTANT 12.0f

static void listen(void *self, const amp_event *event) {
    struct told *of = &told[event->kind];
    (void)self;
    of->events++;
    if (event->kind == AMP_EVENT_BRACKET) last_bracket = *event;
    of->words += event->message[0] != 0;
    of->rows += strstr(event->message, ": 10 steps in a row were skipped") != NULL;
    of->explained += strstr(event->message, "This is normal") != NULL;
    if (event->message[0]) snprintf(of->last, sizeof of->last, "%s", event->message);
    if (event->kind == AMP_EVENT_SKIP || event->kind == AMP_EVENT_SCALE_CHANGE)
        ck_assert(event->scale_before != event->scale_after || event->scale_before == CONSTANT); /* words or none */
}

static void start(struct rig *rig, float scale, uint32_t window) {
    memset(told, 0, sizeof told);
    rig_init(rig, 0);
    rig->host.hooks.event = listen;
    rig_wire(rig, CONFIG(AMP_O1, .init_scale = scale, .window = window, .max_scale = 0x1p120f,
                         .max_skips = AMP_NEVER, .num_losses = 2));
}

DIFFERENCE(skips_in_words) {
    static const struct { unsigned skips, words; const char *last;
    } at[] = { { 1, 1, "problem." }, { 10, 10, "." }, { 15, 10, "." }, { 16, 11, "(5 more skips since" },
               { 31, 11, "(5 more" }, { 32, 12, "(15 more skips since the last line)" },
               { 100, 13, "(31 more skips" } };
    RIG(rig);
    unsigned skips = 0;
    start(&rig, 0x1p110f, 2000);
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        for (; skips < at[i].skips; skips++) {
            ck_assert_int_eq(bracket(&rig, INF), AMP_SKIP);
            net_zero_grad(&rig.net);
        }
        ck_assert_uint_eq(told[AMP_EVENT_SKIP].events, skips);
        ck_assert_uint_eq(told[AMP_EVENT_SCALE_CHANGE].events, skips);
        ck_assert_uint_eq(told[AMP_EVENT_SKIP].words, at[i].words);
        ck_assert_uint_eq(told[AMP_EVENT_SCALE_CHANGE].words, at[i].words);
        ck_assert_msg(strstr(told[AMP_EVENT_SKIP].last, at[i].last), "%s", told[AMP_EVENT_SKIP].last);
    }
    ck_assert_uint_eq(told[AMP_EVENT_SKIP].explained, 1);
}

/* A constant scale looks for no largest one. */
TEST(skips_at_a_constant_scale_are_not_called_normal) {
    RIG(rig);
    memset(told, 0, sizeof told);
    rig_init(&rig, 0);
    rig.host.hooks.event = listen;
    rig_wire(&rig, CONFIG(AMP_O1, .loss_scale = CONSTANT, .check_finite = AMP_ON, .num_losses = 2));
    ck_assert_int_eq(bracket(&rig, INF), AMP_SKIP);
    ck_assert(told[AMP_EVENT_SKIP].words == 1 && !told[AMP_EVENT_SKIP].explained);
}

/* The tenth skip in a row says what to do, or, where iterations are observed, what is wrong; and each row does. */
TEST_TIMES(ten_skips_in_a_row_name_the_cause, 2) {
    RIG(rig);
    start(&rig, 0x1p110f, 2000);
    if (_i) ck_ok(amp_observe(rig.context, NULL));
    for (int row = 1; row <= 2; row++) {
        for (int i = 1; i <= 12; i++) {
            ck_assert_int_eq(bracket(&rig, INF), AMP_SKIP);
            net_zero_grad(&rig.net);
            ck_assert_uint_eq(told[AMP_EVENT_WARNING].rows, (unsigned)(i < 10 ? row - 1 : row));
        }
        const char *says = _i ? "began in no op that was seen; the first gradient that was not finite is that of weight"
                              : "AMP_OBSERVE=every=1";
        ck_assert_msg(strstr(told[AMP_EVENT_WARNING].last, says), "%s", told[AMP_EVENT_WARNING].last);
        ck_assert_int_eq(bracket(&rig, 0x1p-100), AMP_STEP);
        net_zero_grad(&rig.net);
    }
}

/* The tenth line is the last of those in full, and says so. */
TEST(fewer_lines_are_announced) {
    RIG(rig);
    start(&rig, 0x1p110f, 2000);
    for (int i = 1; i <= 10; i++) {
        ck_assert_int_eq(bracket(&rig, INF), AMP_SKIP);
        net_zero_grad(&rig.net);
        for (int kind = 0; kind < 2; kind++) {
            const char *last = told[kind ? AMP_EVENT_SCALE_CHANGE : AMP_EVENT_SKIP].last;
            ck_assert_msg((strstr(last, "From here on") != NULL) == (i == 10), "%s", last);
        }
    }
}

/* skips and steps, and whether a report may call that sound */
TEST_TIMES(a_training_that_skips_is_not_sound, 6) {
    static const struct { int skips, steps; bool sound; } cases[] = {
        { 1, 0, false }, { 1, 1, true }, { 3, 2, true }, { 5, 5, true }, { 6, 5, false }, { 10, 30, true },
    };
    RIG(rig);
    start(&rig, 0x1p110f, 2000);
    for (int i = 0; i < cases[_i].skips + cases[_i].steps; i++) {
        const bool steps = i >= cases[_i].skips;
        ck_assert_int_eq(bracket(&rig, steps ? 0x1p-100 : INF), steps ? AMP_STEP : AMP_SKIP);
        net_zero_grad(&rig.net);
    }
    (void)health(rig.context);
    ck_assert_msg(!found(rig.context, "AMP-M85") == cases[_i].sound, "%s", health(rig.context));
    for (int i = 0; i < 10; i++) (void)bracket(&rig, INF), net_zero_grad(&rig.net);
    (void)health(rig.context);
    ck_found(&rig, "AMP-M85"); /* ten in a row at the end */
}

/* For schedulers and loggers: each bracket, with what it decided, the scales, and whose gradient was not finite. */
TEST(each_bracket_is_told) {
    RIG(rig);
    start(&rig, 1024.0f, 2);
    ck_assert_int_eq(bracket(&rig, 1.0), AMP_STEP);
    ck_assert_uint_eq(told[AMP_EVENT_BRACKET].events, 1);
    ck_assert_int_eq(last_bracket.action, AMP_STEP);
    ck_assert(last_bracket.scale_before == 1024.0f && last_bracket.scale_after == 1024.0f);
    ck_assert_ptr_null(last_bracket.first_nonfinite);
    net_zero_grad(&rig.net);
    ck_assert_int_eq(bracket(&rig, INF), AMP_SKIP);
    ck_assert_uint_eq(told[AMP_EVENT_BRACKET].events, 2);
    ck_assert_int_eq(last_bracket.action, AMP_SKIP);
    ck_assert(last_bracket.scale_before == 1024.0f && last_bracket.scale_after == 512.0f);
    ck_assert_str_eq(last_bracket.first_nonfinite, "weight");
    net_zero_grad(&rig.net);
    ck_assert_int_eq(bracket(&rig, 1.0), AMP_STEP);
    ck_assert_int_eq(bracket(&rig, 1.0), AMP_STEP);
    ck_assert(last_bracket.scale_before == 512.0f && last_bracket.scale_after == 1024.0f);
    ck_assert_ptr_null(last_bracket.first_nonfinite); /* of this bracket, not of one before */
    ck_assert_uint_eq(told[AMP_EVENT_BRACKET].events, 4);
    ck_assert_uint_eq(told[AMP_EVENT_BRACKET].words, 0);
}

TEST(growth_is_explained_once) {
    RIG(rig);
    start(&rig, 1.0f, 1);
    for (int i = 0; i < 20; i++) {
        ck_assert_int_eq(bracket(&rig, 1.0), AMP_STEP);
        rig_step_and_clear(&rig);
    }
    ck_assert_uint_eq(told[AMP_EVENT_SCALE_CHANGE].events, 20);
    ck_assert_uint_eq(told[AMP_EVENT_SCALE_CHANGE].words, 11);
    ck_assert_uint_eq(told[AMP_EVENT_SCALE_CHANGE].explained, 1);
    ck_assert_uint_eq(told[AMP_EVENT_SKIP].events, 0);
}

TEST(each_loss_has_its_own_lines) {
    RIG(rig);
    start(&rig, 0x1p110f, 2000);
    for (int i = 0; i < 12; i++) (void)bracket(&rig, INF);
    ck_assert_uint_eq(told[AMP_EVENT_SKIP].words, 10);
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_optimizer *optimizer = &rig.net.optimizer;
    net_zero_grad(&rig.net);
    ck_ok(fake_begin_many(NULL, &optimizer, 1, 1, 0, NULL, &scaled));
    add_grad(rig.net.weight, INF);
    ck_ok(amp_scale_loss_end(&scaled));
    ck_assert_uint_eq(told[AMP_EVENT_SKIP].words, 11);
}

TEST(every_bracket_leaves_a_record) {
    RIG(rig);
    start(&rig, 128.0f, 3);
    static const double values[] = { 1.0, INF, 1.0, 1.0, 1.0, INF, INF, 1.0 };
    static const struct { amp_action action; float before, after; unsigned in_row, unskipped;
    } expected[] = { { AMP_STEP, 128, 128, 0, 1 }, { AMP_SKIP, 128, 64, 1, 0 }, { AMP_STEP, 64, 64, 0, 1 },
                     { AMP_STEP, 64, 64, 0, 2 },   { AMP_STEP, 64, 128, 0, 0 }, { AMP_SKIP, 128, 64, 1, 0 },
                     { AMP_SKIP, 64, 32, 2, 0 },   { AMP_STEP, 32, 32, 0, 1 } };
    for (unsigned i = 0; i < 8; i++) {
        ck_assert_int_eq(bracket(&rig, values[i]), expected[i].action);
        const amp_record record = rig_record(&rig, 0);
        ck_assert_int_eq(record.action, expected[i].action);
        ck_assert_float_eq(record.scale_before, expected[i].before);
        ck_assert_float_eq(record.scale_after, expected[i].after);
        ck_assert_uint_eq(record.skips_in_row, expected[i].in_row);
        ck_assert_uint_eq(record.unskipped, expected[i].unskipped);
        ck_assert_uint_eq(record.brackets, i + 1);
        net_zero_grad(&rig.net);
    }
    ck_assert_uint_eq(told[AMP_EVENT_SKIP].events, 3);
    ck_assert_uint_eq(told[AMP_EVENT_SCALE_CHANGE].events, 4);
}
