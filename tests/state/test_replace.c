/* SPDX-License-Identifier: Apache-2.0 */
/* Who can read a state while it is written, what killed writers left, and what is kept of the file that was there:
 * owner, permissions, links, and long names. */
#include "../support/leave.h"
#include "place.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void save(struct place *place) { ck_ok(amp_state_save(place->rig.context, place->path, AMP_STATE_SAFETENSORS)); }

static struct stat about(const char *path) {
    struct stat result;
    ck_assert_msg(lstat(path, &result) == 0, "%s: %s", path, strerror(errno));
    return result;
}

static int is_root(void) { return geteuid() == 0; }

static int has_nameless_files(void) {
    const int fd = open(".", O_WRONLY | O_TMPFILE, 0600);
    if (fd >= 0) close(fd);
    return fd >= 0;
}

/* ---- nobody else reads it ---- */

TEST_TIMES(private_from_its_birth, 2) {
    static const mode_t modes[] = { 0600, 0640, 0666 };
    PLACE(place);
    for (size_t i = 0; i < 3; i++) {
        ck_assert_int_eq(chmod(place.path, modes[i]), 0);
        fail_none();
        no_nameless = _i;
        save(&place);
        ck_assert_uint_eq(readable_by_others, 0);
        ck_assert_int_eq(about(place.path).st_mode & 07777, modes[i]);
    }
}

TEST_TIMES(a_new_file_obeys_the_mask, 2) {
    static const mode_t masks[] = { 022, 077, 0 };
    PLACE(place);
    const mode_t before = umask(0);
    for (size_t i = 0; i < 3; i++) {
        unlink(place.path);
        umask(masks[i]);
        fail_none();
        no_nameless = _i;
        save(&place);
        ck_assert_uint_eq(readable_by_others, 0);
        ck_assert_int_eq(about(place.path).st_mode & 07777, 0666 & ~masks[i]);
    }
    umask(before);
    ck_assert(holds(&place, &place.fresh));
}

/* A file without a name that cannot be given one is written again, as one that has a name. */
TEST_TIMES(names_that_are_refused, has_nameless_files()) {
    PLACE(place);
    fail_call(ON_LINK, 1, EPERM);
    save(&place);
    ck_assert(one_failed());
    ck_assert_uint_eq(readable_by_others, 0);
    ck_assert(holds(&place, &place.fresh));
}

/* ---- what killed writers left ---- */

static pid_t dead(void) {
    const pid_t child = fork();
    if (!child) leave(0);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    return child;
}

TEST_TIMES(leftovers_are_cleaned, 2) {
    char path[200];
    PLACE(place);
    const pid_t gone = dead(), numbers[] = { gone, getpid(), getppid() };
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 1000; i++) { /* of a dead process, of one that had our number, and of one that lives */
            snprintf(path, sizeof path, "%s.tmp-%ld-%016x", place.path, (long)numbers[k], (unsigned)i);
            write_file(path, "x", 1);
        }
    snprintf(path, sizeof path, "%s.tmp-%ld-ffffffffffffffff", place.path, (long)getpid());
    const int writing = open(path, O_WRONLY | O_CREAT, 0600); /* another thread of ours */
    ck_assert_int_eq(flock(writing, LOCK_EX), 0);
    snprintf(path, sizeof path, "%s.tmp-%ld-fffffffffffffffe", place.path, (long)gone);
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    snprintf(path, sizeof path, "%s/other.tmp-%ld-0000000000000000", place.folder, (long)gone);
    write_file(path, "x", 1);
    static const char *const of_the_user[] = { "11-22", "best.pt", "000000000000000", "00000000000000000",
                                               "00000000000000AA", "0000000000000000.pt" };
    for (size_t i = 0; i < sizeof of_the_user / sizeof *of_the_user; i++) {
        snprintf(path, sizeof path, "%s.tmp-%ld-%s", place.path, (long)gone, of_the_user[i]);
        write_file(path, "x", 1);
    }
    fail_none();
    no_nameless = _i;
    save(&place);
    ck_assert(holds(&place, &place.fresh));
    close(writing);
    ck_assert_uint_eq(removed_unlocked, 0); /* its writer could come between */
    ck_assert_int_eq(strangers(&place), 1000 + 3 + sizeof of_the_user / sizeof *of_the_user);
}

