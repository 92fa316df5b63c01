/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slots for functions that a program calls directly. Header only: it needs no symbol of libamp.
 *
 * libamp wires function pointers. A program with functions that call each other by name has none. Each macro below
 * makes a trampoline, a function that only jumps through a pointer, and that pointer, which is an ordinary slot:
 *
 *     AMP_SYMBOL_WRAP(gemm_slot, gemm);            in the adapter, at file scope; link with -Wl,--wrap=gemm
 *
 *     op.slot = &gemm_slot;                        and all else as for any op
 *
 * The program is not edited. docs/reference/symbols.md helps to choose the macro, says how to build the program, and
 * lists the calls that no build can catch. Until libamp writes to the slot, calls go to the original. A slot may also
 * receive a function of the adapter.
 *
 * A trampoline has no signature: arguments in registers and on the stack, structs by value, variable arguments, the
 * return value and the return address are as in a direct call. It has no frame in exceptions and backtraces. It is a
 * valid target of indirect branches under IBT on x86 and BTI on arm64. Its cost is an indirect jump.
 *
 * x86-64 and arm64 with ELF, gcc or clang, C99 or C++11 and later. Compile the adapter without LTO (-fno-lto) and
 * without -masm=intel, since trampolines are assembly. Names are those of the object file, in C++ the mangled ones.
 * Slots are hidden symbols. Other files of the adapter declare one as `extern amp_fn gemm_slot;`.
 */
#ifndef AMP_SYMBOL_H
#define AMP_SYMBOL_H

#include "amp.h"

#if !defined(__ELF__) || !defined(__LP64__) || !(defined(__x86_64__) || defined(__aarch64__))
#error "amp_symbol.h has trampolines for x86-64 and arm64 with ELF. Elsewhere call amp_cast_args around the function."
#endif

/* Makes the trampoline `symbol` with the pointer `slot`, initially `original`: for programs that renamed the
 * function. */
