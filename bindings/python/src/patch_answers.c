/* SPDX-License-Identifier: Apache-2.0 */
/* The library's rulings on ops and types, cached per context. */
#include "patch.h"

#include <stdlib.h>
#include <string.h>

enum { NOTHING = 5 }; /* of targets: AMP_DTYPE_DEFAULT, 0: unknown */

int amp_py_policy_class(amp_py_policy *policy, const amp_py_patched *function) {
    if (function->fixed != AMP_BY_LIST) return function->fixed;
    if (function->number >= policy->n_classes) {
        const uint32_t n = function->number + 256;
        uint8_t *classes = realloc(policy->classes, n);
        if (!classes) {
            PyErr_NoMemory();
            return -1;
        }
        memset(classes + policy->n_classes, 0, n - policy->n_classes);
        policy->classes = classes;
        policy->n_classes = n;
    }
    uint8_t *known = &policy->classes[function->number];
    if (*known == 0) {
        amp_class op_class;
        const amp_status status = amp_op_class(policy->amp, function->op_text, &op_class);
        if (status != AMP_OK) {
            amp_py_raise(status);
            return -1;
        }
        *known = op_class == AMP_BANNED && policy->allow_banned ? AMP_FP32 : (uint8_t)op_class;
    }
    return *known;
}

/* Gets the ruling of the library. A refusal is not cached. */
static int ask_target(const struct amp_py_call *call, uint32_t set, uint8_t *known) {
    amp_dtype types[AMP_PY_TYPES], target;
    size_t n = 0;
    for (amp_dtype dtype = AMP_FLOAT32; dtype <= AMP_FLOAT64; dtype++) {
        if (set & amp_py_bit(dtype)) types[n++] = dtype;
    }
    const amp_status status =
        amp_class_target(call->policy->amp, call->function->op_text, call->op_class, call->into, types, n, &target);
    if (status == AMP_ERR_BANNED || status == AMP_ERR_UNSUPPORTED) {
        PyObject *words = amp_py_words(amp_last_error());
        PyErr_SetObject(PyExc_NotImplementedError, words);
        Py_XDECREF(words);
        return -1;
    }
    if (status != AMP_OK) {
        amp_py_raise(status);
        return -1;
    }
    *known = target == AMP_DTYPE_DEFAULT ? NOTHING : (uint8_t)target;
    return target;
}

int amp_py_target(const struct amp_py_call *call, uint32_t set) {
    uint8_t *known = &call->policy->targets[call->op_class][call->into][set];
    return *known == NOTHING ? AMP_DTYPE_DEFAULT : *known ? *known : ask_target(call, set, known);
}
