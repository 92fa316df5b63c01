/* SPDX-License-Identifier: Apache-2.0 */
/* The caller's floating-point environment changes no result, and no function changes it, whatever instruction set is
 * used; which set that is changes no result but matmul's. */
#include "support.h"

#include "../support/traps.h"

#include "amp_kernels.h"
#include "common/common.h"
#include "kernels/cpu.h"

#include <math.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* ---- one run of everything ---- */

enum { N = 9 * 300, SIDE = 20 }; /* 300 elements of each pattern; SIDE^2 of them for matmul */

static uint64_t input[TYPES][N]; /* room for any type */

struct results {
    uint64_t cast[TYPES][TYPES][N], scale[TYPES][TYPES][N], axpby[TYPES][TYPES][N], clip[TYPES][TYPES][N];
    uint64_t whole[N];
    float norms[TYPES], norm, clip_norm, flags[2];
    int64_t first;
    uint64_t matmul[3][SIDE * SIDE]; /* last: what comes before is the same for all sets */
};
static struct results scalar, calm, rough;

static const uint32_t masks[] = {
    0,
#define MASK_ROW(name, flag) flag,
    AMP__CPU_MAP(MASK_ROW)
#undef MASK_ROW
};

static void make_input(void) {
    random_restart();
    for (int t = 0; t < TYPES; t++)
        for (size_t p = 0; p < PATTERNS; p++)
            fill((enum pattern)p, all_types[t], (char *)input[t] + 300 * p * amp__dtype_size(all_types[t]), 300);
}

static void run_elementwise(struct results *r) {
    for (int to = 0; to < TYPES; to++)
        for (int from = 0; from < TYPES; from++) {
            const amp_span src = { input[from], N, all_types[from], 0 }, other = { input[to], N, all_types[to], 0 };
            const amp_span cast = { r->cast[to][from], N, all_types[to], 0 };
            const amp_span scale = { r->scale[to][from], N, all_types[to], 0 };
            const amp_span axpby = { r->axpby[to][from], N, all_types[to], 0 };
            ck_assert_int_eq(amp_cast_list(&cast, &src, 1), AMP_OK);
            ck_assert_int_eq(amp_scale_list(&scale, &src, 1, 0.3f, &r->flags[0]), AMP_OK);
            const amp_span clip = { r->clip[to][from], N, all_types[to], 0 };
            ck_assert_int_eq(amp_clip_value_list(&clip, &src, 1, 0x1p-20f), AMP_OK);
            ck_assert_int_eq(amp_axpby_list(&axpby, 0.3f, &src, 0x1p-130f, &other, 1, &r->flags[1]), AMP_OK);
        }
}

static void run_matmul(struct results *r) {
    for (int t = 0; t < 3; t++) {
        amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
        g.a_dtype = g.b_dtype = g.c_dtype = g.bias_dtype = g.d_dtype = all_types[t];
        g.m = g.n = g.k = SIDE;
        const size_t at = PATTERN_SUBNORMALS * 300 * amp__dtype_size(all_types[t]);
        g.a = input[t], g.b = (char *)input[t] + at, g.c = (char *)input[t] + 2 * at, g.bias = g.b, g.d = r->matmul[t];
        g.alpha = 0x1p-127f, g.beta = 0.3f; /* alpha is 0 to those who flush subnormals */
        ck_assert_int_eq(amp_matmul(&g), AMP_OK);
    }
}

static void run_all(struct results *r) {
    amp_span list[TYPES];
    /* The first patterns are the finite ones. */
    for (int t = 0; t < TYPES; t++) list[t] = (amp_span){ input[t], 4 * 300, all_types[t], 0 };
    run_elementwise(r);
    run_matmul(r);
    const amp_span whole = { r->whole, 4 * 300, all_types[2], 0 };
    ck_assert_int_eq(amp_clip_norm_list(&whole, &list[2], 1, 0.7f, &r->clip_norm), AMP_OK);
    ck_assert_int_eq(amp_clip_value_list(&whole, &whole, 1, (float)NAN), AMP_ERR_INVALID_ARGUMENT);
    ck_assert_int_eq(amp_l2norm_list(list, TYPES, &r->norm, r->norms), AMP_OK);
    ck_assert_int_eq(amp_first_nonfinite(list, TYPES, &r->first), AMP_OK);
}

/* ---- environments ---- */

