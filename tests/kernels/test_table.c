/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every kernel of the table in every version that this machine can run, against the oracle; after dav1d's checkasm. The
 * table is built for each instruction set in turn, and a slot whose pointer was tested already is passed over: a new
 * version needs no new test.
 */
#include "elementwise.h"
#include "table.h"

#include "kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Another table can be tested in place of libamp's: tests/cuda does. */
#ifdef TABLE_INIT
void TABLE_INIT(struct amp__kernels *k, uint32_t cpu_flags);
#else
#define TABLE_INIT amp__kernels_init
#endif

/* The check of one kernel, whose slot is at types[0], types[1], ... of its group. */
typedef void check_fn(amp_fn kernel, const amp_dtype *types, const char *isa);

static const struct {
    const char *name;
    uint32_t flag;
} isas[] = {
    { "ref", 0 },
#define ISA_ROW(name, flag) { #name, flag },
    AMP__CPU_MAP(ISA_ROW)
#undef ISA_ROW
};

static struct amp__kernels table; /* of which a slot is being checked */

static void check_versions(size_t slot, check_fn *check, const amp_dtype *types) {
    amp_fn tested[AMP_COUNT(isas)];
    size_t n_tested = 0;
    uint32_t flags = 0;
    random_restart();
    for (size_t i = 0; i < AMP_COUNT(isas); i++) {
        if (isas[i].flag & ~amp__cpu_detect()) continue;
        amp_fn kernel;
        TABLE_INIT(&table, flags |= isas[i].flag);
        memcpy(&kernel, (const char *)&table + slot, sizeof kernel);
        ck_assert_msg(kernel != NULL, "%s leaves a slot empty", isas[i].name);
        size_t seen = 0;
        while (seen < n_tested && tested[seen] != kernel) seen++;
        if (seen < n_tested) continue;
        tested[n_tested++] = kernel;
        check(kernel, types, isas[i].name);
    }
    ck_assert_msg(n_tested > 0, "no version was tested");
}

static const char *describe(const char *kernel, const amp_dtype *types, int n_types, const char *isa,
                            const char *with) {
    static char text[128];
    int at = snprintf(text, sizeof text, "%s %s", isa, kernel);
    for (int i = 0; i < n_types; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, " %s", amp__dtype_name(types[i]));
    snprintf(text + at, sizeof text - (size_t)at, ", %s", with);
    return text;
}

/* ---- elementwise kernels ---- */

static uint64_t x_data[LONGEST], y_data[LONGEST], expected[LONGEST]; /* room for any type */

static void call_cast(const struct elementwise *e, void *dst, const void *x, const void *y, size_t n, uint32_t *flag) {
    (void)y, (void)flag;
    ((amp__cast_fn *)e->kernel)(dst, x, n);
}

/* Kernels of lists get one entry, or every other time some, an empty one and a short one among them. */
enum { MOST_ENTRIES = 4 };
struct entries {
    amp_span dst[MOST_ENTRIES], x[MOST_ENTRIES];
    size_t n;
};

static amp_span span_of(const void *data, size_t begin, size_t end, amp_dtype type) {
    return (amp_span){ (char *)(uintptr_t)data + begin * amp__dtype_size(type), end - begin, type, 0 };
}

static void add_entry(struct entries *entries, const struct elementwise *e, void *dst, const void *x, size_t begin,
                      size_t end) {
    entries->dst[entries->n] = span_of(dst, begin, end, e->to);
    entries->x[entries->n++] = span_of(x, begin, end, e->x_type);
}

static struct entries entries_of(const struct elementwise *e, void *dst, const void *x, size_t n) {
    static size_t calls;
    struct entries entries = { .n = 0 };
    if (++calls % 2) {
        add_entry(&entries, e, dst, x, 0, n);
    } else {
        const size_t third = n / 3, next = third + (third < n);
        add_entry(&entries, e, dst, x, 0, third);
        add_entry(&entries, e, dst, x, third, third);
        add_entry(&entries, e, dst, x, third, next);
        add_entry(&entries, e, dst, x, next, n);
    }
    return entries;
}

static void call_cast_list(const struct elementwise *e, void *dst, const void *x, const void *y, size_t n,
                           uint32_t *flag) {
    const struct entries entries = entries_of(e, dst, x, n);
    (void)y, (void)flag;
    ((amp__cast_list_fn *)e->kernel)(entries.dst, entries.x, entries.n);
}

typedef void call_fn(const struct elementwise *e, void *dst, const void *x, const void *y, size_t n, uint32_t *flag);

