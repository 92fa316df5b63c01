/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dry run of FP8 is what casts lose: here to the nearest of all codes of the format, decoded one by one, ties to
 * the even code. Tests of the Python package compare the same with ml_dtypes.
 */
#include "../scaling/bracket.h"

#include <amp_observe.h>
#include <math.h>
#include <stdlib.h>

enum { E4M3, E5M2, CODES = 128, N = 1000, BLOCK = 32 };

/* Of the positive codes, in order: those of finite numbers. */
static struct format {
    double value[CODES];
    int n, normal; /* codes, and the first normal one */
    bool infinite; /* a cast of more becomes infinite, not NaN */
} formats[2];

static void decode(struct format *format, int mantissa, int bias, int n) {
    format->n = n, format->normal = 1 << mantissa;
    for (int code = 0; code < n; code++) {
        const int exponent = code >> mantissa, fraction = code & ((1 << mantissa) - 1);
        format->value[code] = exponent ? ldexp((1 << mantissa) + fraction, exponent - bias - mantissa)
                                       : ldexp(fraction, 1 - bias - mantissa);
    }
}

static void decode_all(void) {
    decode(&formats[E4M3], 3, 7, 127);  /* code 127 is NaN */
    decode(&formats[E5M2], 2, 15, 124); /* codes 124 to 127 are infinity and NaN */
}

/* The nearest code; n: more than the largest number and the step beyond it would hold. */
static int cast(const struct format *format, double x) {
    int best = 0;
    const double step = format->value[format->n - 1] - format->value[format->n - 2];
    for (int code = 1; code <= format->n; code++) {
        const double value = code < format->n ? format->value[code] : format->value[format->n - 1] + step;
        const double now = fabs(value - x), before = fabs((best < format->n ? format->value[best] : value) - x);
        if (now < before || (now == before && code % 2 == 0)) best = code;
    }
    return best;
}

static void count(const struct format *format, double x, amp_fp8_losses *losses) {
    const int code = cast(format, x);
    losses->zeros += code == 0;
    losses->subnormals += code != 0 && x < format->value[format->normal];
    losses->saturated += code == format->n;
}

static double largest_of(const float *x, size_t n) {
    double largest = 0.0;
    for (size_t i = 0; i < n; i++) largest = isfinite(x[i]) ? fmax(largest, fabs((double)x[i])) : largest;
    return largest;
}

/* At the greatest power of two without overflow, found by trying. */
static amp_fp8_losses of_tensor(int kind, const float *x, size_t n) {
    const struct format *format = &formats[kind];
    const double most = format->value[format->n - 1], largest = largest_of(x, n);
    amp_fp8_losses losses = { 0, 0, 0 };
    int k = 400;
    while (ldexp(largest, k) > most) k--;
    for (size_t i = 0; i < n; i++)
        if (isfinite(x[i]) && x[i] != 0.0f) count(format, ldexp(fabs((double)x[i]), k), &losses);
    return losses;
}

static amp_fp8_losses of_blocks(int kind, const float *x, size_t n) {
    amp_fp8_losses losses = { 0, 0, 0 };
    for (size_t at = 0; at < n; at += BLOCK) {
        const size_t size = n - at < BLOCK ? n - at : BLOCK;
        const double largest = largest_of(x + at, size);
        if (largest == 0.0) continue;
        int shared = ilogb(largest) - (kind == E4M3 ? 8 : 15);
        shared = shared < -127 ? -127 : shared > 127 ? 127 : shared;
        for (size_t i = at; i < at + size; i++)
            if (isfinite(x[i]) && x[i] != 0.0f) count(&formats[kind], ldexp(fabs((double)x[i]), -shared), &losses);
    }
    return losses;
}

/* ---- through a training ---- */

static void tell(amp_context *context, const char *op, const void *x, size_t n, amp_dtype dtype, bool backward) {
    const amp_observed_value values[] = { { "x", NULL, { (void *)(uintptr_t)x, n, dtype, 0 }, 0, 0 } };
    amp_observed_call call = AMP_OBSERVED_CALL_INIT;
    call.op = op, call.values = values, call.n_values = 1, call.in_backward = backward, call.line = "net.c:7";
    ck_ok(amp_observe_call(context, &call));
}

