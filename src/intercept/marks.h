/* SPDX-License-Identifier: Apache-2.0 */
/* The end of each file in assembly, an empty one too: what the compiler writes into all others. One object without such
 * a mark takes it from the whole library. */
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
