/* SPDX-License-Identifier: Apache-2.0 */
/* Suites of what libamp_cuda.so is made of and needs no device: one per file. */
#ifndef AMP_TESTS_CUDA_SUPPORT_H
#define AMP_TESTS_CUDA_SUPPORT_H

#include <check.h>

Suite *suite_blas(void);
Suite *suite_machine(void);
Suite *suite_plan(void);
Suite *suite_lists_cuda(void);
Suite *suite_steps(void);

#endif
