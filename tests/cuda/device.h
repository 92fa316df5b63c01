/* SPDX-License-Identifier: Apache-2.0 */
/* A device for the tests of amp_device.h: a GPU by its driver, or the fake one. */
#ifndef AMP_TESTS_CUDA_DEVICE_H
#define AMP_TESTS_CUDA_DEVICE_H

#include "asserts.h"
#include "fake.h"
#include "fake_blas.h"

#include "../kernels/support.h"

extern struct device {
    void *stream;
    void *second_stream; /* of another device; NULL: there is none */
    struct fake *fake;  /* NULL: a GPU */
    const struct fake_tools *tools; /* with it */
    struct fake_blas *blas; /* of the fake device */
} device;

/* A list that closes at the end of its block. */
static inline void list_end(amp_device_list **list) { amp_device_list_close(*list); }
#define OWN_LIST __attribute__((cleanup(list_end))) amp_device_list

/* NULL, or why there is none. */
const char *device_start(int real);

/* Memory that device and host see, zeroed, until the process ends. */
void *device_alloc(size_t bytes);
/* Work becomes a graph instead of being run, and the graph runs; one at a time. */
void device_capture_begin(void);
void device_capture_end(void);
void device_replay(void);
/* The stream's work is done. */
void device_wait(void);
/* Fixtures: the fake device does work late, in its streams' order, until at_once; nothing may be on the
 * default stream. */
void device_lazily(void);
void device_at_once(void);

/* A program's main. argv: "fake"; "emulated" or "gpu", which leave out the files of `fake_alone`, whose tests look at
 * the fake device and not at what kernels do; "alone": those; and perhaps a reason to skip. */
int device_main(int argc, char **argv, const char *const *fake_alone);

#endif
