/* SPDX-License-Identifier: Apache-2.0 */
/* The cast lists: op name -> class. The data is in lists/, one file per named set. */
#ifndef AMP_LISTS_H
#define AMP_LISTS_H

#include "amp_call.h"
#include "common/common.h"

#define AMP__OP_NAME_MAX 127

/*
 * The name the lists know an op by: "aten::add_.Tensor", "torch.nn.functional.linear" and "linear" become "add",
 * "linear" and "linear". Namespaces and overloads go, and so does the underscore of an in-place op ("add_"), but not
 * those of an operator ("__add__").
 */
void amp__op_base_name(const char *name, char base[AMP__OP_NAME_MAX + 1]);
/* Is its bare name one of these? */
bool amp__op_is_one_of(const char *name, const char *const *names, size_t n);

/* The class of a base name in a set for a 16-bit type, AMP_BY_LIST if it is in none. */
amp_class amp__list_class(int32_t lists, amp_dtype low, const char *base_name);

const char *amp__lists_name(int32_t lists); /* "apex" */
/* Does the set cast fp64 tensors down too? Apex does, torch does not. */
bool amp__lists_cast_fp64(int32_t lists);
const char *amp__class_name(amp_class op_class); /* "lower" */
/* Returns the replacement for a banned op, or general advice. */
const char *amp__banned_advice(const char *base_name);
/* The i-th entry of a set, false behind the last. */
bool amp__list_op(int32_t lists, size_t i, amp_list_op *op);
/* All names of a set, for suggestions. */
const char *const *amp__list_names(int32_t lists, size_t *n);

#endif