static void check_casts(amp_fn kernel, const amp_dtype *types, const char *isa, const char *name, call_fn *call,
                        bool never_over) {
    struct elementwise e = { .to = types[0], .x_type = types[1], .x = x_data, .expected = expected, .call = call,
                             .longest = LONGEST, .kernel = kernel, .never_over = never_over };
    EACH_PATTERN(pattern, types) {
        fill((enum pattern)pattern, e.x_type, x_data, LONGEST);
        for (size_t i = 0; i < LONGEST; i++)
            set_bits(e.to, expected, i, oracle_cast(e.to, e.x_type, get_bits(e.x_type, x_data, i)));
        e.what = describe(name, types, 2, isa, pattern_names[pattern]);
        check_elementwise(&e);
    }
}

static void check_cast(amp_fn kernel, const amp_dtype *types, const char *isa) {
    check_casts(kernel, types, isa, "cast", call_cast, false);
}

static void check_cast_list(amp_fn kernel, const amp_dtype *types, const char *isa) {
    check_casts(kernel, types, isa, "cast_list", call_cast_list, false);
}

static void check_cast_stream(amp_fn kernel, const amp_dtype *types, const char *isa) {
    check_casts(kernel, types, isa, "cast_stream", call_cast, true);
}

static void call_scale(const struct elementwise *e, void *dst, const void *x, const void *y, size_t n, uint32_t *flag) {
    (void)y;
    ((amp__scale_fn *)e->kernel)(dst, x, n, e->a, flag);
}

static void call_scale_list(const struct elementwise *e, void *dst, const void *x, const void *y, size_t n,
                            uint32_t *flag) {
    const struct entries entries = entries_of(e, dst, x, n);
    (void)y;
    ((amp__scale_list_fn *)e->kernel)(entries.dst, entries.x, entries.n, e->a, flag);
}

/* The least value that rounds to infinity is reported, and the one below it is not, on both sides of zero. */
static void check_edge(const struct elementwise *e) {
    const double edge = midpoint_above(e->to, infinity_bits(e->to) - 1);
    const uint64_t bits = round_to_bits(e->x_type, edge);
    /* x's type has no such value */
    if (bits >= infinity_bits(e->x_type) || value_of_bits(e->x_type, bits) != edge) return;
    struct elementwise one = *e;
    one.a = 1.0f;
    for (size_t n = 1; n <= 70; n += n < 4 ? 1 : 11)
        for (uint32_t over = 0; over <= 1; over++) {
            uint64_t x[70] = { 0 }, dst[70];
            uint32_t flag = 0;
            set_bits(e->x_type, x, n - 1, (n % 2 ? sign_bit(e->x_type) : 0) | (over ? bits : bits - 1));
            one.call(&one, dst, x, NULL, n, &flag);
            CHECK_THAT(flag == over, "%s: n %zu: the edge of infinity, %u: flag %u", e->what, n, over, flag);
        }
}

static void check_scales(amp_fn kernel, const amp_dtype *types, const char *isa, const char *name, call_fn *call,
                         bool never_over) {
    static const float scales[] = { 1.0f, 0.3f, 0x1p-24f, 65536.0f, -0x1p-133f };
    struct elementwise e = { .to = types[0], .x_type = types[1], .x = x_data, .expected = expected, .sets_flag = true,
                             .longest = LONGEST, .call = call, .kernel = kernel, .never_over = never_over };
    EACH_PATTERN(pattern, types) {
        fill((enum pattern)pattern, e.x_type, x_data, LONGEST);
        e.a = scales[pattern % (int)AMP_COUNT(scales)];
        for (size_t i = 0; i < LONGEST; i++)
            set_bits(e.to, expected, i, oracle_scale(e.to, e.x_type, get_bits(e.x_type, x_data, i), e.a));
        e.what = describe(name, types, 2, isa, pattern_names[pattern]);
        check_elementwise(&e);
    }
    check_edge(&e);
    check_flag(&e);
}

static void check_scale_list(amp_fn kernel, const amp_dtype *types, const char *isa) {
    check_scales(kernel, types, isa, "scale_list", call_scale_list, false);
}

static void check_scale_stream(amp_fn kernel, const amp_dtype *types, const char *isa) {
    check_scales(kernel, types, isa, "scale_stream", call_scale, true);
}

