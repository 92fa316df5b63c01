/* SPDX-License-Identifier: Apache-2.0 */
#include "../environment.h"
#include "adapter.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct options wanted;

static void say(const char *format, va_list values) {
    char text[1024];
    vsnprintf(text, sizeof text, format, values);
    fprintf(stderr, "libamp_darknet: %s\n", text);
}

void tell(const char *format, ...) {
    va_list values;
    if (wanted.quiet) return;
    va_start(values, format);
    say(format, values);
    va_end(values);
}

void stop(const char *format, ...) {
    va_list values;
    va_start(values, format);
    say(format, values);
    va_end(values);
    (void)fflush(NULL);
    _exit(EXIT_FAILURE); /* other threads may work on: no destructor pulls their memory away */
}

void must(amp_status status, const char *what) {
    if (status != AMP_OK) stop("%s: %s: %s", what, amp_status_name(status), amp_last_error());
}

/* `fallback` where nothing is given. */
static bool read_switch(const char *name, bool fallback) {
    const int value = given_switch(name);
    if (value < 0 && given(name)) stop("%s=%s: it is 1, true, yes or on, or 0, false, no or off", name, given(name));
    return value < 0 ? fallback : value;
}

/* A number above 0; 0 where nothing is given, which is the level's own. */
static float read_scale(const char *name) {
    const char *text = given(name);
    char *end;
    if (!text) return 0;
    const float value = strtof(text, &end);
    if (*end || !(value > 0)) stop("%s=%s: it is a number above 0, as 65536", name, text);
    return value;
}

static void read_options(void) {
    const char *level = given("AMP_LEVEL"), *log = given("AMP_LOG"), *scale = given("AMP_LOSS_SCALE");
    wanted.config = (amp_config)AMP_CONFIG_INIT;
    if (!level) return;
    wanted.on = true;
    wanted.quiet = log && !strcmp(log, "off");
    must(amp_level_from_name(level, &wanted.config.level), "AMP_LEVEL");
    /* its weights, of which there are no masters, are 16-bit values in darknet's FP32 memory */
    wanted.config.emulate = wanted.config.level == AMP_O3 ? AMP_ON : AMP_DEFAULT;
    wanted.config.loss_scale = scale && !strcmp(scale, "dynamic") ? AMP_DYNAMIC : read_scale("AMP_LOSS_SCALE");
    wanted.config.init_scale = read_scale("AMP_INIT_SCALE");
    wanted.config.check_finite = read_switch("AMP_CHECK_FINITE", false) ? AMP_ON : AMP_DEFAULT;
    wanted.config.gate = read_switch("AMP_GATE", true) ? AMP_DEFAULT : AMP_OFF;
    wanted.fast = read_switch("AMP_FP32_MATMUL", false) || wanted.config.level != AMP_O0;
}

const struct options *options(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, read_options);
    return &wanted;
}

/* ---- a program that was linked with darknet's objects: nothing of it can be caught, and it is told so ---- */

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
