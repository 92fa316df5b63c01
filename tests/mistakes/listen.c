/* SPDX-License-Identifier: Apache-2.0 */
/* What libamp said, and the hook visit with a mistake in it. */
#include "mistakes.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum mistake_id made;
char heard[HEARD_SIZE];
amp_status heard_status;

static void note(const char *words) {
    const size_t length = strlen(heard);
    if (!strstr(heard, words)) snprintf(heard + length, sizeof heard - length, "%s\n", words);
}

amp_status hear(amp_status status) {
    if (status != AMP_OK) {
        char words[4096];
        snprintf(words, sizeof words, "%s: %s", amp_status_name(status), amp_last_error());
        note(words);
    }
    if (heard_status == AMP_OK) heard_status = status;
    return status;
}

void hear_event(void *self, const amp_event *event) {
    (void)self;
    if (event->kind == AMP_EVENT_WARNING || event->kind == AMP_EVENT_ERROR) note(event->message);
}

amp_context *hear_initialize(amp_model *model, amp_optimizer *optimizer, const amp_config *config) {
    amp_context *context = NULL;
    return hear(amp_initialize_many(&model, 1, &optimizer, 1, config, &context)) == AMP_OK ? context : NULL;
}

/* ---- visit ---- */

static struct {
    const struct tampered *row;
    amp_status (*visit)(void *self, const char *op, void *const *args, amp_emit emit, void *emit_self);
    amp_emit emit;
    void *emit_self;
    int seen; /* fields of this call that the row speaks of */
} tampering;

static amp_status emit_otherwise(void *self, const amp_field *given) {
    const struct tampered *row = tampering.row;
    amp_field field = *given;
    (void)self;
    if ((row->field && strcmp(field.name, row->field) != 0) || (row->had && row->had != field.role) ||
        tampering.seen++ != row->nth)
        return tampering.emit(tampering.emit_self, &field);
    if (row->more == LEFT_OUT) return AMP_OK;
    if (row->role) field.role = row->role == NOT_SET ? 0 : row->role;
    field.size += row->more;
    return tampering.emit(tampering.emit_self, &field);
}

static amp_status visit_otherwise(void *self, const char *op, void *const *args, amp_emit emit, void *emit_self) {
    if (strcmp(op, tampering.row->op) != 0) return tampering.visit(self, op, args, emit, emit_self);
    tampering.emit = emit, tampering.emit_self = emit_self, tampering.seen = 0;
    return tampering.visit(self, op, args, emit_otherwise, NULL);
}

void tamper(amp_host *host, const struct tampered *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (!mistake(rows[i].id)) continue;
        tampering.row = &rows[i];
        tampering.visit = host->visit;
        host->visit = visit_otherwise;
    }
}
