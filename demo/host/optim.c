/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizers.  All arithmetic is in float and the state is f32; parameters
 * and gradients of 16 bits are converted on the way in and rounded on the
 * way out.
 */
#include "device.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS, RATES, WORDS = 3 }; /* in `there` */

/* Updates n numbers of a parameter p with gradient g; a and b are its two
 * slots of state (NULL where the optimizer has none). */
typedef void (*update_fn)(const mt_optimizer *opt, int steps, size_t n,
                          float *p, const float *g, float *a, float *b);

/* ---- state -------------------------------------------------------------- */

static struct mt_opt_state *find_state(const mt_optimizer *opt, uint64_t id)
{
	for (size_t i = 0; i < opt->n_states; i++)
		if (opt->states[i].id == id)
			return &opt->states[i];
	return NULL;
}

static mt_storage *new_slot(mt_device device, size_t n)
{
	mt_storage *s = mt_storage_new_on(device, n * sizeof(float),
	                                  MT_MEM_OPTIMIZER);

	if (s && device == MT_CPU)
		memset(s->data, 0, s->bytes);
	else if (s && mti_device()->zero(s->data, s->bytes) != 0)
		mti_device_fail();
	return s;
}

static void free_state(const struct mt_opt_state *state)
{
	mt_storage_free(state->slot[0]);
	mt_storage_free(state->slot[1]);
	mt_storage_free(state->there);
}

static struct mt_opt_state *new_state(mt_optimizer *opt,
                                      const mt_tensor *param, int slots)
{
	const mt_device device = param->storage->device;
	struct mt_opt_state fresh = {.id = param->id};
	int whole = 1;
	struct mt_opt_state *grown = realloc(
		opt->states, (opt->n_states + 1) * sizeof(*opt->states));

	if (!grown) {
		mti_fail("out of memory: optimizer state");
		return NULL;
	}
	opt->states = grown;
	for (int i = 0; i < slots; i++) {
		fresh.slot[i] = new_slot(device, mt_numel(param));
		whole = whole && fresh.slot[i];
	}
	if (device != MT_CPU) {
		fresh.there = new_slot(device, WORDS);
		whole = whole && fresh.there;
	}
	if (!whole) {
		free_state(&fresh);
		return NULL;
	}
	grown[opt->n_states] = fresh;
	return &grown[opt->n_states++];
}

const float *mt_optimizer_state(const mt_optimizer *opt,
                                const mt_tensor *param, int slot)
{
	const struct mt_opt_state *s = find_state(opt, param->id);

	return s && s->slot[slot] ? s->slot[slot]->data : NULL;
}

/* ---- stepping ----------------------------------------------------------- */

/* The same on a device, which may find that it is not to be done. */
static void update_there(const mt_optimizer *opt, mt_tensor *param,
                         const struct mt_opt_state *state)
{
	mt_storage *const *slot = state->slot;
	const struct mtk_update args = {
		.param = mti_ref(param),
		.grad = mti_ref(param->grad),
		.a = slot[0] ? slot[0]->data : NULL,
		.b = slot[1] ? slot[1]->data : NULL,
		.count = (int32_t *)state->there->data + STEPS,
		.rates = (float *)state->there->data + RATES,
		.found_inf = opt->found_inf,
		.lr = opt->lr,
		.weight_decay = opt->weight_decay,
		.momentum = opt->momentum,
		.beta1 = opt->beta1,
		.beta2 = opt->beta2,
		.eps = opt->eps};

	if (slot[1])
		mti_run(MTK_adam_begin, &args, 1);
	mti_run(slot[1] ? MTK_adam : MTK_sgd, &args, mt_numel(param));
	param->version++;
}

static void update_param(const mt_optimizer *opt, mt_tensor *param,
                         struct mt_opt_state *state, update_fn update)
{
	float bp[MTI_TILE], bg[MTI_TILE];
	float *a = state->slot[0] ? state->slot[0]->data : NULL;
	float *b = state->slot[1] ? state->slot[1]->data : NULL;
	size_t total = mt_numel(param);

	state->steps++;
	for (size_t at = 0; at < total; at += MTI_TILE) {
		size_t n = mti_min(total - at, MTI_TILE);
		float *p = mti_begin(param, at, bp);

		mti_read(param, at, n, bp);
		update(opt, state->steps, n, p,
		       mti_read(param->grad, at, n, bg), a ? a + at : NULL,
		       b ? b + at : NULL);
		mti_end(param, at, n, p);
	}
	param->version++;
}

