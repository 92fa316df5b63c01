/* SPDX-License-Identifier: Apache-2.0 */
/* Common parts of the functions for devices. */
#ifndef AMP_KERNELS_DEVICE_H
#define AMP_KERNELS_DEVICE_H

#include "common/common.h"
#include "kernels/served.h"

/* Arguments of a product as they were given, and checked. */
struct amp__checked {
    amp_matmul_args given, args;
    amp_device_epilogue given_epilogue, epilogue; /* given NULL: all zeros */
    const struct amp__backend *backend;
};
enum { AMP__CHECKED = 64 }; /* a power of two */

struct amp_device_list {
    const struct amp__backend *backend;
    void *list; /* the backend's */
    amp_device device;
    struct amp__checked *checked; /* AMP__CHECKED of them (NULL: no product yet) */
};

/* Runs a call with checked lists. Checks list, stream and factors. `function`: public name for messages. */
amp_status amp__device_run(amp_device_list *list, const struct amp__list_call *call, const char *function);

/* amp_device_pack without its context. */
amp_status amp__device_pack(amp_device_list *list, void *stream, const amp_pack_args *args);

#endif
