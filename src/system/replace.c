/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A file that is replaced as a whole. Its new content must not be readable for others before it has the old
 * permissions: it is written to a file without a name if the system has such files, else to one with mode 0600. Files
 * of killed writers are removed: the name has the process that made it, and a lock that ends with the process shows if
 * it lives.
 */
#include "system/system.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUFFIX = sizeof ".tmp-2147483647-0123456789abcdef" - 1, NAME_LIMIT = 255, MOST_LINKS = 40 };

struct target {
    const char *path; /* as given, for messages */
    char *file;       /* links followed */
    const char *name; /* its end */
    int folder, fd;
    bool exists, named; /* the file at `file`; the temporary: */
    struct stat old;    /* exists */
    mode_t mode;        /* that it gets; before it is known, 0 */
    size_t stem;        /* of the temporary's name: NAME.tmp- */
    char temporary[NAME_LIMIT + 1];
};

static int open_again(int folder, const char *name, int flags, mode_t mode) {
    int fd;
    do fd = openat(folder, name, flags | O_CLOEXEC, mode);
    while (fd < 0 && errno == EINTR);
    return fd;
}

static int sync_again(int fd) {
    int result;
    do result = fsync(fd);
    while (result < 0 && errno == EINTR);
    return result;
}

static void close_temporary(struct target *target) {
    if (target->fd >= 0) close(target->fd);
    if (target->named) (void)unlinkat(target->folder, target->temporary, 0);
    target->fd = -1;
    target->named = false;
}

/* ---- where the file is ---- */

/* The path that the link at `path` names, ours to free. NULL: no link, or no memory (errno ENOMEM). */
static char *read_link(const char *path) {
    char to[PATH_MAX];
    const ssize_t length = readlink(path, to, sizeof to - 1);
    const char *slash = strrchr(path, '/');
    const size_t folder = length > 0 && *to != '/' && slash ? (size_t)(slash - path) + 1 : 0;
    if (length <= 0) return NULL;
    char *next = amp__alloc(folder + (size_t)length + 1, 1);
    if (!next) {
        errno = ENOMEM;
        return NULL;
    }
    memcpy(next, path, folder);
    memcpy(next + folder, to, (size_t)length);
    return next;
}

/* Links are followed, to where there is no file yet as well: it will be made there. */
static amp_status follow_links(struct target *target) {
    char *path = amp__strdup(target->path);
    for (int i = 0; path && i < MOST_LINKS; i++) {
        char *file = realpath(path, NULL);
        const int error = errno;
        char *next = file || error != ENOENT ? NULL : read_link(path);
        /* nothing there, or no folder: then its open says so */
        if (!file && error == ENOENT && !next && errno != ENOMEM) {
            target->file = path;
            return AMP_OK;
        }
        amp__free(path);
        path = next;
        if (!file && error != ENOENT) {
            errno = error;
            return amp__fail_io("cannot resolve", target->path);
        }
        if (!file) continue;
        target->file = amp__strdup(file);
        free(file);
        return target->file ? AMP_OK : amp__fail_memory();
    }
    if (!path) return amp__fail_memory();
    amp__free(path);
    errno = ELOOP;
    return amp__fail_io("cannot resolve", target->path);
}

/* Begins the name of the temporary file, in the folder of the file: NAME.tmp-PID-..., with NAME cut if that is too
 * long. */
static void begin_name(struct target *target) {
    const long limit = fpathconf(target->folder, _PC_NAME_MAX);
    const size_t most = (limit > SUFFIX && limit < NAME_LIMIT ? (size_t)limit : NAME_LIMIT) - SUFFIX;
    size_t length = strlen(target->name);
    if (length > most) {
        length = most;
        while (length && (target->name[length] & 0xc0) == 0x80) length--; /* not inside a character */
    }
    target->stem = (size_t)snprintf(target->temporary, sizeof target->temporary, "%.*s.tmp-", (int)length,
                                    target->name);
}

