/* SPDX-License-Identifier: Apache-2.0 */
/* Every function of lists, the optimizers and matmul on 1, 2, 3 and 7 threads: the same bits. In a list are entries of
 * all types, long ones that are cut and short and empty ones between them, and entries that end at a cut and
 * beside it. */
#include "support.h"

#include "amp_kernels.h"
#include "amp_optim.h"
#include "common/common.h"

#include <math.h>
#include <string.h>

static const int32_t counts[] = { 1, 2, 3, 7 };

enum { CUT = 65536, ENTRIES = 24, OUTPUTS = 8 };
static const size_t sizes[ENTRIES] = { 5, 0, 3 * CUT + 77, 1, CUT, CUT + 1, 63, 64, 9 * CUT, 1000, CUT - 1, 0,
                                       300, 300, 7, 2 * CUT, 40000, 50000, 31, 12 * CUT + 1, 17, 2, 4096, 333 };

static amp_span source[ENTRIES], other[ENTRIES], mixed[ENTRIES], same[ENTRIES], copies[ENTRIES];

/* Lists of the same sizes; types go round at different steps, 0: all are fp32. */
enum filling { ZEROS, NUMBERS, EDGES };
static void make_list(amp_span *list, size_t step, enum filling filling) {
    static const enum pattern edges[] = { PATTERN_NORMAL, PATTERN_SUBNORMALS, PATTERN_LIMITS, PATTERN_NORMAL };
    for (size_t i = 0; i < ENTRIES; i++) {
        const amp_dtype type = step ? all_types[i / step % TYPES] : AMP_FLOAT32;
        list[i] = (amp_span){ amp__alloc(sizes[i], amp__dtype_size(type)), sizes[i], type, 0 };
        ck_assert(list[i].data != NULL);
        if (filling == ZEROS) continue;
        fill(filling == EDGES ? edges[i % AMP_COUNT(edges)] : PATTERN_NORMAL, type, list[i].data,
             sizes[i] < 4096 ? sizes[i] : 4096);
        for (size_t at = 4096; at < sizes[i]; at += 4096) { /* patterns cost time: the rest repeats them */
            const size_t width = amp__dtype_size(type), n = sizes[i] - at < 4096 ? sizes[i] - at : 4096;
            memcpy((char *)list[i].data + at * width, list[i].data, n * width);
        }
    }
}

static void free_list(amp_span *list) {
    for (size_t i = 0; i < ENTRIES; i++) amp__free(list[i].data);
}

/* ---- what was computed ---- */

static struct results {
    uint64_t hashes[OUTPUTS];
    float norm[4], norms[2][ENTRIES], found[5];
} results[AMP_COUNT(counts)];

static uint64_t hash_of(const amp_span *list) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < ENTRIES; i++) {
        const size_t bytes = list[i].size * amp__dtype_size(list[i].dtype);
        for (size_t at = 0; at < bytes; at += sizeof hash) { /* a word at a time: 100 million bytes go through here */
            uint64_t word = 0;
            memcpy(&word, (const char *)list[i].data + at, bytes - at < sizeof word ? bytes - at : sizeof word);
            hash = (hash ^ word) * UINT64_C(0x100000001b3);
        }
    }
    return hash;
}

#define DO(call) ck_assert_msg((call) == AMP_OK, "%s: %s", #call, amp_last_error())

static void run_elementwise(struct results *r) {
    uint64_t *hash = r->hashes;
    DO(amp_cast_list(mixed, source, ENTRIES)); *hash++ = hash_of(mixed);
    DO(amp_scale_list(mixed, source, ENTRIES, 0.3f, &r->found[0])); *hash++ = hash_of(mixed);
    DO(amp_axpby_list(mixed, 0.3f, source, -1.7f, other, ENTRIES, &r->found[1])); *hash++ = hash_of(mixed);
    DO(amp_clip_value_list(mixed, source, ENTRIES, 0.01f)); *hash++ = hash_of(mixed);
    DO(amp_clip_norm_list(mixed, other, ENTRIES, 1.5f, &r->norm[0])); *hash++ = hash_of(mixed);
    DO(amp_copy_list(copies, source, ENTRIES)); *hash++ = hash_of(copies);
    DO(amp_scale_list(copies, copies, ENTRIES, 3.0f, &r->found[2])); *hash++ = hash_of(copies); /* in place */
    DO(amp_zero_list(copies, ENTRIES)); *hash++ = hash_of(copies);
    ck_assert(hash == r->hashes + OUTPUTS);
}

