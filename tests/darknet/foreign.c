/* SPDX-License-Identifier: Apache-2.0 */
/* cc -shared -fPIC: foreign.h. With -DMAIN the program that is linked to it, or opens it: foreign [LIBRARY]. */
#include "foreign.h"

#include <complex.h>
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#if !defined MAIN || defined LINKED
static int calls(const char *who) {
    long nine = 9, factor = 3;
    struct big b = { { 0 } };
    for (int i = 0; i < 12; i++) b.v[i] = i;
    printf("%s: gemm %g %ld\n", who, gemm_cpu(1, 2, 3, 4, 5, 6, 7, 8, 9, &nine), nine);
    printf("%s: im2col %s, col2im %ld\n", who, im2col_cpu(), col2im_cpu(1, 2, 3, 4, 5, 6, 7, 8));
    printf("%s: forward %ld, backward %g, update %d\n", who, forward_network(3, 0.5, 1.5, 4.0),
           (double)backward_network(2.5f), update_network("four"));
    const double _Complex z = load_weights_upto(1.0 + 2.0 * I);
    printf("%s: save %Lg, load %g %g\n", who, save_weights_upto(1.25L, 200), creal(z), cimag(z));
    b = free_layer(b, &factor);
    printf("%s: free %ld %ld\n", who, b.v[1], b.v[11]);
    return 0;
}
#endif

#ifdef MAIN

int main(int argc, char **argv) {
    int (*function)(const char *who);
    void *library, *found;
#ifdef LINKED
    calls("program");
#endif
    if (argc < 2) return 0;
    library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    found = library ? dlsym(library, "foreign") : NULL;
    if (!found) return fprintf(stderr, "%s\n", dlerror()), 1;
    memcpy(&function, &found, sizeof function);
    return function("opened");
}

#else

double gemm_cpu(double a, double b, double c, double d, double e, double f, double g, double h, double i, long *p) {
    *p += 1;
    return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i;
}

const char *im2col_cpu(void) { return "a text"; }

long col2im_cpu(long a, long b, long c, long d, long e, long f, long g, long h) {
    return a + 10 * (b + 10 * (c + 10 * (d + 10 * (e + 10 * (f + 10 * (g + 10 * h))))));
}

long forward_network(int n, ...) {
    va_list values;
    double sum = 0;
    va_start(values, n);
    for (int i = 0; i < n; i++) sum += va_arg(values, double);
    va_end(values);
    return (long)sum;
}

float backward_network(float x) { return -x; }

int update_network(const char *text) { return (int)strlen(text); }

long double save_weights_upto(long double x, unsigned char c) { return x * c; }

double _Complex load_weights_upto(double _Complex z) { return z * I; }

struct big free_layer(struct big b, const long *factor) {
    for (int i = 0; i < 12; i++) b.v[i] *= *factor;
    return b;
}

int foreign(const char *who) { return calls(who); }

#endif
