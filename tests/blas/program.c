/* SPDX-License-Identifier: Apache-2.0 */
/*
 * program WHAT CALLER...: what test_blas.py asks for, over libraries that it names, each opened and closed in turn.
 * Prints one line for each.
 *
 *     all      every order, transposition and leading dimension: the largest error, and a sum of the results' bits
 *     threads  the same product on four threads, 50 times each: the number of different results
 *     fork     a product before, in and after a child: 1 if all are equal
 *     wrong    arguments that a BLAS refuses, and empty products: the sum of the bits that are left
 *     solve    a product inside the BLAS itself
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

typedef void multiply_fn(int cblas, int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                         int lda, const float *b, int ldb, float beta, float *c, int ldc);
typedef void solve_fn(int n, const float *a, const float *b, float *c);

enum { EDGE = 144, ROW = EDGE + 5 };
static float a[ROW * ROW], b[ROW * ROW];
static multiply_fn *multiply;

static void fill(float *c) {
    for (int i = 0; i < ROW * ROW; i++) c[i] = (float)(i % 7);
}

static uint64_t bits_of(const float *c) {
    uint64_t sum = 0;
    for (int i = 0; i < ROW * ROW; i++) {
        uint32_t bits;
        memcpy(&bits, c + i, sizeof bits);
        sum = sum * UINT64_C(6364136223846793005) + bits;
    }
    return sum;
}

/* The difference of one product from the exact one. */
static double error_of(const float *c, int rows, int ta, int tb, int m, int n, int k, float alpha, float beta) {
    double worst = 0;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int p = 0; p < k; p++)
                sum += (double)a[rows == ta ? p * ROW + i : i * ROW + p] *
                    (double)b[rows == tb ? j * ROW + p : p * ROW + j];
            const int at = rows ? i * ROW + j : j * ROW + i;
            const double error = (double)c[at] - ((double)alpha * sum + (double)beta * (at % 7));
            if (error > worst || -error > worst) worst = error > 0 ? error : -error;
        }
    return worst;
}

static void all(void) {
    static float c[ROW * ROW];
    double worst = 0;
    uint64_t bits = 0;
    for (int how = 0; how < 16; how++) {
        const int cblas = how & 1, rows = cblas && how & 2, ta = !!(how & 4), tb = !!(how & 8);
        for (int size = 0; size < 3; size++) {
            const int m = EDGE - 7 * size, n = EDGE - 3 * size, k = EDGE - size;
            const float alpha = size == 1 ? 0.5F : 1, beta = size == 2 ? 2 : 0;
            fill(c);
            multiply(cblas, rows ? 101 : 102, ta, tb, m, n, k, alpha, a, ROW, b, ROW, beta, c, ROW);
            const double error = error_of(c, rows, ta, tb, m, n, k, alpha, beta);
            if (error > worst) worst = error;
            bits = bits * 31 + bits_of(c);
        }
    }
    printf("error %.3g bits %016llx\n", worst, (unsigned long long)bits);
}

static uint64_t one(void) {
    float *c = calloc(ROW * ROW, sizeof *c);
    multiply(0, 102, 0, 0, EDGE, EDGE, EDGE, 1, a, ROW, b, ROW, 0, c, ROW);
    const uint64_t bits = bits_of(c);
    free(c);
    return bits;
}

static void *many(void *different) {
    const uint64_t first = one();
    for (int i = 0; i < 50; i++) *(int *)different += one() != first;
    return NULL;
}

static void threads(void) {
    pthread_t ids[4];
    int different[4] = { 0 }, sum = 0;
    for (int i = 0; i < 4; i++)
        if (pthread_create(&ids[i], NULL, many, &different[i])) abort();
    for (int i = 0; i < 4; i++) (void)pthread_join(ids[i], NULL), sum += different[i];
    printf("different %d bits %016llx\n", sum, (unsigned long long)one());
}

static void forked(void) {
    int status;
    const uint64_t before = one();
    const pid_t child = fork();
    if (child == 0) exit(one() == before ? 0 : 1);
    if (waitpid(child, &status, 0) != child) abort();
    printf("equal %d bits %016llx\n", status == 0 && one() == before, (unsigned long long)before);
}

static void wrong(void) {
    static float c[ROW * ROW];
    fill(c);
    multiply(0, 102, 0, 0, 0, EDGE, EDGE, 1, a, ROW, b, ROW, 0, c, ROW); /* no row: nothing is written */
    multiply(1, 101, 0, 0, 4, 4, 0, 1, a, ROW, b, ROW, 0, c, ROW);       /* a sum of nothing */
    multiply(1, 101, 1, 0, -1, 4, 4, 1, a, ROW, b, ROW, 0, c, ROW);
    printf("bits %016llx\n", (unsigned long long)bits_of(c));
}

static void solved(void *library) {
    static float c[ROW * ROW];
    solve_fn *solve = (solve_fn *)dlsym(library, "solve");
    if (!solve) abort();
    solve(EDGE, a, b, c);
    printf("bits %016llx\n", (unsigned long long)bits_of(c));
}

static int run(const char *what, const char *name) {
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 2;
    multiply = (multiply_fn *)dlsym(library, "multiply");
    if (!strcmp(what, "all")) all();
    else if (!strcmp(what, "threads")) threads();
    else if (!strcmp(what, "fork")) forked();
    else if (!strcmp(what, "wrong")) wrong();
    else if (!strcmp(what, "solve")) solved(library);
    (void)dlclose(library);
    return 0;
}

int main(int argc, char **argv) {
    for (int i = 0; i < ROW * ROW; i++) a[i] = (float)(i % 251) / 251 - 0.5F, b[i] = (float)(i % 241) / 241 - 0.5F;
    for (int i = 2; i < argc; i++)
        if (run(argv[1], argv[i])) return 2;
    if (getauxval(AT_SECURE)) puts("secure");
    return 0;
}