static amp_status find_target(struct target *target) {
    AMP_TRY(follow_links(target));
    char *slash = strrchr(target->file, '/');
    target->name = slash ? slash + 1 : target->file;
    char *folder = slash ? amp__strdup(target->file) : NULL;
    if (slash && !folder) return amp__fail_memory();
    if (folder) folder[slash == target->file ? 1 : slash - target->file] = '\0';
    target->folder = open_again(AT_FDCWD, folder ? folder : ".", O_RDONLY | O_DIRECTORY, 0);
    amp__free(folder);
    if (target->folder < 0) return amp__fail_io("cannot open the folder of", target->path);
    target->exists = fstatat(target->folder, target->name, &target->old, AT_SYMLINK_NOFOLLOW) == 0;
    AMP_RETURN_IF(!*target->name || (target->exists && !S_ISREG(target->old.st_mode)), AMP_ERR_IO,
                  "cannot write %.300s: it is not a regular file", target->path);
    if (target->exists) target->mode = target->old.st_mode & 0777;
    begin_name(target);
    return AMP_OK;
}

/* ---- files of killed writers ---- */

/* The number of a process, and 16 digits as next_name writes them: any other file is the user's own. 0: it is one. */
static pid_t writer_of(const char *written) {
    const size_t digits = strspn(written, "0123456789");
    const unsigned long pid = digits && digits <= 10 && *written != '0' ? strtoul(written, NULL, 10) : 0;
    const char *chance = written + digits + 1;
    if (pid > INT_MAX || written[digits] != '-') return 0;
    return strspn(chance, "0123456789abcdef") == 16 && !chance[16] ? (pid_t)pid : 0;
}

/* Removes a temporary file of a process that has ended, or that had our number. A live writer holds the lock. The file
 * is removed under that lock: in another PID namespace the number means nothing, and the writer may lock its file a
 * moment later. */
static void remove_stale(const struct target *target, const char *name) {
    struct stat about;
    const pid_t pid = writer_of(name + target->stem);
    if (!pid || (pid != getpid() && (kill(pid, 0) == 0 || errno != ESRCH))) return;
    const int fd = open_again(target->folder, name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK, 0);
    if (fd < 0) return;
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == geteuid() &&
        flock(fd, LOCK_EX | LOCK_NB) == 0)
        (void)unlinkat(target->folder, name, 0);
    close(fd);
}

/* Runs first, since such files may fill the disk. It cannot fail a save. */
static void clean(const struct target *target) {
    const int fd = open_again(target->folder, ".", O_RDONLY | O_DIRECTORY, 0);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (!folder && fd >= 0) close(fd);
    for (const struct dirent *entry; folder && (entry = readdir(folder));)
        if (!strncmp(entry->d_name, target->temporary, target->stem)) remove_stale(target, entry->d_name);
    if (folder) closedir(folder);
}

/* ---- the temporary ---- */

/* Makes another name, which cannot have been planted. */
static void next_name(struct target *target) {
    uint64_t chance = (uintptr_t)target ^ (uintptr_t)target->file << 20;
    amp__random(&chance); /* without it names can be guessed, and are tried in turn */
    snprintf(target->temporary + target->stem, sizeof target->temporary - target->stem, "%lu-%016llx",
             (unsigned long)getpid(), (unsigned long long)chance);
}

