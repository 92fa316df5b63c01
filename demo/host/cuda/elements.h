/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels do that know no neighbours, each for one element.  Plain C
 * that is C++ too, so that any compiler can run it.
 */
#ifndef MINITAPE_CUDA_ELEMENTS_H
#define MINITAPE_CUDA_ELEMENTS_H

#include "../half.h"
#include "../launch.h"

#include <math.h>

MTK_FN float mtk_load(struct mtk_ref from, size_t i)
{
	if (from.dtype == MT_F16)
		return mtk_f16_to_f32(((const uint16_t *)from.data)[i]);
	if (from.dtype == MT_BF16)
		return mtk_bf16_to_f32(((const uint16_t *)from.data)[i]);
	return ((const float *)from.data)[i];
}

MTK_FN void mtk_store(struct mtk_ref to, size_t i, float value)
{
	if (to.dtype == MT_F16)
		((uint16_t *)to.data)[i] = mtk_f32_to_f16(value);
	else if (to.dtype == MT_BF16)
		((uint16_t *)to.data)[i] = mtk_f32_to_bf16(value);
	else
		((float *)to.data)[i] = value;
}

/* ---- element by element ------------------------------------------------- */

MTK_FN void mtk_each_fill(const struct mtk_fill *a, size_t i)
{
	mtk_store(a->to, i, a->value);
}

MTK_FN void mtk_each_combine(const struct mtk_combine *a, size_t i)
{
	float x = mtk_load(a->x, i) * (a->by ? *a->by : a->fx);

	if (a->y.data)
		x = x + mtk_load(a->y, i) * a->fy;
	mtk_store(a->out, i, x);
}

MTK_FN void mtk_each_multiply(const struct mtk_multiply *a, size_t i)
{
	mtk_store(a->out, i, mtk_load(a->x, i) * mtk_load(a->y, i));
}

MTK_FN void mtk_each_convert(const struct mtk_convert *a, size_t i)
{
	mtk_store(a->to, i, mtk_load(a->from, i));
}

/* A nan stays a nan. */
MTK_FN void mtk_each_relu(const struct mtk_relu *a, size_t byte)
{
	unsigned bits = 0;

	for (unsigned b = 0; b < 8 && byte * 8 + b < a->total; b++) {
		float x = mtk_load(a->x, byte * 8 + b);

		bits |= (unsigned)!(x <= 0.0F) << b;
		mtk_store(a->out, byte * 8 + b, x <= 0.0F ? 0.0F : x);
	}
	if (a->bits)
		a->bits[byte] = (unsigned char)bits;
}

/* The numbers of mt_rng_uniform(): each of SplitMix64's is a function of its
 * place alone. */
MTK_FN void mtk_each_draw(const struct mtk_draw *a, size_t byte)
{
	unsigned bits = 0;

	for (unsigned b = 0; b < 8 && byte * 8 + b < a->total; b++) {
		uint64_t z = a->seed + (byte * 8 + b + 1) *
		                               UINT64_C(0x9e3779b97f4a7c15);

		z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
		z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
		z = (z ^ (z >> 31)) >> 40;
		bits |= (unsigned)((float)z * 0x1p-24F >= a->p) << b;
	}
	a->bits[byte] = (unsigned char)bits;
}

MTK_FN void mtk_each_mask(const struct mtk_mask *a, size_t i)
{
	int set = a->bits[i / 8] >> (i % 8) & 1;

	mtk_store(a->out, i, set ? mtk_load(a->x, i) * a->factor : 0.0F);
}

MTK_FN void mtk_copy_element(void *to, const void *from, size_t size)
{
	if (size == 2)
		*(uint16_t *)to = *(const uint16_t *)from;
	else
		*(uint32_t *)to = *(const uint32_t *)from;
}

MTK_FN void mtk_each_part(const struct mtk_part *a, size_t i)
{
	char *whole = a->whole + (a->offset + i / a->width * a->step +
	                          i % a->width) * a->size;
	char *part = a->part + i * a->size;

	if (a->to_whole)
		mtk_copy_element(whole, part, a->size);
	else
		mtk_copy_element(part, whole, a->size);
}

/* ---- optimizers --------------------------------------------------------- */

MTK_FN int mtk_sits_out(const struct mtk_update *a)
{
	return a->found_inf && *a->found_inf != 0.0F;
}

MTK_FN void mtk_each_sgd(const struct mtk_update *a, size_t i)
{
	float p, d;

	if (mtk_sits_out(a))
		return;
	p = mtk_load(a->param, i);
	d = mtk_load(a->grad, i) + a->weight_decay * p;
	if (a->a)
		d = a->a[i] = a->momentum * a->a[i] + d;
	mtk_store(a->param, i, p - a->lr * d);
}

MTK_FN void mtk_each_adam_begin(const struct mtk_update *a, size_t none)
{
	(void)none;
	if (mtk_sits_out(a))
		return;
	++*a->count;
	a->rates[0] = (float)((double)a->lr /
	                      (1.0 - pow((double)a->beta1, *a->count)));
	a->rates[1] = (float)(1.0 / sqrt(1.0 - pow((double)a->beta2,
	                                           *a->count)));
}

MTK_FN void mtk_each_adam(const struct mtk_update *a, size_t i)
{
	float p, d;

	if (mtk_sits_out(a))
		return;
	p = mtk_load(a->param, i);
	d = mtk_load(a->grad, i) + a->weight_decay * p;
	a->a[i] = a->beta1 * a->a[i] + (1.0F - a->beta1) * d;
	a->b[i] = a->beta2 * a->b[i] + (1.0F - a->beta2) * d * d;
	mtk_store(a->param, i,
	          p - a->rates[0] * a->a[i] /
	                      (sqrtf(a->b[i]) * a->rates[1] + a->eps));
}

#endif
