/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train_mpi: the demo's network on the digits, on the ranks of an MPI job. Each rank takes its share of every batch of
 * 32, so that one rank and four train on the same images; all that is MPI's is amp_mpi.h's.
 *
 *     mpirun -n 4 train_mpi --level O2 --wire fp16 digits.csv.gz
 */
#include "adapter.h"
#include "digits.h"
#include "ranks_options.h"

#include <amp_diagnostics.h>
#include <amp_mpi.h>

#include <math.h>
#include <signal.h>

enum { BATCH = 32 };

struct training {
    struct ranks_options options;
    struct digits *data;
    struct digits_epoch epoch;
    struct net net;
    struct adapter adapter;
    mt_optimizer *optimizer;
    mt_tensor *trained[NET_TENSORS];
    amp_param described[NET_TENSORS];
    size_t n;
    amp_mpi *mpi;
    amp_mpi_average *average;
    amp_mpi_shard *shard; /* NULL: each rank updates all */
};

static struct training training;

/* Ranks are out of step, or cannot go on: all of them end, with the words of the one that found out. */
static void must(int good, const char *where, const char *words) {
    if (good) return;
    fprintf(stderr, "rank %d: %s: %s\n", training.mpi ? training.mpi->rank : -1, where, words);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void amp(amp_status status, const char *where) { must(status == AMP_OK, where, amp_last_error()); }
static void mpi(amp_status status, const char *where) { must(status == AMP_OK, where, amp_mpi_error(training.mpi)); }

static amp_status reduce(void *self, amp_reduction reduction, double *values, size_t n) {
    (void)self;
    return amp_mpi_reduce(training.mpi, reduction, values, n);
}

/* ---- before the first step ---- */

/* What ranks compare and send: what is trained. Running statistics are each rank's own, of the images that it sees. */
static void open_ranks(struct training *t) {
    amp_model trained = AMP_MODEL_INIT;
    for (int i = 0; i < t->net.n_list; i++) {
        if (t->net.list[i].is_buffer) continue;
        t->described[trained.n_params] = (amp_param)AMP_PARAM_INIT;
        t->described[trained.n_params].tensor = t->net.list[i].tensor;
        t->described[trained.n_params++].name = t->net.list[i].name;
    }
    trained.host = &t->adapter.host;
    trained.params = t->described;
    must(amp_mpi_open(MPI_COMM_WORLD, &trained, &t->mpi) == AMP_OK, "amp_mpi_open", amp_mpi_error(NULL));
    mpi(amp_mpi_set_timeout(t->mpi, t->options.timeout), "timeout");
    mpi(amp_mpi_broadcast(t->mpi), "start");
}

/* The host's optimizer has what libamp's describes: all, or this rank's part. */
static void make_optimizer(struct training *t) {
    size_t first = 0, count = t->n;
    amp_optimizer *described = &t->adapter.optimizer;
    if (t->options.sharded) {
        mpi(amp_mpi_shard_open(t->mpi, (void *const *)t->trained, t->n, &t->shard), "parts");
        first = t->shard->first, count = t->shard->count;
        described->flags |= AMP_OPTIMIZER_SHARDED;
    }
    must(mt_optimizer_add_params(t->optimizer, t->trained + first, count) == 0, "optimizer", mt_error());
    described->params = (void *const *)(t->trained + first);
    described->n_params = count;
}

static void begin(struct training *t) {
    amp_config config = AMP_CONFIG_INIT;
    amp_mpi_average_options options = AMP_MPI_AVERAGE_OPTIONS_INIT;
    amp_model *model = &t->adapter.model;
    amp_optimizer *optimizer = &t->adapter.optimizer;
    must(net_init(&t->net, mt_ops_default(), 1) == 0, "network", mt_error());
    t->n = net_params(&t->net, t->trained);
    t->optimizer = mt_sgd_new(t->trained, 0, 0.05F, 0.9F, 1e-4F);
    must(t->optimizer != NULL, "optimizer", mt_error());
    adapter_init(&t->adapter, &t->net, t->optimizer, NULL, NULL);
    t->adapter.host.reduce = reduce;
    open_ranks(t);
    make_optimizer(t);
    config.level = t->options.level;
    config.check_finite = AMP_ON; /* an overflow is skipped at the levels without a scale too */
    amp(amp_initialize_many(&model, 1, &optimizer, 1, &config, NULL), "amp_initialize_many");
    options.wire = t->options.wire;
    mpi(amp_mpi_average_open(t->mpi, (void *const *)t->trained, t->n, &options, &t->average), "average");
    if (t->options.load) mpi(amp_mpi_state_load(t->mpi, model->amp, t->options.load), "load");
    mpi(amp_mpi_check_settings(t->mpi, model->amp), "settings");
}

/* ---- a step ---- */

/* This rank's share of the batch. */
static mt_tensor *forward(struct training *t, int step) {
    const int share = BATCH / t->mpi->size, at = step % (DIGITS_TRAIN / BATCH) * BATCH + t->mpi->rank * share;
    mt_tensor *images, *labels;
    if (step % (DIGITS_TRAIN / BATCH) == 0) digits_epoch_start(&t->epoch, t->data, BATCH, (uint64_t)step);
    must(digits_batch(t->data, t->epoch.order + at, share, &images, &labels) == 0, "batch", mt_error());
    mt_tensor *scores = mt_then(images, t->net.forward(&t->net, images));
    mt_tensor *loss = mt_then(scores, net_loss(&t->net, scores, labels));
    mt_release(labels);
    must(loss != NULL, "forward", mt_error());
    return loss;
}

/* minitape does not tell when a gradient is done: finish sends all. */
static void backward(struct training *t, int step, mt_tensor *loss) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp(amp_scale_loss_begin(&t->adapter.optimizer, loss, &scaled), "amp_scale_loss_begin");
    mpi(amp_mpi_average_begin(t->average), "average");
    must(mt_backward(scaled.loss) == 0, "backward", mt_error());
    if (t->mpi->rank == t->mpi->size - 1 && step == t->options.overflow) mt_set(t->trained[0]->grad, 0, HUGE_VAL);
    mpi(amp_mpi_average_finish(t->average), "average");
    amp(amp_scale_loss_end(&scaled), "amp_scale_loss_end");
}