#define AMP_SYMBOL(slot, symbol, original)                                                                             \
    AMP_SYMBOL_SLOT_(slot, slot##_original, #original)                                                                 \
    AMP_SYMBOL_TRAMPOLINE_(#slot, #symbol, ".globl " #symbol)

/* Makes a trampoline for --wrap=symbol of the linker: calls from objects other than the one with the definition of
 * `symbol` go to the trampoline __wrap_symbol. The slot is initially __real_symbol, the definition. */
#define AMP_SYMBOL_WRAP(slot, symbol)                                                                                  \
    AMP_SYMBOL_SLOT_(slot, slot##_original, "__real_" #symbol)                                                         \
    AMP_SYMBOL_TRAMPOLINE_(#slot, "__wrap_" #symbol, ".globl __wrap_" #symbol "\n\t.hidden __wrap_" #symbol)

/*
 * Makes a trampoline for an adapter that precedes the definition of `symbol` for the dynamic linker: a preloaded
 * object, or an executable before its shared libraries. The constructors of the adapter set the slot to the next
 * definition, dlsym(RTLD_NEXT). A call before them, or without a definition then, searches again, and if there is still
 * none it prints a message on stderr and aborts. A process that never calls the function is not affected. In a call
 * before the constructors, vector arguments of more than 16 bytes are lost. With glibc before 2.34 link with -ldl.
 */
#define AMP_SYMBOL_NEXT(slot, symbol)                                                                                  \
    AMP_SYMBOL_SLOT_(slot, slot##_search, #slot "_search")                                                             \
    static amp_fn slot##_found;                                                                                        \
    __attribute__((used)) static amp_fn slot##_find(void) __asm__(#slot "_find");                                      \
    static amp_fn slot##_find(void) { return amp_symbol_next_(&slot, slot##_search, &slot##_found, #symbol, 1); }      \
    __attribute__((constructor)) static void slot##_load(void) {                                                       \
        (void)amp_symbol_next_(&slot, slot##_search, &slot##_found, #symbol, 0);                                       \
    }                                                                                                                  \
    AMP_SYMBOL_SEARCH_(#slot "_search", #slot "_find")                                                                 \
    AMP_SYMBOL_TRAMPOLINE_(#slot, #symbol, ".globl " #symbol)

/* ---- What they are made of: nothing below is for use by itself --------------------------------------------------- */

/* The name for the assembler is separate, so that the prototype of the program may be visible. */
#define AMP_SYMBOL_SLOT_(slot, original, name)                                                                         \
    extern void original(void) __asm__(name);                                                                          \
    extern __attribute__((visibility("hidden"))) amp_fn slot;                                                          \
    __attribute__((used)) amp_fn slot = original;

#define AMP_SYMBOL_CODE_(name, binding, body)                                                                          \
    ".pushsection .text\n"                                                                                             \
    "\t" binding "\n"                                                                                                  \
    "\t.type " name ", %function\n"                                                                                    \
    "\t.p2align 4\n"                                                                                                   \
    name ":\n"                                                                                                         \
    "\t.cfi_startproc\n"                                                                                               \
    body                                                                                                               \
    "\t.cfi_endproc\n"                                                                                                 \
    "\t.size " name ", . - " name "\n"                                                                                 \
    ".popsection\n"

/* Registers: x86-64 none. arm64 x16, which calls may change, and from which a jump may reach "bti c". */
#if defined(__x86_64__)
#define AMP_SYMBOL_JUMP_(slot) "\tendbr64\n\tjmp *" slot "(%rip)\n"
#else
#define AMP_SYMBOL_JUMP_(slot) "\thint #34\n\tadrp x16, " slot "\n\tldr x16, [x16, :lo12:" slot "]\n\tbr x16\n"
#endif

#define AMP_SYMBOL_TRAMPOLINE_(slot, name, binding) __asm__(AMP_SYMBOL_CODE_(name, binding, AMP_SYMBOL_JUMP_(slot)))

/* Calls `find` with every argument register saved, and jumps to the returned address. */
#if defined(__x86_64__)
#define AMP_SYMBOL_KEEP_(find)                                                                                         \
    "\tendbr64\n"                                                                                                      \
    "\tpushq %rbp\n\t.cfi_def_cfa_offset 16\n\t.cfi_offset %rbp, -16\n"                                                \
    "\tmovq %rsp, %rbp\n\t.cfi_def_cfa_register %rbp\n"                                                                \
    "\tsubq $192, %rsp\n"                                                                                              \
    "\tmovq %rax, (%rsp)\n\tmovq %rdi, 8(%rsp)\n\tmovq %rsi, 16(%rsp)\n\tmovq %rdx, 24(%rsp)\n"                        \
    "\tmovq %rcx, 32(%rsp)\n\tmovq %r8, 40(%rsp)\n\tmovq %r9, 48(%rsp)\n\tmovq %r10, 56(%rsp)\n"                       \
    "\tmovups %xmm0, 64(%rsp)\n\tmovups %xmm1, 80(%rsp)\n\tmovups %xmm2, 96(%rsp)\n\tmovups %xmm3, 112(%rsp)\n"        \
    "\tmovups %xmm4, 128(%rsp)\n\tmovups %xmm5, 144(%rsp)\n\tmovups %xmm6, 160(%rsp)\n\tmovups %xmm7, 176(%rsp)\n"     \
    "\tcall " find "\n\tmovq %rax, %r11\n"                                                                             \
    "\tmovq (%rsp), %rax\n\tmovq 8(%rsp), %rdi\n\tmovq 16(%rsp), %rsi\n\tmovq 24(%rsp), %rdx\n"                        \
    "\tmovq 32(%rsp), %rcx\n\tmovq 40(%rsp), %r8\n\tmovq 48(%rsp), %r9\n\tmovq 56(%rsp), %r10\n"                       \
    "\tmovups 64(%rsp), %xmm0\n\tmovups 80(%rsp), %xmm1\n\tmovups 96(%rsp), %xmm2\n\tmovups 112(%rsp), %xmm3\n"        \
    "\tmovups 128(%rsp), %xmm4\n\tmovups 144(%rsp), %xmm5\n\tmovups 160(%rsp), %xmm6\n\tmovups 176(%rsp), %xmm7\n"     \
    "\tleave\n\t.cfi_def_cfa %rsp, 8\n\t.cfi_restore %rbp\n"                                                           \
    "\tjmp *%r11\n"
#else
#define AMP_SYMBOL_KEEP_(find)                                                                                         \
    "\thint #34\n"                                                                                                     \
    "\tstp x29, x30, [sp, #-224]!\n\t.cfi_def_cfa_offset 224\n\t.cfi_offset x29, -224\n\t.cfi_offset x30, -216\n"      \
    "\tmov x29, sp\n"                                                                                                  \
    "\tstp x0, x1, [sp, #16]\n\tstp x2, x3, [sp, #32]\n\tstp x4, x5, [sp, #48]\n\tstp x6, x7, [sp, #64]\n"             \
    "\tstr x8, [sp, #80]\n"                                                                                            \
    "\tstp q0, q1, [sp, #96]\n\tstp q2, q3, [sp, #128]\n\tstp q4, q5, [sp, #160]\n\tstp q6, q7, [sp, #192]\n"          \
    "\tbl " find "\n\tmov x16, x0\n"                                                                                   \
    "\tldp x0, x1, [sp, #16]\n\tldp x2, x3, [sp, #32]\n\tldp x4, x5, [sp, #48]\n\tldp x6, x7, [sp, #64]\n"             \
    "\tldr x8, [sp, #80]\n"                                                                                            \
    "\tldp q0, q1, [sp, #96]\n\tldp q2, q3, [sp, #128]\n\tldp q4, q5, [sp, #160]\n\tldp q6, q7, [sp, #192]\n"          \
    "\tldp x29, x30, [sp], #224\n\t.cfi_def_cfa_offset 0\n\t.cfi_restore x29\n\t.cfi_restore x30\n"                    \
    "\tbr x16\n"
#endif

#define AMP_SYMBOL_SEARCH_(name, find) __asm__(AMP_SYMBOL_CODE_(name, ".local " name, AMP_SYMBOL_KEEP_(find)));

/* libc's, under names of our own: this header neither includes <dlfcn.h>, which wants _GNU_SOURCE for RTLD_NEXT, nor
 * minds if the adapter does. */
#ifdef __cplusplus
extern "C" {
#endif
extern amp_fn amp_symbol_dlsym_(void *handle, const char *name) __asm__("dlsym");
extern int amp_symbol_dprintf_(int file, const char *format, ...) __asm__("dprintf");
extern void amp_symbol_abort_(void) __asm__("abort");
#ifdef __cplusplus
}
#endif

/* The next definition; NULL if there is none and it is not `needed`. A slot that was written to since is left alone. */
static inline amp_fn amp_symbol_next_(amp_fn *slot, amp_fn search, amp_fn *found, const char *name, int needed) {
    amp_fn next = __atomic_load_n(found, __ATOMIC_RELAXED);
    if (!next) next = amp_symbol_dlsym_((void *)-1L /* RTLD_NEXT */, name);
    if (next) {
        __atomic_store_n(found, next, __ATOMIC_RELAXED);
        (void)__atomic_compare_exchange_n(slot, &search, next, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    } else if (needed) {
        (void)amp_symbol_dprintf_(2, "amp_symbol.h: %s was called, but behind the adapter no shared object defines it: "
                                  "a function of the executable itself cannot be replaced from outside, and one that "
                                  "is opened with dlopen needs RTLD_GLOBAL "
                                  "(libamp, docs/reference/symbols.md)\n", name);
        amp_symbol_abort_();
    }
    return next;
}

#endif /* AMP_SYMBOL_H */
