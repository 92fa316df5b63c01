/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A user's program: trains a network of darknet's on the digits, and knows nothing of libamp.
 *
 *     digits CFG CSV STEPS SEED [LOAD|- [SAVE]]
 *
 * Prints the last loss, how many of the test's images it knows, and a sum over the bits of all weights.
 */
#include <darknet.h>

enum { SIDE = 8, PIXELS = SIDE * SIDE, CLASSES = 10, TRAIN = 1200, TEST = 576 };

static float images[TRAIN + TEST][PIXELS], truths[TRAIN + TEST][CLASSES];

static void read_digits(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) error(path);
    for (int i = 0, value; i < TRAIN + TEST; i++) {
        for (int j = 0; j < PIXELS; j++) {
            if (fscanf(file, "%d,", &value) != 1) error("not the digits");
            images[i][j] = (float)value / 16;
        }
        if (fscanf(file, "%d", &value) != 1 || value < 0 || value >= CLASSES) error("not the digits");
        truths[i][value] = 1;
    }
    fclose(file);
}

/* Image `from` as the network's image `to`, enlarged to what it wants. */
static void show(const network *net, float *input, int to, size_t from) {
    for (int i = 0; i < net->inputs; i++)
        input[to * net->inputs + i] = images[from][i / net->w * SIDE / net->h * SIDE + i % net->w * SIDE / net->w];
}

static float train(network *net, int steps) {
    float loss = 0;
    for (int step = 0; step < steps; step++) {
        for (int j = 0; j < net->batch; j++) {
            const size_t from = (*net->seen + (size_t)j) * 7 % TRAIN; /* all of them, and on from there when resumed */
            show(net, net->input, j, from);
            memcpy(net->truth + j * CLASSES, truths[from], sizeof truths[from]);
        }
        loss = train_network_datum(net);
    }
    return loss / (float)net->batch;
}

static int test(network *net) {
    int known = 0;
    float *input = calloc((size_t)(net->inputs * net->batch), sizeof *input);
    for (int i = TRAIN; i < TRAIN + TEST; i += net->batch) {
        for (int j = 0; j < net->batch; j++) show(net, input, j, (size_t)(i + j));
        float *scores = network_predict(net, input);
        for (int j = 0; j < net->batch; j++) known += truths[i + j][max_index(scores + j * CLASSES, CLASSES)] > 0;
    }
    free(input);
    return known;
}

static unsigned long sum_bits(unsigned long sum, const float *values, int n) {
    for (int i = 0; i < n; i++) {
        unsigned bits;
        memcpy(&bits, &values[i], sizeof bits);
        sum = sum * 31 + bits;
    }
    return sum;
}

static unsigned long sum_weights(const network *net) {
    unsigned long sum = 0;
    for (int i = 0; i < net->n; i++) {
        const layer *l = &net->layers[i];
        if (l->type == CONVOLUTIONAL) sum = sum_bits(sum_bits(sum, l->weights, l->nweights), l->biases, l->n);
        if (l->type == CONNECTED) sum = sum_bits(sum, l->weights, l->inputs * l->outputs);
    }
    return sum;
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    read_digits(argv[2]);
    srand((unsigned)atoi(argv[4]));
    network *net = parse_network_cfg(argv[1]);
    if (argc > 5 && strcmp(argv[5], "-") != 0) load_weights(net, argv[5]);
    const float loss = train(net, atoi(argv[3]));
    if (argc > 6) save_weights(net, argv[6]);
    const int known = test(net);
    printf("loss %.6f known %d of %d weights %016lx\n", (double)loss, known, TEST, sum_weights(net));
    free_network(net);
    return 0;
}
