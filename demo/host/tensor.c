/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors, their element access, errors and argument checks. */
#include "device.h"

#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local char message[256];
static _Thread_local int grad_disabled;

const char *mt_error(void)
{
	return message;
}

void mt_clear_error(void)
{
	message[0] = '\0';
}

void mti_fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(message, sizeof(message), format, args);
	va_end(args);
}

int mt_grad_enabled(void)
{
	return !grad_disabled;
}

int mt_set_grad_enabled(int enabled)
{
	int before = !grad_disabled;

	grad_disabled = !enabled;
	return before;
}

size_t mt_dtype_size(mt_dtype dtype)
{
	return dtype == MT_F16 || dtype == MT_BF16 ? 2 : 4;
}

const char *mt_dtype_name(mt_dtype dtype)
{
	static const char *const names[] = {"f32", "f16", "bf16", "i32"};

	return names[dtype];
}

int mt_dtype_is_float(mt_dtype dtype)
{
	return dtype != MT_I32;
}

/* ---- creation and references ------------------------------------------- */

/* Elements of a shape, or 0 with a message.  The limit keeps every index of
 * an element within an int. */
static size_t count_elements(int ndim, const int *shape)
{
	size_t n = 1;

	if (ndim < 0 || ndim > MT_MAX_DIMS) {
		mti_fail("a tensor cannot have %d dimensions", ndim);
		return 0;
	}
	for (int i = 0; i < ndim; i++) {
		if (shape[i] < 1 || n > (size_t)(INT_MAX / shape[i])) {
			mti_fail("bad tensor size %d in dimension %d",
			         shape[i], i);
			return 0;
		}
		n *= (size_t)shape[i];
	}
	return n;
}

mt_tensor *mti_tensor_of(mt_storage *storage, mt_dtype dtype, int ndim,
                         const int *shape)
{
	static _Atomic uint64_t last_id;
	mt_tensor *t = calloc(1, sizeof(*t));

	if (!t) {
		mti_fail("out of memory: a tensor");
		mt_storage_free(storage);
		return NULL;
	}
	t->storage = storage;
	t->id = atomic_fetch_add(&last_id, 1) + 1;
	t->refs = 1;
	t->dtype = dtype;
	t->ndim = ndim;
	for (int i = 0; i < MT_MAX_DIMS; i++)
		t->shape[i] = i < ndim ? shape[i] : 1;
	return t;
}

static mt_tensor *new_tensor(mt_device device, mt_dtype dtype, int ndim,
                             const int *shape, mt_category category)
{
	size_t n = count_elements(ndim, shape);
	mt_storage *storage =
		n ? mt_storage_new_on(device, n * mt_dtype_size(dtype),
	                              category)
		  : NULL;

	return storage ? mti_tensor_of(storage, dtype, ndim, shape) : NULL;
}

mt_tensor *mt_tensor_new(mt_dtype dtype, int ndim, const int *shape,
                         mt_category category)
{
	mt_tensor *t = new_tensor(MT_CPU, dtype, ndim, shape, category);

	if (t)
		memset(t->storage->data, 0, t->storage->bytes);
	return t;
}

mt_tensor *mti_activation(mt_device device, mt_dtype dtype, int ndim,
                          const int *shape)
{
	return new_tensor(device, dtype, ndim, shape, MT_MEM_ACTIVATION);
}

mt_tensor *mti_like(const mt_tensor *tensor)
{
	return mti_activation(tensor->storage->device, tensor->dtype,
	                      tensor->ndim, tensor->shape);
}

mt_storage *mti_beside(const mt_tensor *tensor, size_t bytes)
{
	return mt_storage_new_on(tensor->storage->device, bytes,
	                         MT_MEM_ACTIVATION);
}

mt_tensor *mt_retain(mt_tensor *tensor)
{
	if (tensor)
		tensor->refs++;
	return tensor;
}

void mt_release(mt_tensor *tensor)
{
	if (!tensor || --tensor->refs > 0)
		return;
	mt_release(tensor->grad);
	mti_node_release(tensor->node);
	mt_storage_free(tensor->storage);
	free(tensor);
}

mt_tensor *mt_then(mt_tensor *used, mt_tensor *result)
{
	mt_release(used);
	return result;
}

