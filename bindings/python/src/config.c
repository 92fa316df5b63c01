/* SPDX-License-Identifier: Apache-2.0 */
/* Settings in a dict, by the names of amp_config's members. None is the default. */
#include "context.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const struct choice {
    const char *kind, *name;
    int32_t value;
} choices[] = {
    { "type", "float32", AMP_FLOAT32 },
    { "type", "float16", AMP_FLOAT16 },
    { "type", "bfloat16", AMP_BFLOAT16 },
    { "type", "float64", AMP_FLOAT64 },
    { "type", "unchanged", AMP_DTYPE_UNCHANGED },
    { "lists", "apex", AMP_LISTS_APEX },
    { "lists", "torch", AMP_LISTS_TORCH },
#define MODE(constant, value, text, name, ...) { "scaler", #name, constant },
    AMP_SCALER_MAP(MODE)
#undef MODE
};

/* "switch": a bool. "count": an integer. "float": a number. Otherwise one of `choices`. */
static const struct member {
    const char *name, *kind;
    size_t offset;
} members[] = {
#define MEMBER(name, kind) { #name, kind, offsetof(amp_config, name) }
    MEMBER(enabled, "switch"),
    MEMBER(patch_ops, "switch"),
    MEMBER(keep_batchnorm_fp32, "switch"),
    MEMBER(master_weights, "switch"),
    MEMBER(cache, "switch"),
    MEMBER(gate, "switch"),
    MEMBER(check_finite, "switch"),
    MEMBER(consecutive_hysteresis, "switch"),
    MEMBER(cast_model_type, "type"),
    MEMBER(cast_model_outputs, "type"),
    MEMBER(lists, "lists"),
    MEMBER(scaler, "scaler"),
    MEMBER(num_losses, "count"),
    MEMBER(window, "count"),
    MEMBER(hysteresis, "count"),
    MEMBER(max_skips, "count"),
    MEMBER(loss_scale, "float"),
    MEMBER(init_scale, "float"),
    MEMBER(min_scale, "float"),
    MEMBER(max_scale, "float"),
    MEMBER(growth, "double"),
    MEMBER(backoff, "double"),
#undef MEMBER
};

static int read_choice(const struct member *member, PyObject *value, int32_t *out) {
    for (size_t i = 0; PyUnicode_Check(value) && i < sizeof(choices) / sizeof(choices[0]); i++) {
        if (!strcmp(choices[i].kind, member->kind) && !PyUnicode_CompareWithASCIIString(value, choices[i].name)) {
            *out = choices[i].value;
            return 0;
        }
    }
    char names[128] = "";
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++) {
        if (!strcmp(choices[i].kind, member->kind)) {
            const size_t used = strlen(names);
            snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", choices[i].name);
        }
    }
    PyErr_Format(PyExc_ValueError, "%s cannot be %R: it is one of %s", member->name, value, names);
    return -1;
}

/* Describes the failure of a conversion. */
static int refuse_number(const struct member *member, PyObject *value, const char *what) {
    PyObject *raised = PyErr_Occurred();
    if (!raised) return 0;
    const bool is_type = PyErr_GivenExceptionMatches(raised, PyExc_TypeError);
    PyErr_Clear();
    PyObject *name = amp_py_words(member->name);
    if (name) {
        PyErr_Format(is_type ? PyExc_TypeError : PyExc_ValueError, "%U is %R, and must be %s", name, value, what);
        Py_DECREF(name);
    }
    return -1;
}

static int read_member(const struct member *member, PyObject *value, amp_config *config) {
    char *at = (char *)config + member->offset;
    if (!strcmp(member->kind, "switch")) {
        const bool split = PyUnicode_Check(value) && !PyUnicode_CompareWithASCIIString(value, "split");
        const int on = PyObject_IsTrue(value);
        const amp_switch setting = split ? AMP_SPLIT : on ? AMP_ON : AMP_OFF;
        memcpy(at, &setting, sizeof setting);
        return on < 0 ? -1 : 0;
    }
    if (!strcmp(member->kind, "count")) {
        const unsigned long number = PyLong_AsUnsignedLong(value);
        const uint32_t count = number > UINT32_MAX ? UINT32_MAX : (uint32_t)number;
        memcpy(at, &count, sizeof count);
        return refuse_number(member, value, "an integer, 0 or more");
    }
    if (!strcmp(member->kind, "float")) {
        const float number = (float)PyFloat_AsDouble(value);
        memcpy(at, &number, sizeof number);
        return refuse_number(member, value, "a number");
    }
    if (!strcmp(member->kind, "double")) {
        const double number = PyFloat_AsDouble(value);
        memcpy(at, &number, sizeof number);
        return refuse_number(member, value, "a number");
    }
    int32_t choice = 0;
    const int bad = read_choice(member, value, &choice);
    memcpy(at, &choice, sizeof choice);
    return bad;
}

