# SPDX-License-Identifier: Apache-2.0
# calls.c of e9012bd6692a
	.symver amp_axpby_list, amp_axpby_list@AMP_0.1
	.symver amp_buffer_host, amp_buffer_host@AMP_0.1
	.symver amp_cast_done, amp_cast_done@AMP_0.1
	.symver amp_cast_list, amp_cast_list@AMP_0.1
	.symver amp_cast_random, amp_cast_random@AMP_0.1
	.symver amp_cast_to, amp_cast_to@AMP_0.1
	.symver amp_check_list, amp_check_list@AMP_0.1
	.symver amp_clip_norm_list, amp_clip_norm_list@AMP_0.1
	.symver amp_first_nonfinite, amp_first_nonfinite@AMP_0.1
	.symver amp_get_api, amp_get_api@AMP_0.1
	.symver amp_get_backends, amp_get_backends@AMP_0.1
	.symver amp_get_config, amp_get_config@AMP_0.1
	.symver amp_get_culprit, amp_get_culprit@AMP_0.1
	.symver amp_get_findings, amp_get_findings@AMP_0.1
	.symver amp_get_gate_rows, amp_get_gate_rows@AMP_0.1
	.symver amp_get_list_ops, amp_get_list_ops@AMP_0.1
	.symver amp_get_memory, amp_get_memory@AMP_0.1
	.symver amp_get_observations, amp_get_observations@AMP_0.1
	.symver amp_get_op_stats, amp_get_op_stats@AMP_0.1
	.symver amp_initialize_many, amp_initialize_many@AMP_0.1
	.symver amp_join_list, amp_join_list@AMP_0.1
	.symver amp_l2norm_list, amp_l2norm_list@AMP_0.1
	.symver amp_last_error, amp_last_error@AMP_0.1
	.symver amp_matmul, amp_matmul@AMP_0.1
	.symver amp_matmul_explain, amp_matmul_explain@AMP_0.1
	.symver amp_observe, amp_observe@AMP_0.1
	.symver amp_op_class, amp_op_class@AMP_0.1
	.symver amp_op_target, amp_op_target@AMP_0.1
	.symver amp_optim_defaults, amp_optim_defaults@AMP_0.1
	.symver amp_optim_list, amp_optim_list@AMP_0.1
	.symver amp_pack, amp_pack@AMP_0.1
	.symver amp_pack_bytes, amp_pack_bytes@AMP_0.1
	.symver amp_remainder_bytes, amp_remainder_bytes@AMP_0.1
	.symver amp_scale_list, amp_scale_list@AMP_0.1
	.symver amp_scale_loss_begin, amp_scale_loss_begin@AMP_0.1
	.symver amp_scale_loss_end, amp_scale_loss_end@AMP_0.1
	.symver amp_scope_enter, amp_scope_enter@AMP_0.1
	.symver amp_scope_leave, amp_scope_leave@AMP_0.1
	.symver amp_seed_factor, amp_seed_factor@AMP_0.1
	.symver amp_shutdown, amp_shutdown@AMP_0.1
	.symver amp_split_list, amp_split_list@AMP_0.1
	.symver amp_statistics_list, amp_statistics_list@AMP_0.1
	.symver amp_statistics_losses, amp_statistics_losses@AMP_0.1
	.symver amp_status_name, amp_status_name@AMP_0.1
	.symver amp_step_begin, amp_step_begin@AMP_0.1
	.symver amp_step_end, amp_step_end@AMP_0.1
	.symver amp_survey, amp_survey@AMP_0.1
	.symver amp_unpack, amp_unpack@AMP_0.1
	.file	"calls.c"
	.text
	.type	fill, @function
fill:
	imull	$11, %edx, %edx
	movss	.LC0(%rip), %xmm1
	xorl	%eax, %eax
.L2:
	cmpl	%eax, %esi
	jle	.L5
	movl	%edx, %ecx
	addl	$37, %edx
	andl	$63, %ecx
	subl	$32, %ecx
	cvtsi2ssl	%ecx, %xmm0
	divss	%xmm1, %xmm0
	movss	%xmm0, (%rdi,%rax,4)
	incq	%rax
	jmp	.L2
.L5:
	ret
	.size	fill, .-fill
	.type	layer_forward, @function
layer_forward:
	movl	32(%rsp), %edx
	movq	8(%rsp), %rcx
	xorl	%eax, %eax
	movq	24(%rsp), %rsi
.L7:
	cmpl	%eax, %edx
	jle	.L9
	movss	(%rdi,%rax,4), %xmm0
	mulss	(%rcx,%rax,4), %xmm0
	movss	%xmm0, (%rsi,%rax,4)
	incq	%rax
	jmp	.L7
.L9:
	ret
	.size	layer_forward, .-layer_forward
	.type	visit, @function
visit:
	pushq	%r14
	leaq	roles.1(%rip), %r14
	pushq	%r13
	movq	%rcx, %r13
	pushq	%r12
	movq	%r8, %r12
	pushq	%rbp
	pushq	%rbx
	xorl	%ebx, %ebx
	subq	$64, %rsp
	movq	(%rdx), %rbp
	leaq	16(%rbp), %rax
	movq	%rbp, (%rsp)
	movq	%rax, 8(%rsp)
	movq	8(%rdx), %rax
	movq	%rax, 16(%rsp)
.L13:
	xorl	%eax, %eax
	movl	$40, 24(%rsp)
	leaq	24(%rsp), %rsi
	movq	%r12, %rdi
	movq	%rax, 56(%rsp)
	movl	(%r14,%rbx,4), %eax
	movl	%eax, 28(%rsp)
	leaq	names.0(%rip), %rax
	movq	(%rax,%rbx,8), %rax
	movq	%rax, 48(%rsp)
	movq	(%rsp,%rbx,8), %rax
	movq	%rax, 32(%rsp)
	movslq	24(%rbp), %rax
	movq	%rax, 40(%rsp)
	call	*%r13
	testl	%eax, %eax
	jne	.L10
	incq	%rbx
	cmpq	$3, %rbx
	jne	.L13
.L10:
	addq	$64, %rsp
	popq	%rbx
	popq	%rbp
	popq	%r12
	popq	%r13
	popq	%r14
	ret
	.size	visit, .-visit
	.section	.rodata.str1.1,"aMS",@progbits,1
.LC1:
	.string	"%s: %016llx\n"
	.text
	.type	bytes, @function
