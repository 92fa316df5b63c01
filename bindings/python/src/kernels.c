/* SPDX-License-Identifier: Apache-2.0 */
/* libamp.kernels: the list functions of amp_kernels.h and amp_device.h. */
#include "kernels.h"

#include "amp_optim.h"
#include "call.h"

#define SPANS(k) call->lists[k].spans
#define COUNT call->lists[0].n

/* ---- cast, copy, zero -------------------------------------------------------------------------------------------- */

static amp_status cast_cpu(amp_py_call *call) { return amp_cast_list(SPANS(0), SPANS(1), COUNT); }
static amp_status cast_cuda(amp_py_call *call) {
    return amp_device_cast(call->list, call->stream, SPANS(0), SPANS(1), COUNT);
}
static amp_status copy_cpu(amp_py_call *call) { return amp_copy_list(SPANS(0), SPANS(1), COUNT); }
static amp_status zero_cpu(amp_py_call *call) { return amp_zero_list(SPANS(0), COUNT); }
static amp_status zero_cuda(amp_py_call *call) { return amp_device_zero(call->list, call->stream, SPANS(0), COUNT); }

/* A cast to the same type copies the bits. Other types are refused with the CPU's message. */
static amp_status copy_cuda(amp_py_call *call) {
    for (size_t i = 0; i < COUNT; i++) {
        if (SPANS(0)[i].dtype != SPANS(1)[i].dtype) return copy_cpu(call);
    }
    return cast_cuda(call);
}

static PyObject *run_pair(amp_py_call *call, PyObject *args, PyObject *keywords, const char *format, amp_py_kernel cpu,
                          amp_py_kernel cuda) {
    static char *names[] = { "dst", "src", "stream", NULL };
    PyObject *dst, *src;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, format, names, &dst, &src, &call->stream_argument)) return NULL;
    return amp_py_call_all(call, (amp_py_argument[]){ { "dst", dst, AMP_PY_WRITE }, { "src", src, AMP_PY_READ } }, 2,
                           cpu, cuda);
}

static PyObject *cast(PyObject *self, PyObject *args, PyObject *keywords) {
    (void)self;
    amp_py_call call = { .function = "cast" };
    return run_pair(&call, args, keywords, "OO|$O:cast", cast_cpu, cast_cuda);
}

static PyObject *copy(PyObject *self, PyObject *args, PyObject *keywords) {
    (void)self;
    amp_py_call call = { .function = "copy" };
    return run_pair(&call, args, keywords, "OO|$O:copy", copy_cpu, copy_cuda);
}

static PyObject *zero(PyObject *self, PyObject *args, PyObject *keywords) {
    (void)self;
    static char *names[] = { "dst", "stream", NULL };
    amp_py_call call = { .function = "zero" };
    PyObject *dst;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$O:zero", names, &dst, &call.stream_argument)) return NULL;
    return amp_py_call_all(&call, (amp_py_argument[]){ { "dst", dst, AMP_PY_WRITE } }, 1, zero_cpu, zero_cuda);
}

/* ---- scale, axpby ------------------------------------------------------------------------------------------------ */

/* A number that the CPU knows, or only the device. */
static amp_factor factor_of(const amp_py_scalar *scalar) {
    bool there = scalar->tensor && scalar->device.type != AMP_PY_CPU;
    return (amp_factor){ there ? scalar->pointer : NULL, there ? 0.0f : scalar->value, AMP_FACTOR_AS_IT_IS };
}

static amp_status scale_cpu(amp_py_call *call) {
    return amp_scale_list(SPANS(0), SPANS(1), COUNT, call->a.value, call->to_found);
}

static amp_status scale_cuda(amp_py_call *call) {
    amp_factor scale = factor_of(&call->a);
    return amp_device_scale(call->list, call->stream, SPANS(0), SPANS(1), COUNT, &scale, call->to_found);
}

static PyObject *scale(PyObject *self, PyObject *args, PyObject *keywords) {
    (void)self;
    static char *names[] = { "dst", "src", "scale", "found_inf", "stream", NULL };
    amp_py_call call = { .function = "scale", .results = AMP_PY_FOUND };
    PyObject *dst, *src, *factor, *found_inf = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOO|$OO:scale", names, &dst, &src, &factor, &found_inf,
                                     &call.stream_argument) ||
        amp_py_scalar_in(&call.a, "scale", factor) ||
        amp_py_scalar_out(&call.found_inf, "found_inf", found_inf, 1)) {
        amp_py_call_close(&call);
        return NULL;
    }
    return amp_py_call_all(&call, (amp_py_argument[]){ { "dst", dst, AMP_PY_WRITE }, { "src", src, AMP_PY_READ } }, 2,
                           scale_cpu, scale_cuda);
}

