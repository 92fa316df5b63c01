/* SPDX-License-Identifier: Apache-2.0 */
/* A libcuda.so.1 for CUDA 12.4: what the runtime asks before it uses a driver. */
int cuDriverGetVersion(int *version);
int cuDriverGetVersion(int *version) { return *version = 12040, 0; }
