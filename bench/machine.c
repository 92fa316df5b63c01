/* SPDX-License-Identifier: Apache-2.0 */
/* What the figures were measured on: processor, instruction sets, caches, oneDNN, compiler. */
#include "bench.h"

#include <amp_kernels.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__clang__)
#define COMPILER __VERSION__
#else
#define COMPILER "gcc " __VERSION__
#endif

/* The first line of a file that begins so, without that, the colon and the end of the line; "" if there is none. */
static void read_line(const char *path, const char *begin, char *text, size_t capacity) {
    FILE *file = fopen(path, "r");
    *text = '\0';
    while (file && fgets(text, (int)capacity, file)) {
        const size_t length = strlen(begin);
        if (strncmp(text, begin, length) == 0) {
            const char *rest = text + length + strspn(text + length, " \t:");
            memmove(text, rest, strlen(rest) + 1);
            text[strcspn(text, "\n")] = '\0';
            break;
        }
        *text = '\0';
    }
    if (file) fclose(file);
}

/* " flag flag flag ": x86 calls them flags, arm64 Features. */
static const char *flags(void) {
    static char text[8192];
    if (*text) return text;
    text[0] = ' ';
    read_line("/proc/cpuinfo", "flags", text + 1, sizeof text - 2);
    if (!text[1]) read_line("/proc/cpuinfo", "Features", text + 1, sizeof text - 2);
    return strcat(text, " ");
}

bool bench_cpu_has(const char *name) {
    char word[64];
    snprintf(word, sizeof word, " %s ", name);
    return strstr(flags(), word) != NULL;
}

/* Those that decide what the kernels, ours or others', can do. */
static void print_flags(void) {
    static const char *const names[] = { "avx2", "f16c", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl",
                                         "avx512_vnni",
                                         "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_fp16", "asimd",
                                         "fphp", "asimdhp", "bf16", "i8mm", "sve", "sve2" };
    printf("flags:");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (bench_cpu_has(names[i])) printf(" %s", names[i]);
    printf("\n");
}

static void print_caches(void) {
    printf("cores: %ld, caches:", sysconf(_SC_NPROCESSORS_ONLN));
    for (int i = 0; i < 8; i++) {
        char path[128], level[16], type[32], size[32];
        const char *const folder = "/sys/devices/system/cpu/cpu0/cache/index%d/%s";
        snprintf(path, sizeof path, folder, i, "level");
        read_line(path, "", level, sizeof level);
        snprintf(path, sizeof path, folder, i, "type");
        read_line(path, "", type, sizeof type);
        snprintf(path, sizeof path, folder, i, "size");
        read_line(path, "", size, sizeof size);
        if (*size && strcmp(type, "Instruction") != 0) printf(" L%s %s", level, size);
    }
    printf("\n");
}

static void print_onednn(void) {
    amp_backend_info infos[8] = { AMP_BACKEND_INFO_INIT };
    size_t n = 0;
    const amp_status loaded = amp_backend_load("onednn"); /* what it came to stands in its info */
    (void)loaded;
    bench_must(amp_get_backends(infos, 8, &n), "amp_get_backends");
    for (size_t i = 0; i < n && i < 8; i++)
        if (!strcmp(infos[i].name, "onednn"))
            printf("oneDNN: %s\n", infos[i].state == AMP_BACKEND_READY ? infos[i].version : infos[i].text);
}

void bench_print_machine(void) {
    char text[256];
    read_line("/proc/cpuinfo", "model name", text, sizeof text);
    printf("processor: %s\n", *text ? text : "unknown");
    print_flags();
    print_caches();
    const uint32_t sets = amp_cpu_flags();
    printf("kernels:%s%s%s%s%s\n", sets & AMP_CPU_SSE2 ? " SSE2" : "", sets & AMP_CPU_AVX2 ? " AVX2" : "",
           sets & AMP_CPU_AVX512 ? " AVX-512" : "", sets & AMP_CPU_NEON ? " NEON" : "", sets ? "" : " scalar");
    print_onednn();
    const time_t now = time(NULL);
    strftime(text, sizeof text, "%Y-%m-%d", gmtime(&now));
    printf("date: %s\n", text);
    read_line("/proc/loadavg", "", text, sizeof text);
    printf("load: %s\n", text);
    const char *commit = getenv("AMP_BENCH_COMMIT");
    printf("libamp: %s%s%s, compiler: %s\n", amp_version(), commit && *commit ? ", " : "", commit ? commit : "",
           COMPILER);
}
