/* SPDX-License-Identifier: Apache-2.0 */
/* libamp's hooks over torch tensors: a handle is a PyObject *. All of them run with the GIL. */
#include "call.h"
#include "context.h"
#include "dlpack.h"
#include "served.h"

#include <string.h>

/* ---- the context's parts ---- */

amp_py_Context *amp_py_live(PyObject *object) {
    amp_py_Context *context = (amp_py_Context *)object;
    if (!context->amp) {
        PyErr_SetString(PyExc_RuntimeError, "this amp context was shut down");
        return NULL;
    }
    return context;
}

struct amp_py_optimizer *amp_py_optimizer_at(amp_py_Context *context, PyObject *index) {
    const size_t i = PyLong_AsSize_t(index);
    if (PyErr_Occurred()) return NULL;
    if (i >= context->n_optimizers) {
        PyErr_SetString(PyExc_IndexError, "the context has no optimizer of that number");
        return NULL;
    }
    return context->optimizers[i];
}

/* libamp visits parameters in order, and each more than once. */
struct amp_py_param *amp_py_find(amp_py_Context *context, const void *tensor) {
    const size_t mask = context->table_size - 1, end = context->found + 2;
    for (size_t i = context->found; i < end && i < context->n_params; i++) {
        if (context->params[i]->tensor == tensor) {
            context->found = i;
            return context->params[i];
        }
    }
    if (context->table_size == 0) return NULL;
    for (size_t i = ((uintptr_t)tensor >> 4) & mask; context->table[i]; i = (i + 1) & mask) {
        if (context->table[i]->tensor == tensor) {
            context->found = context->table[i]->number;
            return context->table[i];
        }
    }
    return NULL;
}

/* ---- exceptions inside hooks ---- */

void amp_py_keep_error(amp_py_Context *context) {
    if (context->error[0]) PyErr_Clear();
    else PyErr_Fetch(&context->error[0], &context->error[1], &context->error[2]);
}

PyObject *amp_py_context_raise(amp_py_Context *context, amp_status status) {
    if (context->error[0]) {
        PyErr_Restore(context->error[0], context->error[1], context->error[2]);
        memset(context->error, 0, sizeof context->error);
        return NULL;
    }
    return amp_py_raise(status);
}

static amp_status keep_hook_error(amp_py_Context *context) {
    amp_py_keep_error(context);
    return AMP_ERR_HOST_FAILED;
}

/* ---- views ---- */

/* Fills the dimensions in the order of the parameter's elements, so that a dense block is compact, channels last
 * too. */
static void permute_view(const struct amp_py_order *order, amp_tensor_view *view) {
    static _Thread_local int64_t shape[AMP_PY_MAX_DIMS], strides[AMP_PY_MAX_DIMS];
    if (view->ndim != order->ndim || !view->strides) return;
    for (int32_t i = 0; i < view->ndim; i++) {
        shape[i] = view->shape[order->of[i]];
        strides[i] = view->strides[order->of[i]];
    }
    view->shape = shape;
    view->strides = strides;
}

enum { DL_FLOAT = 2, DL_COMPLEX = 5 };

/* Shows complex elements as pairs of real ones in one more dimension, because a gradient is unscaled and checked by
 * parts. The elements of the parameter itself are not read. It is reported as FP64, which no level changes. */
static void view_as_pairs(bool is_param, amp_tensor_view *view) {
    static _Thread_local int64_t shape[AMP_PY_MAX_DIMS + 1], strides[AMP_PY_MAX_DIMS + 1];
    const int32_t n = view->ndim;
    if (view->dtype.code != DL_COMPLEX || n < 0 || n > AMP_PY_MAX_DIMS) return;
    for (int32_t i = 0; i < n; i++) {
        shape[i] = view->shape[i];
        strides[i] = view->strides ? 2 * view->strides[i] : 0;
    }
    shape[n] = 2;
    strides[n] = 1;
    view->ndim = n + 1;
    view->shape = shape;
    view->strides = view->strides ? strides : NULL;
    view->dtype.code = DL_FLOAT;
    view->dtype.bits = is_param ? 64 : view->dtype.bits / 2;
}

