/* SPDX-License-Identifier: Apache-2.0 */
/* libamp.kernels.optimizer_step: amp_optim_list and amp_device_optim over Python's lists. */
#include "kernels.h"

#include "call.h"
#include "rule.h"
#include "served.h"

/* ---- Rules by name ----------------------------------------------------------------------------------------------- */

enum { MOMENTS = 3 };

static const struct rule_name { const char *name; amp_optim_kind kind; const char *moments[MOMENTS]; } rules[] = {
#define RULE(constant, value, name, title, rule, ...) { #name, AMP_OPTIM_##constant, { __VA_ARGS__ } },
    AMP_OPTIM_MAP(RULE)
#undef RULE
};
#define ONE_RULE(...) +1
_Static_assert(sizeof rules / sizeof *rules == 0 AMP_OPTIM_MAP(ONE_RULE), "AMP_OPTIM_MAP leaves out a rule");
#undef ONE_RULE

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))
#define IS(object, text) (PyUnicode_CompareWithASCIIString(object, text) == 0)

static const struct rule_name *find_rule(PyObject *name) {
    for (size_t i = 0; i < LENGTH(rules); i++) {
        if (IS(name, rules[i].name)) return &rules[i];
    }
#define NAMED(constant, value, name, ...) " " #name
    PyErr_Format(amp_py_argument_error(), "rule: there is no '%U': libamp has" AMP_OPTIM_MAP(NAMED), name);
#undef NAMED
    return NULL;
}

/* ---- Arguments --------------------------------------------------------------------------------------------------- */

/* The lists of a call. */
enum {
    PARAMS, GRADS, MODEL_PARAMS, REMAINDERS, FIRST_MOMENT, FIRST_SCALE = FIRST_MOMENT + MOMENTS, LISTS = FIRST_SCALE + 2
};

typedef struct step_call {
    amp_py_call call; /* first, so that kernels find the rest. a: inv_scale, b: grad_factor, found_inf: an input */
    const struct rule_name *rule;
    amp_optim optim;
    amp_optim_tensors tensors;
    PyObject *arguments[LISTS]; /* borrowed */
    PyObject *steps, *inv_scale, *grad_factor, *found_inf, *grad_norm, *grad_norms, *keys, *before, *stochastic;
    float **scales[2];  /* NULL: none */
    uint64_t *key;      /* NULL: indices are keys */
    uint64_t *offsets;  /* elements of the whole parameter before each tensor; NULL: 0 */
    void **remainders;  /* NULL: none */
    uint64_t *counts;   /* the steps in a Python list, NULL: a tensor, or one number */
    PyObject *device_counts, *device_numbers;
    amp_py_view steps_view;
    PyObject *steps_keep;
} step_call;

static int read_keywords(step_call *step, PyObject *keywords) {
    const struct { const char *name; PyObject **value; } own[] = {
        { "steps", &step->steps },
        { "model_params", &step->arguments[MODEL_PARAMS] },
        { "remainders", &step->arguments[REMAINDERS] },
        { "inv_scale", &step->inv_scale },
        { "grad_factor", &step->grad_factor },
        { "found_inf", &step->found_inf },
        { "grad_norm", &step->grad_norm },
        { "grad_norms", &step->grad_norms },
        { "keys", &step->keys },
        { "before", &step->before },
        { "stochastic", &step->stochastic },
        { "stream", &step->call.stream_argument },
    };
    PyObject *name, *value;
    Py_ssize_t position = 0;
    while (keywords && PyDict_Next(keywords, &position, &name, &value)) {
        int state = amp_py_rule_set(&step->optim, name, value);
        for (size_t i = 0; state == 1 && i < LENGTH(own); i++) {
            if (IS(name, own[i].name)) {
                *own[i].value = value;
                state = 0;
            }
        }
        if (state == 1) PyErr_Format(PyExc_TypeError, "optimizer_step() has no argument '%U'", name);
        if (state != 0) return -1;
    }
    if (!step->steps) {
        PyErr_SetString(PyExc_TypeError, "optimizer_step() needs steps: a number, a list, or a tensor of int64");
        return -1;
    }
    return 0;
}

