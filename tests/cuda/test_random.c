/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists as they come: one tensor or 2,000, of any length from 0 on, of one type or all, at any address, with gaps
 * between them that nothing may touch. The functions for a device against those for the CPU.
 */
#include "device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST = 2000, POOL = 1 << 21, SPANS = 6, CASES = 36 };

/* Tensors of a list lie in one block, which the CPU has a copy of. */
static struct pool {
    unsigned char *there, *here;
    amp_span device[MOST], host[MOST];
} pools[SPANS];
static uint64_t sizes[MOST];
static size_t n;
static float *numbers;
static amp_device_list *list;
static char what[120];

#define COUNT(array) (sizeof(array) / sizeof *(array))

static size_t width(amp_dtype type) { return type == AMP_FLOAT64 ? 8 : type == AMP_FLOAT32 ? 4 : 2; }

static void start(void) {
    for (int k = 0; k < SPANS && !pools[k].there; k++)
        pools[k].there = device_alloc(POOL), pools[k].here = malloc(POOL);
    if (!numbers) numbers = device_alloc(2 * (MOST + 16) * sizeof *numbers);
    ck_ok(amp_device_list_open((amp_device){ 2, 0 }, &list));
}
static void stop(void) { amp_device_list_close(list); }

/* Where chunks, tiles and groups end; in lists of many, short ones. */
static void choose_sizes(void) {
    static const uint64_t edges[] = { 0, 1, 7, 8, 9, 255, 256, 2047, 2048, 2049, 2056, 4096, 16383, 16384, 16385 };
    static const size_t counts[] = { 1, 1, 2, 5, 9, 200, MOST };
    size_t room = POOL / 8 - MOST * 8;
    n = counts[random_below(COUNT(counts))];
    for (size_t i = 0; i < n; i++) {
        sizes[i] = n > 20 ? random_below(70) : random_below(2) ? edges[random_below(COUNT(edges))]
                                                               : random_below(20000);
        if (n == 1 && random_below(3) == 0) sizes[i] = 100000 + random_below(100000);
        if (sizes[i] > room) sizes[i] = room;
        room -= sizes[i];
    }
}

static void place(struct pool *pool, const amp_dtype types[], bool aligned, enum pattern pattern) {
    size_t at = 0;
    fill(PATTERN_BITS, AMP_FLOAT32, pool->here, POOL / 4);
    for (size_t i = 0; i < n; i++) {
        at = (at + 7) / 8 * 8 + (aligned ? 0 : width(types[i]) * random_below(16 / width(types[i])));
        if (aligned) at = (at + 15) / 16 * 16;
        ck_assert_uint_le(at + sizes[i] * width(types[i]), POOL);
        fill(pattern, types[i], pool->here + at, (size_t)sizes[i]);
        pool->device[i] = pool->host[i] = (amp_span){ pool->there + at, sizes[i], types[i], 0 };
        pool->host[i].data = pool->here + at;
        at += (size_t)sizes[i] * width(types[i]);
    }
    memcpy(pool->there, pool->here, POOL);
}

/* Every element, and every byte between them. */
static void compare(const struct pool *pool) {
    size_t at = 0;
    device_wait();
    for (size_t i = 0; i <= n; i++) {
        const amp_span *here = &pool->host[i];
        const size_t begin = i < n ? (size_t)((unsigned char *)here->data - pool->here) : POOL;
        CHECK_THAT(!memcmp(pool->there + at, pool->here + at, begin - at), "%s: written before tensor %zu", what, i);
        if (i == n) return;
        for (size_t e = 0; e < here->size; e++) {
            const amp_dtype type = here->dtype;
            const uint64_t got = get_bits(type, pool->device[i].data, e), want = get_bits(type, here->data, e);
            CHECK_THAT(bits_agree(type, got, want), "%s: tensor %zu, element %zu of %llu: %#llx, not %#llx", what, i, e,
                       (unsigned long long)here->size, (unsigned long long)got, (unsigned long long)want);
        }
        at = begin + (size_t)here->size * width(here->dtype);
    }
}

static void near(float got, float want) {
    const bool is_near = got == want || (isnan(got) && isnan(want)) || fabsf(got - want) <= 4e-7f * fabsf(want);
    CHECK_THAT(is_near, "%s: %g, not %g", what, (double)got, (double)want);
}

#define OK(call) ck_assert_msg((call) == AMP_OK, "%s: %s", what, amp_last_error())