/* The parameter of the gradient before the last one from the hook grad. NULL: none, or none is viewed in its own
 * order. */
static const struct amp_py_param *holder_of(const amp_py_Context *context, const void *grad) {
    for (size_t i = 0; i < context->n_params && context->permutes; i++) {
        if (context->params[i]->held == grad) return context->params[i];
    }
    return NULL;
}

static amp_status hook_view(void *self, void *tensor, amp_tensor_view *view) {
    amp_py_Context *context = self;
    if (amp_py_look(tensor, view)) {
        PyErr_Clear();
        PyErr_SetString(PyExc_RuntimeError,
                        "a gradient or parameter has no plain elements (it is sparse, or of another kind); where a "
                        "loss is scaled the module that makes sparse ones says so with an attribute, sparse = True, "
                        "before amp.initialize, as nn.Embedding(sparse=True) does");
        return keep_hook_error(context);
    }
    const struct amp_py_param *param = context->looked_at;
    if (!param || (param->held != tensor && param->aside != tensor)) {
        param = amp_py_find(context, tensor);
        param = param ? param : holder_of(context, tensor);
    }
    if (param && param->order.permuted) permute_view(&param->order, view);
    view_as_pairs(param && param->tensor == tensor, view);
    if (amp_py_is_served(view->device, context->torch_ops) && amp_py_serve(tensor, &view->device))
        return keep_hook_error(context);
    return AMP_OK;
}

static amp_dtype hook_dtype(void *self, void *tensor) {
    (void)self;
    return amp_py_dtype(tensor);
}

/* Writes through .data change no version. A parameter with a master that is not trained is written that way as a rule
 * (a momentum encoder), so it gets a new version each time, and the next step compares it. A parameter with new memory
 * (`p.data = x`), which a forward has noticed, counts as written. */
static uint64_t hook_version(void *self, void *tensor) {
    amp_py_Context *context = self;
    const struct amp_py_param *param = amp_py_find(context, tensor);
    if (!param) return amp_py_version(tensor);
    if (param->frozen) return UINT64_MAX - context->looks++;
    return amp_py_version(tensor) + ((uint64_t)param->moves << 40);
}

static int32_t hook_grad_enabled(void *self) {
    (void)self;
    return amp_py_grad_enabled();
}

/* ---- casting ---- */

static amp_status hook_cast(void *self, void *tensor, amp_dtype to, void **out) {
    *out = amp_py_to(tensor, to);
    return *out ? AMP_OK : keep_hook_error(self);
}

static void hook_release(void *self, void *tensor) {
    (void)self;
    Py_DECREF((PyObject *)tensor);
}

/* ---- gradients ---- */

/* The owner of a parameter's gradient: its master, except for new gradients of backward or delayed ones. */
static PyObject *gradient_holder(const amp_py_Context *context, const struct amp_py_param *param, void *tensor) {
    return param && param->master && !context->ending && !param->scaled ? param->master : tensor;
}

static amp_status hook_grad(void *self, void *tensor, void **grad) {
    amp_py_Context *context = self;
    struct amp_py_param *param = amp_py_find(context, tensor);
    PyObject *found = amp_py_grad(gradient_holder(context, param, tensor));
    if (!found) return keep_hook_error(context);
    *grad = found == Py_None ? NULL : found;
    if (param) {
        PyObject *before = param->held;
        param->held = found;
        context->holds = true;
        Py_XDECREF(before);
        context->looked_at = param;
    } else {
        Py_DECREF(found);
    }
    return AMP_OK;
}

