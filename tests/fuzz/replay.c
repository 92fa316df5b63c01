/* SPDX-License-Identifier: Apache-2.0 */
/* Stands in for libFuzzer: gives every file of a folder to the target once. replay FOLDER */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

static int replay(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) return -1;
    static uint8_t data[1 << 20];
    const size_t size = fread(data, 1, sizeof data, file);
    fclose(file);
    return LLVMFuzzerTestOneInput(data, size);
}

int main(int argc, char **argv) {
    DIR *folder = argc == 2 ? opendir(argv[1]) : NULL;
    unsigned n = 0;
    if (!folder) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return EXIT_FAILURE;
    }
    for (const struct dirent *entry; (entry = readdir(folder));) {
        char path[4096];
        if (entry->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
        if (replay(path) != 0) {
            fprintf(stderr, "%s failed\n", path);
            return EXIT_FAILURE;
        }
        n++;
    }
    closedir(folder);
    printf("%u inputs\n", n);
    return n ? EXIT_SUCCESS : EXIT_FAILURE; /* a replay of nothing tests nothing */
}
