/* SPDX-License-Identifier: Apache-2.0 */
/* Common parts of the functions for devices. */
#ifndef AMP_KERNELS_DEVICE_H
#define AMP_KERNELS_DEVICE_H

#include "common/common.h"
#include "kernels/served.h"

struct amp_device_list {
    const struct amp__backend *backend;
    void *list; /* the backend's */
    amp_device device;
};

/* Runs a call with checked lists. Checks list, stream and factors. `function`: public name for messages. */
amp_status amp__device_run(amp_device_list *list, const struct amp__list_call *call, const char *function);

/* amp_device_pack without its context. */
amp_status amp__device_pack(amp_device_list *list, void *stream, const amp_pack_args *args);

#endif
