/* SPDX-License-Identifier: Apache-2.0 */
/* A writer on a full disk, in a read-only folder, killed at each of its system calls, and after one that was: the old file
 * or the new one is there, whole. */
#include "place.h"

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
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
        { full_disk, 1 },
        { read_only_folder, 1 },
        { killed_at_each_system_call, 1 },
        { leftovers_are_stepped_over, 1 },
        { links_are_followed_and_permissions_kept, 1 },
    };
    return RUN_TESTS("state kill", tests);
}
