/* SPDX-License-Identifier: Apache-2.0 */
#include "memory.h"

#include <amp.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

size_t bench_bytes = 1600000000;

void bench_must(int status, const char *what) {
    if (!status) return;
    fprintf(stderr, "bench: %s: failed%s%s\n", what, status < 0 ? ": " : "", status < 0 ? amp_last_error() : "");
    exit(EXIT_FAILURE);
}

void *bench_memory(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) bench_must(1, "memory");
    madvise(memory, bytes, MADV_HUGEPAGE); /* page faults and address translation are not what is measured */
    float *floats = memory;
    for (size_t i = 0; i < bytes / sizeof *floats; i++) floats[i] = (float)(i % 1000 + 1) * 0x1p-10f;
    return memory;
}

void bench_release(void *memory, size_t bytes) { munmap(memory, bytes); }
