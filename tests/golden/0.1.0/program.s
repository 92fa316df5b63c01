# SPDX-License-Identifier: Apache-2.0
# program.c of e9012bd6692a
	.symver amp_bfloat16_to_float, amp_bfloat16_to_float@AMP_0.1
	.symver amp_check, amp_check@AMP_0.1
	.symver amp_config_resolve, amp_config_resolve@AMP_0.1
	.symver amp_float_to_bfloat16, amp_float_to_bfloat16@AMP_0.1
	.symver amp_float_to_half, amp_float_to_half@AMP_0.1
	.symver amp_fused_step, amp_fused_step@AMP_0.1
	.symver amp_fused_zero_grad, amp_fused_zero_grad@AMP_0.1
	.symver amp_get_record, amp_get_record@AMP_0.1
	.symver amp_half_to_float, amp_half_to_float@AMP_0.1
	.symver amp_initialize_many, amp_initialize_many@AMP_0.1
	.symver amp_last_error, amp_last_error@AMP_0.1
	.symver amp_master_params, amp_master_params@AMP_0.1
	.symver amp_observe, amp_observe@AMP_0.1
	.symver amp_optim_defaults, amp_optim_defaults@AMP_0.1
	.symver amp_scale_loss_begin_many, amp_scale_loss_begin_many@AMP_0.1
	.symver amp_scale_loss_end, amp_scale_loss_end@AMP_0.1
	.symver amp_shutdown, amp_shutdown@AMP_0.1
	.symver amp_state_load, amp_state_load@AMP_0.1
	.symver amp_state_save, amp_state_save@AMP_0.1
	.symver amp_state_save_memory, amp_state_save_memory@AMP_0.1
	.symver amp_status_name, amp_status_name@AMP_0.1
	.symver amp_step_begin, amp_step_begin@AMP_0.1
	.symver amp_step_end, amp_step_end@AMP_0.1
	.file	"program.c"
	.text
	.type	hook_view, @function
hook_view:
	movq	(%rsi), %rax
	movl	$1, 8(%rdx)
	movl	$1, 16(%rdx)
	movq	%rax, (%rdx)
	leaq	32(%rsi), %rax
	movq	%rax, 24(%rdx)
	leaq	40(%rsi), %rax
	movq	%rax, 32(%rdx)
	movl	24(%rsi), %eax
	cmpl	$3, %eax
	je	.L3
	decl	%eax
	movb	$2, %cl
	sete	%al
	movzbl	%al, %eax
	leaq	2(%rax,%rax), %rax
	jmp	.L2
.L3:
	movb	$4, %cl
	movl	$2, %eax
.L2:
	sall	$3, %eax
	movb	%cl, 20(%rdx)
	movb	%al, 21(%rdx)
	xorl	%eax, %eax
	movw	$1, 22(%rdx)
	ret
	.size	hook_view, .-hook_view
	.type	hook_dtype, @function
hook_dtype:
	movl	24(%rsi), %eax
	ret
	.size	hook_dtype, .-hook_dtype
	.type	hook_id, @function
hook_id:
	movq	56(%rsi), %rax
	ret
	.size	hook_id, .-hook_id
	.type	hook_version, @function
hook_version:
	movq	64(%rsi), %rax
	ret
	.size	hook_version, .-hook_version
	.type	hook_grad, @function
hook_grad:
	movq	48(%rsi), %rax
	movq	%rax, (%rdx)
	xorl	%eax, %eax
	ret
	.size	hook_grad, .-hook_grad
	.type	hook_set_grad, @function
hook_set_grad:
	movq	%rdx, 48(%rsi)
	xorl	%eax, %eax
	ret
	.size	hook_set_grad, .-hook_set_grad
	.type	hook_swap, @function
hook_swap:
	movups	(%rdx), %xmm2
	movups	(%rsi), %xmm1
	xorl	%eax, %eax
	movups	16(%rsi), %xmm0
	movups	%xmm2, (%rsi)
	movups	16(%rdx), %xmm3
	movups	%xmm3, 16(%rsi)
	movups	%xmm1, (%rdx)
	movups	%xmm0, 16(%rdx)
	incq	64(%rsi)
	ret
	.size	hook_swap, .-hook_swap
	.type	hook_event, @function
hook_event:
	movslq	4(%rsi), %rax
	leal	-1(%rax), %edx
	cmpl	$5, %edx
	ja	.L12
	incl	(%rdi,%rax,4)
.L12:
	ret
	.size	hook_event, .-hook_event
	.type	describe, @function
describe:
	movq	%rdi, %r8
	movq	%rcx, %r9
	xorl	%eax, %eax
	movl	$23, %ecx
	leaq	4(%rdi), %rdi
	movl	$96, (%r8)
	rep stosl
	movq	%rsi, 16(%r8)
	movq	%r8, %rax
	movq	%rdx, 32(%r8)
	movq	%r9, 48(%r8)
	ret
	.size	describe, .-describe
	.type	new_block, @function
new_block:
	pushq	%r12
	xorl	%eax, %eax
	movl	%edx, %r12d
	pushq	%rbp
	movq	%rsi, %rbp
	pushq	%rbx
	movq	%rdi, %rbx
	movl	$1, %edi
	subq	$32, %rsp
	movl	%eax, 28(%rsp)
	call	calloc@PLT
	movq	%rbp, 16(%rsp)
	movq	%rax, 8(%rsp)
	movq	%rax, (%rsp)
	movl	%r12d, 24(%rsp)
	testq	%rax, %rax
	jne	.L16
	movl	$2, %edi
	call	exit@PLT
.L16:
	movups	(%rsp), %xmm0
	movups	16(%rsp), %xmm1
	movq	%rbx, %rax
	movups	%xmm0, (%rbx)
	movups	%xmm1, 16(%rbx)
	addq	$32, %rsp
	popq	%rbx
	popq	%rbp
	popq	%r12
	ret
	.size	new_block, .-new_block
	.type	new_tensor, @function
new_tensor:
	pushq	%r12
	movl	%edi, %r12d
	movl	$1, %edi
	pushq	%rbp
	movq	%rsi, %rbp
	movl	$72, %esi
	pushq	%rbx
	subq	$32, %rsp
	call	calloc@PLT
	testq	%rax, %rax
	jne	.L19
	movl	$2, %edi
	call	exit@PLT
.L19:
	xorl	%esi, %esi
	cmpl	$1, %r12d
	movq	%rsp, %rdi
	movl	%r12d, %edx
	sete	%sil
	movq	%rax, %rbx
	leaq	2(%rsi,%rsi), %rsi
	imulq	%rbp, %rsi
	call	new_block
	movups	(%rsp), %xmm0
	movq	made.3(%rip), %rax
	movups	%xmm0, (%rbx)
	movups	16(%rsp), %xmm1
	incq	%rax
	movq	%rax, 56(%rbx)
	movq	%rbp, 32(%rbx)
	movq	$1, 40(%rbx)
	movq	$1, 64(%rbx)
	movups	%xmm1, 16(%rbx)
	movq	%rax, made.3(%rip)
	addq	$32, %rsp
	movq	%rbx, %rax
	popq	%rbx
	popq	%rbp
	popq	%r12
	ret
	.size	new_tensor, .-new_tensor
	.type	hook_alloc, @function
hook_alloc:
	pushq	%rbx
	movq	%r8, %rbx
	subq	$32, %rsp
	movl	24(%r8), %edx
	movq	%rsp, %rdi
	call	new_block
	movups	(%rsp), %xmm0
	xorl	%eax, %eax
	movups	%xmm0, (%rbx)
	movups	16(%rsp), %xmm1
	movups	%xmm1, 16(%rbx)
	addq	$32, %rsp
	popq	%rbx
	ret
	.size	hook_alloc, .-hook_alloc
	.type	hook_free, @function
hook_free:
	movq	8(%rsi), %rdi
	jmp	free@PLT
	.size	hook_free, .-hook_free
	.type	get, @function
get:
	pushq	%rdx
	movl	24(%rdi), %edx
	movq	(%rdi), %rax
	cmpl	$2, %edx
	jne	.L27
	movzwl	(%rax,%rsi,2), %edi
	call	amp_half_to_float@PLT
	jmp	.L31
