/* SPDX-License-Identifier: Apache-2.0 */
/* The call of a patched function: finds the policy, casts the arguments by its ruling, calls the original. */
#include "patch.h"

#include <stdlib.h>

#include "context.h"
#include "tensor.h"

enum { STACK = 12 };

static amp_py_policy *newest; /* contexts that patch, the first serves threads without a scope */
static PyObject *name_out, *name_tensors, *name_dtype;

/* ---- the policy of a thread ---- */

/* Returns the policy on this thread, or NULL. *scoped: it comes from a scope. */
static amp_py_policy *policy_now(bool *scoped) {
    amp_context *context;
    if (!newest) return NULL;
    *scoped = amp_scope_current(&context) != 0;
    for (amp_py_policy *policy = newest; policy; policy = policy->older) {
        const bool alive = ((const amp_py_Context *)policy->context)->amp != NULL;
        if (alive && (!*scoped || policy->amp == context)) return policy;
    }
    return NULL;
}

/* ---- the call ---- */

/* Positional and keyword arguments in one array. */
struct arguments {
    PyObject *const *values;
    Py_ssize_t n, total;
    PyObject *names;     /* names of the last total - n, or NULL */
    Py_ssize_t first;    /* first argument that may be cast */
    Py_ssize_t end;      /* end of those */
    Py_ssize_t written;  /* keyword argument that is never replaced, or -1 */
    uint8_t types[STACK]; /* results of amp_py_collect for the first of them */
};

static Py_ssize_t find_name(const struct arguments *arguments, PyObject *name) {
    for (Py_ssize_t i = arguments->n; i < arguments->total; i++) {
        PyObject *given = PyTuple_GetItem(arguments->names, i - arguments->n);
        if (given == name || PyUnicode_Compare(given, name) == 0) return i;
    }
    return -1;
}

static bool is_low(PyObject *dtype) {
    return dtype == amp_py_torch_dtype(AMP_FLOAT16) || dtype == amp_py_torch_dtype(AMP_BFLOAT16);
}

/* Finds the written argument and those to cast. Returns false to call without casts. */
static bool split_arguments(struct amp_py_call *call, struct arguments *arguments) {
    arguments->written = arguments->names ? find_name(arguments, name_out) : -1;
    if (arguments->written >= 0 && arguments->values[arguments->written] != Py_None) {
        call->into = amp_py_tensor_type(arguments->values[arguments->written]);
        if (!amp_py_bit(call->into) || (call->op_class == AMP_FP32 && amp_py_bit(call->into) & AMP_PY_LOW)) {
            return false; /* several, integers, or a result that torch itself narrows */
        }
    }
    if (call->function->flags & AMP_PY_NEVER_NARROWS && arguments->names) {
        const Py_ssize_t dtype = find_name(arguments, name_dtype);
        if (dtype >= 0 && is_low(arguments->values[dtype])) return false;
    }
    if (call->function->flags & AMP_PY_IN_PLACE) {
        if (arguments->n == 0) return false;
        call->into = amp_py_tensor_type(arguments->values[0]);
        arguments->first = 1;
        return amp_py_bit(call->into) != 0;
    }
    if (call->op_class == AMP_PROMOTE_SEQUENCE) {
        arguments->first = arguments->n > 0 ? 0 : arguments->names ? find_name(arguments, name_tensors) : -1;
        arguments->end = arguments->first + 1;
        return arguments->first >= 0;
    }
    return true;
}

static PyObject *call_original(const amp_py_patched *function, PyObject *const *args, size_t nargsf,
                               PyObject *kwnames, bool whole) {
    PyObject *result = amp_py_product_as_given(function, args, nargsf, kwnames);
    if (result != Py_NotImplemented) return result;
    Py_DECREF(result);
    return whole ? amp_py_call_alone(function->original, args, nargsf, kwnames)
                 : amp_py_call_vector(function->original, args, nargsf, kwnames);
}

