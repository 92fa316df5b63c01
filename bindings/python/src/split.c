/* SPDX-License-Identifier: Apache-2.0 */
/* Split masters in libamp.kernels: split, join, remainder_bytes, and the remainders of an optimizer's step. */
#include "kernels.h"

#include "amp_optim.h"
#include "call.h"

void **amp_py_remainders(const struct amp_py_list *list, const struct amp_py_list *params) {
    void **blocks = PyMem_Calloc(list->n ? list->n : 1, sizeof *blocks);
    if (!blocks) {
        PyErr_NoMemory();
        return NULL;
    }
    for (size_t i = 0; i < list->n; i++) {
        const amp_span *span = &list->spans[i];
        const uint64_t width = span->dtype == AMP_FLOAT64 ? 8 : span->dtype == AMP_FLOAT32 ? 4 : 2;
        const uint64_t wanted = amp_remainder_bytes(params->spans[i].size);
        if (span->data && span->size * width < wanted) {
            amp_py_refuse((amp_py_where){ list->name, list->single ? -1 : (Py_ssize_t)i },
                          "has %llu byte%s, and its tensor of %llu element%s needs %llu (kernels.remainder_bytes)",
                          (unsigned long long)(span->size * width), AMP_PY_S(span->size * width),
                          (unsigned long long)params->spans[i].size, AMP_PY_S(params->spans[i].size),
                          (unsigned long long)wanted);
            PyMem_Free(blocks);
            return NULL;
        }
        blocks[i] = span->data;
    }
    return blocks;
}

enum { LOW, REST, FP32 };

typedef struct split_call {
    amp_py_call call; /* first member, so that kernels find the others */
    void **remainders;
} split_call;

static amp_status split_cpu(amp_py_call *call) {
    const split_call *split = (const split_call *)call;
    return amp_split_list(call->lists[LOW].spans, split->remainders, call->lists[FP32].spans, call->lists[LOW].n);
}

static amp_status join_cpu(amp_py_call *call) {
    const split_call *split = (const split_call *)call;
    return amp_join_list(call->lists[FP32].spans, call->lists[LOW].spans, split->remainders, call->lists[LOW].n);
}

static amp_status split_cuda(amp_py_call *call) {
    const split_call *split = (const split_call *)call;
    return amp_device_split(call->list, call->stream, call->lists[LOW].spans, split->remainders,
                            call->lists[FP32].spans, call->lists[LOW].n);
}

static amp_status join_cuda(amp_py_call *call) {
    const split_call *split = (const split_call *)call;
    return amp_device_join(call->list, call->stream, call->lists[FP32].spans, call->lists[LOW].spans,
                           split->remainders, call->lists[LOW].n);
}

static PyObject *run_split(const char *function, const amp_py_argument *arguments, amp_py_kernel cpu,
                           amp_py_kernel cuda) {
    split_call split = { .call = { .function = function } };
    PyObject *result = NULL;
    if (amp_py_call_open(&split.call, arguments, 3)) return NULL;
    split.remainders = amp_py_remainders(&split.call.lists[REST], &split.call.lists[LOW]);
    if (split.remainders && !amp_py_call_run(&split.call, cpu, cuda)) result = Py_NewRef(Py_None);
    amp_py_call_close(&split.call);
    PyMem_Free(split.remainders);
    return result;
}

static PyObject *split(PyObject *self, PyObject *args) {
    PyObject *low, *rest, *fp32;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOO:split", &low, &rest, &fp32)) return NULL;
    return run_split("split", (amp_py_argument[]){ { "dst", low, AMP_PY_WRITE }, { "remainders", rest, AMP_PY_WRITE },
                                             { "src", fp32, AMP_PY_READ } }, split_cpu, split_cuda);
}

static PyObject *join(PyObject *self, PyObject *args) {
    PyObject *low, *rest, *fp32;
    (void)self;
    if (!PyArg_ParseTuple(args, "OOO:join", &fp32, &low, &rest)) return NULL;
    return run_split("join", (amp_py_argument[]){ { "src", low, AMP_PY_READ }, { "remainders", rest, AMP_PY_READ },
                                            { "dst", fp32, AMP_PY_WRITE } }, join_cpu, join_cuda);
}

static PyObject *remainder_bytes(PyObject *self, PyObject *size) {
    const unsigned long long n = PyLong_AsUnsignedLongLong(size);
    (void)self;
    return PyErr_Occurred() ? NULL : PyLong_FromUnsignedLongLong(amp_remainder_bytes(n));
}

static PyMethodDef methods[] = {
    { "split", split, METH_VARARGS,
      "split(dst, remainders, src)\n--\n\nSplits src (float32) into dst (bfloat16) and remainders (amp_split_list). A "
      "remainder is memory of any type, remainder_bytes(elements) long." },
    { "join", join, METH_VARARGS,
      "join(dst, src, remainders)\n--\n\nComputes dst (float32) from src (bfloat16) and remainders (amp_join_list)." },
    { "remainder_bytes", remainder_bytes, METH_O,
      "remainder_bytes(elements, /)\n--\n\nReturns the bytes of a remainder for so many elements." },
    { NULL, NULL, 0, NULL },
};

int amp_py_add_split(PyObject *kernels) {
    return PyModule_AddFunctions(kernels, methods);
}