.L27:
	cmpl	$3, %edx
	jne	.L29
	movzwl	(%rax,%rsi,2), %edi
	call	amp_bfloat16_to_float@PLT
.L31:
	cvtss2sd	%xmm0, %xmm0
	jmp	.L26
.L29:
	cvtss2sd	(%rax,%rsi,4), %xmm0
.L26:
	popq	%rax
	ret
	.size	get, .-get
	.type	set, @function
set:
	movl	24(%rdi), %edx
	incq	64(%rdi)
	cvtsd2ss	%xmm0, %xmm0
	pushq	%rbx
	movq	(%rdi), %rax
	cmpl	$2, %edx
	jne	.L33
	addq	%rsi, %rsi
	leaq	(%rax,%rsi), %rbx
	call	amp_float_to_half@PLT
	jmp	.L37
.L33:
	cmpl	$3, %edx
	jne	.L35
	addq	%rsi, %rsi
	leaq	(%rax,%rsi), %rbx
	call	amp_float_to_bfloat16@PLT
.L37:
	movw	%ax, (%rbx)
	jmp	.L32
.L35:
	movss	%xmm0, (%rax,%rsi,4)
.L32:
	popq	%rbx
	ret
	.size	set, .-set
	.type	op_mul, @function
op_mul:
	pushq	%r13
	movq	%rsi, %r13
	pushq	%r12
	pushq	%rbp
	movq	%rdi, %rbp
	pushq	%rbx
	xorl	%ebx, %ebx
	subq	$24, %rsp
	movq	32(%rdi), %rsi
	movl	24(%rdi), %edi
	call	new_tensor
	movq	%rax, %r12
.L39:
	cmpq	%rbx, 32(%rbp)
	jle	.L42
	movq	%rbx, %rsi
	movq	%rbp, %rdi
	call	get
	movq	%rbx, %rsi
	movq	%r13, %rdi
	andl	$3, %esi
	movsd	%xmm0, 8(%rsp)
	call	get
	mulsd	8(%rsp), %xmm0
	movq	%rbx, %rsi
	movq	%r12, %rdi
	incq	%rbx
	call	set
	jmp	.L39
.L42:
	addq	$24, %rsp
	movq	%r12, %rax
	popq	%rbx
	popq	%rbp
	popq	%r12
	popq	%r13
	ret
	.size	op_mul, .-op_mul
	.type	op_linear, @function
op_linear:
	pushq	%r14
	movq	%rdx, %r14
	pushq	%r13
	movq	%rsi, %r13
	pushq	%r12
	pushq	%rbp
	movq	%rdi, %rbp
	pushq	%rbx
	xorl	%ebx, %ebx
	subq	$16, %rsp
	movq	32(%rdi), %rsi
	movl	24(%rdi), %edi
	call	new_tensor
	movq	%rax, %r12
.L44:
	cmpq	%rbx, 32(%rbp)
	jle	.L47
	movq	%rbx, %rsi
	movq	%rbp, %rdi
	call	get
	movq	%rbx, %rsi
	movq	%r13, %rdi
	movsd	%xmm0, 8(%rsp)
	call	get
	mulsd	8(%rsp), %xmm0
	movq	%rbx, %rsi
	movq	%r14, %rdi
	andl	$3, %esi
	movsd	%xmm0, 8(%rsp)
	call	get
	addsd	8(%rsp), %xmm0
	movq	%rbx, %rsi
	movq	%r12, %rdi
	incq	%rbx
	call	set
	jmp	.L44
.L47:
	addq	$16, %rsp
	movq	%r12, %rax
	popq	%rbx
	popq	%rbp
	popq	%r12
	popq	%r13
	popq	%r14
	ret
	.size	op_linear, .-op_linear
	.type	hook_scale, @function
hook_scale:
	pushq	%r14
	movd	%xmm0, %r14d
	pushq	%r13
	movq	%rdx, %r13
	pushq	%r12
	pushq	%rbp
	xorl	%ebp, %ebp
	pushq	%rbx
	movq	%rsi, %rbx
	movq	32(%rsi), %rsi
	movl	24(%rbx), %edi
	call	new_tensor
	movq	%rax, %r12
.L49:
	cmpq	%rbp, 32(%rbx)
	jle	.L52
	movq	%rbp, %rsi
	movq	%rbx, %rdi
	call	get
	movd	%r14d, %xmm2
	movq	%rbp, %rsi
	movq	%r12, %rdi
	movaps	%xmm0, %xmm1
	cvtss2sd	%xmm2, %xmm0
	incq	%rbp
	mulsd	%xmm1, %xmm0
	call	set
	jmp	.L49
.L52:
	movq	%r12, 0(%r13)
	xorl	%eax, %eax
	popq	%rbx
	popq	%rbp
	popq	%r12
	popq	%r13
	popq	%r14
	ret
	.size	hook_scale, .-hook_scale
	.type	hook_cast, @function
hook_cast:
	pushq	%r13
	movq	%rcx, %r13
	pushq	%r12
	pushq	%rbp
	movq	%rsi, %rbp
	pushq	%rbx
	xorl	%ebx, %ebx
	pushq	%rdi
	movq	32(%rsi), %rsi
	movl	%edx, %edi
	call	new_tensor
	movq	%rax, %r12
.L54:
	cmpq	%rbx, 32(%rbp)
	jle	.L57
	movq	%rbx, %rsi
	movq	%rbp, %rdi
	call	get
	movq	%rbx, %rsi
	movq	%r12, %rdi
	incq	%rbx
	call	set
	jmp	.L54
.L57:
	movq	%r12, 0(%r13)
	xorl	%eax, %eax
	popq	%rdx
	popq	%rbx
	popq	%rbp
	popq	%r12
	popq	%r13
	ret
	.size	hook_cast, .-hook_cast
	.type	delete_tensor, @function
delete_tensor:
	testq	%rdi, %rdi
	je	.L58
	pushq	%rbx
	movq	%rdi, %rbx
	movq	48(%rdi), %rdi
	call	delete_tensor
	movq	8(%rbx), %rdi
	call	free@PLT
	movq	%rbx, %rdi
	popq	%rbx
	jmp	free@PLT
.L58:
	ret
	.size	delete_tensor, .-delete_tensor
	.type	net_forward, @function
net_forward:
	pushq	%rbp
	movq	%rsi, %rbp
	pushq	%rbx
	movq	%rdi, %rbx
	pushq	%r8
	movq	24(%rdi), %rdi
	call	delete_tensor
	movq	8(%rbx), %rdx
	movq	(%rbx), %rsi
	movq	%rbp, %rdi
	call	*32(%rbx)
	movq	%rax, 24(%rbx)
	testq	%rax, %rax
	je	.L63
	movq	16(%rbx), %rsi
	movq	%rax, %rdi
	movq	40(%rbx), %rax
	popq	%rcx
	popq	%rbx
	popq	%rbp
	jmp	*%rax
.L63:
	popq	%rdx
	xorl	%eax, %eax
	popq	%rbx
	popq	%rbp
	ret
	.size	net_forward, .-net_forward
	.type	hook_release, @function
hook_release:
	movq	%rsi, %rdi
	jmp	delete_tensor
	.size	hook_release, .-hook_release
	.section	.rodata.str1.1,"aMS",@progbits,1
.LC0:
	.string	"%s: %s: %s\n"
	.text
	.type	check, @function
check:
	testl	%esi, %esi
	je	.L69
	pushq	%rbp
	movq	%rdi, %rbp
	pushq	%rbx
	movl	%esi, %ebx
	subq	$24, %rsp
	call	amp_last_error@PLT
	movl	%ebx, %edi
	movq	%rax, 8(%rsp)
	call	amp_status_name@PLT
	movq	stderr(%rip), %rdi
	movq	8(%rsp), %r8
	leaq	.LC0(%rip), %rsi
	movq	%rax, %rcx
	movq	0(%rbp), %rax
	movq	(%rax), %rdx
	xorl	%eax, %eax
	call	fprintf@PLT
	movl	$1, %edi
	call	exit@PLT
.L69:
	ret
	.size	check, .-check
	.section	.rodata.str1.1
.LC4:
	.string	"linear(Tensor x, Tensor weight, Tensor bias) -> Tensor"