static void run_sums(struct results *r) {
    DO(amp_l2norm_list(other, ENTRIES, &r->norm[1], r->norms[0]));
    DO(amp_check_list(other, ENTRIES, 0.5f, 3.0f, &r->norm[2], r->norms[1], &r->found[3]));
    ((float *)same[8].data)[3 * CUT + 5] = INFINITY; /* one, in the middle of a long entry */
    DO(amp_check_list(same, ENTRIES, 1.0f, 1.0f, &r->norm[3], NULL, &r->found[4]));
    ck_assert(r->found[3] == 0.0f && r->found[4] == 1.0f);
    ((float *)same[8].data)[3 * CUT + 5] = 0.0f;
}

TEST(lists_have_the_same_bits) {
    random_restart();
    make_list(source, 1, EDGES), make_list(other, 5, NUMBERS);
    make_list(mixed, 3, ZEROS), make_list(copies, 1, ZEROS), make_list(same, 0, ZEROS);
    for (size_t t = 0; t < AMP_COUNT(counts); t++) {
        DO(amp_set_num_threads(counts[t]));
        run_elementwise(&results[t]);
        run_sums(&results[t]);
        for (int i = 0; i < OUTPUTS; i++)
            ck_assert_msg(results[t].hashes[i] == results[0].hashes[i], "%d threads: function %d differs",
                          (int)counts[t], i);
        ck_assert_msg(!memcmp(&results[t], &results[0], sizeof *results), "%d threads: norms or flags differ",
                      (int)counts[t]);
    }
    ck_assert(results[0].hashes[0] != results[0].hashes[1] && results[0].found[0] == 1.0f);
    free_list(source), free_list(other), free_list(mixed), free_list(copies), free_list(same);
}

/* Streams: more bytes than any cache that libamp believes in, cut into parts that begin anywhere in a line. */
TEST(streams_have_the_same_bits) {
    enum { LONG = 9 << 20, SMALL = 100 };
    float *src = amp__alloc(LONG + 1, sizeof *src), *dst[2];
    uint16_t *low[2];
    ck_assert(src != NULL);
    fill(PATTERN_NORMAL, AMP_FLOAT32, src, 4096);
    for (size_t at = 4096; at < LONG; at += 4096)
        memcpy(src + at, src, (LONG - at < 4096 ? LONG - at : 4096) * sizeof *src);
    for (int t = 0; t < 2; t++) {
        dst[t] = amp__alloc(LONG + SMALL, sizeof *dst[t]), low[t] = amp__alloc(LONG + SMALL, sizeof *low[t]);
        ck_assert(dst[t] && low[t]);
        const amp_span from[] = { { src + 1, LONG - 1, AMP_FLOAT32, 0 }, { src, SMALL, AMP_FLOAT32, 0 } };
        const amp_span to[] = { { dst[t] + 1, LONG - 1, AMP_FLOAT32, 0 }, { dst[t] + LONG, SMALL, AMP_FLOAT32, 0 } };
        const amp_span half[] = { { low[t] + 3, LONG - 1, AMP_FLOAT16, 0 },
                                  { low[t] + LONG - 2 + 4, SMALL - 4, AMP_FLOAT16, 0 } };
        const amp_span short_from[] = { from[0], { src, SMALL - 4, AMP_FLOAT32, 0 } };
        DO(amp_set_num_threads(t ? 3 : 1));
        DO(amp_copy_list(to, from, 2));
        ck_assert(!memcmp(dst[t] + 1, src + 1, (LONG - 1) * sizeof *src));
        DO(amp_cast_list(half, short_from, 2));
        DO(amp_scale_list(to, from, 2, 0.7f, NULL));
    }
    ck_assert(!memcmp(dst[0], dst[1], (LONG + SMALL) * sizeof *src));
    ck_assert(!memcmp(low[0], low[1], (LONG + SMALL) * sizeof *low[0]));
    const amp_span all = { dst[0] + 1, LONG, AMP_FLOAT32, 0 };
    dst[0][0] = dst[0][LONG + 1] = 7.0f;
    DO(amp_zero_list(&all, 1));
    for (size_t i = 1; i <= LONG; i++) CHECK_THAT(dst[0][i] == 0.0f, "element %zu is not 0", i);
    ck_assert(dst[0][0] == 7.0f && dst[0][LONG + 1] == 7.0f);
    for (int t = 0; t < 2; t++) amp__free(dst[t]), amp__free(low[t]);
    amp__free(src);
}