static void start(struct rig *rig, const char *trace) {
    const amp_observe_options options = { .struct_size = sizeof options, .every = 1 };
    decode_all();
    rig_init(rig, 0);
    rig_wire(rig, CONFIG(AMP_O1, .log = AMP_LOG_OFF, .trace = trace));
    ck_ok(amp_observe(rig->context, &options));
}

static const amp_fp8_input *surveyed(struct rig *rig, const char *op, amp_survey_result *result) {
    *result = (amp_survey_result)AMP_SURVEY_RESULT_INIT;
    ck_ok(amp_survey(rig->context, result));
    for (uint64_t i = 0; i < result->n_fp8; i++)
        if (!strcmp(result->fp8[i].op, op)) return &result->fp8[i];
    ck_abort_msg("%s was not surveyed", op);
}

static void equal(const amp_fp8_losses *is, amp_fp8_losses should, const char *what) {
    ck_assert_msg(is->zeros == should.zeros && is->subnormals == should.subnormals && is->saturated == should.saturated,
                  "%s: %llu %llu %llu, not %llu %llu %llu", what, (unsigned long long)is->zeros,
                  (unsigned long long)is->subnormals, (unsigned long long)is->saturated,
                  (unsigned long long)should.zeros, (unsigned long long)should.subnormals,
                  (unsigned long long)should.saturated);
}

/* Numbers over `span` binades. As bfloat16 one in 128 is a power of two: among them are ties. */
static void fill(float *x, size_t n, int span, int at, unsigned seed, bool low) {
    srand(seed);
    for (size_t i = 0; i < n; i++) {
        const double number = ldexp(1.0 + (rand() % 8192) / 8192.0, rand() % span - span + at); /* NOLINT */
        x[i] = (float)(rand() % 2 ? number : -number);
        if (low) {
            uint32_t bits;
            memcpy(&bits, &x[i], sizeof bits);
            bits &= i % 3 ? 0xffff0000u : 0xff800000u;
            memcpy(&x[i], &bits, sizeof bits);
        }
    }
    x[n / 2] = 0.0f, x[n / 3] = INFINITY;
}

TEST_TIMES(losses_are_those_of_casts, 24) {
    static float x[N];
    amp_survey_result result;
    RIG(rig);
    const unsigned seed = (unsigned)_i + 1;
    fill(x, N, 4 + 3 * (_i % 12), _i % 5 * 20 - 60, seed, _i >= 12);
    start(&rig, NULL);
    tell(rig.context, "linear", x, N, AMP_FLOAT32, false);
    const amp_fp8_input *input = surveyed(&rig, "linear", &result);
    ck_assert_uint_eq(input->numbers, N - 2);
    equal(&input->e4m3, of_tensor(E4M3, x, N), "E4M3");
    equal(&input->e5m2, of_tensor(E5M2, x, N), "E5M2");
    ck_assert_uint_eq(input->block_numbers, N - 2); /* 32 blocks, so all of them */
    equal(&input->e4m3_blocks, of_blocks(E4M3, x, N), "blocks, E4M3");
    equal(&input->e5m2_blocks, of_blocks(E5M2, x, N), "blocks, E5M2");
    if (_i % 12 > 8) ck_assert_uint_gt(input->e4m3.zeros, 0);
}

/* The largest numbers of the formats, what rounds to them, ties, half the least subnormal, the ends of FP32. */
static const float edges[][4] = {
    { 448, 0x1p-10f, 0x1.8p-10f, 0x1p-9f },         { 464, 0x1p-9f, 0x1.8p-9f, 1 },
    { 57344, 0x1p-17f, 0x1.8p-17f, 0x1p-16f },      { 61440, 0x1p-16f, 1, 2 },
    { 0x1p-126f, 0x1p-140f, 0x1p-149f, 0x1p-136f }, { 480, 511.9f, 465, 463 },
    { 0x1.fffffep127f, 1, 0x1p100f, 0x1.cp127f },
};

