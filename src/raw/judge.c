/* SPDX-License-Identifier: Apache-2.0 */
/* amp_config.verify: compares the result of a 16-bit implementation with that of the FP32 function of the op, and keeps
 * the results. */
#include "context/findings.h"
#include "context/op.h"
#include "context/parts.h"
#include "context/policy.h"
#include "raw/reference.h"

#include <string.h>

/* ---- elements ---- */

double amp__l2_distance(const struct amp__extents *extents, const float *a, const float *b) {
    double sum = 0.0;
    for (int64_t i = 0; i < extents->count; i++) {
        const int64_t k = amp__element_at(extents, i);
        const double d = (double)a[k] - (b ? (double)b[k] : 0.0);
        sum += d * d;
    }
    return sqrt(sum);
}

double amp__largest(const struct amp__extents *extents, const float *a) {
    double most = 0.0;
    for (int64_t i = 0; i < extents->count; i++) {
        const double x = fabs((double)a[amp__element_at(extents, i)]);
        if (!(x <= most)) most = isfinite(x) ? x : (double)NAN;
        if (isnan(most)) return most;
    }
    return most;
}

/* ---- ops of which no call is compared ---- */

static bool makes_handles(const struct amp__schema *schema) {
    const struct amp__arg *ret = &schema->ret;
    return schema->n_tensors || (ret->kind > AMP__DOUBLE && !(ret->flags & AMP__READ_WRITE));
}

static bool draws_numbers(const struct amp__op *op) {
    static const char *const words[] = { "dropout", "rand", "rrelu", "bernoulli", "multinomial", "gumbel" };
    for (size_t i = 0; i < AMP_COUNT(words); i++)
        if (strstr(op->name, words[i])) return true;
    return false;
}

const char *amp__reference_never(const struct amp__op *op) {
    if (op->flags & AMP_OP_STATEFUL) return "AMP_OP_STATEFUL";
    if (!op->schema || makes_handles(op->schema)) return "it takes or returns handles";
    if (draws_numbers(op)) return "it draws random numbers, by its name";
    /* behind such a one verify sees nothing, and puts nothing back */
    if (op->schema->takes_pointers) return "it takes a pointer without extents, and may keep state behind it";
    return op->raw_mode == AMP__RAW_REPLACE ? NULL : "it does not run in 16 bits here";
}

/* ---- the implementation's results ---- */

bool amp__reference_is(const struct amp__reference *reference, const float *host, const void *memory) {
    for (size_t i = 0; reference && i < reference->n; i++) {
        const struct amp__outcome *out = &reference->outcomes[i];
        if (out->host != host || !(out->norm > 0.0)) continue;
        return amp__l2_distance(&out->extents, memory, out->made) <= 0x1p-4 * out->norm;
    }
    return false;
}

enum verdict { NOTHING, UNCHANGED, ALIKE, DIFFERENT };

static enum verdict judge(const struct amp__outcome *out, amp_dtype low, double *differs, double *allowed) {
    const double u = amp__roundoff(low), beyond = low == AMP_FLOAT16 ? 65504.0 : 0x1p127;
    const double least = low == AMP_FLOAT16 ? 0x1p-25 : 0x1p-134; /* to where the type's smallest steps round */
    if (!(out->largest <= beyond)) return NOTHING;
    *differs = amp__l2_distance(&out->extents, out->host, out->made);
    *allowed = 16 * u * out->changed + sqrt((double)out->extents.count) * least + (out->before ? u * out->norm : 0.0);
    if (!isfinite(*differs)) return out->largest * 16 > beyond ? NOTHING : DIFFERENT; /* a sum may be more on its way */
    const bool shows = *allowed <= out->changed / 2;
    if (out->before && out->changed == 0.0) return *differs == 0.0 ? UNCHANGED : DIFFERENT;
    if (*differs <= *allowed) return shows ? ALIKE : NOTHING;
    if (*differs > fmax(*allowed, out->magnitude)) return DIFFERENT;
    return out->magnitude <= out->changed / 2 ? ALIKE : NOTHING;
}