bytes:
	movabsq	$1099511628211, %r8
	movq	%rdx, %rcx
	xorl	%eax, %eax
	movabsq	$-3750763034362895579, %rdx
.L17:
	cmpq	%rcx, %rax
	je	.L19
	movzbl	(%rsi,%rax), %r9d
	incq	%rax
	xorq	%r9, %rdx
	imulq	%r8, %rdx
	jmp	.L17
.L19:
	movq	%rdi, %rsi
	xorl	%eax, %eax
	leaq	.LC1(%rip), %rdi
	jmp	printf@PLT
	.size	bytes, .-bytes
	.type	span, @function
span:
	movq	%rdi, %rax
	xorl	%edi, %edi
	movq	%rdx, -24(%rsp)
	movl	%edi, -12(%rsp)
	movq	%rsi, -32(%rsp)
	movups	-32(%rsp), %xmm0
	movl	%ecx, -16(%rsp)
	movq	-16(%rsp), %rdx
	movups	%xmm0, (%rax)
	movq	%rdx, 16(%rax)
	ret
	.size	span, .-span
	.section	.rodata.str1.1
.LC2:
	.string	"%s: %s\n"
.LC3:
	.string	"%s: %s: %s\n"
	.text
	.type	say, @function
say:
	pushq	%rbp
	movq	%rdi, %rbp
	movl	%esi, %edi
	pushq	%rbx
	movl	%esi, %ebx
	subq	$24, %rsp
	call	amp_status_name@PLT
	movq	%rbp, %rsi
	leaq	.LC2(%rip), %rdi
	movq	%rax, %rdx
	xorl	%eax, %eax
	call	printf@PLT
	testl	%ebx, %ebx
	je	.L21
	call	amp_last_error@PLT
	movl	%ebx, %edi
	movq	%rax, 8(%rsp)
	call	amp_status_name@PLT
	movq	8(%rsp), %r8
	movq	%rbp, %rdx
	movq	stderr(%rip), %rdi
	movq	%rax, %rcx
	leaq	.LC3(%rip), %rsi
	xorl	%eax, %eax
	call	fprintf@PLT
	movl	$1, failed(%rip)
.L21:
	addq	$24, %rsp
	popq	%rbx
	popq	%rbp
	ret
	.size	say, .-say
	.section	.rodata.str1.1
.LC5:
	.string	"cast_list"
.LC6:
	.string	"fp16"
.LC7:
	.string	"cast_random"
.LC8:
	.string	"bf16 at random"
.LC10:
	.string	"scale_list"
.LC11:
	.string	"scaled"
.LC14:
	.string	"axpby_list"
.LC15:
	.string	"sum"
.LC16:
	.string	"l2norm_list"
.LC17:
	.string	"norm"
.LC19:
	.string	"clip_norm_list"
.LC20:
	.string	"clipped"
.LC21:
	.string	"first_nonfinite"
.LC22:
	.string	"index %d\n"
.LC24:
	.string	"check_list"
	.text
	.type	lists, @function
lists:
	pushq	%r15
	xorl	%eax, %eax
	movl	$1, %edx
	movl	$40, %esi
	pushq	%r14
	pushq	%r13
	pushq	%r12
	pushq	%rbp
	pushq	%rbx
	subq	$616, %rsp
	leaq	32(%rsp), %rbx
	leaq	288(%rsp), %rdi
	movq	%rax, 24(%rsp)
	leaq	56(%rsp), %r12
	leaq	448(%rsp), %rbp
	movl	$0x00000000, 16(%rsp)
	movl	$0x00000000, 20(%rsp)
	leaq	128(%rsp), %r15
	leaq	104(%rsp), %r14
	call	fill
	movl	$1, %ecx
	movq	%rdi, %rsi
	movl	$40, %edx
	movq	%rbx, %rdi
	leaq	208(%rsp), %r13
	call	span
	movq	%rbp, %rsi
	movq	%r12, %rdi
	movl	$40, %edx
	call	span
	leaq	80(%rsp), %rax
	movq	%r15, %rsi
	movl	$2, %ecx
	movq	%rax, %rdi
	movl	$40, %edx
	movq	%rax, 8(%rsp)
	call	span
	movl	$3, %ecx
	movq	%r13, %rsi
	movq	%r14, %rdi
	movl	$40, %edx
	call	span
	movq	8(%rsp), %rdi
	movl	$1, %edx
	movq	%rbx, %rsi
	call	amp_cast_list@PLT
	leaq	.LC5(%rip), %rdi
	movl	%eax, %esi
	call	say
	movq	%r15, %rsi
	movl	$80, %edx
	leaq	.LC6(%rip), %rdi
	call	bytes
	movl	$5, %ecx
	movq	%rbx, %rsi
	movq	%r14, %rdi
	movl	$1, %edx
	leaq	20(%rsp), %r15
	leaq	.LC17(%rip), %r14
	call	amp_cast_random@PLT
	leaq	.LC7(%rip), %rdi
	movl	%eax, %esi
	call	say
	movq	%r13, %rsi
	movl	$80, %edx
	leaq	.LC8(%rip), %rdi
	call	bytes
	movq	8(%rsp), %rsi
	movq	%r15, %rcx
	movq	%r12, %rdi
	movss	.LC9(%rip), %xmm0
	movl	$1, %edx
	leaq	16(%rsp), %r13
	call	amp_scale_list@PLT
	leaq	.LC10(%rip), %rdi
	movl	%eax, %esi
	call	say
	movq	%rbp, %rsi
	movl	$160, %edx
	leaq	.LC11(%rip), %rdi
	call	bytes
	movq	8(%rsp), %rdx
	movq	%r15, %r8
	movq	%rbx, %rsi
	movss	.LC12(%rip), %xmm1
	movss	.LC13(%rip), %xmm0
	movl	$1, %ecx
	movq	%r12, %rdi
	call	amp_axpby_list@PLT
	leaq	.LC14(%rip), %rdi
	movl	%eax, %esi
	call	say
	movq	%rbp, %rsi
	movl	$160, %edx
	leaq	.LC15(%rip), %rdi
	call	bytes
	xorl	%ecx, %ecx
	movq	%r13, %rdx
	movq	%rbx, %rdi
	movl	$1, %esi
	call	amp_l2norm_list@PLT
	leaq	.LC16(%rip), %rdi
	movl	%eax, %esi
	call	say
	movq	%r13, %rsi
	movq	%r14, %rdi
	movl	$4, %edx
	call	bytes
	movq	%r13, %rcx
	movl	$1, %edx
	movq	%rbx, %rsi
	movss	.LC18(%rip), %xmm0
	movq	%r12, %rdi
	call	amp_clip_norm_list@PLT
	leaq	.LC19(%rip), %rdi
	movl	%eax, %esi
	call	say
	movq	%rbp, %rsi
	movl	$160, %edx
	leaq	.LC20(%rip), %rdi
	call	bytes
	leaq	24(%rsp), %rdx
	movq	%rbx, %rdi
	movl	$1, %esi
	call	amp_first_nonfinite@PLT
	leaq	.LC21(%rip), %rdi
	movl	%eax, %esi
	call	say
	movl	24(%rsp), %esi
	leaq	.LC22(%rip), %rdi
	xorl	%eax, %eax
	call	printf@PLT
	movq	8(%rsp), %rdi
	movq	%r15, %r8
	movq	%r13, %rdx
	movss	.LC23(%rip), %xmm1
	movss	.LC18(%rip), %xmm0
	xorl	%ecx, %ecx
	movl	$1, %esi
	call	amp_check_list@PLT
	leaq	.LC24(%rip), %rdi
	movl	%eax, %esi
	call	say
	movq	%r13, %rsi
	movq	%r14, %rdi
	movl	$4, %edx
	call	bytes
	addq	$616, %rsp
	popq	%rbx
	popq	%rbp
	popq	%r12
	popq	%r13
	popq	%r14
	popq	%r15
	ret
	.size	lists, .-lists
	.section	.rodata.str1.1
