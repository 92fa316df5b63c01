/* SPDX-License-Identifier: Apache-2.0 */
/* What is read of lists: norms, the first that is not finite, statistics; and split masters. */
#include "numbers.h"

#include "amp_optim.h"
#include "common/common.h"

#include <math.h>
#include <string.h>

static bool same_float(float a, float b) { return a == b || (isnan(a) && isnan(b)); }
#define NEED_FLOAT(got, want, what) need(same_float(got, want), "%s is %a, not %a", what, (double)(got), (double)(want))

static amp_span make(struct bytes *bytes, unsigned number, amp_dtype type) {
    const size_t size = take_size(bytes, LONGEST_ENTRY), width = amp__dtype_size(type);
    amp_span span = { size ? block(number, size * width, width, bytes) : NULL, size, type, 0 };
    if (size) take_elements(bytes, type, span.data, size);
    return span;
}

/* x * scale * factor, each product rounded to float, or to double where x is one. */
static amp_dtype products(const amp_span *span, float scale, float factor, uint64_t *to) {
    const amp_dtype type = span->dtype == AMP_FLOAT64 ? AMP_FLOAT64 : AMP_FLOAT32;
    for (size_t e = 0; e < span->size; e++) {
        const uint64_t first = oracle_scale(type, span->dtype, get_bits(span->dtype, span->data, e), scale);
        set_bits(type, to, e, oracle_scale(type, type, first, factor));
    }
    return type;
}

static void check_norms(const amp_span *src, size_t n, struct bytes *bytes) {
    static uint64_t scaled[LONGEST_ENTRY];
    const float scale = take_factor(bytes), factor = take_factor(bytes);
    float norm = 7.0f, norms[ENTRIES], checked = 7.0f, all_checked[ENTRIES], found = 7.0f;
    double total = 0.0, total_checked = 0.0;
    int64_t index = 7, first = -1;
    bool nonfinite = false;
    need(amp_l2norm_list(src, n, &norm, norms) == AMP_OK && amp_first_nonfinite(src, n, &index) == AMP_OK, "refused");
    need(amp_check_list(src, n, scale, factor, &checked, all_checked, &found) == AMP_OK, "refused");
    for (size_t i = 0; i < n; i++) {
        const double squares = oracle_sum_squares(src[i].dtype, src[i].data, src[i].size);
        const amp_dtype type = products(&src[i], scale, factor, scaled);
        const double of_scaled = oracle_sum_squares(type, scaled, src[i].size);
        NEED_FLOAT(norms[i], (float)sqrt(squares), "a norm");
        NEED_FLOAT(all_checked[i], (float)sqrt(of_scaled), "a checked norm");
        total += squares, total_checked += of_scaled;
        for (size_t e = 0; e < src[i].size; e++) {
            if (first < 0 && bits_are_nonfinite(src[i].dtype, get_bits(src[i].dtype, src[i].data, e)))
                first = (int64_t)i;
            nonfinite |= bits_are_nonfinite(type, get_bits(type, scaled, e));
        }
    }
    NEED_FLOAT(norm, (float)sqrt(total), "the norm");
    NEED_FLOAT(checked, (float)sqrt(total_checked), "the checked norm");
    need(found == (nonfinite ? 1.0f : 7.0f), "found_inf is %g", (double)found);
    need(index == first, "the first that is not finite is %lld, not %lld", (long long)index, (long long)first);
}

/* What a cast of the elements times 2^k to a 16-bit type loses, element by element. */
static amp_losses losses_of(const amp_span *src, size_t n, amp_dtype type, double scale) {
    amp_losses losses = { 0, 0, 0 };
    const double least = type == AMP_FLOAT16 ? 0x1p-14 : 0x1p-126;
    for (size_t i = 0; i < n; i++)
        for (size_t e = 0; e < src[i].size; e++) {
            const double x = value_of_bits(src[i].dtype, get_bits(src[i].dtype, src[i].data, e)) * scale;
            if (x == 0.0 || !isfinite(x)) continue;
            const uint64_t bits = round_to_bits(type, x) & ~sign_bit(type);
            losses.zeros += bits == 0;
            losses.infinities += bits == infinity_bits(type);
            losses.subnormals += bits != 0 && fabs(x) < least;
        }
    return losses;
}

