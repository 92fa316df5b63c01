/* SPDX-License-Identifier: Apache-2.0 */
/* amp_matmul by products of oneDNN's: see amp__backend.matmul. */
#ifndef AMP_ONEDNN_MATMUL_H
#define AMP_ONEDNN_MATMUL_H

#include "kernels/backend.h"

void onednn_matmul_init(const struct amp__backend_host *host);
const char *onednn_matmul_unit(amp_dtype type); /* instructions in use ("": operands are converted) */
amp_status onednn_matmul(const amp_matmul_args *args, int32_t threads);
amp_status onednn_matmul_explain(const amp_matmul_args *args, int32_t threads, char *text, size_t size);

#endif
