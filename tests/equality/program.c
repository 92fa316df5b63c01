/* SPDX-License-Identifier: Apache-2.0 */
#include "program.h"

#include <check.h>
#include <string.h>

#define TRY(expression)                                                                                                \
    do {                                                                                                               \
        const amp_status try_status = (expression);                                                                    \
        if (try_status != AMP_OK) return try_status;                                                                   \
    } while (0)

/* ---- the host's program: model and optimizer ---- */

static struct tensor *net_forward(struct net *net, struct tensor *x) {
    struct tensor *const *p = net->params;
    struct tensor *h = host_linear(x, p[W], p[B]), *a = host_mul(h, p[S]);
    struct tensor *y = net->second ? host_linear(a, p[net->program->plan->options & TIED ? W : V], NULL) : NULL;
    struct tensor *z = host_mul(y ? y : a, p[G]), *zl = net->late ? host_mul(z, p[L]) : NULL;
    struct tensor *const unneeded[] = { h, a, y, zl ? z : NULL };
    for (int i = 0; i < 4; i++) tensor_release(unneeded[i]);
    return zl ? zl : z;
}

static struct tensor *vector(struct host *host, int64_t n) { return tensor_new(host, AMP_FLOAT32, 1, &n, false); }

/* sum(z c), and the sum of a product without elements. */
static struct tensor *net_loss(struct net *net, struct tensor *z, int loss) {
    struct host *host = z->host;
    struct tensor *c = vector(host, SIDE), *nothing = vector(host, 0);
    for (int i = 0; i < SIDE; i++) tensor_set(c, i, loss_weight(loss, i));
    struct tensor *weighed = host_mul(z, c), *first = host_sum(weighed);
    struct tensor *product = host_mul(net->params[Z], nothing), *zero = host_sum(product);
    struct tensor *out = host_add(first, zero);
    struct tensor *const unneeded[] = { c, nothing, weighed, first, product, zero };
    for (int i = 0; i < 6; i++) tensor_release(unneeded[i]);
    return out;
}

static int32_t net_step(struct group *group) {
    struct net *net = group->net;
    for (int k = 0; k < net->n_optimized[group->index]; k++) {
        const int p = net->indices[group->index][k];
        struct tensor *param = net->params[p];
        float values[MOST], grads[MOST];
        if (!param->grad) continue;
        for (int i = 0; i < sizes[p]; i++) {
            values[i] = tensor_get(param, i);
            grads[i] = tensor_get(param->grad, i);
        }
        optimize(net->program->adam, values, grads, &net->moments[p], sizes[p]);
        for (int i = 0; i < sizes[p]; i++) tensor_set(param, i, values[i]);
    }
    return 1;
}

/* ---- its descriptors ---- */

static struct tensor *new_param(struct program *program, int model, int param) {
    static const int64_t square[2] = { SIDE, SIDE };
    const int64_t n = sizes[param];
    const bool matrix = param == W || param == V, strided = (program->plan->options & STRIDED_PARAMS) != 0;
    struct tensor *tensor = tensor_new(&program->host, AMP_FLOAT32, matrix ? 2 : param == S ? 0 : 1,
                                       matrix ? square : &n, strided);
    for (int i = 0; i < sizes[param]; i++) tensor_set(tensor, i, first_value(model, param, i));
    tensor->leaf = tensor->requires_grad = true;
    if (program->host.fixed_grads)
        tensor->grad = tensor_new(&program->host, AMP_FLOAT32, tensor->ndim, tensor->shape,
                                  program->host.strided_grads);
    return tensor;
}

static amp_op op(const char *name, const char *schema, amp_fn *slot) {
    return (amp_op){ .struct_size = sizeof(amp_op), .name = name, .schema = schema, .slot = slot };
}

static void describe_ops(struct net *net) {
    amp_fn *table = net->program->host.table;
    net->ops[OP_LINEAR] = op("linear", "linear(Tensor x, Tensor w, Tensor? bias) -> Tensor", &table[OP_LINEAR]);
    net->ops[OP_MUL] = op("mul", "mul(Tensor a, Tensor b) -> Tensor", &table[OP_MUL]);
    net->ops[OP_SUM] = op("sum", "sum(Tensor x) -> Tensor", &table[OP_SUM]);
    net->ops[OP_ADD] = op("add", "add(Tensor a, Tensor b) -> Tensor", &table[OP_ADD]);
    net->forward = (amp_fn)net_forward;
    net->forward_op = op("forward", "forward(pointer self, Tensor x) -> Tensor", &net->forward);
}