static amp_status hook_set_grad(void *self, void *tensor, void *grad) {
    amp_py_Context *context = self;
    struct amp_py_param *param = amp_py_find(context, tensor);
    PyObject *holder = gradient_holder(context, param, tensor);
    PyObject *new = grad ? grad : Py_None;
    PyObject *old = amp_py_grad(holder); /* libamp owns it from here on */
    int bad = old == NULL;
    if (!bad && param && param->master)
        bad = (holder == tensor && amp_py_set_grad(tensor, Py_None)) ||
            amp_py_set_grad(param->master, new);
    else if (!bad) bad = amp_py_set_grad(tensor, new);
    if (bad) {
        Py_XDECREF(old);
        return keep_hook_error(context);
    }
    if (param) param->aside = old == Py_None ? NULL : old;
    if (old == Py_None) Py_DECREF(old);
    Py_XDECREF((PyObject *)grad);
    return AMP_OK;
}

void amp_py_drop_held(amp_py_Context *context) {
    context->looked_at = NULL;
    for (size_t i = 0; i < context->n_params && context->holds; i++) Py_CLEAR(context->params[i]->held);
    context->holds = false;
}

/* ---- storage ---- */

/* Fills *storage with the tensor's block and passes the reference. */
static int put_block(amp_py_Context *context, PyObject *tensor, amp_storage *storage) {
    storage->owner = tensor;
    storage->data = amp_py_data(tensor);
    PyObject *key = PyErr_Occurred() ? NULL : PyLong_FromVoidPtr(storage->data);
    const int bad = key == NULL || PyDict_SetItem(context->blocks, key, tensor);
    Py_XDECREF(key);
    return bad ? -1 : 0;
}

static void drop_block(amp_py_Context *context, const amp_storage *storage) {
    PyObject *key = PyLong_FromVoidPtr(storage->data);
    if (!key || PyDict_GetItemWithError(context->blocks, key) != storage->owner ||
        PyDict_DelItem(context->blocks, key))
        PyErr_Clear();
    Py_XDECREF(key);
}

static amp_status hook_alloc(void *self, uint64_t bytes, amp_device device, amp_purpose purpose, amp_storage *storage) {
    amp_py_Context *context = self;
    (void)purpose;
    PyObject *served = amp_py_served_device(device);
    PyObject *tensor = PyObject_CallMethod(context->storage, "alloc", "KiiO", (unsigned long long)bytes,
                                           (int)device.type, (int)device.id, served ? served : Py_None);
    if (!tensor || put_block(context, tensor, storage)) {
        Py_XDECREF(tensor);
        return keep_hook_error(context);
    }
    storage->bytes = bytes;
    if (!storage->data) { /* torch gives tensors without elements no address */
        Py_DECREF(tensor);
        return AMP_ERR_NO_MEMORY;
    }
    return AMP_OK;
}

/* torch's allocator reuses a block in the order of the stream that allocated it, but another stream may still use
 * it. */
static void retire_block(const amp_py_Context *context, PyObject *tensor) {
    amp_tensor_view view = { 0 };
    if (tensor && amp_py_look(tensor, &view) == 0 && view.device.type == AMP_PY_CUDA)
        Py_XDECREF(PyObject_CallMethod(context->storage, "retire", "O", tensor));
    PyErr_Clear();
}

static void hook_free(void *self, amp_storage *storage) {
    drop_block(self, storage);
    retire_block(self, storage->owner);
    Py_XDECREF((PyObject *)storage->owner);
}