/* ---- optimizers ---- */

enum { TENSORS = 6 };
static const size_t tensor_sizes[TENSORS] = { 300, 5 * CUT + 3, 0, 70000, 4 * CUT, 200000 };

/* Split masters: what the caller of the others finds in the end is the same. */
static uint64_t step_with(int32_t kind, bool split) {
    amp_optim rule = AMP_OPTIM_INIT;
    amp_optim_tensors t = AMP_OPTIM_TENSORS_INIT;
    amp_span lists[6][TENSORS];
    uint64_t steps[TENSORS] = { 0, 1, 2, 3, 4, 5 }, hash = 0;
    void *remainders[TENSORS];
    DO(amp_optim_defaults(kind, &rule));
    random_restart();
    for (size_t i = 0; i < TENSORS; i++)
        for (size_t l = 0; l < 6; l++) {
            const bool scalar = kind == AMP_OPTIM_NOVOGRAD && l == 4; /* its second moment is a number */
            const size_t n = scalar ? 1 : tensor_sizes[i];
            float *data = amp__alloc(n, sizeof *data);
            ck_assert(data != NULL);
            for (size_t e = 0; e < n && l < 2; e++) data[e] = (float)random_uniform();
            lists[l][i] = (amp_span){ data, n, l == 2 ? AMP_BFLOAT16 : AMP_FLOAT32, 0 };
        }
    t.n = TENSORS, t.param = lists[0], t.grad = lists[1], t.low = lists[2], t.steps = steps;
    for (int k = 0; k < 3; k++) t.moments[k] = lists[3 + k];
    for (size_t i = 0; i < TENSORS; i++)
        ck_assert((remainders[i] = amp__alloc((size_t)amp_remainder_bytes(tensor_sizes[i]) + 1, 1)) != NULL);
    if (split) {
        t.param = lists[2], t.low = NULL, t.remainders = remainders;
        DO(amp_split_list(lists[2], remainders, lists[0], TENSORS));
    }
    DO(amp_optim_list(&rule, &t));
    if (split) DO(amp_join_list(lists[0], lists[2], remainders, TENSORS));
    for (size_t i = 0; i < TENSORS; i++) {
        amp__free(remainders[i]);
        ck_assert_uint_eq(steps[i], i + 1);
        for (size_t l = 0; l < 6; l++) {
            hash = amp__sum64(hash, lists[l][i].data, lists[l][i].size * amp__dtype_size(lists[l][i].dtype));
            amp__free(lists[l][i].data);
        }
    }
    return hash;
}

#define KIND(constant, value, ...) value,
static const int32_t kinds[] = { AMP_OPTIM_MAP(KIND) };
#undef KIND

TEST_TIMES(optimizers_have_the_same_bits, AMP_COUNT(kinds)) {
    DO(amp_set_num_threads(1));
    const uint64_t alone = step_with(kinds[_i], false);
    for (size_t t = 0; t < AMP_COUNT(counts); t++) {
        DO(amp_set_num_threads(counts[t]));
        for (int split = 0; split < 2; split++)
            ck_assert_msg(step_with(kinds[_i], split) == alone, "%d threads: kind %d%s differs", (int)counts[t],
                          (int)kinds[_i], split ? ", split masters," : "");
    }
}
