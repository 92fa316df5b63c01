/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What several ranks cost: a backward of linear layers alone, with its gradients averaged behind it, and while it goes
 * on; parameters gathered from sharded optimizers; a decision. In turns, a step each; the slowest rank's time; medians.
 *
 *     mpirun -n 2 ranks WIDTH ROUNDS [WORK]     rank 0 prints a line for each work: name, milliseconds, ratio to the
 * first, bytes that theory has a rank send
 *
 * With a WORK, a number from 0 on, that one alone is done, after one round of all: run.py counts its bytes so.
 */
#include <amp_mpi.h>
#include <amp_raw.h>

#include <stdbool.h>

enum { LAYERS = 16, BATCH = 256, WORKS = 9, MOST_ROUNDS = 1001 };

static int width;      /* of the layers */
static size_t weights; /* of a layer */

struct bench {
    float *weights, *grads, *activations;
    amp_buffer params[LAYERS], gradients[LAYERS];
    void *handles[LAYERS];
    amp_param described[LAYERS];
    amp_mpi *mpi;
    amp_mpi_average *averages[3]; /* on the wire: fp32, fp16, bf16 */
    amp_mpi_shard *shard;
};

static void must(amp_status status, const char *words) {
    if (status == AMP_OK) return;
    fprintf(stderr, "%s: %s\n", amp_status_name(status), words);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* ---- the work ---- */

/* dw = dy^T x and dx = dy w, in FP32. */
static void layer_backward(const struct bench *bench, int layer) {
    amp_matmul_args g = AMP_MATMUL_ARGS_INIT;
    float *dy = bench->activations, *x = dy + BATCH * width, *dx = x + BATCH * width;
    g.a_dtype = g.b_dtype = g.c_dtype = g.d_dtype = AMP_FLOAT32;
    g.transpose_a = 1, g.m = width, g.n = width, g.k = BATCH, g.alpha = 1.0f;
    g.a = dy, g.b = x, g.d = bench->grads + (size_t)layer * weights;
    must(amp_matmul(&g), amp_last_error());
    g.transpose_a = 0, g.m = BATCH, g.k = width;
    g.b = bench->weights + (size_t)layer * weights, g.d = dx;
    must(amp_matmul(&g), amp_last_error());
}

static void backward(struct bench *bench, amp_mpi_average *average, bool announce) {
    if (average) must(amp_mpi_average_begin(average), amp_mpi_error(bench->mpi));
    for (int layer = LAYERS; layer--;) {
        layer_backward(bench, layer);
        if (announce) must(amp_mpi_ready(average, bench->handles[layer]), amp_mpi_error(bench->mpi));
    }
    if (average) must(amp_mpi_average_finish(average), amp_mpi_error(bench->mpi));
}

static void work(struct bench *bench, int which) {
    double decision = 0.0;
    if (which < 7) backward(bench, which ? bench->averages[(which - 1) / 2] : NULL, which && which % 2 == 0);
    else if (which == 7) must(amp_mpi_shard_gather(bench->shard, NULL), amp_mpi_error(bench->mpi));
    else must(amp_mpi_reduce(bench->mpi, AMP_REDUCE_MAX, &decision, 1), amp_mpi_error(bench->mpi));
}

static const char *const names[WORKS] = {
    "backward alone",           "averaged behind it, fp32",  "while it goes on, fp32",
    "averaged behind it, fp16", "while it goes on, fp16",    "averaged behind it, bf16",
    "while it goes on, bf16",   "parameters gathered, fp32", "a decision (reduce)",
};

/* ---- measuring ---- */

static double once(struct bench *bench, int which) {
    MPI_Barrier(MPI_COMM_WORLD);
    double seconds = MPI_Wtime();
    work(bench, which);
    seconds = MPI_Wtime() - seconds;
    MPI_Allreduce(MPI_IN_PLACE, &seconds, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return seconds;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, by_size);
    return values[n / 2];
}

/* What a ring's allreduce, or a broadcast along a chain, sends a rank, in bytes; the decision is a number of 8. */
static double expected(int which, int ranks) {
    const double all = (double)LAYERS * (double)weights * (which < 3 || which == 7 ? 4.0 : 2.0),
                 share = (ranks - 1.0) / ranks;
    return which == 0 ? 0.0 : which == 8 ? 16.0 * share : which == 7 ? all * share : 2.0 * all * share;
}

static void measure(struct bench *bench, int rounds) {
    static double seconds[WORKS][MOST_ROUNDS], ratios[WORKS][MOST_ROUNDS];
    for (int round = 0; round < rounds; round++)
        for (int which = 0; which < WORKS; which++) {
            seconds[which][round] = once(bench, which);
            ratios[which][round] = seconds[which][round] / seconds[0][round];
        }
    for (int which = 0; which < WORKS && bench->mpi->rank == 0; which++)
        printf("%s\t%.3f\t%.3f\t%.0f\n", names[which], 1e3 * median(seconds[which], rounds),
               median(ratios[which], rounds), expected(which, bench->mpi->size));
}

static void begin(struct bench *bench) {
    static const amp_dtype wires[3] = { AMP_FLOAT32, AMP_FLOAT16, AMP_BFLOAT16 };
    amp_model model = AMP_MODEL_INIT;
    bench->weights = calloc(LAYERS * weights, sizeof(float));
    bench->grads = calloc(LAYERS * weights, sizeof(float));
    bench->activations = calloc((size_t)(3 * BATCH * width), sizeof(float));
    if (!bench->weights || !bench->grads || !bench->activations) must(AMP_ERR_NO_MEMORY, "bench");
    for (size_t i = 0; i < (size_t)(3 * BATCH * width); i++) bench->activations[i] = (float)(i % 61) / 64.0f;
    for (int i = 0; i < LAYERS; i++) {
        bench->gradients[i] = (amp_buffer)AMP_BUFFER_INIT;
        bench->gradients[i].data = bench->grads + (size_t)i * weights, bench->gradients[i].size = (int64_t)weights;
        bench->params[i] = bench->gradients[i];
        bench->params[i].data = bench->weights + (size_t)i * weights, bench->params[i].grad = &bench->gradients[i];
        bench->handles[i] = &bench->params[i];
        bench->described[i] = (amp_param)AMP_PARAM_INIT;
        bench->described[i].tensor = &bench->params[i];
    }
    model.host = amp_buffer_host(), model.params = bench->described, model.n_params = LAYERS;
    must(amp_mpi_open(MPI_COMM_WORLD, &model, &bench->mpi), amp_mpi_error(NULL));
    for (int i = 0; i < 3; i++) {
        amp_mpi_average_options options = AMP_MPI_AVERAGE_OPTIONS_INIT;
        options.wire = wires[i], options.bucket_bytes = weights * 4;
        must(amp_mpi_average_open(bench->mpi, bench->handles, LAYERS, &options, &bench->averages[i]),
             amp_mpi_error(bench->mpi));
    }
    must(amp_mpi_shard_open(bench->mpi, bench->handles, LAYERS, &bench->shard), amp_mpi_error(bench->mpi));
}

int main(int argc, char **argv) {
    static struct bench bench;
    MPI_Init(&argc, &argv);
    const int given = argc > 2 ? atoi(argv[2]) : 0, rounds = given > MOST_ROUNDS ? MOST_ROUNDS : given;
    width = argc > 2 ? atoi(argv[1]) : 0;
    weights = (size_t)width * (size_t)width;
    if (width < 1 || width > 4096) must(AMP_ERR_INVALID_ARGUMENT, "usage: mpirun -n RANKS ranks WIDTH ROUNDS [WORK]");
    begin(&bench);
    for (int which = 0; which < WORKS; which++) once(&bench, which); /* a first call of each */
    if (argc == 4)
        for (int round = 0; round < rounds; round++) once(&bench, atoi(argv[3]) % WORKS);
    else measure(&bench, rounds);
    for (int i = 0; i < 3; i++) amp_mpi_average_close(bench.averages[i]);
    amp_mpi_shard_close(bench.shard);
    amp_mpi_close(bench.mpi);
    free(bench.weights);
    free(bench.grads);
    free(bench.activations);
    MPI_Finalize();
    return 0;
}
