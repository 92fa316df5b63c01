/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions between float and the 16-bit types.  They are written without
 * branches, as selections between integers, so that a compiler can turn the
 * loops into vector code; and in int32_t, as SSE2 compares signed numbers
 * only.
 */
#include "internal.h"

#include <string.h>

static inline uint32_t bits_of(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

static inline float float_of(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

/* condition ? a : b, but never a jump, which would keep a loop scalar. */
static inline int32_t choose(int condition, int32_t a, int32_t b)
{
	return b ^ ((a ^ b) & -(int32_t)condition);
}

static inline float f16_to_f32(uint16_t h)
{
	int32_t magnitude = (h & 0x7fff) << 13;
	uint32_t sign = (uint32_t)(h & 0x8000) << 16;
	int32_t rebias = (127 - 15) << 23;
	int32_t normal = magnitude + rebias;
	/* A subnormal m * 2^-24 is (1 + m / 2^10) * 2^-14 less 2^-14. */
	float tiny = float_of((uint32_t)(normal + (1 << 23))) - 0x1p-14F;
	int32_t u;

	u = choose(magnitude >= 0x7c00 << 13, normal + rebias, normal);
	u = choose(magnitude < 0x0400 << 13, (int32_t)bits_of(tiny), u);
	return float_of((uint32_t)u | sign);
}

static inline uint16_t f32_to_f16(float f)
{
	int32_t magnitude = (int32_t)(bits_of(f) & 0x7fffffff);
	uint32_t sign = (bits_of(f) >> 16) & 0x8000;
	/* Nearest even: add just less than half, and the last kept bit. */
	int32_t odd = (magnitude >> 13) & 1;
	int32_t normal = (magnitude - ((127 - 15) << 23) + 0xfff + odd) >> 13;
	/* The unit in the last place of 0.5 is the smallest subnormal, so
	 * the addition itself rounds as it should.  Larger numbers would
	 * only make the addition slow or raise flags: leave them out. */
	int32_t small = choose(magnitude < 113 << 23, magnitude, 0);
	int32_t tiny = (int32_t)(bits_of(float_of((uint32_t)small) + 0.5F) -
	                         bits_of(0.5F));
	int32_t h;

	h = choose(magnitude < 113 << 23, tiny, normal);
	h = choose(magnitude >= 143 << 23, 0x7c00, h); /* 65536 and above */
	h = choose(magnitude > 0x7f800000, 0x7e00, h); /* nan */
	return (uint16_t)((uint32_t)h | sign);
}

static inline uint16_t f32_to_bf16(float f)
{
	uint32_t u = bits_of(f);
	uint32_t rounded = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
	/* Rounding could carry a nan into infinity: make it a quiet one. */
	uint32_t quiet = (u >> 16) | 0x40;
	int is_nan = (int32_t)(u & 0x7fffffff) > 0x7f800000;

	return (uint16_t)(is_nan ? quiet : rounded);
}

static void to_float(float *restrict to, mt_dtype dtype, const void *from,
                     size_t n)
{
	const uint16_t *restrict h = from;

	if (dtype == MT_F16)
		for (size_t i = 0; i < n; i++)
			to[i] = f16_to_f32(h[i]);
	else if (dtype == MT_BF16)
		for (size_t i = 0; i < n; i++)
			to[i] = float_of((uint32_t)h[i] << 16);
	else
		memcpy(to, from, n * sizeof(float));
}

static void from_float(mt_dtype dtype, void *to, const float *restrict from,
                       size_t n)
{
	uint16_t *restrict h = to;

	if (dtype == MT_F16)
		for (size_t i = 0; i < n; i++)
			h[i] = f32_to_f16(from[i]);
	else if (dtype == MT_BF16)
		for (size_t i = 0; i < n; i++)
			h[i] = f32_to_bf16(from[i]);
	else
		memcpy(to, from, n * sizeof(float));
}

void mt_convert(mt_dtype to_dtype, void *to, mt_dtype from_dtype,
                const void *from, size_t n)
{
	float tile[MTI_TILE];
	unsigned char *dst = to;
	const unsigned char *src = from;

	for (size_t at = 0; at < n; at += MTI_TILE) {
		size_t count = mti_min(n - at, MTI_TILE);

		to_float(tile, from_dtype,
		         src + at * mt_dtype_size(from_dtype), count);
		from_float(to_dtype, dst + at * mt_dtype_size(to_dtype), tile,
		           count);
	}
}

static void *element(const mt_tensor *tensor, size_t at)
{
	return (char *)tensor->storage->data +
	       at * mt_dtype_size(tensor->dtype);
}

const float *mti_read(const mt_tensor *tensor, size_t at, size_t n,
                      float *buffer)
{
	if (tensor->dtype == MT_F32)
		return element(tensor, at);
	to_float(buffer, tensor->dtype, element(tensor, at), n);
	return buffer;
}

void mti_load(const mt_tensor *tensor, size_t at, size_t n, float *to)
{
	to_float(to, tensor->dtype, element(tensor, at), n);
}

float *mti_begin(mt_tensor *tensor, size_t at, float *buffer)
{
	return tensor->dtype == MT_F32 ? element(tensor, at) : buffer;
}

void mti_end(mt_tensor *tensor, size_t at, size_t n, const float *buffer)
{
	if (tensor->dtype != MT_F32)
		from_float(tensor->dtype, element(tensor, at), buffer, n);
}
