/* SPDX-License-Identifier: Apache-2.0 */
/* In the place of the others where there is no CUDA toolkit. */
#include "../internal.h"
#include "minitape_cuda.h"

int mt_cuda_open(void)
{
	mti_fail("this program was built without CUDA: build it again where "
	         "there is a CUDA toolkit, 12.4 or later (nvcc, "
	         "libcudart_static.a and the headers of cuBLASLt)");
	return -1;
}