.LC25:
	.string	"optim_defaults"
.LC26:
	.string	"optim_list"
.LC27:
	.string	"parameters"
.LC28:
	.string	"copies"
.LC29:
	.string	"moments"
	.text
	.type	updates, @function
updates:
	pushq	%r15
	xorl	%eax, %eax
	movl	$40, %ecx
	xorl	%edx, %edx
	pushq	%r14
	movl	$40, %esi
	pushq	%r13
	pushq	%r12
	pushq	%rbp
	pushq	%rbx
	subq	$1144, %rsp
	movq	%rdx, 32(%rsp)
	movl	$4, %edx
	leaq	648(%rsp), %rdi
	leaq	40(%rsp), %r13
	rep stosl
	movl	$40, %ecx
	leaq	64(%rsp), %r12
	leaq	808(%rsp), %rdi
	rep stosl
	movl	$21, %ecx
	leaq	88(%rsp), %rbx
	leaq	244(%rsp), %rdi
	rep stosl
	movl	$41, %ecx
	leaq	972(%rsp), %rdi
	movl	$88, 240(%rsp)
	rep stosl
	leaq	328(%rsp), %rax
	movl	$168, 968(%rsp)
	leaq	112(%rsp), %r15
	movq	%rax, %rdi
	movq	%rax, 8(%rsp)
	leaq	136(%rsp), %rbp
	leaq	240(%rsp), %r14
	call	fill
	leaq	488(%rsp), %rdi
	movl	$5, %edx
	call	fill
	movl	$1, %ecx
	movq	%rdi, %rsi
	movl	$40, %edx
	movq	%r13, %rdi
	call	span
	movq	8(%rsp), %rsi
	movl	$40, %edx
	movq	%r12, %rdi
	call	span
	leaq	160(%rsp), %rax
	movl	$3, %ecx
	movq	%rbx, %rdi
	movq	%rax, %rsi
	movl	$40, %edx
	movq	%rax, 16(%rsp)
	call	span
	movl	$1, %ecx
	movq	%r15, %rdi
	leaq	648(%rsp), %rsi
	movl	$40, %edx
	call	span
	leaq	808(%rsp), %rax
	movl	$40, %edx
	movq	%rbp, %rdi
	movq	%rax, %rsi
	movq	%rax, 24(%rsp)
	call	span
	movq	%r14, %rsi
	movl	$3, %edi
	call	amp_optim_defaults@PLT
	leaq	.LC25(%rip), %rdi
	movl	%eax, %esi
	call	say
	leaq	32(%rsp), %rax
	movq	$1, 976(%rsp)
	movq	%r13, 984(%rsp)
	movq	%r12, 992(%rsp)
	movq	%rbx, 1000(%rsp)
	movq	%rax, 1032(%rsp)
	movq	%r15, 1008(%rsp)
	leaq	.LC26(%rip), %r15
	movq	%rbp, 1016(%rsp)
	movl	$3, %ebp
.L30:
	leaq	968(%rsp), %rsi
	movq	%r14, %rdi
	call	amp_optim_list@PLT
	movq	%r15, %rdi
	movl	%eax, %esi
	call	say
	decl	%ebp
	jne	.L30
	movq	8(%rsp), %rsi
	movl	$160, %edx
	leaq	.LC27(%rip), %rdi
	call	bytes
	movq	16(%rsp), %rsi
	movl	$80, %edx
	leaq	.LC28(%rip), %rdi
	call	bytes
	movq	24(%rsp), %rsi
	movl	$160, %edx
	leaq	.LC29(%rip), %rdi
	call	bytes
	addq	$1144, %rsp
	popq	%rbx
	popq	%rbp
	popq	%r12
	popq	%r13
	popq	%r14
	popq	%r15
	ret
	.size	updates, .-updates
	.section	.rodata.str1.1
.LC30:
	.string	"split_list"
.LC31:
	.string	"halves"
.LC32:
	.string	"remainders"
.LC33:
	.string	"join_list"
.LC34:
	.string	"joined"
	.text
	.type	split, @function
split:
	pushq	%r15
	movl	$6, %edx
	movl	$40, %esi
	pushq	%r14
	pushq	%r13
	pushq	%r12
	pushq	%rbp
	pushq	%rbx
	subq	$648, %rsp
	leaq	320(%rsp), %rbp
	leaq	160(%rsp), %r14
	movq	%rbp, %rdi
	movq	%r14, (%rsp)
	call	fill
	movl	$40, %edi
	call	amp_remainder_bytes@PLT
	cmpq	$160, %rax
	jbe	.L34
	movl	$2, %edi
	call	exit@PLT
