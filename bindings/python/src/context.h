/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Context: an amp_context over torch tensors. Shared by context.c, host.c and bracket.c. */
#ifndef AMP_PY_CONTEXT_H
#define AMP_PY_CONTEXT_H

#include "tensor.h"

/* A parameter or buffer that the context knows. */
struct amp_py_param {
    PyObject *tensor;
    size_t number;      /* in the context */
    PyObject *master;   /* the torch.nn.Parameter that the optimizer has in its place; NULL: none */
    bool frozen;        /* it has a master and was not trained, when it was settled last */
    bool scaled;        /* a bracket has left its gradient scaled, where backward puts it */
    PyObject *gradient; /* over the block of the master's gradient; NULL: not made yet */
    PyObject *held;     /* what the hook grad told of last, so that it lives until it is looked at */
    const void *aside;  /* the gradient that libamp has taken out last; to compare with alone */
    void *data;         /* the master's elements, */
    uint64_t seen;      /* and its version when the parameter had them */
    amp_dtype dtype;    /* that libamp gave the tensor; DEFAULT: it has its own */
    const void *address; /* where its elements were when they were looked at, and how often they had moved */
    uint32_t moves;
    struct amp_py_order order;
};

struct amp_py_optimizer {
    amp_optimizer amp;
    struct amp_py_param **params;
    size_t n;
    bool delayed; /* gradients carry a scale: the last bracket left them scaled */
    bool has_masters;
    bool cleared; /* its zero_grad has run since the last bracket: there are no gradients; without masters alone */
    bool emptied; /* the same, of the begin of the bracket that is open */
    bool keeps;   /* its zero_grad was seen to leave gradients */
    bool steps;   /* its step is running and was not skipped */
};

typedef struct {
    PyObject_HEAD
    amp_context *amp; /* NULL: shut down */
    amp_host host;
    amp_model model;
    struct amp_py_param **params; /* each its own block */
    size_t n_params;
    struct amp_py_param **table;  /* by address of the tensor: open addressing, table_size a power of two */
    size_t table_size;
    struct amp_py_optimizer **optimizers;
    size_t n_optimizers;
    PyObject *event;    /* callable, or NULL */
    PyObject *storage;  /* libamp.torch.amp's object with alloc, swap, master, gradient */
    PyObject *blocks;   /* dict: address -> tensor that owns it */
    PyObject *weakrefs;
    PyObject *reduce;   /* callable(reduction, values): the same values over all ranks; NULL: there are none to ask */
    bool tells_of_cancels; /* ranks may be asked by a cancel, too */
    bool alone;         /* a cancel, or the end of the context: nobody is asked */
    struct amp_py_param *looked_at; /* whose gradient the hook grad told of last */
    bool ending;  /* an end or cancel is running: gradients are what backward made */
    bool dying;   /* being collected: the tensors are left as they are */
    bool scales_by_one; /* the scale is 1 and stays 1 */
    bool torch_ops; /* LIBAMP_TORCH_OPS was on: no device is libamp's own */
    bool permutes; /* the elements of some parameter do not lie row-major */
    size_t inside;      /* scopes of this context, on all threads */
    size_t brackets;    /* open ones */
    unsigned noted;     /* so many, at a scale of 1 without masters, have looked which gradients there were */
    bool holds;         /* some parameter's `held` is not NULL */
    size_t found;       /* the number of the parameter that was looked up last */
    uint64_t looks;     /* at parameters that are not trained: see hook_version */
    PyObject *error[3]; /* what a hook raised first */
} amp_py_Context;

/* The amp_context of a _core.Context, NULL with an exception if it is none or was shut down. */
amp_context *amp_py_context(PyObject *object);

/* host.c */
/* NULL with an exception: it was shut down, or has no such optimizer. */
amp_py_Context *amp_py_live(PyObject *object);
struct amp_py_optimizer *amp_py_optimizer_at(amp_py_Context *context, PyObject *index);
/* A float in a GPU's memory as a tensor over it; NULL with an exception. */
PyObject *amp_py_number(const amp_py_Context *context, const float *address, amp_device device);
void amp_py_host(amp_py_Context *context, amp_host *host);
struct amp_py_param *amp_py_find(amp_py_Context *context, const void *tensor);
/* Keeps the exception that is set, if it is the first, and clears it. */
void amp_py_keep_error(amp_py_Context *context);
/* The exception that a hook raised, else the status'. Returns NULL. */
PyObject *amp_py_context_raise(amp_py_Context *context, amp_status status);
void amp_py_drop_held(amp_py_Context *context);

