/* SPDX-License-Identifier: Apache-2.0 */
/* amp_device_pack and amp_device_unpack against amp_pack and amp_unpack: the same bytes, whatever is packed. */
#include "device.h"

enum { MOST = 5000, GUARD = 4, WORDS = MOST, HUGE_NUMBERS = PATTERNS, RELU, MASK, ZEROS, INPUTS };
static const uint64_t sizes[] = { 1, 15, 255, 256, 257, 4096, MOST };
static const amp_dtype types[] = { AMP_FLOAT32, AMP_FLOAT16, AMP_BFLOAT16 };
static const int32_t all_bits[] = { 8, 4, 2, 1 };

static struct memory {
    _Alignas(8) uint32_t packed[WORDS];
    uint32_t back[MOST + GUARD];
    _Alignas(8) float src[MOST + 1];
    float flags[2];
} *there, here;
static amp_device_list *list;

static void start(void) {
    if (!there) there = device_alloc(sizeof *there);
    ck_ok(amp_device_list_open((amp_device){ 2, 0 }, &list));
}
static void stop(void) { amp_device_list_close(list); }

/* Patterns; and what has a rule of its own: numbers whose range is no float, ReLU's zeros, masks, zeros alone. */
static void make(int input, amp_dtype type, size_t n) {
    fill(input < PATTERNS ? (enum pattern)input : PATTERN_NORMAL, type, here.src, n);
    for (size_t i = 0; input >= PATTERNS && i < n; i++) {
        const double x = value_of_bits(type, get_bits(type, here.src, i));
        const double largest = value_of_bits(type, infinity_bits(type) - 1);
        const double made = input == HUGE_NUMBERS ? (i % 2 ? largest : i % 3 ? -largest : x)
                            : input == RELU       ? (x > 0.0 ? x : 0.0)
                            : input == MASK       ? (x > 0.0 ? 1.25 : 0.0)
                                                  : 0.0;
        set_bits(type, here.src, i, round_to_bits(type, made));
    }
    memcpy(there->src, here.src, sizeof here.src);
}

static void unpack(int32_t bits, amp_dtype type, uint64_t n, int input, size_t shift) {
    amp_unpack_args of_here = AMP_UNPACK_ARGS_INIT, of_there = of_here;
    of_here.bits = of_there.bits = bits;
    of_here.packed = here.packed + shift, of_there.packed = there->packed + shift;
    of_here.dst = (amp_span){ here.back, n, type, 0 }, of_there.dst = (amp_span){ there->back, n, type, 0 };
    memset(here.back, 0x5a, sizeof here.back), memset(there->back, 0x5a, sizeof there->back);
    ck_ok(amp_unpack(&of_here));
    ck_ok(amp_device_unpack(list, device.stream, &of_there));
    device_wait();
    for (size_t i = 0; i < n + GUARD; i++) {
        const uint64_t got = get_bits(type, there->back, i), want = get_bits(type, here.back, i);
        ck_assert_msg(bits_agree(type, got, want), "%d bits, input %d, element %zu of %llu: %#llx, not %#llx",
                      (int)bits, input, i, (unsigned long long)n, (unsigned long long)got, (unsigned long long)want);
    }
}

/* shift: elements and words before the first one. Pairs move at once where it is 0. */
static void pack(int32_t bits, amp_dtype type, uint64_t n, int input, size_t shift) {
    amp_pack_args of_here = AMP_PACK_ARGS_INIT, of_there = of_here;
    const size_t bytes = shift * (type == AMP_FLOAT32 ? 4 : 2);
    make(input, type, (size_t)n + shift);
    memset(here.packed, 0x5a, sizeof here.packed), memset(there->packed, 0x5a, sizeof there->packed);
    for (int k = 0; k < 2; k++) here.flags[k] = there->flags[k] = 0.0f;
    of_here.bits = of_there.bits = bits;
    of_here.seed = of_there.seed = UINT64_C(0x123456789) * (n + 1);
    of_here.src = (amp_span){ (char *)here.src + bytes, n, type, 0 };
    of_there.src = (amp_span){ (char *)there->src + bytes, n, type, 0 };
    of_here.packed = here.packed + shift, of_there.packed = there->packed + shift;
    of_here.found_inf = &here.flags[0], of_there.found_inf = &there->flags[0];
    of_here.inexact = &here.flags[1], of_there.inexact = &there->flags[1];
    ck_ok(amp_pack(&of_here));
    ck_ok(amp_device_pack(list, device.stream, &of_there));
    device_wait();
    for (size_t i = 0; i < WORDS; i++)
        ck_assert_msg(here.packed[i] == there->packed[i], "%d bits, input %d, %llu elements, word %zu: %#x, not %#x",
                      (int)bits, input, (unsigned long long)n, i, there->packed[i], here.packed[i]);
    ck_assert(here.flags[0] == there->flags[0] && here.flags[1] == there->flags[1]);
}

TEST_TIMES(test_same_bytes, sizeof all_bits / sizeof *all_bits) {
    const int32_t bits = all_bits[_i];
    random_restart();
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t k = 0; k < sizeof types / sizeof *types; k++)
            for (int input = 0; input < INPUTS; input++) {
                const size_t shift = (s + k + (size_t)input) % 2;
                pack(bits, types[k], sizes[s], input, shift);
                unpack(bits, types[(k + (size_t)input) % (sizeof types / sizeof *types)], sizes[s], input, shift);
            }
}

TEST(test_refused) {
    amp_pack_args to = AMP_PACK_ARGS_INIT;
    amp_unpack_args from = AMP_UNPACK_ARGS_INIT;
    to.bits = from.bits = 3;
    to.src = from.dst = (amp_span){ there->src, 4, AMP_FLOAT32, 0 };
    to.packed = there->packed, from.packed = there->packed;
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_device_pack(list, device.stream, &to));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_device_unpack(list, device.stream, &from));
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_device_pack(list, device.stream, NULL));
    to.bits = 4, to.src.data = (char *)there->src + 2;
    ck_fails(AMP_ERR_INVALID_ARGUMENT, amp_device_pack(list, device.stream, &to));
    to.src = (amp_span){ NULL, 0, AMP_FLOAT32, 0 };
    ck_ok(amp_device_pack(list, device.stream, &to));
}

TEST_FIXTURE(start, stop)
