/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libamp asks of the operating system beside C11, POSIX threads, forks (fork.h) and files (files.h). linux.c
 * answers, and another system in one more such file.
 */
#ifndef AMP_SYSTEM_H
#define AMP_SYSTEM_H

#include "common/common.h"

#include <pthread.h>

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* Access rights of an address. The kernel reports them, so the memory is never touched. */
enum amp__access {
    AMP__ACCESS_UNKNOWN, /* the system does not tell: take it on trust */
    AMP__ACCESS_NONE,    /* not mapped, or not readable */
    AMP__ACCESS_READ,
    AMP__ACCESS_WRITE
};

/* The mapping that an answer came from. Zeroed: none yet. Reuse it while the process's mappings are not expected to
 * change: reading them takes as long as a process has mappings, and tables lie close together. */
struct amp__mapping {
    uintptr_t from, to;
    enum amp__access access;
    bool anonymous; /* private, and no file's */
};

enum amp__access amp__access_of(const void *address, struct amp__mapping *known);

uintptr_t amp__page_bytes(void);
/* Gives whole pages back to the system: unreadable, until they are taken, zeroed. False: nothing has changed. */
bool amp__pages_give(uintptr_t begin, uintptr_t end);
bool amp__pages_take(uintptr_t begin, uintptr_t end);

/* ---- the machine and its threads --------------------------------------------------------------------------------- */

/* Processors that the calling thread may run on. Below 1: unknown. */
int32_t amp__processors(void);
/* The last level of cache. Below 1: unknown. */
long amp__last_cache_bytes(void);
/* Starts a thread that takes none of the host's signals. Those that a thread brings on itself stay: a host may handle
 * them, to make memory appear where it is touched. */
bool amp__thread_start(pthread_t *thread, void *(*run)(void *), void *argument);

/* ---- programs and libraries -------------------------------------------------------------------------------------- */

/* Getenv for what decides which code runs. NULL in a setuid or similar program. */
const char *amp__trusted_getenv(const char *name);

struct amp__copies {
    char own[512], other[512]; /* files, or "the program itself" if linked into it */
};
/* Other copies of libamp in this process: a wheel's beside the system's, one linked statically. Each carries an ELF
 * note, which is visible whatever its symbols are and however it was loaded (not in another namespace of dlmopen).
 * False: this copy is the only one, or the search is impossible (a forked child). */
bool amp__find_copy(struct amp__copies *found);

/* Writes the absolute path of the file that this copy of libamp is in. Returns NULL, or why not. */
const char *amp__own_file(char *path, size_t size);

/* Loads a library for good. NULL: the reason and the remedy are in `why`. */
void *amp__library_open(const char *file, char *why, size_t size);
amp_fn amp__library_function(void *library, const char *name);
/* Has the process loaded it? */
bool amp__library_is_loaded(const char *name);

/* ---- files that only some systems have (files.h has the others) -------------------------------------------------- */

/* Like write, but without the signal that would end a host if `fd` is a pipe without a reader. */
ptrdiff_t amp__write_quietly(int fd, const char *data, size_t bytes);
/* A file that no other process can open, before it gets a name. -1 with errno: not supported here. */
int amp__nameless_open(int folder, unsigned mode);
bool amp__nameless_link(int fd, int folder, const char *name);
/* Unchanged if the system has no random numbers yet. */
void amp__random(uint64_t *number);
uint64_t amp__process_number(void);

#endif
