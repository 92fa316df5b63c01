/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steps outside the wired slot: the host copied the pointer too early. A missing step between two brackets proves
 * nothing (accumulation, a skip by the host, a loaded state), and neither do parameters that changed once: the host may
 * have loaded or averaged them. A second change without a step is reported, with both possible reasons. One change is
 * enough after a skip, if a parameter is not finite. An update inside a bracket reads gradients that are still scaled.
 */
#include "amp_diagnostics.h"
#include "bracket/step.h"
#include "bracket/wiring.h"
#include "context/findings.h"
#include "context/optimizer.h"
#include "context/parts.h"
#include "context/progress.h"
#include "context/report.h"

#include <stdio.h>
#include <string.h>

/* numbers of brackets inspected in a row, and of decisions after which a step is expected */
enum { EACH = 8, LONG = 64 };
enum { PIECE = 512, PIECES = 128 }; /* bytes of a parameter that are looked at in one place, and in how many at most */

/* An update changes about everything, so that a part of a large block will do. */
static uint64_t add_block(uint64_t sum, const char *bytes, size_t n) {
    if (n <= (size_t)PIECE * PIECES) return amp__sum64(sum, bytes, n);
    for (size_t i = 0; i < PIECES; i++) sum = amp__sum64(sum, bytes + (n - PIECE) / (PIECES - 1) * i, PIECE);
    return sum;
}

/* By the elements where the CPU can read them, else by the version: one that moves may have moved for nothing. */
static amp_status sum_of(const struct amp__optimizer *optimizer, uint64_t *out) {
    uint64_t sum = 0;
    for (size_t i = 0; i < optimizer->n_params; i++) {
        const struct amp__param *param = optimizer->params[i];
        struct amp__elements now = { .strides = NULL };
        const bool readable = !param->on_device && param->host->view;
        if (readable) AMP_TRY(amp__param_layout(param, param->tensor, param->name, &now));
        if (readable && !now.strides) sum = add_block(sum, now.data, (size_t)now.size * amp__dtype_size(now.dtype));
        else if (param->host->version) {
            const uint64_t version = param->host->version(param->host->self, param->tensor);
            sum = amp__sum64(sum, &version, sizeof version);
        }
    }
    *out = sum;
    return AMP_OK;
}

void amp__unseen_steps_forget(amp_context *context) {
    const struct amp__optimizers *optimizers = amp__optimizers_of(context);
    for (size_t i = 0; i < optimizers->n; i++) {
        struct amp__unseen *unseen = &optimizers->list[i].unseen;
        unseen->noted = AMP__NOTED_NOTHING;
        unseen->changes = unseen->changes_inside = 0;
    }
}

/* Some of its slots were called, so that it steps. */
static void tell_others(const struct amp__optimizer *optimizer) {
    amp_context *context = optimizer->context;
    char names[256] = "", line[640];
    amp__text text = { names, sizeof names, 0 };
    const size_t n = amp__name_unused(&text, optimizer->slots.steps, optimizer->slots.n_steps, 0);
    if (!n || n == optimizer->slots.n_steps) return;
    snprintf(line, sizeof line,
             "optimizer %zu: %zu of its %zu step slots saw no call in the first step: %s; nothing "
             "is wrong if those layers are frozen, otherwise the host calls pointers that it copied before "
             "initialize",
             amp__optimizer_number(optimizer), n, optimizer->slots.n_steps, names);
    amp__event(context, &optimizer->host, &(amp_event){ .kind = AMP_EVENT_LOG, .message = line });
}

/* Returns a slot with at least `least` calls, all for objects that no optimizer has as its self. */
static const struct amp__op *missed_self(const struct amp__optimizer *optimizer, uint64_t least) {
    for (size_t i = 0; i < optimizer->slots.n_steps; i++)
        if (amp__op_strangers(&optimizer->slots.steps[i]) >= least) return &optimizer->slots.steps[i];
    return NULL;
}

