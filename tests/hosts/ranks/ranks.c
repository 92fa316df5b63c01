/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data-parallel training on the ranks of an MPI job: the example's network and adapter, each rank on its own part of the
 * digits, at every level. Things go wrong on rank 1 alone: inputs that overflow, a hook that fails in amp_scale_loss_end, a
 * bracket that is cancelled. With the hook `reduce` both ranks must skip the same steps and hold the same bits at the end;
 * without it they must not, or this test would notice nothing.
 *
 *     mpirun -n 2 ranks DIGITS        rank 0 prints TAP
 *
 * With AMP_TEST_SHORT=1 (sanitizers) the trainings without the hook are done at O1 alone.
 */
#include "../../support/levels.h"
#include "ranks.h"

#include <amp_diagnostics.h>
#include <amp_kernels.h>
#include <amp_state.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

/* ---- the hook: all that libamp needs to know of MPI ---- */

static amp_status reduce(void *self, amp_reduction reduction, double *values, size_t n) {
    (void)self;
    const MPI_Op op = reduction == AMP_REDUCE_MAX ? MPI_MAX : MPI_SUM;
    return MPI_Allreduce(MPI_IN_PLACE, values, (int)n, MPI_DOUBLE, op, MPI_COMM_WORLD) == MPI_SUCCESS
               ? AMP_OK : AMP_ERR_HOST_FAILED;
}

/* ---- what goes wrong, on rank 1 ---- */

enum { POISONED_1 = 3, POISONED_2 = 7, FAILS = 9, CANCELS = 10 };
static const uint32_t expected_skips = 1u << POISONED_1 | 1u << POISONED_2 | 1u << FAILS | 1u << CANCELS;

static bool poisoned(int step) { return step == POISONED_1 || step == POISONED_2; }

static amp_status (*true_grad)(void *, void *, void **);
static bool grad_fails;

static amp_status grad(void *self, void *tensor, void **out) {
    return grad_fails ? AMP_ERR_HOST_FAILED : true_grad(self, tensor, out);
}

/* ---- gradients, averaged as DistributedDataParallel does: each rank's part of the mean, then the sum ---- */

