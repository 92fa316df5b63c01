/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tape.  A tensor owns the node of the operator that made it; a node
 * owns the nodes of its inputs, and the tensors its gradient reads.  A node
 * never keeps its own output (operators save inputs, masks and statistics
 * instead), so there are no cycles: a graph nobody uses goes away by itself.
 */
#include "device.h"

#include <stdatomic.h>
#include <stdlib.h>

/* ---- recording --------------------------------------------------------- */

int mti_wants_grad(int n, mt_tensor *const *inputs)
{
	if (!mt_grad_enabled())
		return 0;
	for (int i = 0; i < n; i++)
		if (inputs[i] && inputs[i]->requires_grad)
			return 1;
	return 0;
}

static void link_input(struct mti_edge *edge, mt_tensor *input)
{
	if (!input)
		return;
	edge->device = input->storage->device;
	edge->dtype = input->dtype;
	edge->ndim = input->ndim;
	for (int i = 0; i < MT_MAX_DIMS; i++)
		edge->shape[i] = input->shape[i];
	if (input->node) {
		edge->node = input->node;
		edge->node->refs++;
	} else if (input->requires_grad) {
		edge->leaf = mt_retain(input);
	}
}

static mt_node *new_node(const struct mti_record *rec, int n,
                         mt_tensor *const *inputs)
{
	static _Atomic uint64_t last_sequence;
	mt_node *node =
		calloc(1, sizeof(*node) + (size_t)n * sizeof(node->edges[0]));

	if (!node) {
		mti_fail("out of memory: recording %s", rec->name);
		return NULL;
	}
	node->rec = *rec;
	node->sequence = atomic_fetch_add(&last_sequence, 1) + 1;
	node->refs = 1;
	node->n_edges = n;
	node->rec.aux = NULL; /* the caller's until the node is whole */
	for (int i = 0; i < MTI_SAVED; i++)
		node->rec.saved[i] = NULL;
	for (int i = 0; i < n; i++)
		link_input(&node->edges[i], inputs[i]);
	for (int i = 0; i < MTI_SAVED; i++) {
		if (mti_save(node, i, rec->saved[i]) != 0) {
			mti_node_release(node);
			return NULL;
		}
	}
	node->rec.aux = rec->aux;
	return node;
}

mt_tensor *mti_finish(mt_tensor *out, const struct mti_record *rec, int n,
                      mt_tensor *const *inputs)
{
	if (out && mti_there(out) && mti_device_failed()) {
		mt_release(out);
		out = NULL;
	}
	if (!out || !mti_wants_grad(n, inputs)) {
		mt_storage_free(rec->aux);
		return out;
	}
	out->node = new_node(rec, n, inputs);
	if (!out->node) {
		mt_storage_free(rec->aux);
		mt_release(out);
		return NULL;
	}
	out->requires_grad = 1;
	return out;
}

mt_tensor *mti_grad_for(const mt_node *node, int i)
{
	const struct mti_edge *e = &node->edges[i];

	return mti_activation(e->device, e->dtype, e->ndim, e->shape);
}

/* ---- freeing ----------------------------------------------------------- */

/* Drops all that a node holds on to; what is left is a spent shell. */
static void strip(mt_node *node)
{
	node->spent = 1;
	mti_drop_saved(node);
	mt_storage_free(node->rec.aux);
	node->rec.aux = NULL;
	mt_release(node->grad);
	node->grad = NULL;
	for (int i = 0; i < node->n_edges; i++) {
		mt_release(node->edges[i].leaf);
		mti_node_release(node->edges[i].node);
	}
	node->n_edges = 0;
}

void mti_node_release(mt_node *node)
{
	/* A queue, not recursion: a graph may be deeper than the stack. */
	static _Thread_local mt_node *pending;
	static _Thread_local int draining;

	if (!node || --node->refs > 0)
		return;
	node->next = pending;
	pending = node;
	if (draining)
		return;
	draining = 1;
	while (pending) {
		node = pending;
		pending = node->next;
		strip(node);
		free(node);
	}
	draining = 0;
}

/* ---- walking ----------------------------------------------------------- */

struct walk {
	mt_node **nodes; /* owned references */
	size_t n;
	size_t room;
};

static int walk_push(struct walk *w, mt_node *node)
{
	if (!node || node->mark)
		return 0;
	if (w->n == w->room) {
		size_t room = w->room ? 2 * w->room : 64;
		mt_node **grown = realloc(w->nodes, room * sizeof(*grown));

		if (!grown) {
			mti_fail("out of memory: backward");
			return -1;
		}
		w->nodes = grown;
		w->room = room;
	}
	node->mark = 1;
	node->refs++;
	w->nodes[w->n++] = node;
	return 0;
}

static int newest_first(const void *a, const void *b)
{
	uint64_t x = (*(mt_node *const *)a)->sequence;
	uint64_t y = (*(mt_node *const *)b)->sequence;

	return (x < y) - (x > y);
}

