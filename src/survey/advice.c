/* SPDX-License-Identifier: Apache-2.0 */
/* The advice of a survey, one for each kind and subject. */
#include "survey/advice.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *code, *title, *mend, *script; /* script: the remedy in Python, NULL: `mend` */
} kinds[] = {
#define SAME NULL
#define ADVICE(name, code, title, why, mend, script) [AMP__##name] = { code, title, mend, script },
#include "survey/advice.inc"
#undef ADVICE
#undef SAME
};
_Static_assert(AMP_COUNT(kinds) == AMP__ADVICES, "a row for each kind");

const char *amp__advice_title(enum amp__advice_kind kind) { return kinds[kind].title; }

const char *amp__advice_mend(const struct amp__advice_list *list, enum amp__advice_kind kind) {
    return list->python && kinds[kind].script ? kinds[kind].script : kinds[kind].mend;
}

bool amp__is_of_an_op(enum amp__advice_kind kind) {
    return kind == AMP__OVERFLOWS || kind == AMP__INVERSE_OF_ZERO || kind == AMP__SUM_OVERFLOWS ||
           kind == AMP__CONSTANT_UNFIT;
}

bool amp__is_of_speed(enum amp__advice_kind kind) {
    return kind == AMP__ODD_DIMENSIONS || kind == AMP__SMALL_BATCH || kind == AMP__SCALE_FALLS;
}

static bool is_same(const struct amp__advised *known, enum amp__advice_kind kind, const struct amp__seen *seen) {
    if (known->kind != kind) return false;
    if (!seen || !known->advice.name) return !seen && !known->advice.name;
    if (seen->op) return known->advice.op == seen->op->name && known->advice.index == seen->op->index;
    return !known->advice.op && !strcmp(known->advice.name, seen->name);
}

/* Inserts an advice: within a kind the worst first, kinds in the order of the list. */
static void insert(struct amp__advice_list *list, struct amp__advised *new) {
    struct amp__advised **at = &list->first;
    const double share = new->advice.of ? (double)new->advice.elements / (double)new->advice.of : 0.0;
    while (*at && ((*at)->kind < new->kind ||
                   ((*at)->kind == new->kind &&
                    (double)(*at)->advice.elements >= share * (double)((*at)->advice.of ? (*at)->advice.of : 1))))
        at = &(*at)->next;
    new->next = *at;
    *at = new;
    list->n++;
}

/* True: one that is known already says it as well. */
static bool replaces(struct amp__advice_list *list, enum amp__advice_kind kind, const struct amp__about *about) {
    for (struct amp__advised **at = &list->first; *at; at = &(*at)->next) {
        struct amp__advised *known = *at;
        if (!is_same(known, kind, about->seen)) continue;
        if ((double)known->advice.elements * (double)about->of >= (double)about->elements * (double)known->advice.of)
            return true;
        *at = known->next;
        list->n--;
        amp__free(known);
        return false;
    }
    return false;
}

void amp__advise(struct amp__advice_list *list, enum amp__advice_kind kind, const struct amp__about *about,
                 const char *format, ...) {
    const struct amp__seen *seen = about->seen;
    const char *mend = amp__advice_mend(list, kind);
    char said[512];
    va_list arguments;
    if (!about->levels || replaces(list, kind, about)) return;
    va_start(arguments, format);
    vsnprintf(said, sizeof said, format, arguments);
    va_end(arguments);
    const size_t length = strlen(said) + strlen(mend) + 32;
    struct amp__advised *new = amp__alloc(1, sizeof *new + length);
    if (!new) {
        list->status = amp__fail_memory();
        return;
    }
    snprintf(new->message, length, "%s %s: %s", kinds[kind].code, said, mend);
    new->kind = kind;
    new->seen = new->message + strlen(kinds[kind].code) + 1;
    new->seen_length = strlen(said);
    new->advice = (amp_advice){ .struct_size = sizeof(amp_advice), .levels = about->levels, .code = kinds[kind].code,
                                .op = seen && seen->op ? seen->op->name : NULL,
                                .index = seen && seen->op ? seen->op->index : 0, .name = seen ? seen->name : NULL,
                                .elements = about->elements, .of = about->of,
                                .largest = seen ? seen->total.largest : 0.0, .message = new->message };
    insert(list, new);
}

bool amp__advises(const struct amp__advice_list *list, enum amp__advice_kind kind) {
    for (const struct amp__advised *advised = list->first; advised; advised = advised->next)
        if (advised->kind == kind) return true;
    return false;
}

void amp__advice_free(struct amp__advice_list *list) {
    while (list->first) {
        struct amp__advised *advised = list->first;
        list->first = advised->next;
        amp__free(advised);
    }
}
