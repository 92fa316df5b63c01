/* SPDX-License-Identifier: Apache-2.0 */
#include "observe_ledger.h"

#include <fnmatch.h>
#include <math.h>
#include <string.h>

void ledger_begin(struct ledger *ledger, const amp_observe_options *options) {
    ledger->n = 0, ledger->on = options != NULL;
    ledger->iteration++;
    if (options) ledger->options = *options;
}

static bool wanted(const struct ledger *ledger, uint32_t what, const char *name) {
    const amp_observe_options *o = &ledger->options;
    if (!ledger->on || (o->what && !(o->what & what))) return false;
    for (uint32_t i = 0; i < o->n_names; i++)
        if (!fnmatch(o->names[i], name, 0)) return true;
    return !o->n_names;
}

static struct entry *find(struct ledger *ledger, uint32_t what, const char *op, const char *name) {
    for (size_t i = 0; i < ledger->n; i++) {
        struct entry *entry = &ledger->entries[i];
        if (entry->what == what && !strcmp(entry->op, op) && !strcmp(entry->name, name)) return entry;
    }
    need(ledger->n < MOST_ENTRIES, "the ledger is full");
    struct entry *entry = &ledger->entries[ledger->n++];
    memset(entry, 0, sizeof *entry);
    entry->what = what;
    snprintf(entry->op, sizeof entry->op, "%s", op), snprintf(entry->name, sizeof entry->name, "%s", name);
    entry->last = entry->total = (amp_statistics)AMP_STATISTICS_INIT;
    return entry;
}

/* As if what was counted apart had been counted together. Sums depend on the order, and are left. */
static void add(amp_statistics *to, const amp_statistics *s) {
    to->elements += s->elements, to->zeros += s->zeros, to->nans += s->nans;
    to->plus_infinities += s->plus_infinities, to->minus_infinities += s->minus_infinities;
    to->below += s->below, to->above += s->above;
    to->largest = fmax(to->largest, s->largest);
    if (s->least != 0.0 && (to->least == 0.0 || s->least < to->least)) to->least = s->least;
    for (int i = 0; i < AMP_BINADES; i++) {
        to->binades[i].elements += s->binades[i].elements, to->binades[i].powers += s->binades[i].powers;
        to->binades[i].tops_bf16 += s->binades[i].tops_bf16, to->binades[i].tops_fp16 += s->binades[i].tops_fp16;
    }
}

void ledger_note(struct ledger *ledger, uint32_t what, const char *op, const char *name, amp_dtype type,
                 const void *data, size_t n) {
    static amp_statistics counted;
    if (!n || !wanted(ledger, what, op ? op : name)) return;
    struct entry *entry = find(ledger, what, op ? op : "", name);
    if (entry->iteration != ledger->iteration) {
        entry->last = (amp_statistics)AMP_STATISTICS_INIT;
        entry->iterations++, entry->iteration = ledger->iteration;
    }
    oracle_statistics(type, data, n, &counted);
    add(&entry->last, &counted), add(&entry->total, &counted);
}

static bool same(const amp_statistics *a, const amp_statistics *b) {
    static amp_statistics x, y;
    x = *a, y = *b;
    x.sum = y.sum = x.sum_squares = y.sum_squares = 0.0;
    return statistics_agree(&x, &y);
}

void ledger_compare(const struct ledger *ledger, amp_context *context) {
    static amp_observation seen[2 * MOST_ENTRIES];
    size_t count = 0, found = 0, noted = 0;
    seen[0] = (amp_observation)AMP_OBSERVATION_INIT;
    need(amp_get_observations(context, seen, 2 * MOST_ENTRIES, &count) == AMP_OK && count <= 2 * MOST_ENTRIES,
         "observations");
    need(ledger->on || !count, "%zu observations, and nothing is observed", count);
    for (size_t i = 0; i < count; i++) {
        const amp_observation *o = &seen[i];
        if (o->what == AMP_SEE_UPDATES || o->what == AMP_SEE_MASTERS) continue;
        for (size_t k = 0; k <= ledger->n; k++) {
            const struct entry *entry = &ledger->entries[k];
            need(k < ledger->n, "%s %s, %#x, is seen and was not there", o->op ? o->op : "", o->name,
                 (unsigned)o->what);
            if (entry->what != o->what || strcmp(entry->op, o->op ? o->op : "") || strcmp(entry->name, o->name))
                continue;
            need(entry->iterations == o->iterations, "%s %s, %#x: %llu iterations, not %llu", entry->op, entry->name,
                 (unsigned)o->what, (unsigned long long)o->iterations, (unsigned long long)entry->iterations);
            need(same(&entry->last, o->last), "%s %s, %#x: the last differs", entry->op, entry->name,
                 (unsigned)o->what);
            need(same(&entry->total, o->total), "%s %s, %#x: the total differs", entry->op, entry->name,
                 (unsigned)o->what);
            found++;
            break;
        }
    }
    for (size_t k = 0; k < ledger->n; k++) noted += ledger->entries[k].total.elements > 0;
    need(found >= noted || ledger->options.max_bytes, "%zu of %zu are seen", found, noted);
}