.LC5:
	.string	"linear"
.LC6:
	.string	"mul(Tensor x, Tensor gamma) -> Tensor"
.LC7:
	.string	"mul"
.LC8:
	.string	"forward(pointer self, Tensor x) -> Tensor"
.LC9:
	.string	"forward"
.LC10:
	.string	"weight"
.LC11:
	.string	"bias"
.LC12:
	.string	"gamma"
	.text
	.type	start, @function
start:
	pushq	%r15
	pushq	%r14
	pushq	%r13
	pushq	%r12
	pushq	%rbp
	movq	%rsi, %rbp
	movl	$1000, %esi
	pushq	%rbx
	movq	%rdi, %rbx
	movl	$1, %edi
	subq	$360, %rsp
	call	calloc@PLT
	leaq	100(%rsp), %rdi
	movl	$31, %ecx
	movl	$128, 96(%rsp)
	movl	$128, 224(%rsp)
	movq	%rax, %r13
	xorl	%eax, %eax
	rep stosl
	leaq	228(%rsp), %rdi
	movl	$31, %ecx
	rep stosl
	testq	%r13, %r13
	jne	.L74
	movl	$2, %edi
	call	exit@PLT
.L74:
	leaq	784(%r13), %rax
	movq	32(%rbx), %r14
	movq	%rbx, 0(%r13)
	movq	%rax, 8(%rsp)
	movq	%rax, 32(%rsp)
	leaq	880(%r13), %rax
	movq	%rax, 16(%rsp)
	movq	%rax, 40(%rsp)
	testq	%r14, %r14
	jne	.L75
	movl	$4, %r14d
.L75:
	leaq	8(%r13), %rax
	movl	$14, %ecx
	leaq	8(%r13), %rdi
	xorl	%r12d, %r12d
	movq	%rax, (%rsp)
	xorl	%eax, %eax
	rep stosl
	leaq	op_linear(%rip), %rax
	movq	%rax, 40(%r13)
	leaq	op_mul(%rip), %rax
	movq	%rax, 48(%r13)
	leaq	net_forward(%rip), %rax
	movq	%rax, 56(%r13)
.L79:
	testq	%r12, %r12
	movl	$4, %esi
	movl	$1, %edi
	movl	%r12d, %r15d
	cmove	%r14, %rsi
	call	new_tensor
	movq	%rax, 8(%r13,%r12,8)
	xorl	%eax, %eax
.L77:
	movq	8(%r13,%r12,8), %rdi
	cmpq	32(%rdi), %rax
	jge	.L104
	cvtsi2sdl	%r15d, %xmm2
	mulsd	.LC2(%rip), %xmm2
	movq	%rax, %rsi
	movq	%rax, 24(%rsp)
	imulq	$29, %rax, %rcx
	movsd	.LC3(%rip), %xmm1
	andl	$31, %ecx
	subsd	%xmm2, %xmm1
	subq	$16, %rcx
	cvtsi2sdq	%rcx, %xmm0
	divsd	.LC1(%rip), %xmm0
	addsd	%xmm1, %xmm0
	call	set
	movq	24(%rsp), %rax
	incq	%rax
	jmp	.L77
.L104:
	incq	%r12
	cmpq	$3, %r12
	jne	.L79
	xorl	%eax, %eax
	leaq	96(%r13), %rdi
	leaq	64(%r13), %rdx
	movl	$44, %ecx
	rep stosl
	movl	$268435467, %eax
	movq	%rdx, 104(%r13)
	leaq	272(%r13), %r14
	salq	$4, %rax
	leaq	40(%r13), %rcx
	movq	%r14, %rdi
	movq	%rax, 96(%r13)
	leaq	hook_view(%rip), %rax
	leaq	.LC4(%rip), %rdx
	movq	%rax, 112(%r13)
	leaq	hook_dtype(%rip), %rax
	leaq	.LC5(%rip), %rsi
	movq	%rax, 120(%r13)
	leaq	hook_cast(%rip), %rax
	leaq	464(%r13), %r11
	movq	%rax, 128(%r13)
	leaq	hook_release(%rip), %rax
	movq	%rax, 136(%r13)
	leaq	hook_id(%rip), %rax
	movq	%rax, 144(%r13)
	leaq	hook_version(%rip), %rax
	movq	%rax, 152(%r13)
	leaq	hook_grad(%rip), %rax
	movq	%rax, 168(%r13)
	leaq	hook_set_grad(%rip), %rax
	movq	%rax, 176(%r13)
	leaq	hook_swap(%rip), %rax
	movq	%rax, 184(%r13)
	leaq	hook_scale(%rip), %rax
	movq	%rax, 192(%r13)
	leaq	hook_alloc(%rip), %rax
	movq	%rax, 200(%r13)
	leaq	hook_free(%rip), %rax
	movq	%rax, 208(%r13)
	leaq	hook_event(%rip), %rax
	movq	%rax, 216(%r13)
	call	describe
	leaq	368(%r13), %rdi
	leaq	48(%r13), %rcx
	leaq	.LC6(%rip), %rdx
	leaq	.LC7(%rip), %rsi
	call	describe
	leaq	56(%r13), %rcx
	leaq	.LC8(%rip), %rdx
	movq	%r11, %rdi
	leaq	.LC9(%rip), %rsi
	call	describe
	leaq	564(%r13), %rdx
	xorl	%eax, %eax
	movl	$17, %ecx
	movq	%rdx, %rdi
	leaq	.LC12(%rip), %rsi
	rep stosl
	leaq	.LC10(%rip), %rcx
	movq	8(%rsp), %rdi
	movq	%rsi, 624(%r13)
	movq	%rcx, 576(%r13)
	leaq	.LC11(%rip), %rcx
	movq	(%rsp), %rsi
	movq	8(%r13), %rdx
	movq	%rcx, 600(%r13)
	movl	$536870915, %ecx
	movl	$24, 560(%r13)
	salq	$3, %rcx
	movq	%rdx, 632(%r13)
	movq	%rdx, 568(%r13)
	movq	16(%r13), %rdx
	movq	%rcx, 608(%r13)
	movl	$24, %ecx
	movq	%rdx, 640(%r13)
	movq	%rdx, 592(%r13)
	movq	24(%r13), %rdx
	movl	$24, 584(%r13)
	movq	%rdx, 648(%r13)
	movq	%rdx, 616(%r13)
	leaq	96(%r13), %rdx
	rep stosl
	movq	16(%rsp), %rdi
	leaq	560(%r13), %rcx
	movq	%rdx, 792(%r13)
	movq	%rcx, 824(%r13)
	movl	$26, %ecx
	movl	$96, 784(%r13)
	movq	%rsi, 800(%r13)
	movq	%r14, 808(%r13)
	movq	$2, 816(%r13)
	movq	$3, 832(%r13)
	movq	%r11, 840(%r13)
	rep stosl
	movq	%rdx, 888(%r13)
	leaq	632(%r13), %rdx
	movq	%rdx, 904(%r13)
	movl	$104, 880(%r13)
	movq	$3, 912(%r13)
	movq	0(%r13), %rdx
	movl	16(%rdx), %edx
	testl	%edx, %edx
	je	.L80
	leaq	656(%r13), %rdi
	movl	$22, %ecx
	leaq	656(%r13), %r12
	rep stosl
	xorl	%ecx, %ecx
	xorl	%eax, %eax
	movl	%edx, %edi
	movq	%rcx, 752(%r13)
	movq	%r12, %rsi
	movq	%rcx, 760(%r13)
	movq	%rcx, 768(%r13)
	movq	%rcx, 776(%r13)
	movl	$88, 656(%r13)
	movl	$40, 744(%r13)
	movl	%eax, 748(%r13)
	call	amp_optim_defaults@PLT
	movq	%r13, %rdi
	movl	%eax, %esi
	call	check
	movq	0(%r13), %rax
	movq	.LC14(%rip), %rcx
	movl	20(%rax), %edx
	orl	%edx, 664(%r13)
	movq	.LC13(%rip), %rdx
	movq	%rcx, 680(%r13)
	movq	%rdx, 672(%r13)
	movl	16(%rax), %edx
	cmpl	$1, %edx
	je	.L88
	cmpl	$7, %edx
	jne	.L81