size_t mt_numel(const mt_tensor *tensor)
{
	size_t n = 1;

	for (int i = 0; i < tensor->ndim; i++)
		n *= (size_t)tensor->shape[i];
	return n;
}

int mt_same_shape(const mt_tensor *a, const mt_tensor *b)
{
	return a->ndim == b->ndim &&
	       memcmp(a->shape, b->shape, sizeof(a->shape)) == 0;
}

mt_storage *mt_tensor_swap_storage(mt_tensor *tensor, mt_storage *storage,
                                   mt_dtype dtype)
{
	mt_storage *old = tensor->storage;

	if (!storage ||
	    storage->bytes < mt_numel(tensor) * mt_dtype_size(dtype)) {
		mti_fail("swap_storage: the storage is too small");
		return NULL;
	}
	tensor->storage = storage;
	tensor->dtype = dtype;
	return old;
}

void mt_set_grad(mt_tensor *tensor, mt_tensor *grad)
{
	mt_tensor *old = tensor->grad;

	tensor->grad = mt_retain(grad);
	mt_release(old);
}

/* ---- element access ---------------------------------------------------- */

/* Elements of a device are read and written by a copy of theirs here. */
static int fetch(const mt_tensor *tensor, size_t at, size_t n, void *to)
{
	size_t size = mt_dtype_size(tensor->dtype);

	if (!mti_device_failed() &&
	    mti_device()->out(to, (char *)tensor->storage->data + at * size,
	                      n * size) == 0)
		return 0;
	mti_device_fail();
	memset(to, 0xff, n * size); /* nans */
	return -1;
}

static void put(mt_tensor *tensor, size_t at, size_t n, const void *from)
{
	size_t size = mt_dtype_size(tensor->dtype);

	if (mti_device_failed() ||
	    mti_device()->in((char *)tensor->storage->data + at * size, from,
	                     n * size) != 0)
		mti_device_fail();
}

/* A tensor of the host's with these elements for a moment. */
static mt_tensor here(const mt_tensor *tensor, mt_storage *storage, void *data)
{
	mt_tensor copy = *tensor;

	*storage = (mt_storage){.data = data, .device = MT_CPU};
	copy.storage = storage;
	return copy;
}

double mt_get(const mt_tensor *tensor, size_t index)
{
	float buffer;

	if (mti_there(tensor)) {
		mt_storage storage;
		mt_tensor copy = here(tensor, &storage, &buffer);

		fetch(tensor, index, 1, &buffer);
		return mt_get(&copy, 0);
	}
	if (tensor->dtype == MT_I32)
		return ((const int32_t *)tensor->storage->data)[index];
	return (double)*mti_read(tensor, index, 1, &buffer);
}

static void set(mt_tensor *tensor, size_t index, double value)
{
	float buffer;

	if (mti_there(tensor)) {
		mt_storage storage;
		mt_tensor copy = here(tensor, &storage, &buffer);

		set(&copy, 0, value);
		put(tensor, index, 1, &buffer);
		return;
	}

	if (tensor->dtype == MT_I32) {
		((int32_t *)tensor->storage->data)[index] = (int32_t)value;
		return;
	}
	*mti_begin(tensor, index, &buffer) = (float)value;
	mti_end(tensor, index, 1, &buffer);
}

void mt_set(mt_tensor *tensor, size_t index, double value)
{
	set(tensor, index, value);
	tensor->version++;
}

void mt_fill(mt_tensor *tensor, double value)
{
	size_t n = mt_numel(tensor);

	if (mti_there(tensor) && mt_dtype_is_float(tensor->dtype))
		MTI_RUN(fill, n, .to = mti_ref(tensor), .value = (float)value);
	else
		for (size_t i = 0; i < n; i++)
			set(tensor, i, value);
	tensor->version++;
}

/* Room for a copy of all elements in the host's memory, freed by the caller. */
static mt_tensor copy_here(const mt_tensor *tensor, mt_storage *storage)
{
	void *data = malloc(mt_numel(tensor) * mt_dtype_size(tensor->dtype));

	if (!data) {
		mti_fail("out of memory: a tensor's elements");
		mti_device_fail();
	}
	return here(tensor, storage, data);
}