static void call_clamp_list(const struct elementwise *e, void *dst, const void *x, const void *y, size_t n,
                            uint32_t *flag) {
    const struct entries entries = entries_of(e, dst, x, n);
    (void)y, (void)flag;
    ((amp__clamp_list_fn *)e->kernel)(entries.dst, entries.x, entries.n, e->a);
}

static uint64_t expected_clamp(const struct elementwise *e, size_t i) {
    const uint64_t bits = get_bits(e->x_type, x_data, i);
    const double x = value_of_bits(e->x_type, bits), limit = (double)e->a;
    return x > limit ? round_to_bits(e->to, limit) : x < -limit ? round_to_bits(e->to, -limit)
                                                                : oracle_cast(e->to, e->x_type, bits);
}

static void check_clamp_list(amp_fn kernel, const amp_dtype *types, const char *isa) {
    static const float limits[] = { 1.0f, 0x1p-20f, 70000.0f, 0x1p-130f, 3e38f, INFINITY };
    struct elementwise e = { .to = types[0], .x_type = types[1], .x = x_data, .expected = expected, .any_nan = true,
                             .longest = LONGEST, .call = call_clamp_list, .kernel = kernel };
    EACH_PATTERN(pattern, types) {
        fill((enum pattern)pattern, e.x_type, x_data, LONGEST);
        e.a = limits[pattern % (int)AMP_COUNT(limits)];
        for (size_t i = 0; i < LONGEST; i++) set_bits(e.to, expected, i, expected_clamp(&e, i));
        e.what = describe("clamp_list", types, 2, isa, pattern_names[pattern]);
        check_elementwise(&e);
    }
}

static void check_zero_stream(amp_fn kernel, const amp_dtype *types, const char *isa) {
    enum { MOST = 4097 };
    static const unsigned char zeros[MOST];
    struct guard guard = guard_new(MOST + 64 + GUARD_BORDER);
    (void)types;
    for (size_t bytes = 0; bytes <= MOST; bytes += bytes < 300 ? 1 : 949)
        for (size_t gap = 0; gap < 64; gap++) {
            void *dst = guard_place(&guard, bytes, gap);
            ((amp__zero_fn *)kernel)(dst, bytes);
            CHECK_THAT(!memcmp(dst, zeros, bytes), "%s zero_stream: %zu bytes at gap %zu: not all 0", isa, bytes, gap);
            CHECK_THAT(guard_intact(&guard, bytes, gap), "%s zero_stream: %zu bytes at gap %zu: wrote outside", isa,
                       bytes, gap);
        }
    guard_free(&guard);
}

static void call_axpby(const struct elementwise *e, void *dst, const void *x, const void *y, size_t n, uint32_t *flag) {
    ((amp__axpby_fn *)e->kernel)(dst, e->a, x, e->b, y, n, flag);
}

static void check_axpby(amp_fn kernel, const amp_dtype *types, const char *isa) {
    static const float factors[] = { 1.0f, -0.7f, 0x1p-20f, 3.0f };
    struct elementwise e = { .to = types[0], .x_type = types[1], .y_type = types[2], .x = x_data, .y = y_data,
                             .expected = expected, .sets_flag = true, .call = call_axpby, .kernel = kernel };
    EACH_PATTERN(pattern, types) {
        e.longest = pattern % 3 ? 1000 : LONGEST; /* most of the time, in an emulator too much of it */
        fill((enum pattern)pattern, e.x_type, x_data, e.longest);
        fill(pattern % 2 ? PATTERN_NORMAL : (enum pattern)pattern, e.y_type, y_data, e.longest);
        e.a = factors[pattern % (int)AMP_COUNT(factors)];
        e.b = factors[(pattern + 1) % (int)AMP_COUNT(factors)];
        for (size_t i = 0; i < e.longest; i++)
            set_bits(e.to, expected, i, oracle_axpby(e.to, e.a, e.x_type, get_bits(e.x_type, x_data, i), e.b, e.y_type,
                                                     get_bits(e.y_type, y_data, i)));
        e.what = describe("axpby", types, 3, isa, pattern_names[pattern]);
        check_elementwise(&e);
    }
    check_flag(&e);
}

/* ---- reductions ---- */

enum { LONGEST_SUM = AMP__SUM_BLOCK };
static uint64_t sum_data[LONGEST_SUM];
static const size_t sum_lengths[] = { 0,  1,  2,  3,  5,   7,   8,   15,   16,   17,   31,   32,   33,         47,
                                      63, 64, 65, 80, 127, 128, 129, 255, 257, 1000, 1023, 1025, 4095, 4096, 4097,
                                      65535, LONGEST_SUM };

