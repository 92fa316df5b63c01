/* SPDX-License-Identifier: Apache-2.0 */
#include "problem_net.h"

#include <string.h>

enum { MEAN = N_PARAMS, VAR, N_TENSORS };

static mt_tensor *forward(struct net *net, mt_tensor *x) {
    const struct net_tensor *t = net->list;
    mt_tensor *y = net->ops->linear(x, t[W1].tensor, t[B1].tensor);
    y = mt_then(y, net->ops->batch_norm(y, t[GAMMA].tensor, t[BETA].tensor, t[MEAN].tensor, t[VAR].tensor, 1, 0.1f,
                                        EPSILON));
    y = mt_then(y, net->ops->relu(y));
    return mt_then(y, net->ops->linear(y, t[W2].tensor, t[B2].tensor));
}

void problem_net_init(struct net *net) {
    static const int shapes[N_TENSORS][2] = { [W1] = { HIDDEN, INPUTS },  [B1] = { HIDDEN },  [GAMMA] = { HIDDEN },
                                              [BETA] = { HIDDEN },        [MEAN] = { HIDDEN }, [VAR] = { HIDDEN },
                                              [W2] = { CLASSES, HIDDEN }, [B2] = { CLASSES } };
    float start[PARAM_FLOATS];
    memset(net, 0, sizeof *net);
    net->forward = forward;
    net->ops = mt_ops_default();
    problem_start(start);
    for (int i = 0; i < N_TENSORS; i++) {
        struct net_tensor *entry = &net->list[net->n_list++];
        const bool buffer = i >= N_PARAMS;
        entry->tensor = mt_tensor_new(MT_F32, shapes[i][1] ? 2 : 1, shapes[i], MT_MEM_PARAMETER);
        ck_tensor(entry->tensor);
        strcpy(entry->name, buffer ? i == MEAN ? "norm.mean" : "norm.var" : problem_params[i].name);
        entry->is_buffer = buffer;
        entry->is_norm = buffer || problem_params[i].batch_norm;
        entry->tensor->requires_grad = !buffer;
        if (buffer) mt_fill(entry->tensor, i == VAR);
        else mt_write(entry->tensor, start + problem_params[i].offset);
    }
}

mt_tensor *problem_net_batch(const float *x, const int32_t *labels, int step, mt_tensor **y) {
    const int at = step % BATCHES * BATCH;
    float numbers[BATCH];
    mt_tensor *images = mt_tensor_new(MT_F32, 2, (int[]){ BATCH, INPUTS }, MT_MEM_OTHER);
    *y = mt_tensor_new(MT_I32, 1, (int[]){ BATCH }, MT_MEM_OTHER);
    ck_tensor(images);
    ck_tensor(*y);
    for (int i = 0; i < BATCH; i++) numbers[i] = (float)labels[at + i];
    mt_write(images, x + at * INPUTS);
    mt_write(*y, numbers);
    return images;
}