static void sum_over_ranks(float *values, size_t n) {
    for (size_t i = 0; i < n; i++) values[i] /= (float)size;
    MPI_Allreduce(MPI_IN_PLACE, values, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void average_in_backward(const struct job *job) {
    static float values[MAX_FLOATS];
    for (size_t i = 0; i < job->n_trained; i++) {
        mt_tensor *gradient = job->trained[i]->grad;
        mt_read(gradient, values);
        sum_over_ranks(values, mt_numel(gradient));
        mt_write(gradient, values);
    }
}

/* After the bracket, in the type of what the optimizer gets. A rank whose bracket failed has no gradients, and adds zeros. */
static int average_after(struct job *job) {
    static float values[MAX_FLOATS];
    amp_master masters[NET_TENSORS];
    size_t n;
    masters[0] = (amp_master)AMP_MASTER_INIT;
    if (amp_master_params(&job->adapter.optimizer, masters, NET_TENSORS, &n) != AMP_OK) return -1;
    for (size_t i = 0; i < n; i++) {
        const amp_span wide = { values, masters[i].size, AMP_FLOAT32, 0 };
        const amp_span own = { masters[i].grad, masters[i].size, masters[i].dtype, 0 };
        memset(values, 0, masters[i].size * sizeof *values);
        if (own.data && amp_cast_list(&wide, &own, 1) != AMP_OK) return -1;
        sum_over_ranks(values, masters[i].size);
        if (own.data && amp_cast_list(&own, &wide, 1) != AMP_OK) return -1;
    }
    return 0;
}

/* Who updates a parameter tells the others. */
static void broadcast_params(const struct job *job) {
    for (size_t i = 0; i < job->n_trained; i++) {
        mt_tensor *tensor = job->trained[i];
        const int owner = i < job->n_trained / 2 ? 0 : 1;
        MPI_Bcast(tensor->storage->data, (int)tensor->storage->bytes, MPI_BYTE, owner, MPI_COMM_WORLD);
        if (rank != owner) tensor->version++;
    }
}

/* ---- one job: a network, its optimizer, a context ---- */

static int initialize(struct job *job, amp_level level) {
    amp_config config = AMP_CONFIG_INIT;
    config.level = job->level = level;
    config.loss_scale = AMP_DYNAMIC; /* at every level: what was not scaled is looked at too */
    config.init_scale = 1024.0f;
    config.window = 4;
    amp_model *model = &job->adapter.model;
    amp_optimizer *optimizer = &job->adapter.optimizer;
    return amp_initialize_many(&model, 1, &optimizer, 1, &config, NULL) == AMP_OK ? 0 : -1;
}

static int open_job(struct job *job, const struct digits *data, amp_level level, enum variant variant, bool hooked) {
    memset(job, 0, sizeof *job);
    job->data = data;
    job->variant = variant;
    if (net_init(&job->net, mt_ops_default(), 1) != 0) return -1; /* one seed: the ranks start equal */
    job->n_trained = net_params(&job->net, job->trained);
    size_t from = 0, n = job->n_trained, floats = 0;
    for (size_t i = 0; i < n; i++) floats += mt_numel(job->trained[i]);
    if (floats > MAX_FLOATS) return -1;
    if (variant == SHARDED) {
        from = rank ? n / 2 : 0;
        n = rank ? n - n / 2 : n / 2;
    }
    job->optimizer = mt_sgd_new(job->trained + from, n, 0.05F, 0.9F, 1e-4F);
    if (!job->optimizer) return -1;
    adapter_init(&job->adapter, &job->net, job->optimizer, NULL, NULL);
    job->adapter.optimizer.params = (void *const *)(job->trained + from);
    job->adapter.optimizer.n_params = n;
    if (variant == SHARDED) job->adapter.optimizer.flags = AMP_OPTIMIZER_SHARDED;
    if (hooked) job->adapter.host.reduce = reduce;
    true_grad = job->adapter.host.grad;
    job->adapter.host.grad = grad;
    return initialize(job, level);
}

static mt_tensor *forward(struct job *job, int step, float *value) {
    int indices[BATCH];
    mt_tensor *images, *labels;
    for (int i = 0; i < BATCH; i++)
        indices[i] = job->data->train[((step * size + rank) * BATCH + i) % DIGITS_TRAIN]; /* its own part */
    if (digits_batch(job->data, indices, BATCH, &images, &labels) != 0) return NULL;
    if (rank == 1 && poisoned(step) && job->variant != SHARDED) mt_set(images, 5, (double)INFINITY);
    mt_tensor *scores = mt_then(images, job->net.forward(&job->net, images));
    mt_tensor *loss = mt_then(scores, net_loss(&job->net, scores, labels));
    mt_release(labels);
    *value = loss ? (float)mt_get(loss, 0) : NAN;
    return loss;
}

/* The bracket. *skips: what amp_scale_loss_end decided, or a bracket that came to nothing. */
static int backward(struct job *job, int step, mt_tensor *loss, bool *skips) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    if (amp_scale_loss_begin(&job->adapter.optimizer, loss, &scaled) != AMP_OK) return -1;
    if (mt_backward(scaled.loss) != 0) return -1;
    if (job->variant != AFTER) average_in_backward(job);
    /* an overflow in a parameter that only rank 1 updates */
    if (poisoned(step) && job->variant == SHARDED) mt_set(job->trained[job->n_trained - 1]->grad, 0, (double)INFINITY);
    if (rank == 1 && step == CANCELS) {
        *skips = true;
        return amp_scale_loss_cancel(&scaled) == AMP_OK ? 0 : -1;
    }
    grad_fails = rank == 1 && step == FAILS;
    const amp_status status = amp_scale_loss_end(&scaled);
    const bool failed = grad_fails;
    grad_fails = false;
    *skips = scaled.action == AMP_SKIP;
    return (status != AMP_OK) == failed ? 0 : -1;
}

static int train_step(struct job *job, int step, struct outcome *outcome) {
    bool skips = false;
    float norm = 0.0f;
    mt_tensor *loss = forward(job, step, &outcome->loss[step]);
    if (!loss) return -1;
    job->optimizer->zero_grad(job->optimizer);
    for (size_t i = 0; i < job->n_trained; i++) mt_set_grad(job->trained[i], NULL); /* those of other ranks too */
    const int status = backward(job, step, loss, &skips);
    mt_release(loss);
    if (status != 0) return -1;
    if (job->variant == AFTER && average_after(job) != 0) return -1;
    if (amp_clip_grad_norm(&job->adapter.optimizer, 0.5f, &norm) != AMP_OK) return -1;
    const int before = job->optimizer->steps;
    if (job->optimizer->step(job->optimizer) < 0) return -1;
    const bool stepped = job->optimizer->steps != before;
    if (stepped) outcome->norm[step] = norm;
    else outcome->skips |= 1u << step;
    if (job->variant == SHARDED) broadcast_params(job);
    return 0;
}

static int read_masters(struct job *job, float *out) {
    amp_master masters[NET_TENSORS];
    size_t n;
    masters[0] = (amp_master)AMP_MASTER_INIT;
    if (amp_master_params(&job->adapter.optimizer, masters, NET_TENSORS, &n) != AMP_OK) return -1;
    for (size_t i = 0; i < n; i++) {
        const amp_span wide = { out, masters[i].size, AMP_FLOAT32, 0 };
        const amp_span own = { masters[i].data, masters[i].size, masters[i].dtype, 0 };
        if (amp_cast_list(&wide, &own, 1) != AMP_OK) return -1;
        out += masters[i].size;
    }
    return 0;
}

static void read_params(const struct job *job, float *out) {
    for (size_t i = 0; i < job->n_trained; i++) {
        mt_read(job->trained[i], out);
        out += mt_numel(job->trained[i]);
    }
}

/* O3 has no masters: updates that its 16-bit weights lose are its own (AMP-M89). */
static bool is_sound(struct job *job) {
    amp_finding found = AMP_FINDING_INIT;
    size_t n = 0;
    if (!strcmp(adapter_health(&job->adapter), "sound")) return true;
    return job->level == AMP_O3 && amp_get_findings(job->adapter.model.amp, &found, 1, &n) == AMP_OK && n == 1 &&
        !strcmp(found.code, "AMP-M89");
}

/* 200 steps in all, resumed in their middle: what is right stays sound. */
static int train_on(struct job *job, amp_level level, struct outcome *outcome) {
    const int steps = getenv("AMP_TEST_SHORT") ? 40 : 200;
    static struct outcome unused;
    static char state[1 << 18];
    size_t length = 0;
    outcome->sound = true;
    for (int i = STEPS; i < steps; i++) {
        if (train_step(job, STEPS - 1, &unused) != 0) return -1;
        if (i != steps / 2) continue;
        outcome->sound &= is_sound(job);
        amp_context *context = job->adapter.model.amp;
        if (amp_state_save_memory(context, AMP_STATE_SAFETENSORS, state, sizeof state, &length) != AMP_OK) return -1;
        if (amp_shutdown(context) != AMP_OK || initialize(job, level) != 0) return -1;
        if (amp_state_load_memory(job->adapter.model.amp, state, length) != AMP_OK) return -1;
    }
    outcome->sound &= is_sound(job);
    return 0;
}

/* After shutdown a shard's rank has FP32 values of its own parameters alone: nothing to compare there. */
static int close_job(struct job *job, struct outcome *outcome) {
    amp_record record = AMP_RECORD_INIT;
    if (amp_get_record(job->adapter.model.amp, 0, &record) != AMP_OK) return -1;
    outcome->scale = record.scale_after;
    outcome->brackets = record.brackets;
    outcome->sound &= is_sound(job);
    read_params(job, outcome->params);
    if (job->variant != SHARDED && read_masters(job, outcome->masters) != 0) return -1;
    if (amp_shutdown(job->adapter.model.amp) != AMP_OK) return -1;
    if (job->variant != SHARDED) read_params(job, outcome->after);
    mt_optimizer_free(job->optimizer);
    net_done(&job->net);
    return 0;
}

static int train(const struct digits *data, amp_level level, enum variant variant, bool hooked, struct outcome *outcome) {
    static struct job job;
    memset(outcome, 0, sizeof *outcome);
    if (open_job(&job, data, level, variant, hooked) != 0) return -1;
    read_params(&job, outcome->start);
    for (int step = 0; step < STEPS; step++)
        if (train_step(&job, step, outcome) != 0) return -1;
    outcome->sound = true;
    if (hooked && variant == INSIDE && train_on(&job, level, outcome) != 0) return -1;
    return close_job(&job, outcome);
}

/* ---- the verdict, on rank 0 ---- */

static const char *judge(const struct outcome *mine, const struct outcome *other) {
    if (mine->skips != other->skips) return "the ranks skipped different steps";
    if (mine->scale != other->scale || mine->brackets != other->brackets) return "the ranks' scales differ";
    if (memcmp(mine->norm, other->norm, sizeof mine->norm) != 0) return "the ranks' norms differ";
    if (memcmp(mine->params, other->params, sizeof mine->params) != 0) return "the ranks' parameters differ";
    if (memcmp(mine->masters, other->masters, sizeof mine->masters) != 0) return "the ranks' masters differ";
    if (memcmp(mine->after, other->after, sizeof mine->after) != 0) return "the ranks' restored parameters differ";
    return NULL;
}

/* Did it train at all, and on different data? */
static const char *judge_training(const struct outcome *mine, const struct outcome *other) {
    if (!mine->sound || !other->sound) return "what is wired rightly is not sound";
    if (mine->skips != expected_skips) return "other steps were skipped than those that went wrong";
    if (!memcmp(mine->params, mine->start, sizeof mine->params)) return "nothing was trained";
    if (mine->loss[0] == other->loss[0]) return "the ranks trained on the same data";
    for (size_t i = 0; i < MAX_FLOATS; i++)
        if (!isfinite(mine->params[i])) return "a parameter is not finite";
    return NULL;
}

static const char *const variants[] = {
    [INSIDE] = "averaged in backward", [AFTER] = "averaged after the bracket", [SHARDED] = "sharded optimizer",
};

static int run_case(const struct digits *data, int number, amp_level level, enum variant variant, bool hooked) {
    static struct outcome mine, other;
    const char *fault = NULL;
    if (train(data, level, variant, hooked, &mine) != 0) {
        printf("Bail out! rank %d, O%d, %s: %s %s\n", rank, (int)(level - AMP_O0), variants[variant], amp_last_error(),
               mt_error());
        fflush(stdout);
        MPI_Abort(MPI_COMM_WORLD, 1); /* the others may be waiting */
    }
    if (rank == 1) return MPI_Send(&mine, sizeof mine, MPI_BYTE, 0, 0, MPI_COMM_WORLD) == MPI_SUCCESS ? 0 : 1;
    MPI_Recv(&other, sizeof other, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    fault = judge(&mine, &other);
    if (hooked && !fault) fault = judge_training(&mine, &other);
    if (!hooked) fault = fault ? NULL : "the ranks agree without the hook: this test would notice nothing";
    printf("%s %d - O%d, %s%s\n", fault ? "not ok" : "ok", number, (int)(level - AMP_O0), variants[variant],
           hooked ? "" : ", without the hook: they diverge");
    if (fault) printf("# %s; skipped 0x%x and 0x%x, scales %g and %g\n", fault, (unsigned)mine.skips,
                      (unsigned)other.skips, (double)mine.scale, (double)other.scale);
    return fault != NULL;
}

int main(int argc, char **argv) {
    char error[256] = "";
    int failed = 0, number = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    struct digits *data = argc == 2 ? digits_load(argv[1], error, sizeof error) : NULL;
    if (!data || size != 2) {
        fprintf(stderr, "usage: mpirun -n 2 ranks digits.csv.gz; %s\n", error);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    const char *given = getenv("AMP_TEST_SHORT");
    const bool brief = given && *given;
    for (amp_level level = 1; level <= N_EACH_LEVEL; level++)
        for (int variant = 0; variant < N_VARIANTS; variant++)
            for (int hooked = 1; hooked >= 0; hooked--)
                if (hooked || !brief || level == AMP_O1)
                    failed += run_case(data, ++number, level, (enum variant)variant, hooked);
    if (rank == 0) printf("1..%d\n", number);
    free(data);
    MPI_Finalize();
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
