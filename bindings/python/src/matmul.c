/* SPDX-License-Identifier: Apache-2.0 */
/* libamp.kernels.matmul: amp_matmul on matrices and stacks of them, with all strides that it supports. */
#include "kernels.h"

#include <string.h>

#include "call.h"

enum { D, A, B, C, BIAS, OPERANDS };

typedef struct product {
    amp_matmul_args args;
    PyObject *objects[OPERANDS]; /* borrowed */
    PyObject *keep[OPERANDS];
    amp_py_view views[OPERANDS];
    PyObject *stream; /* borrowed */
} product;

/* A matrix or a stack of them, as in amp_matmul. */
typedef struct matrix {
    int64_t rows, columns, stack; /* stack is 1 without a third dimension */
    int64_t ld, stride;
    bool transposed; /* columns are contiguous in memory */
} matrix;

static const char *const operand_names[OPERANDS] = { "d", "a", "b", "c", "bias" };

static int open_operand(product *call, int which) {
    amp_py_where place = { operand_names[which], -1 };
    amp_py_view *view = &call->views[which];
    if (amp_py_view_get(call->objects[which], place, true, view, &call->keep[which])) return -1;
    const amp_device *where = &call->views[D].device; /* d is opened first */
    if (view->device.type != AMP_PY_CPU && view->device.type != AMP_PY_CUDA)
        return amp_py_refuse(place, "is on a device of DLPack's type %d: libamp multiplies on the CPU and on CUDA",
                             (int)view->device.type);
    if (view->device.type != where->type || view->device.id != where->id)
        return amp_py_refuse(place, "is on another device than d");
    if (view->span.dtype != AMP_FLOAT32 && view->span.dtype != AMP_FLOAT16 && view->span.dtype != AMP_BFLOAT16)
        return amp_py_refuse(place, "has a type that libamp does not multiply: use float32, float16 or bfloat16");
    return which == D && view->read_only ? amp_py_refuse(place, "is read-only and would be written") : 0;
}

/* True if this can be the distance between rows. A single row can have any. */
static bool is_row_stride(int64_t extent, int64_t stride, int64_t length) {
    return extent <= 1 || stride >= (length > 1 ? length : 1);
}

static int read_matrix(const product *call, int which, matrix *out) {
    const amp_py_view *view = &call->views[which];
    amp_py_where place = { operand_names[which], -1 };
    if (view->dims != 2 && view->dims != 3)
        return amp_py_refuse(place, "has %d dimension%s: it must be a matrix, or a stack of them", view->dims,
                             AMP_PY_S(view->dims));
    const int64_t *shape = view->shape + view->dims - 2, *strides = view->strides + view->dims - 2;
    *out = (matrix){ shape[0], shape[1], view->dims == 3 ? view->shape[0] : 1, 0, 0, false };
    if ((shape[1] <= 1 || strides[1] == 1) && is_row_stride(shape[0], strides[0], shape[1])) {
        out->ld = shape[0] > 1 ? strides[0] : 0;
    } else if ((shape[0] <= 1 || strides[0] == 1) && is_row_stride(shape[1], strides[1], shape[0])) {
        out->ld = shape[1] > 1 ? strides[1] : 0;
        out->transposed = true;
    } else if (view->span.size != 0) {
        return amp_py_refuse(place, "has neither rows nor columns that lie together: use a contiguous copy");
    }
    out->stride = out->stack > 1 ? view->strides[0] : 0;
    return out->stride < 0 ? amp_py_refuse(place, "has matrices that lie backwards: use a contiguous copy") : 0;
}

static int refuse_shape(int which, int64_t rows, int64_t columns, int64_t stack) {
    return amp_py_refuse((amp_py_where){ operand_names[which], -1 },
                         "must be %lld x %lld%s, to go with the others", (long long)rows, (long long)columns,
                         stack != 1 ? ", as many as d has or one for all" : "");
}

