/* SPDX-License-Identifier: Apache-2.0 */
/* Trainings over a device's memory against the same trainings on the CPU, bit for bit: every level, every kind of host. */
#include "host.h"

#include "../kernels/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ITERATIONS = 40, ELEMENTS = 8192 };

struct kind {
    const char *name;
    amp_level level;
    enum stepping stepping;
    bool mixed, fixed;
    int accumulate; /* brackets a step */
    float static_scale;
};

/* Some iterations overflow: by an infinite target, or one that the scale makes infinite. */
static float target_of(int iteration) { return iteration % 7 == 3 ? INFINITY : iteration % 11 == 5 ? 1e36f : 0.25f; }

static void iterate(struct host *host, const struct kind *kind, int iteration) {
    host_clear(host);
    host_set_targets(host, target_of(iteration));
    for (int k = 0; k < kind->accumulate; k++) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        ck_assert_msg(amp_scale_loss_begin(&host->optimizer, &host->loss, &scaled) == AMP_OK, "%s", amp_last_error());
        host_backward(host, scaled.loss, 1.0f);
        ck_assert_msg(amp_scale_loss_end(&scaled) == AMP_OK, "%s", amp_last_error());
    }
    host_step(host, kind->stepping);
}

static void train(const struct kind *kind, bool on_cpu, float *weights, amp_record *record, int64_t *events) {
    struct host *host = host_new(on_cpu, kind->mixed && !on_cpu, kind->fixed, kind->stepping);
    amp_model *model = &host->model;
    amp_optimizer *optimizer = &host->optimizer;
    amp_config config = AMP_CONFIG_INIT;
    amp_context *context = NULL;
    config.level = kind->level;
    config.loss_scale = kind->static_scale;
    config.window = 4;
    ck_assert_msg(amp_initialize_many(&model, 1, &optimizer, 1, &config, &context) == AMP_OK, "%s", amp_last_error());
    for (int i = 0; i < ITERATIONS; i++) iterate(host, kind, i);
    *record = (amp_record)AMP_RECORD_INIT;
    ck_assert_int_eq(amp_get_record(context, 0, record), AMP_OK);
    host_clear(host);
    host_read(host, weights, ELEMENTS);
    *events = host->event_skips;
    ck_assert_msg(amp_shutdown(context) == AMP_OK, "%s", amp_last_error());
    for (int i = 0; i < HOST_PARAMS; i++) ck_assert_int_eq(host->params[i].dtype, AMP_FLOAT32);
    host_read(host, weights + ELEMENTS, ELEMENTS);
    host_free(host);
}

static const struct kind kinds[] = {
    { "O0 fused", AMP_O0, STEP_FUSED, false, false, 1, 0.0f },
    { "O1 fused", AMP_O1, STEP_FUSED, false, false, 1, 0.0f },
    { "O2 fused", AMP_O2, STEP_FUSED, false, false, 1, 0.0f },
    { "O3 fused", AMP_O3, STEP_FUSED, false, false, 1, 0.0f },
    { "O3 fused, dynamic", AMP_O3, STEP_FUSED, false, false, 1, AMP_DYNAMIC },
    { "O4 fused", AMP_O4, STEP_FUSED, false, false, 1, 0.0f },
    { "O5 fused", AMP_O5, STEP_FUSED, false, false, 1, 0.0f },
    { "O1 fused, fixed", AMP_O1, STEP_FUSED, false, true, 1, 0.0f },
    { "O1 fused, accumulating", AMP_O1, STEP_FUSED, false, false, 3, 0.0f },
    { "O1 fused, fixed, accumulating", AMP_O1, STEP_FUSED, false, true, 3, 0.0f },
    { "O2 fused, accumulating", AMP_O2, STEP_FUSED, false, false, 3, 0.0f },
    { "O1 knows", AMP_O1, STEP_KNOWS, false, false, 1, 0.0f },
    { "O2 knows", AMP_O2, STEP_KNOWS, false, false, 1, 0.0f },
    { "O2 knows, accumulating", AMP_O2, STEP_KNOWS, false, false, 2, 0.0f },
    { "O3 knows", AMP_O3, STEP_KNOWS, false, false, 1, 128.0f },
    { "O5 knows", AMP_O5, STEP_KNOWS, false, false, 1, 0.0f },
    { "O1 knows, fixed, accumulating", AMP_O1, STEP_KNOWS, false, true, 2, 0.0f },
    { "O1 there", AMP_O1, STEP_THERE, false, false, 1, 0.0f },
    { "O2 there", AMP_O2, STEP_THERE, false, false, 1, 0.0f },
    { "O2 there, static", AMP_O2, STEP_THERE, false, false, 1, 1024.0f },
    { "O2 there, accumulating", AMP_O2, STEP_THERE, false, false, 2, 0.0f },
    { "O1 there, fixed, accumulating", AMP_O1, STEP_THERE, false, true, 2, 0.0f },
    { "O1 fused, mixed", AMP_O1, STEP_FUSED, true, false, 1, 0.0f },
    { "O2 fused, mixed", AMP_O2, STEP_FUSED, true, false, 2, 0.0f },
    { "O2 knows, mixed", AMP_O2, STEP_KNOWS, true, false, 1, 0.0f },
};

START_TEST(test_trainings) {
    const struct kind *kind = &kinds[_i];
    static float here[2 * ELEMENTS], there[2 * ELEMENTS];
    amp_record expected, record;
    int64_t events, events_there;
    train(kind, true, here, &expected, &events);
    train(kind, false, there, &record, &events_there);
    for (size_t i = 0; i < 2 * ELEMENTS; i++)
        ck_assert_msg(here[i] == there[i] || (isnan(here[i]) && isnan(there[i])), "%s, element %zu: %a on the device, %a here",
                      kind->name, i, (double)there[i], (double)here[i]);
    ck_assert_msg(record.brackets == expected.brackets && record.skipped == expected.skipped, "%s: %d of %d skipped, not %d of %d",
                  kind->name, (int)record.skipped, (int)record.brackets, (int)expected.skipped, (int)expected.brackets);
    ck_assert(record.scale_after == expected.scale_after && record.scale_before == expected.scale_before);
    ck_assert_int_eq(record.action, expected.action);
    ck_assert_uint_eq(record.unskipped, expected.unskipped);
    ck_assert_uint_eq(record.skips_in_row, expected.skips_in_row);
    if (expected.skipped) ck_assert_pstr_eq(record.first_nonfinite ? "c" : NULL, "c");
    if (kind->stepping == STEP_KNOWS) ck_assert_int_eq(events_there, events);
}
END_TEST

static void lazily(void) {
    if (device.fake) *device.fake = (struct fake){ .devices = 2, .pools = 1, .lazy = 1, .blocks = device.fake->blocks,
                                                   .streams = device.fake->streams };
}
static void at_once(void) {
    if (!device.fake) return;
    device.tools->flush();
    ck_assert_int_eq(device.fake->on_null_stream, 0);
    device.fake->lazy = 0;
}

Suite *suite_host(void) {
    Suite *suite = suite_create("hosts");
    TCase *tcase = tcase_create("trainings");
    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, lazily, at_once);
    tcase_add_loop_test(tcase, test_trainings, 0, sizeof kinds / sizeof *kinds);
    suite_add_tcase(suite, tcase);
    return suite;
}