static amp_status axpby_cpu(amp_py_call *call) {
    return amp_axpby_list(SPANS(0), call->a.value, SPANS(1), call->b.value, SPANS(2), COUNT, call->to_found);
}

static amp_status axpby_cuda(amp_py_call *call) {
    amp_factor a = factor_of(&call->a), b = factor_of(&call->b);
    return amp_device_axpby(call->list, call->stream, SPANS(0), &a, SPANS(1), &b, SPANS(2), COUNT, call->to_found);
}

static PyObject *axpby(PyObject *self, PyObject *args, PyObject *keywords) {
    (void)self;
    static char *names[] = { "dst", "a", "x", "b", "y", "found_inf", "stream", NULL };
    amp_py_call call = { .function = "axpby", .results = AMP_PY_FOUND };
    PyObject *dst, *a, *x, *b, *y, *found_inf = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOOO|$OO:axpby", names, &dst, &a, &x, &b, &y, &found_inf,
                                     &call.stream_argument) ||
        amp_py_scalar_in(&call.a, "a", a) || amp_py_scalar_in(&call.b, "b", b) ||
        amp_py_scalar_out(&call.found_inf, "found_inf", found_inf, 1)) {
        amp_py_call_close(&call);
        return NULL;
    }
    return amp_py_call_all(
        &call,
        (amp_py_argument[]){ { "dst", dst, AMP_PY_WRITE }, { "x", x, AMP_PY_READ }, { "y", y, AMP_PY_READ } }, 3,
        axpby_cpu, axpby_cuda);
}

/* ---- norms and checks -------------------------------------------------------------------------------------------- */

static amp_status check_cpu(amp_py_call *call) {
    return amp_check_list(SPANS(0), COUNT, call->a.value, 1.0f, call->to_norm, call->to_norms, call->to_found);
}

static amp_status l2norm_cpu(amp_py_call *call) {
    return amp_l2norm_list(SPANS(0), COUNT, call->to_norm, call->to_norms);
}

static amp_status check_cuda(amp_py_call *call) {
    amp_factor scale = factor_of(&call->a);
    return amp_device_check(call->list, call->stream, SPANS(0), COUNT, &scale, NULL, call->to_norm, call->to_norms,
                            call->to_found);
}

/* The number of norms is known after the list is read, so their tensor is opened after it. */
static PyObject *run_check(amp_py_call *call, PyObject *src, PyObject *norms, amp_py_kernel cpu) {
    if (amp_py_call_open(call, (amp_py_argument[]){ { "src", src, AMP_PY_READ } }, 1)) return NULL;
    int bad = amp_py_scalar_out(&call->norms, "norms", norms, call->lists[0].n) ||
        amp_py_call_run(call, cpu, check_cuda);
    PyObject *results = bad ? NULL : amp_py_call_results(call);
    amp_py_call_close(call);
    return results;
}

static PyObject *check(PyObject *self, PyObject *args, PyObject *keywords) {
    (void)self;
    static char *names[] = { "src", "scale", "norm", "norms", "found_inf", "stream", NULL };
    amp_py_call call = { .function = "check", .results = AMP_PY_NORM | AMP_PY_FOUND, .a.value = 1.0f };
    PyObject *src, *scale = Py_None, *norm = Py_None, *norms = Py_None, *found_inf = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|O$OOOO:check", names, &src, &scale, &norm, &norms, &found_inf,
                                     &call.stream_argument) ||
        amp_py_scalar_in(&call.a, "scale", scale) || amp_py_scalar_out(&call.norm, "norm", norm, 1) ||
        amp_py_scalar_out(&call.found_inf, "found_inf", found_inf, 1)) {
        amp_py_call_close(&call);
        return NULL;
    }
    return run_check(&call, src, norms, check_cpu);
}

static PyObject *l2norm(PyObject *self, PyObject *args, PyObject *keywords) {
    (void)self;
    static char *names[] = { "src", "norm", "stream", NULL };
    amp_py_call call = { .function = "l2norm", .results = AMP_PY_NORM, .a.value = 1.0f };
    PyObject *src, *norm = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$OO:l2norm", names, &src, &norm, &call.stream_argument) ||
        amp_py_scalar_out(&call.norm, "norm", norm, 1))
        return NULL;
    return run_check(&call, src, Py_None, l2norm_cpu);
}

