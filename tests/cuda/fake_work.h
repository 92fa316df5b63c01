/* SPDX-License-Identifier: Apache-2.0 */
/* The fake device's stream and its memory: work runs at once, when somebody waits, or as often as a graph is replayed. */
#ifndef AMP_TESTS_CUDA_FAKE_WORK_H
#define AMP_TESTS_CUDA_FAKE_WORK_H

#include "fake.h"

#include <stddef.h>

typedef void fake_work_fn(const void *arguments);

/* Copies the arguments. */
void fake_work(fake_work_fn *run, const void *arguments, size_t bytes);
/* What waits is done. */
void fake_flush(void);

/* Memory that nobody but work on the stream may touch: the host dies of a look at it. NULL: there is no more. */
void *fake_device_alloc(size_t bytes);
void fake_device_free(void *memory);
/* From anywhere to anywhere, as the device would. */
void fake_copy(void *dst, const void *src, size_t bytes);

#endif
