/* SPDX-License-Identifier: Apache-2.0 */
#include "beside.h"

#include <string.h>
#include <unistd.h>

const char *beside_program(char *path, size_t size, const char *name) {
    const ssize_t length = readlink("/proc/self/exe", path, size);
    char *slash = length > 0 && (size_t)length < size ? memrchr(path, '/', (size_t)length) : NULL;
    if (!slash || (size_t)(slash + 1 - path) + strlen(name) >= size) return name;
    strcpy(slash + 1, name);
    return path;
}