TEST_TIMES(edges_are_those_of_casts, 7) {
    amp_survey_result result;
    RIG(rig);
    start(&rig, NULL);
    tell(rig.context, "linear", edges[_i], 4, AMP_FLOAT32, false);
    const amp_fp8_input *input = surveyed(&rig, "linear", &result);
    equal(&input->e4m3, of_tensor(E4M3, edges[_i], 4), "E4M3");
    equal(&input->e5m2, of_tensor(E5M2, edges[_i], 4), "E5M2");
    equal(&input->e4m3_blocks, of_blocks(E4M3, edges[_i], 4), "blocks, E4M3");
    equal(&input->e5m2_blocks, of_blocks(E5M2, edges[_i], 4), "blocks, E5M2");
}

/* Each iteration has a scale of its own; forward is judged by E4M3, backward by E5M2; only products count. */
TEST(inputs_of_products_stay_or_fit) {
    static float even[N], wide[N], wider[N];
    amp_survey_result result;
    RIG(rig);
    for (size_t i = 0; i < N; i++) {
        even[i] = 1.0f + (float)i / N;
        wide[i] = i % 8 ? 1.0f : 0x1p25f;  /* 0 in E4M3, not in E5M2 */
        wider[i] = i % 8 ? 1.0f : 0x1p40f; /* 0 in both */
    }
    start(&rig, NULL);
    for (int i = 0; i < 2; i++) {
        tell(rig.context, "linear", even, N, AMP_FLOAT32, false);
        tell(rig.context, "matmul", wide, N, AMP_FLOAT32, false);
        tell(rig.context, "matmul", wide, N, AMP_FLOAT32, true);
        tell(rig.context, "bmm", wider, N, AMP_FLOAT32, true);
        tell(rig.context, "softmax", wider, N, AMP_FLOAT32, false);
        for (size_t j = 0; j < N; j++) even[j] *= 0x1p60f; /* at one scale for both iterations, half would be 0 */
        ck_assert_int_eq(bracket(&rig, 1.0), AMP_STEP);
    }
    ck_assert_int_eq(surveyed(&rig, "linear", &result)->stays, 0);
    ck_assert_uint_eq(surveyed(&rig, "linear", &result)->numbers, 2 * N);
    ck_assert_uint_eq(surveyed(&rig, "linear", &result)->e4m3.zeros, 0);
    ck_assert_int_eq(surveyed(&rig, "matmul", &result)->stays, 1);
    ck_assert_uint_eq(surveyed(&rig, "matmul", &result)->e4m3.zeros, 2 * (N - N / 8));
    ck_assert_int_eq(surveyed(&rig, "matmul (backward)", &result)->stays, 0);
    ck_assert_int_eq(surveyed(&rig, "bmm (backward)", &result)->stays, 1);
    for (uint64_t i = 0; i < result.n_fp8; i++) ck_assert_str_ne(result.fp8[i].op, "softmax");
    ck_assert_ptr_nonnull(strstr(result.text, "2 of 4 inputs of products would have to stay in 16 bits"));
}

/* 16-bit tensors, without a copy of another type. */
TEST(sixteen_bits_are_read_as_they_are) {
    static float x[N];
    static uint16_t low[N];
    amp_survey_result result;
    RIG(rig);
    fill(x, N, 30, 0, 5, true);
    for (size_t i = 0; i < N; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        low[i] = (uint16_t)(bits >> 16);
    }
    start(&rig, NULL);
    tell(rig.context, "linear", low, N, AMP_BFLOAT16, false);
    const amp_fp8_input *input = surveyed(&rig, "linear", &result);
    equal(&input->e4m3, of_tensor(E4M3, x, N), "E4M3");
    equal(&input->e4m3_blocks, of_blocks(E4M3, x, N), "blocks");
}
