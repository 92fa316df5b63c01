/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a bracket on the device: the rules of scaler/rules.h, by one thread. */
#ifndef AMP_KERNELS_CUDA_SCALER_H
#define AMP_KERNELS_CUDA_SCALER_H

#include "scaler/rules.h"

#include <cuda_runtime_api.h>

enum { CUDA_SKIPS = 32 };

/* Pointers are to device memory. */
struct cuda_scaler {
    struct amp__device_scaler *scaler;
    struct amp__scaler_settings settings;
    bool decides, found_elsewhere;
    bool again; /* this bracket has ended: only the skips */
    float *skips;
    uint32_t n, which[CUDA_SKIPS]; /* skips[which[i]] becomes 1 where the bracket skips */
};

AMP__RULE void cuda_scaler_run(const struct cuda_scaler *s) {
    const amp_action action = s->again
        ? amp__rule_decided(s->scaler)
        : amp__rule_end(s->scaler, &s->settings, s->decides, s->found_elsewhere);
    for (uint32_t i = 0; i < s->n && action == AMP_SKIP; i++) s->skips[s->which[i]] = 1.0f;
}

#ifdef __cplusplus
extern "C" {
#endif

cudaError_t cuda_launch_scaler(const struct cuda_scaler *scaler, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif
