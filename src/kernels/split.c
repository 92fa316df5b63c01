/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of split masters (amp_optim.h): everything is checked before anything is written. */
#include "amp_device.h"
#include "kernels/device.h"
#include "kernels/kernels.h"
#include "kernels/spans.h"
#include "kernels/walk.h"

AMP_API uint64_t amp_remainder_bytes(uint64_t size) {
    if (size > PTRDIFF_MAX / sizeof(float)) return 0;
    return (size + 1) / 2 * 2 * sizeof(uint16_t) + (size + 31) / 32 * sizeof(uint32_t);
}

struct call {
    const struct amp__kernels *k;
    const amp_span *low, *wide; /* bf16, fp32 */
    void *const *remainders;
    bool joins; /* wide from the two others; else they from it */
};

static amp_status check_split(const struct call *c, size_t n, struct amp__facts *facts) {
    const char *const low = c->joins ? "src" : "dst", *const wide = c->joins ? "dst" : "src";
    AMP_TRY(c->joins ? amp__spans_check_pair(c->wide, c->low, n, low, facts)
                     : amp__spans_check_pair(c->low, c->wide, n, wide, facts));
    AMP_RETURN_IF(n && !c->remainders, AMP_ERR_INVALID_ARGUMENT, "remainders is NULL and n is %zu", n);
    for (size_t i = 0; i < n; i++) {
        AMP_RETURN_IF(c->low[i].dtype != AMP_BFLOAT16, AMP_ERR_INVALID_ARGUMENT, "%s[%zu].dtype is %s: use bf16", low,
                      i, amp__dtype_name(c->low[i].dtype));
        AMP_RETURN_IF(c->wide[i].dtype != AMP_FLOAT32, AMP_ERR_INVALID_ARGUMENT, "%s[%zu].dtype is %s: use fp32", wide,
                      i, amp__dtype_name(c->wide[i].dtype));
        AMP_RETURN_IF((c->low[i].size && !c->remainders[i]) || (uintptr_t)c->remainders[i] % sizeof(uint32_t),
                      AMP_ERR_INVALID_ARGUMENT, "remainders[%zu] is %s", i,
                      c->remainders[i] ? "not aligned to 4 bytes" : "NULL");
    }
    return AMP_OK;
}

static void run_split_part(void *call, const struct amp__part *part) {
    const struct call *c = call;
    for (size_t i = part->first; i < part->first + part->n; i++) {
        const size_t begin = part->n == 1 ? part->begin : 0, end = part->n == 1 ? part->end : (size_t)c->low[i].size;
        void *const remainder = c->remainders[i];
        if (begin == end) continue;
        uint32_t *const ties = amp__ties_of(remainder, c->low[i].size);
        if (c->joins) c->k->join(c->wide[i].data, c->low[i].data, remainder, ties, begin, end);
        else c->k->split(c->low[i].data, remainder, ties, c->wide[i].data, begin, end);
    }
}

static amp_status run_split(struct call *c, size_t n) {
    struct amp__facts facts = { 0, false };
    AMP_TRY(check_split(c, n, &facts));
    c->k = amp__kernels_get();
    amp__walk(c->low, n, facts.elements, run_split_part, c);
    return AMP_OK; /* no bracket: integers do not see the environment */
}

AMP_API amp_status amp_split_list(const amp_span *dst, void *const *remainders, const amp_span *src, size_t n) {
    struct call c = { .low = dst, .wide = src, .remainders = remainders };
    return run_split(&c, n);
}

AMP_API amp_status amp_join_list(const amp_span *dst, const amp_span *src, void *const *remainders, size_t n) {
    struct call c = { .low = src, .wide = dst, .remainders = remainders, .joins = true };
    return run_split(&c, n);
}

/* ---- a norm ---- */

struct squares {
    const struct amp__kernels *k;
    const amp_span *low;
    void *remainder;
    double *blocks;
};

static double sum_split_block(const struct squares *s, size_t at) {
    const size_t size = (size_t)s->low->size, end = size - at < AMP__SUM_BLOCK ? size : at + AMP__SUM_BLOCK;
    return s->k->join_squares(s->low->data, s->remainder, amp__ties_of(s->remainder, size), at, end);
}

static void sum_split_part(void *squares, const struct amp__part *part) {
    const struct squares *s = squares;
    double *block = s->blocks + part->block;
    for (size_t at = part->begin; at < part->end; at += AMP__SUM_BLOCK) *block++ = sum_split_block(s, at);
}

/* As in norms.c: the blocks in order, however many threads there were; without memory, as they come. */
double amp__join_squares(const amp_span *low, void *remainder) {
    struct squares s = { amp__kernels_get(), low, remainder, NULL };
    const size_t size = (size_t)low->size;
    double sum = 0.0;
    if (amp__walk_threads(size) > 1) s.blocks = amp__alloc(size / AMP__SUM_BLOCK + 1, sizeof *s.blocks);
    if (s.blocks) amp__walk(low, 1, size, sum_split_part, &s);
    for (size_t at = 0, block = 0; at < size; at += AMP__SUM_BLOCK, block++)
        sum += s.blocks ? s.blocks[block] : sum_split_block(&s, at);
    amp__free(s.blocks);
    return sum;
}

/* ---- on devices ---- */

static amp_status run_there(const struct call *c, amp_device_list *list, void *stream, size_t n, const char *function) {
    struct amp__facts facts = { 0, false };
    AMP_TRY(check_split(c, n, &facts));
    amp_span *const rest = n ? amp__alloc(n, sizeof *rest) : NULL;
    if (n && !rest) return amp__fail_memory();
    for (size_t i = 0; i < n; i++) rest[i] = (amp_span){ c->remainders[i], c->low[i].size, AMP_BFLOAT16, 0 };
    const struct amp__list_call call = { .kind = c->joins ? AMP__LIST_JOIN : AMP__LIST_SPLIT, .stream = stream, .n = n,
                                         .spans = { c->joins ? c->wide : c->low, c->joins ? c->low : c->wide, rest } };
    const amp_status status = amp__device_run(list, &call, function);
    amp__free(rest);
    return status;
}

AMP_API amp_status amp_device_split(amp_device_list *list, void *stream, const amp_span *dst, void *const *remainders,
                                    const amp_span *src, size_t n) {
    const struct call c = { .low = dst, .wide = src, .remainders = remainders };
    return run_there(&c, list, stream, n, "amp_device_split");
}

AMP_API amp_status amp_device_join(amp_device_list *list, void *stream, const amp_span *dst, const amp_span *src,
                                   void *const *remainders, size_t n) {
    const struct call c = { .low = src, .wide = dst, .remainders = remainders, .joins = true };
    return run_there(&c, list, stream, n, "amp_device_join");
}
