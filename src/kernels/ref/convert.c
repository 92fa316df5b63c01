/* SPDX-License-Identifier: Apache-2.0 */
/* The public conversions of single values. */
#include "kernels/ref/convert.h"

#include "amp_kernels.h"

AMP_API uint16_t amp_float_to_half(float value) { return amp__f32_to_f16(value); }
AMP_API float amp_half_to_float(uint16_t bits) { return amp__f16_to_f32(bits); }
AMP_API uint16_t amp_float_to_bfloat16(float value) { return amp__f32_to_bf16(value); }
AMP_API float amp_bfloat16_to_float(uint16_t bits) { return amp__bf16_to_f32(bits); }
