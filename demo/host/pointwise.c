/* SPDX-License-Identifier: Apache-2.0 */
/* Operators that work element by element. */
#include "device.h"

#include <limits.h>

/* out = x * fx + y * fy, tile by tile; y may be NULL. */
static void combine(mt_tensor *out, const mt_tensor *x, float fx,
                    const mt_tensor *y, float fy)
{
	float bx[MTI_TILE], by[MTI_TILE], bo[MTI_TILE];
	size_t total = mt_numel(out);

	if (mti_there(out)) {
		MTI_RUN(combine, total, .out = mti_ref(out), .x = mti_ref(x),
		        .y = mti_ref(y), .fx = fx, .fy = fy);
		return;
	}
	for (size_t at = 0; at < total; at += MTI_TILE) {
		size_t n = mti_min(total - at, MTI_TILE);
		const float *a = mti_read(x, at, n, bx);
		const float *b = y ? mti_read(y, at, n, by) : NULL;
		float *o = mti_begin(out, at, bo);

		if (b)
			for (size_t i = 0; i < n; i++)
				o[i] = a[i] * fx + b[i] * fy;
		else
			for (size_t i = 0; i < n; i++)
				o[i] = a[i] * fx;
		mti_end(out, at, n, o);
	}
}

void mti_axpy(mt_tensor *to, const mt_tensor *from, float alpha)
{
	combine(to, to, 1.0F, from, alpha);
}

static mt_tensor *multiply(mt_tensor *out, const mt_tensor *x,
                           const mt_tensor *y)
{
	float bx[MTI_TILE], by[MTI_TILE], bo[MTI_TILE];
	size_t total = out ? mt_numel(out) : 0;

	if (out && mti_there(out)) {
		MTI_RUN(multiply, total, .out = mti_ref(out), .x = mti_ref(x),
		        .y = mti_ref(y));
		return out;
	}
	for (size_t at = 0; at < total; at += MTI_TILE) {
		size_t n = mti_min(total - at, MTI_TILE);
		const float *a = mti_read(x, at, n, bx);
		const float *b = mti_read(y, at, n, by);
		float *o = mti_begin(out, at, bo);

		for (size_t i = 0; i < n; i++)
			o[i] = a[i] * b[i];
		mti_end(out, at, n, o);
	}
	return out;
}

static int check_pair(const char *op, mt_tensor *a, mt_tensor *b)
{
	mt_tensor *in[] = {a, b};

	if (!mti_check(op, 2, in))
		return 0;
	if (mt_same_shape(a, b))
		return 1;
	mti_fail("%s: the shapes differ", op);
	return 0;
}

/* ---- add, mul, scale --------------------------------------------------- */

static int add_backward(const mt_node *node, mt_tensor *grad,
                        mt_tensor **grads)
{
	for (int i = 0; i < 2; i++)
		if (mti_wants(node, i))
			grads[i] = mt_retain(grad);
	return 0;
}

mt_tensor *mti_add(mt_tensor *a, mt_tensor *b)
{
	mt_tensor *in[] = {a, b};
	struct mti_record rec = {.name = "add", .backward = add_backward};
	mt_tensor *out;

	if (!check_pair(rec.name, a, b))
		return NULL;
	out = mti_like(a);
	if (out)
		combine(out, a, 1.0F, b, 1.0F);
	return mti_finish(out, &rec, 2, in);
}

static int mul_backward(const mt_node *node, mt_tensor *grad,
                        mt_tensor **grads)
{
	for (int i = 0; i < 2; i++) {
		if (!mti_wants(node, i))
			continue;
		grads[i] = multiply(mti_like(grad), grad,
		                    node->rec.saved[1 - i]);
		if (!grads[i])
			return -1;
	}
	return 0;
}

mt_tensor *mti_mul(mt_tensor *a, mt_tensor *b)
{
	mt_tensor *in[] = {a, b};
	struct mti_record rec = {
		.name = "mul", .backward = mul_backward, .saved = {a, b}};

	if (!check_pair(rec.name, a, b))
		return NULL;
	return mti_finish(multiply(mti_like(a), a, b), &rec, 2, in);
}

