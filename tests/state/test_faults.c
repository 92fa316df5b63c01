/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the system does to a save or a load: each allocation fails once, each call on the file fails once, writes come up
 * short or are interrupted, the disk is full, the folder is read-only, the writer is killed at each system call. The old
 * file stays, no other is left, nothing changes. (Linked with --wrap for the calls counted here.)
 */
#include "forge.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- memory: libamp's and the JSON library's ---- */

static unsigned long allocations, allocation_fails_at; /* 0: none */
static size_t in_use, peak;

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

enum { ON_OPEN, ON_PREAD, ON_WRITE, ON_FSYNC, ON_RENAME, N_CALLS };
static unsigned long calls[N_CALLS], call_fails_at; /* the n-th call of `failing` */
static int failing = -1, failure;
static bool interrupted, shortened; /* every other call fails with EINTR; writes and reads move a few bytes only */

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

static void fail_none(void) {
    failing = -1;
    allocation_fails_at = 0;
    interrupted = shortened = false;
    memset(calls, 0, sizeof calls);
    allocations = 0;
}

/* ---- a folder with one state in it ---- */

struct place {
    struct rig rig;
    char folder[64], path[96];
    struct bytes old, fresh; /* the file there, and what the next save writes */
};

static void place_init(struct place *place) {
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

static bool holds(const struct place *place, const struct bytes *wanted) {
    struct bytes file = read_file(place->path);
    const bool equal = file.size == wanted->size && !memcmp(file.data, wanted->data, file.size);
    free(file.data);
    return equal;
}

/* Removes what is not the state itself; how many there were. */
static int strangers(const struct place *place) {
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

static void place_end(struct place *place) {
    fail_none();
    ck_assert_int_eq(strangers(place), 0);
    unlink(place->path);
    ck_assert_int_eq(rmdir(place->folder), 0);
    free(place->old.data);
    free(place->fresh.data);
    rig_end(&place->rig);
}

static void still_old(const struct place *place, const char *what, unsigned long n) {
    ck_assert_msg(holds(place, &place->old), "%s %lu: the file is not the old one", what, n);
    ck_assert_msg(strangers(place) == 0, "%s %lu: a temporary file is left", what, n);
}

START_TEST(each_allocation_of_a_save) {
    struct place place;
    place_init(&place);
    unsigned long n = 1;
    for (;; n++) {
        const struct snapshot before = snap(&place.rig);
        fail_none();
        const size_t used = in_use;
        allocation_fails_at = n;
        const amp_status status = amp_state_save(place.rig.context, place.path, AMP_STATE_SAFETENSORS);
        allocation_fails_at = 0;
        ck_assert_msg(in_use == used, "allocation %lu: %zu bytes leaked", n, in_use - used);
        const struct snapshot after = snap(&place.rig);
        ck_assert(same(&before, &after));
        if (status == AMP_OK) break;
        ck_assert_msg(status == AMP_ERR_NO_MEMORY, "allocation %lu: %s", n, amp_last_error());
        still_old(&place, "allocation", n);
    }
    ck_assert_uint_gt(n, 100);
    ck_assert(holds(&place, &place.fresh));
    place_end(&place);
}
END_TEST

START_TEST(each_allocation_of_a_load) {
    struct place place;
    place_init(&place);
    struct bytes text = state_of(&place.rig, AMP_STATE_APEX);
    const struct snapshot before = snap(&place.rig);
    unsigned long n = 1;
    for (;; n++) {
        fail_none();
        const size_t used = in_use;
        allocation_fails_at = n;
        const amp_status status = _i == 0   ? amp_state_load(place.rig.context, place.path)
                                  : _i == 1 ? amp_state_load_memory(place.rig.context, place.old.data, place.old.size)
                                            : amp_state_load_memory(place.rig.context, text.data, text.size);
        allocation_fails_at = 0;
        ck_assert_msg(in_use == used, "allocation %lu: %zu bytes leaked", n, in_use - used);
        if (status == AMP_OK) break;
        /* the JSON library says "invalid token" where it has no memory for one */
        ck_assert_msg(status == AMP_ERR_NO_MEMORY || status == AMP_ERR_BAD_FILE, "allocation %lu: %s", n, amp_last_error());
        const struct snapshot after = snap(&place.rig);
        ck_assert(same(&before, &after));
    }
    ck_assert_uint_gt(n, _i == 2 ? 5 : 50);
    free(text.data);
    place_end(&place);
}
END_TEST

/* The stated bound, with headers made to be dense in whatever costs the parser most. */
START_TEST(memory_is_bounded_by_the_header) {
    static const struct {
        const char *before, *unit, *after;
        bool numbered;
    } rows[] = {
        { "},\"x\":[", "1,", "1]}", false },   { "},\"x\":[", "\"\",", "1]}", false }, { "},\"x\":[", "1.5,", "1]}", false },
        { "},\"x\":[", "{},", "1]}", false },  { "},\"x\":[", "[],", "1]}", false },   { "},\"x\":[", "null,", "1]}", false },
        { "},\"x\":{", "\"%d\":1,", "\"y\":1}}", true }, { "},", "\"%d\":\"\",", "\"y\":1}", true },
        { "", ",\"%d\":\"\"", "}}", true },
        { "},", "\"%d\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,0]},",
          "\"y\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}", true },
        { "},\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,0],\"shape\":[", "1,", "0]}}", false },
    };
    struct place place;
    place_init(&place);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *header = malloc(400000), unit[128];
        size_t length = (size_t)sprintf(header, "%s", rows[i].before);
        for (int j = 0; length < 300000; j++) {
            snprintf(unit, sizeof unit, rows[i].unit, j);
            length += (size_t)sprintf(header + length, "%s", rows[i].numbered ? unit : rows[i].unit);
        }
        length += (size_t)sprintf(header + length, "%s", rows[i].after);
        struct bytes state = forge(header, length, 0);
        fail_none();
        const size_t used = peak = in_use;
        const amp_status status = amp_state_load_memory(place.rig.context, state.data, state.size);
        const size_t left = in_use, most = peak; /* before the test framework's own */
        ck_assert_int_eq(status, AMP_ERR_BAD_FILE);
        ck_assert_msg(most - used <= AMP__STATE_MEMORY * state.size + 4096, "row %zu: %zu bytes for a header of %zu: %s", i,
                      most - used, state.size, amp_last_error());
        ck_assert_msg(left == used, "row %zu: %zu, was %zu", i, left, used);
        if (getenv("AMP_TEST_FIGURES"))
            printf("# row %zu: %.1f times the header: %s\n", i, (double)(most - used) / (double)state.size, amp_last_error());
        free(header);
        free(state.data);
    }
    place_end(&place);
}
END_TEST

/* EIO, or no space left, at the n-th call of each kind. */
START_TEST(each_call_fails_once) {
    struct place place;
    place_init(&place);
    unsigned failed = 0;
    for (int call = 0; call < N_CALLS; call++)
        for (unsigned long n = 1;; n++) {
            write_file(place.path, place.old.data, place.old.size);
            fail_none();
            failing = call;
            call_fails_at = n;
            failure = call == ON_WRITE ? ENOSPC : EIO;
            const amp_status status = amp_state_save(place.rig.context, place.path, AMP_STATE_SAFETENSORS);
            fail_none();
            if (status == AMP_OK) break;
            failed++;
            ck_assert_int_eq(status, AMP_ERR_IO);
            if (call == ON_FSYNC && n == 2) { /* the folder's: too late to take the file back, and the message says so */
                ck_says("in place");
                ck_assert(holds(&place, &place.fresh));
                ck_assert_int_eq(strangers(&place), 0);
            } else {
                still_old(&place, "call", n);
            }
        }
    ck_assert_uint_ge(failed, 7); /* two opens, a write or more, two syncs, a rename */
    place_end(&place);
}
END_TEST

START_TEST(short_and_interrupted_calls_are_made_again) {
    struct place place;
    place_init(&place);
    shortened = interrupted = true;
    ck_ok(amp_state_save(place.rig.context, place.path, AMP_STATE_SAFETENSORS));
    fail_none();
    ck_assert(holds(&place, &place.fresh));
    const struct snapshot before = snap(&place.rig);
    train_some(&place.rig, 2);
    shortened = interrupted = true;
    ck_ok(amp_state_load(place.rig.context, place.path));
    fail_none();
    const struct snapshot after = snap(&place.rig);
    ck_assert(same(&before, &after));
    failing = ON_PREAD;
    call_fails_at = 3;
    failure = EIO;
    train_some(&place.rig, 1);
    const struct snapshot later = snap(&place.rig);
    fail_none();
    failing = ON_PREAD;
    call_fails_at = 4;
    ck_fails(AMP_ERR_IO, amp_state_load(place.rig.context, place.path));
    const struct snapshot unchanged = snap(&place.rig);
    ck_assert(same(&later, &unchanged));
    place_end(&place);
}
END_TEST

static int in_child(struct place *place, void (*prepare)(const struct place *)) {
    int verdict;
    const pid_t child = fork();
    if (!child) {
        prepare(place);
        _exit(amp_state_save(place->rig.context, place->path, AMP_STATE_SAFETENSORS) == AMP_ERR_IO ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &verdict, 0), child);
    return verdict;
}

/* A limit on files' size is a full disk that needs no disk. */
static void limit_files(const struct place *place) {
    const struct rlimit limit = { place->old.size / 2, place->old.size / 2 };
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit)) _exit(2);
}