.L88:
	movq	.LC15(%rip), %rsi
	movq	%rsi, 688(%r13)
.L81:
	movl	24(%rax), %eax
	movq	%r12, 752(%r13)
	movq	$1, 760(%r13)
	movl	%eax, 748(%r13)
	leaq	744(%r13), %rax
	movq	$7, 776(%r13)
	movq	%rax, 976(%r13)
.L80:
	movl	8(%rbx), %eax
	leaq	96(%rsp), %r8
	leaq	224(%rsp), %rsi
	movq	%rbp, 216(%rsp)
	movq	%r8, %rdi
	movq	%r8, (%rsp)
	movl	%eax, 100(%rsp)
	movl	12(%rbx), %eax
	movl	%eax, 116(%rsp)
	movq	40(%rbx), %rax
	movq	%rax, 136(%rsp)
	xorl	%eax, %eax
	cmpl	$2, 48(%rbx)
	sete	%al
	addl	%eax, %eax
	movl	%eax, 212(%rsp)
	call	amp_config_resolve@PLT
	movq	%r13, %rdi
	movl	%eax, %esi
	call	check
	xorl	%eax, %eax
	movl	$0, %edx
	movq	(%rsp), %r8
	movss	284(%rsp), %xmm0
	ucomiss	.LC16(%rip), %xmm0
	setnp	%al
	cmovne	%edx, %eax
	movl	%eax, 992(%r13)
	jp	.L83
	jne	.L83
	movl	$0x43800000, 160(%rsp)
	movl	$3, 144(%rsp)
.L83:
	leaq	40(%rsp), %rdx
	leaq	32(%rsp), %rdi
	movl	$1, %ecx
	movl	$1, %esi
	leaq	984(%r13), %r9
	call	amp_initialize_many@PLT
	movq	%r13, %rdi
	movl	%eax, %esi
	call	check
	cmpl	$2, 48(%rbx)
	jne	.L73
	testq	%rbp, %rbp
	je	.L73
	xorl	%eax, %eax
	leaq	52(%rsp), %rdi
	movl	$11, %ecx
	movl	$48, 48(%rsp)
	rep stosl
	movq	984(%r13), %rdi
	leaq	48(%rsp), %rsi
	leaq	names.4(%rip), %rax
	movl	$1000, 56(%rsp)
	movl	$3, 60(%rsp)
	movq	%rax, 72(%rsp)
	movl	$2, 68(%rsp)
	call	amp_observe@PLT
	movq	%r13, %rdi
	movl	%eax, %esi
	call	check
.L73:
	addq	$360, %rsp
	movq	%r13, %rax
	popq	%rbx
	popq	%rbp
	popq	%r12
	popq	%r13
	popq	%r14
	popq	%r15
	ret
	.size	start, .-start
	.type	train, @function
train:
	pushq	%r15
	pushq	%r14
	pushq	%r13
	pushq	%r12
	pushq	%rbp
	pushq	%rbx
	movq	%rdi, %rbx
	subq	$248, %rsp
	addl	996(%rdi), %esi
	movl	%esi, 68(%rsp)
.L106:
	movl	996(%rbx), %ebp
	movl	68(%rsp), %eax
	cmpl	%eax, %ebp
	jge	.L134
	movq	8(%rbx), %rax
	movl	$1, %edi
	movq	32(%rax), %r13
	movq	%r13, %rsi
	call	new_tensor
	movl	$1, %edi
	movl	$1, %esi
	movq	%rax, 8(%rsp)
	call	new_tensor
	leaq	164(%rsp), %rdi
	movl	$19, %ecx
	movl	$80, 160(%rsp)
	movq	%rax, 32(%rsp)
	xorl	%eax, %eax
	cmpl	$0, 992(%rbx)
	rep stosl
	leaq	880(%rbx), %rax
	movq	%rax, 24(%rsp)
	movq	%rax, 88(%rsp)
	movq	.LC19(%rip), %rax
	movq	%rax, %xmm1
	je	.L107
	andl	$-2147483645, %ebp
	cmpl	$2, %ebp
	jne	.L107
	movsd	.LC18(%rip), %xmm1
.L107:
	xorl	%r14d, %r14d
	movl	$64, %ebp
.L108:
	cmpq	%r13, %r14
	jge	.L135
	imull	$11, 996(%rbx), %eax
	movq	8(%rsp), %rdi
	movq	%r14, %rsi
	movsd	%xmm1, 16(%rsp)
	imulq	$37, %r14, %rdx
	incq	%r14
	cltq
	addq	%rdx, %rax
	cqto
	idivq	%rbp
	subq	$32, %rdx
	cvtsi2sdq	%rdx, %xmm0
	divsd	%xmm1, %xmm0
	call	set
	movsd	16(%rsp), %xmm1
	jmp	.L108
.L135:
	movq	8(%rsp), %rsi
	leaq	8(%rbx), %rdi
	call	*56(%rbx)
	movq	%rax, 16(%rsp)
	testq	%rax, %rax
	jne	.L110
	movq	984(%rbx), %rdi
	call	amp_check@PLT
	movq	%rbx, %rdi
	movl	%eax, %esi
	call	check
.L110:
	xorl	%ebp, %ebp
	xorps	%xmm1, %xmm1
.L111:
	cmpq	%r13, %rbp
	jge	.L136
	movq	16(%rsp), %rdi
	movq	%rbp, %rsi
	movsd	%xmm1, 48(%rsp)
	call	get
	movq	16(%rsp), %rdi
	movq	%rbp, %rsi
	incq	%rbp
	movsd	%xmm0, 40(%rsp)
	call	get
	mulsd	40(%rsp), %xmm0
	movsd	48(%rsp), %xmm1
	addsd	%xmm0, %xmm1
	jmp	.L111
.L136:
	movsd	.LC21(%rip), %xmm0
	cvtsi2sdq	%r13, %xmm2
	movq	32(%rsp), %rdi
	xorl	%esi, %esi
	movl	$1, %ebp
	mulsd	%xmm1, %xmm0
	movsd	%xmm2, 40(%rsp)
	divsd	%xmm2, %xmm0
	mulsd	.LC22(%rip), %xmm0
	call	set
	movq	(%rbx), %rcx
	movl	996(%rbx), %eax
	xorl	%edx, %edx
	leaq	88(%rsp), %rsi
	movq	984(%rbx), %rdi
	divl	44(%rcx)
	pushq	%r8
	leaq	168(%rsp), %r14
	xorl	%r8d, %r8d
	pushq	%r14
	movq	48(%rsp), %r9
	movl	%edx, %ecx
	movl	$1, %edx
	call	amp_scale_loss_begin_many@PLT
	movq	%rbx, %rdi
	movl	%eax, %esi
	call	check
	movsd	56(%rsp), %xmm2
	leaq	112(%rsp), %rdi
	movq	192(%rsp), %rax
	movl	$8, %ecx
	cvtss2sd	(%rax), %xmm0
	mulsd	.LC21(%rip), %xmm0
	xorl	%eax, %eax
	rep stosl
	leaq	144(%rsp), %rdi
	movl	$8, %ecx
	rep stosl
	divsd	%xmm2, %xmm0
	movsd	%xmm0, 72(%rsp)
	popq	%r9
	popq	%r10
	leaq	96(%rsp), %r15
	leaq	128(%rsp), %r13
.L114:
	movq	(%rbx,%rbp,8), %r12
	cmpq	$0, 48(%r12)
	jne	.L113
	movq	32(%r12), %rsi
	movl	24(%r12), %edi
	call	new_tensor
	movq	%rax, 48(%r12)
.L113:
	incq	%rbp
	cmpq	$4, %rbp
	jne	.L114
	xorl	%ebp, %ebp
