/* SPDX-License-Identifier: Apache-2.0 */
/* The pure decision, for every class and every pair of types, against a rule written from the contract in amp.h. */
#include "checks.h"
#include "../support/levels.h"
#include "opt_levels/policy.h"

static const amp_dtype types[] = { AMP_FLOAT32, AMP_FLOAT16, AMP_BFLOAT16, AMP_FLOAT64, AMP_DTYPE_OTHER };
enum { N_TYPES = 5 };

static struct amp__properties properties_of(amp_level level, int32_t lists) {
    struct amp__properties properties;
    const amp_config config = CONFIG(level, .lists = lists);
    ck_ok(amp__properties_resolve(&config, &properties));
    return properties;
}

static bool floating(amp_dtype t) {
    return t == AMP_FLOAT32 || t == AMP_FLOAT64 || t == AMP_FLOAT16 || t == AMP_BFLOAT16;
}

/* The lattice as a table: rows and columns in the order of `types`. */
static amp_dtype wider(amp_dtype a, amp_dtype b) {
    static const amp_dtype table[4][4] = {
        { AMP_FLOAT32, AMP_FLOAT32, AMP_FLOAT32, AMP_FLOAT64 },
        { AMP_FLOAT32, AMP_FLOAT16, AMP_FLOAT32, AMP_FLOAT64 },
        { AMP_FLOAT32, AMP_FLOAT32, AMP_BFLOAT16, AMP_FLOAT64 },
        { AMP_FLOAT64, AMP_FLOAT64, AMP_FLOAT64, AMP_FLOAT64 },
    };
    if (!floating(a)) return floating(b) ? b : AMP_DTYPE_DEFAULT;
    if (!floating(b)) return a;
    size_t i = 0, j = 0;
    while (types[i] != a) i++;
    while (types[j] != b) j++;
    return table[i][j];
}

/* The contract: what two arguments are cast to. Those that agree with the wanted type already, or do not float, need
 * nothing. */
static amp_dtype expected(amp_class op_class, amp_dtype low, amp_dtype a, amp_dtype b) {
    amp_dtype wanted = AMP_DTYPE_DEFAULT;
    if (op_class == AMP_LOWER) wanted = low;
    if (op_class == AMP_FP32) wanted = AMP_FLOAT32;
    if (op_class == AMP_PROMOTE || op_class == AMP_PROMOTE_SEQUENCE) wanted = wider(a, b);
    if (op_class == AMP_LEAVE || op_class == AMP_BANNED) return AMP_DTYPE_DEFAULT;
    return (floating(a) && a != wanted) || (floating(b) && b != wanted) ? wanted : AMP_DTYPE_DEFAULT;
}

static bool is_low(amp_dtype t) { return t == AMP_FLOAT16 || t == AMP_BFLOAT16; }

/* Sequences look at what is in lists; what is banned refuses 16 bits only. */
static void ck_decides(amp_level level, amp_class op_class, amp_dtype a, amp_dtype b) {
    const bool in_list = op_class == AMP_PROMOTE_SEQUENCE, refused = op_class == AMP_BANNED && (is_low(a) || is_low(b));
    const struct amp__properties p = properties_of(level, AMP_LISTS_APEX);
    const struct amp__operand operands[] = { { a, in_list, false }, { b, in_list, false } };
    const struct amp__ruling ruling = amp__ruling_on(&p, op_class, operands, 2);
    ck_assert_int_eq(ruling.status, refused ? AMP_ERR_BANNED : AMP_OK);
    ck_assert_int_eq(ruling.target, expected(op_class, level_low(level), a, b));
}

static const struct {
    amp_level level;
    amp_class op_class;
} decided[] = {
    { AMP_O1, AMP_LOWER }, { AMP_O4, AMP_LOWER }, { AMP_O1, AMP_FP32 }, { AMP_O1, AMP_PROMOTE_SEQUENCE },
    { AMP_O1, AMP_LEAVE }, { AMP_O1, AMP_BANNED },
};

TEST_TIMES(a_class_and_two_types_decide, sizeof decided / sizeof decided[0] * N_TYPES * N_TYPES) {
    const int pair = _i % (N_TYPES * N_TYPES), row = _i / (N_TYPES * N_TYPES);
    ck_decides(decided[row].level, decided[row].op_class, types[pair % N_TYPES], types[pair / N_TYPES]);
}