static int fill_arguments(product *call) {
    amp_matmul_args *args = &call->args;
    matrix d, a, b;
    if (read_matrix(call, D, &d) || read_matrix(call, A, &a) || read_matrix(call, B, &b)) return -1;
    int64_t a_rows = args->transpose_a ? a.columns : a.rows, a_columns = args->transpose_a ? a.rows : a.columns;
    int64_t b_rows = args->transpose_b ? b.columns : b.rows, b_columns = args->transpose_b ? b.rows : b.columns;
    if (a_columns != b_rows)
        return amp_py_refuse((amp_py_where){ "b", -1 }, "has %lld row%s, and a %lld column%s: they must be equal",
                             (long long)b_rows, AMP_PY_S(b_rows), (long long)a_columns, AMP_PY_S(a_columns));
    if (d.rows != a_rows || d.columns != b_columns) return refuse_shape(D, a_rows, b_columns, 1);
    if (d.transposed)
        return amp_py_refuse((amp_py_where){ "d", -1 }, "must have rows that lie together: it is written row by row");
    const matrix *factors[] = { [A] = &a, [B] = &b };
    for (int which = A; which <= B; which++) {
        if (factors[which]->stack != 1 && factors[which]->stack != d.stack)
            return refuse_shape(which, factors[which]->rows, factors[which]->columns, d.stack);
    }
    args->m = a_rows, args->n = b_columns, args->k = a_columns;
    args->transpose_a ^= a.transposed, args->transpose_b ^= b.transposed;
    args->ld_a = a.ld, args->ld_b = b.ld, args->ld_d = d.ld;
    args->batch = d.stack;
    args->stride_a = a.stride, args->stride_b = b.stride, args->stride_d = d.stride;
    args->a = call->views[A].span.data, args->b = call->views[B].span.data, args->d = call->views[D].span.data;
    args->a_dtype = call->views[A].span.dtype, args->b_dtype = call->views[B].span.dtype;
    args->d_dtype = call->views[D].span.dtype;
    return 0;
}

static int describe_rest(product *call) {
    amp_matmul_args *args = &call->args;
    const amp_py_view *bias = &call->views[BIAS];
    if (call->objects[C] != Py_None) {
        matrix c;
        if (open_operand(call, C) || read_matrix(call, C, &c)) return -1;
        if (c.rows != args->m || c.columns != args->n || c.transposed || (c.stack != 1 && c.stack != args->batch))
            return refuse_shape(C, args->m, args->n, args->batch);
        args->c = call->views[C].span.data, args->c_dtype = call->views[C].span.dtype;
        args->ld_c = c.ld, args->stride_c = c.stride;
    }
    if (call->objects[BIAS] != Py_None) {
        if (open_operand(call, BIAS)) return -1;
        if (bias->dims != 1 || bias->shape[0] != args->n || !bias->compact)
            return amp_py_refuse((amp_py_where){ "bias", -1 }, "must be a contiguous vector of %lld element%s",
                                 (long long)args->n, AMP_PY_S(args->n));
        args->bias = bias->span.data, args->bias_dtype = bias->span.dtype;
    }
    return 0;
}

/* Place of an operand's elements, in bytes: from `first` to `end`, in runs of `run` bytes, one every `step` bytes. step
 * 0: first and end only. */
struct extent {
    uintptr_t first, end, run, step;
};

static struct extent extent_of(const amp_py_view *view) {
    const uintptr_t bytes = view->span.dtype == AMP_FLOAT32 ? 4 : 2, first = (uintptr_t)view->span.data;
    int64_t last = 0;
    for (int i = 0; i < view->dims; i++) last += (view->shape[i] - 1) * view->strides[i];
    struct extent extent = { first, first + ((uintptr_t)last + 1) * bytes, 0, 0 };
    if (view->dims == 2) {
        const int along = view->strides[1] == 1 ? 1 : 0;
        extent.run = (uintptr_t)view->shape[along] * bytes;
        extent.step = (uintptr_t)view->strides[1 - along] * bytes;
    }
    return extent;
}

/* Parts of one matrix, side by side, do not overlap. */
static bool extents_overlap(struct extent a, struct extent b) {
    if (a.first >= b.end || b.first >= a.end) return false;
    if (a.step == 0 || a.step != b.step) return true;
    const uintptr_t behind = a.first <= b.first ? (b.first - a.first) % a.step
        : (a.step - (a.first - b.first) % a.step) % a.step;
    return behind < a.run || behind + b.run > a.step;
}

/* d is written while a, b and bias are read. c is read element by element, and the library checks it. */
static int refuse_overlap(const product *call) {
    static const int read[] = { A, B, BIAS };
    for (size_t i = 0; i < sizeof(read) / sizeof(read[0]); i++) {
        const amp_py_view *view = &call->views[read[i]], *d = &call->views[D];
        const bool given = call->objects[read[i]] != Py_None && view->span.size != 0 && d->span.size != 0;
        if (given && extents_overlap(extent_of(d), extent_of(view)))
            return amp_py_refuse((amp_py_where){ "d", -1 },
                                 "shares memory with %s, which is read while it is written: give the "
                                 "product memory of its own", operand_names[read[i]]);
    }
    return 0;
}

