/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls with all arguments in registers need no libffi: a stub of libamp, one for each closure, stores the argument
 * registers as an image in its frame and continues in C, and another function makes a call with such an image. No
 * executable memory is made, so they work on systems that deny closures. x86-64 (System V) and arm64. Other
 * conventions, and signatures with structs by value or stack arguments, use libffi. Private to src/intercept.
 *
 * Also read by the assembler.
 */
#ifndef AMP_REGISTERS_H
#define AMP_REGISTERS_H

#if defined(__ELF__) && defined(__x86_64__) && !defined(__ILP32__)
#define AMP__GENERAL 6
#elif defined(__ELF__) && defined(__aarch64__) && !defined(__ILP32__) && !defined(__AARCH64EB__)
#define AMP__GENERAL 8
#else
#define AMP__GENERAL 0 /* no stubs */
#endif
#define AMP__VECTOR 8
#define AMP__STUBS 2048 /* number of stubs; later closures use libffi */

#ifndef __ASSEMBLER__

#include "schema/schema.h"

/* The low 8 bytes of each register. Result: of the first general and of the first vector register. */
struct amp__registers {
    uint64_t argument[AMP__GENERAL + AMP__VECTOR], result[2];
};

/* Where the arguments of a signature lie in the image. */
struct amp__register_map {
    bool fit;          /* all in registers, and the result too */
    uint8_t n_vector;  /* 0: vector registers need not be looked at */
    uint8_t result;    /* which of the two */
    uint8_t argument[AMP__GENERAL + AMP__VECTOR];
};

void amp__register_map_find(const struct amp__schema *schema, struct amp__register_map *map);

/* Calls with the image, which is not changed except for the result. n_vector 0: vector registers are not loaded. In
 * assembly. */
void amp__registers_call(struct amp__registers *registers, amp_fn function, uint32_t n_vector);

/* A stub that hands its calls to `closure` from now on, NULL if there is none left. Under the registry's mutex. */
struct amp__closure;
amp_fn amp__stub_take(struct amp__closure *closure);
/* Where stubs go, from assembly: closure.c. */
void amp__stub_call(struct amp__closure *closure, struct amp__registers *registers);

#endif

#endif