/* Of the first n elements of sum_data, at every step-th address. */
static void check_sums(amp__sum_squares_fn *kernel, amp_dtype type, const struct guard *guard, size_t n, size_t step,
                       const char *what) {
    const size_t size = amp__dtype_size(type);
    uint64_t got, want;
    memcpy(&want, &(double){ oracle_sum_squares(type, sum_data, n) }, sizeof want);
    for (size_t offset = 0; offset < 32; offset += step) {
        const void *src = memcpy(guard_place(guard, n * size, offset * size), sum_data, n * size);
        memcpy(&got, &(double){ kernel(src, n) }, sizeof got);
        CHECK_THAT(bits_agree(AMP_FLOAT64, got, want), "%s: n %zu offset %zu: got %#llx, want %#llx", what, n, offset,
                   (unsigned long long)got, (unsigned long long)want);
    }
}

/* Elements whose squares do not fit into float, or just so, in some stretches of others. */
static void check_strays(amp__sum_squares_fn *kernel, amp_dtype type, const struct guard *guard, const char *isa) {
    static const double strays[] = { 3e38, -3e38, 1e-30, -1e-38, 0x1p60, 0x1.02p60, 0x1p-60, 0x1.fcp-61, 0.0 };
    static const size_t places[] = { 0, 1023, 1024, 3000, 3071, 4096 };
    enum { N = 4097 };
    for (size_t i = 0; i < AMP_COUNT(strays); i++) {
        fill(PATTERN_NORMAL, type, sum_data, N);
        for (size_t j = i % 2; j < AMP_COUNT(places); j += 2)
            set_bits(type, sum_data, places[j], round_to_bits(type, strays[i]));
        check_sums(kernel, type, guard, N, 31, describe("sum_squares", &type, 1, isa, "strays"));
        for (size_t j = 0; j < N; j++) set_bits(type, sum_data, j, round_to_bits(type, strays[(i + j / 700) % 9]));
        check_sums(kernel, type, guard, N, 31, describe("sum_squares", &type, 1, isa, "strays alone"));
    }
}

static void check_sum_squares(amp_fn kernel, const amp_dtype *types, const char *isa) {
    const amp_dtype type = types[0];
    const size_t size = amp__dtype_size(type);
    struct guard guard = guard_new(LONGEST_SUM * size + 32 * size + GUARD_BORDER);
    EACH_PATTERN(pattern, types) {
        fill((enum pattern)pattern, type, sum_data, LONGEST_SUM);
        for (size_t l = 0; l < AMP_COUNT(sum_lengths); l++)
            check_sums((amp__sum_squares_fn *)kernel, type, &guard, sum_lengths[l], sum_lengths[l] <= 257 ? 1 : 9,
                       describe("sum_squares", types, 1, isa, pattern_names[pattern]));
    }
    check_strays((amp__sum_squares_fn *)kernel, type, &guard, isa);
    guard_free(&guard);
}

/* Binades by stretches of 1024: how they spread, drift, and share bits with 0, and how many are powers of two. */
static double binades_value(size_t kind, size_t i) {
    const size_t stretch = i / 1024, place = i % 1024;
    const double mantissa = 1.0 + (double)(place * 37 % 1021) * 0x1p-10;
    switch (kind) {
    case 0: return 1.375;                                                   /* one binade, as many as there can be */
    case 1: return ldexp(mantissa, (int)(stretch * 7 % 60) - 30);           /* another in each stretch */
    case 2: return ldexp(mantissa, (int)(place % (30 + stretch % 4)) - 14); /* 30 to 33 of them */
    case 3: return place % 3 ? ldexp(mantissa, place % 2 ? 1 : -31) : 0.0;  /* exponents are those of 0, modulo 32 */
    case 4: return ldexp(1.0, (int)(place % 11) - 5);                       /* powers of two alone */
    case 5: return place % 2 ? 0.0 : place < 130 - stretch % 4 ? -2.0 : 1.5; /* 63 to 65 beside zeros */
    case 6: return ldexp(2.0 - ldexp(1.0, -(int)(place % 12)), (int)(place % 5)); /* tops, and what is below */
    default: return stretch % 2 ? 0.0 : -mantissa;
    }
}

