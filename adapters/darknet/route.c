/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose function did the caller mean? Preloaded, ours come before any other of these names, and other libraries have
 * a `free_layer` or `update_network` too, with arguments and results of their own. So each export is an entry without a
 * prototype: it keeps every register in which arguments travel, asks where the call would have gone without us, and
 * jumps there; or to ours, where that is darknet's.
 */
#include "adapter.h"

#include <dlfcn.h>

typedef void function(void);

struct route {
    const char *name;
    function *ours;
    function *target; /* NULL: it is asked for at each call */
};

/* ISO C has no cast for it. */
static function *as_function(void *address) {
    function *made;
    memcpy(&made, &address, sizeof made);
    return made;
}

/* What an object that is loaded and those that it needs call `name`; NULL: nothing. */
static void *in_object(const void *inside, const char *name) {
    Dl_info info;
    void *found = NULL;
    if (!dladdr(inside, &info) || !info.dli_fname) return NULL;
    void *object = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (!object) return NULL;
    found = dlsym(object, name);
    (void)dlclose(object); /* the caller is in it: it stays */
    return found;
}

/* Darknet's parser lies in the same object. */
static bool is_darknets(void *address) {
    Dl_info its, parsers;
    void *parser = in_object(address, "parse_network_cfg");
    return parser && dladdr(address, &its) && dladdr(parser, &parsers) && its.dli_fbase == parsers.dli_fbase;
}

/* Where a call from `caller` goes: for the entries below. Without us it would go to the next of that name, whoever
 * calls; or, if there is none, to that of the caller's own scope: it was opened with RTLD_LOCAL. */
function *amp_darknet_route(struct route *r, const void *caller);

function *amp_darknet_route(struct route *r, const void *caller) {
    function *target = __atomic_load_n(&r->target, __ATOMIC_ACQUIRE);
    if (target) return target;
    void *next = dlsym(RTLD_NEXT, r->name);
    if (next) {
        target = is_darknets(next) ? r->ours : as_function(next);
        __atomic_store_n(&r->target, target, __ATOMIC_RELEASE);
        return target;
    }
    void *local = in_object(caller, r->name);
    if (!local || is_darknets(local))
        stop("%s was called, but behind this library no shared object has it: libdarknet.so that is opened with dlopen "
             "needs RTLD_GLOBAL", r->name);
    return as_function(local);
}

#ifdef __x86_64__
/* r11: the route. Results come back to the caller by themselves. */
__asm__(".text\n"
        ".type amp_darknet_enter, @function\n"
        "amp_darknet_enter:\n"
        ".cfi_startproc\n"
        "pushq %rbp\n"
        ".cfi_def_cfa_offset 16\n"
        ".cfi_offset %rbp, -16\n"
        "movq %rsp, %rbp\n"
        ".cfi_def_cfa_register %rbp\n"
        "subq $192, %rsp\n"
        "movq %rdi, (%rsp)\n movq %rsi, 8(%rsp)\n movq %rdx, 16(%rsp)\n movq %rcx, 24(%rsp)\n"
        "movq %r8, 32(%rsp)\n movq %r9, 40(%rsp)\n movq %rax, 48(%rsp)\n movq %r10, 56(%rsp)\n"
        "movaps %xmm0, 64(%rsp)\n movaps %xmm1, 80(%rsp)\n movaps %xmm2, 96(%rsp)\n movaps %xmm3, 112(%rsp)\n"
        "movaps %xmm4, 128(%rsp)\n movaps %xmm5, 144(%rsp)\n movaps %xmm6, 160(%rsp)\n movaps %xmm7, 176(%rsp)\n"
        "movq %r11, %rdi\n"
        "movq 8(%rbp), %rsi\n"
        "call amp_darknet_route\n"
        "movq %rax, %r11\n"
        "movq (%rsp), %rdi\n movq 8(%rsp), %rsi\n movq 16(%rsp), %rdx\n movq 24(%rsp), %rcx\n"
        "movq 32(%rsp), %r8\n movq 40(%rsp), %r9\n movq 48(%rsp), %rax\n movq 56(%rsp), %r10\n"
        "movaps 64(%rsp), %xmm0\n movaps 80(%rsp), %xmm1\n movaps 96(%rsp), %xmm2\n movaps 112(%rsp), %xmm3\n"
        "movaps 128(%rsp), %xmm4\n movaps 144(%rsp), %xmm5\n movaps 160(%rsp), %xmm6\n movaps 176(%rsp), %xmm7\n"
        "leave\n"
        ".cfi_def_cfa %rsp, 8\n"
        "jmp *%r11\n"
        ".cfi_endproc\n"
        ".size amp_darknet_enter, . - amp_darknet_enter\n");
#define ENTRY(name) "endbr64\n leaq amp_darknet_" name "(%rip), %r11\n jmp amp_darknet_enter\n"
#else
/* x16: the route. */
__asm__(".text\n"
        ".type amp_darknet_enter, %function\n"
        "amp_darknet_enter:\n"
        ".cfi_startproc\n"
        "stp x29, x30, [sp, #-224]!\n"
        ".cfi_def_cfa_offset 224\n"
        ".cfi_offset 29, -224\n .cfi_offset 30, -216\n"
        "mov x29, sp\n"
        "stp x0, x1, [sp, #16]\n stp x2, x3, [sp, #32]\n stp x4, x5, [sp, #48]\n stp x6, x7, [sp, #64]\n"
        "str x8, [sp, #80]\n"
        "stp q0, q1, [sp, #96]\n stp q2, q3, [sp, #128]\n stp q4, q5, [sp, #160]\n stp q6, q7, [sp, #192]\n"
        "mov x0, x16\n"
        "mov x1, x30\n"
        "bl amp_darknet_route\n"
        "mov x16, x0\n"
        "ldp x0, x1, [sp, #16]\n ldp x2, x3, [sp, #32]\n ldp x4, x5, [sp, #48]\n ldp x6, x7, [sp, #64]\n"
        "ldr x8, [sp, #80]\n"
        "ldp q0, q1, [sp, #96]\n ldp q2, q3, [sp, #128]\n ldp q4, q5, [sp, #160]\n ldp q6, q7, [sp, #192]\n"
        "ldp x29, x30, [sp], #224\n"
        ".cfi_restore 29\n .cfi_restore 30\n .cfi_def_cfa_offset 0\n"
        "br x16\n"
        ".cfi_endproc\n"
        ".size amp_darknet_enter, . - amp_darknet_enter\n");
#define ENTRY(name)                                                                                                    \
    "hint #34\n adrp x16, amp_darknet_" name "\n add x16, x16, :lo12:amp_darknet_" name "\n b amp_darknet_enter\n"
#endif

/* An entry and its route. */
#define ROUTE(name)                                                                                                    \
    extern function ours_##name;                                                                                       \
    extern struct route amp_darknet_##name;                                                                            \
    struct route amp_darknet_##name = { #name, ours_##name, NULL };                                                    \
    __asm__(".text\n .globl " #name "\n .type " #name ", %function\n" #name ":\n .cfi_startproc\n" ENTRY(#name)        \
            ".cfi_endproc\n .size " #name ", . - " #name "\n");
INTERPOSED(ROUTE)
