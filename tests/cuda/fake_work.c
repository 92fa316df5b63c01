/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_work.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- the devices' memory ----
 * A range each, of which pages can be touched only between enter and leave of that device's work. */

#define ARENA ((size_t)256 << 20)
enum { DEVICES = 2, MANAGED = DEVICES, ARENAS, BLOCKS = 65536, ALIGNMENT = 256 };

static struct arena {
    unsigned char *memory, *shadow; /* a byte's state for each byte */
    struct block {
        size_t begin, end;
        struct fake_pool *pool;
    } blocks[BLOCKS]; /* sorted */
    size_t n_blocks;
    int inside;
} arenas[ARENAS]; /* the last one the host may touch as well, at any time */

static void protect(struct arena *arena, int how) {
    if (arena->memory && arena != &arenas[MANAGED] && mprotect(arena->memory, ARENA, how)) abort();
}
static void enter(struct arena *arena) {
    if (arena->inside++ == 0) protect(arena, PROT_READ | PROT_WRITE);
}
static void leave(struct arena *arena) {
    if (--arena->inside == 0) protect(arena, PROT_NONE);
}

void fake_copy(void *dst, const void *src, size_t bytes) {
    for (int i = 0; i < DEVICES; i++) enter(&arenas[i]);
    memcpy(dst, src, bytes);
    fake_mark(dst, bytes, FAKE_WRITTEN);
    for (int i = 0; i < DEVICES; i++) leave(&arenas[i]);
}

static unsigned char *map(int protection) {
    void *memory = mmap(NULL, ARENA, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) abort();
    return memory;
}

