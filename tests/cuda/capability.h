/* SPDX-License-Identifier: Apache-2.0 */
/* The fake device for tests that have another `struct fake`. */
#ifndef AMP_TESTS_CUDA_CAPABILITY_H
#define AMP_TESTS_CUDA_CAPABILITY_H

/* Its compute capability, 10 * major + minor; 0: as it was. */
void device_set_capability(int capability);

#endif
