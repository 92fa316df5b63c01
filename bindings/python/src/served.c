/* SPDX-License-Identifier: Apache-2.0 */
#include "served.h"

#include "amp_serve.h"
#include "dlpack.h"
#include "rule.h"

#include <string.h>

enum { MOST_DEVICES = 64 };

static struct {
    amp_device dlpack;
    PyObject *device; /* torch.device */
} devices[MOST_DEVICES]; /* the index is amp_device.id */
static int n_devices;
static PyObject *handler; /* libamp.torch._served, once something is served */
static bool all_devices;  /* LIBAMP_TORCH_OPS when libamp.torch last read it */

/* ---- which devices ---- */

bool amp_py_torch_ops(void) {
    return all_devices;
}

/* Checked once for each GPU: the plugin may load but lack code for it. */
static bool has_plugin(amp_device device) {
    static signed char known[MOST_DEVICES]; /* 1: yes; -1: no */
    amp_device_list *list = NULL;
    if (device.id < 0 || device.id >= MOST_DEVICES) return true;
    if (known[device.id] == 0) {
        known[device.id] = amp_device_list_open(device, &list) == AMP_OK ? 1 : -1;
        amp_device_list_close(list);
    }
    return known[device.id] > 0;
}

bool amp_py_is_served(amp_device device, bool all) {
    return all || (device.type != AMP_PY_CPU && !(device.type == AMP_PY_CUDA && has_plugin(device)));
}

PyObject *amp_py_served_device(amp_device device) {
    return device.type == AMP_DEVICE_SERVED && device.id < n_devices ? devices[device.id].device : NULL;
}

amp_device amp_py_unserved(amp_device device) {
    return device.type == AMP_DEVICE_SERVED && device.id < n_devices ? devices[device.id].dlpack : device;
}

/* ---- calls by libamp ---- */

static PyObject *address_of(const void *data) {
    return PyLong_FromVoidPtr((void *)(uintptr_t)data);
}

/* Returns [(address, size, dtype) or None], None without a list. */
static PyObject *spans_of(const amp_span *spans, size_t n) {
    if (!spans) return Py_NewRef(Py_None);
    PyObject *list = PyList_New((Py_ssize_t)n);
    for (size_t i = 0; list && i < n; i++) {
        PyObject *span = spans[i].data || spans[i].size == 0
            ? Py_BuildValue("(NKi)", address_of(spans[i].data), (unsigned long long)spans[i].size, (int)spans[i].dtype)
            : Py_NewRef(Py_None);
        if (!span || PyList_SetItem(list, (Py_ssize_t)i, span)) Py_CLEAR(list);
    }
    return list;
}

/* Returns the further arguments of an optimizer's step: a dict, or None. */
static PyObject *step_of(const amp_served_lists *call) {
    const amp_optim *rule = call->rule;
    const amp_optim_tensors *t = call->tensors;
    if (!rule || !t) return Py_NewRef(Py_None);
    PyObject *moments = PyList_New(0);
    for (int k = 0; moments && k < 3; k++) {
        PyObject *moment = spans_of(t->moments[k], t->n);
        if (!moment || PyList_Append(moments, moment)) Py_CLEAR(moments);
        Py_XDECREF(moment);
    }
    return Py_BuildValue(
        "{sssNsNsNsNsNsNsKsKsNsNsNsNsd}", "rule", amp_py_rule_name(rule->kind), "numbers",
        amp_py_rule_numbers(rule), "grad", spans_of(t->grad, t->n), "param", spans_of(t->param, t->n), "low",
        spans_of(t->low, t->n), "moments", moments, "steps", address_of(t->steps),
        "n_steps", (unsigned long long)(t->n_steps ? t->n_steps : t->n), "step", (unsigned long long)t->step,
        "found_inf", address_of(t->found_inf), "inv_scale", address_of(t->inv_scale), "grad_norm",
        address_of(t->grad_norm), "grad_norms", address_of(t->grad_norms), "grad_factor", (double)t->grad_factor);
}

static PyObject *pack_factor(const amp_factor *factor) {
    return Py_BuildValue("(Ndi)", address_of(factor->pointer), (double)factor->value, (int)factor->how);
}

