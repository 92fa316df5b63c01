/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libamp asks of the operating system beside C11 and POSIX threads. linux.c answers, and another system in one
 * more such file; files.c, replace.c and fork.c need only POSIX.
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
    char own[1024], other[1024]; /* files, or "the program itself" if linked into it */
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

/* ---- files: what only some systems have -------------------------------------------------------------------------- */

/* Like write, but without the signal that would end a host if `fd` is a pipe without a reader. */
ptrdiff_t amp__write_quietly(int fd, const char *data, size_t bytes);
/* A file that no other process can open, before it gets a name. -1 with errno: not supported here. */
int amp__nameless_open(int folder, unsigned mode);
bool amp__nameless_link(int fd, int folder, const char *name);
/* Unchanged if the system has no random numbers yet. */
void amp__random(uint64_t *number);
uint64_t amp__process_number(void);

/* ---- files, as POSIX has them. Calls that a signal interrupted are made again ------------------------------------ */

bool amp__file_exists(const char *path, bool as_folder);

/* ---- reading ---- */

/* Returns the status for errno, with a message about `path`. */
amp_status amp__fail_io(const char *what, const char *path);

/* Bytes in memory (borrowed) or in an open file. */
struct amp__source {
    const char *memory; /* NULL: fd */
    int fd;
    uint64_t size;
    const char *path; /* for messages about one of several; or NULL */
};

/* AMP_ERR_NOT_FOUND, AMP_ERR_IO. Regular files only. */
amp_status amp__source_open(struct amp__source *source, const char *path);
void amp__source_close(struct amp__source *source);
/* The same into `dst`. */
amp_status amp__source_read(const struct amp__source *source, uint64_t at, uint64_t bytes, void *dst);
/* *data points to these bytes: into memory, or to a copy in *owned, which the caller frees. Within the size. */
amp_status amp__source_get(const struct amp__source *source, uint64_t at, uint64_t bytes, void **owned,
                           const void **data);

/* ---- replacing (replace.c) ---- */

typedef amp_status amp__write_fn(void *user, const void *data, size_t bytes);
/* Produces the content by calling write(to, ...), once more if need be. */
typedef amp_status amp__produce_fn(void *user, amp__write_fn *write, void *to);

/* Replaces the file at `path` by the output of `produce`, or leaves it unchanged: a temporary file in its folder is
 * written, synced and renamed over it, and the folder is synced. Links are followed, also to files that do not exist
 * yet. The permissions (0777) of a replaced file are kept, owner and group if that is allowed. *lost: what could not be
 * kept. */
amp_status amp__file_replace(const char *path, amp__produce_fn *produce, void *user, amp__text *lost);

/* ---- lines at the end of a file, each in one write, without a signal that would end a host ---- */

enum { AMP__FILE_TAKEN = -2 };

/* Opens or makes the file, for this process alone. -1 with errno, AMP__FILE_TAKEN: a living process has it. A FIFO
 * without a reader fails instead of waiting. */
int amp__lines_open(const char *path);
/* Empties it, unless it is a device. False, with errno: it cannot. */
bool amp__lines_empty(int fd);
/* Adds to a file of so many bytes. False: nothing was added. */
bool amp__lines_add(int fd, uint64_t bytes, const char *line, size_t length);
void amp__lines_close(int fd);
/* On standard error, however many writes it takes. Errors are ignored. */
void amp__lines_error(const char *line, size_t length);

/* ---- forks (fork.c) ------------------------------------------------------------------------------------------------
 *
 * Mutexes that are free in a forked child, with consistent data: fork waits until no other thread holds one. All
 * mutexes of libamp are listed, since in a child no thread can unlock a mutex held by a thread of its parent. They
 * guard short sections without code of the host, and no thread holds two. */

/* Zeroed: not there. In the same block as its mutex. */
struct amp__forkable {
    pthread_mutex_t *mutex;
    void (*in_child)(void); /* called in each child, with all mutexes locked (NULL: nothing to do. Set before add) */
    struct amp__forkable *next, **link;
};

/* From here on until remove. Twice is once. AMP_ERR_NO_MEMORY. */
amp_status amp__fork_add(struct amp__forkable *forkable, pthread_mutex_t *mutex);
/* No effect if it is not in the list. */
void amp__fork_remove(struct amp__forkable *forkable);
/* Returns true if this process was forked since the first add. Data under locks of other code may then be half changed:
 * the lists of the loader, if a thread of the parent was in dlopen. */
bool amp__fork_is_child(void);

#endif
