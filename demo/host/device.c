/* SPDX-License-Identifier: Apache-2.0 */
/* The device that has been opened, and what moves between it and the host. */
#include "device.h"

#include <stdatomic.h>
#include <string.h>

static const struct mti_device *opened;
static atomic_int failed;

void mti_device_install(const struct mti_device *device)
{
	opened = device;
}

const struct mti_device *mti_device(void)
{
	return opened;
}

void mti_device_fail(void)
{
	atomic_store(&failed, 1);
}

int mti_device_failed(void)
{
	return atomic_load(&failed);
}

void mti_run(enum mtk_kernel kernel, const void *args, size_t n)
{
	if (n && !mti_device_failed() && opened->run(kernel, args, n) != 0)
		mti_device_fail();
}

const char *mt_device_name(mt_device device)
{
	return device == MT_CPU ? "the processor" : opened ? opened->name : "";
}

void *mt_device_stream(mt_device device)
{
	return device != MT_CPU && opened ? opened->stream : NULL;
}

int mt_device_wait(mt_device device)
{
	if (device == MT_CPU || !opened)
		return 0;
	return mti_device_failed() ? -1 : opened->wait();
}

/* ---- moving ------------------------------------------------------------- */

/* A storage's copy on a device, or NULL. */
static mt_storage *copy_to(const mt_storage *from, mt_device device)
{
	mt_storage *to = mt_storage_new_on(device, from->bytes, from->category);
	int status = 0;

	if (!to)
		return NULL;
	if (device == MT_CPU)
		status = opened->out(to->data, from->data, from->bytes);
	else
		status = opened->in(to->data, from->data, from->bytes);
	if (status == 0)
		return to;
	mt_storage_free(to);
	return NULL;
}

int mt_move(mt_tensor *tensor, mt_device device)
{
	mt_storage *moved;

	if (tensor->storage->device == device)
		return 0;
	moved = copy_to(tensor->storage, device);
	if (!moved)
		return -1;
	mt_storage_free(tensor->storage);
	tensor->storage = moved;
	tensor->version++;
	return 0;
}

mt_tensor *mt_to(mt_tensor *tensor, mt_device device)
{
	mt_storage *copied;

	if (!tensor || tensor->storage->device == device)
		return mt_retain(tensor);
	copied = copy_to(tensor->storage, device);
	return copied ? mti_tensor_of(copied, tensor->dtype, tensor->ndim,
	                              tensor->shape)
	              : NULL;
}

int mt_note(mt_tensor *log, size_t index, mt_dtype dtype, const void *value)
{
	if (index >= mt_numel(log) || log->dtype != MT_F32) {
		mti_fail("note: there is no place %zu", index);
		return -1;
	}
	if (!mti_there(log)) {
		mt_convert(MT_F32, (float *)log->storage->data + index, dtype,
		           value, 1);
	} else {
		struct mtk_convert args = {
			{(float *)log->storage->data + index, MT_F32},
			{NULL, (int)dtype}};

		memcpy(&args.from.data, &value, sizeof(value));
		mti_run(MTK_convert, &args, 1);
	}
	log->version++;
	return mti_device_failed() ? -1 : 0;
}