/* Two savers in two PID namespaces, for each of which the other's process is not there. */
TEST(a_saver_in_another_namespace_cleans) {
    PLACE(place);
    fail_none();
    no_nameless = cleaner_comes = true;
    save(&place);
    ck_assert(!cleaner_comes);
    ck_assert(holds(&place, &place.fresh));
    ck_assert_int_eq(strangers(&place), 0);
}

/* Without chance names are tried in turn, and those that are there do no harm. */
TEST_TIMES(names_without_chance, 2) {
    PLACE(place);
    fail_call(ON_RANDOM, 1, ENOSYS);
    always = true, no_nameless = _i;
    save(&place);
    ck_assert(one_failed());
    ck_assert(holds(&place, &place.fresh));
}

/* ---- what is kept ---- */

TEST_TIMES(no_more_than_permissions_is_kept, 2) {
    PLACE(place);
    ck_assert_int_eq(chmod(place.path, 06755), 0);
    no_nameless = _i;
    save(&place);
    ck_assert_int_eq(about(place.path).st_mode & 07777, 0755);
    ck_assert_uint_eq(place.rig.host.events[AMP_EVENT_WARNING], 0);
}

/* Root may give files away: their owner can read them afterwards. */
TEST_TIMES(the_owner_is_kept, 2 * is_root()) {
    PLACE(place);
    ck_assert_int_eq(chown(place.path, 12345, 54321), 0);
    ck_assert_int_eq(chmod(place.path, 0600), 0);
    no_nameless = _i;
    save(&place);
    const struct stat now = about(place.path);
    ck_assert_uint_eq(now.st_uid, 12345);
    ck_assert_uint_eq(now.st_gid, 54321);
    ck_assert_int_eq(now.st_mode & 07777, 0600);
    ck_assert_uint_eq(place.rig.host.events[AMP_EVENT_WARNING], 0);
}

TEST_TIMES(what_is_not_kept_is_told, is_root()) {
    PLACE(place);
    ck_assert_int_eq(chown(place.path, 12345, 54321), 0);
    ck_assert_int_eq(chmod(place.path, 0664), 0);
    fail_call(ON_CHOWN, 1, EPERM);
    always = true;
    save(&place);
    const struct stat now = about(place.path);
    ck_assert_uint_eq(now.st_uid, geteuid());
    ck_assert_int_eq(now.st_mode & 07777, 0644); /* the new group gets what everybody has */
    ck_assert_uint_eq(place.rig.host.events[AMP_EVENT_WARNING], 1);
    ck_warned(&place.rig, "was of user 12345 and group 54321");
}

/* ---- links ---- */

TEST(links_are_followed) {
    char link[200];
    PLACE(place);
    snprintf(link, sizeof link, "%s/latest", place.folder);
    ck_assert_int_eq(symlink("amp.safetensors", link), 0);
    ck_ok(amp_state_save(place.rig.context, link, AMP_STATE_SAFETENSORS));
    ck_assert(holds(&place, &place.fresh));
    ck_assert(S_ISLNK(about(link).st_mode));
    unlink(link);
}

/* Two links, one absolute and one relative, to where there is no file yet: it is made there. */
TEST_TIMES(links_to_what_is_not_there_yet, 2) {
    char link[200], second[200], folder[4096], to[4300];
    PLACE(place);
    unlink(place.path);
    ck_assert_ptr_nonnull(realpath(place.folder, folder));
    snprintf(link, sizeof link, "%s/latest", place.folder);
    snprintf(second, sizeof second, "%s/second", place.folder);
    snprintf(to, sizeof to, "%s/second", folder);
    ck_assert_int_eq(symlink(to, link), 0);
    ck_assert_int_eq(symlink("./amp.safetensors", second), 0);
    no_nameless = _i;
    ck_ok(amp_state_save(place.rig.context, link, AMP_STATE_SAFETENSORS));
    ck_assert(holds(&place, &place.fresh));
    ck_assert(S_ISLNK(about(link).st_mode) && S_ISLNK(about(second).st_mode));
    ck_assert(S_ISREG(about(place.path).st_mode));
    ck_assert_int_eq(strangers(&place), 2);
    snprintf(to, sizeof to, "%s/no/such/folder", folder);
    ck_assert_int_eq(symlink(to, link), 0);
    ck_fails(AMP_ERR_NOT_FOUND, amp_state_save(place.rig.context, link, AMP_STATE_SAFETENSORS));
    unlink(link);
}

