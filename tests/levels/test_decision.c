/* SPDX-License-Identifier: Apache-2.0 */
/* The pure decision, for every class and every pair of types, against a rule written from the contract in amp.h. */
#include "checks.h"
#include "../support/levels.h"
#include "opt_levels/policy.h"

static const amp_dtype types[] = { AMP_FLOAT32, AMP_FLOAT16, AMP_BFLOAT16, AMP_FLOAT64, AMP_DTYPE_OTHER };
enum { N_TYPES = 5 };

static struct amp__properties properties_of(amp_level level, int32_t lists) {
    struct amp__properties properties;
    amp_config config = config_of(level);
    config.lists = lists;
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

static amp_dtype decide_two(const struct amp__properties *p, amp_class op_class, amp_dtype a, amp_dtype b, bool lists) {
    const struct amp__operand operands[] = { { a, lists, false }, { b, lists, false } };
    const struct amp__decision decision = amp__decide(p, op_class, operands, 2);
    ck_assert_int_eq(decision.status, AMP_OK);
    return decision.target;
}

/* Arguments that agree with the wanted type already, or do not float, need nothing. */
static amp_dtype expected_fixed(amp_dtype wanted, amp_dtype a, amp_dtype b) {
    return (floating(a) && a != wanted) || (floating(b) && b != wanted) ? wanted : AMP_DTYPE_DEFAULT;
}

TEST_TIMES(lower_wants_the_low_type, 2 * N_TYPES * N_TYPES) {
    const amp_level level = _i / (N_TYPES * N_TYPES) ? AMP_O4 : AMP_O1;
    const amp_dtype a = types[_i % N_TYPES], b = types[_i / N_TYPES % N_TYPES];
    const struct amp__properties p = properties_of(level, AMP_LISTS_APEX);
    const amp_dtype low = level_low(level);
    ck_assert_int_eq(decide_two(&p, AMP_LOWER, a, b, false), expected_fixed(low, a, b));
}

TEST_TIMES(fp32_wants_fp32, N_TYPES * N_TYPES) {
    const amp_dtype a = types[_i % N_TYPES], b = types[_i / N_TYPES];
    const struct amp__properties p = properties_of(AMP_O1, AMP_LISTS_APEX);
    ck_assert_int_eq(decide_two(&p, AMP_FP32, a, b, false), expected_fixed(AMP_FLOAT32, a, b));
}

DIFFERENCE_TIMES(promote_wants_the_widest, N_TYPES * N_TYPES) {
    const amp_dtype a = types[_i % N_TYPES], b = types[_i / N_TYPES];
    const struct amp__properties p = properties_of(AMP_O1, AMP_LISTS_APEX);
    const amp_dtype wanted = wider(a, b);
    ck_assert_int_eq(decide_two(&p, AMP_PROMOTE, a, b, false), expected_fixed(wanted, a, b));
}

TEST_TIMES(sequences_want_the_widest_of_their_tensors, N_TYPES * N_TYPES) {
    const amp_dtype a = types[_i % N_TYPES], b = types[_i / N_TYPES];
    const struct amp__properties p = properties_of(AMP_O1, AMP_LISTS_APEX);
    ck_assert_int_eq(decide_two(&p, AMP_PROMOTE_SEQUENCE, a, b, true), expected_fixed(wider(a, b), a, b));
}

TEST(sequences_do_not_look_at_single_tensors) {
    const struct amp__operand operands[] = { { AMP_FLOAT16, true, false }, { AMP_FLOAT32, false, false } };
    const struct amp__properties p = properties_of(AMP_O1, AMP_LISTS_APEX);
    ck_assert_int_eq(amp__decide(&p, AMP_PROMOTE_SEQUENCE, operands, 2).target, AMP_DTYPE_DEFAULT);
}

TEST_TIMES(leave_wants_nothing, N_TYPES * N_TYPES) {
    const amp_dtype a = types[_i % N_TYPES], b = types[_i / N_TYPES];
    const struct amp__properties p = properties_of(AMP_O1, AMP_LISTS_APEX);
    ck_assert_int_eq(decide_two(&p, AMP_LEAVE, a, b, false), AMP_DTYPE_DEFAULT);
}

TEST_TIMES(banned_refuses_16_bits_only, N_TYPES * N_TYPES) {
    const amp_dtype a = types[_i % N_TYPES], b = types[_i / N_TYPES];
    const struct amp__operand operands[] = { { a, false, false }, { b, false, false } };
    const struct amp__properties p = properties_of(AMP_O1, AMP_LISTS_APEX);
    const bool low = a == AMP_FLOAT16 || a == AMP_BFLOAT16 || b == AMP_FLOAT16 || b == AMP_BFLOAT16;
    const struct amp__decision decision = amp__decide(&p, AMP_BANNED, operands, 2);
    ck_assert_int_eq(decision.status, low ? AMP_ERR_BANNED : AMP_OK);
    ck_assert_int_eq(decision.target, AMP_DTYPE_DEFAULT);
}

/* apex.md 2.2: Apex's casts take doubles too; torch's do not (peers.md A). */
TEST(torch_leaves_fp64_alone) {
    const struct amp__properties p = properties_of(AMP_O1, AMP_LISTS_TORCH);
    ck_assert_int_eq(decide_two(&p, AMP_LOWER, AMP_FLOAT64, AMP_FLOAT64, false), AMP_DTYPE_DEFAULT);
    ck_assert_int_eq(decide_two(&p, AMP_FP32, AMP_FLOAT64, AMP_FLOAT64, false), AMP_DTYPE_DEFAULT);
}

TEST(three_types_promote) {
    const struct amp__operand operands[] = { { AMP_FLOAT16, false, false },
                                             { AMP_BFLOAT16, false, false },
                                             { AMP_FLOAT64, false, false } };
    const struct amp__properties p = properties_of(AMP_O1, AMP_LISTS_APEX);
    ck_assert_int_eq(amp__decide(&p, AMP_PROMOTE, operands, 2).target, AMP_FLOAT32);
    ck_assert_int_eq(amp__decide(&p, AMP_PROMOTE, operands, 3).target, AMP_FLOAT64);
}

/* ---- in place: the others follow self (apex.md 2.3) ---- */

TEST_TIMES(in_place_keeps_the_type_of_self, 32) {
    static const amp_class classes[] = { AMP_LOWER, AMP_PROMOTE };
    const amp_dtype self = types[_i % 4], other = types[_i / 4 % 4];
    const struct amp__operand operands[] = { { self, false, true }, { other, false, false } };
    const struct amp__properties p = properties_of(AMP_O1, AMP_LISTS_APEX);
    const struct amp__decision decision = amp__decide(&p, classes[_i / 16], operands, 2);
    ck_assert_int_eq(decision.status, AMP_OK);
    ck_assert_int_eq(decision.target, self == other ? AMP_DTYPE_DEFAULT : self);
    ck_assert(!amp__needs_cast(&decision, &operands[0]));
}

TEST_TIMES(in_place_fp32_refuses_a_16_bit_self, 2) {
    const struct amp__operand operands[] = { { _i ? AMP_BFLOAT16 : AMP_FLOAT16, false, true } };
    const struct amp__properties p = properties_of(AMP_O1, AMP_LISTS_APEX);
    ck_assert_int_eq(amp__decide(&p, AMP_FP32, operands, 1).status, AMP_ERR_UNSUPPORTED);
}

TEST(in_place_fp32_casts_the_others_to_a_wide_self) {
    const struct amp__operand operands[] = { { AMP_FLOAT32, false, true }, { AMP_FLOAT16, false, false } };
    const struct amp__properties p = properties_of(AMP_O1, AMP_LISTS_APEX);
    ck_assert_int_eq(amp__decide(&p, AMP_FP32, operands, 2).target, AMP_FLOAT32);
}

TEST(no_operands_no_decision) {
    const struct amp__properties p = properties_of(AMP_O1, AMP_LISTS_APEX);
    for (amp_class c = AMP_LOWER; c <= AMP_LEAVE; c++)
        ck_assert_int_eq(amp__decide(&p, c, NULL, 0).target, AMP_DTYPE_DEFAULT);
}