static int make_named(struct target *target, mode_t mode) {
    for (int i = 0; i < 100; i++) {
        next_name(target);
        const int fd = open_again(target->folder, target->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW, mode);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

static mode_t mode_of(int fd) {
    struct stat about;
    return fstat(fd, &about) == 0 ? about.st_mode & 0777 : 0600;
}

/* Finds the mode of a new file, which depends on the umask of the process and the ACLs of the folder, with an empty
 * file. */
static amp_status ask_mode(struct target *target) {
    if (target->mode || target->exists) return AMP_OK;
    const int fd = make_named(target, 0666);
    if (fd < 0) return amp__fail_io("cannot create a file beside", target->path);
    target->mode = mode_of(fd);
    close(fd);
    (void)unlinkat(target->folder, target->temporary, 0);
    return AMP_OK;
}

static amp_status open_named(struct target *target) {
    struct stat about;
    bool taken; /* removed by a cleaning process in another PID namespace, before it was locked or soon after */
    AMP_TRY(ask_mode(target));
    do {
        close_temporary(target);
        target->fd = make_named(target, 0600);
        if (target->fd < 0) return amp__fail_io("cannot create a file beside", target->path);
        target->named = true;
        taken = flock(target->fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK;
    } while (taken || (fstat(target->fd, &about) == 0 && !about.st_nlink));
    return AMP_OK;
}

/* Opens a file without a name, which no other process can open, whatever its first mode is. False: not supported
 * here. */
static bool open_nameless(struct target *target) {
    do target->fd = amp__nameless_open(target->folder, target->exists ? 0600 : 0666);
    while (target->fd < 0 && errno == EINTR);
    if (target->fd < 0) return false;
    if (!target->exists) target->mode = mode_of(target->fd);
    (void)fchmod(target->fd, 0600);
    (void)flock(target->fd, LOCK_EX | LOCK_NB);
    return true;
}

static bool give_name(struct target *target) {
    for (int i = 0; i < 100; i++) {
        next_name(target);
        if (amp__nameless_link(target->fd, target->folder, target->temporary)) return target->named = true;
        if (errno != EEXIST) return false;
    }
    return false;
}

static amp_status write_all(void *user, const void *data, size_t bytes) {
    const struct target *target = user;
    for (const char *p = data; bytes;) {
        const ssize_t put = write(target->fd, p, bytes < (1u << 30) ? bytes : (size_t)1 << 30);
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) return amp__fail_io("cannot write", target->path);
        p += put;
        bytes -= (size_t)put;
    }
    return AMP_OK;
}

/* ---- the old file's place ---- */

/* Its owner, group and permissions, as far as the system lets us. Another group gets no more than everybody. */
static void keep_owner(struct target *target, amp__text *lost) {
    struct stat now;
    mode_t mode = target->mode;
    if (!target->exists || fstat(target->fd, &now)) {
        (void)fchmod(target->fd, mode);
        return;
    }
    const bool group = now.st_gid == target->old.st_gid || fchown(target->fd, (uid_t)-1, target->old.st_gid) == 0;
    if (!group) mode &= (mode_t)~070 | (mode & 07) << 3;
    (void)fchmod(target->fd, mode); /* before the file is another's */
    const bool owner = now.st_uid == target->old.st_uid || fchown(target->fd, target->old.st_uid, (gid_t)-1) == 0;
    if (owner && group) return;
    amp__text_add(lost,
                  "%.300s was of user %lu and group %lu and is now of %lu and %lu, with mode %03o: this process "
                  "may not give files away",
                  target->path, (unsigned long)target->old.st_uid, (unsigned long)target->old.st_gid,
                  (unsigned long)(owner ? target->old.st_uid : now.st_uid),
                  (unsigned long)(group ? target->old.st_gid : now.st_gid), (unsigned)mode);
}

static amp_status publish(struct target *target) {
    if (renameat(target->folder, target->temporary, target->folder, target->name) < 0)
        return amp__fail_io("cannot replace", target->path);
    target->named = false;
    /* some file systems have no sync for folders and say EINVAL */
    AMP_RETURN_IF(sync_again(target->folder) < 0 && errno != EINVAL && errno != ENOTSUP, AMP_ERR_IO,
                  "%.300s is written and in place, but its folder could not be synced: after a power failure the "
                  "old file may be back", target->path);
    return AMP_OK;
}

static amp_status fill_target(struct target *target, amp__produce_fn *produce, void *user, amp__text *lost) {
    AMP_TRY(produce(user, write_all, target));
    keep_owner(target, lost);
    return sync_again(target->fd) < 0 ? amp__fail_io("cannot sync", target->path) : AMP_OK;
}

/* Where a nameless file cannot be given a name, it is written once more. */
static amp_status write_temporary(struct target *target, amp__produce_fn *produce, void *user, amp__text *lost) {
    if (open_nameless(target)) {
        AMP_TRY(fill_target(target, produce, user, lost));
        if (give_name(target)) return AMP_OK;
        close_temporary(target);
        lost->length = 0;
    }
    AMP_TRY(open_named(target));
    return fill_target(target, produce, user, lost);
}

/* Closes the descriptor, and with it the lock, after the rename. fsync has reported late write errors. */
amp_status amp__file_replace(const char *path, amp__produce_fn *produce, void *user, amp__text *lost) {
    struct target target = { .path = path, .fd = -1, .folder = -1 };
    AMP_RETURN_IF(!*path, AMP_ERR_INVALID_ARGUMENT, "the path is empty");
    amp_status status = find_target(&target);
    if (status == AMP_OK) {
        clean(&target);
        status = write_temporary(&target, produce, user, lost);
    }
    if (status == AMP_OK) status = publish(&target);
    close_temporary(&target);
    if (target.folder >= 0) close(target.folder);
    amp__free(target.file);
    return status;
}
