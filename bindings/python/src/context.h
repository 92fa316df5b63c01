/* SPDX-License-Identifier: Apache-2.0 */
/* _core.Context: an amp_context over torch tensors. Shared by context.c, host.c and bracket.c. */
#ifndef AMP_PY_CONTEXT_H
#define AMP_PY_CONTEXT_H

#include "tensor.h"

/* A parameter or buffer that the context knows. */
struct amp_py_param {
    PyObject *tensor;
    size_t number;      /* its number in the context */
    PyObject *master;   /* the torch.nn.Parameter that the optimizer has instead, or NULL */
    bool frozen;        /* has a master and was not trained when last settled */
    bool scaled;        /* its gradient was left scaled, where backward puts it */
    PyObject *gradient; /* tensor over the block of the master's gradient, NULL until made */
    PyObject *held;     /* last gradient returned by the hook grad, kept alive until it is read */
    const void *aside;  /* last gradient that libamp removed, for comparison only */
    void *data;         /* elements of the master */
    uint64_t seen;      /* version of the master when the parameter had its values */
    amp_dtype dtype;    /* type that libamp gave the tensor, DEFAULT: its own */
    const void *address; /* place of its elements at the last view, and number of moves */
    uint32_t moves;
    struct amp_py_order order;
};

struct amp_py_optimizer {
    amp_optimizer amp;
    struct amp_py_param **params;
    size_t n;
    bool delayed; /* its gradients carry a scale, which the last bracket left */
    bool has_masters;
    bool cleared; /* zero_grad ran since the last bracket, so there are no gradients (without masters only) */
    bool emptied; /* cleared, at the begin of the open bracket */
    bool keeps;   /* its zero_grad leaves gradients */
    bool steps;   /* its step is running and was not skipped */
};

typedef struct {
    PyObject_HEAD
    amp_context *amp; /* NULL after shutdown */
    amp_host host;
    amp_model model;
    struct amp_py_param **params; /* each allocated separately */
    size_t n_params;
    struct amp_py_param **table;  /* by address of the tensor, open addressing, table_size a power of two */
    size_t table_size;
    struct amp_py_optimizer **optimizers;
    size_t n_optimizers;
    PyObject *event;    /* callable, or NULL */
    PyObject *storage;  /* libamp.torch.amp's object with alloc, swap, master, gradient */
    PyObject *blocks;   /* dict: address -> tensor that owns it */
    PyObject *weakrefs;
    PyObject *reduce;   /* callable(reduction, values) -> the values over all ranks, NULL: no other ranks */
    bool tells_of_cancels; /* a cancel may call reduce too */
    bool alone;         /* in a cancel, or at the end of the context: reduce is not called */
    struct amp_py_param *looked_at; /* parameter of the last gradient from the hook grad */
    bool ending;  /* an end or cancel is running, so gradients are those of backward */
    bool dying;   /* under collection: tensors are not restored */
    bool scales_by_one; /* the scale is always 1 */
    bool torch_ops; /* LIBAMP_TORCH_OPS is on: libamp's kernels serve no device */
    bool permutes; /* a parameter is not row-major */
    size_t inside;      /* open scopes of this context, on all threads */
    size_t brackets;    /* open brackets */
    unsigned noted;     /* brackets that recorded absent gradients, at a scale of 1 without masters */
    bool holds;         /* a parameter has a `held` */
    size_t found;       /* number of the last parameter found */
    uint64_t looks;     /* views of parameters that are not trained, see hook_version */
    PyObject *error[3]; /* first exception of a hook */
} amp_py_Context;

/* The amp_context of a _core.Context, NULL with an exception if it is none or was shut down. */
amp_context *amp_py_context(PyObject *object);

