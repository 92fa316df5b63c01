/* SPDX-License-Identifier: Apache-2.0 */
/* What minitape's own files share; users include minitape.h only. */
#ifndef MINITAPE_INTERNAL_H
#define MINITAPE_INTERNAL_H

#include "minitape.h"

#define MTI_TILE 512 /* floats that an element-wise kernel handles at once */

/* Sets mt_error(). */
#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
void mti_fail(const char *format, ...);

/* What an optimizer keeps for a parameter. */
struct mt_opt_state {
	uint64_t id; /* of the parameter */
	int steps;   /* this parameter's own: it may have sat some out */
	mt_storage *slot[2];
	mt_storage *there; /* on a device: the steps, and what follows */
};

/* ---- tensors ----------------------------------------------------------- */

/* As mt_tensor_new, but an activation and not zeroed. */
mt_tensor *mti_activation(mt_device device, mt_dtype dtype, int ndim,
                          const int *shape);
/* Takes over the storage, in any case. */
mt_tensor *mti_tensor_of(mt_storage *storage, mt_dtype dtype, int ndim,
                         const int *shape);
/* An activation's storage where the tensor is. */
mt_storage *mti_beside(const mt_tensor *tensor, size_t bytes);
mt_tensor *mti_like(const mt_tensor *tensor);

/*
 * Tile access.  An f32 tensor is read and written where it lies; the 16-bit
 * ones pass through `buffer`, which has room for n floats.  mti_begin gives
 * the place to write to and mti_end rounds what was written there.
 */
const float *mti_read(const mt_tensor *tensor, size_t at, size_t n,
                      float *buffer);
float *mti_begin(mt_tensor *tensor, size_t at, float *buffer);
void mti_end(mt_tensor *tensor, size_t at, size_t n, const float *buffer);

/* Reads n elements to a place of the caller's. */
void mti_load(const mt_tensor *tensor, size_t at, size_t n, float *to);

/* to += alpha * from, any floating types, rounded once. */
void mti_axpy(mt_tensor *to, const mt_tensor *from, float alpha);

/* A sum in eight lanes: fast, accurate and always in the same order. */
double mti_sum(const float *values, size_t n);

static inline size_t mti_min(size_t a, size_t b)
{
	return a < b ? a : b;
}

/* ---- recording --------------------------------------------------------- */

#define MTI_SAVED 2

typedef struct mt_node mt_node;

/* Fills grads[i] with new references for the inputs that mti_wants(). */
typedef int (*mti_backward)(const mt_node *node, mt_tensor *grad,
                            mt_tensor **grads);

/* One input of a node: where its gradient goes and what it looks like. */
struct mti_edge {
	mt_node *node;   /* owned; the operator that made the input ... */
	mt_tensor *leaf; /* ... or the leaf itself, retained; or neither */
	mt_device device;
	mt_dtype dtype;
	int ndim;
	int shape[MT_MAX_DIMS];
};

/* What an operator says about itself when it records. */
struct mti_record {
	const char *name;
	mti_backward backward;
	mt_tensor *saved[MTI_SAVED]; /* inputs that backward reads */
	int is_exact;                /* it grows as exp(): no saver's */
	mt_storage *aux;             /* owned: masks, indices, statistics */
	int arg[2];
	float factor;
	const float *by;        /* the factor's place, or NULL */
	mt_product_fn multiply; /* NULL: minitape's own */
};

/* What became of a tensor in rec.saved. */
struct mti_saved {
	void *packed; /* what `by` made of it; NULL: it is there itself */
	mt_saver by;
	uint64_t version; /* when it was saved */
	mt_dtype dtype;
};

struct mt_node {
	struct mti_record rec; /* retains rec.saved */
	struct mti_saved saved[MTI_SAVED];
	uint64_t sequence; /* later than the nodes of its inputs */
	int refs;
	int spent; /* run backward or discarded: nothing is left in it */
	int mark;
	mt_tensor *grad; /* of the output, while backward runs */
	mt_node *next;   /* while it waits to be freed */
	int n_edges;
	struct mti_edge edges[];
};

