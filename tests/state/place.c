/* SPDX-License-Identifier: Apache-2.0 */
#include "place.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- memory: libamp's and the JSON library's ---- */

unsigned long allocations, allocation_fails_at; /* 0: none */
size_t in_use, peak;

static bool refuse(void) { return ++allocations == allocation_fails_at; }

static void *took(void *block) {
    in_use += block ? malloc_usable_size(block) : 0;
    if (in_use > peak) peak = in_use;
    return block;
}

static void gave(void *block) { in_use -= block ? malloc_usable_size(block) : 0; }

WRAP(void *, calloc, size_t count, size_t size) { return refuse() ? NULL : took(__real_calloc(count, size)); }
WRAP(void *, realloc, void *block, size_t size) {
    if (refuse()) return NULL;
    gave(block);
    return took(__real_realloc(block, size));
}
WRAP(void *, aligned_alloc, size_t alignment, size_t size) {
    return refuse() ? NULL : took(__real_aligned_alloc(alignment, size));
}
WRAP(void, free, void *block) {
    gave(block);
    __real_free(block);
}
void *__real_malloc(size_t size); /* only the JSON library's calls fail: the rest are the tests' own */
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size) { return took(__real_malloc(size)); }
static void *json_malloc(size_t size) { return refuse() ? NULL : __wrap_malloc(size); }
WRAP(char *, realpath, const char *path, char *resolved) {
    char *found = __real_realpath(path, resolved);
    return resolved ? found : took(found);
}

/* ---- the file ---- */

static unsigned long calls[N_CALLS];
static unsigned long call_fails_at; /* the n-th call of `failing`, with errno = failure */
static int failing = -1, failure;
bool interrupted, shortened, no_nameless, always;
unsigned readable_by_others;

static bool fails(int call) {
    const unsigned long n = ++calls[call];
    if (interrupted && n % 2) return errno = EINTR, true;
    if (failing != call || (always ? n < call_fails_at : n != call_fails_at)) return false;
    errno = failure;
    return true;
}

/* The names that the C library has for these, with 64-bit offsets. */
#ifdef __GLIBC__
#define REAL(name) __real_##name##64
#define WRAPPED(name) __wrap_##name##64
#else
#define REAL(name) __real_##name
#define WRAPPED(name) __wrap_##name
#endif

int REAL(open)(const char *path, int flags, ...);
int WRAPPED(open)(const char *path, int flags, mode_t mode);
int WRAPPED(open)(const char *path, int flags, mode_t mode) {
    return fails(ON_OPEN) ? -1 : REAL(open)(path, flags, mode);
}
/* A file that has a name is opened by who is quick, and read later: its mode counts from its birth on. */
static mode_t born[1024];

int REAL(openat)(int folder, const char *path, int flags, ...);
int WRAPPED(openat)(int folder, const char *path, int flags, mode_t mode);
int WRAPPED(openat)(int folder, const char *path, int flags, mode_t mode) {
    struct stat about;
    if (no_nameless && (flags & O_TMPFILE) == O_TMPFILE) return errno = EOPNOTSUPP, -1;
    const int fd = fails(ON_OPEN) ? -1 : REAL(openat)(folder, path, flags, mode);
    if (fd >= 0 && fd < 1024) born[fd] = flags & O_CREAT && fstat(fd, &about) == 0 ? about.st_mode & 077 : 0;
    return fd;
}
ssize_t REAL(pread)(int fd, void *data, size_t bytes, off_t at);
ssize_t WRAPPED(pread)(int fd, void *data, size_t bytes, off_t at);
ssize_t WRAPPED(pread)(int fd, void *data, size_t bytes, off_t at) {
    return fails(ON_PREAD) ? -1 : REAL(pread)(fd, data, shortened && bytes > 3 ? 3 : bytes, at);
}
WRAP(ssize_t, write, int fd, const void *data, size_t bytes) {
    struct stat about;
    readable_by_others += born[fd] || fstat(fd, &about) || about.st_mode & 077;
    return fails(ON_WRITE) ? -1 : __real_write(fd, data, shortened && bytes > 3 ? 3 : bytes);
}
WRAP(int, fsync, int fd) { return fails(ON_FSYNC) ? -1 : __real_fsync(fd); }
/* Who cleans in another PID namespace: locks what he finds before its writer does, and removes it before it is
 * published. */
bool cleaner_comes;
unsigned removed_unlocked;
static int cleaner = -1;
static char cleaned[PATH_MAX];

