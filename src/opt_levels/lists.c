/* SPDX-License-Identifier: Apache-2.0 */
#include "amp_call.h"
#include "opt_levels/lists.h"

#include <string.h>

struct entry {
    const char *name;
    uint8_t modules, fp16, bf16;
};

enum {
    F = AMP_IN_FUNCTIONAL,
    T = AMP_IN_TORCH,
    M = AMP_IN_TENSOR,
    V = AMP_IN_VF,
    L = AMP_IN_LINALG,
    N = AMP_IN_NN,
    X = AMP_IN_FFT
};

#define AMP_LIST_OP(name, modules, fp16, bf16) { #name, modules, AMP_##fp16, AMP_##bf16 },
static const struct entry apex_list[] = {
#include "opt_levels/lists/apex.inc"
#include "opt_levels/lists/today.inc"
#include "opt_levels/lists/wide.inc"
};
static const struct entry torch_list[] = {
#include "opt_levels/lists/torch.inc"
#include "opt_levels/lists/wide.inc"
};
#undef AMP_LIST_OP

#define AMP_LIST_OP(name, modules, fp16, bf16) #name,
static const char *const apex_names[] = {
#include "opt_levels/lists/apex.inc"
#include "opt_levels/lists/today.inc"
#include "opt_levels/lists/wide.inc"
};
static const char *const torch_names[] = {
#include "opt_levels/lists/torch.inc"
#include "opt_levels/lists/wide.inc"
};
#undef AMP_LIST_OP

/* Names of listed ops in hosts without PyTorch. */
static const struct {
    const char *name, *listed;
} synonyms[] = { { "gemm", "matmul" }, { "sgemm", "matmul" } };

static const struct list {
    const char *name;
    const struct entry *entries;
    const char *const *names;
    size_t n;
    bool cast_fp64;
} lists_table[] = {
    [AMP_LISTS_APEX] = { "apex", apex_list, apex_names, AMP_COUNT(apex_list), true },
    [AMP_LISTS_TORCH] = { "torch", torch_list, torch_names, AMP_COUNT(torch_list), false },
};

void amp__op_base_name(const char *name, char base[AMP__OP_NAME_MAX + 1]) {
    const char *part = strstr(name, ": "); /* encoder.layers.3: linear */
    if (part) name = part + 2;
    const char *start = name, *end = name + strlen(name);
    const char *space = strstr(name, "::");
    if (space) { /* aten::add_.Tensor: the overload follows the dot */
        while (space) start = space + 2, space = strstr(start, "::");
        const char *dot = strchr(start, '.');
        if (dot && dot > start) end = dot;
    } else {
        const char *dot = strrchr(name, '.');
        if (dot && dot[1]) start = dot + 1;
    }
    size_t length = (size_t)(end - start);
    const bool is_operator = length > 4 && !strncmp(start, "__", 2) && !strncmp(end - 2, "__", 2);
    if (length > 1 && end[-1] == '_' && !is_operator) length--;
    if (length > AMP__OP_NAME_MAX) length = AMP__OP_NAME_MAX;
    memcpy(base, start, length);
    base[length] = '\0';
}

bool amp__op_is_one_of(const char *name, const char *const *names, size_t n) {
    char base[AMP__OP_NAME_MAX + 1];
    amp__op_base_name(name, base);
    for (size_t i = 0; i < n; i++)
        if (!strcmp(base, names[i])) return true;
    return false;
}

amp_class amp__list_class(int32_t lists, amp_dtype low, const char *base_name) {
    const struct list *list = &lists_table[lists];
    for (size_t i = 0; i < AMP_COUNT(synonyms); i++)
        if (!strcmp(synonyms[i].name, base_name)) base_name = synonyms[i].listed;
    for (size_t i = 0; i < list->n; i++)
        if (!strcmp(list->entries[i].name, base_name))
            return low == AMP_BFLOAT16 ? list->entries[i].bf16 : list->entries[i].fp16;
    return AMP_BY_LIST;
}

const char *amp__lists_name(int32_t lists) { return lists_table[lists].name; }
bool amp__lists_cast_fp64(int32_t lists) { return lists_table[lists].cast_fp64; }

bool amp__list_op(int32_t lists, size_t i, amp_list_op *op) {
    if (i >= lists_table[lists].n) return false;
    const struct entry *entry = &lists_table[lists].entries[i];
    *op = (amp_list_op){ (uint32_t)sizeof *op, entry->modules, entry->name, entry->fp16, entry->bf16 };
    return true;
}

const char *const *amp__list_names(int32_t lists, size_t *n) {
    *n = lists_table[lists].n;
    return lists_table[lists].names;
}

const char *amp__class_name(amp_class op_class) {
    static const char *const names[] = { "by list", "lower", "fp32", "promote", "promote-sequence", "banned", "leave" };
    return op_class >= 0 && (size_t)op_class < AMP_COUNT(names) ? names[op_class] : "unknown class";
}

const char *amp__banned_advice(const char *base_name) {
    if (!strcmp(base_name, "binary_cross_entropy"))
        return "use binary_cross_entropy_with_logits on the values before the sigmoid, which is safe in fp16, or allow "
               "it by registering it as AMP_FP32 before initialize";
    return "allow it by registering it with another class (AMP_FP32 is the safe one) before initialize";
}
