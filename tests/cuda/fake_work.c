/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_work.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- the device's memory ----
 * One range, of which pages can be touched only between enter and leave. */

#define ARENA ((size_t)256 << 20)
enum { BLOCKS = 65536, ALIGNMENT = 256 };

static unsigned char *arena;
static struct block {
    size_t begin, end;
} blocks[BLOCKS]; /* sorted */
static size_t n_blocks;
static int inside;

static void enter(void) {
    if (inside++ == 0 && arena && mprotect(arena, ARENA, PROT_READ | PROT_WRITE)) abort();
}
static void leave(void) {
    if (--inside == 0 && arena && mprotect(arena, ARENA, PROT_NONE)) abort();
}

void fake_copy(void *dst, const void *src, size_t bytes) {
    enter();
    memcpy(dst, src, bytes);
    leave();
}

void *fake_device_alloc(size_t bytes) {
    size_t at = 0, i = 0;
    if (!arena) {
        arena = mmap(NULL, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (arena == MAP_FAILED) abort();
    }
    const size_t needed = (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    for (; i < n_blocks && blocks[i].begin - at < needed; i++) at = blocks[i].end;
    if (at + needed > ARENA || n_blocks == BLOCKS) return NULL;
    memmove(blocks + i + 1, blocks + i, (n_blocks - i) * sizeof *blocks);
    blocks[i] = (struct block){ at, at + needed };
    n_blocks++;
    enter();
    memset(arena + at, 0xa5, needed);
    leave();
    return arena + at;
}

void fake_device_free(void *memory) {
    const size_t at = (size_t)((unsigned char *)memory - arena);
    size_t i = 0;
    if (!memory) return;
    while (i < n_blocks && blocks[i].begin != at) i++;
    if (i == n_blocks) {
        fprintf(stderr, "fake CUDA: freed what was not allocated\n");
        abort();
    }
    memmove(blocks + i, blocks + i + 1, (n_blocks - i - 1) * sizeof *blocks);
    n_blocks--;
}

/* ---- work ---- */

struct work {
    struct work *next;
    fake_work_fn *run;
    unsigned char arguments[];
};

struct line {
    struct work *first, **end;
};
static struct line waiting = { NULL, &waiting.first }, graph = { NULL, &graph.first };
static int recording;

static void add(struct line *line, fake_work_fn *run, const void *arguments, size_t bytes) {
    struct work *work = malloc(sizeof *work + bytes);
    if (!work) abort();
    work->next = NULL;
    work->run = run;
    memcpy(work->arguments, arguments, bytes);
    *line->end = work;
    line->end = &work->next;
}

static void clear(struct line *line) {
    while (line->first) {
        struct work *next = line->first->next;
        free(line->first);
        line->first = next;
    }
    line->end = &line->first;
}

static void run_all(const struct line *line) {
    enter();
    for (const struct work *work = line->first; work; work = work->next) work->run(work->arguments);
    leave();
}

void fake_flush(void) {
    run_all(&waiting);
    clear(&waiting);
}

void fake_work(fake_work_fn *run, const void *arguments, size_t bytes) {
    if (recording) {
        add(&graph, run, arguments, bytes);
    } else if (amp_fake_cuda.lazy) {
        add(&waiting, run, arguments, bytes);
    } else {
        enter();
        run(arguments);
        leave();
    }
}

/* ---- for tests ---- */

static void capture_begin(void) {
    fake_flush();
    clear(&graph);
    recording = amp_fake_cuda.capturing = 1;
}
static void capture_end(void) { recording = amp_fake_cuda.capturing = 0; }

static void replay(void) {
    fake_flush();
    run_all(&graph);
}

static void end(void) {
    clear(&graph);
    clear(&waiting);
    if (arena) munmap(arena, ARENA);
    arena = NULL;
    n_blocks = 0;
}

__attribute__((visibility("default"))) const struct fake_tools amp_fake_cuda_tools = {
    fake_device_alloc, fake_device_free, fake_copy, fake_flush, capture_begin, capture_end, replay, end, fake_work,
};