static PyObject *l2norms(PyObject *self, PyObject *args, PyObject *keywords) {
    (void)self;
    static char *names[] = { "src", "norm", "norms", "stream", NULL };
    amp_py_call call = { .function = "l2norms", .results = AMP_PY_NORM | AMP_PY_NORMS, .a.value = 1.0f };
    PyObject *src, *norm = Py_None, *norms = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O|$OOO:l2norms", names, &src, &norm, &norms,
                                     &call.stream_argument) ||
        amp_py_scalar_out(&call.norm, "norm", norm, 1))
        return NULL;
    return run_check(&call, src, norms, l2norm_cpu);
}

static amp_status nonfinite_cpu(amp_py_call *call) {
    int64_t index = -1;
    amp_status status = amp_first_nonfinite(SPANS(0), COUNT, &index);
    call->index = index;
    return status;
}

static PyObject *first_nonfinite(PyObject *self, PyObject *args, PyObject *keywords) {
    (void)self;
    static char *names[] = { "src", NULL };
    amp_py_call call = { .function = "first_nonfinite" };
    PyObject *src;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O:first_nonfinite", names, &src)) return NULL;
    PyObject *done = amp_py_call_all(&call, (amp_py_argument[]){ { "src", src, AMP_PY_READ } }, 1, nonfinite_cpu, NULL);
    Py_XDECREF(done);
    return done ? PyLong_FromLongLong(call.index) : NULL;
}

/* ---- clipping ---------------------------------------------------------------------------------------------------- */

static amp_status clip_norm_cpu(amp_py_call *call) {
    return amp_clip_norm_list(SPANS(0), SPANS(1), COUNT, call->a.value, call->to_norm);
}

/* The device's lists are clipped in place. */
static amp_status clip_norm_cuda(amp_py_call *call) {
    const amp_factor clip = { call->to_norm, call->a.value, AMP_FACTOR_CLIP };
    amp_status status = amp_device_check(call->list, call->stream, SPANS(1), COUNT, NULL, NULL, call->to_norm, NULL,
                                         NULL);
    bool in_place = true;
    for (size_t i = 0; i < COUNT; i++) in_place = in_place && SPANS(0)[i].data == SPANS(1)[i].data;
    if (status == AMP_OK && !in_place) status = amp_device_cast(call->list, call->stream, SPANS(0), SPANS(1), COUNT);
    return status != AMP_OK ? status
                            : amp_device_scale(call->list, call->stream, SPANS(0), SPANS(0), COUNT, &clip, NULL);
}

static PyObject *clip_norm(PyObject *self, PyObject *args, PyObject *keywords) {
    (void)self;
    static char *names[] = { "dst", "src", "max_norm", "norm", "stream", NULL };
    amp_py_call call = { .function = "clip_norm", .results = AMP_PY_NORM };
    PyObject *dst, *src, *norm = Py_None;
    float max_norm;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOf|$OO:clip_norm", names, &dst, &src, &max_norm, &norm,
                                     &call.stream_argument) ||
        amp_py_scalar_out(&call.norm, "norm", norm, 1))
        return NULL;
    call.a.value = max_norm;
    return amp_py_call_all(&call, (amp_py_argument[]){ { "dst", dst, AMP_PY_WRITE }, { "src", src, AMP_PY_READ } }, 2,
                           clip_norm_cpu, clip_norm_cuda);
}

static amp_status clip_value_cpu(amp_py_call *call) {
    return amp_clip_value_list(SPANS(0), SPANS(1), COUNT, call->a.value);
}

static PyObject *clip_value(PyObject *self, PyObject *args, PyObject *keywords) {
    (void)self;
    static char *names[] = { "dst", "src", "max_value", NULL };
    amp_py_call call = { .function = "clip_value" };
    PyObject *dst, *src;
    float max_value;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOf:clip_value", names, &dst, &src, &max_value)) return NULL;
    call.a.value = max_value;
    return amp_py_call_all(&call, (amp_py_argument[]){ { "dst", dst, AMP_PY_WRITE }, { "src", src, AMP_PY_READ } }, 2,
                           clip_value_cpu, NULL);
}

/* ---- The process ------------------------------------------------------------------------------------------------- */

