/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Optimizers of which each rank has a part: the parameters, after each step and in the end, are those of ranks that
 * each have all of it, to the bit; saved by all ranks of the job and gone on with by one, by two and by all of them.
 *
 *     mpirun -n 4 test_shard FOLDER        rank 0 prints TAP
 */
#include "ranks.h"

#include <amp_optim.h>

#include <unistd.h>

enum { BEFORE = 4, AFTER = 5 };

struct run {
    struct net net;
    amp_optimizer optimizer;
    amp_mpi_average *average;
    amp_mpi_shard *shard; /* NULL: each rank has all */
};

static void must(amp_status status, const char *words) {
    if (status == AMP_OK) return;
    fprintf(stderr, "rank %d: %s: %s\n", rank, amp_status_name(status), words);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void begin(struct run *run, MPI_Comm comm, amp_level level, bool sharded) {
    amp_optim rule = AMP_OPTIM_INIT;
    amp_fused fused = AMP_FUSED_INIT;
    amp_config config = AMP_CONFIG_INIT;
    amp_model *model = &run->net.model;
    amp_optimizer *optimizer = &run->optimizer;
    memset(run, 0, sizeof *run);
    net_open(&run->net, comm);
    run->optimizer = (amp_optimizer)AMP_OPTIMIZER_INIT;
    optimizer->host = &run->net.host;
    optimizer->params = run->net.handles, optimizer->n_params = BUFFERS;
    if (sharded) {
        must(amp_mpi_shard_open(run->net.mpi, run->net.handles, BUFFERS, &run->shard), amp_mpi_error(run->net.mpi));
        optimizer->params += run->shard->first, optimizer->n_params = run->shard->count;
        optimizer->flags = AMP_OPTIMIZER_SHARDED;
    }
    must(amp_optim_defaults(AMP_OPTIM_ADAM, &rule), amp_last_error());
    rule.lr = 0.01;
    fused.groups = &rule, fused.n_groups = 1;
    optimizer->fused = &fused;
    config.level = level, config.loss_scale = AMP_DYNAMIC, config.init_scale = 256.0f, config.window = 3;
    config.emulate = level == AMP_O1 || level == AMP_O2 ? AMP_ON : AMP_DEFAULT;
    must(amp_initialize_many(&model, 1, &optimizer, 1, &config, NULL), amp_last_error());
    must(amp_mpi_average_open(run->net.mpi, run->net.handles, BUFFERS, NULL, &run->average),
         amp_mpi_error(run->net.mpi));
}

/* Gradients are the same on all ranks, whose number is a power of two: so is their average, to the bit, and runs of any
 * number can be compared. Step 2 overflows on
 * rank 0, in the last parameter, which is another's. */
static void train(struct run *run, int from, int n) {
    struct net *net = &run->net;
    for (int step = from; step < from + n; step++) {
        amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
        must(amp_scale_loss_begin(&run->optimizer, NULL, &scaled), amp_last_error());
        for (int i = 0; i < BUFFERS; i++)
            for (int k = 0; k < sizes[i]; k++)
                net->grads[i][k] = amp_seed_factor(&scaled) * (0.125f * (float)(k - step) + net->data[i][k]);
        if (step == 2 && net->mpi->rank == 0) net->grads[3][0] = 1.0f / 0.0f;
        must(amp_mpi_average_begin(run->average), amp_mpi_error(net->mpi));
        must(amp_mpi_average_finish(run->average), amp_mpi_error(net->mpi));
        must(amp_scale_loss_end(&scaled), amp_last_error());
        must(amp_fused_step(&run->optimizer, NULL), amp_last_error());
        must(amp_fused_zero_grad(&run->optimizer), amp_last_error());
        memset(net->grads, 0, sizeof net->grads);
        if (run->shard) must(amp_mpi_shard_gather(run->shard, net->model.amp), amp_mpi_error(net->mpi));
    }
}

static void end(struct run *run) {
    must(amp_shutdown(run->net.model.amp), amp_last_error());
    if (run->shard) must(amp_mpi_shard_gather(run->shard, NULL), amp_mpi_error(run->net.mpi));
    amp_mpi_average_close(run->average);
    amp_mpi_shard_close(run->shard);
    net_close(&run->net);
}

/* All parameters after BEFORE and AFTER steps, and after shutdown. */
struct outcome {
    float before[BUFFERS][64], after[BUFFERS][64], ended[BUFFERS][64];
};

static void whole_run(amp_level level, struct outcome *outcome) {
    struct run run;
    begin(&run, MPI_COMM_WORLD, level, false);
    train(&run, 0, BEFORE);
    memcpy(outcome->before, run.net.data, sizeof outcome->before);
    train(&run, BEFORE, AFTER);
    memcpy(outcome->after, run.net.data, sizeof outcome->after);
    end(&run);
    memcpy(outcome->ended, run.net.data, sizeof outcome->ended);
}

/* What a run that was resumed on `comm` comes to. */
static bool goes_on(MPI_Comm comm, amp_level level, const char *path, const struct outcome *wanted) {
    struct run run;
    begin(&run, comm, level, true);
    train(&run, 0, 2); /* moments of its own, which the file's replace */
    must(amp_mpi_state_load(run.net.mpi, run.net.model.amp, path), amp_mpi_error(run.net.mpi));
    bool right = !memcmp(run.net.data, wanted->before, sizeof wanted->before);
    train(&run, BEFORE, AFTER);
    right &= !memcmp(run.net.data, wanted->after, sizeof wanted->after);
    end(&run);
    return right && !memcmp(run.net.data, wanted->ended, sizeof wanted->ended);
}

static void resumes(amp_level level, const char *path, const struct outcome *wanted) {
    static const int numbers[] = { 1, 2, 4 };
    for (int i = 0; i < 3; i++) {
        char what[80];
        MPI_Comm some;
        bool right = true;
        MPI_Comm_split(MPI_COMM_WORLD, rank < numbers[i] ? 0 : MPI_UNDEFINED, rank, &some);
        if (some != MPI_COMM_NULL) {
            right = goes_on(some, level, path, wanted);
            MPI_Comm_free(&some);
        }
        snprintf(what, sizeof what, "O%d: saved by %d ranks, gone on with by %d", (int)(level - AMP_O0), size,
                 numbers[i]);
        ok(right, what);
    }
}

static void erase(const char *path) {
    char name[400];
    snprintf(name, sizeof name, "%s-%05d-of-%05d.safetensors", path, rank + 1, size);
    unlink(name);
    MPI_Barrier(MPI_COMM_WORLD);
    unlink(path);
}

static void equals(amp_level level, const char *folder) {
    static struct outcome wanted;
    struct run run;
    char path[300], what[80];
    whole_run(level, &wanted);
    snprintf(path, sizeof path, "%s/shard-O%d", folder, (int)(level - AMP_O0));
    begin(&run, MPI_COMM_WORLD, level, true);
    train(&run, 0, BEFORE);
    bool right = !memcmp(run.net.data, wanted.before, sizeof wanted.before);
    must(amp_mpi_state_save(run.net.mpi, run.net.model.amp, path), amp_mpi_error(run.net.mpi));
    train(&run, BEFORE, AFTER);
    right &= !memcmp(run.net.data, wanted.after, sizeof wanted.after);
    end(&run);
    snprintf(what, sizeof what, "O%d: parts come to what the whole comes to", (int)(level - AMP_O0));
    ok(right && !memcmp(run.net.data, wanted.ended, sizeof wanted.ended), what);
    resumes(level, path, &wanted);
    erase(path);
}

/* 7, 1, 64 and 30 elements: a rank has the parameters whose middle is in its quarter. */
static void deals(void) {
    static const size_t first[4] = { 0, 2, 0, 3 }, count[4] = { 2, 1, 0, 1 };
    struct net net;
    amp_mpi_shard *shard = NULL;
    net_open(&net, MPI_COMM_WORLD);
    const bool opened = amp_mpi_shard_open(net.mpi, net.handles, BUFFERS, &shard) == AMP_OK;
    ok(opened && shard->count == count[rank] && (!shard->count || shard->first == first[rank]), "who has which");
    if (rank == 2) net.handles[0] = net.handles[1];
    amp_mpi_shard *other = NULL;
    ok(amp_mpi_shard_open(net.mpi, net.handles, BUFFERS, &other) == AMP_ERR_CONFLICT && !other,
       "another list on one rank");
    net.handles[0] = &net.params[0];
    if (rank == 2) net.handles[2] = &net.params[3], net.handles[3] = &net.params[2];
    for (int i = 2; i < BUFFERS; i++) net.params[i].size = 8;
    ok(amp_mpi_shard_open(net.mpi, net.handles, BUFFERS, &other) == AMP_ERR_CONFLICT && !other &&
           strstr(amp_mpi_error(net.mpi), "rank 2 does not have what rank 0 has at place 2"),
       "equal sizes in another order on one rank");
    amp_mpi_shard_close(shard);
    net_close(&net);
}

/* A rank whose parameters have become FP16 receives what the others send as FP32: nothing moves. */
static void compares_types(void) {
    static uint16_t low[64];
    struct net net;
    amp_mpi_shard *shard = NULL;
    net_open(&net, MPI_COMM_WORLD);
    bool right = amp_mpi_shard_open(net.mpi, net.handles, BUFFERS, &shard) == AMP_OK;
    if (rank == 1) net.params[2].data = low, net.params[2].dtype = AMP_FLOAT16;
    for (int i = 0; i < BUFFERS; i++) net.data[i][0] = 1000.0f + (float)rank;
    const amp_status status = right ? amp_mpi_shard_gather(shard, NULL) : AMP_OK;
    ok(status == AMP_ERR_CONFLICT &&
           strstr(amp_mpi_error(net.mpi), "rank 1 does not have what rank 0 has at place 2") &&
           strstr(amp_mpi_error(net.mpi), rank == 1 ? "c of 64 elements of 2 bytes" : "c of 64 elements of 4 bytes"),
       "gather: another type on one rank");
    for (int i = 0; i < BUFFERS; i++) right = right && net.data[i][0] == 1000.0f + (float)rank;
    if (rank == 1) net.params[2].data = net.data[2], net.params[2].dtype = AMP_FLOAT32;
    ok(right && amp_mpi_shard_gather(shard, NULL) == AMP_OK && net.data[2][0] == 1001.0f,
       "nothing has moved, and the next one is right");
    amp_mpi_shard_close(shard);
    net_close(&net);
}

/* A part that is gone, and a place where nothing can be written, on one rank. */
static void refuses(const char *folder) {
    struct run run;
    char path[300], name[400];
    snprintf(path, sizeof path, "%s/shard-refused", folder);
    begin(&run, MPI_COMM_WORLD, AMP_O1, true);
    must(amp_mpi_state_save(run.net.mpi, run.net.model.amp, path), amp_mpi_error(run.net.mpi));
    snprintf(name, sizeof name, "%s-00002-of-%05d.safetensors", path, size);
    if (rank == 0) unlink(name);
    MPI_Barrier(MPI_COMM_WORLD);
    amp_status status = amp_mpi_state_load(run.net.mpi, run.net.model.amp, path);
    ok(status == AMP_ERR_NOT_FOUND && strstr(amp_mpi_error(run.net.mpi), "00002-of"), "a part that is gone is named");
    erase(path);
    MPI_Barrier(MPI_COMM_WORLD);
    ok(amp_mpi_state_load(run.net.mpi, run.net.model.amp, path) == AMP_ERR_NOT_FOUND, "a save that is gone");
    snprintf(name, sizeof name, "%s/nowhere/at/all", folder);
    status = amp_mpi_state_save(run.net.mpi, run.net.model.amp, rank == 1 ? name : path);
    ok(status == (rank == 1 ? AMP_ERR_NOT_FOUND : AMP_ERR_HOST_FAILED), "one rank that cannot write: no save");
    ok(access(path, F_OK) != 0, "and nothing says that there is one");
    snprintf(name, sizeof name, "%s/shard-elsewhere", folder);
    status = amp_mpi_state_save(run.net.mpi, run.net.model.amp, rank == 1 ? name : path);
    ok(rank == 0 ? status == AMP_ERR_NOT_FOUND && strstr(amp_mpi_error(run.net.mpi), "which rank 1 has written")
                 : status == AMP_ERR_HOST_FAILED,
       "one rank that writes elsewhere");
    ok(access(path, F_OK) != 0, "no save either");
    erase(name);
    erase(path);
    end(&run);
}

/* Two saves of the same run, one after the other: rank 1 is given the second. */
static void tells_saves_apart(const char *folder) {
    struct run run;
    char first[300], second[300];
    float before[BUFFERS][64];
    snprintf(first, sizeof first, "%s/shard-first", folder);
    snprintf(second, sizeof second, "%s/shard-second", folder);
    begin(&run, MPI_COMM_WORLD, AMP_O2, true);
    must(amp_mpi_state_save(run.net.mpi, run.net.model.amp, first), amp_mpi_error(run.net.mpi));
    must(amp_mpi_state_save(run.net.mpi, run.net.model.amp, second), amp_mpi_error(run.net.mpi));
    train(&run, 0, 1);
    memcpy(before, run.net.data, sizeof before);
    const amp_status status = amp_mpi_state_load(run.net.mpi, run.net.model.amp, rank == 1 ? second : first);
    ok(status == AMP_ERR_CONFLICT && strstr(amp_mpi_error(run.net.mpi), "rank 1 reads another save"),
       "ranks that read different saves");
    ok(!memcmp(before, run.net.data, sizeof before), "and nothing was loaded");
    erase(first);
    erase(second);
    end(&run);
}

int main(int argc, char **argv) {
    static const amp_level levels[] = { AMP_O0, AMP_O1, AMP_O2, AMP_O4 };
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    ok(argc == 2 && size == 4, "four ranks and a folder");
    deals();
    compares_types();
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++) equals(levels[i], argv[1]);
    refuses(argv[1]);
    tells_saves_apart(argv[1]);
    return done();
}
