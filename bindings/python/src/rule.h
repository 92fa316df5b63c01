/* SPDX-License-Identifier: Apache-2.0 */
/* A fused optimizer's rule, amp_optim, by Python's names: those of optimizer_step's arguments. */
#ifndef AMP_PY_RULE_H
#define AMP_PY_RULE_H

#include "amp_optim.h"
#include "py.h"

/* "adam"; "?": there is none. */
const char *amp_py_rule_name(amp_optim_kind kind);
/* Numbers and flags: a new dict, or NULL with an exception. */
PyObject *amp_py_rule_numbers(const amp_optim *rule);
/* Sets a number or a flag, or both betas. 1: there is none of this name; -1 with an exception. */
int amp_py_rule_set(amp_optim *rule, PyObject *name, PyObject *value);
/* _core.optim_rules */
PyObject *amp_py_optim_rules(PyObject *module, PyObject *unused);

#endif /* AMP_PY_RULE_H */