/* Every node behind root, newest first.  An operator is younger than its
 * inputs, so in this order a node comes after all that feed its gradient. */
static int walk_collect(struct walk *w, mt_node *root)
{
	int status = walk_push(w, root);

	for (size_t i = 0; i < w->n && status == 0; i++)
		for (int e = 0; e < w->nodes[i]->n_edges && status == 0; e++)
			status = walk_push(w, w->nodes[i]->edges[e].node);
	for (size_t i = 0; i < w->n; i++)
		w->nodes[i]->mark = 0;
	if (status == 0)
		qsort(w->nodes, w->n, sizeof(mt_node *), newest_first);
	return status;
}

static void walk_release(struct walk *w)
{
	for (size_t i = 0; i < w->n; i++)
		mti_node_release(w->nodes[i]);
	free(w->nodes);
}

static void walk_strip(struct walk *w)
{
	for (size_t i = 0; i < w->n; i++)
		strip(w->nodes[i]);
}

/* ---- backward ---------------------------------------------------------- */

/* A copy in another type, or NULL. */
static mt_tensor *copy_as(const mt_tensor *from, mt_dtype dtype)
{
	mt_tensor *t = mti_activation(from->storage->device, dtype, from->ndim,
	                              from->shape);

	if (t)
		mt_copy(t, from);
	return t;
}

/* Takes over grad. */
static int add_to_leaf(mt_tensor *leaf, mt_tensor *grad)
{
	if (leaf->grad) {
		mti_axpy(leaf->grad, grad, 1.0F);
		leaf->grad->version++;
		mt_release(grad);
		return 0;
	}
	/* Two leaves must not share what each will add to. */
	if (grad->refs > 1 || grad->dtype != leaf->dtype)
		grad = mt_then(grad, copy_as(grad, leaf->dtype));
	if (!grad)
		return -1;
	mt_storage_retag(grad->storage, MT_MEM_GRADIENT);
	leaf->grad = grad;
	return 0;
}

/* Takes over grad. */
static int add_to_node(mt_node *node, mt_tensor *grad)
{
	if (!node->grad) {
		node->grad = grad;
		return 0;
	}
	if (node->grad->refs > 1)
		node->grad = mt_then(node->grad,
		                     copy_as(node->grad, node->grad->dtype));
	if (node->grad)
		mti_axpy(node->grad, grad, 1.0F);
	mt_release(grad);
	return node->grad ? 0 : -1;
}

static int run_node(mt_node *node)
{
	size_t n = (size_t)node->n_edges;
	mt_tensor **grads;
	int status;

	if (!node->grad)
		return 0;
	if (mti_restore_saved(node) != 0)
		return -1;
	grads = calloc(n, sizeof(mt_tensor *));
	if (!grads) {
		mti_fail("out of memory: backward of %s", node->rec.name);
		return -1;
	}
	status = node->rec.backward(node, node->grad, grads);
	if (mti_there(node->grad) && mti_device_failed())
		status = -1;
	mt_release(node->grad);
	node->grad = NULL;
	for (size_t i = 0; i < n; i++) {
		const struct mti_edge *e = &node->edges[i];

		if (status != 0 || !grads[i])
			mt_release(grads[i]);
		else if (e->node)
			status = add_to_node(e->node, grads[i]);
		else
			status = add_to_leaf(e->leaf, grads[i]);
	}
	free(grads);
	return status;
}

static int run_all(struct walk *w, const mt_tensor *loss, float seed)
{
	mt_tensor *grad;

	for (size_t i = 0; i < w->n; i++) {
		if (w->nodes[i]->spent) {
			mti_fail("backward: the graph has been freed");
			return -1;
		}
	}
	grad = mti_like(loss);
	if (!grad)
		return -1;
	mt_fill(grad, (double)seed);
	loss->node->grad = grad;
	for (size_t i = 0; i < w->n; i++) {
		if (run_node(w->nodes[i]) != 0) {
			walk_strip(w);
			return -1;
		}
		strip(w->nodes[i]);
	}
	return 0;
}

int mt_backward_seed(mt_tensor *loss, float seed)
{
	struct walk w = {0};
	int status;

	if (!loss || !loss->node) {
		if (loss)
			mti_fail("backward: the tensor has no graph");
		return -1;
	}
	status = walk_collect(&w, loss->node);
	if (status == 0)
		status = run_all(&w, loss, seed);
	walk_release(&w);
	return status;
}

int mt_backward(mt_tensor *loss)
{
	return mt_backward_seed(loss, 1.0F);
}

void mt_discard_graph(mt_tensor *tensor)
{
	struct walk w = {0};

	if (!tensor || !tensor->node)
		return;
	/* Short of memory, a part of the walk is stripped, which is enough to
	 * let go of the rest. */
	walk_collect(&w, tensor->node);
	walk_strip(&w);
	walk_release(&w);
}
