/* SPDX-License-Identifier: Apache-2.0 */
/* See registers.h. A call may change x9 to x17 on its way to a function of this kind. */
#include "intercept/registers.h"

#if AMP__GENERAL && defined(__aarch64__)

#define RESULT (8 * (AMP__GENERAL + AMP__VECTOR))
#define FRAME (16 + RESULT + 16)

	.text
/* 16 bytes each: landing pad (bti c), address of whose it is, jump. */
	.p2align 4
	.globl amp__stubs
	.hidden amp__stubs
	.type amp__stubs, %function
amp__stubs:
	.cfi_startproc
	.set entry, 0
	.rept AMP__STUBS
	hint #34
	adrp x16, amp__stub_closures + entry
	add x16, x16, :lo12:amp__stub_closures + entry
	b amp__stub_enter
	.set entry, entry + 8
	.endr
	.cfi_endproc
	.size amp__stubs, . - amp__stubs

/* x16: the address of the closure's, which another core may have written just before it wrote the slot: nothing orders
 * the two reads but this look. The closure's first word says whether vector registers matter. */
	.p2align 4
	.type amp__stub_enter, %function
amp__stub_enter:
	.cfi_startproc
	stp x29, x30, [sp, #-FRAME]!
	.cfi_def_cfa_offset FRAME
	.cfi_offset x29, -FRAME
	.cfi_offset x30, -FRAME + 8
	mov x29, sp
	stp x0, x1, [sp, #16]
	stp x2, x3, [sp, #32]
	stp x4, x5, [sp, #48]
	stp x6, x7, [sp, #64]
1:	ldr x0, [x16]
	cbz x0, 3f
	ldr w9, [x0]
	cbz w9, 2f
	stp d0, d1, [sp, #80]
	stp d2, d3, [sp, #96]
	stp d4, d5, [sp, #112]
	stp d6, d7, [sp, #128]
2:	add x1, sp, #16
	bl amp__stub_call
	ldr x0, [sp, #16 + RESULT]
	ldr d0, [sp, #16 + RESULT + 8]
	ldp x29, x30, [sp], #FRAME
	.cfi_remember_state
	.cfi_def_cfa_offset 0
	.cfi_restore x29
	.cfi_restore x30
	ret
3:	.cfi_restore_state
	dmb ishld
	b 1b
	.cfi_endproc
	.size amp__stub_enter, . - amp__stub_enter

/* void amp__registers_call(struct amp__registers *registers, amp_fn function, uint32_t n_vector) */
	.p2align 4
	.globl amp__registers_call
	.hidden amp__registers_call
	.type amp__registers_call, %function
amp__registers_call:
	.cfi_startproc
	hint #34 /* a far call comes by way of the linker's own indirect branch */
	stp x29, x30, [sp, #-32]!
	.cfi_def_cfa_offset 32
	.cfi_offset x29, -32
	.cfi_offset x30, -24
	mov x29, sp
	str x19, [sp, #16]
	.cfi_offset x19, -16
	mov x19, x0
	mov x16, x1
	cbz w2, 1f
	ldp d0, d1, [x19, #64]
	ldp d2, d3, [x19, #80]
	ldp d4, d5, [x19, #96]
	ldp d6, d7, [x19, #112]
1:	ldp x0, x1, [x19]
	ldp x2, x3, [x19, #16]
	ldp x4, x5, [x19, #32]
	ldp x6, x7, [x19, #48]
	blr x16
	str x0, [x19, #RESULT]
	str d0, [x19, #RESULT + 8]
	ldr x19, [sp, #16]
	ldp x29, x30, [sp], #32
	.cfi_def_cfa_offset 0
	.cfi_restore x19
	.cfi_restore x29
	.cfi_restore x30
	ret
	.cfi_endproc
	.size amp__registers_call, . - amp__registers_call

#endif

#include "intercept/marks.h"