static PyObject *set_num_threads(PyObject *self, PyObject *argument) {
    (void)self;
    long n = PyLong_AsLong(argument);
    if (n == -1 && PyErr_Occurred()) return NULL;
    amp_status status;
    Py_BEGIN_ALLOW_THREADS /* waits for a call in progress */
    status = amp_set_num_threads(n < -1 ? -1 : n > 256 ? 256 : (int32_t)n);
    Py_END_ALLOW_THREADS
    return amp_py_result(status);
}

static PyObject *get_num_threads(PyObject *self, PyObject *none) {
    (void)self, (void)none;
    return PyLong_FromLong(amp_get_num_threads());
}

static PyObject *cpu_flags(PyObject *self, PyObject *none) {
    (void)self, (void)none;
    return PyLong_FromUnsignedLong(amp_cpu_flags());
}

#define WITH_KEYWORDS(function, doc) \
    { #function, (PyCFunction)(void (*)(void))function, METH_VARARGS | METH_KEYWORDS, doc }

static PyMethodDef methods[] = {
    WITH_KEYWORDS(cast, "cast(dst, src, *, stream=None)\n--\n\nComputes dst = src, rounded to dst's type."),
    WITH_KEYWORDS(copy, "copy(dst, src, *, stream=None)\n--\n\nCopies src to dst, of the same types."),
    WITH_KEYWORDS(zero, "zero(dst, *, stream=None)\n--\n\nSets dst to +0."),
    WITH_KEYWORDS(scale, "scale(dst, src, scale, *, found_inf=None, stream=None)\n--\n\n"
                         "Computes dst = src * scale. Returns True if an element of dst is not finite. With found_inf, "
                         "a float32 tensor, it sets that to 1 instead, without waiting."),
    WITH_KEYWORDS(axpby, "axpby(dst, a, x, b, y, *, found_inf=None, stream=None)\n--\n\n"
                         "Computes dst = a * x + b * y. Returns True if an element of dst is not finite, as scale."),
    WITH_KEYWORDS(check, "check(src, scale=1.0, *, norm=None, norms=None, found_inf=None, stream=None)\n--\n\n"
                         "Returns the L2 norm of all src * scale, and True if an element is not finite. Only reads."),
    WITH_KEYWORDS(l2norm, "l2norm(src, *, norm=None, stream=None)\n--\n\nReturns the L2 norm of all elements."),
    WITH_KEYWORDS(l2norms, "l2norms(src, *, norm=None, norms=None, stream=None)\n--\n\n"
                           "Returns the L2 norm of all elements, and a list with that of each tensor."),
    WITH_KEYWORDS(first_nonfinite,
                  "first_nonfinite(src)\n--\n\nReturns the index of the first tensor with a nonfinite element, or -1."),
    WITH_KEYWORDS(clip_norm, "clip_norm(dst, src, max_norm, *, norm=None, stream=None)\n--\n\n"
                             "Computes dst = src, scaled so that its norm is at most max_norm. Returns the norm "
                             "before. With a nonfinite norm nothing is scaled."),
    WITH_KEYWORDS(clip_value, "clip_value(dst, src, max_value)\n--\n\nLimits src to [-max_value, max_value]."),
    { "set_num_threads", set_num_threads, METH_O,
      "set_num_threads(n, /)\n--\n\nSets the number of threads for a call: 1 for the caller only, 0 for one per "
      "processor." },
    { "get_num_threads", get_num_threads, METH_NOARGS,
      "get_num_threads()\n--\n\nReturns the number of threads by set_num_threads or AMP_NUM_THREADS." },
    { "cpu_flags", cpu_flags, METH_NOARGS,
      "cpu_flags()\n--\n\nReturns the instruction sets in use, as AMP_CPU_* of amp_kernels.h." },
    { NULL, NULL, 0, NULL },
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "libamp.kernels", "libamp's kernels.", -1, methods, NULL, NULL, NULL, NULL,
};

int amp_py_add_kernels(PyObject *module) {
    PyObject *kernels = PyModule_Create(&definition);
    int bad = kernels == NULL || amp_py_add_codes(kernels) || amp_py_add_matmul(kernels) ||
           amp_py_add_optim(kernels) ||
           amp_py_add_pack(kernels) || amp_py_add_split(kernels) ||
           amp_py_add_statistics(kernels) || PyModule_AddObjectRef(module, "kernels", kernels);
    Py_XDECREF(kernels);
    return bad ? -1 : 0;
}
