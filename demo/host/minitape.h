/* SPDX-License-Identifier: Apache-2.0 */
/*
 * minitape - a small automatic differentiation framework.
 *
 * Tensors are reference counted; every function that returns an mt_tensor
 * returns a reference that the caller releases.  Functions that can fail
 * return NULL (or -1) and leave a message in mt_error(); nothing exits.
 * Operators given a NULL tensor return NULL and keep the earlier message,
 * so a chain of operators needs one check, at its end.
 *
 * Operators are called through a table of function pointers (mt_ops) that
 * may be replaced entry by entry.  They record what their gradient needs on
 * a tape; mt_backward() walks it and frees it on the way.
 *
 * One thread at a time may use a given tensor or graph; the error message
 * and the gradient mode belong to the thread.
 */
#ifndef MINITAPE_H
#define MINITAPE_H

#include <stddef.h>
#include <stdint.h>

#define MT_MAX_DIMS 4

typedef enum mt_dtype { MT_F32, MT_F16, MT_BF16, MT_I32 } mt_dtype;

size_t mt_dtype_size(mt_dtype dtype);
const char *mt_dtype_name(mt_dtype dtype);
int mt_dtype_is_float(mt_dtype dtype);

/* The calling thread's last error message, "" if there was none. */
const char *mt_error(void);
void mt_clear_error(void);

/* ---- devices ------------------------------------------------------------ */

/* MT_CUDA works once mt_cuda_open() of minitape_cuda.h has opened it. */
typedef enum mt_device { MT_CPU, MT_CUDA } mt_device;

const char *mt_device_name(mt_device device); /* of the hardware */
/* The stream on which all work on the device is done; NULL for the CPU. */
void *mt_device_stream(mt_device device);
/* Until all work is done: 0, or -1 if some of it failed.  Reading elements
 * waits too; nothing else does. */
int mt_device_wait(mt_device device);

/* ---- memory: bytes held by storages, by category ---------------------- */

typedef enum mt_category {
	MT_MEM_PARAMETER,
	MT_MEM_GRADIENT,   /* gradients of leaves */
	MT_MEM_ACTIVATION, /* what operators make, forward and backward */
	MT_MEM_OPTIMIZER,
	MT_MEM_OTHER, /* scratch and the user's own */
	MT_MEM_CATEGORIES
} mt_category;

size_t mt_mem_now(mt_category category);
size_t mt_mem_peak(mt_category category);
void mt_mem_reset_peak(void); /* every peak becomes what is held now */

typedef struct mt_storage {
	void *data;
	size_t bytes;
	mt_category category;
	mt_device device;
} mt_storage;

/* Not zeroed; the first one on the CPU. */
mt_storage *mt_storage_new(size_t bytes, mt_category category);
mt_storage *mt_storage_new_on(mt_device device, size_t bytes,
                              mt_category category);
void mt_storage_free(mt_storage *storage);
void mt_storage_retag(mt_storage *storage, mt_category category);

/* ---- tensors ----------------------------------------------------------- */

typedef struct mt_tensor {
	uint64_t id; /* unique in the process, never reused */
	int refs;
	mt_dtype dtype;
	int ndim;
	int shape[MT_MAX_DIMS]; /* contiguous, row-major; unused dims are 1 */
	mt_storage *storage;    /* owned */
	int requires_grad;
	struct mt_tensor *grad; /* owned; NULL until a backward pass */
	uint64_t version;       /* counts the changes made in place */
	struct mt_node *node;   /* the operator that made it; NULL: a leaf */
} mt_tensor;

/* A zero-filled leaf that requires no gradient, on the CPU.  ndim may be 0: a
 * scalar. */
mt_tensor *mt_tensor_new(mt_dtype dtype, int ndim, const int *shape,
                         mt_category category);
mt_tensor *mt_retain(mt_tensor *tensor); /* both accept NULL */
void mt_release(mt_tensor *tensor);

/* Releases `used` and returns `result`: x = mt_then(x, ops->relu(x)). */
mt_tensor *mt_then(mt_tensor *used, mt_tensor *result);

size_t mt_numel(const mt_tensor *tensor);
int mt_same_shape(const mt_tensor *a, const mt_tensor *b);

/*
 * Installs another storage, large enough for the shape in `dtype`, and
 * returns the old one, which is then the caller's.  The tensor stays the
 * same object: id, version, references and gradient are untouched.
 */
