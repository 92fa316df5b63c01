/* SPDX-License-Identifier: Apache-2.0 */
/* A library that has nothing to do with darknet, and functions of its names: other arguments, other results. */
#ifndef FOREIGN_H
#define FOREIGN_H

struct big {
    long v[12];
};

double gemm_cpu(double a, double b, double c, double d, double e, double f, double g, double h, double i, long *p);
const char *im2col_cpu(void);
long col2im_cpu(long a, long b, long c, long d, long e, long f, long g, long h);
long forward_network(int n, ...); /* of n doubles */
float backward_network(float x);
int update_network(const char *text);
long double save_weights_upto(long double x, unsigned char c);
double _Complex load_weights_upto(double _Complex z);
struct big free_layer(struct big b, const long *factor);

/* Calls all of them, as a library calls its own, and prints what comes back. */
int foreign(const char *who);

#endif