static void check_counts(amp__statistics_fn *kernel, amp_dtype type, const struct guard *guard, size_t n, size_t step,
                         const char *what) {
    const size_t size = amp__dtype_size(type);
    amp_statistics want;
    oracle_statistics(type, sum_data, n, &want);
    for (size_t offset = 0; offset < 32; offset += step) {
        const void *src = memcpy(guard_place(guard, n * size, offset * size), sum_data, n * size);
        amp_statistics got = AMP_STATISTICS_INIT;
        kernel(src, n, &got);
        CHECK_THAT(statistics_agree(&got, &want), "%s: n %zu offset %zu: they differ", what, n, offset);
    }
}

static void check_statistics(amp_fn kernel, const amp_dtype *types, const char *isa) {
    static const size_t lengths[] = { 1024, 9001, LONGEST_SUM };
    static const char *const kinds[] = { "one binade", "drifting binades", "30 to 33 binades", "exponents of 0 mod 32",
                                         "powers of two", "63 to 65 powers", "tops", "zeros and others" };
    const amp_dtype type = types[0];
    const size_t size = amp__dtype_size(type);
    struct guard guard = guard_new(LONGEST_SUM * size + 32 * size + GUARD_BORDER);
    EACH_PATTERN(pattern, types) {
        fill((enum pattern)pattern, type, sum_data, LONGEST_SUM);
        for (size_t l = 0; l < AMP_COUNT(sum_lengths); l++)
            check_counts((amp__statistics_fn *)kernel, type, &guard, sum_lengths[l], sum_lengths[l] <= 33 ? 1 : 15,
                         describe("statistics", types, 1, isa, pattern_names[pattern]));
    }
    for (size_t kind = 0; kind < AMP_COUNT(kinds); kind++) {
        for (size_t i = 0; i < LONGEST_SUM; i++)
            set_bits(type, sum_data, i, round_to_bits(type, binades_value(kind, i)));
        for (size_t l = 0; l < (kind < 2 ? 3 : 2); l++)
            check_counts((amp__statistics_fn *)kernel, type, &guard, lengths[l], 31,
                         describe("statistics", types, 1, isa, kinds[kind]));
    }
    guard_free(&guard);
}

static void check_largest(amp_fn kernel, const amp_dtype *types, const char *isa) {
    const amp_dtype type = types[0];
    const size_t size = amp__dtype_size(type);
    struct guard guard = guard_new(4097 * size + 32 * size + GUARD_BORDER);
    EACH_PATTERN(pattern, types) {
        fill((enum pattern)pattern, type, sum_data, 4097);
        for (size_t l = 0; sum_lengths[l] <= 4097; l++) {
            const size_t n = sum_lengths[l];
            uint64_t want = 0;
            for (size_t i = 0; i < n; i++) {
                const uint64_t magnitude = get_bits(type, sum_data, i) & ~sign_bit(type);
                if (magnitude > want) want = magnitude;
            }
            for (size_t offset = 0; offset < 32; offset += n <= 80 ? 1 : 9) {
                const void *src = memcpy(guard_place(&guard, n * size, offset * size), sum_data, n * size);
                const uint64_t got = ((amp__largest_fn *)kernel)(src, n);
                CHECK_THAT(got == want, "%s: n %zu offset %zu: got %#llx, want %#llx",
                           describe("largest", types, 1, isa, pattern_names[pattern]), n, offset,
                           (unsigned long long)got, (unsigned long long)want);
            }
        }
    }
    guard_free(&guard);
}

/* The largest finite element everywhere, and then one infinity or NaN at each place. */
static void check_nonfinite(amp_fn kernel, const amp_dtype *types, const char *isa) {
    const amp_dtype type = types[0];
    const size_t size = amp__dtype_size(type);
    const uint64_t infinity = infinity_bits(type), minus = sign_bit(type);
    const uint64_t quiet = infinity | (infinity >> 1);
    const uint64_t poisons[] = { infinity, minus | infinity, infinity + 1, minus | quiet, minus - 1 };
    struct guard guard = guard_new(4097 * size + 32 * size + GUARD_BORDER);
    for (size_t l = 0; sum_lengths[l] <= 4097; l++) {
        const size_t n = sum_lengths[l], step = n <= 257 ? 1 : 61;
        for (size_t offset = 0; offset < 32; offset += n <= 80 ? 1 : 9) {
            char *src = guard_place(&guard, n * size, offset * size);
            for (size_t i = 0; i < n; i++) set_bits(type, src, i, (i % 2 ? minus : 0) | (infinity - 1));
            CHECK_THAT(((amp__nonfinite_fn *)kernel)(src, n) == 0, "%s: n %zu offset %zu: false alarm",
                       describe("nonfinite", types, 1, isa, "finite"), n, offset);
            for (size_t i = 0; i < n; i += step) {
                set_bits(type, src, i, poisons[(i + offset) % AMP_COUNT(poisons)]);
                CHECK_THAT(((amp__nonfinite_fn *)kernel)(src, n) == 1, "%s: n %zu offset %zu: missed element %zu",
                              describe("nonfinite", types, 1, isa, "poison"), n, offset, i);
                set_bits(type, src, i, i % 2 ? minus : 0);
            }
        }
    }
    guard_free(&guard);
}

