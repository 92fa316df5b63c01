/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as text: every float comes back with its bits, C and nobody else's locale reads it the same, nothing but the
 * one spelling is read. And the checksum's catalogue value. */
#include "state/state.h"

#include "test.h"
#include <fenv.h>
#include <stdlib.h>
#include <string.h>

static float from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void check_double(uint64_t bits) {
    char text[AMP__NUMBER_SIZE];
    double value, back = -1.0;
    memcpy(&value, &bits, sizeof value);
    amp__double_to_text(value, text);
    const double by_c = strtod(text, NULL);
    ck_assert_msg(amp__double_from_text(text, &back), "%016llx: %s is not read", (unsigned long long)bits, text);
    ck_assert_msg(!memcmp(&back, &value, sizeof back), "%016llx: %s", (unsigned long long)bits, text);
    ck_assert_msg(!memcmp(&by_c, &value, sizeof by_c), "%016llx: C reads %s otherwise", (unsigned long long)bits, text);
}

static void check_bits(uint32_t bits) {
    char text[AMP__NUMBER_SIZE], as_double[AMP__NUMBER_SIZE];
    float back = -1.0f;
    const float value = from_bits(bits), by_c = (amp__float_to_text(value, text), strtof(text, NULL));
    ck_assert_msg(amp__float_from_text(text, &back), "%08x: %s is not read", bits, text);
    ck_assert_msg(!memcmp(&back, &value, sizeof back), "%08x: %s", bits, text);
    ck_assert_msg(!memcmp(&by_c, &value, sizeof by_c), "%08x: C reads %s otherwise", bits, text);
    amp__double_to_text((double)value, as_double);
    ck_assert_str_eq(as_double, text); /* a factor that was written as a float is read */
}

TEST(every_float_goes_round) {
    for (uint32_t bits = 0; bits < 0x7f800000u; bits += 40009) check_bits(bits); /* prime apart */
    for (uint32_t exponent = 0; exponent < 255; exponent++) {
        const uint32_t mantissas[] = { 0, 1, 2, 0x400000, 0x7ffffe, 0x7fffff };
        for (size_t i = 0; i < AMP_COUNT(mantissas); i++) check_bits(exponent << 23 | mantissas[i]);
    }
}

TEST(every_double_goes_round) {
    for (uint64_t bits = 0; bits < 0x7ff0000000000000u; bits += 40009000000007u) check_double(bits);
    for (uint64_t exponent = 0; exponent < 2047; exponent += 31) {
        const uint64_t mantissas[] = { 0, 1, 2, 0x8000000000000u, 0xffffffffffffeu, 0xfffffffffffffu };
        for (size_t i = 0; i < AMP_COUNT(mantissas); i++) check_double(exponent << 52 | mantissas[i]);
    }
    double value = 5.0;
    const char *const others[] = { "0x1p+1024", "0x20000000000001p+0",   "0x1p-1075",
                                   "0x2p+0",    "0x1fffffffffffffffp+0", "1.5" };
    for (size_t i = 0; i < AMP_COUNT(others); i++)
        ck_assert_msg(!amp__double_from_text(others[i], &value), "%s", others[i]);
    ck_assert_double_eq(value, 5.0);
}

TEST(nothing_else_is_read) {
    static const char *const rows[] = {
        "", "0", "1", "65536", "0x1", "0x1p", "0x1p16", "0X1p+16", "0x1P+16", "0x1p+016", "0x01p+16", "0x2p+15",
        "0x1.0p+16", " 0x1p+16", "0x1p+16 ", "0x1p+16x", "-0x1p+16", "+0x1p+16", "0x1p+128", "0x1000001p+0",
        "0xffffffp+105", "0x1p-150", "0x0p-149", "0x0p+1", "-0x0p+0", "inf", "nan", "0x1p+99999999999",
        "0x1fffffffffffffffffp+0", "0x p+1", "0x-1p+1", "0x1p+-1", "0x1p++1", "0xAp+0",
    };
    for (size_t i = 0; i < AMP_COUNT(rows); i++) {
        float value = 5.0f;
        ck_assert_msg(!amp__float_from_text(rows[i], &value), "%s is read as %g", rows[i], (double)value);
        ck_assert_float_eq(value, 5.0f);
    }
}

TEST(whole_numbers) {
    static const struct {
        const char *text;
        uint64_t max, value;
        bool valid;
    } rows[] = {
        { "0", 0, 0, true }, { "7", 7, 7, true }, { "8", 7, 0, false }, { "4294967295", UINT32_MAX, UINT32_MAX, true },
        { "4294967296", UINT32_MAX, 0, false }, { "18446744073709551615", UINT64_MAX, UINT64_MAX, true },
        { "18446744073709551616", UINT64_MAX, 0, false }, { "99999999999999999999", UINT64_MAX, 0, false },
        { "", UINT64_MAX, 0, false }, { "00", UINT64_MAX, 0, false }, { "01", UINT64_MAX, 0, false },
        { "-1", UINT64_MAX, 0, false }, { "+1", UINT64_MAX, 0, false }, { " 1", UINT64_MAX, 0, false },
        { "1 ", UINT64_MAX, 0, false }, { "1a", UINT64_MAX, 0, false }, { "\xb1", UINT64_MAX, 0, false },
    };
    for (size_t i = 0; i < AMP_COUNT(rows); i++) {
        uint64_t value = 3;
        ck_assert_msg(amp__uint_from_text(rows[i].text, rows[i].max, &value) == rows[i].valid, "\"%s\"", rows[i].text);
        ck_assert_uint_eq(value, rows[i].valid ? rows[i].value : 3);
    }
}

/* Subnormals and limits raise nothing, in whatever rounding mode. */
TEST(the_environment_is_left_alone) {
    feclearexcept(FE_ALL_EXCEPT);
    fesetround(FE_UPWARD);
    char text[AMP__NUMBER_SIZE];
    float value;
    amp__float_to_text(from_bits(1), text);
    ck_assert(amp__float_from_text("0xffffffp+104", &value) && amp__float_from_text("0x1p-149", &value));
    ck_assert(!amp__float_from_text("0x1p+128", &value));
    const int raised = fetestexcept(FE_ALL_EXCEPT);
    fesetround(FE_TONEAREST);
    ck_assert_int_eq(raised, 0);
}

TEST(checksum_in_any_pieces) {
    struct amp__crc64 crc;
    unsigned char data[300];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 7 + 1);
    amp__crc64_init(&crc);
    amp__crc64_add(&crc, "123456789", 9);
    ck_assert_uint_eq(amp__crc64_value(&crc), 0x995dc9bbdf1939fau); /* the check value of the CRC catalogue */
    amp__crc64_init(&crc);
    amp__crc64_add(&crc, data, sizeof data);
    const uint64_t whole = amp__crc64_value(&crc);
    for (size_t cut = 0; cut <= sizeof data; cut++) {
        amp__crc64_init(&crc);
        amp__crc64_add(&crc, data, cut);
        amp__crc64_add(&crc, data + cut, sizeof data - cut);
        ck_assert_uint_eq(amp__crc64_value(&crc), whole);
    }
}
