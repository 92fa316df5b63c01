/* SPDX-License-Identifier: Apache-2.0 */
/* A writer on a full disk, in a read-only folder, and killed at each of its system calls: the old file or the new one
 * is there, whole. */
#include "place.h"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

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

TEST(full_disk) {
    PLACE(place);
    ck_assert_int_eq(in_child(&place, limit_files), 0);
    still_old(&place, "full disk", 0);
}

TEST(read_only_folder) {
    PLACE(place);
    ck_assert_int_eq(in_child(&place, make_read_only), 0);
    ck_assert_int_eq(chmod(place.folder, 0755), 0);
    still_old(&place, "read-only", 0);
}

/* ---- killed ---- */

/* Runs a save in a child that is killed when it enters its n-th system call. true: it lived. */
static bool save_killed_at(struct place *place, bool named, unsigned long n) {
    int status;
    const pid_t child = fork();
    if (!child) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL)) _exit(99);
        raise(SIGSTOP);
        no_nameless = named;
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

TEST_TIMES(killed_at_each_system_call, 2) {
    PLACE(place);
    unsigned long n = 1, kept = 0, replaced = 0;
    for (; !save_killed_at(&place, _i, n); n++) {
        const bool is_old = holds(&place, &place.old), is_new = holds(&place, &place.fresh);
        ck_assert_msg(is_old || is_new, "killed at system call %lu: the file is neither the old nor the new one", n);
        ck_assert_int_le(strangers(&place), 1);
        const struct snapshot before = snap(&place.rig);
        ck_ok(amp_state_load(place.rig.context, place.path));
        ck_ok(load(&place.rig, &place.fresh));
        ck_still(&place.rig, &before);
        kept += is_old;
        replaced += is_new;
        write_file(place.path, place.old.data, place.old.size);
    }
    ck_assert(holds(&place, &place.fresh));
    ck_assert_uint_ge(kept, 6);
    ck_assert_uint_ge(replaced, 2);
}

/* ---- what it opens ---- */

static bool is_listed(const char *path) {
    /* docs/reference/abi.md */
    static const char *const begins[] = { "state-", ".", "/proc/self/maps", "/proc/self/fd/", "/dev/urandom" };
    for (size_t i = 0; i < sizeof begins / sizeof begins[0]; i++)
        if (!strncmp(path, begins[i], strlen(begins[i]))) return true;
    return false;
}

static void read_path(pid_t child, uint64_t address, char path[64]) {
    memset(path, 0, 64);
    for (size_t i = 0; i + sizeof(long) < 64 && strlen(path) == i; i += sizeof(long)) {
        const long word = ptrace(PTRACE_PEEKDATA, child, (void *)(uintptr_t)(address + i), NULL);
        memcpy(path + i, &word, sizeof word);
    }
}

/* The first state of a process, saved and loaded while the parent watches. */
static int live(void) {
    struct rig rig;
    rig_start(&rig, AMP_O2, FAKE_RETAINS);
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL)) return 99;
    raise(SIGSTOP);
    const amp_status saved = amp_state_save(rig.context, "state-opens", AMP_STATE_SAFETENSORS);
    const amp_status loaded = saved == AMP_OK ? amp_state_load(rig.context, "state-opens") : saved;
    unlink("state-opens");
    return loaded != AMP_OK;
}

TEST(opens_what_the_docs_list) {
    int status, opened = 0;
    char path[64];
    const pid_t child = fork();
    if (!child) {
        _exit(live());
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFSTOPPED(status), "ptrace is not allowed here");
    ck_assert_int_eq((int)ptrace(PTRACE_SETOPTIONS, child, NULL, (void *)PTRACE_O_TRACESYSGOOD), 0);
    for (;;) {
        struct __ptrace_syscall_info call;
        ck_assert_int_eq((int)ptrace(PTRACE_SYSCALL, child, NULL, NULL), 0);
        ck_assert_int_eq(waitpid(child, &status, 0), child);
        if (WIFEXITED(status)) break;
        ck_assert_msg(WIFSTOPPED(status) && WSTOPSIG(status) == (SIGTRAP | 0x80), "the child got signal %d",
                      WSTOPSIG(status));
        const long got = ptrace(PTRACE_GET_SYSCALL_INFO, child, (void *)sizeof call, &call);
        if (got <= 0 || call.op != PTRACE_SYSCALL_INFO_ENTRY) continue;
        if (call.entry.nr == SYS_openat) read_path(child, call.entry.args[1], path);
#ifdef SYS_open /* of musl's open */
        else if (call.entry.nr == SYS_open) read_path(child, call.entry.args[0], path);
#endif
        else continue;
        ck_assert_msg(is_listed(path), "a save or a load opens %s", path);
        opened++;
    }
    ck_assert_int_eq(WEXITSTATUS(status), 0);
    ck_assert_int_ge(opened, 4); /* the folder twice, what is written, what is read */
}
