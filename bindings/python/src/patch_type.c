/* SPDX-License-Identifier: Apache-2.0 */
/* The objects that replace torch's functions. They look like the originals: name, documentation, signature, class, hash
 * and equality are the same, so that tables with torch's functions as keys find them. There are two types: builtin
 * functions do not bind to an instance, Python functions and methods do. */
#include "patch.h"

#include <stddef.h>
#include <structmember.h>

/* In the stable ABI since Python 3.12. The numbers are older. */
#ifndef Py_TPFLAGS_HAVE_VECTORCALL
#define Py_TPFLAGS_HAVE_VECTORCALL (1UL << 11)
#endif

static PyTypeObject *function_type, *method_type;
static PyObject *method_class;  /* types.MethodType */
static PyObject *resolve;       /* pkgutil.resolve_name */
static uint32_t n_made;

static bool is_patched(PyObject *object) {
    return Py_TYPE(object) == function_type || Py_TYPE(object) == method_type;
}

static int traverse(PyObject *object, visitproc visit, void *arg) {
    const amp_py_patched *self = (const amp_py_patched *)object;
    Py_VISIT(self->original);
    Py_VISIT(self->in_fp32);
    Py_VISIT(self->product);
    Py_VISIT(Py_TYPE(object));
    return 0;
}

static int clear(PyObject *object) {
    amp_py_patched *self = (amp_py_patched *)object;
    Py_CLEAR(self->original);
    Py_CLEAR(self->in_fp32);
    Py_CLEAR(self->product);
    return 0;
}

static void dealloc(PyObject *object) {
    amp_py_patched *self = (amp_py_patched *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self->weakrefs) PyObject_ClearWeakRefs(object);
    (void)clear(object);
    Py_XDECREF(self->place);
    Py_XDECREF(self->op);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

static PyObject *call(PyObject *self, PyObject *args, PyObject *keywords) {
    enum { MOST = 64 };
    PyObject *values[MOST], *names = keywords && PyDict_Size(keywords) ? PyDict_Keys(keywords) : NULL;
    const Py_ssize_t n = PyTuple_Size(args);
    PyObject *tuple = names ? PyList_AsTuple(names) : NULL;
    const Py_ssize_t n_names = tuple ? PyTuple_Size(tuple) : 0;
    PyObject *result = NULL;
    if (n + n_names > MOST) { /* not torch's */
        result = PyObject_Call(((amp_py_patched *)self)->original, args, keywords);
    } else if (!names || tuple) {
        for (Py_ssize_t i = 0; i < n; i++) values[i] = PyTuple_GetItem(args, i);
        for (Py_ssize_t i = 0; i < n_names; i++)
            values[n + i] = PyDict_GetItemWithError(keywords, PyTuple_GetItem(tuple, i));
        result = amp_py_patched_call(self, values, (size_t)n, n_names ? tuple : NULL);
    }
    Py_XDECREF(names);
    Py_XDECREF(tuple);
    return result;
}

static PyObject *bind(PyObject *self, PyObject *object, PyObject *type) {
    (void)type;
    if (!object || object == Py_None) return Py_NewRef(self);
    return PyObject_CallFunctionObjArgs(method_class, self, object, NULL);
}

static PyObject *repr(PyObject *self) {
    return PyObject_Repr(((amp_py_patched *)self)->original);
}

static Py_hash_t hash(PyObject *self) {
    return PyObject_Hash(((amp_py_patched *)self)->original);
}

static PyObject *compare(PyObject *self, PyObject *other, int op) {
    if (op != Py_EQ && op != Py_NE) Py_RETURN_NOTIMPLEMENTED;
    PyObject *mine = ((amp_py_patched *)self)->original;
    PyObject *theirs = is_patched(other) ? ((amp_py_patched *)other)->original : other;
    return PyObject_RichCompare(mine, theirs, op);
}

/* Attributes that the stub lacks are the original's. */
static PyObject *getattro(PyObject *self, PyObject *name) {
    static const char *const own[] = { "__wrapped__", "__call__", "__get__", "__reduce__", "__reduce_ex__",
                                       "__deepcopy__",
                                       "__copy__", "__eq__", "__ne__", "__hash__", "__repr__", "__str__" };
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        if (PyUnicode_CompareWithASCIIString(name, own[i]) == 0) return PyObject_GenericGetAttr(self, name);
    }
    return PyObject_GetAttr(((amp_py_patched *)self)->original, name);
}

/* Pickled by name: the loading process gets its own function, patched or not, and needs libamp only if patched. */
static PyObject *reduce(PyObject *self, PyObject *protocol) {
    (void)protocol;
    return Py_BuildValue("(O(O))", resolve, ((amp_py_patched *)self)->place);
}

static PyObject *myself(PyObject *self, PyObject *unused) {
    (void)unused;
    return Py_NewRef(self);
}

static PyObject *call_method(PyObject *self, PyObject *args, PyObject *keywords) {
    return call(self, args, keywords);
}

static PyMethodDef methods[] = {
    { "__reduce_ex__", reduce, METH_O, NULL },
    { "__reduce__", reduce, METH_NOARGS, NULL },
    { "__deepcopy__", myself, METH_O, NULL },
    { "__copy__", myself, METH_NOARGS, NULL },
    { "__call__", (PyCFunction)(void (*)(void))call_method, METH_VARARGS | METH_KEYWORDS, NULL },
    { NULL, NULL, 0, NULL },
};

