/* SPDX-License-Identifier: Apache-2.0 */
#include "kit.h"

#include "../../support/levels.h"

#include <stdlib.h>

amp_config kit_config(amp_level level) {
    return CONFIG(level, .loss_scale = level_is_dynamic(level) ? SCALE : 0.0f);
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

void ck_learned(const struct curve *curve) { ck_assert_float_lt(curve->loss[STEPS - 1], 0.5f * curve->loss[0]); }

void kit_train(const struct kit_host *host, amp_config config, struct curve *curve) {
    amp_context *context = host->start(&config);
    for (int step = 0; step < STEPS; step++) ck_assert_int_ne(host->iterate(step, &curve->loss[step]), 0);
    ck_ok(amp_check(context));
    host->finish(curve->params);
}

void kit_agrees(const struct kit_host *host, amp_level level) {
    struct curve reference, curve;
    kit_train(host, kit_config(level), &curve);
    kit_reference(level, &reference);
    ck_same_curves(&curve, &reference);
    ck_learned(&curve);
}

void kit_overflow(const struct kit_host *host, amp_level level) {
    static struct kit_state before, after;
    const amp_config config = CONFIG(level, .loss_scale = AMP_DYNAMIC, .init_scale = 0x1p24f);
    float loss = 0.0f;
    (void)host->start(&config);
    int skips = 0;
    for (int step = 0; step < STEPS; step++) {
        host->read(&before);
        if (host->iterate(step, &loss)) continue;
        skips++;
        host->read(&after);
        ck_same(after.params, before.params, PARAM_FLOATS, "params");
        ck_same(after.momentum, before.momentum, PARAM_FLOATS, "momentum");
    }
    ck_assert_int_ge(skips, 2);
    ck_assert_int_le(skips, 15);
    ck_assert_float_lt(loss, 0.8f);
    host->finish(NULL);
}

static char saved[1 << 20];
static size_t saved_size;

static void save(const struct kit_host *host, amp_context *context, struct kit_state *state) {
    host->read(state);
    ck_ok(amp_state_save_memory(context, AMP_STATE_SAFETENSORS, saved, sizeof saved, &saved_size));
}

/* A new context in the place of the one that was finished. */
static amp_context *resume(const struct kit_host *host, const amp_config *config, const struct kit_state *state) {
    amp_context *context = host->start(config);
    host->write(state);
    ck_ok(amp_state_load_memory(context, saved, saved_size));
    return context;
}

void kit_resume(const struct kit_host *host, amp_level level) {
    enum { SAVED = 25 };
    static struct curve whole, resumed;
    static struct kit_state state;
    const amp_config config = CONFIG(level, .loss_scale = AMP_DYNAMIC, .init_scale = 256.0f, .window = 7);
    amp_context *context = host->start(&config);
    for (int step = 0; step < STEPS; step++) {
        if (step == SAVED) save(host, context, &state);
        host->iterate(step, &whole.loss[step]);
    }
    host->finish(whole.params);
    (void)resume(host, &config, &state);
    for (int step = SAVED; step < STEPS; step++) host->iterate(step, &resumed.loss[step]);
    host->finish(resumed.params);
    ck_assert_mem_eq(whole.loss + SAVED, resumed.loss + SAVED, (STEPS - SAVED) * sizeof(float));
    ck_assert_mem_eq(whole.params, resumed.params, sizeof whole.params);
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

static void train_soundly(const struct kit_host *host, amp_context *context, int first, int end) {
    for (int step = first; step < end; step++) (void)host->iterate(step, NULL);
    ck_sound(context);
}

/* With AMP_TEST_SHORT=1 (other compilers, sanitizers) 40. */
void kit_sound(const struct kit_host *host, amp_level level) {
    const int half = getenv("AMP_TEST_SHORT") ? 20 : 100;
    static struct kit_state state;
    for (int begin = 0; begin < (level_is_dynamic(level) ? 2 : 1); begin++) {
        /* then the brackets that are looked at are skipped */
        const amp_config config = CONFIG(level, .init_scale = begin ? 0x1p24f : 0.0f);
        amp_context *context = host->start(&config);
        train_soundly(host, context, 0, half);
        save(host, context, &state);
        host->finish(NULL);
        context = resume(host, &config, &state);
        train_soundly(host, context, half, 2 * half);
        host->finish(NULL);
    }
}