/* masters.c: after initialize or add_params, the tensors for optimizer i from its parameter `from` on. */
int amp_py_make_masters(amp_py_Context *context, struct amp_py_optimizer *optimizer, size_t from);
int amp_py_show_gradients(amp_py_Context *context, struct amp_py_optimizer *optimizer);
int amp_py_clear_masters(struct amp_py_optimizer *optimizer, bool params_too);
/* After what a script may have done: masters that it gave other memory (`p.data = x`) go back to libamp's, with their
 * values; */
int amp_py_settle_masters(amp_py_Context *context, const struct amp_py_optimizer *optimizer);
/* and parameters that it laid out in another order (channels last) take their masters along. */
int amp_py_settle(amp_py_Context *context);
/* Before shutdown: also types that it changed. */
int amp_py_settle_types(const amp_py_Context *context);
/* The parameters have the masters' values. */
void amp_py_masters_seen(struct amp_py_param *const *params, size_t n);
/* What was written to masters since goes into the parameters, */
PyObject *amp_py_Context_follow(PyObject *self, PyObject *unused);
PyObject *amp_py_Context_agree(PyObject *self, PyObject *tensor);
/* and what was written to parameters into their masters. */
PyObject *amp_py_Context_settle(PyObject *self, PyObject *unused);

/* describe.c: arrays that the caller frees, or NULL with an exception; names stay Python's. */
amp_param *amp_py_read_params(amp_py_Context *context, PyObject *list, size_t *n);
amp_op *amp_py_read_ops(PyObject *list, size_t *n);
/* skipping: numbers of those whose step reads on the device whether to update. */
int amp_py_read_optimizers(amp_py_Context *context, PyObject *list, PyObject *skipping);
void **amp_py_handles_of(const struct amp_py_optimizer *optimizer);
PyObject *amp_py_Context_add_params(PyObject *self, PyObject *args);

/* scopes.c: enters or leaves a scope on this thread. */
int amp_py_enter(amp_py_Context *context);
int amp_py_leave(void);
/* Was nobody's scope entered last on this thread? */
bool amp_py_is_disabled(void);
int amp_py_add_scopes(PyObject *module);

/* Methods, in PyMethodDef's order; bracket.c */
extern PyTypeObject *amp_py_bracket_type;
int amp_py_add_bracket(PyObject *module);
PyObject *amp_py_Context_begin(PyObject *self, PyObject *args);
PyObject *amp_py_Context_set_ranks(PyObject *self, PyObject *args);
PyObject *amp_py_Context_step_begin(PyObject *self, PyObject *args);
PyObject *amp_py_Context_step_end(PyObject *self, PyObject *index);
PyObject *amp_py_Context_zero_grad(PyObject *self, PyObject *index);
PyObject *amp_py_Context_masters(PyObject *self, PyObject *index);
/* report.c */
PyObject *amp_py_Context_scale(PyObject *self, PyObject *loss_id);
PyObject *amp_py_Context_check(PyObject *self, PyObject *unused);
PyObject *amp_py_Context_unscale(PyObject *self, PyObject *args);
PyObject *amp_py_Context_reconcile(PyObject *self, PyObject *unused);
PyObject *amp_py_Context_record(PyObject *self, PyObject *loss_id);
PyObject *amp_py_Context_save(PyObject *self, PyObject *args);
PyObject *amp_py_Context_load(PyObject *self, PyObject *state);
PyObject *amp_py_Context_op_target(PyObject *self, PyObject *args);
PyObject *amp_py_Context_explain(PyObject *self, PyObject *args);
PyObject *amp_py_Context_health(PyObject *self, PyObject *unused);
PyObject *amp_py_Context_findings(PyObject *self, PyObject *unused);
PyObject *amp_py_Context_op_stats(PyObject *self, PyObject *unused);
/* observe.c */
PyObject *amp_py_Context_observe(PyObject *self, PyObject *args);
PyObject *amp_py_Context_observe_stop(PyObject *self, PyObject *unused);
PyObject *amp_py_Context_observing(PyObject *self, PyObject *unused);
PyObject *amp_py_Context_observe_call(PyObject *self, PyObject *args);
PyObject *amp_py_Context_observations(PyObject *self, PyObject *unused);
PyObject *amp_py_Context_culprit(PyObject *self, PyObject *unused);
PyObject *amp_py_Context_memory(PyObject *self, PyObject *args);
PyObject *amp_py_Context_survey(PyObject *self, PyObject *unused);
/* config.c */
int amp_py_add_config(PyObject *module);
int amp_py_config(const char *level, PyObject *settings, amp_config *config);
PyObject *amp_py_type_name(amp_dtype dtype);
int amp_py_type_of(PyObject *name, amp_dtype *dtype); /* 0, or -1 with an exception */

#endif /* AMP_PY_CONTEXT_H */
