/* SPDX-License-Identifier: Apache-2.0 */
/* Would this training do in FP8? The losses of each input of a product, and the inputs that would have to stay. */
#include "context/parts.h"
#include "survey/survey.h"

#include <stdlib.h>

enum { SMALL_PART = 20, SHOWN = 8 }; /* one in so many may become 0: the part that gradients may lose at a loss scale */

static void describe(const struct amp__seen *seen, amp_fp8_input *out) {
    const struct amp__fp8_blocks *blocks = &seen->blocks;
    struct amp__fp8_losses e4m3, e5m2;
    amp__fp8_total(seen, AMP__E4M3, &e4m3);
    amp__fp8_total(seen, AMP__E5M2, &e5m2);
    *out = (amp_fp8_input){
        .struct_size = sizeof *out, .index = seen->op->index, .op = seen->op->name, .name = seen->name,
        .in_backward = seen->op->is_backward,
        .numbers = seen->total.elements - seen->total.zeros - amp__nonfinite(&seen->total),
        .e4m3 = { e4m3.zeros, e4m3.subnormals, 0 }, .e5m2 = { e5m2.zeros, e5m2.subnormals, 0 },
        .block_numbers = blocks->numbers,
    };
    const struct amp__fp8_losses *in_e4m3 = &blocks->losses[AMP__E4M3], *in_e5m2 = &blocks->losses[AMP__E5M2];
    out->e4m3_blocks = (amp_fp8_losses){ in_e4m3->zeros, in_e4m3->subnormals, in_e4m3->saturated };
    out->e5m2_blocks = (amp_fp8_losses){ in_e5m2->zeros, in_e5m2->subnormals, in_e5m2->saturated };
    const uint64_t zeros = out->in_backward ? e5m2.zeros : e4m3.zeros;
    out->stays = zeros > out->numbers / SMALL_PART;
}

/* Numbers alone, as a slope or an epsilon, are no tensors of a product. */
static bool counts(const struct amp__seen *seen) {
    return seen->iterations && amp__fp8_casts(seen) && seen->last.elements > seen->tensors &&
           seen->total.elements > seen->total.zeros + amp__nonfinite(&seen->total);
}

amp_status amp__survey_fp8(const amp_context *context, amp_fp8_input **out, uint64_t *n) {
    const struct amp__observer *observer = amp__observer_of(context);
    size_t count = 0;
    for (const struct amp__seen *seen = observer->first; seen; seen = seen->next) count += counts(seen);
    *out = amp__alloc(count + 1, sizeof **out);
    if (!*out) return amp__fail_memory();
    for (const struct amp__seen *seen = observer->first; seen; seen = seen->next)
        if (counts(seen)) describe(seen, &(*out)[(*n)++]);
    return AMP_OK;
}

/* ---- as text ---- */

static double part(uint64_t elements, uint64_t of) { return of ? 100.0 * (double)elements / (double)of : 0.0; }

static double worth(const amp_fp8_input *input) {
    const uint64_t zeros = input->in_backward ? input->e5m2.zeros : input->e4m3.zeros;
    return 1000.0 * input->stays + part(zeros, input->numbers);
}

/* The worst first, others in their order. */
static int by_worth(const void *a, const void *b) {
    const amp_fp8_input *const *x = a, *const *y = b;
    const double first = worth(*x), second = worth(*y);
    return first != second ? (first < second) - (first > second) : (*x > *y) - (*x < *y);
}

static void write_input(const amp_fp8_input *input, amp__text *text) {
    amp__text_add(text, "  %9.3g %% %9.3g %%", part(input->e4m3.zeros, input->numbers),
                  part(input->e5m2.zeros, input->numbers));
    if (input->block_numbers)
        amp__text_add(text, " %9.3g %% %9.3g %%", part(input->e4m3_blocks.zeros, input->block_numbers),
                      part(input->e5m2_blocks.zeros, input->block_numbers));
    else amp__text_add(text, " %11s %11s", "-", "-");
    amp__text_add(text, "  %-5s  %s", input->stays ? "stays" : "fits", input->op);
    if (input->index) amp__text_add(text, "#%u", (unsigned)input->index);
    amp__text_add(text, ", %s\n", input->name);
}

void amp__survey_write_fp8(const amp_survey_result *result, amp__text *text) {
    const amp_fp8_input **sorted = amp__alloc((size_t)result->n_fp8 + 1, sizeof *sorted);
    uint64_t stay = 0;
    if (!sorted || !result->n_fp8) {
        amp__free(sorted);
        return;
    }
    for (uint64_t i = 0; i < result->n_fp8; i++) sorted[i] = &result->fp8[i], stay += sorted[i]->stays != 0;
    qsort(sorted, (size_t)result->n_fp8, sizeof *sorted, by_worth);
    amp__text_add(text, "FP8, as a dry run (E4M3 in forward, E5M2 in backward, the best scale of each tensor): ");
    if (stay)
        amp__text_add(text, "%llu of %llu inputs of products would have to stay in 16 bits\n", (unsigned long long)stay,
                      (unsigned long long)result->n_fp8);
    else amp__text_add(text, "of %llu inputs of products all fit\n", (unsigned long long)result->n_fp8);
    amp__text_add(text, "  %11s %11s %11s %11s\n", "E4M3 to 0", "E5M2 to 0", "MX E4M3", "MX E5M2");
    for (uint64_t i = 0; i < result->n_fp8 && i < SHOWN; i++) write_input(sorted[i], text);
    if (result->n_fp8 > SHOWN)
        amp__text_add(text, "  and %llu more\n", (unsigned long long)(result->n_fp8 - SHOWN));
    amp__free(sorted);
}