.L115:
	movq	8(%rsp), %rax
	cmpq	32(%rax), %rbp
	jge	.L137
	movq	16(%rsp), %rdi
	movq	%rbp, %rsi
	movq	%rbp, %r12
	andl	$3, %r12d
	call	get
	mulsd	56(%rsp), %xmm0
	movq	24(%rbx), %rdi
	movq	%r12, %rsi
	movsd	%xmm0, 40(%rsp)
	call	get
	mulsd	40(%rsp), %xmm0
	movq	8(%rbx), %rdx
	movq	%rbp, %rsi
	movq	48(%rdx), %rdi
	movsd	%xmm0, 48(%rsp)
	call	get
	movq	8(%rsp), %rdi
	movq	%rbp, %rsi
	movsd	%xmm0, 72(%rsp)
	call	get
	movq	8(%rbx), %rdx
	mulsd	48(%rsp), %xmm0
	movq	%rbp, %rsi
	addsd	72(%rsp), %xmm0
	movq	48(%rdx), %rdi
	call	set
	movsd	48(%rsp), %xmm0
	movq	32(%rbx), %rdi
	movq	%rbp, %rsi
	addsd	96(%rsp,%r12,8), %xmm0
	incq	%rbp
	movsd	%xmm0, 96(%rsp,%r12,8)
	call	get
	mulsd	40(%rsp), %xmm0
	addsd	128(%rsp,%r12,8), %xmm0
	movsd	%xmm0, 128(%rsp,%r12,8)
	jmp	.L115
.L137:
	xorl	%ebp, %ebp
.L117:
	movq	16(%rbx), %rax
	movq	%rbp, %rsi
	movq	48(%rax), %rdi
	call	get
	movq	16(%rbx), %rax
	addsd	(%r15,%rbp,8), %xmm0
	movq	%rbp, %rsi
	movq	48(%rax), %rdi
	call	set
	movq	24(%rbx), %rax
	movq	%rbp, %rsi
	movq	48(%rax), %rdi
	call	get
	movq	24(%rbx), %rax
	addsd	0(%r13,%rbp,8), %xmm0
	movq	%rbp, %rsi
	incq	%rbp
	movq	48(%rax), %rdi
	call	set
	cmpq	$4, %rbp
	jne	.L117
	movq	%r14, %rdi
	call	amp_scale_loss_end@PLT
	movq	%rbx, %rdi
	movl	%eax, %esi
	call	check
	movq	(%rbx), %rax
	cmpl	$0, 16(%rax)
	jne	.L118
	xorl	%eax, %eax
	movl	$7, %ecx
	movq	%r13, %rsi
	movl	$1, %r15d
	leaq	132(%rsp), %rdi
	rep stosl
	movq	24(%rsp), %rdi
	movl	$32, 128(%rsp)
	call	amp_step_begin@PLT
	movq	%rbx, %rdi
	movl	%eax, %esi
	call	check
.L119:
	cmpl	$0, 132(%rsp)
	jne	.L124
	movq	(%rbx,%r15,8), %r13
	xorl	%ebp, %ebp
.L120:
	cmpq	32(%r13), %rbp
	jge	.L138
	movq	%rbp, %rsi
	movq	%r13, %rdi
	call	get
	movq	48(%r13), %rdi
	movq	%rbp, %rsi
	movq	%xmm0, %r14
	call	get
	movsd	.LC23(%rip), %xmm1
	movq	%rbp, %rsi
	movq	%r13, %rdi
	incq	%rbp
	mulsd	%xmm0, %xmm1
	movq	%r14, %xmm0
	subsd	%xmm1, %xmm0
	call	set
	jmp	.L120
.L138:
	incq	%r15
	cmpq	$4, %r15
	jne	.L119
.L124:
	movq	24(%rsp), %rdi
	movl	$1, %ebp
	call	amp_step_end@PLT
	movq	%rbx, %rdi
	movl	%eax, %esi
	call	check
.L122:
	movq	(%rbx,%rbp,8), %rax
	movq	48(%rax), %rdi
	call	delete_tensor
	movq	(%rbx,%rbp,8), %rax
	xorl	%edx, %edx
	incq	%rbp
	movq	%rdx, 48(%rax)
	cmpq	$4, %rbp
	jne	.L122
	jmp	.L125
.L118:
	movq	24(%rsp), %rdi
	xorl	%esi, %esi
	call	amp_fused_step@PLT
	movq	%rbx, %rdi
	movl	%eax, %esi
	call	check
	movq	24(%rsp), %rdi
	call	amp_fused_zero_grad@PLT
	movq	%rbx, %rdi
	movl	%eax, %esi
	call	check
.L125:
	movq	8(%rsp), %rdi
	call	delete_tensor
	movq	16(%rsp), %rdi
	call	delete_tensor
	movq	32(%rsp), %rdi
	call	delete_tensor
	incl	996(%rbx)
	jmp	.L106
.L134:
	addq	$248, %rsp
	popq	%rbx
	popq	%rbp
	popq	%r12
	popq	%r13
	popq	%r14
	popq	%r15
	ret
	.size	train, .-train
	.section	.rodata.str1.1
.LC24:
	.string	" loss %u %a %u %u %u %llu"
	.text
	.type	print_losses, @function
print_losses:
	pushq	%r12
	leaq	.LC24(%rip), %r12
	pushq	%rbp
	movq	%rdi, %rbp
	pushq	%rbx
	xorl	%ebx, %ebx
	subq	$64, %rsp
.L140:
	movq	0(%rbp), %rax
	cmpl	44(%rax), %ebx
	jnb	.L143
	xorl	%eax, %eax
	leaq	4(%rsp), %rdi
	movl	$15, %ecx
	movq	%rsp, %rdx
	rep stosl
	movq	984(%rbp), %rdi
	movl	%ebx, %esi
	movl	$64, (%rsp)
	call	amp_get_record@PLT
	movq	%rbp, %rdi
	movl	%eax, %esi
	call	check
	movq	24(%rsp), %r9
	movl	32(%rsp), %ecx
	movl	%ebx, %esi
	movl	48(%rsp), %r8d
	movl	36(%rsp), %edx
	movq	%r12, %rdi
	movb	$1, %al
	cvtss2sd	12(%rsp), %xmm0
	incl	%ebx
	call	printf@PLT
	jmp	.L140
.L143:
	addq	$64, %rsp
	popq	%rbx
	popq	%rbp
	popq	%r12
	ret
	.size	print_losses, .-print_losses
	.type	digest_state, @function
digest_state:
	pushq	%r12
	xorl	%ecx, %ecx
	xorl	%edx, %edx
	xorl	%eax, %eax
	pushq	%rbp
	movq	%rdi, %rbp
	xorl	%esi, %esi
	pushq	%rbx
	subq	$32, %rsp
	movq	984(%rdi), %rdi
	leaq	24(%rsp), %r8
	movq	%rax, 24(%rsp)
	movq	%r8, 8(%rsp)
	call	amp_state_save_memory@PLT
	movq	%rbp, %rdi
	movl	%eax, %esi
	call	check
	movq	24(%rsp), %r12
	movq	%r12, %rdi
	call	malloc@PLT
	movq	8(%rsp), %r8
	testq	%rax, %rax
	jne	.L145
	movl	$2, %edi
	call	exit@PLT
.L145:
	movq	984(%rbp), %rdi
	movq	%r12, %rcx
	movq	%rax, %rdx
	xorl	%esi, %esi
	movq	%rax, %rbx
	call	amp_state_save_memory@PLT
	movq	%rbp, %rdi
	movl	%eax, %esi
	call	check
	movq	24(%rsp), %rax
	movl	$7, %ecx
	xorl	%edx, %edx
.L146:
	movzbl	(%rbx,%rcx), %esi
	salq	$8, %rdx
	orq	%rsi, %rdx
	subq	$1, %rcx
	jnb	.L146
	movabsq	$-3750763034362895579, %rbp
	subq	$8, %rax
	xorl	%ecx, %ecx
	movabsq	$1099511628211, %rsi
	subq	%rdx, %rax
	addq	%rbx, %rdx
.L147:
	cmpq	%rcx, %rax
	je	.L151
	movzbl	8(%rdx,%rcx), %edi
	incq	%rcx
	xorq	%rdi, %rbp
	imulq	%rsi, %rbp
	jmp	.L147
.L151:
	movq	%rbx, %rdi
	call	free@PLT
	addq	$32, %rsp
	movq	%rbp, %rax
	popq	%rbx
	popq	%rbp
	popq	%r12
	ret
	.size	digest_state, .-digest_state
	.type	end, @function