mt_storage *mt_tensor_swap_storage(mt_tensor *tensor, mt_storage *storage,
                                   mt_dtype dtype);

/* A copy on another device, a leaf; on the same one the tensor itself. */
mt_tensor *mt_to(mt_tensor *tensor, mt_device device);
/* The tensor itself moves; not between its use and backward.  0, or -1. */
int mt_move(mt_tensor *tensor, mt_device device);

/* Takes a new reference to grad (NULL: none) and drops the old one. */
void mt_set_grad(mt_tensor *tensor, mt_tensor *grad);

/* Element access with conversion; the writers bump the version. */
double mt_get(const mt_tensor *tensor, size_t index);
void mt_set(mt_tensor *tensor, size_t index, double value);
void mt_fill(mt_tensor *tensor, double value);
void mt_read(const mt_tensor *tensor, float *values);
void mt_write(mt_tensor *tensor, const float *values);
/* Copies values between tensors of equal size and any floating types, on one
 * device. */
int mt_copy(mt_tensor *to, const mt_tensor *from);

/* log[index] = *value, which is where the log is: nobody waits for it.  The
 * log is f32.  0, or -1. */
int mt_note(mt_tensor *log, size_t index, mt_dtype dtype, const void *value);

/* Converts n floating-point numbers, rounding to nearest even; on the CPU. */
void mt_convert(mt_dtype to_dtype, void *to, mt_dtype from_dtype,
                const void *from, size_t n);

/* ---- the tape ---------------------------------------------------------- */

/* While disabled, operators record nothing.  Enabled at first. */
int mt_grad_enabled(void);
int mt_set_grad_enabled(int enabled); /* returns what was set before */

/*
 * Adds the gradient of (the sum of the elements of) loss to the grad of every
 * leaf that requires one, and frees the graph.  Returns 0, or -1 on an error,
 * when some leaves may already have received theirs.
 */
int mt_backward(mt_tensor *loss);
int mt_backward_seed(mt_tensor *loss, float seed); /* seed times that */

/* Frees the graph behind a tensor that will not be run backward. */
void mt_discard_graph(mt_tensor *tensor);

/*
 * What backward will read of an operator's inputs is kept until then: the
 * tensor itself, or what a saver makes of it.  Asked for is only what other
 * operators made, once for each that keeps it; not leaves, nor leaves that
 * were cast, and not the input of log_softmax, whose backward is an
 * exponential of it.  On failure both leave a message in mt_error().
 */
typedef struct mt_saver {
	void *user;
	/* *packed: what is kept in place of the tensor, or NULL: the tensor
	 * itself is.  0, or -1. */
	int (*pack)(void *user, mt_tensor *tensor, void **packed);
	/* A new tensor with its shape, type and device, or NULL. */
	mt_tensor *(*unpack)(void *user, void *packed);
	void (*drop)(void *user, void *packed);
} mt_saver;

/* For what operators record from now on; copied.  NULL: none, as at first. */
void mt_set_saver(const mt_saver *saver);

/* ---- operators --------------------------------------------------------- */

/*
 * Images are NCHW.  The inputs of one operator are on one device, where its
 * result is too.  Floating inputs have one type, which is that of the result;
 * only batch_norm takes f32 parameters and statistics with a 16-bit input.
 * Sums are made in float or better and rounded once.
 */