static PyObject *call_with_casts(struct amp_py_call *call, const struct arguments *arguments) {
    PyObject *stack[STACK], **values = stack;
    PyObject *result = NULL;
    Py_ssize_t done = 0;
    if (arguments->total > STACK && (values = malloc((size_t)arguments->total * sizeof *values)) == NULL)
        return PyErr_NoMemory();
    for (; done < arguments->total; done++) {
        PyObject *value = arguments->values[done];
        const bool as_it_is = done < arguments->first || done >= arguments->end || done == arguments->written;
        uint32_t unused;
        values[done] = as_it_is ? Py_NewRef(value)
                                : amp_py_cast_value(call, value, done < STACK ? arguments->types[done]
                                                                              : amp_py_collect(value, &unused));
        if (!values[done]) break;
    }
    if (done == arguments->total)
        result = call_original(call->function, values, (size_t)arguments->n, arguments->names,
                               call->function->flags & AMP_PY_WHOLE);
    while (done-- > 0) Py_DECREF(values[done]);
    if (values != stack) free(values);
    return result;
}

/* True if torch's own promotion converts these two arguments, inside the op, to the bits of a cast. A tensor without
 * dimensions does not count in torch's choice of the type. Reports and observed iterations need visible casts. */
static bool promoted_by_torch(const struct amp_py_call *call, const struct arguments *arguments) {
    return call->function->flags & AMP_PY_TORCH_PROMOTES && call->op_class == AMP_PROMOTE && arguments->total == 2 &&
        call->policy->report == NULL && !amp_is_observing(call->policy->amp) &&
        amp_py_bit(arguments->types[0]) && amp_py_bit(arguments->types[1]) &&
        amp_py_has_dims(arguments->values[0]) && amp_py_has_dims(arguments->values[1]);
}

/* Calls an op that converts its arguments itself: a product on the CPU, or an FP32 op in the registers of a GPU kernel.
 * NotImplemented: it needs casts. */
static PyObject *call_without_casts(const struct amp_py_call *call, const struct arguments *arguments) {
    const amp_py_patched *function = call->function;
    if ((!function->product && !function->in_fp32) || call->into || call->policy->report ||
        amp_is_observing(call->policy->amp))
        return Py_NewRef(Py_NotImplemented);
    if (call->op_class == AMP_LOWER)
        return amp_py_product_lowered(function, call->target, arguments->values, arguments->n, arguments->names);
    if (!function->in_fp32 || call->op_class != AMP_FP32 || arguments->n == 0 ||
        !(amp_py_bit(arguments->types[0]) & AMP_PY_LOW) || !amp_py_is_on_cuda(arguments->values[0]))
        return Py_NewRef(Py_NotImplemented);
    return amp_py_call_alone(function->in_fp32, arguments->values, (size_t)arguments->n, arguments->names);
}

PyObject *amp_py_patched_call(PyObject *self, PyObject *const *args, size_t nargsf, PyObject *kwnames) {
    const amp_py_patched *function = (const amp_py_patched *)self;
    struct amp_py_call call = { .function = function };
    call.policy = policy_now(&call.scoped);
    const int op_class = call.policy ? amp_py_policy_class(call.policy, function) : AMP_LEAVE;
    if (op_class < 0) return NULL;
    call.op_class = op_class;
    struct arguments arguments;
    arguments.values = args;
    arguments.n = (Py_ssize_t)(nargsf & ~((size_t)1 << (8 * sizeof(size_t) - 1)));
    arguments.names = kwnames;
    arguments.first = 0;
    arguments.end = arguments.total = arguments.n + (kwnames ? PyTuple_Size(kwnames) : 0);
    if (op_class == AMP_LEAVE || !split_arguments(&call, &arguments))
        return call_original(function, args, nargsf, kwnames, false);
    uint32_t set = 0;
    for (Py_ssize_t i = arguments.first; i < arguments.end; i++) {
        if (i == arguments.written) continue;
        const amp_dtype type = amp_py_collect(args[i], &set);
        if (i < STACK) arguments.types[i] = (uint8_t)type;
    }
    if (function->flags & AMP_PY_WIDENS) set &= AMP_PY_LOW;
    const int target = set || call.into ? amp_py_target(&call, set) : AMP_DTYPE_DEFAULT;
    if (target <= AMP_DTYPE_DEFAULT || promoted_by_torch(&call, &arguments))
        return target < 0 ? NULL : call_original(function, args, nargsf, kwnames, function->flags & AMP_PY_WHOLE);
    call.target = target;
    PyObject *result = call_without_casts(&call, &arguments);
    if (result == Py_NotImplemented) {
        Py_DECREF(result);
        result = call_with_casts(&call, &arguments);
    }
    return result;
}

