/* SPDX-License-Identifier: Apache-2.0 */
/* The end of each assembly file, even an empty one: the marks that the compiler writes into all other objects. One
 * object without a mark removes it from the whole library. */
#ifdef __ELF__
#ifdef __CET__
#include <cet.h>
#endif
#ifdef __ARM_FEATURE_BTI_DEFAULT
	.section .note.gnu.property, "a", %note
	.p2align 3
	.word 4, 16, 5
	.asciz "GNU"
	.word 0xc0000000, 4, 1, 0
#endif
	.section .note.GNU-stack, "", %progbits
#endif
