/* SPDX-License-Identifier: Apache-2.0 */
/* What a program of darknet's gains by LD_PRELOAD: the same program with and without, each in a process of its own. */
#include "bench.h"

#ifdef BENCH_DARKNET

#include "digits.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct trainer {
    pid_t process;
    int socket;
};

static const char *library(char path[4096]) {
    return beside_program(path, 4096, "../adapters/darknet/libamp_darknet.so");
}

static void become(int socket, const char *level, const char *fp32) {
    char program[4096], cfg[4096], preloaded[4096];
    const int null = open("/dev/null", O_WRONLY);
    if (level) setenv("AMP_LEVEL", level, 1), setenv("LD_PRELOAD", library(preloaded), 1);
    if (fp32) setenv("AMP_FP32_MATMUL", fp32, 1);
    dup2(socket, 0), dup2(null, 1), dup2(null, 2);
    execl(beside_program(program, sizeof program, "darknet_trainer"), "darknet_trainer",
          beside_program(cfg, sizeof cfg, "darknet.cfg"), (char *)NULL);
    _exit(EXIT_FAILURE);
}

static void step(void *data) {
    const struct trainer *t = data;
    char byte = 1;
    bench_must(write(t->socket, &byte, 1) != 1 || read(t->socket, &byte, 1) != 1, "a step of darknet's");
}

/* level NULL: as it is. The first step, in which libamp is set up, is not measured. */
static void start(struct trainer *t, const char *level, const char *fp32) {
    int ends[2];
    bench_must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), "socketpair");
    t->process = fork();
    if (!t->process) become(ends[1], level, fp32);
    bench_must(t->process < 0, "fork");
    close(ends[1]);
    t->socket = ends[0];
    step(t);
}

static void end(struct trainer *t) {
    close(t->socket);
    (void)waitpid(t->process, NULL, 0);
}

static void compare(const char *name, struct trainer *ours, struct trainer *reference, const char *reference_name,
                    double goal) {
    bench_run(&(struct bench_case){ .group = "darknet", .name = name, .size = "64-256 filters", .unit = "ms",
                                    .calls = 1, .ours = step, .ours_data = ours, .reference = step,
                                    .reference_data = reference, .reference_name = reference_name, .wall = true,
                                    .goal = goal });
}

/* Goals: O0 is darknet's own work; FP32 products and columns of libamp's need AVX-512, bf16 instructions for it. */
void bench_darknet(void) {
    struct trainer stock, o0, fp32, o4;
    const bool fast = bench_cpu_has("avx512_bf16");
    char path[4096];
    if (access(library(path), R_OK)) {
        bench_left_out("darknet", "libamp_darknet.so is not here");
        return;
    }
    start(&stock, NULL, NULL), start(&o0, "O0", NULL), start(&fp32, "O0", "1"), start(&o4, "O4", NULL);
    compare("preloaded, O0", &o0, &stock, "stock darknet", 0.97);
    compare("FP32 by amp_matmul", &fp32, &stock, "stock darknet", fast ? 3 : 0);
    compare("O4", &o4, &stock, "stock darknet", fast ? 3.5 : 0);
    compare("O4", &o4, &fp32, "FP32 by amp_matmul", 0);
    end(&stock), end(&o0), end(&fp32), end(&o4);
}

#else

void bench_darknet(void) { bench_left_out("darknet", "built without darknet.h (Debian's package darknet)"); }

#endif
