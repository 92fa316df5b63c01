/* SPDX-License-Identifier: Apache-2.0 */
/* Of a program that was linked with darknet's objects nothing can be caught: it is better told so than left in FP32. */
#include "adapter.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool contains(const char *path, const char *text) {
    struct stat file;
    bool found = false;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    if (fstat(fd, &file) == 0 && file.st_size > 0) {
        void *bytes = mmap(NULL, (size_t)file.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes != MAP_FAILED) {
            found = memmem(bytes, (size_t)file.st_size, text, strlen(text)) != NULL;
            (void)munmap(bytes, (size_t)file.st_size);
        }
    }
    (void)close(fd);
    return found;
}

/* Darknet's parser says this, and nobody else does. Other programs, as the shell that starts the right one, are left in
 * peace, whatever AMP_LEVEL is. */
__attribute__((constructor)) static void check_program(void) {
    if (!getenv("AMP_LEVEL") || darknet_has("parse_network_cfg")) return;
    if (contains("/proc/self/exe", "First section must be [net] or [network]"))
        stop("%s has darknet's functions in itself, as Debian's own `darknet` has, so that they cannot be replaced "
             "from outside. Link the program to libdarknet.so, or run it without AMP_LEVEL",
             program_invocation_short_name);
}
