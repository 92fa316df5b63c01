/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/machine.h"

#include <stdio.h>

enum { DRIVERS = 2 };

/* The first Linux driver of a toolkit's major version, which all its minor versions run on (NVIDIA's minor version
 * compatibility). */
static const struct {
    int major;
    const char *release;
} drivers[DRIVERS] = { { 12, "525.60" }, { 13, "580" } };

static const char *driver_for(int runtime) {
    for (int i = 0; i < DRIVERS; i++)
        if (drivers[i].major == runtime / 1000) return drivers[i].release;
    return NULL;
}

static int minor(int version) { return version % 1000 / 10; }

static void say_old(const struct cuda_machine *m, char *text, size_t size) {
    const char *release = driver_for(m->runtime);
    snprintf(text, size,
             "the NVIDIA driver is too old: it speaks CUDA %d.%d, and libamp_cuda.so was built with %d.%d. Install a "
             "driver for CUDA %d%s%s, or a libamp_cuda.so that was built with CUDA %d.",
             m->driver / 1000, minor(m->driver), m->runtime / 1000, minor(m->runtime), m->runtime / 1000,
             release ? ", release " : "", release ? release : "", m->driver / 1000);
}

static void say_no_driver(const struct cuda_machine *m, char *text, size_t size) {
    const char *release = driver_for(m->runtime);
    snprintf(text, size,
             "loads, no device: there is no NVIDIA driver (libcuda.so.1). On a machine with an NVIDIA GPU install one "
             "for CUDA %d%s%s%s.",
             m->runtime / 1000, release ? ", release " : "", release ? release : "", release ? " or newer" : "");
}

amp_status cuda_judge(const struct cuda_machine *m, char *text, size_t size) {
    if (m->driver == 0 && m->answer != CUDA_ANSWERED) {
        say_no_driver(m, text, size);
        return AMP_ERR_NO_DEVICE;
    }
    if (m->answer == CUDA_DRIVER_TOO_OLD) {
        say_old(m, text, size);
        return AMP_ERR_BACKEND;
    }
    if (m->answer == CUDA_FAILED) {
        snprintf(text, size, "CUDA cannot be started: %s. nvidia-smi says whether the driver and the GPU are well.",
                 m->error);
        return AMP_ERR_BACKEND;
    }
    if (m->answer == CUDA_SAW_NO_DEVICE || m->devices < 1) {
        snprintf(text, size,
                 "loads, no device: the driver sees no GPU. Look at nvidia-smi, at CUDA_VISIBLE_DEVICES, and in a "
                 "container at its access to the GPU.");
        return AMP_ERR_NO_DEVICE;
    }
    snprintf(text, size, "CUDA %d.%d, driver for %d.%d, %d device%s", m->runtime / 1000, minor(m->runtime),
             m->driver / 1000, minor(m->driver), m->devices, m->devices == 1 ? "" : "s");
    return AMP_OK;
}