static void check_statistics(const amp_span *src, size_t n, struct bytes *bytes) {
    static amp_statistics got[ENTRIES], want[ENTRIES], merged, expected;
    const amp_dtype type = take(bytes) & 1 ? AMP_FLOAT16 : AMP_BFLOAT16;
    const int power = (int)take_below(bytes, 64) - 32;
    amp_losses losses = { 7, 7, 7 };
    bool doubles = false;
    merged = expected = (amp_statistics)AMP_STATISTICS_INIT;
    for (size_t i = 0; i < n; i++) {
        got[i] = (amp_statistics)AMP_STATISTICS_INIT;
        oracle_statistics(src[i].dtype, src[i].data, src[i].size, &want[i]);
        doubles |= src[i].dtype == AMP_FLOAT64;
    }
    need(amp_statistics_list(src, n, got) == AMP_OK, "statistics refused");
    for (size_t i = 0; i < n; i++) {
        need(statistics_agree(&got[i], &want[i]), "the statistics of entry %zu differ", i);
        need(amp_statistics_merge(&merged, &got[i]) == AMP_OK, "merge refused");
        need(merged.elements == expected.elements + want[i].elements &&
                 merged.zeros == expected.zeros + want[i].zeros && merged.nans == expected.nans + want[i].nans,
             "merged counts differ");
        for (int b = 0; b < AMP_BINADES; b++)
            need(merged.binades[b].elements == expected.binades[b].elements + want[i].binades[b].elements, "binade %d",
                 b);
        need(merged.largest == fmax(expected.largest, want[i].largest), "merged largest");
        expected = merged;
    }
    if (doubles) return; /* some of theirs may be beyond the binades, and of those nothing is known */
    need(amp_statistics_losses(&merged, type, (float)ldexp(1.0, power), &losses) == AMP_OK, "losses refused");
    const amp_losses right = losses_of(src, n, type, ldexp(1.0, power));
    need(losses.zeros == right.zeros && losses.subnormals == right.subnormals && losses.infinities == right.infinities,
         "2^%d to %s loses %llu, %llu, %llu, not %llu, %llu, %llu", power, amp__dtype_name(type),
         (unsigned long long)losses.zeros, (unsigned long long)losses.subnormals, (unsigned long long)losses.infinities,
         (unsigned long long)right.zeros, (unsigned long long)right.subnormals, (unsigned long long)right.infinities);
}

/* What is split comes back, and its upper half is the cast. Then somebody writes the upper half: joined, the two are a
 * number within the reach of a remainder, or what was written. */
static void check_split(struct bytes *bytes) {
    const amp_span src = make(bytes, 0, AMP_FLOAT32);
    if (!src.size) return;
    const uint64_t n = src.size;
    const amp_span low = { block(1, n * 2, 2, bytes), n, AMP_BFLOAT16, 0 };
    const amp_span back = { block(2, n * 4, 4, bytes), n, AMP_FLOAT32, 0 };
    void *remainder = block(3, amp_remainder_bytes(n), 4, bytes);
    need(amp_split_list(&low, &remainder, &src, 1) == AMP_OK, "split refused");
    need(amp_join_list(&back, &low, &remainder, 1) == AMP_OK, "join refused");
    for (size_t e = 0; e < n; e++) {
        const uint64_t was = get_bits(AMP_FLOAT32, src.data, e), is = get_bits(AMP_FLOAT32, back.data, e);
        need(bits_agree(AMP_FLOAT32, was, is), "split and joined %#llx is %#llx", (unsigned long long)was,
             (unsigned long long)is);
        need(get_bits(AMP_BFLOAT16, low.data, e) == oracle_cast(AMP_BFLOAT16, AMP_FLOAT32, was),
             "the upper half of %#llx is %#llx", (unsigned long long)was,
             (unsigned long long)get_bits(AMP_BFLOAT16, low.data, e));
    }
    take_elements(bytes, AMP_BFLOAT16, low.data, n);
    need(amp_join_list(&back, &low, &remainder, 1) == AMP_OK, "join refused");
    for (size_t e = 0; e < n; e++) {
        const uint64_t wrote = get_bits(AMP_BFLOAT16, low.data, e), is = get_bits(AMP_FLOAT32, back.data, e);
        if (bits_are_nonfinite(AMP_BFLOAT16, wrote)) continue;
        const int64_t off = (int64_t)is - (int64_t)(wrote << 16);
        need(off >= -0x8000 && off <= 0x8000, "%#llx was written and %#llx is joined", (unsigned long long)wrote,
             (unsigned long long)is);
    }
}

static void check_refusals(amp_span *src, size_t n, struct bytes *bytes) {
    static amp_statistics s[ENTRIES];
    const size_t at = take_below(bytes, (unsigned)n);
    float norm = 7.0f, norms[ENTRIES] = { 7.0f, 7.0f, 7.0f, 7.0f };
    int64_t index = 7;
    for (size_t i = 0; i < n; i++) s[i] = (amp_statistics)AMP_STATISTICS_INIT;
    if (src[at].size && take_below(bytes, 2)) src[at].data = NULL;
    else src[at].dtype = (amp_dtype)(AMP_FLOAT64 + 1 + (int)take(bytes));
    need_refused(amp_l2norm_list(src, n, &norm, norms), "l2norm");
    need_refused(amp_first_nonfinite(src, n, &index), "first_nonfinite");
    need_refused(amp_check_list(src, n, 1.0f, 1.0f, &norm, norms, &norm), "check");
    need_refused(amp_statistics_list(src, n, s), "statistics");
    need(norm == 7.0f && norms[0] == 7.0f && index == 7 && s[0].elements == 0, "a refusal wrote a result");
}

void fuzz_sums(struct bytes *bytes) {
    amp_span src[ENTRIES];
    const size_t n = take_below(bytes, ENTRIES + 1);
    const unsigned what = take_below(bytes, 8);
    if (what == 0) {
        check_split(bytes);
        return;
    }
    for (unsigned i = 0; i < n; i++) src[i] = make(bytes, i, all_types[take_below(bytes, TYPES)]);
    if (what == 1 && n) check_refusals(src, n, bytes);
    else if (what < 5) check_norms(src, n, bytes);
    else check_statistics(src, n, bytes);
}
