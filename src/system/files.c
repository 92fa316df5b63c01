/* SPDX-License-Identifier: Apache-2.0 */
#include "system/system.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

bool amp__file_exists(const char *path, bool as_folder) {
    struct stat info;
    return stat(path, &info) == 0 && (!as_folder || S_ISDIR(info.st_mode));
}

amp_status amp__fail_io(const char *what, const char *path) {
    const int error = errno;
    char buffer[128] = "";
    return amp__fail(error == ENOENT ? AMP_ERR_NOT_FOUND : error == ENOMEM ? AMP_ERR_NO_MEMORY : AMP_ERR_IO,
                     "%s %.300s: %s", what, path, amp__system_text(error, buffer, sizeof buffer));
}

amp_status amp__source_open(struct amp__source *source, const char *path) {
    struct stat about;
    int fd;
    do fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a pipe must not block before it is refused */
    while (fd < 0 && errno == EINTR);
    if (fd < 0) return amp__fail_io("cannot open", path);
    if (fstat(fd, &about) < 0 || !S_ISREG(about.st_mode)) {
        close(fd);
        return amp__fail(AMP_ERR_IO, "cannot read %.300s: it is not a regular file", path);
    }
    *source = (struct amp__source){ NULL, fd, (uint64_t)about.st_size, path };
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

amp_status amp__source_read(const struct amp__source *source, uint64_t at, uint64_t bytes, void *dst) {
    if (!source->memory) return read_all(source->fd, at, dst, bytes);
    memcpy(dst, source->memory + at, (size_t)bytes);
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

/* ---- lines ---- */

int amp__lines_open(const char *path) {
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
    if (fd >= 0) (void)fcntl(fd, F_SETFL, O_APPEND);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return fd;
    return close(fd), AMP__FILE_TAKEN;
}

bool amp__lines_empty(int fd) {
    struct stat about;
    return fstat(fd, &about) || !S_ISREG(about.st_mode) || !ftruncate(fd, 0);
}

bool amp__lines_add(int fd, uint64_t bytes, const char *line, size_t length) {
    const ptrdiff_t written = amp__write_quietly(fd, line, length);
    if (written > 0 && (size_t)written < length && ftruncate(fd, (off_t)bytes) < 0) {
        /* a reader leaves out half a line */
    }
    return written == (ptrdiff_t)length;
}

void amp__lines_close(int fd) { close(fd); }

void amp__lines_error(const char *line, size_t length) {
    for (ptrdiff_t now; length; line += now, length -= (size_t)now)
        if ((now = amp__write_quietly(STDERR_FILENO, line, length)) <= 0) return;
}
