/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors in 8, 4, 2 or 1 bits an element, for the saved activations of backward. CPU memory (amp_device.h has the same
 * functions for GPUs). Elements lie one behind the other in any order. Packed memory and elements must not overlap.
 *
 * Format. Elements form groups of AMP_PACK_GROUP in the order of memory, and missing elements of the last group have
 * code 0. The codes of all groups come first, 32 * bits bytes a group, then one 32-bit header a group: `least` in the
 * lower half and `step` in the upper half, as bfloat16. With 8, 4 and 2 bits element e of a group is row e / 16 of lane
 * e % 16. 32 / bits rows of a lane form one word, with the first row lowest, and the words of the 16 lanes lie side by
 * side.
 *
 *   8, 4, 2 bits   A code is (x - least) / step, rounded up or down at random, so that the mean of the unpacked values
 *                  is x. The largest code is 2^bits - 1. |value - x| is at most step, about the range of the group /
 *                  (2^bits - 1). Floats below the lowest bfloat16 count as that number.
 *   zeros          A group with a zero and without negative elements keeps the positions of its zeros: code 0 means 0,
 *                  code k > 0 means (k - 1) * step, or the least normal number of the type if that is more. So
 *                  (value > 0) == (x > 0), and ReLU masks are exact. The sign bit of `step` is set. -0 becomes +0.
 *   1 bit          Bit e % 32 of word e / 32 is 1 if the element is not 0, and the header is the largest element of
 *                  the group as FP32. Masks are exact: bools, and dropout masks {0, 1 / (1 - p)}.
 *   not finite     A group with an infinity or a NaN is unpacked as NaN. With 1 bit only its nonzero elements are.
 *
 * The random numbers are a function of seed, group and position in the group: the same bytes on every instruction set,
 * number of threads and device. docs/reference/numerics.md has the bounds. Source: Chen et al. 2021, ActNN,
 * arXiv:2104.14129.
 */
#ifndef AMP_PACK_H
#define AMP_PACK_H

#include "amp_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Elements in a group. */
#define AMP_PACK_GROUP 256

/* Returns the bytes of `size` packed elements. 0: no elements, bits other than 8, 4, 2, 1, or a size beyond the address
 * space. */
AMP_API uint64_t amp_pack_bytes(uint64_t size, int32_t bits);

/* Arguments of amp_pack. */
typedef struct amp_pack_args {
    uint32_t struct_size;
    int32_t bits;     /* bits an element: 8, 4, 2 or 1 */
    uint64_t seed;    /* seed of the random rounding, another one for each tensor and step (unused with 1 bit) */
    amp_span src;     /* fp32, fp16 or bf16 */
    void *packed;     /* receives amp_pack_bytes(src.size, bits) bytes, aligned to 4 */
    float *found_inf; /* set to 1.0f if an element is infinite or NaN, and otherwise left alone (may be NULL) */
    float *inexact;   /* with 1 bit: set to 1.0f if a nonzero element is not unpacked exactly, and otherwise left alone;
                         may be NULL */
    amp_context *context; /* context that counts the bytes in amp_memory.packed (may be NULL) */
} amp_pack_args;

#define AMP_PACK_ARGS_INIT \
    { (uint32_t)sizeof(amp_pack_args), 0, 0, { NULL, 0, 0, 0 }, NULL, NULL, NULL, NULL }

/* Packs a tensor. AMP_ERR_INVALID_ARGUMENT: args is NULL, bits is invalid, src is invalid as in amp_kernels.h or fp64,
 * packed is NULL or not aligned, context is not a live context. AMP_ERR_ABI_MISMATCH: a wrong struct_size. Nothing is
 * written on an error. */
AMP_API AMP_MUST_CHECK amp_status amp_pack(const amp_pack_args *args);

/* Arguments of amp_unpack. */
typedef struct amp_unpack_args {
    uint32_t struct_size;
    int32_t bits;       /* as given to amp_pack */
    amp_span dst; /* receives as many elements as were packed, as fp32, fp16 or bf16, whatever the packed type was */
    const void *packed; /* bytes from amp_pack */
} amp_unpack_args;

#define AMP_UNPACK_ARGS_INIT \
    { (uint32_t)sizeof(amp_unpack_args), 0, { NULL, 0, 0, 0 }, NULL }

/* Unpacks a tensor and rounds once from float to the type of dst. Finite values beyond the range of the type become its
 * largest number. Errors as amp_pack. */
AMP_API AMP_MUST_CHECK amp_status amp_unpack(const amp_unpack_args *args);

#ifdef __cplusplus
}
#endif

#endif /* AMP_PACK_H */
