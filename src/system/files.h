/* SPDX-License-Identifier: Apache-2.0 */
/* Files: read piece by piece, replaced as a whole, and written line by line. Calls that a signal interrupted are made
 * again. */
#ifndef AMP_FILES_H
#define AMP_FILES_H

#include "common/common.h"

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

#endif