static int find_choice(const char *argument, const char *name, const char *const *choices, int count, int32_t *out) {
    for (int i = 0; name && i < count; i++) {
        if (strcmp(name, choices[i]) == 0) {
            *out = i;
            return 0;
        }
    }
    return name ? amp_py_refuse((amp_py_where){ argument, -1 }, "there is no '%s'", name) : 0;
}

static int parse_matmul(product *call, PyObject *args, PyObject *keywords) {
    static const char *const activations[] = { "none", "relu", "gelu", "gelu_tanh" }; /* AMP_ACTIVATION_... */
    static const char *const backends[] = { "auto", "builtin", "onednn" };            /* AMP_MATMUL_... */
    static char *names[] = { "d", "a", "b", "c", "bias", "alpha", "beta", "transpose_a", "transpose_b", "activation",
                             "backend", "tf32", "stream", NULL };
    amp_matmul_args *to = &call->args;
    const char *activation = NULL, *backend = NULL;
    int transpose_a = 0, transpose_b = 0, tf32 = 0;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOO|$OOffppzzpO:matmul", names, &call->objects[D],
                                     &call->objects[A],
                                     &call->objects[B], &call->objects[C], &call->objects[BIAS], &to->alpha, &to->beta,
                                     &transpose_a, &transpose_b, &activation, &backend, &tf32, &call->stream))
        return -1;
    to->transpose_a = transpose_a, to->transpose_b = transpose_b;
    to->flags = tf32 ? AMP_MATMUL_TF32 : 0;
    return find_choice("activation", activation, activations, 4, &to->activation) ||
                find_choice("backend", backend, backends, 3, &to->backend)
            ? -1
            : 0;
}

/* On a GPU the product is only started. */
static int place_product(product *call) {
    call->args.device = call->views[D].device;
    return call->args.device.type == AMP_PY_CUDA
             ? amp_py_cuda_stream(call->stream, call->views[D].is_torch, call->args.device, &call->args.stream)
             : 0;
}

static PyObject *matmul(PyObject *self, PyObject *args, PyObject *keywords) {
    (void)self;
    product call = { .args = AMP_MATMUL_ARGS_INIT, .objects = { [C] = Py_None, [BIAS] = Py_None } };
    PyObject *result = NULL;
    if (parse_matmul(&call, args, keywords) == 0 && open_operand(&call, D) == 0 && open_operand(&call, A) == 0 &&
        open_operand(&call, B) == 0 && fill_arguments(&call) == 0 && describe_rest(&call) == 0 &&
        refuse_overlap(&call) == 0 && place_product(&call) == 0) {
        amp_status status;
        Py_BEGIN_ALLOW_THREADS
        status = call.args.batch ? amp_matmul(&call.args) : AMP_OK; /* libamp's 0 means one product, here none */
        Py_END_ALLOW_THREADS
        result = amp_py_result(status);
        if (result && call.views[D].is_torch) {
            PyObject *written = PyTuple_Pack(1, call.objects[D]);
            if (!written || amp_py_touch_torch(written)) Py_CLEAR(result);
            Py_XDECREF(written);
        }
    }
    for (int which = 0; which < OPERANDS; which++) amp_py_let_go(&call.keep[which]);
    return result;
}

static PyMethodDef methods[] = {
    { "matmul", (PyCFunction)(void (*)(void))matmul, METH_VARARGS | METH_KEYWORDS,
      "matmul(d, a, b, *, c=None, bias=None, alpha=1.0, beta=0.0, transpose_a=False, transpose_b=False, "
      "activation=None,\n"
      "       backend=None, tf32=False, stream=None)\n--\n\n"
      "Computes d = activation(alpha * a @ b + beta * c + bias). fp32, fp16 and bf16 in any mixture, summed in float.\n"
      "Three dimensions are a stack of products. activation: 'relu', 'gelu' or 'gelu_tanh'. backend: 'builtin' or "
      "'onednn'." },
    { NULL, NULL, 0, NULL },
};

int amp_py_add_matmul(PyObject *kernels) {
    return PyModule_AddFunctions(kernels, methods);
}
