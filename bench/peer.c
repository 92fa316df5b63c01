/* SPDX-License-Identifier: Apache-2.0 */
/* The peers' process: one line goes to peers.py, one comes back ("ok ...", "none why" at its start, "error why"). */
#include "bench.h"
#include "digits.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern char **environ;

static struct {
    FILE *to, *from;
    char name[64];
    char line[512];
} peers;

static _Noreturn void fail(const char *why) {
    fprintf(stderr, "bench: peers: %s\n", why);
    exit(EXIT_FAILURE);
}

static const char *read_answer(void) {
    if (!fgets(peers.line, sizeof peers.line, peers.from)) fail("their process ended");
    peers.line[strcspn(peers.line, "\n")] = '\0';
    return peers.line;
}

/* Behind "ok ". */
static const char *expect_ok(const char *answer) {
    if (strncmp(answer, "ok", 2) != 0) fail(answer);
    return answer + 2 + (answer[2] == ' ');
}

static const char *ask(const char *format, va_list args) {
    vfprintf(peers.to, format, args);
    fputc('\n', peers.to);
    if (fflush(peers.to)) fail("their process ended");
    return expect_ok(read_answer());
}

__attribute__((format(printf, 1, 2))) static const char *askf(const char *format, ...) {
    va_list args;
    va_start(args, format);
    const char *answer = ask(format, args);
    va_end(args);
    return answer;
}

/* Its standard input and output are pipes to us; it ends when ours are closed. */
static void spawn(const char *python, const char *device) {
    int in[2], out[2];
    char script[4096];
    const char *peers_py = beside_program(script, sizeof script, "peers.py");
    char *const argv[] = { (char *)(uintptr_t)python, (char *)(uintptr_t)peers_py, (char *)(uintptr_t)device, NULL };
    posix_spawn_file_actions_t actions;
    pid_t child;
    signal(SIGPIPE, SIG_IGN); /* a write to a process that ended is an error like others */
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC) || posix_spawn_file_actions_init(&actions) ||
        posix_spawn_file_actions_adddup2(&actions, in[0], 0) || posix_spawn_file_actions_adddup2(&actions, out[1], 1))
        fail(strerror(errno));
    const int status = posix_spawnp(&child, python, &actions, NULL, argv, environ);
    if (status) {
        fprintf(stderr, "bench: --peers: %s: %s\n", python, strerror(status));
        exit(2);
    }
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]), close(out[1]);
    peers.to = fdopen(in[1], "w"), peers.from = fdopen(out[0], "r");
    if (!peers.to || !peers.from) fail(strerror(errno));
}

void bench_peers_start(const char *python, const char *device) {
    spawn(python, device);
    const char *answer = read_answer();
    if (!strncmp(answer, "none ", 5)) {
        printf("peers: left out: %s: %s; --peers takes any Python that has torch\n", python, answer + 5);
        return;
    }
    snprintf(peers.name, sizeof peers.name, "%s", expect_ok(answer));
    printf("peers: %s, %s\n", peers.name, strcmp(device, "cpu") ? device : "one thread");
}

const char *bench_peers_name(void) { return *peers.name ? peers.name : NULL; }

int bench_peer_has(const char *module) { return atoi(askf("has %s", module)); }

int bench_peer_make(const char *work, ...) {
    char request[4096];
    va_list args;
    va_start(args, work);
    const int length = vsnprintf(request, sizeof request, work, args);
    va_end(args);
    if (length < 0 || (size_t)length >= sizeof request) fail("work that takes too long to say");
    const int peer = atoi(askf("make %s", request));
    if (peer <= 0) fail("work without a number");
    return peer;
}

double bench_peer_run(int peer, size_t times) {
    const double seconds = atof(askf("run %d %zu", peer, times));
    if (!(seconds > 0)) fail("work that took no time");
    return seconds;
}

void bench_peer_drop(int peer) { askf("drop %d", peer); }
