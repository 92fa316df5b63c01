/* SPDX-License-Identifier: Apache-2.0 */
/* Configuration and scaler state as text, by fields of two tables: the written fields are those that are read and
 * compared. */
#include "amp_diagnostics.h"
#include "bracket/bracket.h"
#include "context/op.h"
#include "context/optimizer.h"
#include "context/parts.h"
#include "context/report.h"
#include "state/dict.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum kind { FLOAT, DOUBLE, UINT32, UINT64, BOOLEAN, NAME };

struct field {
    const char *key;
    enum kind kind;
    size_t at;
    const char *(*name)(int32_t); /* NAME */
};

#define OF(type, member) offsetof(struct type, member)
#define PROPERTY(member, kind, ...) { #member, kind, OF(amp__properties, member), __VA_ARGS__ }
#define SETTING(member, kind, ...) { "scaler." #member, kind, OF(amp__properties, scaler.member), __VA_ARGS__ }

static const struct field config_fields[] = {
    PROPERTY(level, NAME, amp__level_name),
    PROPERTY(enabled, BOOLEAN, NULL),
    PROPERTY(patch_ops, BOOLEAN, NULL),
    PROPERTY(keep_batchnorm_fp32, BOOLEAN, NULL),
    PROPERTY(master_weights, BOOLEAN, NULL),
    { "master_weights.stochastic", BOOLEAN, OF(amp__properties, stochastic), NULL },
    PROPERTY(cache, BOOLEAN, NULL),
    PROPERTY(low, NAME, amp__dtype_name),
    PROPERTY(cast_model_type, NAME, amp__dtype_name),
    PROPERTY(cast_model_outputs, NAME, amp__dtype_name),
    PROPERTY(lists, NAME, amp__lists_name),
    PROPERTY(num_losses, UINT32, NULL),
    PROPERTY(max_skips, UINT32, NULL),
    SETTING(mode, NAME, amp__scaler_name),
    SETTING(dynamic, BOOLEAN, NULL),
    SETTING(init_scale, FLOAT, NULL),
    SETTING(min_scale, FLOAT, NULL),
    SETTING(max_scale, FLOAT, NULL),
    SETTING(growth, DOUBLE, NULL),
    SETTING(backoff, DOUBLE, NULL),
    SETTING(window, UINT32, NULL),
    SETTING(hysteresis, UINT32, NULL),
    SETTING(consecutive_hysteresis, BOOLEAN, NULL),
};

static const struct field scaler_fields[] = {
    { "scale", FLOAT, OF(amp__state_scaler, state.scale), NULL },
    { "next_scale", FLOAT, OF(amp__state_scaler, state.next_scale), NULL },
    { "unskipped", UINT32, OF(amp__state_scaler, state.unskipped), NULL },
    { "hysteresis_left", UINT32, OF(amp__state_scaler, state.hysteresis_left), NULL },
    { "skips_in_row", UINT32, OF(amp__state_scaler, state.skips_in_row), NULL },
    { "clean_run", UINT64, OF(amp__state_scaler, state.clean_run), NULL },
    { "brackets", UINT64, OF(amp__state_scaler, brackets), NULL },
    { "skipped", UINT64, OF(amp__state_scaler, skipped), NULL },
};
_Static_assert(sizeof(struct amp__scaler) == 32, "the scaler's state has another member: a row in scaler_fields");

/* ---- one field ---- */

static const char *to_text(const struct field *field, const void *base, char text[AMP__NUMBER_SIZE]) {
    const void *at = (const char *)base + field->at;
    double number;
    switch (field->kind) {
    case FLOAT: amp__float_to_text(*(const float *)at, text); break;
    case DOUBLE: /* gcc 12 takes the pointee for unset here */
        memcpy(&number, at, sizeof number);
        amp__double_to_text(number, text);
        break;
    case UINT32: snprintf(text, AMP__NUMBER_SIZE, "%" PRIu32, *(const uint32_t *)at); break;
    case UINT64: snprintf(text, AMP__NUMBER_SIZE, "%" PRIu64, *(const uint64_t *)at); break;
    case BOOLEAN: return *(const unsigned char *)at ? "true" : "false"; /* gcc 12 misreads a bool here as unset */
    case NAME: return field->name(*(const int32_t *)at);
    }
    return text;
}