static void clean_away(void) {
    if (cleaner < 0) return;
    unlink(cleaned);
    close(cleaner);
    cleaner = -1;
}
WRAP(int, flock, int fd, int operation) {
    char self[40];
    snprintf(self, sizeof self, "/proc/self/fd/%d", fd);
    const ssize_t length = cleaner_comes ? readlink(self, cleaned, sizeof cleaned - 1) : 0;
    if (length > 0) {
        cleaned[length] = '\0';
        cleaner_comes = false;
        cleaner = REAL(open)(cleaned, O_WRONLY);
        ck_assert_int_eq(__real_flock(cleaner, LOCK_EX | LOCK_NB), 0);
    }
    return __real_flock(fd, operation);
}
WRAP(int, unlinkat, int folder, const char *path, int flags) {
    const int fd = REAL(openat)(folder, path, O_WRONLY | O_NONBLOCK);
    removed_unlocked += fd >= 0 && __real_flock(fd, LOCK_EX | LOCK_NB) == 0;
    if (fd >= 0) close(fd);
    return __real_unlinkat(folder, path, flags);
}
WRAP(int, renameat, int from_folder, const char *from, int to_folder, const char *to) {
    clean_away();
    return failing == ON_RENAME && fails(ON_RENAME) ? -1 : __real_renameat(from_folder, from, to_folder, to);
}
WRAP(int, linkat, int from_folder, const char *from, int to_folder, const char *to, int flags) {
    return failing == ON_LINK && fails(ON_LINK) ? -1 : __real_linkat(from_folder, from, to_folder, to, flags);
}
WRAP(int, fchown, int fd, uid_t user, gid_t group) {
    return failing == ON_CHOWN && fails(ON_CHOWN) ? -1 : __real_fchown(fd, user, group);
}
WRAP(ssize_t, getrandom, void *data, size_t bytes, unsigned flags) {
    return failing == ON_RANDOM && fails(ON_RANDOM) ? -1 : __real_getrandom(data, bytes, flags);
}

bool one_failed(void) { return failing >= 0 && calls[failing] >= call_fails_at; }

void fail_none(void) {
    failing = -1;
    allocation_fails_at = 0;
    interrupted = shortened = no_nameless = always = cleaner_comes = false;
    readable_by_others = removed_unlocked = 0;
    memset(calls, 0, sizeof calls);
    allocations = 0;
}

void fail_call(int call, unsigned long n, int error) {
    fail_none();
    failing = call, call_fails_at = n, failure = error;
}

/* ---- the folder ---- */

void place_init(struct place *place) {
    fail_none();
    json_set_alloc_funcs(json_malloc, __wrap_free);
    rig_start(&place->rig, AMP_O2, FAKE_RETAINS);
    strcpy(place->folder, "state-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(place->folder));
    snprintf(place->path, sizeof place->path, "%s/amp.safetensors", place->folder);
    train_some(&place->rig, 2);
    ck_ok(amp_state_save(place->rig.context, place->path, AMP_STATE_SAFETENSORS));
    place->old = state_of(&place->rig, AMP_STATE_SAFETENSORS);
    train_some(&place->rig, 3);
    place->fresh = state_of(&place->rig, AMP_STATE_SAFETENSORS);
    ck_assert(place->old.size != place->fresh.size || memcmp(place->old.data, place->fresh.data, place->old.size));
    fail_none();
}

bool holds(const struct place *place, const struct bytes *wanted) {
    struct bytes file = read_file(place->path);
    const bool equal = file.size == wanted->size && !memcmp(file.data, wanted->data, file.size);
    free(file.data);
    return equal;
}

int strangers(const struct place *place) {
    int n = 0;
    DIR *folder = opendir(place->folder);
    const struct dirent *entry;
    while ((entry = readdir(folder))) {
        char path[400];
        if (entry->d_name[0] == '.' || !strcmp(entry->d_name, "amp.safetensors")) continue;
        snprintf(path, sizeof path, "%s/%s", place->folder, entry->d_name);
        unlink(path);
        n++;
    }
    closedir(folder);
    return n;
}

void place_end(struct place *place) {
    fail_none();
    ck_assert_int_eq(strangers(place), 0);
    unlink(place->path);
    ck_assert_int_eq(rmdir(place->folder), 0);
    free(place->old.data);
    free(place->fresh.data);
    rig_end(&place->rig);
}

void still_old(const struct place *place, const char *what, unsigned long n) {
    ck_assert_msg(holds(place, &place->old), "%s %lu: the file is not the old one", what, n);
    ck_assert_msg(strangers(place) == 0, "%s %lu: a temporary file is left", what, n);
}
