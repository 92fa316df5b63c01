/* SPDX-License-Identifier: Apache-2.0 */
/* Storages, and the account of the bytes they hold. */
#include "device.h"

#include <stdatomic.h>
#include <stdlib.h>

static struct {
	_Atomic size_t now;
	_Atomic size_t peak;
} account[MT_MEM_CATEGORIES];

static void charge(mt_category category, size_t bytes)
{
	size_t now = atomic_fetch_add(&account[category].now, bytes) + bytes;
	size_t peak = atomic_load(&account[category].peak);

	while (peak < now &&
	       !atomic_compare_exchange_weak(&account[category].peak, &peak,
	                                     now))
		;
}

static void refund(mt_category category, size_t bytes)
{
	atomic_fetch_sub(&account[category].now, bytes);
}

size_t mt_mem_now(mt_category category)
{
	return atomic_load(&account[category].now);
}

size_t mt_mem_peak(mt_category category)
{
	return atomic_load(&account[category].peak);
}

void mt_mem_reset_peak(void)
{
	for (int i = 0; i < MT_MEM_CATEGORIES; i++)
		atomic_store(&account[i].peak, atomic_load(&account[i].now));
}

/* NULL with a message. */
static void *new_data(mt_device device, size_t bytes)
{
	void *data;

	if (device != MT_CPU && mti_device())
		return mti_device()->alloc(bytes ? bytes : 1);
	data = device == MT_CPU ? malloc(bytes ? bytes : 1) : NULL;
	if (device != MT_CPU)
		mti_fail("the device has not been opened");
	else if (!data)
		mti_fail("out of memory: %zu bytes", bytes);
	return data;
}

static void free_data(mt_device device, void *data)
{
	if (device == MT_CPU)
		free(data);
	else if (data)
		mti_device()->free(data);
}

mt_storage *mt_storage_new(size_t bytes, mt_category category)
{
	return mt_storage_new_on(MT_CPU, bytes, category);
}

mt_storage *mt_storage_new_on(mt_device device, size_t bytes,
                              mt_category category)
{
	void *data = new_data(device, bytes);
	mt_storage *s = data ? malloc(sizeof(*s)) : NULL;

	if (!s) {
		if (data)
			mti_fail("out of memory: a storage");
		free_data(device, data);
		return NULL;
	}
	*s = (mt_storage){data, bytes, category, device};
	charge(category, bytes);
	return s;
}

void mt_storage_free(mt_storage *storage)
{
	if (!storage)
		return;
	refund(storage->category, storage->bytes);
	free_data(storage->device, storage->data);
	free(storage);
}

void mt_storage_retag(mt_storage *storage, mt_category category)
{
	refund(storage->category, storage->bytes);
	charge(category, storage->bytes);
	storage->category = category;
}