/* Root may write anywhere, so root becomes nobody. */
static void make_read_only(const struct place *place) {
    if (chmod(place->folder, 0555) || (geteuid() == 0 && (setegid(65534) || seteuid(65534)))) _exit(2);
}

START_TEST(full_disk) {
    struct place place;
    place_init(&place);
    ck_assert_int_eq(in_child(&place, limit_files), 0);
    still_old(&place, "full disk", 0);
    place_end(&place);
}
END_TEST

START_TEST(read_only_folder) {
    struct place place;
    place_init(&place);
    ck_assert_int_eq(in_child(&place, make_read_only), 0);
    ck_assert_int_eq(chmod(place.folder, 0755), 0);
    still_old(&place, "read-only", 0);
    place_end(&place);
}
END_TEST

/* ---- killed ---- */

/* Runs a save in a child that is killed when it enters its n-th system call. true: it lived. */
static bool save_killed_at(struct place *place, unsigned long n) {
    int status;
    const pid_t child = fork();
    if (!child) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL)) _exit(99);
        raise(SIGSTOP);
        _exit(amp_state_save(place->rig.context, place->path, AMP_STATE_SAFETENSORS) == AMP_OK ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    if (WIFEXITED(status)) {
        ck_assert_msg(WEXITSTATUS(status) == 99, "the child ended by itself");
        ck_abort_msg("ptrace is not allowed here");
    }
    for (unsigned long stops = 0; stops < 2 * n - 1; stops++) { /* a stop at each entry and each return */
        ck_assert_int_eq((int)ptrace(PTRACE_SYSCALL, child, NULL, NULL), 0);
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        if (WIFEXITED(status)) {
            ck_assert_int_eq(WEXITSTATUS(status), 0);
            return true;
        }
    }
    kill(child, SIGKILL);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    return false;
}

