/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trainer with an op table, to compare the adapted one with: put behind the trainer's prototypes, it makes every
 * call go through `table`. Functions are defined in parts of the trainer that do not see this.
 */
#ifndef TABLE_H
#define TABLE_H

struct network;

extern struct table {
    void (*linear_forward)(float *, const float *, const float *, const float *, int, int, int);
    void (*linear_backward)(float *, float *, float *, const float *, const float *, const float *, int, int, int);
    void (*batchnorm_forward)(float *, float *, float *, const float *, const float *, const float *, int, int);
    void (*batchnorm_backward)(float *, float *, float *, const float *, const float *, const float *, const float *, int,
                               int);
    void (*relu_forward)(float *, int);
    void (*relu_backward)(float *, const float *, int);
    void (*crossentropy_forward)(float *, float *, const float *, const int *, int, int);
    void (*crossentropy_backward)(float *, const float *, const float *, const int *, int, int);
    void (*network_build)(struct network *);
    float (*network_forward)(struct network *, const float *, const int *);
    void (*network_zero_grad)(struct network *);
    void (*network_backward)(struct network *);
    void (*network_update)(struct network *, float, float);
    void (*network_free)(struct network *);
} table;

#endif