static amp_status hook_swap_data(void *self, void *tensor, amp_storage *storage) {
    amp_py_Context *context = self;
    if (context->dying) return AMP_ERR_HOST_FAILED;
    struct amp_py_param *param = amp_py_find(context, tensor);
    if (param) param->dtype = storage->dtype;
    PyObject *fresh = storage->owner;
    PyObject *old = PyObject_CallMethod(context->storage, "swap", "OOO", (PyObject *)tensor, fresh,
                                        amp_py_torch_dtype(storage->dtype));
    if (!old) return keep_hook_error(context);
    amp_storage out = { .dtype = amp_py_dtype(old) };
    const amp_storage in = *storage;
    if (put_block(context, old, &out)) {
        Py_DECREF(old);
        return keep_hook_error(context);
    }
    amp_tensor_view view = { 0 };
    if (amp_py_look(old, &view)) return keep_hook_error(context);
    out.bytes = view.dtype.bits / 8;
    for (int32_t i = 0; i < view.ndim; i++) out.bytes *= (uint64_t)view.shape[i];
    *storage = out;
    drop_block(context, &in); /* the tensor on it keeps it alive */
    Py_DECREF(fresh);
    return AMP_OK;
}

PyObject *amp_py_number(const amp_py_Context *context, const float *address, amp_device device) {
    PyObject *capsule = amp_py_dlpack_number(address, amp_py_unserved(device));
    PyObject *tensor = capsule ? PyObject_CallMethod(context->storage, "number", "O", capsule) : NULL;
    Py_XDECREF(capsule);
    return tensor;
}

static amp_status hook_current_stream(void *self, amp_device device, void **stream) {
    return amp_py_cuda_stream(NULL, true, device, stream) ? keep_hook_error(self) : AMP_OK;
}

/* ---- ranks ---- */

static int32_t hook_has_ranks(void *self) {
    const amp_py_Context *context = self;
    return context->reduce != NULL && !context->alone;
}

static amp_status hook_reduce(void *self, amp_reduction reduction, double *values, size_t n) {
    amp_py_Context *context = self;
    PyObject *list = PyList_New(0);
    int bad = list == NULL;
    for (size_t i = 0; i < n && !bad; i++) {
        PyObject *value = PyFloat_FromDouble(values[i]);
        bad = value == NULL || PyList_Append(list, value);
        Py_XDECREF(value);
    }
    PyObject *result = bad ? NULL : PyObject_CallFunction(context->reduce, "iO", (int)reduction, list);
    for (size_t i = 0; i < n && result; i++) {
        PyObject *value = PySequence_GetItem(result, (Py_ssize_t)i);
        values[i] = value ? PyFloat_AsDouble(value) : 0.0;
        Py_XDECREF(value);
        if (PyErr_Occurred()) Py_CLEAR(result);
    }
    bad = result == NULL;
    Py_XDECREF(result);
    Py_XDECREF(list);
    return bad ? keep_hook_error(context) : AMP_OK;
}

/* ---- events ---- */

static void hook_event(void *self, const amp_event *event) {
    amp_py_Context *context = self;
    if (!context->event || context->dying) return;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject *result = PyObject_CallFunction(
        context->event, "isIdds", (int)event->kind, event->message ? event->message : "", (unsigned)event->loss_id,
        (double)event->scale_before, (double)event->scale_after, event->first_nonfinite ? event->first_nonfinite : "");
    if (!result) amp_py_keep_error(context);
    Py_XDECREF(result);
    PyErr_Restore(type, value, trace);
}

void amp_py_host(amp_py_Context *context, amp_host *host) {
    *host = (amp_host)AMP_HOST_INIT;
    host->flags = AMP_HOST_TAPE_RETAINS_INPUTS | AMP_HOST_SEEDS_ON_DEVICE | AMP_HOST_VERSION_MISSES_WRITES |
                  AMP_HOST_IS_PYTHON;
    host->self = context;
    host->view = hook_view;
    host->dtype = hook_dtype;
    host->cast = hook_cast;
    host->release = hook_release;
    host->version = hook_version;
    host->grad_enabled = hook_grad_enabled;
    host->grad = hook_grad;
    host->set_grad = hook_set_grad;
    host->swap_data = hook_swap_data;
    host->alloc = hook_alloc;
    host->free = hook_free;
    host->event = hook_event;
    host->reduce = hook_reduce;
    host->has_ranks = hook_has_ranks;
    host->current_stream = hook_current_stream;
}
