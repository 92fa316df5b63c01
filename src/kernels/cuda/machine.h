/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA's answers about this machine, as messages of libamp. Without CUDA headers, so that every case is tested
 * anywhere. */
#ifndef AMP_KERNELS_CUDA_MACHINE_H
#define AMP_KERNELS_CUDA_MACHINE_H

#include "amp_kernels.h"

enum cuda_answer { /* answer of the runtime about its devices */
    CUDA_ANSWERED,
    CUDA_SAW_NO_DEVICE,
    CUDA_DRIVER_TOO_OLD, /* its answer without a driver too */
    CUDA_FAILED,
};

struct cuda_machine {
    int driver, runtime; /* 1000 * major + 10 * minor, as CUDA counts (driver 0: there is none) */
    enum cuda_answer answer;
    int devices;
    const char *error; /* CUDA's own words, of CUDA_FAILED */
};

/* Returns AMP_OK with the version in text, or AMP_ERR_NO_DEVICE or AMP_ERR_BACKEND with the fault and the remedy. */
amp_status cuda_judge(const struct cuda_machine *machine, char *text, size_t size);

#endif