DIFFERENCE_TIMES(promote_wants_the_widest, N_TYPES * N_TYPES) {
    ck_decides(AMP_O1, AMP_PROMOTE, types[_i % N_TYPES], types[_i / N_TYPES]);
}

TEST(sequences_do_not_look_at_single_tensors) {
    const struct amp__operand operands[] = { { AMP_FLOAT16, true, false }, { AMP_FLOAT32, false, false } };
    const struct amp__properties p = properties_of(AMP_O1, AMP_LISTS_APEX);
    ck_assert_int_eq(amp__ruling_on(&p, AMP_PROMOTE_SEQUENCE, operands, 2).target, AMP_DTYPE_DEFAULT);
}

/* Apex's casts take doubles too; torch's do not. */
TEST_TIMES(torch_leaves_fp64_alone, 2) {
    const struct amp__operand operands[] = { { AMP_FLOAT64, false, false }, { AMP_FLOAT64, false, false } };
    const struct amp__properties p = properties_of(AMP_O1, AMP_LISTS_TORCH);
    const struct amp__ruling ruling = amp__ruling_on(&p, _i ? AMP_FP32 : AMP_LOWER, operands, 2);
    ck_assert_int_eq(ruling.status, AMP_OK);
    ck_assert_int_eq(ruling.target, AMP_DTYPE_DEFAULT);
}

TEST(three_types_promote) {
    const struct amp__operand operands[] = { { AMP_FLOAT16, false, false },
                                             { AMP_BFLOAT16, false, false },
                                             { AMP_FLOAT64, false, false } };
    const struct amp__properties p = properties_of(AMP_O1, AMP_LISTS_APEX);
    ck_assert_int_eq(amp__ruling_on(&p, AMP_PROMOTE, operands, 2).target, AMP_FLOAT32);
    ck_assert_int_eq(amp__ruling_on(&p, AMP_PROMOTE, operands, 3).target, AMP_FLOAT64);
}

/* ---- in place: the others follow self ---- */

TEST_TIMES(in_place_keeps_the_type_of_self, 32) {
    static const amp_class classes[] = { AMP_LOWER, AMP_PROMOTE };
    const amp_dtype self = types[_i % 4], other = types[_i / 4 % 4];
    const struct amp__operand operands[] = { { self, false, true }, { other, false, false } };
    const struct amp__properties p = properties_of(AMP_O1, AMP_LISTS_APEX);
    const struct amp__ruling ruling = amp__ruling_on(&p, classes[_i / 16], operands, 2);
    ck_assert_int_eq(ruling.status, AMP_OK);
    ck_assert_int_eq(ruling.target, self == other ? AMP_DTYPE_DEFAULT : self);
    ck_assert(!amp__needs_cast(&ruling, &operands[0]));
}

TEST_TIMES(in_place_fp32_refuses_a_16_bit_self, 2) {
    const struct amp__operand operands[] = { { _i ? AMP_BFLOAT16 : AMP_FLOAT16, false, true } };
    const struct amp__properties p = properties_of(AMP_O1, AMP_LISTS_APEX);
    ck_assert_int_eq(amp__ruling_on(&p, AMP_FP32, operands, 1).status, AMP_ERR_UNSUPPORTED);
}

TEST(in_place_fp32_casts_the_others_to_a_wide_self) {
    const struct amp__operand operands[] = { { AMP_FLOAT32, false, true }, { AMP_FLOAT16, false, false } };
    const struct amp__properties p = properties_of(AMP_O1, AMP_LISTS_APEX);
    ck_assert_int_eq(amp__ruling_on(&p, AMP_FP32, operands, 2).target, AMP_FLOAT32);
}

TEST(no_operands_no_decision) {
    const struct amp__properties p = properties_of(AMP_O1, AMP_LISTS_APEX);
    for (amp_class c = AMP_LOWER; c <= AMP_LEAVE; c++)
        ck_assert_int_eq(amp__ruling_on(&p, c, NULL, 0).target, AMP_DTYPE_DEFAULT);
}
