/* SPDX-License-Identifier: Apache-2.0 */
/* What nodes keep of their inputs for backward: the tensors, or what a saver
 * made of them. */
#include "internal.h"

#include <string.h>

static mt_saver saver;
static int has_saver;

void mt_set_saver(const mt_saver *given)
{
	has_saver = given != NULL;
	if (given)
		saver = *given;
}

/* An operator's result, but not a leaf in another type: a weight that was
 * cast is still a weight. */
static int is_made(const mt_tensor *tensor)
{
	const mt_node *node = tensor->node;

	while (node && strcmp(node->rec.name, "cast") == 0)
		node = node->edges[0].node;
	return node != NULL;
}

int mti_save(mt_node *node, int i, mt_tensor *tensor)
{
	struct mti_saved *s = &node->saved[i];

	node->rec.saved[i] = NULL;
	if (!tensor)
		return 0;
	s->version = tensor->version;
	s->dtype = tensor->dtype;
	if (has_saver && !node->rec.is_exact &&
	    mt_dtype_is_float(tensor->dtype) && is_made(tensor)) {
		s->by = saver;
		if (saver.pack(saver.user, tensor, &s->packed) != 0)
			return -1;
		if (s->packed)
			return 0;
	}
	node->rec.saved[i] = mt_retain(tensor);
	return 0;
}

int mti_restore_saved(mt_node *node)
{
	for (int i = 0; i < MTI_SAVED; i++) {
		struct mti_saved *s = &node->saved[i];
		const mt_tensor *tensor = node->rec.saved[i];

		if (s->packed) {
			node->rec.saved[i] = s->by.unpack(s->by.user,
			                                  s->packed);
			if (!node->rec.saved[i])
				return -1;
		} else if (tensor && (tensor->version != s->version ||
		                      tensor->dtype != s->dtype)) {
			mti_fail("%s: a tensor that backward needs was "
			         "changed in place",
			         node->rec.name);
			return -1;
		}
	}
	return 0;
}

void mti_drop_saved(mt_node *node)
{
	for (int i = 0; i < MTI_SAVED; i++) {
		struct mti_saved *s = &node->saved[i];

		mt_release(node->rec.saved[i]);
		node->rec.saved[i] = NULL;
		if (s->packed)
			s->by.drop(s->by.user, s->packed);
		s->packed = NULL;
	}
}
