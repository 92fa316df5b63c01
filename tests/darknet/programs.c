/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What programs do with darknet's networks beside training one: programs CFG WHAT. They know nothing of libamp.
 *
 *     train      trains five steps, and prints a sum of the bits of the first weights, as the others do
 *     several    two networks take turns, on one thread; then each on a thread of its own. Prints a sum of each
 *     shared     two threads train one network at the same time
 *     replaced   weights are exchanged between two passes
 *     columns    im2col and col2im of many shapes: prints a sum of their bits
 *     by_hand    the program writes the gradient of the last layer itself, and collects that of the input
 */
#include <darknet.h>

static network *make(const char *cfg, unsigned seed) {
    srand(seed);
    network *net = parse_network_cfg((char *)cfg);
    for (int i = 0; i < net->inputs * net->batch; i++) net->input[i] = rand_uniform(0, 1);
    const LAYER_TYPE loss = net->layers[net->n - 1].type;
    for (int i = 0; i < net->batch; i++) {
        const float box[] = { 0.4f, 0.6f, 0.3f, 0.5f, 1 }; /* x, y, width, height, class */
        float *truth = net->truth + i * net->truths;
        if (loss == YOLO) memcpy(truth, box, sizeof box);
        else truth[i % net->truths] = 1;
    }
    return net;
}

static void *train(void *net) {
    for (int i = 0; i < 5; i++) train_network_datum(net);
    return NULL;
}

static void print_bits(const float *values, int n) {
    unsigned long sum = 0;
    for (int i = 0; i < n; i++) {
        unsigned bits;
        memcpy(&bits, &values[i], sizeof bits);
        sum = sum * 31 + bits;
    }
    printf("%016lx\n", sum);
}

static void print_sum(const network *net) { print_bits(net->layers[0].weights, net->layers[0].nweights); }

static void once(const char *cfg) {
    network *net = make(cfg, 1);
    train(net);
    print_sum(net);
    free_network(net);
}

static void several(const char *cfg) {
    network *nets[2] = { make(cfg, 1), make(cfg, 2) };
    pthread_t threads[2];
    for (int i = 0; i < 10; i++) train_network_datum(nets[i % 2]);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, train, nets[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < 2; i++) print_sum(nets[i]), free_network(nets[i]);
}

static void *train_long(void *net) {
    for (int i = 0; i < 2000; i++) train_network_datum(net);
    return NULL;
}

static void shared(const char *cfg) {
    network *net = make(cfg, 1);
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, train_long, net);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}

static void replaced(const char *cfg) {
    network *net = make(cfg, 1);
    layer *l = &net->layers[0];
    train_network_datum(net);
    const size_t n = (size_t)l->nweights;
    l->weights = memcpy(calloc(n, sizeof *l->weights), l->weights, n * sizeof *l->weights);
    train_network_datum(net);
}

static void by_hand(const char *cfg) {
    network *net = make(cfg, 1);
    layer *last = &net->layers[net->n - 2]; /* before the loss, which has no truth to start from */
    float *truth = net->truth;
    net->delta = calloc((size_t)(net->inputs * net->batch), sizeof *net->delta);
    net->truth = NULL;
    net->train = 1;
    forward_network(net);
    for (int i = 0; i < last->outputs * last->batch; i++) last->delta[i] = truth[i] - last->output[i];
    backward_network(net);
    update_network(net);
    print_sum(net);
    printf("%.9g %.9g\n", (double)net->delta[0], (double)last->delta[0]);
}

/* darknet's own header has neither. */
typedef void columns_fn(float *from, int channels, int height, int width, int ksize, int stride, int pad, float *to);
columns_fn im2col_cpu, col2im_cpu;

static void columns_of(int height, int width, int ksize, int stride, int pad) {
    enum { CHANNELS = 3, MOST = 40000 };
    static float image[MOST], columns[MOST];
    const int rows = (height + 2 * pad - ksize) / stride + 1, n = (width + 2 * pad - ksize) / stride + 1;
    for (int i = 0; i < MOST; i++) image[i] = rand_uniform(-1, 1), columns[i] = 0;
    im2col_cpu(image, CHANNELS, height, width, ksize, stride, pad, columns);
    print_bits(columns, CHANNELS * ksize * ksize * rows * n);
    col2im_cpu(columns, CHANNELS, height, width, ksize, stride, pad, image);
    print_bits(image, CHANNELS * height * width);
}

static void columns(const char *cfg) {
    (void)cfg;
    srand(1);
    for (int ksize = 1; ksize <= 7; ksize++)
        for (int stride = 1; stride <= 4; stride++)
            for (int pad = 0; pad <= ksize; pad++) /* beyond the kernel's half, too */
                columns_of(7, 9, ksize, stride, pad), columns_of(10, 7, ksize, stride, pad);
    columns_of(1, 1, 7, 1, 3); /* an image smaller than the kernel */
    columns_of(1, 3, 5, 2, 4);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(const char *cfg);
    } programs[] = { { "train", once }, { "several", several }, { "shared", shared }, { "replaced", replaced },
                     { "columns", columns }, { "by_hand", by_hand } };
    for (size_t i = 0; argc == 3 && i < sizeof programs / sizeof *programs; i++)
        if (!strcmp(programs[i].name, argv[2])) return programs[i].run(argv[1]), 0;
    return 2;
}