START_TEST(killed_at_each_system_call) {
    struct place place;
    place_init(&place);
    unsigned long n = 1, kept = 0, replaced = 0;
    for (; !save_killed_at(&place, n); n++) {
        const bool is_old = holds(&place, &place.old), is_new = holds(&place, &place.fresh);
        ck_assert_msg(is_old || is_new, "killed at system call %lu: the file is neither the old nor the new one", n);
        ck_assert_int_le(strangers(&place), 1);
        const struct snapshot before = snap(&place.rig);
        ck_ok(amp_state_load(place.rig.context, place.path));
        ck_ok(amp_state_load_memory(place.rig.context, place.fresh.data, place.fresh.size));
        const struct snapshot after = snap(&place.rig);
        ck_assert(same(&before, &after));
        kept += is_old;
        replaced += is_new;
        write_file(place.path, place.old.data, place.old.size);
    }
    ck_assert(holds(&place, &place.fresh));
    ck_assert_uint_ge(kept, 6);
    ck_assert_uint_ge(replaced, 2);
    place_end(&place);
}
END_TEST

/* What a killed writer left does not stop the next one, of the same process number even. */
START_TEST(leftovers_are_stepped_over) {
    struct place place;
    char path[200];
    place_init(&place);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s.tmp-%lu-%d", place.path, (unsigned long)getpid(), i);
        write_file(path, "x", 1);
    }
    ck_ok(amp_state_save(place.rig.context, place.path, AMP_STATE_SAFETENSORS));
    ck_assert(holds(&place, &place.fresh));
    ck_assert_int_eq(strangers(&place), 3);
    place_end(&place);
}
END_TEST

START_TEST(links_are_followed_and_permissions_kept) {
    struct place place;
    struct stat about;
    char link[200];
    place_init(&place);
    snprintf(link, sizeof link, "%s/latest", place.folder);
    ck_assert_int_eq(symlink("amp.safetensors", link), 0);
    ck_assert_int_eq(chmod(place.path, 0640), 0);
    ck_ok(amp_state_save(place.rig.context, link, AMP_STATE_SAFETENSORS));
    ck_assert(holds(&place, &place.fresh));
    ck_assert_int_eq(lstat(link, &about), 0);
    ck_assert(S_ISLNK(about.st_mode));
    ck_assert_int_eq(stat(place.path, &about), 0);
    ck_assert_int_eq(about.st_mode & 0777, 0640);
    unlink(link);
    place_end(&place);
}
END_TEST

int main(void) {
    const struct test tests[] = {
        { each_allocation_of_a_save, 1 },
        { each_allocation_of_a_load, 3 },
        { memory_is_bounded_by_the_header, 1 },
        { each_call_fails_once, 1 },
        { short_and_interrupted_calls_are_made_again, 1 },
        { full_disk, 1 },
        { read_only_folder, 1 },
        { killed_at_each_system_call, 1 },
        { leftovers_are_stepped_over, 1 },
        { links_are_followed_and_permissions_kept, 1 },
    };
    return RUN_TESTS("state faults", tests);
}