/* By the record's factor, wherever that is.  Takes NULL for out. */
static void scale(mt_tensor *out, const mt_tensor *x,
                  const struct mti_record *rec)
{
	if (out && rec->by && mti_there(out))
		MTI_RUN(combine, mt_numel(out), .out = mti_ref(out),
		        .x = mti_ref(x), .by = rec->by);
	else if (out)
		combine(out, x, rec->by ? *rec->by : rec->factor, NULL, 0.0F);
}

static int scale_backward(const mt_node *node, mt_tensor *grad,
                          mt_tensor **grads)
{
	grads[0] = mti_like(grad);
	scale(grads[0], grad, &node->rec);
	return grads[0] ? 0 : -1;
}

static mt_tensor *record_scale(mt_tensor *input, const struct mti_record *rec)
{
	mt_tensor *out;

	if (!mti_check(rec->name, 1, &input))
		return NULL;
	out = mti_like(input);
	scale(out, input, rec);
	return mti_finish(out, rec, 1, &input);
}

mt_tensor *mti_scale(mt_tensor *input, float factor)
{
	struct mti_record rec = {
		.name = "scale", .backward = scale_backward, .factor = factor};

	return record_scale(input, &rec);
}

mt_tensor *mt_scale_by(mt_tensor *input, const float *factor)
{
	struct mti_record rec = {
		.name = "scale", .backward = scale_backward, .by = factor};

	return record_scale(input, &rec);
}

int mti_add_(mt_tensor *self, mt_tensor *other, float alpha)
{
	if (!check_pair("add_", self, other))
		return -1;
	if (mt_grad_enabled() && self->requires_grad) {
		mti_fail("add_: the tensor requires a gradient");
		return -1;
	}
	mti_axpy(self, other, alpha);
	self->version++;
	return 0;
}

/* ---- cast -------------------------------------------------------------- */

static int cast_backward(const mt_node *node, mt_tensor *grad,
                         mt_tensor **grads)
{
	grads[0] = mti_grad_for(node, 0);
	return grads[0] ? mt_copy(grads[0], grad) : -1;
}

mt_tensor *mti_cast(mt_tensor *input, mt_dtype dtype)
{
	struct mti_record rec = {.name = "cast", .backward = cast_backward};
	mt_tensor *out;

	if (!mti_check(rec.name, 1, &input))
		return NULL;
	if (!mt_dtype_is_float(dtype)) {
		mti_fail("cast: %s is no floating type",
		         mt_dtype_name(dtype));
		return NULL;
	}
	if (input->dtype == dtype)
		return mt_retain(input);
	out = mti_activation(input->storage->device, dtype, input->ndim,
	                     input->shape);
	if (out)
		mt_copy(out, input);
	return mti_finish(out, &rec, 1, &input);
}

/* ---- relu and dropout: what they keep is a mask of one bit per element -- */

_Static_assert(MTI_TILE % CHAR_BIT == 0, "tiles begin at whole mask bytes");

static mt_storage *new_mask(const mt_tensor *input)
{
	return mti_beside(input, (mt_numel(input) + CHAR_BIT - 1) / CHAR_BIT);
}

/* Packs n flags (0 or 1) from the element `at`, a multiple of 8, on. */
static void pack_bits(mt_storage *mask, size_t at,
                      const unsigned char *restrict flags, size_t n)
{
	unsigned char *restrict bytes =
		(unsigned char *)mask->data + at / CHAR_BIT;

	for (size_t i = 0; i < n; i += CHAR_BIT) {
		unsigned byte = 0;

		for (size_t b = 0; b < CHAR_BIT && i + b < n; b++)
			byte |= (unsigned)flags[i + b] << b;
		bytes[i / CHAR_BIT] = (unsigned char)byte;
	}
}