TEST(loops_are_refused) {
    char link[200], second[200];
    PLACE(place);
    snprintf(link, sizeof link, "%s/latest", place.folder);
    snprintf(second, sizeof second, "%s/second", place.folder);
    ck_assert_int_eq(symlink("second", link), 0);
    ck_assert_int_eq(symlink("latest", second), 0);
    ck_refused(AMP_ERR_IO, "link", amp_state_save(place.rig.context, link, AMP_STATE_SAFETENSORS));
    ck_assert(S_ISLNK(about(link).st_mode) && S_ISLNK(about(second).st_mode));
    ck_assert_int_eq(strangers(&place), 2);
}

/* ---- long names ---- */

TEST_TIMES(names_of_255_bytes, 2) {
    char path[400];
    PLACE(place);
    const int folder = snprintf(path, sizeof path, "%s/", place.folder);
    for (int i = 0; i < 127; i++) memcpy(path + folder + 2 * i, "\xc3\xa9", 3); /* characters of two bytes */
    strcat(path, "x");
    no_nameless = _i;
    for (int again = 0; again < 2; again++) {
        ck_ok(amp_state_save(place.rig.context, path, AMP_STATE_SAFETENSORS));
        ck_assert_uint_eq(place.fresh.size, (size_t)about(path).st_size);
    }
    strcat(path, "x");
    ck_fails(AMP_ERR_IO, amp_state_save(place.rig.context, path, AMP_STATE_SAFETENSORS));
    ck_assert_int_eq(strangers(&place), 1);
}

/* ---- small stacks ---- */

static void *save_to_memory(void *user) {
    struct place *place = user;
    size_t size = 0;
    char *data = malloc(place->fresh.size);
    amp_status status = amp_state_save_memory(place->rig.context, AMP_STATE_SAFETENSORS, NULL, 0, &size);
    if (status == AMP_OK) status = amp_state_save_memory(place->rig.context, AMP_STATE_SAFETENSORS, data, size, &size);
    const bool same_bytes = status == AMP_OK && size == place->fresh.size && !memcmp(data, place->fresh.data, size);
    free(data);
    return same_bytes ? place : NULL;
}

/* Sanitizers and builds without optimization have frames of their own size. */
static int has_small_frames(void) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
    return 0;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
    return 0;
#else
    return 1;
#endif
#else
    return 1;
#endif
}

/* A thread of 32 KiB, most of which is its own block of libc's and libamp's; what lies below is no memory. */
TEST_TIMES(saved_on_a_stack_of_32_kib, has_small_frames()) {
    pthread_attr_t attributes;
    pthread_t thread;
    void *result = NULL;
    PLACE(place);
    ck_assert_int_eq(pthread_attr_init(&attributes), 0);
    ck_assert_int_eq(pthread_attr_setstacksize(&attributes, 32 << 10), 0);
    ck_assert_int_eq(pthread_create(&thread, &attributes, save_to_memory, &place), 0);
    ck_assert_int_eq(pthread_join(thread, &result), 0);
    ck_assert_ptr_eq(result, &place);
    pthread_attr_destroy(&attributes);
}

int main(void) {
    if (!is_root()) puts("# not root, who alone gives files away: the tests of owners are left out");
    if (!has_nameless_files())
        puts("# no files without a name on this file system: the test of giving them one is left out");
    if (!has_small_frames())
        puts("# frames of a sanitizer, or of a build that is not optimized: the test of a small stack is left out");
    return suite_run();
}
