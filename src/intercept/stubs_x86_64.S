/* SPDX-License-Identifier: Apache-2.0 */
/* See registers.h. A call may change rax, r10 and r11 on its way to a function of this kind. */
#include "intercept/registers.h"

#if AMP__GENERAL && defined(__x86_64__)

#define RESULT (8 * (AMP__GENERAL + AMP__VECTOR))

	.text
/* 16 bytes each: landing pad 4, load 7, jump 5. */
	.p2align 4
	.globl amp__stubs
	.hidden amp__stubs
	.type amp__stubs, @function
amp__stubs:
	.cfi_startproc
	.set entry, 0
	.rept AMP__STUBS
	.p2align 4
	endbr64
	movq amp__stub_closures + entry(%rip), %r11
	jmp amp__stub_enter
	.set entry, entry + 8
	.endr
	.cfi_endproc
	.size amp__stubs, . - amp__stubs

/* r11: the closure, whose first word says whether vector registers matter. */
	.p2align 4
	.type amp__stub_enter, @function
amp__stub_enter:
	.cfi_startproc
	pushq %rbp
	.cfi_def_cfa_offset 16
	.cfi_offset %rbp, -16
	movq %rsp, %rbp
	.cfi_def_cfa_register %rbp
	subq $(RESULT + 16), %rsp
	movq %rdi, (%rsp)
	movq %rsi, 8(%rsp)
	movq %rdx, 16(%rsp)
	movq %rcx, 24(%rsp)
	movq %r8, 32(%rsp)
	movq %r9, 40(%rsp)
	cmpl $0, (%r11)
	je 1f
	movsd %xmm0, 48(%rsp)
	movsd %xmm1, 56(%rsp)
	movsd %xmm2, 64(%rsp)
	movsd %xmm3, 72(%rsp)
	movsd %xmm4, 80(%rsp)
	movsd %xmm5, 88(%rsp)
	movsd %xmm6, 96(%rsp)
	movsd %xmm7, 104(%rsp)
1:	movq %r11, %rdi
	movq %rsp, %rsi
	call amp__stub_call
	movq RESULT(%rsp), %rax
	movsd RESULT + 8(%rsp), %xmm0
	leave
	.cfi_def_cfa %rsp, 8
	.cfi_restore %rbp
	ret
	.cfi_endproc
	.size amp__stub_enter, . - amp__stub_enter

/* void amp__registers_call(struct amp__registers *registers, amp_fn function, uint32_t n_vector) */
	.p2align 4
	.globl amp__registers_call
	.hidden amp__registers_call
	.type amp__registers_call, @function
amp__registers_call:
	.cfi_startproc
	endbr64
	pushq %rbx
	.cfi_def_cfa_offset 16
	.cfi_offset %rbx, -16
	movq %rdi, %rbx
	movq %rsi, %r11
	movl %edx, %eax /* what functions with a variable number of arguments look at */
	testl %edx, %edx
	je 1f
	movsd 48(%rbx), %xmm0
	movsd 56(%rbx), %xmm1
	movsd 64(%rbx), %xmm2
	movsd 72(%rbx), %xmm3
	movsd 80(%rbx), %xmm4
	movsd 88(%rbx), %xmm5
	movsd 96(%rbx), %xmm6
	movsd 104(%rbx), %xmm7
1:	movq (%rbx), %rdi
	movq 8(%rbx), %rsi
	movq 16(%rbx), %rdx
	movq 24(%rbx), %rcx
	movq 32(%rbx), %r8
	movq 40(%rbx), %r9
	call *%r11
	movq %rax, RESULT(%rbx)
	movsd %xmm0, RESULT + 8(%rbx)
	popq %rbx
	.cfi_def_cfa_offset 8
	.cfi_restore %rbx
	ret
	.cfi_endproc
	.size amp__registers_call, . - amp__registers_call

#endif

#include "intercept/marks.h"
