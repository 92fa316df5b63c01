/* SPDX-License-Identifier: Apache-2.0 */
/* Memory to measure with, and the end of a program that cannot go on. */
#ifndef AMP_BENCH_MEMORY_H
#define AMP_BENCH_MEMORY_H

#include <stddef.h>

/* How many bytes of tensors a GPU's groups take: --bytes, or 1.6 GB. */
extern size_t bench_bytes;

/* Memory that has been written, aligned to a page; the program ends if there is none. Never freed by the groups: see
 * bench_release. */
void *bench_memory(size_t bytes);
void bench_release(void *memory, size_t bytes);

/* Ends the program unless the call succeeded: `what` failed, and if status is negative what amp_last_error says. */
void bench_must(int status, const char *what);

#endif
