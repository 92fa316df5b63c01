/* SPDX-License-Identifier: Apache-2.0 */
#include "place.h"

#include <dirent.h>
#include <errno.h>
#include <malloc.h>
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

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size) { return refuse() ? NULL : took(__real_calloc(count, size)); }
void *__real_realloc(void *block, size_t size);
void *__wrap_realloc(void *block, size_t size);
void *__wrap_realloc(void *block, size_t size) {
    if (refuse()) return NULL;
    gave(block);
    return took(__real_realloc(block, size));
}
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size) {
    return refuse() ? NULL : took(__real_aligned_alloc(alignment, size));
}
void __real_free(void *block);
void __wrap_free(void *block);
void __wrap_free(void *block) {
    gave(block);
    __real_free(block);
}
void *__real_malloc(size_t size); /* only the JSON library's calls fail: the rest are the tests' own */
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size) { return took(__real_malloc(size)); }
static void *json_malloc(size_t size) { return refuse() ? NULL : __wrap_malloc(size); }
char *__real_realpath(const char *path, char *resolved);
char *__wrap_realpath(const char *path, char *resolved);
char *__wrap_realpath(const char *path, char *resolved) {
    char *found = __real_realpath(path, resolved);
    return resolved ? found : took(found);
}

/* ---- the file ---- */

static unsigned long calls[N_CALLS];
unsigned long call_fails_at;
int failing = -1, failure;
bool interrupted, shortened;

static bool fails(int call) {
    const unsigned long n = ++calls[call];
    if (interrupted && n % 2) return errno = EINTR, true;
    if (failing != call || n != call_fails_at) return false;
    errno = failure;
    return true;
}

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, mode_t mode);
int __wrap_open64(const char *path, int flags, mode_t mode) {
    return fails(ON_OPEN) ? -1 : __real_open64(path, flags, mode);
}
ssize_t __real_pread64(int fd, void *data, size_t bytes, off_t at);
ssize_t __wrap_pread64(int fd, void *data, size_t bytes, off_t at);
ssize_t __wrap_pread64(int fd, void *data, size_t bytes, off_t at) {
    return fails(ON_PREAD) ? -1 : __real_pread64(fd, data, shortened && bytes > 3 ? 3 : bytes, at);
}
ssize_t __real_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes);
ssize_t __wrap_write(int fd, const void *data, size_t bytes) {
    return fails(ON_WRITE) ? -1 : __real_write(fd, data, shortened && bytes > 3 ? 3 : bytes);
}
int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd) { return fails(ON_FSYNC) ? -1 : __real_fsync(fd); }
int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to) {
    return failing == ON_RENAME && fails(ON_RENAME) ? -1 : __real_rename(from, to);
}

void fail_none(void) {
    failing = -1;
    allocation_fails_at = 0;
    interrupted = shortened = false;
    memset(calls, 0, sizeof calls);
    allocations = 0;
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
