/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are read piece by piece and replaced as a whole. Calls that a signal interrupted are made again. */
#include "state/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static amp_status fail_io(const char *what, const char *path) {
    const int error = errno;
    char buffer[128] = "";
    const char *text = strerror_r(error, buffer, sizeof buffer); /* GNU's: returns the text */
    return amp__fail(error == ENOENT ? AMP_ERR_NOT_FOUND : error == ENOMEM ? AMP_ERR_NO_MEMORY : AMP_ERR_IO,
                     "%s %.300s: %s", what, path, text);
}

static int open_again(const char *path, int flags, mode_t mode) {
    int fd;
    do fd = open(path, flags | O_CLOEXEC, mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

static int sync_again(int fd) {
    int result;
    do result = fsync(fd);
    while (result < 0 && errno == EINTR);
    return result;
}

/* ---- reading ---- */

amp_status amp__source_open(struct amp__source *source, const char *path) {
    struct stat about;
    const int fd = open_again(path, O_RDONLY | O_NONBLOCK, 0); /* a pipe must not block before it is refused */
    if (fd < 0) return fail_io("cannot open", path);
    if (fstat(fd, &about) < 0 || !S_ISREG(about.st_mode)) {
        close(fd);
        return amp__fail(AMP_ERR_IO, "cannot read %.300s: it is not a regular file", path);
    }
    *source = (struct amp__source){ NULL, fd, (uint64_t)about.st_size };
    return AMP_OK;
}

void amp__source_close(struct amp__source *source) {
    if (!source->memory && source->fd >= 0) close(source->fd);
    source->fd = -1;
}

static amp_status read_all(int fd, uint64_t at, char *dst, uint64_t bytes) {
    while (bytes) {
        const size_t piece = bytes < (1u << 30) ? (size_t)bytes : (size_t)1 << 30;
        const ssize_t got = pread(fd, dst, piece, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        AMP_RETURN_IF(got < 0, AMP_ERR_IO, "reading failed at byte %llu (error %d)", (unsigned long long)at, errno);
        AMP_RETURN_IF(got == 0, AMP_ERR_BAD_FILE, "the file became shorter while it was read");
        at += (uint64_t)got;
        dst += got;
        bytes -= (uint64_t)got;
    }
    return AMP_OK;
}

amp_status amp__source_get(const struct amp__source *source, uint64_t at, uint64_t bytes, void **owned,
                           const void **data) {
    *owned = NULL;
    if (source->memory) {
        *data = source->memory + at;
        return AMP_OK;
    }
    char *copy = amp__alloc_aligned(bytes);
    if (!copy) return amp__fail_memory();
    const amp_status status = read_all(source->fd, at, copy, bytes);
    if (status != AMP_OK) {
        amp__free(copy);
        return status;
    }
    *data = *owned = copy;
    return AMP_OK;
}

/* ---- replacing ---- */

struct target {
    const char *path; /* as given, for messages */
    char *file, *temporary, *folder;
    mode_t mode; /* of the file there now; 0: none */
    int fd, folder_fd;
};

static void target_clear(struct target *target) {
    if (target->fd >= 0) {
        close(target->fd);
        (void)unlink(target->temporary);
    }
    if (target->folder_fd >= 0) close(target->folder_fd);
    free(target->file); /* from libc, or ours */
    amp__free(target->temporary);
    amp__free(target->folder);
}

/* A link is followed, so that the file it names is replaced and not the link. */
static amp_status find_names(struct target *target) {
    struct stat about;
    if (stat(target->path, &about) == 0) {
        AMP_RETURN_IF(!S_ISREG(about.st_mode), AMP_ERR_IO, "cannot write %.300s: it is not a regular file", target->path);
        target->mode = about.st_mode & 07777;
        target->file = realpath(target->path, NULL);
        if (!target->file) return fail_io("cannot resolve", target->path);
    } else if (!(target->file = amp__strdup(target->path))) {
        return amp__fail_memory();
    }
    const size_t length = strlen(target->file);
    target->temporary = amp__alloc(length + 40, 1);
    target->folder = amp__strdup(target->file);
    if (!target->temporary || !target->folder) return amp__fail_memory();
    char *slash = strrchr(target->folder, '/');
    if (!slash) strcpy(target->folder, length ? "." : "");
    else slash[slash == target->folder] = '\0';
    return AMP_OK;
}

/* A writer that was killed may have left its temporary: the next name then. */
static amp_status open_temporary(struct target *target) {
    target->folder_fd = open_again(*target->folder ? target->folder : ".", O_RDONLY | O_DIRECTORY, 0);
    if (target->folder_fd < 0) return fail_io("cannot open the folder of", target->path);
    for (unsigned i = 0; i < 1000; i++) {
        sprintf(target->temporary, "%s.tmp-%lu-%u", target->file, (unsigned long)getpid(), i);
        target->fd = open_again(target->temporary, O_WRONLY | O_CREAT | O_EXCL, 0666);
        if (target->fd >= 0 || errno != EEXIST) break;
    }
    if (target->fd < 0) return fail_io("cannot create a file beside", target->path);
    if (target->mode) (void)fchmod(target->fd, target->mode);
    return AMP_OK;
}

static amp_status write_all(void *user, const void *data, size_t bytes) {
    const struct target *target = user;
    for (const char *p = data; bytes;) {
        const ssize_t put = write(target->fd, p, bytes < (1u << 30) ? bytes : (size_t)1 << 30);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return fail_io("cannot write", target->path);
        p += put;
        bytes -= (size_t)put;
    }
    return AMP_OK;
}

static amp_status publish(struct target *target) {
    if (sync_again(target->fd) < 0) return fail_io("cannot sync", target->path);
    const int fd = target->fd;
    target->fd = -1;
    amp_status status = close(fd) < 0 && errno != EINTR ? fail_io("cannot close", target->path) : AMP_OK;
    if (status == AMP_OK && rename(target->temporary, target->file) < 0) status = fail_io("cannot replace", target->path);
    if (status != AMP_OK) {
        (void)unlink(target->temporary);
        return status;
    }
    /* some file systems have no sync for folders and say EINVAL */
    AMP_RETURN_IF(sync_again(target->folder_fd) < 0 && errno != EINVAL && errno != ENOTSUP, AMP_ERR_IO,
                  "%.300s is written and in place, but its folder could not be synced: after a power failure the "
                  "old file may be back", target->path);
    return AMP_OK;
}

amp_status amp__file_replace(const char *path, amp__produce_fn *produce, void *user) {
    struct target target = { .path = path, .fd = -1, .folder_fd = -1 };
    AMP_RETURN_IF(!*path, AMP_ERR_INVALID_ARGUMENT, "the path is empty");
    amp_status status = find_names(&target);
    if (status == AMP_OK) status = open_temporary(&target);
    if (status == AMP_OK) status = produce(user, write_all, &target);
    if (status == AMP_OK) status = publish(&target);
    target_clear(&target);
    return status;
}
