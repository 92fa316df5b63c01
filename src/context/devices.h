/* SPDX-License-Identifier: Apache-2.0 */
/* The part of a context in the memory of devices. */
#ifndef AMP_CONTEXT_DEVICES_H
#define AMP_CONTEXT_DEVICES_H

#include "context/params.h"
#include "context/policy.h"
#include "kernels/place.h"

struct amp__devices {
    struct amp__place **places; /* devices with parameters */
    size_t n_places;
    bool complete;                      /* amp_initialize has placed its parameters: no device is added */
    const struct amp__backend *cuda;    /* for the owner of an address (NULL: all memory is the CPU's) */
    struct amp__device_scaler *scalers; /* by loss, on places[0] (NULL: the scalers are on the host) */
    float *skips;                       /* by optimizer, on places[0] (NULL: the scalers are on the host) */
};

/* ---- places.c: parameters in the memory of devices ---- */

/* Says where the parameter is, once its device is known; a place is opened for the first one there. */
amp_status amp__place_param(struct amp__devices *devices, const struct amp__policy *policy, struct amp__param *param);
void amp__places_end(struct amp__devices *devices);
static inline amp_status amp__places_flush(const struct amp__devices *devices) {
    return devices->n_places ? amp__places_launch(devices->places, devices->n_places) : AMP_OK;
}
/* The place of a device. NULL: it had no parameter at amp_initialize. */
struct amp__place *amp__place_on(const struct amp__devices *devices, amp_device device);
/* Finds the device of an address: { 2, id } for a device with memory that the CPU cannot touch, else { 1, 0 }. */
amp_status amp__places_where(const struct amp__devices *devices, const void *address, amp_device *where);
/* Counts the parameters with weights that became infinite, once after re-typing, which takes a copy of them. */
amp_status amp__places_count_unfit(const struct amp__devices *devices, const struct amp__params *params);
static inline void amp__places_drop(const struct amp__devices *devices) {
    amp__places_forget(devices->places, devices->n_places);
}

#endif
