/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks with MPI: y = w * x + b, each rank with its own samples, at O2. docs/guide/several-machines.md explains it.
 *
 *     mpicc ranks.c $(pkg-config --cflags --libs libamp) -lm -o ranks && mpirun -n 2 ./ranks
 */
#include <amp_mpi.h>
#include <amp_raw.h>

#include <math.h>

enum { N = 8, SAMPLES = 16, STEPS = 60 };

static float w[N], b[1], dw[N], db[1];
static amp_buffer grads[2], params[2];
static amp_mpi *mpi;

static amp_status reduce(void *self, amp_reduction reduction, double *values, size_t n) {
    (void)self;
    return amp_mpi_reduce(mpi, reduction, values, n);
}

/* What is out of step ends every rank, with its words. */
static void must(amp_status status, const char *words) {
    if (status == AMP_OK) return;
    fprintf(stderr, "%s: %s\n", amp_status_name(status), words);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void describe(int i, const char *name, float *data, float *grad, int64_t size, amp_param *described) {
    grads[i] = params[i] = (amp_buffer)AMP_BUFFER_INIT;
    grads[i].data = grad, params[i].data = data, params[i].grad = &grads[i];
    grads[i].size = params[i].size = size;
    *described = (amp_param)AMP_PARAM_INIT;
    described->tensor = &params[i], described->name = name;
}

/* Gradients times `seed`, the last parameter's first: from then on it may travel. */
static void backward(int step, int rank, int size, float seed, amp_mpi_average *average) {
    float errors[SAMPLES], x[SAMPLES][N];
    for (int s = 0; s < SAMPLES; s++) {
        errors[s] = b[0] - 0.5f;
        for (int i = 0; i < N; i++) {
            x[s][i] = sinf((float)(((step * size + rank) * SAMPLES + s) * (i + 1)));
            errors[s] += (w[i] - 0.25f * (float)i) * x[s][i];
        }
        db[0] += seed * errors[s] / SAMPLES;
    }
    if (rank == 1 && step == 20) db[0] = INFINITY; /* an overflow, on one rank */
    must(amp_mpi_ready(average, &params[1]), amp_mpi_error(mpi));
    for (int s = 0; s < SAMPLES; s++)
        for (int i = 0; i < N; i++) dw[i] += seed * errors[s] * x[s][i] / SAMPLES;
    must(amp_mpi_ready(average, &params[0]), amp_mpi_error(mpi));
}

static int train_step(int step, amp_optimizer *optimizer, amp_mpi_average *average) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    memset(dw, 0, sizeof dw), memset(db, 0, sizeof db);
    must(amp_scale_loss_begin(optimizer, NULL, &scaled), amp_last_error());
    must(amp_mpi_average_begin(average), amp_mpi_error(mpi));
    backward(step, mpi->rank, mpi->size, amp_seed_factor(&scaled), average);
    must(amp_mpi_average_finish(average), amp_mpi_error(mpi));
    must(amp_scale_loss_end(&scaled), amp_last_error());
    must(amp_step_begin(optimizer, &info), amp_last_error());
    for (int i = 0; info.action == AMP_STEP && i < N; i++) w[i] -= 0.2f * dw[i];
    if (info.action == AMP_STEP) b[0] -= 0.2f * db[0];
    must(amp_step_end(optimizer), amp_last_error());
    return info.action == AMP_STEP;
}

int main(int argc, char **argv) {
    amp_host host = *amp_buffer_host();
    amp_param described[2];
    amp_model model = AMP_MODEL_INIT;
    amp_optimizer optimizer = AMP_OPTIMIZER_INIT, *optimizers = &optimizer;
    amp_model *models = &model;
    amp_config config = AMP_CONFIG_INIT;
    amp_mpi_average_options options = AMP_MPI_AVERAGE_OPTIONS_INIT;
    amp_mpi_average *average = NULL;
    void *handles[2] = { &params[0], &params[1] };
    int taken = 0;

    MPI_Init(&argc, &argv);
    describe(0, "weight", w, dw, N, &described[0]);
    describe(1, "bias", b, db, 1, &described[1]);
    host.reduce = reduce;
    model.host = optimizer.host = &host;
    model.params = described, model.n_params = 2;
    optimizer.params = handles, optimizer.n_params = 2;
    config.level = AMP_O2, config.emulate = AMP_ON; /* raw buffers: 16-bit values in FP32 storage */

    must(amp_mpi_open(MPI_COMM_WORLD, &model, &mpi), amp_mpi_error(NULL));
    amp_mpi_set_timeout(mpi, 600.0);
    for (int i = 0; i < N; i++) w[i] = (float)mpi->rank; /* each rank would begin elsewhere */
    must(amp_mpi_broadcast(mpi), amp_mpi_error(mpi));
    must(amp_initialize_many(&models, 1, &optimizers, 1, &config, NULL), amp_last_error());
    must(amp_mpi_check_settings(mpi, model.amp), amp_mpi_error(mpi));
    options.wire = AMP_BFLOAT16, options.bucket_bytes = 16;
    must(amp_mpi_average_open(mpi, handles, 2, &options, &average), amp_mpi_error(mpi));
    for (int step = 0; step < STEPS; step++) taken += train_step(step, &optimizer, average);
    must(amp_mpi_check_masters(mpi, &optimizer), amp_mpi_error(mpi));
    must(amp_shutdown(model.amp), amp_last_error());
    must(amp_mpi_check_equal(mpi), amp_mpi_error(mpi));
    if (mpi->rank == 0)
        printf("%d ranks: %d steps of %d, bias %.2f, weight %.2f to %.2f\n", mpi->size, taken, STEPS, (double)b[0],
               (double)w[0], (double)w[N - 1]);
    amp_mpi_average_close(average);
    amp_mpi_close(mpi);
    MPI_Finalize();
    return 0;
}
