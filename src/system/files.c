/* SPDX-License-Identifier: Apache-2.0 */
/* Files, as POSIX has them. */
#include "system/system.h"

#include <sys/stat.h>

bool amp__file_exists(const char *path, bool as_folder) {
    struct stat info;
    return stat(path, &info) == 0 && (!as_folder || S_ISDIR(info.st_mode));
}
