/* SPDX-License-Identifier: Apache-2.0 */
#include "kit.h"

#include "../../support/levels.h"

#include <amp_diagnostics.h>
#include <amp_state.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

amp_config kit_config(amp_level level) {
    amp_config config = AMP_CONFIG_INIT;
    config.level = level;
    if (level_is_dynamic(level)) config.loss_scale = SCALE;
    return config;
}

void kit_reference(amp_level level, struct curve *curve) {
    reference_train((int)level - AMP_O0, level_is_dynamic(level) ? SCALE : 1.0f, curve);
}

void ck_same(const float *a, const float *b, int n, const char *what) {
    for (int i = 0; i < n; i++) ck_assert_msg(a[i] == b[i], "%s[%d]: %a, not %a", what, i, (double)a[i], (double)b[i]);
}

void ck_same_curves(const struct curve *a, const struct curve *b) {
    ck_same(a->loss, b->loss, STEPS, "loss");
    ck_same(a->params, b->params, PARAM_FLOATS, "params");
}

void kit_overflow(const struct kit_training *training, amp_level level) {
    static struct kit_state before, after;
    amp_config config = kit_config(level);
    float loss = 0.0f;
    config.loss_scale = AMP_DYNAMIC;
    config.init_scale = 0x1p24f;
    (void)training->start(training->self, &config);
    int skips = 0;
    for (int step = 0; step < STEPS; step++) {
        training->read(training->self, &before);
        if (training->iterate(training->self, step, &loss)) continue;
        skips++;
        training->read(training->self, &after);
        ck_same(after.params, before.params, PARAM_FLOATS, "params");
        ck_same(after.momentum, before.momentum, PARAM_FLOATS, "momentum");
    }
    ck_assert_int_ge(skips, 2);
    ck_assert_int_le(skips, 15);
    ck_assert_float_lt(loss, 0.8f);
    training->finish(training->self, NULL);
}

static char *state_file(void) {
    static char path[32];
    strcpy(path, "/tmp/hosts-XXXXXX");
    const int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    return path;
}

void kit_resume(const struct kit_training *training, amp_level level) {
    enum { SAVED = 25 };
    static float whole[PARAM_FLOATS], resumed[PARAM_FLOATS];
    static struct kit_state state;
    const char *path = state_file();
    amp_config config = kit_config(level);
    config.loss_scale = AMP_DYNAMIC;
    config.init_scale = 256.0f;
    config.window = 7;
    amp_context *context = training->start(training->self, &config);
    for (int step = 0; step < STEPS; step++) {
        if (step == SAVED) {
            training->read(training->self, &state);
            ck_ok(amp_state_save(context, path, AMP_STATE_SAFETENSORS));
        }
        training->iterate(training->self, step, NULL);
    }
    training->finish(training->self, whole);
    context = training->start(training->self, &config);
    training->write(training->self, &state);
    ck_ok(amp_state_load(context, path));
    for (int step = SAVED; step < STEPS; step++) training->iterate(training->self, step, NULL);
    training->finish(training->self, resumed);
    unlink(path);
    ck_same(whole, resumed, PARAM_FLOATS, "params");
}

void ck_sound(amp_context *context) {
    static const char last[] = "\nsound\n";
    char text[8192];
    size_t length, findings;
    ck_ok(amp_get_findings(context, NULL, 0, &findings));
    ck_ok(amp_health(context, text, sizeof text, &length));
    ck_assert_uint_lt(length, sizeof text);
    ck_assert_msg(!findings && !strcmp(text + length - strlen(last), last), "%s", text);
}

static void train_soundly(const struct kit_training *training, amp_context *context, int first, int end) {
    for (int step = first; step < end; step++) (void)training->iterate(training->self, step, NULL);
    ck_sound(context);
}

/* With AMP_TEST_SHORT=1 (other compilers, sanitizers) 40. */
void kit_sound(const struct kit_training *training, amp_level level) {
    const int half = getenv("AMP_TEST_SHORT") ? 20 : 100;
    static struct kit_state state;
    const char *path = state_file();
    for (int begin = 0; begin < (level_is_dynamic(level) ? 2 : 1); begin++) {
        amp_config config = AMP_CONFIG_INIT;
        config.level = level;
        if (begin) config.init_scale = 0x1p24f; /* the brackets that are looked at are skipped */
        amp_context *context = training->start(training->self, &config);
        train_soundly(training, context, 0, half);
        training->read(training->self, &state);
        ck_ok(amp_state_save(context, path, AMP_STATE_SAFETENSORS));
        training->finish(training->self, NULL);
        context = training->start(training->self, &config);
        training->write(training->self, &state);
        ck_ok(amp_state_load(context, path));
        train_soundly(training, context, half, 2 * half);
        training->finish(training->self, NULL);
    }
    unlink(path);
}
