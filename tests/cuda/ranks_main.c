/* SPDX-License-Identifier: Apache-2.0 */
/* test_cuda_ranks fake: the tests as rank 0, whose results are told, and as rank 1, whose failure is one of theirs. */
#include "ranks.h"

#include "../kernels/support.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct ranks ranks;

static int own_end = -1;
static void *library;
static void (*swap)(void *bytes, size_t n);

void ranks_begin(void) {
    library = dlopen(getenv("FAKE_NCCL"), RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(library != NULL, "%s", dlerror());
    void *symbol = dlsym(library, FAKE_NCCL_SWAP_NAME);
    memcpy(&swap, &symbol, sizeof symbol);
    ranks.nccl = dlsym(library, FAKE_NCCL_SYMBOL_NAME);
    ck_assert(symbol && ranks.nccl);
    device_lazily();
    *ranks.nccl = (struct fake_nccl){
        .rank = ranks.rank, .ranks = 2, .socket = own_end, .current = &device.fake->current,
        .work_on = device.tools->work_on, .written = device.tools->written,
    };
}

void ranks_end(void) {
    device_at_once();
    if (!ranks.nccl) return;
    ck_assert_int_eq(ranks.nccl->open, 0);
    ck_assert_int_eq(ranks.nccl->on_wrong_device, 0);
    ck_assert_int_eq(ranks.nccl->unwritten, 0);
    ck_assert_int_eq(device.fake->broke_capture, 0);
    device.fake->order = 0;
    dlclose(library);
    ranks.nccl = NULL;
}

void ranks_equal(const void *bytes, size_t n) {
    char *other = malloc(n + 1);
    ck_assert_ptr_nonnull(other);
    memcpy(other, bytes, n);
    swap(other, n);
    ck_assert_msg(!memcmp(other, bytes, n), "rank %d has not what the other has", ranks.rank);
    free(other);
}

amp_nccl *ranks_open(void) {
    amp_nccl *nccl = NULL;
    ck_assert_msg(amp_nccl_open(ranks.nccl, &nccl) == AMP_OK, "%s", amp_last_error());
    return nccl;
}

int main(int argc, char **argv) {
    static const char *const none[] = { NULL };
    int ends[2], status = 0;
    (void)test_seed(); /* one for both */
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) return EXIT_FAILURE;
    fflush(stdout);
    const pid_t child = fork();
    if (child < 0) return EXIT_FAILURE;
    ranks.rank = child == 0;
    own_end = ends[ranks.rank];
    close(ends[!ranks.rank]);
    if (ranks.rank) dup2(STDERR_FILENO, STDOUT_FILENO);
    const int result = device_main(argc, argv, none);
    close(own_end);
    if (ranks.rank) return result;
    if (waitpid(child, &status, 0) == child && status == 0) return result;
    printf("Bail out! rank 1 failed: its results are on standard error\n");
    return EXIT_FAILURE;
}