/* Numbers only: names and booleans are compared as text. */
static bool from_text(const struct field *field, const char *text, void *base) {
    void *at = (char *)base + field->at;
    uint64_t number;
    if (field->kind == FLOAT) return amp__float_from_text(text, at);
    if (!amp__uint_from_text(text, field->kind == UINT32 ? UINT32_MAX : UINT64_MAX, &number)) return false;
    if (field->kind == UINT32) *(uint32_t *)at = (uint32_t)number;
    else *(uint64_t *)at = number;
    return true;
}

enum { KEY_SIZE = 96 };

static const char *config_key(const struct field *field, char key[KEY_SIZE]) {
    snprintf(key, KEY_SIZE, "libamp.config.%s", field->key);
    return key;
}

static const char *scaler_key(const struct field *field, uint32_t i, char key[KEY_SIZE]) {
    snprintf(key, KEY_SIZE, "libamp.loss_scaler%u.%s", (unsigned)i, field->key);
    return key;
}

/* ---- writing ---- */

amp_status amp__state_put_config(const struct amp__policy *policy, struct amp__header *header) {
    for (size_t i = 0; i < AMP_COUNT(config_fields); i++) {
        char key[KEY_SIZE], text[AMP__NUMBER_SIZE];
        AMP_TRY(amp__header_put(header, config_key(&config_fields[i], key),
                                to_text(&config_fields[i], &policy->properties, text)));
    }
    return AMP_OK;
}

amp_status amp__state_put_scalers(const struct amp__brackets *brackets, struct amp__header *header) {
    for (uint32_t i = 0; i < brackets->n; i++) {
        const struct amp__bracket *bracket = &brackets->list[i];
        const struct amp__state_scaler scaler = { bracket->scaler, bracket->record.brackets, bracket->record.skipped };
        for (size_t j = 0; j < AMP_COUNT(scaler_fields); j++) {
            char key[KEY_SIZE], text[AMP__NUMBER_SIZE];
            AMP_TRY(amp__header_put(header, scaler_key(&scaler_fields[j], i, key),
                                    to_text(&scaler_fields[j], &scaler, text)));
        }
    }
    return AMP_OK;
}

/* ---- reading ---- */

static amp_status get_scaler(const struct amp__header *header, uint32_t i, struct amp__state_scaler *scaler) {
    for (size_t j = 0; j < AMP_COUNT(scaler_fields); j++) {
        char key[KEY_SIZE];
        const char *text = amp__header_get(header, scaler_key(&scaler_fields[j], i, key));
        AMP_RETURN_IF(!text || !from_text(&scaler_fields[j], text, scaler), AMP_ERR_BAD_FILE,
                      "%s is missing or not a number of its kind", key);
    }
    AMP_RETURN_IF(scaler->state.scale == 0.0f || scaler->state.next_scale == 0.0f, AMP_ERR_BAD_FILE,
                  "loss scaler %u has a scale of 0", (unsigned)i);
    return AMP_OK;
}

amp_status amp__state_get_scalers(const struct amp__brackets *brackets, const struct amp__header *header,
                                  struct amp__state_scaler **out, size_t *n, uint64_t *file_has) {
    const char *count = amp__header_get(header, "libamp.config.num_losses");
    AMP_RETURN_IF(!count || !amp__uint_from_text(count, 65536, file_has), AMP_ERR_BAD_FILE,
                  "libamp.config.num_losses is missing or not a number up to 65536");
    const size_t wanted = *file_has < brackets->n ? (size_t)*file_has : brackets->n;
    struct amp__state_scaler *scalers = amp__alloc(wanted, sizeof *scalers);
    if (!scalers) return amp__fail_memory();
    for (uint32_t i = 0; i < wanted; i++) {
        const amp_status status = get_scaler(header, i, &scalers[i]);
        if (status == AMP_OK) continue;
        amp__free(scalers);
        return status;
    }
    *out = scalers;
    *n = wanted;
    return AMP_OK;
}

