/* SPDX-License-Identifier: Apache-2.0 */
/* What is found goes to standard error where the host has no hook event, at the level that was asked for. */
#include "findings.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

/* What one life writes there. */
static const char *told(int32_t level, bool listens) {
    static char text[4096];
    struct rig rig;
    char name[] = "/tmp/amp-told-XXXXXX";
    const int file = mkstemp(name), saved = dup(STDERR_FILENO);
    ck_assert_int_ge(file, 0);
    (void)unlink(name);
    ck_assert_int_ge(dup2(file, STDERR_FILENO), 0);
    rig_init(&rig, 0);
    if (!listens) rig.host.hooks.event = NULL;
    rig_wire(&rig, CONFIG(AMP_O1, .log = level));
    (void)bracket(&rig, INF);
    rig_step_and_clear(&rig);
    rig_end(&rig);
    ck_assert_int_ge(dup2(saved, STDERR_FILENO), 0);
    (void)close(saved);
    const ssize_t n = pread(file, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    (void)close(file);
    return text;
}

TEST(who_has_no_event_hook_reads_it) {
    static const struct {
        int32_t level;
        const char *first, *skip, *bracket;
    } lives[] = {
        { AMP_LOG_OFF, NULL, NULL, NULL },
        { AMP_LOG_ERROR, NULL, NULL, NULL },
        { AMP_LOG_WARN, "libamp: warn: AMP-M08 ", NULL, NULL },
        { AMP_LOG_INFO, "libamp: warn: AMP-M08 ", "libamp: info: gradient overflow in weight", NULL },
        { AMP_LOG_TRACE, "libamp: warn: AMP-M08 ", "libamp: info: gradient overflow in weight",
          "libamp: trace: loss 0: skip, the scale was 65536 and is 32768\n" },
    };
    for (size_t i = 0; i < sizeof lives / sizeof *lives; i++) {
        const char *said = told(lives[i].level, false);
        ck_assert_msg(lives[i].first ? strstr(said, lives[i].first) != NULL : !*said, "%d: %s", (int)i, said);
        ck_assert_msg(!lives[i].skip == !strstr(said, "overflow in"), "%s", said);
        ck_assert_msg(!lives[i].bracket == !strstr(said, "trace"), "%s", said);
        if (lives[i].skip) ck_assert_msg(strstr(said, lives[i].skip) != NULL, "%s", said);
        if (lives[i].bracket) ck_assert_msg(strstr(said, lives[i].bracket) != NULL, "%s", said);
        ck_assert_str_eq(told(lives[i].level, true), ""); /* who has one hears it there */
    }
}

/* Of the process: is SIGPIPE blocked, and does one wait? */
static void signals(bool found[2]) {
    sigset_t blocked, waiting;
    ck_assert_int_eq(pthread_sigmask(SIG_BLOCK, NULL, &blocked), 0);
    ck_assert_int_eq(sigpending(&waiting), 0);
    found[0] = sigismember(&blocked, SIGPIPE) == 1, found[1] = sigismember(&waiting, SIGPIPE) == 1;
}

/* The process lives, and its signals are as they were. */
TEST(nobody_reads_it) {
    sigset_t pipes;
    (void)sigemptyset(&pipes);
    (void)sigaddset(&pipes, SIGPIPE);
    for (int own = 0; own < 2; own++) { /* 1: the host blocks it, and one waits */
        int ends[2];
        bool found[2];
        struct rig rig;
        const int saved = dup(STDERR_FILENO);
        ck_assert_int_eq(pipe(ends), 0);
        (void)close(ends[0]);
        ck_assert_int_ge(dup2(ends[1], STDERR_FILENO), 0);
        if (own) {
            ck_assert_int_eq(pthread_sigmask(SIG_BLOCK, &pipes, NULL), 0);
            ck_assert_int_eq(raise(SIGPIPE), 0);
        }
        rig_init(&rig, 0);
        rig.host.hooks.event = NULL;
        rig_wire(&rig, CONFIG(AMP_O1, .log = AMP_LOG_TRACE));
        (void)bracket(&rig, INF);
        (void)net_step(&rig.net);
        rig_end(&rig);
        signals(found);
        ck_assert_int_ge(dup2(saved, STDERR_FILENO), 0);
        (void)close(saved), (void)close(ends[1]);
        ck_assert_int_eq(found[0], own);
        ck_assert_int_eq(found[1], own);
    }
    ck_assert_int_eq(sigtimedwait(&pipes, NULL, &(struct timespec){ 0 }), SIGPIPE);
    ck_assert_int_eq(pthread_sigmask(SIG_UNBLOCK, &pipes, NULL), 0);
}

TEST(the_environment_says_the_level) {
    ck_assert_int_eq(setenv("AMP_LOG", "off", 1), 0);
    ck_assert_str_eq(told(AMP_LOG_DEFAULT, false), "");
    ck_assert_msg(strstr(told(AMP_LOG_WARN, false), "AMP-M08") != NULL, "the configuration goes first");
    ck_assert_int_eq(setenv("AMP_LOG", "trace", 1), 0);
    ck_assert_ptr_nonnull(strstr(told(AMP_LOG_DEFAULT, false), "trace: loss 0"));
    ck_assert_int_eq(setenv("AMP_LOG", "loud", 1), 0);
    ck_assert_ptr_nonnull(strstr(told(AMP_LOG_DEFAULT, false), "libamp: warn: AMP-M80 AMP_LOG is \"loud\", which "
                                 "libamp does not know: use off, error, warn, info or trace"));
    ck_assert_int_eq(unsetenv("AMP_LOG"), 0);
    ck_assert_ptr_nonnull(strstr(told(AMP_LOG_DEFAULT, false), "AMP-M08"));
}

/* ---- variables with unknown values ---- */

static uint64_t unknown(const char *name, const char *value, const char *allowed) {
    ck_assert_int_eq(value ? setenv(name, value, 1) : unsetenv(name), 0);
    RIG_START(rig, AMP_O1, FAKE_RETAINS);
    const uint64_t times = found(rig.context, "AMP-M80");
    char words[128];
    snprintf(words, sizeof words, "AMP-M80 %s is \"%.60s\", which libamp does not know: use %s", name,
             value ? value : "", allowed);
    if (times) ck_health(&rig, words);
    ck_assert_int_eq(unsetenv(name), 0);
    return times;
}

TEST(values_that_mean_nothing_are_told) {
    static const struct {
        const char *name, *allowed, *good[5], *bad[5];
    } rows[] = {
        { "AMP_NUM_THREADS", "a number of threads", { "0", "2" }, { "two", "-1", "2x", "2147483648" } },
        { "AMP_CPU_MASK", "a number, or names", { "3", "0x1", "avx2,neon", "none" }, { "avx2,", "x", " 4", "-1" } },
        { "AMP_MATMUL_BACKEND", "auto, builtin or onednn", { "auto", "onednn" }, { "mkl", "OneDNN", "built-in" } },
        { "AMP_BACKEND_PATH", "absolute names of folders", { "/", "/tmp:/", "/tmp:" }, { "lib", "/tmp:lib", "/no/x" } },
        { "AMP_VERIFY", "1, true, yes or on", { "1", "TRUE", "yes", "on", "off" }, { "2", "yes!", "ture", "o" } },
        { "AMP_LOG", "off, error, warn", { "off", "warn", "trace" }, { "loud", "OFF", "0" } },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ck_assert_uint_eq(unknown(rows[i].name, NULL, ""), 0);
        ck_assert_uint_eq(unknown(rows[i].name, "", ""), 0);
        for (size_t j = 0; j < 5 && rows[i].good[j]; j++)
            ck_assert_msg(!unknown(rows[i].name, rows[i].good[j], ""), "%s=%s", rows[i].name, rows[i].good[j]);
        for (size_t j = 0; j < 5 && rows[i].bad[j]; j++)
            ck_assert_msg(unknown(rows[i].name, rows[i].bad[j], rows[i].allowed) == 1, "%s=%s", rows[i].name,
                          rows[i].bad[j]);
    }
}
