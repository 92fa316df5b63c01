/* SPDX-License-Identifier: Apache-2.0 */
/* Every answer that CUDA gives about a machine becomes a status of its own, with what to install. */
#include "kernels/cuda/machine.h"
#include "test.h"

#include <string.h>

struct answer {
    struct cuda_machine machine;
    amp_status status;
    const char *words[4];
};

static const struct answer answers[] = {
    { { 13000, 13000, CUDA_ANSWERED, 1, NULL }, AMP_OK, { "CUDA 13.0, driver for 13.0, 1 device" } },
    { { 12080, 12040, CUDA_ANSWERED, 8, NULL }, AMP_OK, { "CUDA 12.4, driver for 12.8, 8 devices" } },
    { { 0, 13000, CUDA_DRIVER_TOO_OLD, 0, NULL },
      AMP_ERR_NO_DEVICE,
      { "loads, no device", "no NVIDIA driver", "CUDA 13, release 580 or newer" } },
    { { 0, 12040, CUDA_SAW_NO_DEVICE, 0, NULL }, AMP_ERR_NO_DEVICE, { "no NVIDIA driver", "CUDA 12, release 525" } },
    { { 0, 14020, CUDA_DRIVER_TOO_OLD, 0, NULL }, AMP_ERR_NO_DEVICE, { "install one for CUDA 14." } },
    { { 12020, 13000, CUDA_DRIVER_TOO_OLD, 0, NULL },
      AMP_ERR_BACKEND,
      { "too old: it speaks CUDA 12.2", "built with 13.0", "CUDA 13, release 580", "built with CUDA 12." } },
    { { 11040, 12080, CUDA_DRIVER_TOO_OLD, 0, NULL }, AMP_ERR_BACKEND, { "speaks CUDA 11.4", "release 525.60" } },
    { { 13000, 13000, CUDA_SAW_NO_DEVICE, 0, NULL },
      AMP_ERR_NO_DEVICE,
      { "loads, no device", "nvidia-smi", "CUDA_VISIBLE_DEVICES" } },
    { { 13000, 13000, CUDA_ANSWERED, 0, NULL }, AMP_ERR_NO_DEVICE, { "loads, no device", "sees no GPU" } },
    { { 13000, 13000, CUDA_FAILED, 0, "unknown error" },
      AMP_ERR_BACKEND,
      { "cannot be started: unknown error", "nvidia-smi" } },
};

TEST_TIMES(test_answer, sizeof answers / sizeof answers[0]) {
    const struct answer *a = &answers[_i];
    char text[400] = "";
    ck_assert_int_eq(cuda_judge(&a->machine, text, sizeof text), a->status);
    for (int i = 0; i < 4 && a->words[i]; i++)
        ck_assert_msg(strstr(text, a->words[i]) != NULL, "'%s' does not say '%s'", text, a->words[i]);
    ck_assert_msg(strlen(text) < 350, "cut: %s", text);
}