/* ---- from Python ---- */

static PyObject *add_policy(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *context, *report;
    int allow_banned;
    if (!PyArg_ParseTuple(args, "OOp", &context, &report, &allow_banned)) return NULL;
    amp_context *amp = amp_py_context(context);
    if (!amp || amp_py_cast_init() < 0) return NULL;
    amp_py_policy *policy = calloc(1, sizeof *policy);
    if (!policy) return PyErr_NoMemory();
    policy->context = Py_NewRef(context);
    policy->report = report == Py_None ? NULL : Py_NewRef(report);
    policy->amp = amp;
    policy->allow_banned = allow_banned != 0;
    policy->older = newest;
    newest = policy;
    Py_RETURN_NONE;
}

static PyObject *remove_policy(PyObject *module, PyObject *context) {
    (void)module;
    for (amp_py_policy **at = &newest; *at; at = &(*at)->older) {
        amp_py_policy *policy = *at;
        if (policy->context != context) continue;
        *at = policy->older;
        Py_DECREF(policy->context);
        Py_XDECREF(policy->report);
        free(policy->classes);
        free(policy);
        Py_RETURN_TRUE;
    }
    Py_RETURN_FALSE;
}

static PyObject *policy_active(PyObject *module, PyObject *unused) {
    bool scoped;
    (void)module, (void)unused;
    return PyBool_FromLong(policy_now(&scoped) != NULL);
}

static PyObject *scope_entered(PyObject *module, PyObject *unused) {
    (void)module, (void)unused;
    return PyBool_FromLong(amp_scope_current(NULL));
}

static PyObject *list_ops(PyObject *module, PyObject *lists) {
    (void)module;
    enum { MOST = 1024 };
    const long number = PyLong_AsLong(lists);
    amp_list_op *ops = PyErr_Occurred() ? NULL : calloc(MOST, sizeof *ops);
    size_t n = 0;
    PyObject *made = NULL;
    if (!ops) return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    ops[0].struct_size = sizeof *ops;
    const amp_status status = amp_get_list_ops((int32_t)number, ops, MOST, &n);
    made = status == AMP_OK ? PyList_New(0) : amp_py_raise(status);
    for (size_t i = 0; made && i < n && i < MOST; i++) {
        PyObject *op = Py_BuildValue("(sIii)", ops[i].name, ops[i].modules, ops[i].fp16, ops[i].bf16);
        const int bad = op ? PyList_Append(made, op) : -1;
        Py_XDECREF(op);
        if (bad) Py_CLEAR(made);
    }
    free(ops);
    return made;
}

static PyMethodDef functions[] = {
    { "add_policy", add_policy, METH_VARARGS,
      "add_policy(context, report, allow_banned): makes patched functions obey this context." },
    { "remove_policy", remove_policy, METH_O, "remove_policy(context): undoes add_policy. True if it was in force." },
    { "policy_active", policy_active, METH_NOARGS, "policy_active(): True if a policy is in force on this thread." },
    { "scope_entered", scope_entered, METH_NOARGS, "scope_entered(): True in a scope on this thread." },
    { "list_ops", list_ops, METH_O,
      "list_ops(lists): the cast list's (name, modules, class for fp16, class for bf16)." },
    { NULL, NULL, 0, NULL },
};

int amp_py_add_patch(PyObject *module) {
    amp_py_find_vectorcall();
    name_out = PyUnicode_InternFromString("out");
    name_tensors = PyUnicode_InternFromString("tensors");
    name_dtype = PyUnicode_InternFromString("dtype");
    return name_out && name_tensors && name_dtype && PyModule_AddFunctions(module, functions) == 0 ? 0 : -1;
}