/* Whether an operator on these inputs (NULL ones are skipped) must record. */
int mti_wants_grad(int n, mt_tensor *const *inputs);

/*
 * The end of every operator: attaches a node to out if gradients are wanted.
 * Takes over out and rec->aux; returns out, or NULL (also when out is NULL).
 */
mt_tensor *mti_finish(mt_tensor *out, const struct mti_record *rec, int n,
                      mt_tensor *const *inputs);

void mti_node_release(mt_node *node);

/* saved.c: what a node keeps of a tensor (NULL: nothing), has again when it
 * runs, and lets go of.  0, or -1 with a message. */
int mti_save(mt_node *node, int i, mt_tensor *tensor);
int mti_restore_saved(mt_node *node);
void mti_drop_saved(mt_node *node);

static inline int mti_wants(const mt_node *node, int i)
{
	const struct mti_edge *e = &node->edges[i];

	return e->node || e->leaf;
}

/* An uninitialised tensor that looks like the node's i-th input. */
mt_tensor *mti_grad_for(const mt_node *node, int i);

/* ---- argument checks: 1 if all is well, else 0 with a message ---------- */

/* All present and floating, all of the first one's type and device. */
int mti_check(const char *op, int n, mt_tensor *const *inputs);
int mti_check_device(const char *op, int i, const mt_tensor *input,
                     const mt_tensor *first);
int mti_check_ndim(const char *op, const char *what, const mt_tensor *tensor,
                   int ndim);
int mti_check_vector(const char *op, const char *what,
                     const mt_tensor *tensor, int length);

/* ---- kernels ----------------------------------------------------------- */

/*
 * The one matrix kernel: with cols a multiple of MTI_COLS and rows one of
 * MTI_ROWS,
 *   c[i][j] += sum over k < depth of a[row_at[i] + depth_at[k]] * b[k][j].
 * Reading `a` through two tables of offsets lets a convolution multiply its
 * input without copying every patch of it.
 */
#define MTI_ROWS 4
#define MTI_COLS 8
void mti_gemm(int rows, int cols, int depth, const float *a,
              const int *row_at, const int *depth_at, const float *b,
              float *c);

static inline int mti_round_up(int n, int multiple)
{
	return (n + multiple - 1) / multiple * multiple;
}

/* ---- the operators, by file -------------------------------------------- */

mt_tensor *mti_conv2d(mt_tensor *input, mt_tensor *weight, mt_tensor *bias,
                      int stride, int padding);
mt_tensor *mti_linear(mt_tensor *input, mt_tensor *weight, mt_tensor *bias);
mt_tensor *mti_batch_norm(mt_tensor *input, mt_tensor *weight,
                          mt_tensor *bias, mt_tensor *running_mean,
                          mt_tensor *running_var, int training,
                          float momentum, float eps);
mt_tensor *mti_relu(mt_tensor *input);
mt_tensor *mti_dropout(mt_tensor *input, float p, int training,
                       uint64_t seed);
mt_tensor *mti_add(mt_tensor *a, mt_tensor *b);
mt_tensor *mti_mul(mt_tensor *a, mt_tensor *b);
mt_tensor *mti_scale(mt_tensor *input, float factor);
mt_tensor *mti_cast(mt_tensor *input, mt_dtype dtype);
int mti_add_(mt_tensor *self, mt_tensor *other, float alpha);
mt_tensor *mti_cat(mt_tensor **tensors, int n, int dim);
mt_tensor *mti_max_pool2d(mt_tensor *input, int kernel, int stride);
mt_tensor *mti_global_avg_pool(mt_tensor *input);
mt_tensor *mti_log_softmax(mt_tensor *input);
mt_tensor *mti_nll_loss(mt_tensor *logp, mt_tensor *target);

#endif