static void tell(const struct amp__op *op, const struct amp__outcome *out, double differs, double allowed) {
    const struct amp__properties *properties = &amp__policy_of(op->context)->properties;
    int64_t worst = 0;
    double most = -1.0;
    for (int64_t i = 0; i < out->extents.count; i++) {
        const int64_t k = amp__element_at(&out->extents, i);
        const double d = fabs((double)out->host[k] - (double)out->made[k]);
        if (d <= most) continue;
        most = d, worst = i;
        if (!isfinite(d)) break;
    }
    const int64_t at = amp__element_at(&out->extents, worst);
    const double base = out->changed > 0.0 ? out->changed : 1.0;
    amp__find(op->context, AMP__IMPLEMENTATION_DIFFERS, op->name, "op %s: its %s implementation and its FP32 function "
              "differ in %s, given the same inputs: relative L2 distance %.3g, at most %.3g is rounding; element %lld "
              "is %g, and %g in FP32", op->name, amp__dtype_name(properties->low), out->name, differs / base,
              fmax(allowed, out->magnitude) / base, (long long)worst, (double)out->host[at], (double)out->made[at]);
}

void amp__reference_judge(const struct amp__reference *reference, struct amp__op *op) {
    pthread_mutex_t *lock = amp__lock_of(op->context);
    const amp_dtype low = amp__policy_of(op->context)->properties.low;
    size_t alike = 0, different = 0, nothing = 0;
    for (size_t i = 0; i < reference->n; i++) {
        double differs = 0.0, allowed = 0.0;
        const enum verdict verdict = judge(&reference->outcomes[i], low, &differs, &allowed);
        if (verdict == DIFFERENT) tell(op, &reference->outcomes[i], differs, allowed);
        alike += verdict == ALIKE, different += verdict == DIFFERENT, nothing += verdict == NOTHING;
    }
    if (!different && (!alike || nothing || !reference->decides)) return;
    pthread_mutex_lock(lock);
    op->comparisons->kinds[reference->kind].compared++;
    pthread_mutex_unlock(lock);
}

/* ---- lines of amp_health ---- */

struct told {
    size_t kinds, compared;
    uint64_t calls;
};

static struct told count(const struct amp__comparisons *known) {
    struct told told = { 0 };
    for (size_t i = 0; known && i < known->n; i++) {
        told.kinds++;
        told.compared += known->kinds[i].compared != 0;
        told.calls += known->kinds[i].compared;
    }
    return told;
}

static void tell_name(const struct amp__op *op, amp__text *text, bool *any, const char *head) {
    amp__text_add(text, *any ? "; %s%s" : "%s%s", *any ? "" : head, op->name);
    if (op->index) amp__text_add(text, "#%u", (unsigned)op->index);
    *any = true;
}

static void tell_compared(const struct amp__op *op, amp__text *text, bool *any) {
    const struct told told = count(op->comparisons);
    if (!told.calls) return;
    tell_name(op, text, any, "verify, compared with FP32: ");
    amp__text_add(text, " (%llu call%s)", (unsigned long long)told.calls, AMP__S(told.calls));
}

static void tell_not_compared(const struct amp__op *op, amp__text *text, bool *any) {
    const struct amp__comparisons *known = op->comparisons;
    const struct told told = count(known);
    const char *never = amp__reference_never(op);
    if (!never && known) never = known->why;
    if (!never && !told.kinds) never = amp__op_calls(op) ? "no call of it ran in 16 bits" : "no call";
    if (!never && told.kinds == told.compared && !known->further) return;
    tell_name(op, text, any, "verify, not compared with FP32: ");
    if (never) amp__text_add(text, " (%s)", never);
    else if (told.kinds > told.compared)
        amp__text_add(text, " (%zu of %zu kinds of calls: zeros, constants or overflow in all that were tried)",
                      told.kinds - told.compared, told.kinds);
    if (!never && known->further)
        amp__text_add(text, " (%llu call%s of more than %d kinds)", (unsigned long long)known->further,
                      AMP__S(known->further), AMP__KINDS);
}

static bool runs_low(const struct amp__op *op) {
    return op->op_class == AMP_LOWER || amp__retypes(&amp__policy_of(op->context)->properties);
}

void amp__reference_health(const amp_context *context, amp__text *text) {
    const struct amp__models *models = amp__models_of(context);
    void (*const tellers[])(const struct amp__op *, amp__text *, bool *) = { tell_compared, tell_not_compared };
    for (size_t t = 0; t < AMP_COUNT(tellers); t++) {
        bool any = false;
        for (size_t i = 0; i < models->n; i++)
            for (size_t j = 0; j < models->list[i].n_ops; j++) {
                const struct amp__op *op = &models->list[i].ops[j];
                if (op->wrapped && !op->shares && amp__op_low(op) && runs_low(op)) tellers[t](op, text, &any);
            }
        if (any) amp__text_add(text, "\n");
    }
}