static void choose_types(amp_dtype types[MOST], bool mixed, bool with_fp64) {
    for (size_t i = 0; i < n; i++) {
        do types[i] = i && !mixed ? types[0] : all_types[random_below(TYPES)];
        while (!with_fp64 && types[i] == AMP_FLOAT64);
    }
}

enum { CAST, ZERO, SCALE, SCALE_IN_PLACE, AXPBY, STATISTICS, CHECK, CLIP, UPDATE, OPERATIONS };
static const char *const names[OPERATIONS] = {
    "cast", "zero", "scale", "scale in place", "axpby", "statistics", "check", "clip", "update",
};

/* Sums in any order are within elements * 2^-53 of the sum of magnitudes, each of the two. On the CPU a term also
 * passes 5 roundings to float at most (docs/reference/numerics.md). */
static void near_sum(double got, double want, const amp_statistics *s, double squares) {
    const double bound = ((double)s->elements * 0x1p-52 + 5 * 0x1p-24) * sqrt((double)s->elements * squares);
    const bool is_near = got == want || (isnan(got) && isnan(want)) || fabs(got - want) <= bound;
    CHECK_THAT(is_near, "%s: sum %g, not %g", what, got, want);
}

/* Twice, added to what is there. */
static void run_statistics(void) {
    static amp_statistics *there, here[MOST];
    if (!there) there = device_alloc(sizeof here);
    for (size_t i = 0; i < n; i++) here[i] = there[i] = (amp_statistics)AMP_STATISTICS_INIT;
    for (int times = 0; times < 2; times++) {
        OK(amp_device_statistics(list, device.stream, pools[0].device, n, there));
        OK(amp_statistics_list(pools[0].host, n, here));
    }
    device_wait();
    for (size_t i = 0; i < n; i++) {
        near_sum(there[i].sum, here[i].sum, &here[i], here[i].sum_squares);
        near_sum(there[i].sum_squares, here[i].sum_squares, &here[i],
                 here[i].sum_squares * here[i].sum_squares / (double)(here[i].elements + !here[i].elements));
        there[i].sum = here[i].sum, there[i].sum_squares = here[i].sum_squares;
        CHECK_THAT(!memcmp(&there[i], &here[i], sizeof here[i]), "%s: tensor %zu of %llu elements: counts", what, i,
                   (unsigned long long)pools[0].host[i].size);
    }
}

static void run_check(void) {
    const amp_factor scale = { NULL, 0.125f, 0 }, factor = { NULL, 0.75f, 0 };
    static float norms[MOST];
    float norm = 0.0f, found = 0.0f;
    OK(amp_device_check(list, device.stream, pools[0].device, n, &scale, &factor, &numbers[1], &numbers[2],
                        &numbers[0]));
    OK(amp_check_list(pools[0].host, n, 0.125f, 0.75f, &norm, norms, &found));
    device_wait();
    ck_assert_msg(numbers[0] == found, "%s", what);
    near(numbers[1], norm);
    for (size_t i = 0; i < n; i++) near(numbers[2 + i], norms[i]);
}

static void run_clip(void) {
    const amp_factor clip = { &numbers[1], 1.5f, AMP_FACTOR_CLIP };
    OK(amp_device_check(list, device.stream, pools[0].device, n, NULL, NULL, &numbers[1], NULL, NULL));
    OK(amp_device_scale(list, device.stream, pools[0].device, pools[0].device, n, &clip, NULL));
    device_wait();
    const float by = (float)(1.5 / ((double)numbers[1] + 1e-6));
    if (isfinite(numbers[1]) && by < 1.0f) OK(amp_scale_list(pools[0].host, pools[0].host, n, by, NULL));
    compare(&pools[0]);
}