static amp_status serve_lists(void *self, const amp_served_lists *call, char *text, size_t size) {
    (void)self;
    const PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    const bool steps = call->kind == AMP_SERVE_OPTIM;
    PyObject *done = PyObject_CallMethod(
        handler, "lists", "ii(NNN)(NN)NNINNNiNN", (int)call->id, (int)call->kind,
        spans_of(steps ? NULL : call->spans[0], call->n), spans_of(steps ? NULL : call->spans[1], call->n),
        spans_of(steps ? NULL : call->spans[2], call->n), pack_factor(&call->factors[0]),
        pack_factor(&call->factors[1]),
        address_of(call->found_inf), address_of(call->first), (unsigned)call->base, address_of(call->norm),
        address_of(call->norms), address_of(call->only_if), (int)call->low, address_of(call->statistics),
        step_of(call));
    if (!done) {
        amp_py_keep_for_raise(text, size);
    } else { /* drops an exception that no caller has raised, as of a freed block */
        amp_py_forget_kept();
    }
    const amp_status status = done ? AMP_OK : AMP_ERR_HOST_FAILED;
    Py_XDECREF(done);
    PyErr_Restore(type, value, trace);
    PyGILState_Release(gil);
    return status;
}

/* The rule of a mode, as src/scaler/rules.h names it. */
static const char *rule_of(int32_t mode) {
    switch (mode) {
#define RULE(constant, value, text, name, rule, ...) case constant: return #rule;
        AMP_SCALER_MAP(RULE)
#undef RULE
    default: return "?";
    }
}

/* Returns the end of a bracket as a dict, or None. */
static PyObject *end_of(const amp_served_end *end) {
    if (!end) return Py_NewRef(Py_None);
    PyObject *which = PyList_New(0);
    for (size_t i = 0; which && i < end->n; i++) {
        PyObject *number = PyLong_FromUnsignedLong(end->which[i]);
        if (!number || PyList_Append(which, number)) Py_CLEAR(which);
        Py_XDECREF(number);
    }
    return Py_BuildValue(
        "{sNsssisdsdsdsdsIsIsisisisisNsN}", "scaler", address_of(end->scaler), "rule", rule_of(end->mode), "dynamic",
        (int)end->dynamic, "min_scale", (double)end->min_scale, "max_scale", (double)end->max_scale, "growth",
        end->growth, "backoff", end->backoff, "window", (unsigned)end->window, "hysteresis",
        (unsigned)end->hysteresis, "consecutive_hysteresis", (int)end->consecutive_hysteresis, "check_finite",
        (int)end->check_finite, "decides", (int)end->decides, "found_elsewhere", (int)end->found_elsewhere, "skips",
        address_of(end->skips), "which", which);
}

/* The result is an address, a handle, or a bool. */
static amp_status serve_memory(void *self, amp_served_memory *call, char *text, size_t size) {
    (void)self;
    const PyGILState_STATE gil = PyGILState_Ensure();
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *done = PyObject_CallMethod(
        handler, "memory", "iiNNKNiN", (int)call->id, (int)call->kind, address_of(call->dst), address_of(call->src),
        (unsigned long long)call->bytes, address_of(call->made), (int)call->value, end_of(call->end));
    if (done && (call->kind == AMP_SERVE_ALLOC || call->kind == AMP_SERVE_FETCH)) call->made = PyLong_AsVoidPtr(done);
    else if (done && call->kind == AMP_SERVE_ARRIVED) call->arrived = PyObject_IsTrue(done);
    else if (done && call->kind == AMP_SERVE_CAPTURING) call->capturing = PyObject_IsTrue(done);
    const bool bad = PyErr_Occurred() != NULL;
    if (bad) amp_py_keep_for_raise(text, size);
    Py_XDECREF(done);
    PyErr_Restore(type, value, trace);
    PyGILState_Release(gil);
    return bad ? AMP_ERR_HOST_FAILED : AMP_OK;
}

/* ---- registered devices ---- */

static int start_server(void) {
    amp_server server = AMP_SERVER_INIT;
    server.lists = serve_lists;
    server.memory = serve_memory;
    PyObject *module = PyImport_ImportModule("libamp.torch._served");
    const amp_status status = module ? amp_serve(&server) : AMP_OK;
    if (status != AMP_OK) {
        amp_py_raise(status);
        Py_CLEAR(module);
    }
    handler = module;
    return module ? 0 : -1;
}

static bool same_device(amp_device a, amp_device b) {
    return a.type == b.type && a.id == b.id;
}

/* Before torch 2.10 a tensor's view only reports another device. torch has no number for a device with a registered
 * name (PrivateUse1). DLPack's is kDLExtDev, which is AMP_DEVICE_SERVED. */