static void *take(struct arena *arena, size_t bytes) {
    size_t at = 0, i = 0;
    if (!arena->memory) {
        arena->memory = map(arena == &arenas[MANAGED] ? PROT_READ | PROT_WRITE : PROT_NONE);
        arena->shadow = map(PROT_READ | PROT_WRITE);
    }
    struct block *blocks = arena->blocks;
    const size_t needed = (bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT;
    for (; i < arena->n_blocks && blocks[i].begin - at < needed; i++) at = blocks[i].end;
    if (at + needed > ARENA || arena->n_blocks == BLOCKS) return NULL;
    memmove(blocks + i + 1, blocks + i, (arena->n_blocks - i) * sizeof *blocks);
    blocks[i] = (struct block){ at, at + needed, NULL };
    arena->n_blocks++;
    memset(arena->shadow + at, FAKE_WRITTEN, bytes); /* by whoever asked for it, and said nothing else */
    return arena->memory + at;
}

void *fake_device_take(size_t bytes) { return take(&arenas[amp_fake_cuda.current], bytes); }
void *fake_managed_take(size_t bytes) { return take(&arenas[MANAGED], bytes); }

static struct arena *arena_of(const void *address) {
    for (int i = 0; i < ARENAS; i++) {
        const uintptr_t begin = (uintptr_t)arenas[i].memory;
        if (begin && (uintptr_t)address >= begin && (uintptr_t)address - begin < ARENA) return &arenas[i];
    }
    return NULL;
}

unsigned char *fake_shadow(const void *address) {
    const struct arena *arena = arena_of(address);
    return arena ? arena->shadow + ((const unsigned char *)address - arena->memory) : NULL;
}

int fake_device_of(const void *address) {
    const struct arena *arena = arena_of(address);
    return arena && arena != &arenas[MANAGED] ? (int)(arena - arenas) : -1;
}

void fake_mark(const void *address, size_t bytes, int state) {
    unsigned char *shadow = fake_shadow(address);
    if (!shadow) return;
    amp_fake_cuda.strays += memchr(shadow, FAKE_NOBODYS, bytes) != NULL;
    memset(shadow, state, bytes);
}

void *fake_device_alloc(size_t bytes) {
    void *memory = fake_device_take(bytes);
    struct arena *arena = &arenas[amp_fake_cuda.current];
    if (!memory) return NULL;
    enter(arena);
    memset(memory, 0xa5, bytes);
    leave(arena);
    return memory;
}

static struct block *find_block(const void *memory) {
    struct arena *arena = arena_of(memory);
    for (size_t i = 0; arena && i < arena->n_blocks; i++)
        if (arena->memory + arena->blocks[i].begin == memory) return &arena->blocks[i];
    fprintf(stderr, "fake CUDA: freed what was not allocated\n");
    abort();
}

void fake_set_pool(const void *memory, struct fake_pool *pool) { find_block(memory)->pool = pool; }
struct fake_pool *fake_pool_of(const void *memory, size_t *bytes) {
    const struct block *block = memory ? find_block(memory) : NULL;
    if (block) *bytes = block->end - block->begin;
    return block ? block->pool : NULL;
}

void fake_device_free(void *memory) {
    struct arena *arena = arena_of(memory);
    if (!memory) return;
    struct block *block = find_block(memory);
    memset(arena->shadow + block->begin, FAKE_NOBODYS, block->end - block->begin);
    memmove(block, block + 1, (size_t)(arena->blocks + --arena->n_blocks - block) * sizeof *block);
}

/* ---- work ---- */

struct work {
    struct work *next;
    fake_work_fn *run;
    int device, done;
    const void *stream;
    int *reached, number, waits; /* of an event: it comes there, or waits for it */
    _Alignas(16) unsigned char arguments[]; /* structures */
};

struct line {
    struct work *first, **end;
};
static struct line waiting = { NULL, &waiting.first }, graph = { NULL, &graph.first };
static int recording;
static const void *on_stream;

static struct work *add(struct line *line, fake_work_fn *run, const void *arguments, size_t bytes) {
    struct work *work = malloc(sizeof *work + bytes);
    if (!work) abort();
    *work = (struct work){ .run = run, .device = amp_fake_cuda.current, .stream = on_stream };
    if (bytes) memcpy(work->arguments, arguments, bytes);
    *line->end = work;
    line->end = &work->next;
    return work;
}

static void clear(struct line *line) {
    while (line->first) {
        struct work *next = line->first->next;
        free(line->first);
        line->first = next;
    }
    line->end = &line->first;
}

/* ---- streams that overlap ---- */

static int is_side(const void *stream) { return stream == fake_side(0) || stream == fake_side(1); }

/* Is it the first of its stream that is not done, and has come what it waits for? */
static int can_run(const struct line *line, const struct work *work) {
    if (work->done || (work->waits && *work->reached < work->number)) return 0;
    for (const struct work *before = line->first; before != work; before = before->next)
        if (before->stream == work->stream && !before->done) return 0;
    return 1;
}

static struct work *next_of(const struct line *line) {
    struct work *other = NULL;
    for (struct work *work = line->first; work; work = work->next) {
        if (!can_run(line, work)) continue;
        if (is_side(work->stream) == (amp_fake_cuda.order == 1)) return work;
        if (!other) other = work;
    }
    return other;
}

/* As early or as late as the events between the streams let it. */
static void run_overlapping(const struct line *line) {
    size_t left = 0;
    for (struct work *work = line->first; work; work = work->next) work->done = 0, left++;
    while (left--) {
        struct work *work = next_of(line);
        if (!work) {
            fprintf(stderr, "fake CUDA: a stream waits for what never comes\n");
            abort();
        }
        enter(&arenas[work->device]);
        work->run(work->arguments);
        leave(&arenas[work->device]);
        if (work->reached && !work->waits) *work->reached = work->number;
        work->done = 1;
    }
}

/* A device stays open for work in a row that is its own: opening is what costs. */
static void run_all(const struct line *line) {
    if (amp_fake_cuda.order) {
        run_overlapping(line);
        return;
    }
    for (struct work *work = line->first; work; work = work->next) {
        const struct work *next = work->next;
        if (work == line->first) enter(&arenas[work->device]);
        work->run(work->arguments);
        if (work->reached && !work->waits) *work->reached = work->number;
        if (next && next->device == work->device) continue;
        leave(&arenas[work->device]);
        if (next) enter(&arenas[next->device]);
    }
}

void fake_flush(void) {
    run_all(&waiting);
    clear(&waiting);
}

void fake_at_once(fake_work_fn *run, const void *arguments) {
    struct arena *arena = &arenas[amp_fake_cuda.current];
    enter(arena);
    run(arguments);
    leave(arena);
}

/* NULL: it was run. */
static struct work *put(fake_work_fn *run, const void *arguments, size_t bytes) {
    if (recording && is_side(on_stream)) amp_fake_cuda.side_dirty = 1;
    if (recording) return add(&graph, run, arguments, bytes);
    if (amp_fake_cuda.lazy) return add(&waiting, run, arguments, bytes);
    fake_at_once(run, arguments);
    return NULL;
}

void fake_work(fake_work_fn *run, const void *arguments, size_t bytes) { (void)put(run, arguments, bytes); }

void fake_use_stream(const void *stream) { on_stream = stream; }

static void nothing(const void *unused) { (void)unused; }

void fake_record(int *reached, int number) {
    struct work *work = put(nothing, NULL, 0);
    if (work) work->reached = reached, work->number = number;
    else *reached = number;
}

void fake_wait(int *reached, int number) {
    struct work *work = put(nothing, NULL, 0);
    if (work) work->reached = reached, work->number = number, work->waits = 1;
}

/* ---- for tests ---- */

static void capture_begin(void) {
    fake_flush();
    clear(&graph);
    recording = amp_fake_cuda.capturing = 1;
    amp_fake_cuda.side_joined = amp_fake_cuda.side_dirty = 0;
}
static void capture_end(void) {
    amp_fake_cuda.broke_capture += amp_fake_cuda.side_dirty;
    recording = amp_fake_cuda.capturing = 0;
}

/* Its events have not come anywhere yet, whatever the replay before it did. */
static void replay(void) {
    fake_flush();
    for (struct work *work = graph.first; work; work = work->next)
        if (work->reached && !work->waits && *work->reached >= work->number) *work->reached = 0;
    run_all(&graph);
}

static void end(void) {
    clear(&graph);
    clear(&waiting);
    for (int i = 0; i < ARENAS; i++) {
        if (arenas[i].memory) munmap(arenas[i].memory, ARENA), munmap(arenas[i].shadow, ARENA);
        arenas[i].memory = arenas[i].shadow = NULL;
        arenas[i].n_blocks = 0;
    }
}

static void work(fake_work_fn *run, const void *arguments, size_t bytes) {
    on_stream = fake_stream(amp_fake_cuda.current);
    fake_work(run, arguments, bytes);
}

static void work_on(const void *stream, fake_work_fn *run, const void *arguments, size_t bytes) {
    fake_on_stream(stream);
    fake_work(run, arguments, bytes);
}

static void written(const void *address, size_t bytes) { fake_mark(address, bytes, FAKE_WRITTEN); }

__attribute__((visibility("default"))) const struct fake_tools amp_fake_cuda_tools = {
    fake_device_alloc, fake_device_free, fake_copy, fake_flush, capture_begin, capture_end, replay, end, work,
    fake_stream, fake_device_take, fake_managed_take, fake_synchronize, written, work_on,
};