static void read_there(const mt_tensor *tensor, float *values)
{
	mt_storage storage;
	mt_tensor copy = copy_here(tensor, &storage);

	if (storage.data) {
		fetch(tensor, 0, mt_numel(tensor), storage.data);
		mt_read(&copy, values);
	}
	free(storage.data);
}

static void write_there(mt_tensor *tensor, const float *values)
{
	mt_storage storage;
	mt_tensor copy = copy_here(tensor, &storage);

	if (storage.data) {
		mt_write(&copy, values);
		put(tensor, 0, mt_numel(tensor), storage.data);
	}
	free(storage.data);
}

void mt_read(const mt_tensor *tensor, float *values)
{
	size_t n = mt_numel(tensor);

	if (mti_there(tensor))
		read_there(tensor, values);
	else if (mt_dtype_is_float(tensor->dtype))
		mt_convert(MT_F32, values, tensor->dtype,
		           tensor->storage->data, n);
	else
		for (size_t i = 0; i < n; i++)
			values[i] = (float)mt_get(tensor, i);
}

void mt_write(mt_tensor *tensor, const float *values)
{
	size_t n = mt_numel(tensor);

	if (mti_there(tensor))
		write_there(tensor, values);
	else if (mt_dtype_is_float(tensor->dtype))
		mt_convert(tensor->dtype, tensor->storage->data, MT_F32,
		           values, n);
	else
		for (size_t i = 0; i < n; i++)
			set(tensor, i, (double)values[i]);
	tensor->version++;
}

int mt_copy(mt_tensor *to, const mt_tensor *from)
{
	size_t n = mt_numel(to);

	if (n != mt_numel(from) || !mt_dtype_is_float(to->dtype) ||
	    !mt_dtype_is_float(from->dtype)) {
		mti_fail("copy: sizes or types do not fit");
		return -1;
	}
	if (to->storage->device != from->storage->device) {
		mti_fail("copy: the tensors are on two devices");
		return -1;
	}
	if (mti_there(to))
		MTI_RUN(convert, n, .to = mti_ref(to), .from = mti_ref(from));
	else
		mt_convert(to->dtype, to->storage->data, from->dtype,
		           from->storage->data, n);
	to->version++;
	return 0;
}

/* ---- argument checks --------------------------------------------------- */

int mti_check_device(const char *op, int i, const mt_tensor *input,
                     const mt_tensor *first)
{
	static const char *const names[] = {"cpu", "cuda"};

	if (input->storage->device == first->storage->device)
		return 1;
	mti_fail("%s: input 0 is on %s but input %d on %s", op,
	         names[first->storage->device], i,
	         names[input->storage->device]);
	return 0;
}

int mti_check(const char *op, int n, mt_tensor *const *inputs)
{
	for (int i = 0; i < n; i++) {
		if (!inputs[i]) {
			if (!message[0])
				mti_fail("%s: input %d is NULL", op, i);
			return 0;
		}
		if (!mt_dtype_is_float(inputs[i]->dtype)) {
			mti_fail("%s: input %d is %s, not floating point", op,
			         i, mt_dtype_name(inputs[i]->dtype));
			return 0;
		}
		if (inputs[i]->dtype != inputs[0]->dtype) {
			mti_fail("%s: input 0 is %s but input %d is %s", op,
			         mt_dtype_name(inputs[0]->dtype), i,
			         mt_dtype_name(inputs[i]->dtype));
			return 0;
		}
		if (!mti_check_device(op, i, inputs[i], inputs[0]))
			return 0;
	}
	return 1;
}

int mti_check_ndim(const char *op, const char *what, const mt_tensor *tensor,
                   int ndim)
{
	if (tensor->ndim == ndim)
		return 1;
	mti_fail("%s: %s has %d dimensions, not %d", op, what, tensor->ndim,
	         ndim);
	return 0;
}

int mti_check_vector(const char *op, const char *what,
                     const mt_tensor *tensor, int length)
{
	if (tensor->ndim == 1 && tensor->shape[0] == length)
		return 1;
	mti_fail("%s: %s must have one dimension of size %d", op, what,
	         length);
	return 0;
}
