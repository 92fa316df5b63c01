/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors in 8, 4, 2 or 1 bits an element: what a backward pass waits for, kept small. CPU memory (amp_device.h has the
 * same for GPUs); any layout that is elements one behind the other. Packed memory and elements do not overlap.
 *
 * Format. Groups of AMP_PACK_GROUP elements in the order of memory; the codes of what the last one lacks are 0. The
 * codes of all groups come first, 32 * bits bytes a group, then one 32-bit header a group: the lower half is `least`,
 * the upper one `step`, as bfloat16. With 8, 4 and 2 bits element e of a group is row e / 16 of lane e % 16. 32 / bits
 * rows of a lane are one word, the first row lowest; the 16 lanes' words lie beside each other.
 *
 *   8, 4, 2 bits   A code is (x - least) / step, rounded up or down at random: the mean of what comes back is x;
 *                  the largest code is 2^bits - 1. |value - x| is at most step, about the group's range / (2^bits - 1)
 *                  (a float below bfloat16's lowest counts as that).
 *   zeros          A group without a negative element and with a zero keeps which of its elements are 0: code 0 is them
 *                  alone, code k above is (k - 1) * step, or the type's least normal number if that is more. So
 *                  (value > 0) == (x > 0): masks of ReLU are exact. `step` has its sign bit set; -0 comes back as +0.
 *   1 bit          Which elements are not 0, and the group's largest: bit e % 32 of word e / 32, the header an FP32.
 *                  Masks come back exactly: bools, and dropout's {0, 1 / (1 - p)}.
 *   not finite     A group with an infinity or a NaN comes back as NaN; with 1 bit, its elements that are not 0.
 *
 * The random numbers are a function of seed, group and place in the group: the same bytes on every instruction set, any
 * number of threads and every device. docs/reference/numerics.md has the bounds. Source: Chen et al. 2021, ActNN,
 * arXiv:2104.14129.
 */
#ifndef AMP_PACK_H
#define AMP_PACK_H

#include "amp_kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Elements of a group. */
#define AMP_PACK_GROUP 256

/* Bytes of `size` elements packed; 0 for 0 elements, for bits other than 8, 4, 2, 1, and for sizes no memory has. */
AMP_API uint64_t amp_pack_bytes(uint64_t size, int32_t bits);

/* What amp_pack does. */
typedef struct amp_pack_args {
    uint32_t struct_size;
    int32_t bits;     /* of an element: 8, 4, 2 or 1 */
    uint64_t seed;    /* of the rounding: another for each tensor and step; 1 bit is not rounded */
    amp_span src;     /* fp32, fp16 or bf16 */
    void *packed;     /* amp_pack_bytes(src.size, bits) bytes, aligned to 4; written */
    float *found_inf; /* may be NULL; set to 1.0f if an element is infinite or NaN, else left as it is */
    float *inexact;   /* may be NULL; 1 bit: set to 1.0f if an element that is not 0 does not come back as it was, else
                         left as it is; not touched with more bits */
    amp_context *context; /* may be NULL; whose amp_memory.packed counts it */
} amp_pack_args;

#define AMP_PACK_ARGS_INIT \
    { (uint32_t)sizeof(amp_pack_args), 0, 0, { NULL, 0, 0, 0 }, NULL, NULL, NULL, NULL }

/* packed = src in fewer bits. AMP_ERR_INVALID_ARGUMENT, with nothing written: args NULL, bits, src as in
 * amp_kernels.h or of fp64, packed NULL with elements or not aligned, context that is none. AMP_ERR_ABI_MISMATCH:
 * struct_size. */
AMP_API AMP_MUST_CHECK amp_status amp_pack(const amp_pack_args *args);

/* What amp_unpack does. */
typedef struct amp_unpack_args {
    uint32_t struct_size;
    int32_t bits;       /* as packed */
    amp_span dst;       /* fp32, fp16 or bf16, whatever was packed; as many elements */
    const void *packed; /* of amp_pack */
} amp_unpack_args;

#define AMP_UNPACK_ARGS_INIT \
    { (uint32_t)sizeof(amp_unpack_args), 0, { NULL, 0, 0, 0 }, NULL }

/* dst = what was packed, rounded once from float to dst's type; finite values beyond the type are its largest number.
 * Errors as amp_pack's. */
AMP_API AMP_MUST_CHECK amp_status amp_unpack(const amp_unpack_args *args);

#ifdef __cplusplus
}
#endif

#endif /* AMP_PACK_H */