static PyMemberDef members[] = {
    { "__vectorcalloffset__", T_PYSSIZET, offsetof(amp_py_patched, vectorcall), READONLY, NULL },
    { "__weaklistoffset__", T_PYSSIZET, offsetof(amp_py_patched, weakrefs), READONLY, NULL },
    { "__wrapped__", T_OBJECT_EX, offsetof(amp_py_patched, original), READONLY, "The function of torch's." },
    { NULL, 0, 0, 0, NULL },
};

#define SLOT(function) AMP_PY_SLOT(function)
#define SLOTS                                                                                                          \
    { Py_tp_dealloc, SLOT(dealloc) }, { Py_tp_traverse, SLOT(traverse) }, { Py_tp_clear, SLOT(clear) },                \
        { Py_tp_call, SLOT(call) }, { Py_tp_repr, SLOT(repr) }, { Py_tp_hash, SLOT(hash) },                            \
        { Py_tp_richcompare, SLOT(compare) }, { Py_tp_getattro, SLOT(getattro) }, { Py_tp_methods, methods },          \
        { Py_tp_members, members }

static PyType_Slot function_slots[] = { SLOTS, { 0, NULL } };
static PyType_Slot method_slots[] = { SLOTS, { Py_tp_descr_get, SLOT(bind) }, { 0, NULL } };

enum { FLAGS = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL };
static PyType_Spec function_spec = { "libamp._core.PatchedFunction", sizeof(amp_py_patched), 0, FLAGS, function_slots };
static PyType_Spec method_spec = { "libamp._core.PatchedMethod", sizeof(amp_py_patched), 0,
                                   FLAGS | Py_TPFLAGS_METHOD_DESCRIPTOR, method_slots };

static PyObject *patched(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *original, *place, *op, *in_fp32 = Py_None, *product = Py_None;
    int op_class, flags, binds;
    if (!PyArg_ParseTuple(args, "OUUiip|OO", &original, &place, &op, &op_class, &flags, &binds, &in_fp32,
                          &product))
        return NULL;
    if (!PyCallable_Check(original) || is_patched(original))
        return PyErr_Format(PyExc_TypeError, "%R cannot be patched", original);
    if (op_class < AMP_BY_LIST || op_class > AMP_LEAVE)
        return PyErr_Format(PyExc_ValueError, "%d is no class of an op", op_class);
    const char *text = PyUnicode_AsUTF8AndSize(op, NULL);
    PyTypeObject *type = binds ? method_type : function_type;
    amp_py_patched *self = text ? (amp_py_patched *)PyType_GenericAlloc(type, 0) : NULL;
    if (!self) return NULL;
    self->vectorcall = amp_py_patched_call;
    self->original = Py_NewRef(original);
    self->in_fp32 = in_fp32 == Py_None ? NULL : Py_NewRef(in_fp32);
    self->product = product == Py_None ? NULL : Py_NewRef(product);
    self->place = Py_NewRef(place);
    self->op = Py_NewRef(op);
    self->op_text = text;
    self->fixed = op_class;
    self->flags = (uint32_t)flags;
    self->number = n_made++;
    return (PyObject *)self;
}

static PyMethodDef functions[] = {
    { "patched", patched, METH_VARARGS,
      "patched(original, place, op, op_class, flags, binds, in_fp32=None, product=None): a function that asks the "
      "policy and calls the original, in_fp32(...) where the original would need casts to FP32 on CUDA, or "
      "product(type, reason, ...) where it would multiply in 16 bits on the CPU. Their NotImplemented asks for the "
      "original." },
    { NULL, NULL, 0, NULL },
};

static PyObject *import_attribute(const char *module, const char *name) {
    PyObject *of = PyImport_ImportModule(module);
    PyObject *value = of ? PyObject_GetAttrString(of, name) : NULL;
    Py_XDECREF(of);
    return value;
}

int amp_py_add_patched(PyObject *module) {
    method_class = import_attribute("types", "MethodType");
    resolve = import_attribute("pkgutil", "resolve_name");
    function_type = (PyTypeObject *)PyType_FromSpec(&function_spec);
    method_type = (PyTypeObject *)PyType_FromSpec(&method_spec);
    if (!method_class || !resolve || !function_type || !method_type) return -1;
    if (PyModule_AddObjectRef(module, "PatchedFunction", (PyObject *)function_type) < 0 ||
        PyModule_AddObjectRef(module, "PatchedMethod", (PyObject *)method_type) < 0 ||
        PyModule_AddIntConstant(module, "IN_PLACE", AMP_PY_IN_PLACE) < 0 ||
        PyModule_AddIntConstant(module, "WIDENS", AMP_PY_WIDENS) < 0 ||
        PyModule_AddIntConstant(module, "WHOLE", AMP_PY_WHOLE) < 0 ||
        PyModule_AddIntConstant(module, "NEVER_NARROWS", AMP_PY_NEVER_NARROWS) < 0 ||
        PyModule_AddIntConstant(module, "TORCH_PROMOTES", AMP_PY_TORCH_PROMOTES) < 0)
        return -1;
    return PyModule_AddFunctions(module, functions);
}