static int read_dlpack_device(PyObject *tensor, amp_device *device) {
    PyObject *pair = PyObject_CallMethod(tensor, "__dlpack_device__", NULL);
    if (!pair && PyErr_ExceptionMatches(PyExc_ValueError)) {
        PyErr_Clear();
        return 0;
    }
    PyObject *values = pair ? PySequence_Tuple(pair) : NULL;
    if (values && PyTuple_Size(values) == 2) {
        device->type = (int32_t)PyLong_AsLong(PyTuple_GetItem(values, 0));
        device->id = (int32_t)PyLong_AsLong(PyTuple_GetItem(values, 1));
    }
    Py_XDECREF(values);
    Py_XDECREF(pair);
    return PyErr_Occurred() ? -1 : 0;
}

int amp_py_serve(PyObject *tensor, amp_device *device) {
    if (device->type == AMP_DEVICE_SERVED && read_dlpack_device(tensor, device)) return -1;
    for (int i = 0; i < n_devices; i++) {
        if (same_device(devices[i].dlpack, *device)) {
            *device = (amp_device){ AMP_DEVICE_SERVED, i };
            return 0;
        }
    }
    if (n_devices == MOST_DEVICES) {
        PyErr_Format(PyExc_RuntimeError, "libamp serves %d devices at most", MOST_DEVICES);
        return -1;
    }
    PyObject *object = handler || !start_server() ? PyObject_GetAttrString(tensor, "device") : NULL;
    PyObject *known = object ? PyObject_CallMethod(handler, "add", "iOii", n_devices, object, (int)device->type,
                                                   (int)device->id)
                             : NULL;
    if (!known) {
        Py_XDECREF(object);
        return -1;
    }
    Py_DECREF(known);
    devices[n_devices].dlpack = *device;
    devices[n_devices].device = object;
    *device = (amp_device){ AMP_DEVICE_SERVED, n_devices++ };
    return 0;
}

int amp_py_serve_if(PyObject *tensor, amp_device *device) {
    return amp_py_is_served(*device, all_devices) ? amp_py_serve(tensor, device) : 0;
}

/* ---- for libamp.torch ---- */

static PyObject *torch_ops(PyObject *module, PyObject *args) {
    int on = all_devices;
    (void)module;
    if (!PyArg_ParseTuple(args, "|p:torch_ops", &on)) return NULL;
    all_devices = on != 0;
    return PyBool_FromLong(all_devices);
}

static PyObject *is_served(PyObject *module, PyObject *args) {
    amp_device device;
    (void)module;
    if (!PyArg_ParseTuple(args, "ii:is_served", &device.type, &device.id)) return NULL;
    return PyBool_FromLong(amp_py_is_served(device, all_devices));
}

static PyObject *backend_text(PyObject *module, PyObject *name) {
    amp_backend_info infos[8] = { { .struct_size = sizeof *infos } };
    size_t n = 0;
    (void)module;
    const amp_status status = amp_get_backends(infos, 8, &n);
    if (status != AMP_OK) return amp_py_raise(status);
    for (size_t i = 0; i < n && i < 8; i++) {
        if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, infos[i].name) == 0)
            return PyUnicode_FromString(infos[i].text);
    }
    return PyUnicode_FromString("");
}

static PyObject *memory_at(PyObject *module, PyObject *args) {
    PyObject *address;
    unsigned long long size;
    int code, bits;
    amp_device device;
    (void)module;
    if (!PyArg_ParseTuple(args, "OKiiii:memory_at", &address, &size, &code, &bits, &device.type, &device.id))
        return NULL;
    const void *data = PyLong_AsVoidPtr(address);
    return PyErr_Occurred() ? NULL : amp_py_dlpack_block(data, size, (uint8_t)code, (uint8_t)bits, device);
}

int amp_py_add_served(PyObject *module) {
    static PyMethodDef functions[] = {
        { "optim_rules", amp_py_optim_rules, METH_NOARGS,
          "optim_rules(): name of a rule -> (names of its moments, its numbers and flags by default)." },
        { "torch_ops", torch_ops, METH_VARARGS,
          "torch_ops(on=...)\n--\n\nReturns True if torch's operators work for all devices, by the last setting." },
        { "is_served", is_served, METH_VARARGS,
          "is_served(type, id)\n--\n\nReturns True if torch's operators work for this device, in DLPack's numbers." },
        { "backend_text", backend_text, METH_O,
          "backend_text(name)\n--\n\nReturns why a plugin is not in use, \"\" if it is, or was not tried." },
        { "memory_at", memory_at, METH_VARARGS,
          "memory_at(address, size, code, bits, type, id)\n--\n\nReturns a DLPack capsule without ownership." },
        { NULL, NULL, 0, NULL },
    };
    return PyModule_AddFunctions(module, functions);
}