.L34:
	leaq	8(%rsp), %rbx
	leaq	80(%rsp), %r15
	movl	$3, %ecx
	movq	%rsp, %r13
	leaq	32(%rsp), %r8
	movq	%r15, %rsi
	movq	%rbx, %rdi
	movl	$40, %edx
	call	span
	leaq	56(%rsp), %r12
	movq	%r8, %rdi
	movq	%rbp, %rsi
	movl	$1, %ecx
	leaq	480(%rsp), %rbp
	movl	$40, %edx
	call	span
	movq	%rbp, %rsi
	movq	%r12, %rdi
	movl	$40, %edx
	call	span
	movq	%r8, %rdx
	movl	$1, %ecx
	movq	%r13, %rsi
	movq	%rbx, %rdi
	call	amp_split_list@PLT
	leaq	.LC30(%rip), %rdi
	movl	%eax, %esi
	call	say
	movq	%r15, %rsi
	movl	$80, %edx
	leaq	.LC31(%rip), %rdi
	call	bytes
	movl	$40, %edi
	call	amp_remainder_bytes@PLT
	movq	%r14, %rsi
	leaq	.LC32(%rip), %rdi
	movq	%rax, %rdx
	call	bytes
	movq	%r13, %rdx
	movl	$1, %ecx
	movq	%rbx, %rsi
	movq	%r12, %rdi
	call	amp_join_list@PLT
	leaq	.LC33(%rip), %rdi
	movl	%eax, %esi
	call	say
	movq	%rbp, %rsi
	movl	$160, %edx
	leaq	.LC34(%rip), %rdi
	call	bytes
	addq	$648, %rsp
	popq	%rbx
	popq	%rbp
	popq	%r12
	popq	%r13
	popq	%r14
	popq	%r15
	ret
	.size	split, .-split
	.section	.rodata.str1.1
.LC35:
	.string	"matmul"
.LC36:
	.string	"product"
.LC37:
	.string	"matmul_explain"
	.text
	.type	product, @function
product:
	pushq	%rbp
	xorl	%eax, %eax
	movl	$55, %ecx
	pushq	%rbx
	subq	$632, %rsp
	leaq	148(%rsp), %rdi
	movl	$224, 144(%rsp)
	rep stosl
	xorl	%eax, %eax
	movl	$7, %edi
	movl	$0x3f800000, 272(%rsp)
.L37:
	leal	-5(%rax), %edx
	movl	%edi, %esi
	leaq	48(%rsp), %rcx
	cvtsi2ssl	%edx, %xmm0
	subl	%eax, %esi
	leaq	96(%rsp), %rdx
	movss	%xmm0, (%rcx,%rax,4)
	cvtsi2ssl	%esi, %xmm0
	movss	%xmm0, (%rdx,%rax,4)
	incq	%rax
	cmpq	$12, %rax
	jne	.L37
	leaq	144(%rsp), %rbx
	leaq	12(%rsp), %rbp
	movabsq	$4294967297, %rax
	movq	%rcx, 200(%rsp)
	movq	%rbx, %rdi
	movq	%rdx, 208(%rsp)
	movq	%rbp, 232(%rsp)
	movq	$3, 184(%rsp)
	movq	$3, 176(%rsp)
	movq	$4, 192(%rsp)
	movl	$1, 168(%rsp)
	movq	%rax, 152(%rsp)
	movl	$1, 160(%rsp)
	movq	%rax, 320(%rsp)
	call	amp_matmul@PLT
	leaq	.LC35(%rip), %rdi
	movl	%eax, %esi
	call	say
	movq	%rbp, %rsi
	movl	$36, %edx
	leaq	.LC36(%rip), %rdi
	call	bytes
	movq	%rbx, %rdi
	xorl	%ecx, %ecx
	movl	$256, %edx
	leaq	368(%rsp), %rsi
	call	amp_matmul_explain@PLT
	leaq	.LC37(%rip), %rdi
	movl	%eax, %esi
	call	say
	addq	$632, %rsp
	popq	%rbx
	popq	%rbp
	ret
	.size	product, .-product
	.section	.rodata.str1.1
.LC38:
	.string	"layer"
.LC39:
	.string	"pointer, pointer, pointer, int32 n, pointer"
.LC40:
	.string	"linear"
.LC41:
	.string	"forward(struct layer l, float x[l.n]) -> void"
.LC42:
	.string	"weights"
.LC43:
	.string	"initialize_many"
.LC44:
	.string	"observe"
.LC45:
	.string	"begin"
.LC47:
	.string	"end"
.LC48:
	.string	"step_begin"
.LC49:
	.string	"step_end"
.LC50:
	.string	"output"
.LC51:
	.string	"get_op_stats"
.LC52:
	.string	"%s %d: %d calls\n"
.LC53:
	.string	"get_memory"
.LC54:
	.string	"weights %d, masters %d\n"
.LC55:
	.string	"get_observations"
.LC56:
	.string	"%u %s: %d elements, largest %a\n"
.LC57:
	.string	"get_culprit"
.LC58:
	.string	"cause %d\n"
.LC59:
	.string	"survey"
.LC60:
	.string	"%d iterations, %d levels\n"
.LC61:
	.string	"get_findings"
.LC62:
	.string	"shutdown"
	.text
	.type	raw, @function