/* Returns k for the scales of moment k in 8 bits, "<moment>_scale", else -1. */
static int scale_of(const struct rule_name *rule, PyObject *name) {
    char text[64];
    for (int k = 0; k < 2 && rule->moments[k]; k++) {
        snprintf(text, sizeof text, "%s_scale", rule->moments[k]);
        if (PyUnicode_Check(name) && IS(name, text)) return k;
    }
    return -1;
}

static int read_state(step_call *step, PyObject *state) {
    PyObject *name, *value;
    Py_ssize_t position = 0;
    if (state != Py_None && !PyDict_Check(state)) {
        PyErr_SetString(PyExc_TypeError,
                        "state: must be a dict of lists of tensors, as {'exp_avg': [...], 'exp_avg_sq': [...]}");
        return -1;
    }
    while (state != Py_None && PyDict_Next(state, &position, &name, &value)) {
        const int scale = scale_of(step->rule, name);
        int k = 0;
        if (scale >= 0) {
            step->arguments[FIRST_SCALE + scale] = value;
            continue;
        }
        while (k < MOMENTS && step->rule->moments[k] && !(PyUnicode_Check(name) && IS(name, step->rule->moments[k])))
            k++;
        if (k == MOMENTS || !step->rule->moments[k]) {
            PyErr_Format(amp_py_argument_error(), "state: %s has nothing called %R", step->rule->name, name);
            return -1;
        }
        step->arguments[FIRST_MOMENT + k] = value;
    }
    return 0;
}

static int parse_step(step_call *step, PyObject *args, PyObject *keywords) {
    PyObject *name, *state;
    if (!PyArg_ParseTuple(args, "UOOO:optimizer_step", &name, &step->arguments[PARAMS], &step->arguments[GRADS],
                          &state))
        return -1;
    step->rule = find_rule(name);
    if (!step->rule) return -1;
    amp_status status = amp_optim_defaults(step->rule->kind, &step->optim);
    if (status != AMP_OK) {
        amp_py_raise(status);
        return -1;
    }
    return read_state(step, state) || read_keywords(step, keywords) ? -1 : 0;
}

