/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions between float and the 16-bit types, and access by tiles. */
#include "half.h"
#include "internal.h"

static void to_float(float *restrict to, mt_dtype dtype, const void *from,
                     size_t n)
{
	const uint16_t *restrict h = from;

	if (dtype == MT_F16)
		for (size_t i = 0; i < n; i++)
			to[i] = mtk_f16_to_f32(h[i]);
	else if (dtype == MT_BF16)
		for (size_t i = 0; i < n; i++)
			to[i] = mtk_bf16_to_f32(h[i]);
	else
		memcpy(to, from, n * sizeof(float));
}

static void from_float(mt_dtype dtype, void *to, const float *restrict from,
                       size_t n)
{
	uint16_t *restrict h = to;

	if (dtype == MT_F16)
		for (size_t i = 0; i < n; i++)
			h[i] = mtk_f32_to_f16(from[i]);
	else if (dtype == MT_BF16)
		for (size_t i = 0; i < n; i++)
			h[i] = mtk_f32_to_bf16(from[i]);
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
