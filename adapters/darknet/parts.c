/* SPDX-License-Identifier: Apache-2.0 */
#include "adapter.h"

#include <stddef.h>

/* Kinds of layers that are trained. `inside`: the layers that a recurrent one is made of; none: it is one itself. */
#define INSIDE(member) { #member, offsetof(layer, member) }
static const struct kind {
    LAYER_TYPE type;
    const char *name;
    struct {
        const char *name;
        size_t offset;
    } inside[9];
} kinds[] = {
    { CONVOLUTIONAL, "convolutional", { { 0 } } },
    { DECONVOLUTIONAL, "deconvolutional", { { 0 } } },
    { CONNECTED, "connected", { { 0 } } },
    { LOCAL, "local", { { 0 } } },
    { RNN, "rnn", { INSIDE(input_layer), INSIDE(self_layer), INSIDE(output_layer) } },
    { CRNN, "crnn", { INSIDE(input_layer), INSIDE(self_layer), INSIDE(output_layer) } },
    { GRU, "gru", { INSIDE(wz), INSIDE(wr), INSIDE(wh), INSIDE(uz), INSIDE(ur), INSIDE(uh) } },
    { LSTM, "lstm",
      { INSIDE(wf), INSIDE(wi), INSIDE(wg), INSIDE(wo), INSIDE(uf), INSIDE(ui), INSIDE(ug), INSIDE(uo) } },
};

static const struct kind *kind_of(const layer *l, int index) {
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        if (kinds[k].type == l->type) return &kinds[k];
    stop("layer %d is of a kind (%d) that is trained and that this library does not know. Without AMP_LEVEL the "
         "program runs as ever", index, (int)l->type);
}

/* As darknet's own update functions count them. */
static void count(struct part *p) {
    const layer *l = p->l;
    p->weights = l->weights;
    p->n_biases = l->type == CONVOLUTIONAL || l->type == DECONVOLUTIONAL ? l->n : l->outputs;
    p->n_weights = l->type == CONNECTED ? l->inputs * l->outputs
        : l->type == LOCAL              ? l->size * l->size * l->c * l->n * l->out_w * l->out_h
                                        : l->nweights;
}

static int add(struct part *p, layer *l, int index, const char *kind, const char *inside) {
    p->l = l;
    snprintf(p->name, sizeof p->name, "%d.%s%s%s", index, kind, inside ? "." : "", inside ? inside : "");
    snprintf(p->backward_name, sizeof p->backward_name, "%s.backward", p->name);
    count(p);
    return 1;
}

static int add_layer(struct part *parts, layer *l, int index) {
    const struct kind *kind = kind_of(l, index);
    int n = 0;
    if (!kind->inside[0].name) return add(parts, l, index, kind->name, NULL);
    for (; kind->inside[n].name; n++) {
        layer *inner = *(layer **)(void *)((char *)l + kind->inside[n].offset);
        add(&parts[n], inner, index, kind->name, kind->inside[n].name);
    }
    return n;
}

struct part *parts_of(layer *layers, int n_layers, int *n) {
    const size_t most = sizeof kinds->inside / sizeof *kinds->inside;
    struct part *parts = calloc((size_t)n_layers * most + 1, sizeof *parts);
    if (!parts) stop("out of memory");
    *n = 0;
    for (int i = 0; i < n_layers; i++)
        if (layers[i].update) *n += add_layer(parts + *n, &layers[i], i);
    return parts;
}