static int open_all(step_call *step) {
    amp_py_argument lists[LISTS] = {
        { "params", step->arguments[PARAMS], AMP_PY_WRITE },
        { "grads", step->arguments[GRADS], AMP_PY_READ },
        { "model_params", step->arguments[MODEL_PARAMS], AMP_PY_WRITE | AMP_PY_OPTIONAL },
        { "remainders", step->arguments[REMAINDERS], AMP_PY_WRITE | AMP_PY_OPTIONAL },
    };
    for (int k = 0; k < MOMENTS; k++) {
        const char *name = step->rule->moments[k] ? step->rule->moments[k] : "state";
        lists[FIRST_MOMENT + k] = (amp_py_argument){ name, step->arguments[FIRST_MOMENT + k],
                                                     AMP_PY_WRITE | AMP_PY_OPTIONAL | AMP_PY_CODES };
    }
    for (int k = 0; k < 2; k++)
        lists[FIRST_SCALE + k] = (amp_py_argument){ "scales", step->arguments[FIRST_SCALE + k],
                                                    AMP_PY_WRITE | AMP_PY_OPTIONAL };
    amp_py_call *call = &step->call;
    call->a.value = 1.0f, call->b.value = 1.0f, call->found_inf.value = 0.0f;
    if (amp_py_scalar_in(&call->a, "inv_scale", step->inv_scale) ||
        amp_py_scalar_in(&call->b, "grad_factor", step->grad_factor) ||
        amp_py_scalar_in(&call->found_inf, "found_inf", step->found_inf) ||
        amp_py_scalar_in(&call->norm, "grad_norm", step->grad_norm)) {
        amp_py_call_close(call);
        return -1;
    }
    if (amp_py_call_open(call, lists, LISTS)) return -1;
    if (call->b.tensor && call->b.device.type != AMP_PY_CPU) {
        amp_py_refuse((amp_py_where){ "grad_factor", -1 }, "must be a number: a value on the GPU goes into inv_scale");
        amp_py_call_close(call);
        return -1;
    }
    if (amp_py_scalar_vector(&call->norms, "grad_norms", step->grad_norms, call->lists[PARAMS].n)) {
        amp_py_call_close(call);
        return -1;
    }
    return 0;
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

/* Opens the steps: a Python list becomes an array, an int64 tensor is used in place, with one element for all tensors,
 * and a number is passed on. */
static int open_steps(step_call *step) {
    PyObject *steps = step->steps;
    size_t n = step->call.lists[PARAMS].n;
    amp_py_where place = { "steps", -1 };
    if (PyLong_Check(steps)) {
        step->tensors.step = PyLong_AsUnsignedLongLong(steps) + 1;
        return PyErr_Occurred() ? -1 : 0;
    }
    if (!PyList_Check(steps)) {
        PyObject *type = PyObject_GetAttrString(steps, "dtype");
        PyObject *text = type ? PyObject_Str(type) : NULL;
        bool fits = text && (IS(text, "torch.int64") || IS(text, "int64") || IS(text, "torch.uint64") ||
                             IS(text, "uint64"));
        Py_XDECREF(text);
        Py_XDECREF(type);
        PyErr_Clear();
        if (!fits) return amp_py_refuse(place, "must be a number, a list of numbers, or a tensor of int64");
        if (amp_py_view_get(steps, place, false, &step->steps_view, &step->steps_keep) ||
            (step->steps_view.is_torch && amp_py_serve_if(steps, &step->steps_view.device)))
            return -1;
        const amp_py_view *view = &step->steps_view;
        const uint64_t size = view->span.size;
        if ((size != n && size != 1) || !view->compact || view->read_only ||
            view->device.type != step->call.device.type)
            return amp_py_refuse(place, "needs one writable element for each of the %zu tensor%s, or for all of them, "
                                 "on their device", n, AMP_PY_S(n));
        step->tensors.n_steps = (size_t)size;
        return 0;
    }
    step->counts = PyMem_Malloc((n ? n : 1) * sizeof(uint64_t));
    if (!step->counts) {
        PyErr_NoMemory();
        return -1;
    }
    if ((size_t)PyList_Size(steps) != n)
        return amp_py_refuse(place, "has %zd number%s for %zu tensor%s", PyList_Size(steps),
                             AMP_PY_S(PyList_Size(steps)), n, AMP_PY_S(n));
    for (size_t i = 0; i < n; i++) {
        step->counts[i] = PyLong_AsUnsignedLongLong(PyList_GetItem(steps, (Py_ssize_t)i));
        if (PyErr_Occurred()) return -1;
    }
    return 0;
}

/* Updates a list. The caller counts a single number. */
static int write_steps(step_call *step) {
    if (!step->counts) return 0;
    for (size_t i = 0; i < step->call.lists[PARAMS].n; i++) {
        PyObject *count = PyLong_FromUnsignedLongLong(step->counts[i]);
        if (!count || PyList_SetItem(step->steps, (Py_ssize_t)i, count)) return -1;
    }
    return 0;
}

/* ---- The call ---------------------------------------------------------------------------------------------------- */

static int find_remainders(step_call *step) {
    const amp_py_list *list = &step->call.lists[REMAINDERS];
    if (!list->tensors) return 0;
    step->remainders = amp_py_remainders(list, &step->call.lists[PARAMS]);
    step->tensors.remainders = step->remainders;
    return step->remainders ? 0 : -1;
}

static int find_numbers(PyObject *list, const char *name, size_t n, uint64_t **numbers) {
    if (list == Py_None) return 0;
    *numbers = amp_py_numbers(list, name, n);
    return *numbers ? 0 : -1;
}

/* Opens moments in 8 bits, their scales, and what the random numbers of the tensors depend on. */
static int find_scales(step_call *step) {
    for (int k = 0; k < 2; k++) {
        const amp_py_list *list = &step->call.lists[FIRST_SCALE + k];
        if (!list->tensors) continue;
        step->scales[k] = amp_py_scales(list, &step->call.lists[PARAMS]);
        if (!step->scales[k]) return -1;
        step->tensors.scales[k] = step->scales[k];
    }
    const int stochastic = PyObject_IsTrue(step->stochastic);
    if (stochastic < 0) return -1;
    step->tensors.flags = stochastic ? AMP_TENSORS_STOCHASTIC : 0;
    const size_t n = step->call.lists[PARAMS].n;
    if (find_numbers(step->keys, "keys", n, &step->key) || find_numbers(step->before, "before", n, &step->offsets))
        return -1;
    step->tensors.keys = step->key;
    step->tensors.before = step->offsets;
    return 0;
}

static void fill_tensors(step_call *step) {
    amp_py_call *call = &step->call;
    amp_optim_tensors *tensors = &step->tensors;
    tensors->n = call->lists[PARAMS].n;
    tensors->grad = call->lists[GRADS].spans;
    tensors->param = call->lists[PARAMS].spans;
    tensors->low = call->lists[MODEL_PARAMS].spans;
    for (int k = 0; k < MOMENTS; k++) tensors->moments[k] = call->lists[FIRST_MOMENT + k].spans;
    tensors->steps = step->counts ? step->counts : step->steps_view.span.data;
    tensors->grad_factor = call->b.value;
    tensors->found_inf = &call->found_inf.value;
    tensors->inv_scale = &call->a.value;
    tensors->grad_norm = step->grad_norm != Py_None ? &call->norm.value : NULL;
    tensors->grad_norms = call->norms.pointer;
}

/* A Python number is copied to the device. A tensor is used there. */
static int describe_cuda(step_call *step) {
    amp_py_call *call = &step->call;
    amp_optim_tensors *tensors = &step->tensors;
    bool found_there = call->found_inf.tensor && call->found_inf.device.type != AMP_PY_CPU;
    bool scale_there = call->a.tensor && call->a.device.type != AMP_PY_CPU;
    bool norm_there = call->norm.tensor && call->norm.device.type != AMP_PY_CPU;
    if (step->counts && found_there)
        return amp_py_refuse((amp_py_where){ "steps", -1 }, "must be a number or a tensor of int64 on the GPU, as "
                             "found_inf is there: the CPU does not know whether the step happens");
    tensors->found_inf = found_there ? call->found_inf.pointer : NULL;
    tensors->inv_scale = scale_there ? call->a.pointer : NULL;
    tensors->grad_norm = norm_there ? call->norm.pointer : NULL;
    bool copy_scale = !scale_there && call->a.value != 1.0f, copy_norm = step->grad_norm != Py_None && !norm_there;
    if (copy_scale && tensors->grad_factor == 1.0f) { /* the same product */
        tensors->grad_factor = call->a.value;
        copy_scale = false;
    }
    if (copy_scale || copy_norm) {
        void *data = NULL;
        PyObject *pair = Py_BuildValue("[ff]", call->a.value, call->norm.value);
        step->device_numbers = amp_py_cuda_make("tensor", pair, "float32", call->device, &data);
        if (!step->device_numbers) return -1;
        tensors->inv_scale = copy_scale ? (float *)data : tensors->inv_scale;
        tensors->grad_norm = copy_norm ? (float *)data + 1 : tensors->grad_norm;
    }
    if (step->counts) {
        void *data = NULL;
        PyObject *counts = PyList_New((Py_ssize_t)tensors->n);
        for (size_t i = 0; counts && i < tensors->n; i++)
            PyList_SetItem(counts, (Py_ssize_t)i, PyLong_FromUnsignedLongLong(step->counts[i]++));
        step->device_counts = amp_py_cuda_make("tensor", counts, "int64", call->device, &data);
        tensors->steps = data;
        return step->device_counts ? 0 : -1;
    }
    return 0;
}

static amp_status step_cpu(amp_py_call *call) {
    step_call *step = (step_call *)call;
    return amp_optim_list(&step->optim, &step->tensors);
}

static amp_status step_cuda(amp_py_call *call) {
    step_call *step = (step_call *)call;
    return amp_device_optim(call->list, call->stream, &step->optim, &step->tensors);
}

/* Returns the result, or NULL. With a flag on the device only the device decides, and the result is None. */
static PyObject *run_step(step_call *step) {
    const amp_py_call *call = &step->call;
    bool there = call->found_inf.tensor && call->found_inf.device.type != AMP_PY_CPU;
    if (open_steps(step) || find_remainders(step) || find_scales(step)) return NULL;
    fill_tensors(step);
    if (!there && call->found_inf.value != 0.0f && call->device.type != AMP_PY_CPU) return Py_NewRef(Py_False);
    if ((call->device.type != AMP_PY_CPU && describe_cuda(step)) || amp_py_call_run(&step->call, step_cpu, step_cuda) ||
        write_steps(step))
        return NULL;
    return there ? Py_NewRef(Py_None) : PyBool_FromLong(call->found_inf.value == 0.0f);
}

static void close_step(step_call *step) {
    amp_py_call_close(&step->call);
    PyMem_Free(step->counts);
    PyMem_Free(step->remainders);
    for (int k = 0; k < 2; k++) PyMem_Free(step->scales[k]);
    PyMem_Free(step->key);
    PyMem_Free(step->offsets);
    amp_py_let_go(&step->steps_keep);
    Py_XDECREF(step->device_counts);
    Py_XDECREF(step->device_numbers);
}

static PyObject *optimizer_step(PyObject *self, PyObject *args, PyObject *keywords) {
    (void)self;
    step_call step = { .call = { .function = "optimizer_step" }, .optim = AMP_OPTIM_INIT,
                       .tensors = AMP_OPTIM_TENSORS_INIT };
    for (int k = MODEL_PARAMS; k < LISTS; k++) step.arguments[k] = Py_None;
    step.inv_scale = step.grad_factor = step.found_inf = step.grad_norm = step.grad_norms = Py_None;
    step.keys = step.before = Py_None;
    step.stochastic = Py_False;
    if (parse_step(&step, args, keywords) || open_all(&step)) return NULL;
    PyObject *result = run_step(&step);
    close_step(&step);
    return result;
}

static PyMethodDef methods[] = {
    { "optimizer_step", (PyCFunction)(void (*)(void))optimizer_step, METH_VARARGS | METH_KEYWORDS,
      "optimizer_step(rule, params, grads, state, *, steps, model_params=None, remainders=None, inv_scale=1.0,\n"
      "               grad_factor=1.0, found_inf=None, grad_norm=None, grad_norms=None, keys=None, before=None,\n"
      "               stochastic=False, stream=None,\n"
      "               **hyper_parameters)\n--\n\n"
      "Steps every tensor by a rule of amp_optim.h. Moments in 8 bits are int8 and uint8, with scales in\n"
      "state['<moment>_scale'] (None: FP32) and keys of optim_key (None: indices). before: elements of the\n"
      "whole parameter before each tensor, if they are shards. Returns True if it stepped,\n"
      "False if found_inf is not 0, None if found_inf is on the GPU, so that the host does not know." },
    { NULL, NULL, 0, NULL },
};

int amp_py_add_optim(PyObject *kernels) {
    return PyModule_AddFunctions(kernels, methods);
}