/* ---- matmul's tile ---- */

/* Within the bound of a float sum of depth + 1 terms, of which each product was rounded too (see test_matmul.c). */
static void check_tile_element(float got, float c, const float *a, const float *b, size_t depth, const char *isa) {
    double sum = (double)c, magnitude = sum < 0 ? -sum : sum;
    for (size_t p = 0; p < depth; p++) {
        const double product = (double)a[p * table.tile.rows] * (double)b[p * table.tile.cols];
        sum += product;
        magnitude += product < 0 ? -product : product;
    }
    const double error = (double)got - sum, bound = (double)(depth + 2) * 0x1p-23 * magnitude;
    CHECK_THAT(error <= bound && -error <= bound, "%s tile: depth %zu: error %g, bound %g", isa, depth, error, bound);
}

static void check_tile(amp_fn kernel, const amp_dtype *types, const char *isa) {
    enum { DEEPEST = 300, LD = AMP__TILE_COLS_MAX + 3 };
    static float a[DEEPEST * AMP__TILE_ROWS_MAX], b[DEEPEST * AMP__TILE_COLS_MAX], before[AMP__TILE_ROWS_MAX * LD];
    const size_t rows = table.tile.rows, cols = table.tile.cols, ld = cols + 3, c_size = (rows - 1) * ld + cols;
    struct guard ga = guard_new(sizeof a + GUARD_BORDER), gb = guard_new(sizeof b + GUARD_BORDER);
    struct guard gc = guard_new(sizeof before + GUARD_BORDER);
    (void)types;
    CHECK_THAT(rows <= AMP__TILE_ROWS_MAX && cols <= AMP__TILE_COLS_MAX, "%s tile: larger than the largest", isa);
    for (size_t depth = 0; depth <= DEEPEST; depth += depth < 40 ? 1 : 65) {
        const size_t a_bytes = depth * rows * 4, b_bytes = depth * cols * 4, c_bytes = c_size * 4;
        fill(PATTERN_NORMAL, AMP_FLOAT32, a, depth * rows);
        fill(PATTERN_NORMAL, AMP_FLOAT32, b, depth * cols);
        fill(PATTERN_NORMAL, AMP_FLOAT32, before, c_size);
        float *c = memcpy(guard_place(&gc, c_bytes, 0), before, c_bytes);
        ((amp__tile_fn *)kernel)(c, ld, memcpy(guard_place(&ga, a_bytes, 0), a, a_bytes),
                                 memcpy(guard_place(&gb, b_bytes, 0), b, b_bytes), depth);
        CHECK_THAT(guard_intact(&gc, c_bytes, 0), "%s tile: wrote outside", isa);
        for (size_t at = 0; at < c_size; at++) {
            const size_t i = at / ld, j = at % ld;
            if (j < cols) check_tile_element(c[at], before[at], a + i, b + j, depth, isa);
            else CHECK_THAT(!memcmp(c + at, before + at, sizeof *c), "%s tile: wrote between the rows", isa);
        }
    }
    guard_free(&ga), guard_free(&gb), guard_free(&gc);
}

/* ---- one test per group, one run of it per slot ---- */

/* The types of run `i` and the place of their slot in a group indexed by them. */
static size_t slot_index(int i, int n_types, amp_dtype *types) {
    size_t index = 0;
    for (int t = 0; t < n_types; t++, i /= TYPES) {
        types[t] = all_types[i % TYPES];
        index = index * AMP__TYPES + (size_t)types[t];
    }
    return index;
}

#define CHECK_SLOTS(set, type, group, n_types)                                                                         \
    TEST_TIMES(test_##group, 1 << (2 * (n_types))) { /* TYPES^n_types */                                               \
        amp_dtype types[3] = { 0 };                                                                                    \
        const size_t index = slot_index(_i, n_types, types);                                                           \
        check_versions(offsetof(struct amp__kernels, group) + index * sizeof(amp_fn), check_##group, types);           \
    }
AMP__KERNEL_MAP(CHECK_SLOTS, )
