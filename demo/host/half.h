/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Single conversions between float and the 16-bit types, for the processor and
 * for a device's kernels.  They are written without branches, as selections
 * between integers, so that a compiler can turn the loops around them into
 * vector code; and in int32_t, as SSE2 compares signed numbers only.
 */
#ifndef MINITAPE_HALF_H
#define MINITAPE_HALF_H

#include <stdint.h>
#include <string.h>

#ifndef MTK_FN /* how a function is declared that kernels call too */
#define MTK_FN static inline
#endif

MTK_FN uint32_t mtk_bits_of(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

MTK_FN float mtk_float_of(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

/* condition ? a : b, but never a jump, which would keep a loop scalar. */
MTK_FN int32_t mtk_choose(int condition, int32_t a, int32_t b)
{
	return b ^ ((a ^ b) & -(int32_t)condition);
}

MTK_FN float mtk_f16_to_f32(uint16_t h)
{
	int32_t magnitude = (h & 0x7fff) << 13;
	uint32_t sign = (uint32_t)(h & 0x8000) << 16;
	int32_t rebias = (127 - 15) << 23;
	int32_t normal = magnitude + rebias;
	/* A subnormal m * 2^-24 is (1 + m / 2^10) * 2^-14 less 2^-14. */
	float tiny = mtk_float_of((uint32_t)(normal + (1 << 23))) - 0x1p-14F;
	int32_t u;

	u = mtk_choose(magnitude >= 0x7c00 << 13, normal + rebias, normal);
	u = mtk_choose(magnitude < 0x0400 << 13, (int32_t)mtk_bits_of(tiny), u);
	return mtk_float_of((uint32_t)u | sign);
}

MTK_FN uint16_t mtk_f32_to_f16(float f)
{
	int32_t magnitude = (int32_t)(mtk_bits_of(f) & 0x7fffffff);
	uint32_t sign = (mtk_bits_of(f) >> 16) & 0x8000;
	/* Nearest even: add just less than half, and the last kept bit. */
	int32_t odd = (magnitude >> 13) & 1;
	int32_t normal = (magnitude - ((127 - 15) << 23) + 0xfff + odd) >> 13;
	/* The unit in the last place of 0.5 is the smallest subnormal, so
	 * the addition itself rounds as it should.  Larger numbers would
	 * only make the addition slow or raise flags: leave them out. */
	int32_t small = mtk_choose(magnitude < 113 << 23, magnitude, 0);
	int32_t tiny = (int32_t)(mtk_bits_of(mtk_float_of((uint32_t)small) + 0.5F) -
	                         mtk_bits_of(0.5F));
	int32_t h;

	h = mtk_choose(magnitude < 113 << 23, tiny, normal);
	h = mtk_choose(magnitude >= 143 << 23, 0x7c00, h); /* 65536 and above */
	h = mtk_choose(magnitude > 0x7f800000, 0x7e00, h); /* nan */
	return (uint16_t)((uint32_t)h | sign);
}

MTK_FN uint16_t mtk_f32_to_bf16(float f)
{
	uint32_t u = mtk_bits_of(f);
	uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
	/* Rounding could carry a nan into infinity: make it a quiet one. */
	uint32_t quiet = (u >> 16) | 0x40;
	int is_nan = (int32_t)(u & 0x7fffffff) > 0x7f800000;

	return (uint16_t)(is_nan ? quiet : rounded);
}

MTK_FN float mtk_bf16_to_f32(uint16_t h)
{
	return mtk_float_of((uint32_t)h << 16);
}

#endif