/* Rules whose every number is the CPU's to the bit. */
static void run_update(bool with_low) {
    static const amp_optim_kind kinds[] = { AMP_OPTIM_SGD, AMP_OPTIM_ADAM, AMP_OPTIM_ADAMW, AMP_OPTIM_ADAGRAD };
    static uint64_t steps_here[MOST];
    uint64_t *steps = (uint64_t *)(void *)(numbers + 16);
    amp_optim_tensors t = AMP_OPTIM_TENSORS_INIT, u = t;
    float scale = 0x1p-8f, found = random_below(5) == 0;
    amp_optim rule = AMP_OPTIM_INIT;
    OK(amp_optim_defaults(kinds[random_below(COUNT(kinds))], &rule));
    rule.lr = 0.0625, rule.weight_decay = random_below(2) ? 0.01 : 0.0;
    if (rule.kind == AMP_OPTIM_SGD) rule.momentum = 0.875;
    if (rule.kind == AMP_OPTIM_ADAM && random_below(2)) rule.flags |= AMP_OPTIM_AMSGRAD;
    for (size_t i = 0; i < n; i++) steps[i] = steps_here[i] = random_below(5);
    numbers[0] = found, numbers[1] = scale;
    t.n = u.n = n;
    t.grad_factor = u.grad_factor = 0.75f;
    t.grad = pools[0].device, t.param = pools[1].device, t.low = with_low ? pools[2].device : NULL, t.steps = steps;
    u.grad = pools[0].host, u.param = pools[1].host, u.low = with_low ? pools[2].host : NULL, u.steps = steps_here;
    t.found_inf = &numbers[0], u.found_inf = &found, t.inv_scale = &numbers[1], u.inv_scale = &scale;
    for (int k = 0; k < 3; k++) t.moments[k] = pools[3 + k].device, u.moments[k] = pools[3 + k].host;
    OK(amp_device_optim(list, device.stream, &rule, &t));
    OK(amp_optim_list(&rule, &u));
    for (int k = 0; k < SPANS; k++) compare(&pools[k]);
    ck_assert_msg(!memcmp(steps, steps_here, n * sizeof *steps), "%s", what);
}

static void absolute(struct pool *pool) { /* squares are not below 0 */
    for (size_t i = 0; i < n; i++) {
        float *x = pool->host[i].data;
        for (size_t e = 0; e < pool->host[i].size; e++) x[e] = fabsf(x[e]);
    }
    memcpy(pool->there, pool->here, POOL);
}

static void run(int operation, bool aligned, bool mixed, enum pattern pattern) {
    static amp_dtype types[SPANS][MOST];
    const bool updates = operation == UPDATE, with_low = random_below(2);
    float found = 0.0f;
    for (int k = 0; k < (updates ? SPANS : 3); k++) {
        choose_types(types[k], mixed, !updates);
        for (size_t i = 0; updates && k && i < n; i++)
            if (k == 2) types[k][i] = types[k][i] == AMP_FLOAT16 ? AMP_FLOAT16 : AMP_BFLOAT16;
            else if (k > 2 || with_low) types[k][i] = AMP_FLOAT32; /* else parameters without masters, of any type */
        place(&pools[k], types[k], aligned, pattern);
    }
    for (int k = 3; updates && k < SPANS; k++) absolute(&pools[k]);
    numbers[0] = 0.0f;
    struct pool *dst = &pools[0], *x = &pools[operation == SCALE_IN_PLACE ? 0 : 1], *y = &pools[2];
    const amp_factor a = { NULL, 0.37f, 0 }, b = { NULL, -2.5f, 0 };
    if (operation == STATISTICS) {
        run_statistics();
    } else if (operation == CHECK) {
        run_check();
    } else if (operation == CLIP) {
        run_clip();
        return;
    } else if (updates) {
        run_update(with_low);
        return;
    } else if (operation == CAST) {
        OK(amp_device_cast(list, device.stream, dst->device, x->device, n));
        OK(amp_cast_list(dst->host, x->host, n));
    } else if (operation == ZERO) {
        OK(amp_device_zero(list, device.stream, dst->device, n));
        OK(amp_zero_list(dst->host, n));
    } else if (operation == AXPBY) {
        OK(amp_device_axpby(list, device.stream, dst->device, &a, x->device, &b, y->device, n, &numbers[0]));
        OK(amp_axpby_list(dst->host, 0.37f, x->host, -2.5f, y->host, n, &found));
    } else {
        OK(amp_device_scale(list, device.stream, dst->device, x->device, n, &a, &numbers[0]));
        OK(amp_scale_list(dst->host, x->host, n, 0.37f, &found));
    }
    compare(dst), compare(x);
    if (operation != CHECK) ck_assert_msg(numbers[0] == found, "%s: found_inf %g", what, (double)numbers[0]);
}

TEST_TIMES(test_random_lists, CASES) {
    static const enum pattern patterns[] = { PATTERN_NORMAL, PATTERN_BITS };
    random_restart();
    for (int skip = 0; skip < 1 + 97 * _i; skip++) (void)random_bits();
    const int operation = _i % OPERATIONS;
    const bool aligned = random_below(3) == 0, mixed = random_below(2);
    choose_sizes();
    snprintf(what, sizeof what, "%s, case %d, %zu tensors%s%s", names[operation], _i, n, aligned ? ", aligned" : "",
             mixed ? ", of all types" : "");
    run(operation, aligned, mixed, operation >= CHECK ? PATTERN_NORMAL : patterns[random_below(2)]);
}

TEST_FIXTURE(start, stop)