static int read_entry(PyObject *key, PyObject *value, amp_config *config) {
    for (size_t i = 0; PyUnicode_Check(key) && i < sizeof(members) / sizeof(members[0]); i++) {
        if (!PyUnicode_CompareWithASCIIString(key, members[i].name))
            return value == Py_None ? 0 : read_member(&members[i], value, config);
    }
    PyErr_Format(PyExc_ValueError, "there is no setting %R", key);
    return -1;
}

int amp_py_config(const char *level, PyObject *settings, amp_config *config) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    *config = (amp_config)AMP_CONFIG_INIT;
    const amp_status status = amp_level_from_name(level, &config->level);
    if (status != AMP_OK) {
        amp_py_raise(status);
        return -1;
    }
    while (PyDict_Next(settings, &at, &key, &value)) {
        if (read_entry(key, value, config)) return -1;
    }
    return 0;
}

/* ---- from amp_config to Python ---- */

static PyObject *choice_name(const struct member *member, int32_t value) {
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++) {
        if (!strcmp(choices[i].kind, member->kind) && choices[i].value == value)
            return PyUnicode_FromString(choices[i].name);
    }
    return Py_NewRef(Py_None);
}

/* A type's name, None for one that leaves the type unchanged. */
PyObject *amp_py_type_name(amp_dtype dtype) {
    static const struct member type = { "the type", "type", 0 };
    return choice_name(&type, dtype);
}

int amp_py_type_of(PyObject *name, amp_dtype *dtype) {
    static const struct member type = { "a type", "type", 0 };
    return read_choice(&type, name, dtype);
}

static PyObject *member_value(const struct member *member, const amp_config *config) {
    const char *at = (const char *)config + member->offset;
    if (!strcmp(member->kind, "float")) {
        float number;
        memcpy(&number, at, sizeof number);
        return PyFloat_FromDouble((double)number);
    }
    if (!strcmp(member->kind, "double")) {
        double number;
        memcpy(&number, at, sizeof number);
        return PyFloat_FromDouble(number);
    }
    uint32_t number;
    memcpy(&number, at, sizeof number);
    if (!strcmp(member->kind, "switch")) {
        if (number == AMP_SPLIT) return PyUnicode_FromString("split");
        return Py_NewRef(number == AMP_ON ? Py_True : number == AMP_OFF ? Py_False : Py_None);
    }
    return strcmp(member->kind, "count") ? choice_name(member, (int32_t)number) : PyLong_FromUnsignedLong(number);
}

static PyObject *resolve(PyObject *module, PyObject *args) {
    const char *level;
    PyObject *settings;
    amp_config given, resolved = AMP_CONFIG_INIT;
    (void)module;
    if (!PyArg_ParseTuple(args, "sO!:resolve", &level, &PyDict_Type, &settings) ||
        amp_py_config(level, settings, &given))
        return NULL;
    const amp_status status = amp_config_resolve(&given, &resolved);
    PyObject *dict = status == AMP_OK ? PyDict_New() : amp_py_raise(status);
    for (size_t i = 0; dict && i < sizeof(members) / sizeof(members[0]); i++) {
        PyObject *value = member_value(&members[i], &resolved);
        if (!value || PyDict_SetItemString(dict, members[i].name, value)) Py_CLEAR(dict);
        Py_XDECREF(value);
    }
    return dict;
}

/* {"O1": ("float16", words), ...} */
static PyObject *levels(PyObject *module, PyObject *args) {
    static const struct {
        const char *name, *words;
        int32_t low;
    } rows[] = {
#define LEVEL(constant, value, text, low, ...) { &#constant[4], text, low },
        AMP_LEVEL_MAP(LEVEL)
#undef LEVEL
    };
    (void)module, (void)args;
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict && i < sizeof rows / sizeof *rows; i++) {
        PyObject *row = Py_BuildValue("(Ns)", amp_py_type_name(rows[i].low), rows[i].words);
        if (!row || PyDict_SetItemString(dict, rows[i].name, row)) Py_CLEAR(dict);
        Py_XDECREF(row);
    }
    return dict;
}

int amp_py_add_config(PyObject *module) {
    static PyMethodDef functions[] = {
        { "resolve", resolve, METH_VARARGS, "resolve(level, settings): the configuration, with all defaults." },
        { "levels", levels, METH_NOARGS, "levels(): name of a level -> (16-bit type, description)." },
        { NULL, NULL, 0, NULL },
    };
    return PyModule_AddFunctions(module, functions);
}
