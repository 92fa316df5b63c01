/* SPDX-License-Identifier: Apache-2.0 */
/* The fake devices' streams and their memory: work runs at once, when somebody waits, or as often as a graph is
 * replayed. */
#ifndef AMP_TESTS_CUDA_FAKE_WORK_H
#define AMP_TESTS_CUDA_FAKE_WORK_H

#include "fake.h"

#include <cuda_runtime_api.h>
#include <stddef.h>
#include <stdint.h>

/* Counts a call of CUDA's: it may be the one that fails, or the device may be lost. */
cudaError_t fake_called(void);
int fake_is_lost(void);

typedef void fake_work_fn(const void *arguments);

/* Copies the arguments. */
void fake_work(fake_work_fn *run, const void *arguments, size_t bytes);
/* The stream that work goes to, until another is named. */
void fake_use_stream(const void *stream);
/* A stream's place, as an event keeps it: *reached becomes `number`; and what comes behind it, which waits for that. */
void fake_record(int *reached, int number);
void fake_wait(int *reached, int number);
/* On libamp's own stream, which nobody captures. */
void fake_at_once(fake_work_fn *run, const void *arguments);
/* The same, and pools give back what they do not keep. */
void fake_synchronize(void);
/* What waits is done. */
void fake_flush(void);

/* Memory of the current device that nobody but its work may touch: who else looks at it dies. NULL: there is
 * no more. */
void *fake_device_alloc(size_t bytes);
/* The same, and nothing is written there: for those who do that in the stream's order. */
void *fake_device_take(size_t bytes);
void fake_device_free(void *memory);
/* Of memory that was allocated in a stream's order: its pool. Who frees it waits for nothing. */
struct fake_pool {
    uint64_t threshold, kept; /* so much it keeps when somebody waits; bytes that are free and its own */
};
void fake_set_pool(const void *memory, struct fake_pool *pool);
struct fake_pool *fake_pool_of(const void *memory, size_t *bytes); /* NULL: none */
/* Memory that the host may touch as well; it lives until the end. */
void *fake_managed_take(size_t bytes);

/* What a byte of all that memory is. Whoever makes memory that nobody wrote yet marks it, and whoever writes there
 * marks that: the emulator looks at it. */
enum { FAKE_NOBODYS, FAKE_UNWRITTEN, FAKE_WRITTEN };
unsigned char *fake_shadow(const void *address); /* NULL: no memory of a device */
void fake_mark(const void *address, size_t bytes, int state);

/* Whose memory it is; -1: the host's. */
int fake_device_of(const void *address);

/* A stream of a device, for a host; and a look at whether work may go to it. */
void *fake_stream(int device);
/* A stream of libamp's that overlaps with the host's. */
void *fake_side(int device);
void fake_on_stream(const void *stream);
/* From anywhere to anywhere, as the device would. */
void fake_copy(void *dst, const void *src, size_t bytes);

#endif
