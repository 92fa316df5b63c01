/* SPDX-License-Identifier: Apache-2.0 */
/* Exceptions from statuses. libamp.Error is a RuntimeError with `status` and its name. If Python has a matching class,
 * the exception is of that class too. */
#include "py.h"

#include <stdarg.h>
#include <stdbool.h>
#include <string.h>

static PyObject *error_class;    /* libamp.Error */
static PyObject *argument_class; /* libamp.ArgumentError: an Error and a ValueError */
static PyObject *io_class;       /* libamp.FileError: an Error and an OSError */
static PyObject *kept[3];        /* the exception that a served call raised: amp_py_keep_for_raise */

static PyObject *class_of(amp_status status) {
    switch (status) {
    case AMP_ERR_INVALID_ARGUMENT:
    case AMP_ERR_SCHEMA:
    case AMP_ERR_CONFLICT:
    case AMP_ERR_NOT_FOUND:
        return argument_class;
    case AMP_ERR_IO:
    case AMP_ERR_BAD_FILE:
        return io_class;
    default:
        return error_class;
    }
}

/* The library's terms and their Python names, the longer one of two first. */
static const char *const spoken[][2] = {
    { "call amp_observe after amp_initialize, with amp_config.observe on,",
      "call amp.observe(model, every=1) after amp.initialize," },
    { "while a bracket is open: call it before amp_scale_loss_begin or after amp_scale_loss_end",
      "inside a block of amp.scale_loss: call it before or after" },
    { "amp_config.", "" },
    { "AMP_SPLIT", "\"split\"" },
    { "AMP_STOCHASTIC", "\"stochastic\"" },
    { "AMP_FUSED_STATE_8BIT", "FusedAdam, state_bits=8" },
    { "AMP_DYNAMIC", "\"dynamic\"" },
    { "AMP_DEFAULT", "None" },
    { "AMP_DELAY_UNSCALE", "delay_unscale=True" },
    { "AMP_DELAY_OVERFLOW_CHECK", "delay_overflow_check=True" },
    { "amp_scale_loss_begin", "amp.scale_loss" },
    { "call amp_scale_loss_end", "leave the block of amp.scale_loss" },
    { "amp_scale_loss_end", "the block of amp.scale_loss" },
    { "amp_initialize_many", "amp.initialize" },
    { "amp_initialize", "amp.initialize" },
    { "amp_shutdown", "amp.shutdown" },
    { "amp_state_save_memory", "amp.state_dict" },
    { "amp_state_load_memory", "amp.load_state_dict" },
    { "amp_step_begin", "optimizer.step" },
    { "amp_observe", "amp.observe" },
    { "amp_survey", "amp.survey" },
    { "patch_ops", "patch_torch_functions" },
    { "allow it by registering it as AMP_FP32 before initialize",
      "allow it by amp.register_float_function(module, name) before amp.initialize" },
    { "moments[0] is NULL, and the rule keeps", "a list is missing in state: the rule keeps" },
    { "moments[1] is NULL, and the rule keeps", "a list is missing in state: the rule keeps" },
    { "moments[2] is NULL, and the rule keeps", "a list is missing in state: the rule keeps" },
    { "amp_optim_list: ", "optimizer_step: " },
    { "may only be FLOAT32 or UNCHANGED", "may only be torch.float32 or False" },
    { "min_scale", "min_loss_scale" },
    { "max_scale", "max_loss_scale" },
};

PyObject *amp_py_words(const char *text) {
    PyObject *words = PyUnicode_FromString(text);
    for (size_t i = 0; words != NULL && i < sizeof spoken / sizeof *spoken; i++) {
        PyObject *next = PyObject_CallMethod(words, "replace", "ss", spoken[i][0], spoken[i][1]);
        Py_DECREF(words);
        words = next;
    }
    return words;
}

void amp_py_forget_kept(void) {
    for (int i = 0; i < 3; i++) Py_CLEAR(kept[i]);
}

void amp_py_keep_for_raise(char *text, size_t size) {
    PyObject *fresh[3];
    PyErr_Fetch(&fresh[0], &fresh[1], &fresh[2]);
    PyObject *words = fresh[1] ? PyObject_Str(fresh[1]) : NULL;
    const char *utf8 = words ? PyUnicode_AsUTF8AndSize(words, NULL) : NULL;
    PyErr_Clear();
    strncpy(text, utf8 ? utf8 : "an exception", size - 1);
    text[size - 1] = '\0';
    Py_XDECREF(words);
    amp_py_forget_kept();
    memcpy(kept, fresh, sizeof kept);
}

static bool raise_kept(void) {
    if (!kept[0]) return false;
    PyErr_Restore(kept[0], kept[1], kept[2]);
    memset(kept, 0, sizeof kept);
    return true;
}

PyObject *amp_py_raise(amp_status status) {
    /* a Python hook failed, and its own exception is more specific */
    if (PyErr_Occurred() || (status == AMP_ERR_HOST_FAILED && raise_kept())) return NULL;
    if (status == AMP_ERR_NO_MEMORY) return PyErr_NoMemory();
    const char *text = amp_last_error();
    PyObject *words = amp_py_words(*text ? text : amp_status_text(status));
    PyObject *error = words ? PyObject_CallFunctionObjArgs(class_of(status), words, NULL) : NULL;
    Py_XDECREF(words);
    if (!error) return NULL;
    PyObject *number = PyLong_FromLong(status);
    PyObject *name = PyUnicode_FromString(amp_status_name(status));
    if (number && name && PyObject_SetAttrString(error, "status", number) == 0 &&
        PyObject_SetAttrString(error, "status_name", name) == 0)
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_XDECREF(number);
    Py_XDECREF(name);
    Py_DECREF(error);
    return NULL;
}

PyObject *amp_py_argument_error(void) {
    return argument_class;
}

int amp_py_refuse(amp_py_where place, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    PyObject *words = PyUnicode_FromFormatV(format, arguments);
    va_end(arguments);
    if (!words) return -1;
    if (place.index < 0) PyErr_Format(amp_py_argument_error(), "%s: %U", place.name, words);
    else PyErr_Format(amp_py_argument_error(), "%s[%zd]: %U", place.name, place.index, words);
    Py_DECREF(words);
    return -1;
}

PyObject *amp_py_result(amp_status status) {
    if (status != AMP_OK) return amp_py_raise(status);
    Py_RETURN_NONE;
}

static PyObject *new_class(const char *name, const char *doc, PyObject *first, PyObject *second) {
    PyObject *bases = second ? PyTuple_Pack(2, first, second) : PyTuple_Pack(1, first);
    PyObject *made = bases ? PyErr_NewExceptionWithDoc(name, doc, bases, NULL) : NULL;
    Py_XDECREF(bases);
    return made;
}

int amp_py_add_errors(PyObject *module) {
    error_class = new_class("libamp.Error", "A call into libamp failed. `status` is the number of the error.",
                            PyExc_RuntimeError, NULL);
    if (!error_class) return -1;
    argument_class = new_class("libamp.ArgumentError", "An argument of a call into libamp has a wrong type or value.",
                               error_class, PyExc_ValueError);
    io_class = new_class("libamp.FileError", "A file cannot be read or written, or has unexpected contents.",
                         error_class, PyExc_OSError);
    if (!argument_class || !io_class) return -1;
    return PyModule_AddObjectRef(module, "Error", error_class) == 0 &&
                PyModule_AddObjectRef(module, "ArgumentError", argument_class) == 0 &&
                PyModule_AddObjectRef(module, "FileError", io_class) == 0
            ? 0
            : -1;
}