end:
	pushq	%rbx
	movq	%rdi, %rbx
	movq	984(%rdi), %rdi
	call	amp_shutdown@PLT
	movq	%rbx, %rdi
	movl	%eax, %esi
	call	check
	movq	8(%rbx), %rdi
	call	delete_tensor
	movq	16(%rbx), %rdi
	call	delete_tensor
	movq	24(%rbx), %rdi
	call	delete_tensor
	movq	32(%rbx), %rdi
	call	delete_tensor
	movq	%rbx, %rdi
	popq	%rbx
	jmp	free@PLT
	.size	end, .-end
	.section	.rodata.str1.1
.LC25:
	.string	"%s/%s.%s"
	.text
	.type	path_of.isra.0, @function
path_of.isra.0:
	xorl	%eax, %eax
	cmpl	$0, turn.1(%rip)
	pushq	%rbx
	movq	%rdi, %rcx
	sete	%bl
	sete	%al
	movq	%rsi, %r8
	movq	%rdx, %r9
	movzbl	%bl, %ebx
	movl	%eax, turn.1(%rip)
	leaq	paths.0(%rip), %rax
	leaq	.LC25(%rip), %rdx
	salq	$12, %rbx
	movl	$4096, %esi
	addq	%rax, %rbx
	xorl	%eax, %eax
	movq	%rbx, %rdi
	call	snprintf@PLT
	movq	%rbx, %rax
	popq	%rbx
	ret
	.size	path_of.isra.0, .-path_of.isra.0
	.section	.rodata.str1.1
.LC26:
	.string	"json"
.LC27:
	.string	"%s apex:"
	.text
	.type	load_apex, @function
load_apex:
	pushq	%r12
	movq	%rsi, %r12
	xorl	%esi, %esi
	pushq	%rbp
	movq	%rdi, %rbp
	pushq	%rbx
	call	start
	movq	0(%rbp), %rsi
	leaq	.LC26(%rip), %rdx
	movq	%r12, %rdi
	movq	%rax, %rbx
	call	path_of.isra.0
	movq	984(%rbx), %rdi
	movq	%rax, %rsi
	call	amp_state_load@PLT
	movq	%rbx, %rdi
	movl	%eax, %esi
	call	check
	movq	0(%rbp), %rsi
	leaq	.LC27(%rip), %rdi
	xorl	%eax, %eax
	call	printf@PLT
	movq	%rbx, %rdi
	call	print_losses
	movl	$10, %edi
	call	putchar@PLT
	movq	%rbx, %rdi
	popq	%rbx
	popq	%rbp
	popq	%r12
	jmp	end
	.size	load_apex, .-load_apex
	.section	.rodata.str1.1
.LC28:
	.string	"%s %s:"
.LC29:
	.string	" %s %016llx %016llx"
.LC30:
	.string	" state %016llx\n"
	.text
	.type	print_numbers, @function
print_numbers:
	pushq	%r13
	xorl	%eax, %eax
	movl	$59, %ecx
	movabsq	$-3750763034362895579, %r13
	pushq	%r12
	movq	%rsi, %r12
	pushq	%rbp
	movq	%rdi, %rbp
	pushq	%rbx
	subq	$264, %rsp
	leaq	20(%rsp), %rdx
	movq	%rax, 8(%rsp)
	leaq	16(%rsp), %rbx
	xorl	%eax, %eax
	movq	%rdx, %rdi
	movq	%rbx, %rsi
	movl	$3, %edx
	movl	$80, 16(%rsp)
	rep stosl
	leaq	8(%rsp), %rcx
	leaq	880(%rbp), %rdi
	movl	$80, 96(%rsp)
	movl	$80, 176(%rsp)
	call	amp_master_params@PLT
	movq	%rbp, %rdi
	movl	%eax, %esi
	call	check
	movq	0(%rbp), %rax
	movq	%r12, %rdx
	leaq	.LC28(%rip), %rdi
	xorl	%r12d, %r12d
	movq	(%rax), %rsi
	xorl	%eax, %eax
	call	printf@PLT
.L159:
	cmpq	8(%rsp), %r12
	jnb	.L170
	movq	8(%rbx), %rdx
	xorl	%eax, %eax
	movq	%r13, %rdi
	movabsq	$1099511628211, %r8
	cmpl	$1, 24(%rdx)
	movq	(%rdx), %rsi
	sete	%al
	leaq	2(%rax,%rax), %rax
	imulq	32(%rdx), %rax
	xorl	%edx, %edx
.L161:
	cmpq	%rdx, %rax
	je	.L171
	movzbl	(%rsi,%rdx), %ecx
	incq	%rdx
	xorq	%rdi, %rcx
	imulq	%r8, %rcx
	movq	%rcx, %rdi
	jmp	.L161
.L171:
	xorl	%eax, %eax
	cmpl	$1, 4(%rbx)
	movq	%r13, %rdx
	movq	24(%rbx), %rsi
	movabsq	$1099511628211, %r8
	sete	%al
	xorl	%ecx, %ecx
	leaq	2(%rax,%rax), %rax
	imulq	40(%rbx), %rax
.L164:
	cmpq	%rcx, %rax
	je	.L172
	movzbl	(%rsi,%rcx), %r9d
	incq	%rcx
	xorq	%r9, %rdx
	imulq	%r8, %rdx
	jmp	.L164
.L172:
	movq	16(%rbx), %rsi
	movq	%rdi, %rcx
	xorl	%eax, %eax
	leaq	.LC29(%rip), %rdi
	incq	%r12
	addq	$80, %rbx
	call	printf@PLT
	jmp	.L159
.L170:
	movq	%rbp, %rdi
	call	print_losses
	movq	%rbp, %rdi
	call	digest_state
	leaq	.LC30(%rip), %rdi
	movq	%rax, %rsi
	xorl	%eax, %eax
	call	printf@PLT
	addq	$264, %rsp
	popq	%rbx
	popq	%rbp
	popq	%r12
	popq	%r13
	ret
	.size	print_numbers, .-print_numbers
	.section	.rodata.str1.1
.LC31:
	.string	""
.LC32:
	.string	"cut"
.LC33:
	.string	"changed"
.LC34:
	.string	"calls"
.LC35:
	.string	"make"
.LC36:
	.string	"jsonl"
.LC37:
	.string	"safetensors"
.LC38:
	.string	"saved"
.LC39:
	.string	"trained"
.LC40:
	.string	"resume"
.LC41:
	.string	"%s: %u warnings\n"
.LC42:
	.string	"damage"
.LC43:
	.string	"rb"
.LC44:
	.string	"damaged"
.LC45:
	.string	"wb"
.LC46:
	.string	"%s %s %lu: %s: %s\n"
.LC47:
	.string	"%s: a refused file changed the training\n"
.LC48:
	.string	"program make|resume|damage FOLDER [OUT], program calls\n"
	.section	.text.startup,"ax",@progbits
	.globl	main
	.type	main, @function
main:
	pushq	%r15
	pushq	%r14
	pushq	%r13
	pushq	%r12
	movq	%rsi, %r12
	pushq	%rbp
	pushq	%rbx
	subq	$216, %rsp
	movl	%edi, 36(%rsp)
	decl	%edi
	jle	.L198
	movq	8(%rsi), %rax
	leaq	.LC34(%rip), %rsi
	movq	%rax, %rdi
	movq	%rax, 8(%rsp)
	call	strcmp@PLT
	cmpl	$2, 36(%rsp)
	jne	.L174
	testl	%eax, %eax
	jne	.L174
	jmp	.L229
.L198:
	leaq	.LC31(%rip), %rax
	movq	%rax, 8(%rsp)
.L174:
	leaq	cases(%rip), %rbx
	jmp	.L177
.L229:
	addq	$216, %rsp
	popq	%rbx
	popq	%rbp
	popq	%r12
	popq	%r13
	popq	%r14
	popq	%r15
	jmp	calls@PLT
.L177:
	movq	8(%rsp), %rdi
	leaq	.LC35(%rip), %rsi
	call	strcmp@PLT
	cmpl	$3, 36(%rsp)
	jne	.L178
	testl	%eax, %eax
	jne	.L178
	movl	48(%rbx), %r14d
	movq	16(%r12), %r13
	xorl	%esi, %esi
	leal	-1(%r14), %eax
	cmpl	$1, %eax
	ja	.L179
	movq	(%rbx), %rsi
	leaq	.LC36(%rip), %rdx
	movq	%r13, %rdi
	call	path_of.isra.0
	movq	%rax, %rsi