static void default_env(void) { fesetenv(FE_DFL_ENV); }
static void round_upward(void) { fesetround(FE_UPWARD); }
static void round_to_zero(void) { fesetround(FE_TOWARDZERO); }
static void trap_all(void) { feenableexcept(FE_OVERFLOW | FE_INVALID | FE_DIVBYZERO | FE_UNDERFLOW | FE_INEXACT); }
static void raise_some(void) { feraiseexcept(FE_INEXACT | FE_DIVBYZERO); }
static void flush_subnormals(void) {
#if defined(__x86_64__)
    enum { FLUSH_TO_ZERO = 1 << 15, DENORMALS_ARE_ZERO = 1 << 6 };
    _mm_setcsr(_mm_getcsr() | FLUSH_TO_ZERO | DENORMALS_ARE_ZERO);
#elif defined(__aarch64__)
    enum { FZ16 = 1 << 19, FZ = 1 << 24, DEFAULT_NAN = 1 << 25, OTHER_FP16_FORMAT = 1 << 26 };
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    __asm__ volatile("msr fpcr, %0" : : "r"(control | FZ16 | FZ | DEFAULT_NAN | OTHER_FP16_FORMAT));
#endif
}
static void everything(void) { round_upward(), flush_subnormals(), trap_all(); }

static const struct {
    const char *name;
    void (*set)(void);
} environments[] = {
    { "the default", default_env },     { "upward", round_upward },
    { "toward zero", round_to_zero },   { "flush subnormals", flush_subnormals },
    { "traps", trap_all },              { "flags raised", raise_some },
    { "all of these", everything },
};

/* All of the processor's control and status bits that arithmetic here can see. */
static uint64_t environment(void) {
#if defined(__x86_64__)
    return _mm_getcsr();
#elif defined(__aarch64__)
    uint64_t control, status;
    __asm__ volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(control), "=r"(status));
    return control << 32 | status;
#else
    return (uint64_t)fegetround() << 32 | (uint64_t)fetestexcept(FE_ALL_EXCEPT);
#endif
}

/* NaNs that arithmetic makes may differ between sets. */
static void make_nans_equal(struct results *r) {
    for (int to = 0; to < TYPES; to++)
        for (int from = 0; from < TYPES; from++)
            for (size_t i = 0; i < N; i++) {
                const amp_dtype type = all_types[to];
                if (bits_are_nan(type, get_bits(type, r->scale[to][from], i)))
                    set_bits(type, r->scale[to][from], i, infinity_bits(type) + 1);
                if (bits_are_nan(type, get_bits(type, r->clip[to][from], i)))
                    set_bits(type, r->clip[to][from], i, infinity_bits(type) + 1);
                if (bits_are_nan(type, get_bits(type, r->axpby[to][from], i)))
                    set_bits(type, r->axpby[to][from], i, infinity_bits(type) + 1);
            }
}

TEST_TIMES(results_and_environment_unchanged, AMP_COUNT(environments) * AMP_COUNT(masks)) {
    const int environment_of_run = _i / (int)AMP_COUNT(masks);
    const uint32_t mask = masks[_i % (int)AMP_COUNT(masks)];
    make_input();
    amp_set_cpu_mask(0);
    run_all(&scalar);
    amp_set_cpu_mask(mask);
    run_all(&calm);
    environments[environment_of_run].set();
    const uint64_t before = environment();
    run_all(&rough);
    const uint64_t after = environment();
    default_env();
    const char *name = environments[environment_of_run].name;
    ck_assert_msg(before == after, "%s, sets %#x: environment %#llx became %#llx", name, mask,
                  (unsigned long long)before, (unsigned long long)after);
    ck_assert_msg(!memcmp(&calm, &rough, sizeof calm), "%s, sets %#x: results differ", name, mask);
    ck_assert(calm.flags[0] == 1.0f && calm.flags[1] == 1.0f && calm.first == -1);
    make_nans_equal(&scalar), make_nans_equal(&calm);
    ck_assert_msg(!memcmp(&calm, &scalar, offsetof(struct results, matmul)), "sets %#x: not as scalar", mask);
}

/* An error path too. */
TEST(errors_leave_environment) {
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    uint32_t signalling = 0x7f800001u;
    memcpy(&g.alpha, &signalling, sizeof g.alpha);
    everything();
    const uint64_t before = environment();
    const amp_status status = amp_matmul(&g);
    const uint64_t after = environment();
    default_env();
    ck_assert_int_eq(status, AMP_ERR_INVALID_ARGUMENT);
    ck_assert_uint_eq(before, after);
}