raw:
	pushq	%r15
	leaq	input.5(%rip), %r15
	pushq	%r14
	leaq	updates_of.3(%rip), %r14
	pushq	%r13
	leaq	.LC42(%rip), %r13
	pushq	%r12
	leaq	output.2(%rip), %r12
	pushq	%rbp
	pushq	%rbx
	leaq	weights.6(%rip), %rbx
	subq	$2520, %rsp
	call	amp_buffer_host@PLT
	leaq	1104(%rsp), %rdi
	xorl	%r9d, %r9d
	movl	$44, %ecx
	movq	%rax, %rsi
	xorl	%eax, %eax
	movl	$134217729, %edx
	movl	$40, 168(%rsp)
	rep movsl
	leaq	172(%rsp), %rdi
	movl	$7, %ecx
	salq	$5, %rdx
	rep stosl
	xorl	%ecx, %ecx
	movq	%rdx, 72(%rsp)
	leaq	460(%rsp), %rdi
	movq	%rdx, 104(%rsp)
	leaq	552(%rsp), %rdx
	leaq	72(%rsp), %r8
	movl	$40, %esi
	movq	%rcx, 128(%rsp)
	movl	$23, %ecx
	leaq	648(%rsp), %rbp
	rep stosl
	movl	$23, %ecx
	leaq	556(%rsp), %rdi
	movq	%rdx, 16(%rsp)
	rep stosl
	movl	$25, %ecx
	leaq	652(%rsp), %rdi
	movl	$7, %edx
	rep stosl
	movl	$30, %ecx
	leaq	984(%rsp), %rdi
	movq	%r8, 32(%rsp)
	rep stosl
	movl	$19, %ecx
	leaq	300(%rsp), %rdi
	movl	$96, 456(%rsp)
	rep stosl
	movl	$7, %ecx
	leaq	140(%rsp), %rdi
	movq	$24, 48(%rsp)
	rep stosl
	movl	$11, %ecx
	movq	%rbp, 24(%rsp)
	leaq	252(%rsp), %rdi
	rep stosl
	movq	%rbx, %rdi
	movl	$96, 552(%rsp)
	movl	$104, 648(%rsp)
	movl	$128, 976(%rsp)
	movl	$80, 296(%rsp)
	movl	$32, 136(%rsp)
	movl	$48, 248(%rsp)
	call	fill
	movq	%r15, %rdi
	movl	$8, %edx
	call	fill
	movl	$1, %ecx
	movq	%r8, 56(%rsp)
	leaq	visit(%rip), %rax
	leaq	24(%rsp), %rdx
	leaq	16(%rsp), %rdi
	movl	$1, %esi
	movq	%rax, 1240(%rsp)
	leaq	.LC38(%rip), %rax
	movq	%rbx, 80(%rsp)
	leaq	976(%rsp), %r8
	movq	%rax, 176(%rsp)
	leaq	.LC39(%rip), %rax
	movq	%rax, 200(%rsp)
	leaq	.LC40(%rip), %rax
	movq	%rax, 472(%rsp)
	leaq	32+l.4(%rip), %rax
	movq	%rax, 504(%rsp)
	leaq	.LC41(%rip), %rax
	movq	%rax, 488(%rsp)
	leaq	104(%rsp), %rax
	movq	%rax, 96(%rsp)
	leaq	1104(%rsp), %rax
	movq	%rax, 656(%rsp)
	movq	%rax, 560(%rsp)
	leaq	456(%rsp), %rax
	movq	%rax, 576(%rsp)
	leaq	48(%rsp), %rax
	movq	%rax, 592(%rsp)
	leaq	168(%rsp), %rax
	movq	%rax, 624(%rsp)
	leaq	32(%rsp), %rax
	movq	$40, 184(%rsp)
	movl	$8, 192(%rsp)
	movq	$40, 120(%rsp)
	movq	$40, 88(%rsp)
	movq	%r14, 112(%rsp)
	movq	%r13, 64(%rsp)
	movq	$1, 584(%rsp)
	movq	$1, 600(%rsp)
	movq	$1, 632(%rsp)
	movq	%rax, 672(%rsp)
	movq	$1, 680(%rsp)
	movl	$3, 980(%rsp)
	movl	$2, 1072(%rsp)
	movl	$2, 1092(%rsp)
	call	amp_initialize_many@PLT
	leaq	.LC43(%rip), %rdi
	movl	%eax, %esi
	call	say
	movq	616(%rsp), %rdi
	leaq	248(%rsp), %rsi
	movl	$1, 256(%rsp)
	call	amp_observe@PLT
	leaq	.LC44(%rip), %rdi
	movl	%eax, %esi
	call	say
	leaq	296(%rsp), %rax
	xorl	%esi, %esi
	movq	%rbp, %rdi
	movq	%rax, %rdx
	movq	%rax, (%rsp)
	call	amp_scale_loss_begin@PLT
	leaq	.LC45(%rip), %rdi
	movl	%eax, %esi
	call	say
	subq	$48, %rsp
	movl	$10, %ecx
	leaq	l.4(%rip), %rsi
	movq	%rsp, %rdi
	rep movsl
	movq	%r15, %rdi
	leaq	160(%r12), %r15
	call	*32+l.4(%rip)
	addq	$48, %rsp
.L41:
	movss	(%r12), %xmm3
	movq	(%rsp), %rdi
	addq	$4, %r12
	addq	$4, %r14
	movss	%xmm3, 12(%rsp)
	call	amp_seed_factor@PLT
	mulss	12(%rsp), %xmm0
	mulss	.LC46(%rip), %xmm0
	addss	-4(%r14), %xmm0
	movss	%xmm0, -4(%r14)
	cmpq	%r12, %r15
	jne	.L41
	movq	(%rsp), %rdi
	call	amp_scale_loss_end@PLT
	leaq	.LC47(%rip), %rdi
	movl	%eax, %esi
	call	say
	leaq	136(%rsp), %rsi
	movq	%rbp, %rdi
	call	amp_step_begin@PLT
	leaq	.LC48(%rip), %rdi
	movl	%eax, %esi
	call	say
	cmpl	$0, 140(%rsp)
	jne	.L42
	movss	.LC18(%rip), %xmm2
	xorl	%eax, %eax
.L43:
	leaq	updates_of.3(%rip), %rdx
	movss	(%rbx,%rax), %xmm0
	movss	(%rdx,%rax), %xmm1
	mulss	%xmm2, %xmm1
	subss	%xmm1, %xmm0
	movss	%xmm0, (%rbx,%rax)
	addq	$4, %rax
	cmpq	$160, %rax
	jne	.L43