static bool same_text(const struct amp__policy *policy, const struct amp__header *header, const struct field *field) {
    char key[KEY_SIZE], text[AMP__NUMBER_SIZE];
    const char *theirs = amp__header_get(header, config_key(field, key));
    if (!theirs) return false;
    if (!strcmp(theirs, to_text(field, &policy->properties, text))) return true;
    if (field->kind != DOUBLE) return false;
    /* a libamp with float factors has written the nearest float */
    const double *ours = (const void *)((const char *)&policy->properties + field->at);
    amp__float_to_text((float)*ours, text);
    return !strcmp(theirs, text);
}

bool amp__state_same_mode(const struct amp__policy *policy, const struct amp__header *header) {
    static const struct field rule[] = { SETTING(mode, NAME, amp__scaler_name), SETTING(dynamic, BOOLEAN, NULL) };
    return same_text(policy, header, &rule[0]) && same_text(policy, header, &rule[1]);
}

/* People read 65536, not 0x1p+16; text of a file is shown as far as it is printable. */
static void add_value(amp__text *out, const struct field *field, const char *text) {
    float number;
    double factor;
    if (field->kind == FLOAT && amp__float_from_text(text, &number)) {
        amp__text_add(out, "%g", (double)number);
        return;
    }
    if (field->kind == DOUBLE && amp__double_from_text(text, &factor)) {
        amp__text_add(out, "%.9g", factor);
        return;
    }
    for (size_t i = 0; i < 40 && text[i]; i++)
        amp__text_add(out, "%c", text[i] >= ' ' && text[i] <= '~' ? text[i] : '?');
}

void amp__state_compare(const struct amp__policy *policy, const struct amp__header *header, amp__text *out) {
    for (size_t i = 0; i < AMP_COUNT(config_fields); i++) {
        const struct field *field = &config_fields[i];
        char key[KEY_SIZE], text[AMP__NUMBER_SIZE];
        const char *theirs = amp__header_get(header, config_key(field, key));
        /* not there: from a libamp that had no such field */
        if (!theirs || same_text(policy, header, field)) continue;
        amp__text_add(out, "%s%s ", out->length ? ", " : "", field->key);
        add_value(out, field, theirs);
        amp__text_add(out, " -> ");
        add_value(out, field, to_text(field, &policy->properties, text));
    }
}

/* ---- applying ---- */

static float bounded(float scale, const struct amp__scaler_settings *settings) {
    if (!settings->dynamic) return settings->init_scale;
    return scale > settings->max_scale ? settings->max_scale
        : scale < settings->min_scale  ? settings->min_scale
                                       : scale;
}

void amp__state_set_scaler(struct amp__bracket *bracket, const struct amp__policy *policy,
                           const struct amp__state_scaler *scaler) {
    const struct amp__scaler_settings *settings = &policy->properties.scaler;
    const float before = bracket->scaler.scale;
    bracket->scaler = scaler->state;
    bracket->scaler.scale = bounded(scaler->state.scale, settings);
    bracket->scaler.next_scale = bounded(scaler->state.next_scale, settings);
    if (bracket->scaler.hysteresis_left > settings->hysteresis) bracket->scaler.hysteresis_left = settings->hysteresis;
    const float scale = bracket->scaler.scale;
    amp_record *record = &bracket->record;
    record->scale_before = record->scale_after = scale;
    record->skips_in_row = bracket->scaler.skips_in_row;
    record->unskipped = bracket->scaler.unskipped;
    bracket->told.skips = false; /* a loaded run that skips on is told of it anew */
    record->brackets = scaler->brackets;
    record->skipped = scaler->skipped;
    if (scale == before) return;
    char text[96];
    snprintf(text, sizeof text, "loss scale %u goes from %g to %g: loaded", (unsigned)bracket->loss_id,
             (double)before, (double)scale);
    amp__event(bracket->context, amp__any_host(bracket->context),
               &(amp_event){ .kind = AMP_EVENT_SCALE_CHANGE, .loss_id = bracket->loss_id, .scale_before = before,
                             .scale_after = scale, .message = text });
}