static int step(mt_optimizer *opt, int slots, update_fn update)
{
	int there = opt->n && mti_there(opt->params[0]);

	if (!there && opt->found_inf && *opt->found_inf != 0.0F)
		return opt->steps;
	for (size_t i = 0; i < opt->n; i++) {
		mt_tensor *param = opt->params[i];
		struct mt_opt_state *state;

		if (!param->grad)
			continue;
		if (!mt_same_shape(param, param->grad)) {
			mti_fail("step: parameter %zu and its gradient differ "
			         "in shape",
			         i);
			return -1;
		}
		state = find_state(opt, param->id);
		if (!state)
			state = new_state(opt, param, slots);
		if (!state)
			return -1;
		if (mti_there(param))
			update_there(opt, param, state);
		else
			update_param(opt, param, state, update);
	}
	if (there && mti_device_failed())
		return -1;
	return ++opt->steps;
}

static void sgd_update(const mt_optimizer *opt, int steps, size_t n, float *p,
                       const float *g, float *a, float *b)
{
	(void)steps;
	(void)b;
	for (size_t i = 0; i < n; i++) {
		float d = g[i] + opt->weight_decay * p[i];

		if (a)
			d = a[i] = opt->momentum * a[i] + d;
		p[i] -= opt->lr * d;
	}
}

static int sgd_step(mt_optimizer *self)
{
	return step(self, self->momentum != 0.0F, sgd_update);
}

static void adam_update(const mt_optimizer *opt, int steps, size_t n, float *p,
                        const float *g, float *a, float *b)
{
	double correct1 = 1.0 - pow((double)opt->beta1, steps);
	double correct2 = 1.0 - pow((double)opt->beta2, steps);
	float size = (float)((double)opt->lr / correct1);
	float root = (float)(1.0 / sqrt(correct2));

	for (size_t i = 0; i < n; i++) {
		float d = g[i] + opt->weight_decay * p[i];

		a[i] = opt->beta1 * a[i] + (1.0F - opt->beta1) * d;
		b[i] = opt->beta2 * b[i] + (1.0F - opt->beta2) * d * d;
		p[i] -= size * a[i] / (sqrtf(b[i]) * root + opt->eps);
	}
}

static int adam_step(mt_optimizer *self)
{
	return step(self, 2, adam_update);
}

static void zero_grad(mt_optimizer *self)
{
	for (size_t i = 0; i < self->n; i++)
		mt_set_grad(self->params[i], NULL);
}

/* ---- construction ------------------------------------------------------- */

int mt_optimizer_add_params(mt_optimizer *opt, mt_tensor **params, size_t n)
{
	mt_tensor **grown = realloc(opt->params,
	                            (opt->n + n + 1) * sizeof(mt_tensor *));

	if (!grown) {
		mti_fail("out of memory: optimizer parameters");
		return -1;
	}
	opt->params = grown;
	for (size_t i = 0; i < n; i++)
		opt->params[opt->n++] = mt_retain(params[i]);
	return 0;
}

/* Takes the settings from `like`. */
static mt_optimizer *new_optimizer(const mt_optimizer *like,
                                   mt_tensor **params, size_t n)
{
	mt_optimizer *opt = malloc(sizeof(*opt));

	if (!opt) {
		mti_fail("out of memory: optimizer");
		return NULL;
	}
	*opt = *like;
	opt->zero_grad = zero_grad;
	if (mt_optimizer_add_params(opt, params, n) != 0) {
		free(opt);
		return NULL;
	}
	return opt;
}

mt_optimizer *mt_sgd_new(mt_tensor **params, size_t n, float lr,
                         float momentum, float weight_decay)
{
	mt_optimizer like = {.lr = lr,
	                     .momentum = momentum,
	                     .weight_decay = weight_decay,
	                     .step = sgd_step};

	return new_optimizer(&like, params, n);
}

mt_optimizer *mt_adam_new(mt_tensor **params, size_t n, float lr, float beta1,
                          float beta2, float eps, float weight_decay)
{
	mt_optimizer like = {.lr = lr,
	                     .beta1 = beta1,
	                     .beta2 = beta2,
	                     .eps = eps,
	                     .weight_decay = weight_decay,
	                     .step = adam_step};

	return new_optimizer(&like, params, n);
}

void mt_optimizer_free(mt_optimizer *opt)
{
	if (!opt)
		return;
	for (size_t i = 0; i < opt->n; i++)
		mt_release(opt->params[i]);
	for (size_t i = 0; i < opt->n_states; i++)
		free_state(&opt->states[i]);
	free(opt->params);
	free(opt->states);
	free(opt);
}