.L42:
	movq	%rbp, %rdi
	leaq	40(%rsp), %r12
	xorl	%ebp, %ebp
	call	amp_step_end@PLT
	leaq	.LC49(%rip), %rdi
	movl	%eax, %esi
	call	say
	movl	$160, %edx
	leaq	output.2(%rip), %rsi
	leaq	.LC50(%rip), %rdi
	call	bytes
	movq	%rbx, %rsi
	movq	%r13, %rdi
	movl	$160, %edx
	call	bytes
	xorl	%eax, %eax
	movl	$29, %ecx
	xorl	%edx, %edx
	leaq	860(%rsp), %rdi
	leaq	1280(%rsp), %rbx
	movq	%rdx, 40(%rsp)
	movl	$1, %edx
	rep stosl
	movl	$25, %ecx
	leaq	756(%rsp), %rdi
	leaq	856(%rsp), %rsi
	rep stosl
	movl	$164, %ecx
	leaq	1856(%rsp), %rdi
	movl	$120, 856(%rsp)
	rep stosl
	movl	$19, %ecx
	leaq	380(%rsp), %rdi
	movl	$104, 752(%rsp)
	rep stosl
	movl	$9, %ecx
	leaq	212(%rsp), %rdi
	movl	$656, 1856(%rsp)
	rep stosl
	movl	$144, %ecx
	movq	%rbx, %rdi
	movl	$80, 376(%rsp)
	rep stosl
	movq	616(%rsp), %rdi
	movq	%r12, %rcx
	movl	$40, 208(%rsp)
	movl	$72, 1280(%rsp)
	leaq	.LC56(%rip), %r13
	movl	$72, 1352(%rsp)
	movl	$72, 1424(%rsp)
	movl	$72, 1496(%rsp)
	movl	$72, 1568(%rsp)
	movl	$72, 1640(%rsp)
	movl	$72, 1712(%rsp)
	movl	$72, 1784(%rsp)
	call	amp_get_op_stats@PLT
	leaq	.LC51(%rip), %rdi
	movl	%eax, %esi
	call	say
	movl	880(%rsp), %ecx
	xorl	%eax, %eax
	movl	872(%rsp), %edx
	movq	864(%rsp), %rsi
	leaq	.LC52(%rip), %rdi
	call	printf@PLT
	movq	616(%rsp), %rdi
	leaq	752(%rsp), %rsi
	call	amp_get_memory@PLT
	leaq	.LC53(%rip), %rdi
	movl	%eax, %esi
	call	say
	movl	776(%rsp), %edx
	movl	760(%rsp), %esi
	xorl	%eax, %eax
	leaq	.LC54(%rip), %rdi
	call	printf@PLT
	movq	%r12, %rcx
	movl	$8, %edx
	movq	%rbx, %rsi
	movq	616(%rsp), %rdi
	call	amp_get_observations@PLT
	leaq	.LC55(%rip), %rdi
	movl	%eax, %esi
	call	say
.L44:
	addq	$72, %rbx
	cmpq	40(%rsp), %rbp
	jnb	.L47
	cmpq	$8, %rbp
	je	.L47
	movq	-8(%rbx), %rax
	movq	-48(%rbx), %rdx
	movq	%r13, %rdi
	incq	%rbp
	movl	-68(%rbx), %esi
	movsd	64(%rax), %xmm0
	movl	8(%rax), %ecx
	movb	$1, %al
	call	printf@PLT
	jmp	.L44
.L47:
	movq	616(%rsp), %rdi
	leaq	1856(%rsp), %rsi
	call	amp_get_culprit@PLT
	leaq	.LC57(%rip), %rdi
	movl	%eax, %esi
	call	say
	movl	1872(%rsp), %esi
	leaq	.LC58(%rip), %rdi
	xorl	%eax, %eax
	call	printf@PLT
	movq	616(%rsp), %rdi
	leaq	376(%rsp), %rsi
	call	amp_survey@PLT
	leaq	.LC59(%rip), %rdi
	movl	%eax, %esi
	call	say
	movl	424(%rsp), %edx
	movl	392(%rsp), %esi
	xorl	%eax, %eax
	leaq	.LC60(%rip), %rdi
	call	printf@PLT
	movq	616(%rsp), %rdi
	movq	%r12, %rcx
	movl	$1, %edx
	leaq	208(%rsp), %rsi
	call	amp_get_findings@PLT
	leaq	.LC61(%rip), %rdi
	movl	%eax, %esi
	call	say
	movq	616(%rsp), %rdi
	call	amp_shutdown@PLT
	leaq	.LC62(%rip), %rdi
	movl	%eax, %esi
	call	say
	addq	$2520, %rsp
	popq	%rbx
	popq	%rbp
	popq	%r12
	popq	%r13
	popq	%r14
	popq	%r15
	ret
	.size	raw, .-raw
	.section	.rodata.str1.1
.LC64:
	.string	"get_config"
.LC65:
	.string	"losses %u\n"
.LC66:
	.string	"op_target"
.LC67:
	.string	"type %d\n"
.LC68:
	.string	"softmax"
.LC69:
	.string	"op_class"
.LC70:
	.string	"class %d\n"
.LC71:
	.string	"scope_enter"
.LC72:
	.string	"cast_to"
.LC73:
	.string	"cast_done"
.LC74:
	.string	"scope_leave"
.LC75:
	.string	"get_list_ops"
.LC76:
	.string	"listed %d: %s %d\n"
.LC77:
	.string	"get_gate_rows"
.LC78:
	.string	"row of %s\n"
.LC79:
	.string	"get_backends"
.LC80:
	.string	"backend %s\n"
	.text
	.type	named, @function