.L179:
	movq	%rbx, %rdi
	call	start
	movl	$7, %esi
	movq	%rax, %rdi
	movq	%rax, %rbp
	call	train
	movq	(%rbx), %r15
	leaq	.LC37(%rip), %rdx
	movq	%r13, %rdi
	movq	%r15, %rsi
	call	path_of.isra.0
	movq	984(%rbp), %rdi
	xorl	%edx, %edx
	movq	%rax, %rsi
	call	amp_state_save@PLT
	movq	%rbp, %rdi
	movl	%eax, %esi
	call	check
	cmpl	$3, %r14d
	jne	.L180
	leaq	.LC26(%rip), %rdx
	movq	%r15, %rsi
	movq	%r13, %rdi
	call	path_of.isra.0
	movq	984(%rbp), %rdi
	movl	$1, %edx
	movq	%rax, %rsi
	call	amp_state_save@PLT
	movq	%rbp, %rdi
	movl	%eax, %esi
	call	check
.L180:
	leaq	.LC38(%rip), %rsi
	movq	%rbp, %rdi
	call	print_numbers
	movl	$6, %esi
	movq	%rbp, %rdi
	call	train
	leaq	.LC39(%rip), %rsi
	movq	%rbp, %rdi
	call	print_numbers
	movq	%rbp, %rdi
	call	end
	movq	%r13, %rsi
	cmpl	$3, %r14d
	jne	.L182
	jmp	.L228
.L178:
	movq	8(%rsp), %rdi
	leaq	.LC40(%rip), %rsi
	call	strcmp@PLT
	testl	%eax, %eax
	jne	.L183
	cmpl	$4, 36(%rsp)
	jne	.L184
	xorl	%esi, %esi
	movq	%rbx, %rdi
	movq	24(%r12), %r15
	movq	16(%r12), %r14
	call	start
	movq	(%rbx), %r13
	leaq	.LC37(%rip), %rdx
	movq	%rax, %rbp
	movq	%r14, %rdi
	movq	%r13, %rsi
	call	path_of.isra.0
	movq	984(%rbp), %rdi
	movq	%rax, %rsi
	call	amp_state_load@PLT
	movq	%rbp, %rdi
	movl	%eax, %esi
	call	check
	leaq	.LC37(%rip), %rdx
	movq	%r13, %rsi
	movq	%r15, %rdi
	call	path_of.isra.0
	movq	984(%rbp), %rdi
	xorl	%edx, %edx
	movq	%rax, %rsi
	call	amp_state_save@PLT
	movq	%rbp, %rdi
	movl	%eax, %esi
	call	check
	movl	72(%rbp), %edx
	testl	%edx, %edx
	je	.L185
	movq	%r13, %rsi
	leaq	.LC41(%rip), %rdi
	xorl	%eax, %eax
	call	printf@PLT
.L185:
	leaq	.LC38(%rip), %rsi
	movq	%rbp, %rdi
	call	print_numbers
	movl	$6, %esi
	movq	%rbp, %rdi
	movl	$7, 996(%rbp)
	call	train
	leaq	.LC39(%rip), %rsi
	movq	%rbp, %rdi
	call	print_numbers
	movq	%rbp, %rdi
	call	end
	cmpl	$3, 48(%rbx)
	jne	.L182
	movq	%r14, %rsi
.L228:
	movq	%rbx, %rdi
	call	load_apex
	jmp	.L182
.L183:
	movq	8(%rsp), %rdi
	leaq	.LC42(%rip), %rsi
	call	strcmp@PLT
	cmpl	$4, 36(%rsp)
	jne	.L184
	testl	%eax, %eax
	jne	.L184
	movq	24(%r12), %rax
	xorl	%esi, %esi
	movq	%rbx, %rdi
	movq	16(%r12), %r13
	movq	%rax, 56(%rsp)
	call	start
	movl	$1048576, %esi
	movl	$1, %edi
	movq	%rax, 40(%rsp)
	call	calloc@PLT
	movq	%r13, %rdi
	leaq	.LC37(%rip), %rdx
	movq	%rax, %rbp
	movq	(%rbx), %rax
	movq	%rax, %rsi
	movq	%rax, 24(%rsp)
	call	path_of.isra.0
	leaq	.LC43(%rip), %rsi
	movq	%rax, %rdi
	call	fopen64@PLT
	movq	%rax, %r13
	testq	%rbp, %rbp
	je	.L190
	testq	%rax, %rax
	jne	.L186
.L190:
	movl	$2, %edi
	call	exit@PLT
.L186:
	movq	%rax, %rcx
	movl	$1048576, %edx
	movl	$1, %esi
	movq	%rbp, %rdi
	call	fread@PLT
	movq	%r13, %rdi
	xorl	%r13d, %r13d
	movq	%rax, 16(%rsp)
	call	fclose@PLT
	movq	40(%rsp), %rdi
	call	digest_state
	movq	16(%rsp), %rcx
	movq	16(%rsp), %rdx
	movq	$5, 88(%rsp)
	movq	%rax, 64(%rsp)
	xorl	%eax, %eax
	incq	%rcx
	movq	%rax, 80(%rsp)
	shrq	%rdx
	movq	16(%rsp), %rax
	movq	%rcx, 128(%rsp)
	xorl	%ecx, %ecx
	movq	%rcx, 136(%rsp)
	movq	16(%rsp), %rcx
	decq	%rax
	movq	%rdx, 112(%rsp)
	movq	%rdx, 184(%rsp)
	leaq	-60(%rcx), %rdx
	movq	$8, 96(%rsp)
	movq	$200, 104(%rsp)
	movq	%rax, 120(%rsp)
	movq	$3, 144(%rsp)
	movq	$20, 152(%rsp)
	movq	$34, 160(%rsp)
	movq	$60, 168(%rsp)
	movq	$300, 176(%rsp)
	movq	%rdx, 192(%rsp)
	movq	%rax, 200(%rsp)
.L196:
	cmpq	$6, %r13
	ja	.L188
	movq	24(%rsp), %rsi
	movq	56(%rsp), %rdi
	leaq	.LC44(%rip), %rdx
	movq	80(%rsp,%r13,8), %r15
	call	path_of.isra.0
	leaq	.LC45(%rip), %rsi
	movq	%rax, %rdi
	movq	%rax, 48(%rsp)
	call	fopen64@PLT
	movq	%rax, %rcx
	testq	%rax, %rax
	je	.L190
	movq	%r15, %r14
	jmp	.L189
.L188:
	movq	80(%rsp,%r13,8), %r14
	movq	24(%rsp), %rsi
	leaq	.LC44(%rip), %rdx
	movq	56(%rsp), %rdi
	call	path_of.isra.0
	xorb	$1, 0(%rbp,%r14)
	leaq	.LC45(%rip), %rsi
	movq	%rax, %rdi
	movq	%rax, 48(%rsp)
	call	fopen64@PLT
	movq	%rax, %rcx
	testq	%rax, %rax
	je	.L190
	movq	16(%rsp), %r15
.L189:
	movq	%r15, %rdx
	movl	$1, %esi
	movq	%rbp, %rdi
	movq	%rcx, 72(%rsp)
	call	fwrite@PLT
	cmpq	%rax, %r15
	jne	.L190
	movq	72(%rsp), %rdi
	call	fclose@PLT
	cmpq	$6, %r13
	jbe	.L192
	xorb	$1, 0(%rbp,%r14)
.L192:
	movq	40(%rsp), %rax
	movq	48(%rsp), %rsi
	movq	984(%rax), %rdi
	call	amp_state_load@PLT
	leaq	.LC31(%rip), %r9
	movl	%eax, %r15d
	testl	%eax, %eax
	je	.L193
	call	amp_last_error@PLT
	movq	%rax, %r9