typedef struct mt_ops {
	/* weight [out, in, kh, kw], bias [out] or NULL */
	mt_tensor *(*conv2d)(mt_tensor *input, mt_tensor *weight,
	                     mt_tensor *bias, int stride, int padding);
	/* over dim 1; in training, uses the batch's statistics and moves the
	 * running ones towards them by `momentum` */
	mt_tensor *(*batch_norm)(mt_tensor *input, mt_tensor *weight,
	                         mt_tensor *bias, mt_tensor *running_mean,
	                         mt_tensor *running_var, int training,
	                         float momentum, float eps);
	mt_tensor *(*relu)(mt_tensor *input);
	mt_tensor *(*add)(mt_tensor *a, mt_tensor *b);
	mt_tensor *(*mul)(mt_tensor *a, mt_tensor *b);
	mt_tensor *(*max_pool2d)(mt_tensor *input, int kernel, int stride);
	mt_tensor *(*global_avg_pool)(mt_tensor *input); /* [N, C] */
	/* input [N, in], weight [out, in], bias [out] or NULL */
	mt_tensor *(*linear)(mt_tensor *input, mt_tensor *weight,
	                     mt_tensor *bias);
	mt_tensor *(*log_softmax)(mt_tensor *input); /* [N, C], over dim 1 */
	/* logp [N, C], target i32 [N]; the mean, a scalar */
	mt_tensor *(*nll_loss)(mt_tensor *logp, mt_tensor *target);
	mt_tensor *(*dropout)(mt_tensor *input, float p, int training,
	                      uint64_t seed);
	mt_tensor *(*cat)(mt_tensor **tensors, int n, int dim);
	mt_tensor *(*scale)(mt_tensor *input, float factor);
	/* to another floating type; the same type gives the input itself */
	mt_tensor *(*cast)(mt_tensor *input, mt_dtype dtype);
	/* self += alpha * other in place; 0, or -1 on an error */
	int (*add_)(mt_tensor *self, mt_tensor *other, float alpha);
} mt_ops;

/* The process's table; what a user writes into it is what models call. */
mt_ops *mt_ops_default(void);

/* As scale, by a factor that is where the input is, and is read when the work
 * is done; backward reads it again. */
mt_tensor *mt_scale_by(mt_tensor *input, const float *factor);

/* ---- operators by somebody else's matrix product ----------------------- */

/*
 * d = op(a) x op(b), row-major and compact, of one type: op(a) is [m, k],
 * stored [k, m] if it is transposed, op(b) [k, n], stored [n, k], d [m, n].
 * Sums in float, rounded once.  With `add` the product is added to what d
 * holds.
 */
typedef struct mt_product {
	int m, n, k;
	int transpose_a, transpose_b;
	mt_dtype dtype;
	const void *a, *b;
	void *d;
	int add;
	mt_device device; /* where they are, and the stream to use there */
	void *stream;
} mt_product;

typedef int (*mt_product_fn)(const mt_product *product); /* 0, or -1 */

/* As the operators of the table; backward goes by `multiply` too. */
mt_tensor *mt_conv2d_by(mt_product_fn multiply, mt_tensor *input,
                        mt_tensor *weight, mt_tensor *bias, int stride,
                        int padding);
mt_tensor *mt_linear_by(mt_product_fn multiply, mt_tensor *input,
                        mt_tensor *weight, mt_tensor *bias);

/* ---- optimizers -------------------------------------------------------- */

typedef struct mt_optimizer mt_optimizer;

struct mt_optimizer {
	mt_tensor **params; /* owned references */
	size_t n;
	float lr; /* may be written between steps, like the next ones */
	float weight_decay;
	float momentum;           /* SGD */
	float beta1, beta2, eps;  /* Adam */
	/* Where the parameters are: if it is not 0 when the step is done,
	 * nothing is updated.  NULL: it is 0. */
	const float *found_inf;
	int steps;
	/* Updates the parameters that have a gradient; returns the number of
	 * steps taken so far, or -1 on an error. */
	int (*step)(mt_optimizer *self);
	void (*zero_grad)(mt_optimizer *self); /* drops the gradients */
	struct mt_opt_state *states;           /* keyed by parameter */
	size_t n_states;
};

mt_optimizer *mt_sgd_new(mt_tensor **params, size_t n, float lr,
                         float momentum, float weight_decay);
mt_optimizer *mt_adam_new(mt_tensor **params, size_t n, float lr, float beta1,
                          float beta2, float eps, float weight_decay);
int mt_optimizer_add_params(mt_optimizer *opt, mt_tensor **params, size_t n);
void mt_optimizer_free(mt_optimizer *opt);

/* The f32 state of a parameter (0: momentum or first moment, 1: second
 * moment) on its device, NULL before its first step. */
const float *mt_optimizer_state(const mt_optimizer *opt,
                                const mt_tensor *param, int slot);

/* ---- random numbers ---------------------------------------------------- */

typedef struct mt_rng {
	uint64_t state; /* any value seeds it */
} mt_rng;

uint64_t mt_rng_next(mt_rng *rng);
float mt_rng_uniform(mt_rng *rng); /* [0, 1) */
float mt_rng_normal(mt_rng *rng);
int mt_rng_below(mt_rng *rng, int bound); /* 0 <= result < bound */

#endif
