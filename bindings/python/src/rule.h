/* SPDX-License-Identifier: Apache-2.0 */
/* A fused optimizer's rule, amp_optim, under Python's names: those of optimizer_step's arguments. */
#ifndef AMP_PY_RULE_H
#define AMP_PY_RULE_H

#include "amp_optim.h"
#include "py.h"

/* The name, as "adam", or "?". */
const char *amp_py_rule_name(amp_optim_kind kind);
/* Returns a new dict of numbers and flags, or NULL with an exception. */
PyObject *amp_py_rule_numbers(const amp_optim *rule);
/* Sets a number, a flag, or both betas. Returns 1 for an unknown name, -1 with an exception. */
int amp_py_rule_set(amp_optim *rule, PyObject *name, PyObject *value);
/* _core.optim_rules */
PyObject *amp_py_optim_rules(PyObject *module, PyObject *unused);

#endif /* AMP_PY_RULE_H */