named:
	pushq	%r12
	movl	$23, %ecx
	xorl	%esi, %esi
	xorl	%edx, %edx
	pushq	%rbp
	pushq	%rbx
	xorl	%ebx, %ebx
	movl	%ebx, %eax
	subq	$656, %rsp
	movq	%rdx, 24(%rsp)
	leaq	56(%rsp), %rbp
	leaq	88(%rsp), %r12
	leaq	212(%rsp), %rdi
	movl	%esi, 8(%rsp)
	rep stosl
	movl	$31, %ecx
	leaq	208(%rsp), %rax
	leaq	404(%rsp), %rdi
	movq	%rax, 16(%rsp)
	movl	%ebx, %eax
	rep stosl
	movl	$31, %ecx
	leaq	532(%rsp), %rdi
	movl	%esi, 12(%rsp)
	rep stosl
	leaq	92(%rsp), %rdi
	movl	$9, %ecx
	movl	$96, 208(%rsp)
	rep stosl
	leaq	132(%rsp), %rdi
	movl	$9, %ecx
	movl	$128, 400(%rsp)
	rep stosl
	xorl	%ecx, %ecx
	xorl	%edi, %edi
	movabsq	$4294967297, %rax
	movq	%rcx, 176(%rsp)
	movq	%rcx, 184(%rsp)
	movq	%rcx, 192(%rsp)
	movq	%rcx, 200(%rsp)
	movq	%rdi, 32(%rsp)
	movq	%rdi, 40(%rsp)
	movl	$128, 528(%rsp)
	movl	$40, 88(%rsp)
	movl	$40, 128(%rsp)
	movq	$40, 168(%rsp)
	movq	%rax, 48(%rsp)
	call	amp_buffer_host@PLT
	leaq	24(%rsp), %r9
	xorl	%ecx, %ecx
	xorl	%edx, %edx
	leaq	400(%rsp), %r8
	leaq	16(%rsp), %rdi
	movl	$1, %esi
	movq	%rax, 216(%rsp)
	movl	$5, 404(%rsp)
	call	amp_initialize_many@PLT
	leaq	.LC43(%rip), %rdi
	movl	%eax, %esi
	call	say
	movq	24(%rsp), %rdi
	leaq	528(%rsp), %rsi
	call	amp_get_config@PLT
	leaq	.LC64(%rip), %rdi
	movl	%eax, %esi
	call	say
	movl	572(%rsp), %esi
	leaq	.LC65(%rip), %rdi
	xorl	%eax, %eax
	call	printf@PLT
	movq	24(%rsp), %rdi
	leaq	8(%rsp), %r8
	movl	$2, %ecx
	leaq	48(%rsp), %rdx
	leaq	.LC40(%rip), %rsi
	call	amp_op_target@PLT
	leaq	.LC66(%rip), %rdi
	movl	%eax, %esi
	call	say
	movl	8(%rsp), %esi
	leaq	.LC67(%rip), %rdi
	xorl	%eax, %eax
	call	printf@PLT
	movq	24(%rsp), %rdi
	leaq	12(%rsp), %rdx
	leaq	.LC68(%rip), %rsi
	call	amp_op_class@PLT
	leaq	.LC69(%rip), %rdi
	movl	%eax, %esi
	call	say
	movl	12(%rsp), %esi
	leaq	.LC70(%rip), %rdi
	xorl	%eax, %eax
	call	printf@PLT
	movq	24(%rsp), %rdi
	movq	%rbp, %rsi
	call	amp_scope_enter@PLT
	leaq	.LC71(%rip), %rdi
	movl	%eax, %esi
	call	say
	movq	24(%rsp), %rdi
	movq	%r12, %r8
	leaq	40(%rsp), %rdx
	movl	$1, %ecx
	movl	$3, %esi
	call	amp_cast_to@PLT
	leaq	.LC72(%rip), %rdi
	movl	%eax, %esi
	call	say
	movq	%r12, %rdi
	call	amp_cast_done@PLT
	leaq	.LC73(%rip), %rdi
	movl	%eax, %esi
	call	say
	movq	%rbp, %rdi
	call	amp_scope_leave@PLT
	leaq	.LC74(%rip), %rdi
	movl	%eax, %esi
	call	say
	leaq	308(%rsp), %rdx
	movl	%ebx, %eax
	movl	$23, %ecx
	leaq	32(%rsp), %rbx
	movq	%rdx, %rdi
	leaq	304(%rsp), %rsi
	movl	$4, %edx
	rep stosl
	movq	%rbx, %rcx
	movl	$1, %edi
	movl	$24, 304(%rsp)
	movl	$24, 328(%rsp)
	movl	$24, 352(%rsp)
	movl	$24, 376(%rsp)
	call	amp_get_list_ops@PLT
	leaq	.LC75(%rip), %rdi
	movl	%eax, %esi
	call	say
	movl	392(%rsp), %ecx
	xorl	%esi, %esi
	movq	384(%rsp), %rdx
	cmpq	$100, 32(%rsp)
	leaq	.LC76(%rip), %rdi
	seta	%sil
	xorl	%eax, %eax
	call	printf@PLT
	movq	%rbx, %rdx
	movl	$1, %esi
	leaq	128(%rsp), %rdi
	call	amp_get_gate_rows@PLT
	leaq	.LC77(%rip), %rdi
	movl	%eax, %esi
	call	say
	movq	136(%rsp), %rsi
	leaq	.LC78(%rip), %rdi
	xorl	%eax, %eax
	call	printf@PLT
	movq	%rbx, %rdx
	movl	$1, %esi
	leaq	168(%rsp), %rdi
	call	amp_get_backends@PLT
	leaq	.LC79(%rip), %rdi
	movl	%eax, %esi
	call	say
	movq	176(%rsp), %rsi
	leaq	.LC80(%rip), %rdi
	xorl	%eax, %eax
	call	printf@PLT
	movq	24(%rsp), %rdi
	call	amp_shutdown@PLT
	leaq	.LC62(%rip), %rdi
	movl	%eax, %esi
	call	say
	addq	$656, %rsp
	popq	%rbx
	popq	%rbp
	popq	%r12
	ret
	.size	named, .-named
	.section	.rodata.str1.1
.LC81:
	.string	"statistics_list"
.LC82:
	.string	"statistics"
.LC84:
	.string	"statistics_losses"
.LC85:
	.string	"losses %d %d %d\n"
.LC86:
	.string	"pack"
.LC87:
	.string	"packed"
.LC88:
	.string	"unpack"
.LC89:
	.string	"unpacked"
.LC90:
	.string	"the table is too small"
.LC91:
	.string	"O5"
.LC92:
	.string	"level_from_name"
.LC93:
	.string	"level %d\n"
.LC94:
	.string	"rows %d\n"
	.text
	.globl	calls
	.type	calls, @function
calls:
	pushq	%r15
	pushq	%r14
	leaq	x.10(%rip), %r14
	pushq	%r13
	pushq	%r12
	leaq	packed.8(%rip), %r12
	pushq	%rbp
	leaq	seen.11(%rip), %rbp
	pushq	%rbx
	subq	$248, %rsp
	call	lists
	leaq	80(%rsp), %rax
	movl	$2, %edx
	movl	$40, %esi
	movq	%rax, %rdi
	movq	%rax, (%rsp)
	leaq	40(%rsp), %rbx
	call	fill
	movq	(%rsp), %rsi
	movl	$1, %ecx
	movq	%rbx, %rdi
	movl	$40, %edx
	call	span
	movq	%rbp, %rdx
	movl	$1, %esi
	movq	%rbx, %rdi
	call	amp_statistics_list@PLT
	leaq	.LC81(%rip), %rdi
	movl	%eax, %esi
	call	say
	leaq	8(%rbp), %rsi
	movl	$8952, %edx
	leaq	.LC82(%rip), %rdi
	call	bytes
	movss	.LC83(%rip), %xmm0
	leaq	16(%rsp), %rdx
	movq	%rbp, %rdi
	movl	$2, %esi
	leaq	bits.9(%rip), %rbp
	call	amp_statistics_losses@PLT
	leaq	.LC84(%rip), %rdi
	leaq	16(%rbp), %r15
	movl	%eax, %esi
	call	say
	movl	32(%rsp), %ecx
	movl	24(%rsp), %edx
	xorl	%eax, %eax
	movl	16(%rsp), %esi
	leaq	.LC85(%rip), %rdi
	call	printf@PLT
	movl	$3, %edx
	movl	$300, %esi
	movq	%r14, %rdi
	call	fill