/* What another rank has updated counts as changed, so that its casts are made again. */
static void gather(struct training *t) {
    const size_t end = t->shard->first + t->shard->count;
    mpi(amp_mpi_shard_gather(t->shard, t->adapter.model.amp), "parts");
    for (size_t i = 0; i < t->n; i++)
        if (i < t->shard->first || i >= end) t->trained[i]->version++;
}

/* The last rank is killed, or stands still. */
static void fail_on_purpose(const struct training *t, int step) {
    if (t->mpi->rank != t->mpi->size - 1) return;
    if (step == t->options.kill) raise(SIGKILL);
    if (step == t->options.hang) raise(SIGSTOP);
}

static void train_step(struct training *t, int step) {
    fail_on_purpose(t, step);
    t->optimizer->lr = 0.05F * (1.0F + cosf(3.1415927F * (float)step / (float)t->options.steps)); /* 0.1 to 0 */
    mt_tensor *loss = forward(t, step);
    backward(t, step, loss);
    mt_release(loss);
    must(t->optimizer->step(t->optimizer) >= 0, "step", amp_last_error());
    for (size_t i = 0; i < t->n; i++) mt_set_grad(t->trained[i], NULL); /* other ranks' too */
    amp(amp_check(t->adapter.model.amp), "ops");
    if (t->shard) gather(t);
}

/* ---- behind the last ---- */

static double accuracy(struct training *t) {
    mt_tensor *images, *labels;
    must(digits_batch(t->data, t->data->test, DIGITS_TEST, &images, &labels) == 0, "test", mt_error());
    t->net.training = 0;
    mt_tensor *scores = mt_then(images, t->net.forward(&t->net, images));
    must(scores != NULL, "test", mt_error());
    const int correct = net_count_correct(scores, labels);
    mt_release(scores);
    mt_release(labels);
    return 100.0 * correct / DIGITS_TEST;
}

/* One number for all parameters, in their order (FNV-1a). */
static uint64_t digest(const struct training *t) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < t->n; i++)
        for (size_t k = 0; k < t->trained[i]->storage->bytes; k++)
            hash = (hash ^ ((const unsigned char *)t->trained[i]->storage->data)[k]) * UINT64_C(0x100000001b3);
    return hash;
}

static void end(struct training *t) {
    amp_record record = AMP_RECORD_INIT;
    amp(amp_get_record(t->adapter.model.amp, 0, &record), "record");
    if (t->options.save) mpi(amp_mpi_state_save(t->mpi, t->adapter.model.amp, t->options.save), "save");
    if (!t->shard) mpi(amp_mpi_check_masters(t->mpi, &t->adapter.optimizer), "masters");
    mpi(amp_mpi_check_equal(t->mpi), "parameters");
    const double score = t->mpi->rank == 0 ? accuracy(t) : 0.0;
    amp(amp_shutdown(t->adapter.model.amp), "amp_shutdown");
    if (t->shard) mpi(amp_mpi_shard_gather(t->shard, NULL), "parts");
    mpi(amp_mpi_check_equal(t->mpi), "parameters in FP32");
    if (t->mpi->rank == 0)
        printf("%d ranks: %d steps, %d skipped, scale %g, accuracy %.1f %%, parameters %016llx on all ranks\n",
               t->mpi->size, t->options.steps, (int)record.skipped, (double)record.scale_after, score,
               (unsigned long long)digest(t));
    amp_mpi_average_close(t->average);
    amp_mpi_shard_close(t->shard);
    amp_mpi_close(t->mpi);
}

int main(int argc, char **argv) {
    struct training *t = &training;
    char error[256] = "";
    MPI_Init(&argc, &argv);
    if (ranks_options_parse(&t->options, argc, argv) != 0) MPI_Abort(MPI_COMM_WORLD, 2);
    t->data = digits_load(t->options.data, error, sizeof error);
    must(t->data != NULL, "digits", error);
    begin(t);
    must(BATCH % t->mpi->size == 0, "ranks", "a batch of 32 is not shared out evenly: 1, 2, 4, 8, 16 or 32 ranks");
    for (int step = 0; step < t->options.steps; step++) train_step(t, step);
    end(t);
    mt_optimizer_free(t->optimizer);
    net_done(&t->net);
    free(t->data);
    MPI_Finalize();
    return 0;
}