static void describe_optimizer(struct net *net, int o) {
    const struct plan *plan = net->program->plan;
    net->groups[o] = (struct group){ net, o };
    for (int p = 0; p < N_PARAMS; p++) {
        if (optimizer_of(plan, p) != o || !trained(plan, p, 0)) continue;
        net->optimized[o][net->n_optimized[o]] = net->params[p];
        net->indices[o][net->n_optimized[o]++] = p;
    }
    net->step[o] = (amp_fn)net_step;
    net->step_ops[o] = op("step", "step(pointer self) -> int32", &net->step[o]);
    net->optimizers[o] = (amp_optimizer){ .struct_size = sizeof(amp_optimizer), .host = &net->program->host.hooks,
                                          .self = &net->groups[o], .params = net->optimized[o],
                                          .n_params = (size_t)net->n_optimized[o], .steps = &net->step_ops[o],
                                          .n_steps = 1 };
}

static void describe(struct net *net) {
    size_t n = 0;
    for (int p = 0; p < L; p++) /* L comes by amp_add_params */
        net->listed[n++] = (amp_param){ sizeof(amp_param), p == G ? AMP_MODULE_BATCH_NORM : AMP_MODULE_OTHER,
                                        net->params[p], param_names[p] };
    describe_ops(net);
    net->model = (amp_model){ .struct_size = sizeof(amp_model), .host = &net->program->host.hooks, .self = net,
                              .ops = net->ops, .n_ops = N_HOST_OPS, .params = net->listed, .n_params = n,
                              .forward = &net->forward_op };
    for (int o = 0; o < net->program->plan->optimizers; o++) describe_optimizer(net, o);
}

amp_status program_init(struct program *program, const amp_config *config, unsigned host_options) {
    amp_model *models[MOST_MODELS];
    amp_optimizer *optimizers[2 * MOST_MODELS];
    size_t n = 0;
    host_init(&program->host, host_options);
    for (int m = 0; m < program->plan->models; m++) {
        struct net *net = &program->nets[m];
        net->program = program;
        for (int p = 0; p < N_PARAMS; p++) net->params[p] = new_param(program, m, p);
        describe(net);
        models[m] = &net->model;
        for (int o = 0; o < program->plan->optimizers; o++) optimizers[n++] = &net->optimizers[o];
    }
    return amp_initialize_many(models, (size_t)program->plan->models, optimizers, n, config, &program->context);
}

void program_end(struct program *program) {
    host_drop_tape(&program->host);
    for (int m = 0; m < program->plan->models; m++)
        for (int p = 0; p < N_PARAMS; p++) tensor_release(program->nets[m].params[p]);
}

/* ---- one bracket ---- */

struct place { int model, step, loss, micro; };

static struct tensor *forward(struct net *net, const struct place *at) {
    struct program *program = net->program;
    const int batch = batch_of(program->plan, at->loss, at->micro);
    struct tensor *x = vector(&program->host, SIDE);
    for (int i = 0; i < SIDE; i++) tensor_set(x, i, input(at->step, at->model, batch, i));
    net->second = uses_second(program->plan, at->step, batch);
    net->late = trained(program->plan, L, at->step);
    for (int p = 0; p < N_PARAMS; p++)
        net->params[p]->requires_grad = !frozen(program->plan, p, at->step, at->loss);
    struct tensor *z = ((struct tensor * (*)(struct net *, struct tensor *)) net->forward)(net, x);
    tensor_release(x);
    if (!z) return NULL; /* an op was refused: amp_check knows */
    struct tensor *loss = net_loss(net, z, at->loss);
    tensor_release(z);
    return loss;
}

static uint32_t flags_of(const struct plan *plan, const struct place *at) {
    if (at->micro == plan->micro - 1) return 0;
    return (plan->options & DELAY ? AMP_DELAY_UNSCALE : 0u) |
        (plan->options & LATE_CHECK ? AMP_DELAY_OVERFLOW_CHECK : 0u);
}

