/* SPDX-License-Identifier: Apache-2.0 */
/* Which backend works in a device's memory. */
#ifndef AMP_KERNELS_SERVED_H
#define AMP_KERNELS_SERVED_H

#include "kernels/backend.h"

enum { AMP__DEVICE_SERVED = 12 }; /* AMP_DEVICE_SERVED */

/* Memory that the CPU's code does not touch. */
static inline bool amp__is_device(amp_device device) {
    return device.type == AMP__DEVICE_CUDA || device.type == AMP__DEVICE_SERVED;
}

/* Before its number, in messages. */
static inline const char *amp__device_words(amp_device device) {
    return device.type == AMP__DEVICE_SERVED ? "served device" : "CUDA device";
}

static inline bool amp__same_device(amp_device a, amp_device b) { return a.type == b.type && a.id == b.id; }

/* Of a device that amp__is_device names. NULL: it cannot be had, *status and the last error say why. */
const struct amp__backend *amp__backend_for(amp_device device, amp_status *status);

#endif
