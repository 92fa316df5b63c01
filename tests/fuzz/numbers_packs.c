/* SPDX-License-Identifier: Apache-2.0 */
/* Packed tensors and products, by the checks of tests/kernels, with sizes and elements that these do not have. */
#include "numbers.h"

#include "../kernels/table.h"
#include "../kernels/product.h"
#include "amp_pack.h"

#include <math.h>
#include <string.h>

static const amp_dtype small_types[] = { AMP_FLOAT32, AMP_FLOAT16, AMP_BFLOAT16 };

static void need_unpacked(const uint32_t *packed, size_t n, int bits, struct bytes *bytes) {
    const amp_dtype type = small_types[take_below(bytes, 3)];
    const size_t width = amp__dtype_size(type);
    amp_unpack_args args = AMP_UNPACK_ARGS_INIT;
    args.bits = bits, args.packed = packed;
    args.dst = (amp_span){ n ? block(2, n * width, width, bytes) : NULL, n, type, 0 };
    need(amp_unpack(&args) == AMP_OK, "unpack: refused");
    for (size_t e = 0; e < n; e++) {
        const uint64_t got = get_bits(type, args.dst.data, e), want = expect_value(packed, n, e, bits, type);
        need(bits_agree(type, got, want), "unpack %d bits, element %zu of %zu: %#llx, not %#llx", bits, e, n,
             (unsigned long long)got, (unsigned long long)want);
    }
}

void fuzz_packs(struct bytes *bytes) {
    static const int widths[] = { 8, 4, 2, 1, 1, 2, 4, 8, 3, 0, -1, 16 };
    static uint32_t want[4 * (8 * 8 + 1)];
    static float x[LONGEST_ENTRY];
    const int bits = widths[take_below(bytes, AMP_COUNT(widths))];
    const amp_dtype type = small_types[take_below(bytes, 3)];
    const size_t n = take_size(bytes, LONGEST_ENTRY), width = amp__dtype_size(type);
    const bool is_width = bits == 8 || bits == 4 || bits == 2 || bits == 1;
    float found = 7.0f, inexact = 7.0f;
    amp_pack_args args = AMP_PACK_ARGS_INIT;
    args.bits = bits, args.seed = take_below(bytes, 65536) * UINT64_C(0x9e3779b97f4a7c15);
    args.found_inf = &found, args.inexact = &inexact;
    args.src = (amp_span){ n ? block(0, n * width, width, bytes) : NULL, n, type, 0 };
    if (n) take_elements(bytes, type, args.src.data, n);
    need(amp_pack_bytes(n, bits) == (is_width ? 4 * words_of(n, bits) : 0), "amp_pack_bytes(%zu, %d) is %llu", n, bits,
         (unsigned long long)amp_pack_bytes(n, bits));
    if (!is_width) {
        args.packed = want;
        need_refused(amp_pack(&args), "a width");
        need(found == 7.0f && inexact == 7.0f, "a refusal wrote");
        return;
    }
    args.packed = n ? block(1, words_of(n, bits) * 4, 4, bytes) : NULL;
    for (size_t e = 0; e < n; e++) x[e] = (float)value_of_bits(type, get_bits(type, args.src.data, e));
    need(amp_pack(&args) == AMP_OK, "pack: refused");
    const uint32_t seen = expect_packed(x, n, bits, args.seed, want);
    need(!n || !memcmp(args.packed, want, words_of(n, bits) * 4), "pack %zu elements in %d bits: other bytes", n, bits);
    need(found == (seen & AMP__PACK_NONFINITE_SEEN ? 1.0f : 7.0f), "found_inf is %g", (double)found);
    need(inexact == (bits == 1 && (seen & AMP__PACK_INEXACT) ? 1.0f : 7.0f), "inexact is %g", (double)inexact);
    need_unpacked(args.packed, n, bits, bytes);
}

/* One thing that amp_matmul must refuse. */
static void spoil(amp_matmul_args *g, struct bytes *bytes) {
    switch (take_below(bytes, 9)) {
    case 0: g->m = -1; break;
    case 1: g->transpose_a = 2; break;
    case 2: g->activation = 4 + (int32_t)take(bytes); break;
    case 3: g->backend = 3 + (int32_t)take(bytes); break;
    case 4: g->struct_size = take(bytes) % 8; break;
    case 5: g->d_dtype = AMP_FLOAT64; break;
    case 6: g->ld_d = g->n - 1, g->n += g->n < 2; break;
    case 7: g->d = NULL; break;
    default: g->k = INT64_MIN; break;
    }
}

void fuzz_product(struct bytes *bytes) {
    const int64_t m = (int64_t)take_size(bytes, 70), n = (int64_t)take_size(bytes, 140),
                  k = (int64_t)take_size(bytes, 300);
    random_from(take_below(bytes, 65536));
    struct wish wish = random_wish(m, n, k);
    wish.args.backend = AMP_MATMUL_BUILTIN;
    wish.args.b_id = take_below(bytes, 4) == 3, wish.args.b_version = take_below(bytes, 65536);
    struct product product = product_new(&wish);
    if (take_below(bytes, 8) == 7 && m > 0 && n > 2) {
        const size_t size = product.elements[D] * amp__dtype_size(product.args.d_dtype);
        uint8_t *was = memcpy(malloc(size + 1), product.data[D], size);
        amp_matmul_args args = product.args;
        spoil(&args, bytes);
        need_refused(amp_matmul(&args), "matmul");
        need(!memcmp(was, product.data[D], size), "a refusal wrote d");
        free(was);
    } else {
        product_check(&product, 2000);
    }
    product_free(&product);
}
