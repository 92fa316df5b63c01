/* SPDX-License-Identifier: Apache-2.0 */
/* A product and a cast on the fake device, for test_cublas.py: blas_probe PLUGIN_FOLDER [LIBRARY TO HAVE LOADED
 * BEFORE]. Prints name=value. */
#include "amp_device.h"
#include "fake_blas.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static amp_status multiply(amp_device_list *list, void *stream, float *d) {
    const float a[4] = { 1, 2, 3, 4 }, b[4] = { 5, 6, 7, 8 };
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    g.m = g.n = g.k = 2;
    g.a_dtype = g.b_dtype = g.d_dtype = AMP_FLOAT32;
    g.a = a, g.b = b, g.d = d;
    return amp_device_matmul(list, stream, &g, NULL);
}

int main(int argc, char **argv) {
    amp_device_list *list = NULL;
    int stream;
    float d[4] = { 0 }, one = 1.0f, two = 0.0f;
    const amp_span from = { &one, 1, AMP_FLOAT32, 0 }, to = { &two, 1, AMP_FLOAT32, 0 };
    void *before = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    struct fake_blas *blas = before ? dlsym(before, FAKE_BLAS_SYMBOL_NAME) : NULL;
    if (argc > 1 && !before) return fprintf(stderr, "%s\n", dlerror()), 2;
    if (amp_device_list_open((amp_device){ 2, 0 }, &list) != AMP_OK)
        return fprintf(stderr, "%s\n", amp_last_error()), 3;
    const amp_status status = multiply(list, &stream, d);
    printf("product=%d\nerror=%s\n", (int)status, status == AMP_OK ? "" : amp_last_error());
    printf("again=%d\n", (int)multiply(list, &stream, d));
    printf("d=%g %g %g %g\n", (double)d[0], (double)d[1], (double)d[2], (double)d[3]);
    printf("cast=%d\n", (int)amp_device_cast(list, &stream, &to, &from, 1));
    if (blas) printf("before.products=%d\n", blas->products);
    amp_device_list_close(list);
    return 0;
}
