/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a context in the memory of devices. */
#ifndef AMP_CONTEXT_DEVICES_H
#define AMP_CONTEXT_DEVICES_H

#include "kernels/place.h"

struct amp__devices {
    struct amp__place **places; /* devices with parameters */
    size_t n_places;
    const struct amp__backend *cuda;    /* for the owner of an address; NULL: all memory is the CPU's */
    struct amp__device_scaler *scalers; /* by loss, on places[0]; NULL: the scalers are on the host */
    float *skips;                       /* by optimizer, on places[0]; NULL: the scalers are on the host */
};

#endif