.L193:
	movl	%r15d, %edi
	movq	%r9, 48(%rsp)
	call	amp_status_name@PLT
	cmpq	$7, %r13
	movq	48(%rsp), %r9
	movq	%r14, %rcx
	movq	%rax, %r8
	leaq	.LC32(%rip), %rdx
	leaq	.LC33(%rip), %rax
	movq	24(%rsp), %rsi
	cmovnb	%rax, %rdx
	leaq	.LC46(%rip), %rdi
	xorl	%eax, %eax
	call	printf@PLT
	movq	40(%rsp), %rdi
	call	digest_state
	cmpq	%rax, 64(%rsp)
	je	.L195
	movq	24(%rsp), %rsi
	leaq	.LC47(%rip), %rdi
	xorl	%eax, %eax
	call	printf@PLT
.L195:
	incq	%r13
	cmpq	$16, %r13
	jne	.L196
	movq	%rbp, %rdi
	call	free@PLT
	movq	40(%rsp), %rdi
	call	end
	jmp	.L182
.L184:
	movq	stderr(%rip), %rsi
	leaq	.LC48(%rip), %rdi
	call	fputs@PLT
	movl	$2, %eax
	jmp	.L173
.L182:
	addq	$56, %rbx
	leaq	1232+cases(%rip), %rax
	cmpq	%rax, %rbx
	jne	.L177
	xorl	%eax, %eax
.L173:
	addq	$216, %rsp
	popq	%rbx
	popq	%rbp
	popq	%r12
	popq	%r13
	popq	%r14
	popq	%r15
	ret
	.size	main, .-main
	.local	paths.0
	.comm	paths.0,8192,32
	.local	turn.1
	.comm	turn.1,4,4
	.local	made.3
	.comm	made.3,8,8
	.section	.data.rel.ro.local,"aw"
	.align 16
	.type	names.4, @object
	.size	names.4, 16
names.4:
	.quad	.LC5
	.quad	.LC10
	.section	.rodata.str1.1
.LC49:
	.string	"o0"
.LC50:
	.string	"o1"
.LC51:
	.string	"o2"
.LC52:
	.string	"o3"
.LC53:
	.string	"o4"
.LC54:
	.string	"o5"
.LC55:
	.string	"o0-host"
.LC56:
	.string	"o1-host-losses"
.LC57:
	.string	"o2-host-losses"
.LC58:
	.string	"o3-host"
.LC59:
	.string	"o4-host"
.LC60:
	.string	"o5-host"
.LC61:
	.string	"o5-split"
.LC62:
	.string	"o5-split-host"
.LC63:
	.string	"o5-stochastic"
.LC64:
	.string	"o2-8bit"
.LC65:
	.string	"o1-torch"
.LC66:
	.string	"o1-megatron"
.LC67:
	.string	"o2-deepspeed"
.LC68:
	.string	"o2-jmp"
.LC69:
	.string	"o2-mxnet"
.LC70:
	.string	"o2-amsgrad"
	.section	.data.rel.ro.local
	.align 32
	.type	cases, @object
	.size	cases, 1232
cases:
	.quad	.LC49
	.long	1
	.long	0
	.long	3
	.long	0
	.long	0
	.zero	4
	.quad	0
	.long	0
	.long	1
	.long	1
	.zero	4
	.quad	.LC50
	.long	2
	.long	0
	.long	3
	.long	0
	.long	0
	.zero	4
	.quad	0
	.long	0
	.long	1
	.long	2
	.zero	4
	.quad	.LC51
	.long	3
	.long	0
	.long	3
	.long	0
	.long	0
	.zero	4
	.quad	0
	.long	0
	.long	1
	.long	1
	.zero	4
	.quad	.LC52
	.long	4
	.long	0
	.long	3
	.long	0
	.long	0
	.zero	4
	.quad	0
	.long	0
	.long	1
	.long	0
	.zero	4
	.quad	.LC53
	.long	5
	.long	0
	.long	3
	.long	0
	.long	0
	.zero	4
	.quad	0
	.long	0
	.long	1
	.long	0
	.zero	4
	.quad	.LC54
	.long	6
	.long	0
	.long	3
	.long	0
	.long	0
	.zero	4
	.quad	0
	.long	0
	.long	1
	.long	1
	.zero	4
	.quad	.LC55
	.long	1
	.long	0
	.long	0
	.long	0
	.long	0
	.zero	4
	.quad	0
	.long	0
	.long	1
	.long	0
	.zero	4
	.quad	.LC56
	.long	2
	.long	0
	.long	0
	.long	0
	.long	0
	.zero	4
	.quad	0
	.long	0
	.long	3
	.long	3
	.zero	4
	.quad	.LC57
	.long	3
	.long	0
	.long	0
	.long	0
	.long	0
	.zero	4
	.quad	0
	.long	0
	.long	2
	.long	0
	.zero	4
	.quad	.LC58
	.long	4
	.long	0
	.long	0
	.long	0
	.long	0
	.zero	4
	.quad	0
	.long	0
	.long	1
	.long	0
	.zero	4
	.quad	.LC59
	.long	5
	.long	0
	.long	0
	.long	0
	.long	0
	.zero	4
	.quad	0
	.long	0
	.long	1
	.long	0
	.zero	4
	.quad	.LC60
	.long	6
	.long	0
	.long	0
	.long	0
	.long	0
	.zero	4
	.quad	0
	.long	0
	.long	1
	.long	0
	.zero	4
	.quad	.LC61
	.long	6
	.long	3
	.long	3
	.long	0
	.long	0
	.zero	4
	.quad	0
	.long	0
	.long	1
	.long	0
	.zero	4
	.quad	.LC62
	.long	6
	.long	3
	.long	0
	.long	0
	.long	0
	.zero	4
	.quad	0
	.long	0
	.long	1
	.long	0
	.zero	4
	.quad	.LC63
	.long	6
	.long	4
	.long	3
	.long	0
	.long	0
	.zero	4
	.quad	0
	.long	0
	.long	1
	.long	0
	.zero	4
	.quad	.LC64
	.long	3
	.long	0
	.long	2
	.long	0
	.long	1
	.zero	4
	.quad	4096
	.long	0
	.long	1
	.long	0
	.zero	4
	.quad	.LC65
	.long	2
	.long	0
	.long	1
	.long	0
	.long	0
	.zero	4
	.quad	0
	.long	2
	.long	1
	.long	0
	.zero	4
	.quad	.LC66
	.long	2
	.long	0
	.long	4
	.long	0
	.long	0
	.zero	4
	.quad	0
	.long	3
	.long	1
	.long	0
	.zero	4
	.quad	.LC67
	.long	3
	.long	0
	.long	5
	.long	0
	.long	0
	.zero	4
	.quad	0
	.long	4
	.long	1
	.long	0
	.zero	4
	.quad	.LC68
	.long	3
	.long	0
	.long	6
	.long	0
	.long	0
	.zero	4
	.quad	0
	.long	5
	.long	1
	.long	0
	.zero	4
	.quad	.LC69
	.long	3
	.long	0
	.long	7
	.long	0
	.long	0
	.zero	4
	.quad	0
	.long	6
	.long	1
	.long	0
	.zero	4
	.quad	.LC70
	.long	3
	.long	0
	.long	2
	.long	8
	.long	0
	.zero	4
	.quad	0
	.long	0
	.long	1
	.long	0
	.zero	4
	.section	.rodata.cst8,"aM",@progbits,8
	.align 8
.LC1:
	.long	0
	.long	1078099968
	.align 8
.LC2:
	.long	858993459
	.long	1070805811
	.align 8
.LC3:
	.long	1717986918
	.long	1072064102
	.align 8
.LC13:
	.long	0
	.long	1067450368
	.align 8
.LC14:
	.long	1202590843
	.long	1065646817
	.align 8
.LC15:
	.long	-858993459
	.long	1072483532
	.section	.rodata.cst4,"aM",@progbits,4
	.align 4
.LC16:
	.long	-1082130432
	.section	.rodata.cst8
	.align 8
.LC18:
	.long	0
	.long	1051721728
	.align 8
.LC19:
	.long	0
	.long	1078984704
	.align 8
.LC21:
	.long	0
	.long	1074790400
	.align 8
.LC22:
	.long	0
	.long	1071644672
	.align 8
.LC23:
	.long	0
	.long	1069547520
	.section	.note.GNU-stack,"",@progbits