/* host.c */
/* Returns NULL with an exception if the context was shut down or has no such optimizer. */
amp_py_Context *amp_py_live(PyObject *object);
struct amp_py_optimizer *amp_py_optimizer_at(amp_py_Context *context, PyObject *index);
/* Returns a tensor over a float in a GPU's memory, or NULL with an exception. */
PyObject *amp_py_number(const amp_py_Context *context, const float *address, amp_device device);
void amp_py_host(amp_py_Context *context, amp_host *host);
struct amp_py_param *amp_py_find(amp_py_Context *context, const void *tensor);
/* Moves the present exception to context->error, unless that has one. */
void amp_py_keep_error(amp_py_Context *context);
/* Raises the exception of a hook, else that of the status. Returns NULL. */
PyObject *amp_py_context_raise(amp_py_Context *context, amp_status status);
void amp_py_drop_held(amp_py_Context *context);

/* masters.c. Makes the tensors of an optimizer's masters, from parameter `from` on, after initialize or add_params. */
int amp_py_make_masters(amp_py_Context *context, struct amp_py_optimizer *optimizer, size_t from);
int amp_py_show_gradients(amp_py_Context *context, struct amp_py_optimizer *optimizer);
int amp_py_clear_masters(struct amp_py_optimizer *optimizer, bool params_too);
/* Moves masters with memory of a script (`p.data = x`) back to libamp's, with their values. */
int amp_py_settle_masters(amp_py_Context *context, const struct amp_py_optimizer *optimizer);
/* As amp_py_settle_masters for all, and masters follow parameters in a new layout (channels last). */
int amp_py_settle(amp_py_Context *context);
/* Before shutdown: also settles types that a script changed. */
int amp_py_settle_types(const amp_py_Context *context);
/* Marks the parameters as their rounded masters. */
void amp_py_masters_seen(struct amp_py_param *const *params, size_t n);
/* Copies writes to masters to the parameters. */
PyObject *amp_py_Context_follow(PyObject *self, PyObject *unused);
PyObject *amp_py_Context_agree(PyObject *self, PyObject *tensor);
/* Copies writes to parameters to their masters. */
PyObject *amp_py_Context_settle(PyObject *self, PyObject *unused);

/* describe.c. Return arrays that the caller frees, or NULL with an exception. Python owns the names. */
amp_param *amp_py_read_params(amp_py_Context *context, PyObject *list, size_t *n);
amp_op *amp_py_read_ops(PyObject *list, size_t *n);
/* skipping: numbers of the optimizers that read on the device whether to step. */
int amp_py_read_optimizers(amp_py_Context *context, PyObject *list, PyObject *skipping);
void **amp_py_handles_of(const struct amp_py_optimizer *optimizer);
PyObject *amp_py_Context_add_params(PyObject *self, PyObject *args);

/* scopes.c. Enter and leave a scope on this thread. */
int amp_py_enter(amp_py_Context *context);
int amp_py_leave(void);
/* True if the innermost scope of this thread disables casts. */
bool amp_py_is_disabled(void);
int amp_py_add_scopes(PyObject *module);

/* Methods in the order of PyMethodDef. bracket.c */
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
PyObject *amp_py_Context_observe_loss(PyObject *self, PyObject *args);
PyObject *amp_py_Context_observe_remark(PyObject *self, PyObject *args);
PyObject *amp_py_Context_observations(PyObject *self, PyObject *unused);
PyObject *amp_py_Context_culprit(PyObject *self, PyObject *unused);
PyObject *amp_py_Context_memory(PyObject *self, PyObject *args);
PyObject *amp_py_Context_observe_moments(PyObject *self, PyObject *args);
PyObject *amp_py_Context_survey(PyObject *self, PyObject *unused);
/* config.c */
int amp_py_add_config(PyObject *module);
int amp_py_config(const char *level, PyObject *settings, amp_config *config);
PyObject *amp_py_type_name(amp_dtype dtype);
int amp_py_type_of(PyObject *name, amp_dtype *dtype); /* 0, or -1 with an exception */

#endif /* AMP_PY_CONTEXT_H */