.L58:
	xorl	%eax, %eax
	movl	$6, %ecx
	movl	0(%rbp), %r8d
	movl	$300, %edx
	leaq	128(%rsp), %rdi
	movq	%r14, %rsi
	leaq	y.7(%rip), %r13
	movl	$40, 40(%rsp)
	rep stosl
	leaq	96(%rsp), %rdi
	movl	$1, %ecx
	movl	$72, 80(%rsp)
	movl	%r8d, 44(%rsp)
	movl	%r8d, 84(%rsp)
	movq	$9, 88(%rsp)
	call	span
	leaq	48(%rsp), %rdi
	movq	%r13, %rsi
	movl	$300, %edx
	movq	%r12, 120(%rsp)
	movq	%r12, 72(%rsp)
	call	span
	movl	%r8d, %esi
	movl	$300, %edi
	call	amp_pack_bytes@PLT
	cmpq	$1024, %rax
	jbe	.L57
	movl	$2, %edi
	call	exit@PLT
.L57:
	movq	(%rsp), %rdi
	movq	%rax, 8(%rsp)
	addq	$4, %rbp
	call	amp_pack@PLT
	leaq	.LC86(%rip), %rdi
	movl	%eax, %esi
	call	say
	movq	8(%rsp), %rdx
	movq	%r12, %rsi
	leaq	.LC87(%rip), %rdi
	call	bytes
	movq	%rbx, %rdi
	call	amp_unpack@PLT
	leaq	.LC88(%rip), %rdi
	movl	%eax, %esi
	call	say
	movl	$1200, %edx
	movq	%r13, %rsi
	leaq	.LC89(%rip), %rdi
	call	bytes
	cmpq	%r15, %rbp
	jne	.L58
	call	updates
	call	split
	call	product
	call	raw
	call	named
	movl	$1, %edi
	call	amp_get_api@PLT
	xorl	%edx, %edx
	movq	%rax, %rbp
	xorl	%eax, %eax
	movq	%rdx, 80(%rsp)
	movl	%eax, 40(%rsp)
	testq	%rbp, %rbp
	je	.L59
	cmpl	$607, 0(%rbp)
	jbe	.L59
	cmpl	$0, 4(%rbp)
	jne	.L60
.L59:
	leaq	.LC90(%rip), %rdi
	call	puts@PLT
	movl	$1, failed(%rip)
	jmp	.L61
.L60:
	movq	%rbx, %rsi
	leaq	.LC91(%rip), %rdi
	call	*40(%rbp)
	leaq	.LC92(%rip), %rdi
	movl	%eax, %esi
	call	say
	movl	40(%rsp), %esi
	leaq	.LC93(%rip), %rdi
	xorl	%eax, %eax
	call	printf@PLT
	xorl	%edi, %edi
	call	*72(%rbp)
	leaq	.LC62(%rip), %rdi
	movl	%eax, %esi
	call	say
	xorl	%esi, %esi
	xorl	%edi, %edi
	movq	(%rsp), %rdx
	call	*576(%rbp)
	leaq	.LC77(%rip), %rdi
	movl	%eax, %esi
	call	say
	xorl	%esi, %esi
	cmpq	$0, 80(%rsp)
	leaq	.LC94(%rip), %rdi
	setne	%sil
	xorl	%eax, %eax
	call	printf@PLT
.L61:
	movl	failed(%rip), %eax
	addq	$248, %rsp
	popq	%rbx
	popq	%rbp
	popq	%r12
	popq	%r13
	popq	%r14
	popq	%r15
	ret
	.size	calls, .-calls
	.section	.rodata.str1.1
.LC95:
	.string	"input"
	.section	.data.rel.ro.local,"aw"
	.align 16
	.type	names.0, @object
	.size	names.0, 24
names.0:
	.quad	.LC42
	.quad	.LC50
	.quad	.LC95
	.section	.rodata
	.align 8
	.type	roles.1, @object
	.size	roles.1, 12
roles.1:
	.long	1
	.long	3
	.long	1
	.local	output.2
	.comm	output.2,160,32
	.local	updates_of.3
	.comm	updates_of.3,160,32
	.section	.data.rel.local,"aw"
	.align 32
	.type	l.4, @object
	.size	l.4, 40
l.4:
	.quad	weights.6
	.quad	updates_of.3
	.quad	output.2
	.long	40
	.zero	4
	.quad	layer_forward
	.local	input.5
	.comm	input.5,160,32
	.local	weights.6
	.comm	weights.6,160,32
	.local	y.7
	.comm	y.7,1200,32
	.local	packed.8
	.comm	packed.8,1024,32
	.section	.rodata
	.align 16
	.type	bits.9, @object
	.size	bits.9, 16
bits.9:
	.long	8
	.long	4
	.long	2
	.long	1
	.local	x.10
	.comm	x.10,1200,32
	.data
	.align 32
	.type	seen.11, @object
	.size	seen.11, 8960
seen.11:
	.long	8960
	.long	0
	.quad	0
	.quad	0
	.quad	0
	.quad	0
	.quad	0
	.quad	0
	.quad	0
	.long	0
	.long	0
	.long	0
	.long	0
	.long	0
	.long	0
	.long	0
	.long	0
	.quad	0
	.quad	0
	.quad	0
	.quad	0
	.zero	8832
	.local	failed
	.comm	failed,4,4
	.section	.rodata.cst4,"aM",@progbits,4
	.align 4
.LC0:
	.long	1111490560
	.align 4
.LC9:
	.long	1050253722
	.align 4
.LC12:
	.long	-1087163597
	.align 4
.LC13:
	.long	1073741824
	.align 4
.LC18:
	.long	1056964608
	.align 4
.LC23:
	.long	1065353216
	.align 4
.LC46:
	.long	981467136
	.align 4
.LC83:
	.long	897581056
	.section	.note.GNU-stack,"",@progbits
