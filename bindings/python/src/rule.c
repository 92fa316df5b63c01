/* SPDX-License-Identifier: Apache-2.0 */
#include "rule.h"

#include <stddef.h>

static const struct { const char *name; size_t offset; } numbers[] = {
    { "lr", offsetof(amp_optim, lr) },
    { "weight_decay", offsetof(amp_optim, weight_decay) },
    { "momentum", offsetof(amp_optim, momentum) },
    { "dampening", offsetof(amp_optim, dampening) },
    { "beta1", offsetof(amp_optim, beta1) },
    { "beta2", offsetof(amp_optim, beta2) },
    { "eps", offsetof(amp_optim, eps) },
    { "max_grad_norm", offsetof(amp_optim, max_grad_norm) },
    { "trust_coefficient", offsetof(amp_optim, trust_coefficient) },
};

static const struct { const char *name; uint32_t flag; } flags[] = {
    { "nesterov", AMP_OPTIM_NESTEROV },
    { "decay_after_momentum", AMP_OPTIM_DECAY_AFTER_MOMENTUM },
    { "bias_correction", AMP_OPTIM_BIAS_CORRECTION },
    { "amsgrad", AMP_OPTIM_AMSGRAD },
    { "decoupled", AMP_OPTIM_DECOUPLED },
    { "grad_averaging", AMP_OPTIM_GRAD_AVERAGING },
    { "nvlamb", AMP_OPTIM_NVLAMB },
    { "init_zero", AMP_OPTIM_INIT_ZERO },
    { "clip", AMP_OPTIM_CLIP },
};

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define IS(object, text) (PyUnicode_CompareWithASCIIString(object, text) == 0)

PyObject *amp_py_rule_numbers(const amp_optim *rule) {
    PyObject *named = PyDict_New();
    for (size_t i = 0; named && i < LENGTH(numbers); i++) {
        PyObject *value = PyFloat_FromDouble(*(const double *)((const char *)rule + numbers[i].offset));
        if (!value || PyDict_SetItemString(named, numbers[i].name, value)) Py_CLEAR(named);
        Py_XDECREF(value);
    }
    for (size_t i = 0; named && i < LENGTH(flags); i++) {
        if (PyDict_SetItemString(named, flags[i].name, rule->flags & flags[i].flag ? Py_True : Py_False))
            Py_CLEAR(named);
    }
    return named;
}

int amp_py_rule_set(amp_optim *rule, PyObject *name, PyObject *value) {
    for (size_t i = 0; i < LENGTH(numbers); i++) {
        if (IS(name, numbers[i].name)) {
            *(double *)((char *)rule + numbers[i].offset) = PyFloat_AsDouble(value);
            return PyErr_Occurred() ? -1 : 0;
        }
    }
    for (size_t i = 0; i < LENGTH(flags); i++) {
        if (IS(name, flags[i].name)) {
            int on = PyObject_IsTrue(value);
            rule->flags = on > 0 ? rule->flags | flags[i].flag : rule->flags & ~flags[i].flag;
            return on < 0 ? -1 : 0;
        }
    }
    if (IS(name, "betas")) {
        PyObject *pair = PySequence_Tuple(value);
        int good = pair && PyArg_ParseTuple(pair, "dd;betas must be a pair of numbers", &rule->beta1,
                                            &rule->beta2);
        Py_XDECREF(pair);
        return good ? 0 : -1;
    }
    return 1;
}

const char *amp_py_rule_name(amp_optim_kind kind) {
    switch (kind) {
#define NAME(constant, value, name, ...) case value: return #name;
        AMP_OPTIM_MAP(NAME)
#undef NAME
    default: return "?";
    }
}

static int add_rule(PyObject *rules, amp_optim_kind kind, const char *name, const char *const moments[3]) {
    amp_optim rule = AMP_OPTIM_INIT;
    if (amp_optim_defaults(kind, &rule) != AMP_OK) {
        amp_py_raise(AMP_ERR_INVALID_ARGUMENT);
        return -1;
    }
    PyObject *names = PyList_New(0);
    for (int k = 0; names && k < 3 && moments[k]; k++) {
        PyObject *text = PyUnicode_FromString(moments[k]);
        if (!text || PyList_Append(names, text)) Py_CLEAR(names);
        Py_XDECREF(text);
    }
    PyObject *pair = Py_BuildValue("(NN)", names, amp_py_rule_numbers(&rule));
    const int bad = pair ? PyDict_SetItemString(rules, name, pair) : -1;
    Py_XDECREF(pair);
    return bad;
}

PyObject *amp_py_optim_rules(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    PyObject *rules = PyDict_New();
#define RULE(constant, value, name, title, rule, ...)                                                                  \
    if (rules && add_rule(rules, value, #name, (const char *const[3]){ __VA_ARGS__ })) {                               \
        Py_CLEAR(rules);                                                                                               \
    }
    AMP_OPTIM_MAP(RULE)
#undef RULE
    return rules;
}