static void tell(const struct amp__optimizer *optimizer, const char *seen) {
    amp_context *context = optimizer->context;
    const size_t number = amp__optimizer_number(optimizer);
    char names[256] = "", subject[32];
    amp__text text = { names, sizeof names, 0 };
    snprintf(subject, sizeof subject, "optimizer %zu", number);
    const struct amp__op *missed = missed_self(optimizer, 1);
    if (!optimizer->slots.n_steps)
        amp__find(context, AMP__STEP_MISSING, subject, "optimizer %zu: libamp saw no step of it, and yet %s", number,
                  seen);
    else if (missed)
        amp__find(context, AMP__SELF_UNMET, subject, "optimizer %zu: its slot %s was called, but never for its own "
                  "object (self), and yet %s", number, missed->name, seen);
    else if (amp__name_unused(&text, optimizer->slots.steps, optimizer->slots.n_steps, 0))
        amp__find(context, AMP__STEP_UNSEEN, subject, "optimizer %zu: its slot %s saw no call, and yet %s", number,
                  names, seen);
}

static void tell_never(const struct amp__optimizer *optimizer) {
    const size_t number = amp__optimizer_number(optimizer);
    char subject[32];
    snprintf(subject, sizeof subject, "optimizer %zu", number);
    amp__find(optimizer->context, AMP__NEVER_STEPPED, subject, "optimizer %zu: %d brackets ended, and it has not "
              "stepped", number, (int)LONG);
}

/* Returns true for a change that cannot be intended: the update of a step that was to be skipped. */
static bool is_spoiled(const struct amp__optimizer *optimizer) {
    return optimizer->decision.skip && amp__wiring_nonfinite_param(optimizer->context);
}

/* NULL: nothing is certain yet. */
static const char *evidence(const struct amp__optimizer *optimizer, bool changed) {
    if (optimizer->unseen.changes >= 2) return "its parameters changed after two brackets";
    if (changed && is_spoiled(optimizer)) return "its parameters became NaN or infinite after a bracket to be skipped";
    /* at 16 bits an update may be too small to change anything */
    if (optimizer->decision.made >= EACH && missed_self(optimizer, optimizer->decision.made))
        return "each bracket was followed by a call";
    return NULL;
}

amp_status amp__report_unseen_steps(struct amp__optimizer *optimizer) {
    const amp_context *context = optimizer->context;
    struct amp__progress *progress = amp__progress_of(context);
    struct amp__unseen *unseen = &optimizer->unseen;
    uint64_t sum;
    if (unseen->noted) unseen->noted = AMP__NOTED_EARLIER;
    if (unseen->told || optimizer->optim) return AMP_OK;
    if (optimizer->decision.last_step || optimizer->slots.called) {
        unseen->told = true;
        tell_others(optimizer);
        return AMP_OK;
    }
    /* each of the first ones, then ever more rarely: whoever accumulates for long pays nothing */
    const uint64_t n = unseen->brackets++;
    if (optimizer->decision.made == LONG) tell_never(optimizer);
    if (n >= EACH && n & (n - 1)) return AMP_OK;
    AMP_TRY(sum_of(optimizer, &sum));
    /* steps of other optimizers change shared parameters */
    const bool changed = unseen->noted && unseen->steps == progress->n_steps && unseen->sum != sum;
    unseen->changes += changed;
    unseen->noted = AMP__NOTED_AT_BEGIN;
    unseen->sum = sum;
    unseen->steps = progress->n_steps;
    const char *seen = evidence(optimizer, changed);
    if (!seen) return AMP_OK;
    unseen->told = true;
    tell(optimizer, seen);
    return AMP_OK;
}

amp_status amp__report_changes_inside(struct amp__optimizer *optimizer) {
    amp_context *context = optimizer->context;
    struct amp__unseen *unseen = &optimizer->unseen;
    const size_t number = amp__optimizer_number(optimizer);
    char subject[32];
    uint64_t sum;
    const bool stepped = optimizer->decision.last_step || optimizer->slots.called ||
        unseen->steps != amp__progress_of(context)->n_steps;
    if (unseen->noted != AMP__NOTED_AT_BEGIN || unseen->told || stepped) return AMP_OK;
    AMP_TRY(sum_of(optimizer, &sum));
    if (unseen->sum == sum) return AMP_OK;
    unseen->sum = sum;
    if (++unseen->changes_inside < 2 && !amp__wiring_nonfinite_param(context)) return AMP_OK;
    unseen->told = true;
    snprintf(subject, sizeof subject, "optimizer %zu", number);
    amp__find(context, AMP__UPDATED_INSIDE, subject, "optimizer %zu: its parameters changed inside the "
              "bracket", number);
    return AMP_OK;
}
