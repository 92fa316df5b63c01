/* SPDX-License-Identifier: Apache-2.0 */
/* Casts of small tensors that autograd does not record. torch takes a microsecond for one, of which the elements are a
 * hundredth. Here libamp's kernel casts into a block that torch adopts, in half the time. The result is that of
 * Tensor.half(), except that its storage cannot grow. So it is used only for torch's own functions, without Tensor.cpu,
 * which returns it. torch casts if the difference could be seen: in a mode or a tracer, for a tangent, for a tensor
 * subclass. */
#include "patch.h"

#include <stdlib.h>
#include <string.h>

#include "amp_kernels.h"
#include "dlpack.h"
#include "tensor.h"

enum {
    MOST_DIMS = 3,      /* with four torch also has a memory format, which strides do not always determine */
    MOST_SIZE = 16384,  /* elements, above this number their time dominates, and torch has threads */
    ALIGNMENT = 64,     /* torch's alignment */
    PAUSE = 1000        /* casts left to torch after an unreadable tensor, because its exceptions are slow */
};

struct block {
    dl_versioned managed;
    int64_t shape[MOST_DIMS], strides[MOST_DIMS];
};

static struct {
    const dl_exchange *exchange; /* NULL: torch casts everything */
    PyObject *dispatch_modes, *function_modes, *tracer; /* callables */
    PyObject *forward_ad;                               /* torch.autograd.forward_ad's names */
    PyObject *level, *zero;
} torch;

static PyObject *resolve_path(PyObject *from, const char *path) {
    PyObject *found = Py_NewRef(from);
    char name[64];
    for (const char *rest = path; found && *rest;) {
        const size_t n = strcspn(rest, ".");
        memcpy(name, rest, n);
        name[n] = '\0';
        PyObject *next = PyObject_GetAttrString(found, name);
        Py_DECREF(found);
        found = next;
        rest += n + (rest[n] == '.');
    }
    return found;
}

void amp_py_quick_init(PyObject *module) {
    PyObject *tensor = resolve_path(module, "Tensor"), *forward = resolve_path(module, "autograd.forward_ad");
    const dl_exchange *exchange = tensor ? amp_py_dlpack_exchange(tensor) : NULL;
    torch.dispatch_modes = resolve_path(module, "_C._len_torch_dispatch_stack");
    torch.function_modes = resolve_path(module, "_C._len_torch_function_stack");
    torch.tracer = resolve_path(module, "_C._get_tracing_state");
    torch.forward_ad = forward ? PyObject_GetAttrString(forward, "__dict__") : NULL;
    torch.level = PyUnicode_InternFromString("_current_level");
    torch.zero = PyLong_FromLong(0);
    const bool names = tensor && PyObject_HasAttrString(tensor, "names"); /* dimensions had names before torch 2.15 */
    const bool complete = exchange && exchange->borrow && exchange->adopt && torch.dispatch_modes &&
                       torch.function_modes && torch.tracer && torch.forward_ad && torch.level && torch.zero;
    PyErr_Clear();
    Py_XDECREF(forward);
    Py_XDECREF(tensor); /* torch owns it */
    torch.exchange = complete && !names ? exchange : NULL;
}

static bool returns_object(PyObject *function, PyObject *wanted) {
    PyObject *result = PyObject_CallNoArgs(function);
    const bool same = result == wanted; /* None and small numbers are single objects */
    Py_XDECREF(result);
    return same;
}

/* True if torch runs on this thread without modes. */
static bool is_torch_plain(void) {
    PyObject *level = PyDict_GetItemWithError(torch.forward_ad, torch.level);
    const bool plain = level && PyLong_AsLong(level) < 0 && returns_object(torch.dispatch_modes, torch.zero) &&
                    returns_object(torch.function_modes, torch.zero) && returns_object(torch.tracer, Py_None);
    PyErr_Clear();
    return plain;
}

/* Returns the number of elements of a row-major tensor. 0: one or none, too many, or another order. (The imaginary part
 * of a conjugate has its sign outside of the elements, which DLPack does not show. Its elements alternate with others,
 * so only a part of one element could be row-major.) */
static uint64_t size_of(const dl_tensor *tensor) {
    int64_t size = 1;
    for (int32_t i = tensor->dims; i-- > 0;) {
        if (tensor->shape[i] < 1 || tensor->shape[i] > MOST_SIZE || (tensor->strides && tensor->strides[i] != size))
            return 0;
        size *= tensor->shape[i];
        if (size > MOST_SIZE) return 0;
    }
    return size > 1 ? (uint64_t)size : 0;
}

/* Reads the tensor. False: torch must cast it. */
static bool borrow_tensor(PyObject *tensor, dl_tensor *seen, uint64_t *size) {
    static unsigned pause;
    if (pause > 0) {
        pause--;
        return false;
    }
    if (torch.exchange->borrow(tensor, seen) != 0) {
        PyErr_Clear();
        pause = PAUSE;
        return false;
    }
    if (seen->device_type != AMP_PY_CPU || !seen->data || seen->dims > MOST_DIMS) return false;
    *size = size_of(seen);
    return *size > 0;
}

static void delete_block(dl_versioned *managed) { free(managed); } /* by any thread */

static struct block *make_block(const dl_tensor *like, amp_dtype dtype, uint64_t bytes) {
    struct block *block = malloc(sizeof *block + ALIGNMENT + bytes);
    if (!block) return NULL;
    const uintptr_t end = (uintptr_t)(block + 1), lost = (ALIGNMENT - end % ALIGNMENT) % ALIGNMENT;
    block->managed = (dl_versioned){ DL_MAJOR, 0, NULL, delete_block, 0, *like };
    dl_tensor *tensor = &block->managed.tensor;
    tensor->data = (char *)(block + 1) + lost;
    tensor->byte_offset = 0;
    tensor->code = dtype == AMP_BFLOAT16 ? 4 : 2;
    tensor->bits = dtype == AMP_FLOAT32 ? 32 : 16;
    tensor->shape = block->shape;
    tensor->strides = block->strides;
    int64_t stride = 1;
    for (int32_t i = like->dims; i-- > 0; stride *= like->shape[i]) {
        block->shape[i] = like->shape[i];
        block->strides[i] = stride;
    }
    return block;
}

PyObject *amp_py_cast_quick(struct amp_py_call *call, PyObject *tensor, amp_dtype from, amp_dtype to) {
    dl_tensor seen;
    uint64_t size;
    void *made = NULL;
    /* torch rounds doubles twice. */
    if (!torch.exchange || call->function->fixed != AMP_BY_LIST || (call->function->flags & AMP_PY_WIDENS) ||
        from == AMP_FLOAT64 || to == AMP_FLOAT64 || (amp_py_requires_grad(tensor) && amp_py_grad_enabled()))
        return NULL;
    if (call->plain == 0) call->plain = is_torch_plain() ? 1 : -1;
    if (call->plain < 0 || !borrow_tensor(tensor, &seen, &size)) return NULL;
    struct block *block = make_block(&seen, to, size * (to == AMP_FLOAT32 ? 4 : 2));
    if (!block) return NULL;
    const amp_span source = { (char *)seen.data + seen.byte_offset, size, from, 0 };
    const amp_span target = { block->managed.tensor.data, size, to, 0 };
    if (amp_cast_list(&target, &source, 1) != AMP_OK) {
        free(block);
        return NULL;
    }
    if (torch.exchange->adopt(&block->managed, &made) != 0) { /* torch owns the block in any case */
        PyErr_Clear();
        return NULL;
    }
    return made;
}