/* out = x * factor where the mask is set, 0 elsewhere. */
static void apply_mask(mt_tensor *out, const mt_tensor *x,
                       const mt_storage *mask, float factor)
{
	const unsigned char *bits = mask->data;
	float bx[MTI_TILE], bo[MTI_TILE];
	size_t total = mt_numel(out);

	if (mti_there(out)) {
		MTI_RUN(mask, total, .out = mti_ref(out), .x = mti_ref(x),
		        .bits = bits, .factor = factor);
		return;
	}
	for (size_t at = 0; at < total; at += MTI_TILE) {
		size_t n = mti_min(total - at, MTI_TILE);
		const float *a = mti_read(x, at, n, bx);
		float *o = mti_begin(out, at, bo);

		for (size_t i = 0; i < n; i++) {
			int byte = bits[(at + i) / CHAR_BIT];

			o[i] = byte >> (i % CHAR_BIT) & 1 ? a[i] * factor
			                                  : 0.0F;
		}
		mti_end(out, at, n, o);
	}
}

static int mask_backward(const mt_node *node, mt_tensor *grad,
                         mt_tensor **grads)
{
	grads[0] = mti_like(grad);
	if (!grads[0])
		return -1;
	apply_mask(grads[0], grad, node->rec.aux, node->rec.factor);
	return 0;
}

/* mask may be NULL.  A nan stays a nan: it must not vanish on its way. */
static void relu_forward(mt_tensor *out, const mt_tensor *input,
                         mt_storage *mask)
{
	unsigned char flags[MTI_TILE];
	float bx[MTI_TILE], bo[MTI_TILE];
	size_t total = mt_numel(out);

	if (mti_there(out)) {
		MTI_RUN(relu, (total + CHAR_BIT - 1) / CHAR_BIT,
		        .out = mti_ref(out), .x = mti_ref(input),
		        .bits = mask ? mask->data : NULL, .total = total);
		return;
	}
	for (size_t at = 0; at < total; at += MTI_TILE) {
		size_t n = mti_min(total - at, MTI_TILE);
		const float *a = mti_read(input, at, n, bx);
		float *o = mti_begin(out, at, bo);

		for (size_t i = 0; i < n; i++)
			flags[i] = !(a[i] <= 0.0F);
		if (mask)
			pack_bits(mask, at, flags, n);
		for (size_t i = 0; i < n; i++)
			o[i] = a[i] <= 0.0F ? 0.0F : a[i];
		mti_end(out, at, n, o);
	}
}

mt_tensor *mti_relu(mt_tensor *input)
{
	struct mti_record rec = {
		.name = "relu", .backward = mask_backward, .factor = 1.0F};
	mt_tensor *out;

	if (!mti_check(rec.name, 1, &input))
		return NULL;
	if (mti_wants_grad(1, &input)) {
		rec.aux = new_mask(input);
		if (!rec.aux)
			return NULL;
	}
	out = mti_like(input);
	if (out)
		relu_forward(out, input, rec.aux);
	return mti_finish(out, &rec, 1, &input);
}

static void draw_mask(mt_storage *mask, size_t total, float p, uint64_t seed)
{
	unsigned char flags[MTI_TILE];
	mt_rng rng = {seed};

	if (mask->device != MT_CPU) {
		MTI_RUN(draw, (total + CHAR_BIT - 1) / CHAR_BIT,
		        .bits = mask->data, .total = total, .p = p,
		        .seed = seed);
		return;
	}
	for (size_t at = 0; at < total; at += MTI_TILE) {
		size_t n = mti_min(total - at, MTI_TILE);

		for (size_t i = 0; i < n; i++)
			flags[i] = mt_rng_uniform(&rng) >= p;
		pack_bits(mask, at, flags, n);
	}
}

mt_tensor *mti_dropout(mt_tensor *input, float p, int training, uint64_t seed)
{
	struct mti_record rec = {.name = "dropout", .backward = mask_backward};
	mt_tensor *out;

	if (!mti_check(rec.name, 1, &input))
		return NULL;
	if (!(p >= 0.0F && p < 1.0F)) {
		mti_fail("dropout: p is %g, not in [0, 1)", (double)p);
		return NULL;
	}
	if (!training || p == 0.0F)
		return mt_retain(input);
	rec.factor = 1.0F / (1.0F - p);
	rec.aux = new_mask(input);
	if (!rec.aux)
		return NULL;
	draw_mask(rec.aux, mt_numel(input), p, seed);
	out = mti_like(input);
	if (out)
		apply_mask(out, input, rec.aux, rec.factor);
	return mti_finish(out, &rec, 1, &input);
}