/* spoil: an infinity among the gradients; then cancel: or so. */
static amp_status bracket(struct net *net, const struct place *at, bool spoil, bool cancel) {
    struct program *program = net->program;
    const struct plan *plan = program->plan;
    amp_optimizer *optimizers[2] = { &net->optimizers[0], &net->optimizers[1] };
    size_t n = (size_t)plan->optimizers;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    struct tensor *loss = forward(net, at);
    if (!loss) return amp_check(program->context);
    if (plan->options & LOSS_PER_OPTIM) {
        optimizers[0] = optimizers[at->loss];
        n = 1;
    }
    const uint32_t loss_id = plan->options & OWN_SCALERS ? (uint32_t)at->loss : 0;
    const amp_status status = amp_scale_loss_begin_many(program->context, optimizers, n, loss_id, flags_of(plan, at),
                                                        loss, &scaled);
    if (status == AMP_OK) host_backward(scaled.loss, amp_seed_factor(&scaled));
    else host_drop_tape(&program->host);
    tensor_release(loss);
    TRY(status);
    if (spoil) tensor_set(net->params[W]->grad, 1, INFINITY);
    return cancel ? amp_scale_loss_cancel(&scaled) : amp_scale_loss_end(&scaled);
}

static amp_status brackets(struct program *program, int step) {
    const struct plan *plan = program->plan;
    const bool cancels = (plan->options & CANCEL) != 0;
    for (int m = 0; m < plan->models; m++)
        for (int l = 0; l < plan->losses; l++)
            for (int k = 0; k < plan->micro; k++) {
                const struct place at = { m, step, l, k }, other = { m, step + 50, l, k };
                if (cancels) TRY(bracket(&program->nets[m], &other, true, true));
                TRY(bracket(&program->nets[m], &at, overflows(plan, step) && !m && !l && !k, false));
            }
    return AMP_OK;
}

/* ---- the run ---- */

static amp_status add_late(struct program *program) {
    for (int m = 0; m < program->plan->models; m++) {
        struct net *net = &program->nets[m];
        const amp_param param = { sizeof(amp_param), AMP_MODULE_OTHER, net->params[L], "L" };
        TRY(amp_add_params(&net->optimizers[0], &param, 1));
        net->indices[0][net->n_optimized[0]++] = L;
    }
    return AMP_OK;
}

static amp_status load(struct program *program) {
    for (int m = 0; m < program->plan->models; m++)
        for (int p = 0; p < N_PARAMS; p++)
            for (int i = 1; i < sizes[p]; i++) tensor_set(program->nets[m].params[p], i, loaded_value(m, p, i));
    return program->plan->options & NO_VERSION ? amp_masters_reconcile(program->context) : AMP_OK;
}

static amp_status clip_and_step(struct net *net, int o) {
    const unsigned options = net->program->plan->options;
    if (options & CLIP_NORM) TRY(amp_clip_grad_norm(&net->optimizers[o], MAX_NORM, NULL));
    if (options & CLIP_VALUE) TRY(amp_clip_grad_value(&net->optimizers[o], MAX_VALUE));
    ((int32_t(*)(struct group *))net->step[o])(&net->groups[o]);
    return AMP_OK;
}

amp_status program_step(struct program *program, int step) {
    const struct plan *plan = program->plan;
    if ((plan->options & LATE) && step == LATE_STEP) TRY(add_late(program));
    if ((plan->options & LOAD) && step == LOAD_STEP) TRY(load(program));
    TRY(brackets(program, step));
    for (int m = 0; m < plan->models; m++)
        for (int o = 0; o < plan->optimizers; o++) TRY(clip_and_step(&program->nets[m], o));
    for (int m = 0; m < plan->models; m++)
        for (int p = 0; p < N_PARAMS && zeroes(plan, step); p++) host_zero_grad(program->nets[m].params[p]);
    return amp_check(program->context);
}

float program_value(struct program *program, int model, int param, int i) {
    struct net *net = &program->nets[model];
    for (int o = 0; o < program->plan->optimizers && program->context; o++) {
        amp_master masters[N_PARAMS];
        size_t n = 0;
        memset(masters, 0, sizeof masters);
        for (int k = 0; k < N_PARAMS; k++) masters[k].struct_size = sizeof(amp_master);
        const amp_status status = amp_master_params(&net->optimizers[o], masters, N_PARAMS, &n);
        ck_assert_msg(status == AMP_OK, "%s", amp_last_error());
        for (size_t k = 0; k < n; k++)
            if (masters[k].param == net->params[param] && masters[k].is_master) return ((float *)masters[k].data)[i];
    }
    return tensor_get(net->params[param], i);
}
