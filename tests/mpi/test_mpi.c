/* SPDX-License-Identifier: Apache-2.0 */
/*
 * amp_mpi.h on the ranks of one job: sums held to arithmetic written out here, parameters that differ on one rank,
 * things that go wrong on one rank alone.
 *
 *     mpirun -n 4 test_mpi        rank 0 prints TAP
 */
#include "ranks.h"

#include <amp_train.h>

#include <math.h>

/* ---- decisions ---- */

static void reduces(void) {
    struct net net;
    double values[2] = { (double)rank, 1.0 };
    net_open(&net, MPI_COMM_WORLD);
    const bool most = amp_mpi_reduce(net.mpi, AMP_REDUCE_MAX, values, 2) == AMP_OK && values[0] == size - 1;
    ok(most && amp_mpi_reduce(net.mpi, AMP_REDUCE_SUM, values, 2) == AMP_OK && values[1] == size,
       "reduce: MAX and SUM");
    net_close(&net);
}

/* The host's collective is open while libamp makes its own, and its message, of any tag, waits for its receiver. */
static void keeps_apart(void) {
    struct net net;
    MPI_Request requests[3];
    int mine = rank, sum = 0, heard = -1;
    double value = 100.0 + rank;
    net_open(&net, MPI_COMM_WORLD);
    MPI_Iallreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &requests[0]);
    MPI_Isend(&mine, 1, MPI_INT, (rank + 1) % size, 0, MPI_COMM_WORLD, &requests[1]);
    const bool right = amp_mpi_reduce(net.mpi, AMP_REDUCE_MAX, &value, 1) == AMP_OK && value == 99.0 + size;
    MPI_Irecv(&heard, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &requests[2]);
    MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
    ok(right && sum == size * (size - 1) / 2 && heard == (rank + size - 1) % size, "the host's messages stay its own");
    net_close(&net);
}

/* Rank 1 comes after the others' timeout: what MPI then adds up is written to none of the caller's memory, and they
 * stay out of step. */
static void gives_up(void) {
    struct net net;
    double values[2] = { (double)rank, 1.0 };
    char words[sizeof net.mpi->why];
    net_open(&net, MPI_COMM_WORLD);
    amp_mpi_set_timeout(net.mpi, rank == 1 ? 0.0 : 0.1);
    const double since = MPI_Wtime();
    while (rank == 1 && MPI_Wtime() - since < 0.5) continue;
    amp_status status = amp_mpi_reduce(net.mpi, AMP_REDUCE_SUM, values, 2);
    memcpy(words, net.mpi->why, sizeof words);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Request request = net.mpi->request;
    if (rank != 1) MPI_Wait(&request, MPI_STATUS_IGNORE);
    ok(rank == 1 ? status == AMP_OK && values[1] == size
                 : status == AMP_ERR_BACKEND && values[0] == rank && values[1] == 1.0 && says(&net, "has waited"),
       "after a timeout nothing comes to the caller's memory");
    if (rank != 1) status = amp_mpi_check_equal(net.mpi);
    ok(rank == 1 || (status == AMP_ERR_BACKEND && !strcmp(words, net.mpi->why)), "and every call says the same");
    if (rank != 1) net_close(&net);
}

/* The same in a pass: buckets stay, and closing frees nothing of what is on its way. */
static void gives_up_a_pass(void) {
    struct net net;
    amp_mpi_average *average = NULL;
    amp_mpi_average_options options = AMP_MPI_AVERAGE_OPTIONS_INIT;
    options.wire = AMP_BFLOAT16, options.bucket_bytes = 1;
    net_open(&net, MPI_COMM_WORLD);
    bool right = amp_mpi_average_open(net.mpi, net.handles, BUFFERS, &options, &average) == AMP_OK;
    amp_mpi_set_timeout(net.mpi, 0.1);
    if (rank != 1) right = right && amp_mpi_average_begin(average) == AMP_OK;
    if (rank != 1) right = right && amp_mpi_average_finish(average) == AMP_ERR_BACKEND && says(&net, "has waited");
    ok(right && (rank == 1 || amp_mpi_average_begin(average) == AMP_ERR_BACKEND), "a pass that one rank does not make");
    if (rank != 1) amp_mpi_average_close(average);
    ok(rank == 1 || average->buckets[0].send, "what MPI may still write to is not freed");
}

/* ---- parameters ---- */

static void broadcasts(void) {
    struct net net;
    bool right = true;
    net_open(&net, MPI_COMM_WORLD);
    for (int i = 0; i < BUFFERS; i++)
        for (int k = 0; k < sizes[i]; k++) net.data[i][k] = (float)(1000 * rank + 10 * i + k);
    const amp_status before = amp_mpi_check_equal(net.mpi);
    ok(before == AMP_ERR_CONFLICT && says(&net, "a is not") && says(&net, "rank 1 "),
       "ranks that begin apart are told");
    right = amp_mpi_broadcast(net.mpi) == AMP_OK && amp_mpi_check_equal(net.mpi) == AMP_OK;
    for (int i = 0; i < BUFFERS; i++)
        for (int k = 0; k < sizes[i]; k++) right &= net.data[i][k] == (float)(10 * i + k);
    ok(right, "broadcast: all have what rank 0 had");
    net_close(&net);
}

static void names_the_first(void) {
    struct net net;
    net_open(&net, MPI_COMM_WORLD);
    if (rank == size - 1) net.data[1][0] = nextafterf(net.data[1][0], 9.0f);
    if (rank == size - 2) net.data[2][63] = -0.0f;
    ok(amp_mpi_check_equal(net.mpi) == AMP_ERR_CONFLICT && says(&net, "b is not equal"), "a bit: the first parameter");
    char words[40];
    snprintf(words, sizeof words, "rank %d is the first", size - 1);
    ok(says(&net, words) && says(&net, "2 of 4"), "a bit: the first rank");
    net_close(&net);
}

static void refuses_other_models(void) {
    struct net net;
    net_open(&net, MPI_COMM_WORLD);
    if (rank == 1) net.params[2].size--;
    ok(amp_mpi_broadcast(net.mpi) == AMP_ERR_CONFLICT && says(&net, "sizes"), "broadcast: another shape on one rank");
    ok(amp_mpi_check_equal(net.mpi) == AMP_ERR_CONFLICT && says(&net, "sizes"), "check: another shape on one rank");
    net_close(&net);
}

static void refuses_other_names(void) {
    struct net net;
    amp_mpi *bare = NULL;
    net_open(&net, MPI_COMM_WORLD);
    if (rank == 1) ((char *)(uintptr_t)net.mpi->params[2].name)[0] = 'x';
    ok(amp_mpi_broadcast(net.mpi) == AMP_ERR_CONFLICT && says(&net, "names"), "another name on one rank");
    net_close(&net);
    const bool opened = amp_mpi_open(MPI_COMM_WORLD, NULL, &bare) == AMP_OK;
    ok(opened && amp_mpi_broadcast(bare) == AMP_ERR_WRONG_STATE && strstr(amp_mpi_error(bare), "no model") &&
           amp_mpi_check_equal(bare) == AMP_ERR_WRONG_STATE,
       "no model: nothing to make equal, and that is said");
    amp_mpi_close(bare);
}

static amp_status fails(void *self, void *tensor, amp_tensor_view *view) {
    (void)self, (void)tensor, (void)view;
    return AMP_ERR_HOST_FAILED;
}

static void tells_who_failed(void) {
    struct net net;
    net_open(&net, MPI_COMM_WORLD);
    if (rank == 2) net.mpi->host.view = fails;
    ok(amp_mpi_broadcast(net.mpi) == AMP_ERR_HOST_FAILED && says(&net, rank == 2 ? "view failed" : "rank 2 failed"),
       "a hook that fails on one rank is heard on all");
    net_close(&net);
}

/* ---- averages ---- */

/* What rank r has for element k of parameter i: no 16-bit type holds all of it. */
static float gradient(int r, int i, int k) { return (float)(r + 1) * 0.1f + (float)i - 0.37f * (float)k; }

static void fill(struct net *net) {
    for (int i = 0; i < BUFFERS; i++)
        for (int k = 0; k < sizes[i]; k++) net->grads[i][k] = gradient(rank, i, k);
}

static float rounded(float value, amp_dtype dtype) {
    uint16_t low;
    const amp_span wide = { &value, 1, AMP_FLOAT32, 0 }, narrow = { &low, 1, dtype, 0 };
    if (dtype == AMP_FLOAT32) return value;
    return amp_cast_list(&narrow, &wide, 1) == AMP_OK && amp_cast_list(&wide, &narrow, 1) == AMP_OK ? value : NAN;
}

/* What is promised of 16 bits, to the bit; of FP32 the sum's order is MPI's, and each of its additions is off by half a
 * unit in the last place of a sum below 64. */
static bool is_average(float value, int i, int k, const amp_mpi_average_options *options) {
    const double predivide = options->predivide == 0.0 ? 1.0 : options->predivide;
    const float before = (float)(1.0 / predivide);
    const float after = (float)(options->average == AMP_OFF ? predivide : predivide / size);
    float sum = 0.0f;
    for (int r = 0; r < size; r++) sum += rounded(gradient(r, i, k) * before, options->wire);
    const float wanted = rounded(sum * after, options->wire);
    return options->wire == AMP_FLOAT32 ? fabsf(value - wanted) <= (float)size * 0x1p-18f : value == wanted;
}

/* `announce`: in an order that is each rank's own; else finish finds all. */
static bool averages(amp_mpi_average_options options, bool announce) {
    struct net net;
    amp_mpi_average *average = NULL;
    net_open(&net, MPI_COMM_WORLD);
    bool right = amp_mpi_average_open(net.mpi, net.handles, BUFFERS, &options, &average) == AMP_OK;
    for (int pass = 0; pass < 2 && right; pass++) {
        fill(&net);
        right &= amp_mpi_average_begin(average) == AMP_OK;
        for (int i = 0; announce && i < BUFFERS; i++)
            right &= amp_mpi_ready(average, net.handles[(i * 3 + rank) % BUFFERS]) == AMP_OK;
        right &= amp_mpi_average_finish(average) == AMP_OK;
        for (int i = 0; i < BUFFERS; i++)
            for (int k = 0; k < sizes[i]; k++) right &= is_average(net.grads[i][k], i, k, &options);
        memcpy(net.data, net.grads, sizeof net.data);
        right &= amp_mpi_check_equal(net.mpi) == AMP_OK;
    }
    amp_mpi_average_close(average);
    net_close(&net);
    return right;
}

static void averages_on(amp_dtype wire, const char *name) {
    static const struct {
        uint64_t bucket_bytes;
        double predivide;
        amp_switch average;
        bool announce;
        const char *what;
    } cases[] = {
        { 0, 0.0, AMP_DEFAULT, false, "one bucket, nothing announced" },
        { 1, 0.0, AMP_DEFAULT, true, "a bucket for each" },
        { 100, 2.0, AMP_ON, true, "predivide" },
        { 60, 0.0, AMP_OFF, true, "sums" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        amp_mpi_average_options options = AMP_MPI_AVERAGE_OPTIONS_INIT;
        char what[80];
        options.wire = wire, options.bucket_bytes = cases[i].bucket_bytes;
        options.predivide = cases[i].predivide, options.average = cases[i].average;
        snprintf(what, sizeof what, "average as %s: %s", name, cases[i].what);
        ok(averages(options, cases[i].announce), what);
    }
}

/* One pass over `net` with these values in the first element of "c". */
static amp_status pass(struct net *net, amp_dtype wire, float value) {
    amp_mpi_average_options options = AMP_MPI_AVERAGE_OPTIONS_INIT;
    amp_mpi_average *average = NULL;
    options.wire = wire;
    net->grads[2][0] = value;
    amp_status status = amp_mpi_average_open(net->mpi, net->handles, BUFFERS, &options, &average);
    if (status == AMP_OK) status = amp_mpi_average_begin(average);
    if (status == AMP_OK) status = amp_mpi_average_finish(average);
    amp_mpi_average_close(average);
    return status;
}

/* bf16's own additions leave 1 where 2^-8 is added, and 60000 four times is beyond fp16. */
static void adds_in_fp32(void) {
    struct net net;
    net_open(&net, MPI_COMM_WORLD);
    ok(pass(&net, AMP_BFLOAT16, rank ? 0x1p-8f : 1.0f) == AMP_OK &&
           net.grads[2][0] == rounded((1.0f + 0x1p-8f * (float)(size - 1)) / (float)size, AMP_BFLOAT16),
       "bf16: small numbers beside a large one are not lost");
    ok(pass(&net, AMP_FLOAT16, 60000.0f) == AMP_OK && net.grads[2][0] == 60000.0f,
       "fp16: a sum beyond it has an average");
    ok(pass(&net, AMP_FLOAT16, rank == 1 ? 1e5f : 1.0f) == AMP_OK && isinf(net.grads[2][0]),
       "fp16: an overflow is everyone's");
    ok(pass(&net, AMP_FLOAT32, rank == 1 ? NAN : 1.0f) == AMP_OK && isnan(net.grads[2][0]),
       "fp32: a NaN is everyone's");
    net_close(&net);
}

static void misses_gradients(amp_dtype wire) {
    struct net net;
    net_open(&net, MPI_COMM_WORLD);
    net.grads[2][0] = 5.0f, net.params[1].grad = NULL;
    ok(pass(&net, wire, 5.0f) == AMP_OK, "what no rank has a gradient of is left alone");
    if (rank == 1) net.params[2].grad = NULL;
    const amp_status status = pass(&net, wire, 5.0f);
    ok(rank == 1 ? status == AMP_ERR_WRONG_STATE && says(&net, "c has no gradient on rank 1") : status == AMP_OK,
       "a gradient that one rank has not");
    ok(rank == 1 || net.grads[2][0] == 5.0f * (float)(size - 1) / (float)size, "counts as zeros there");
    net_close(&net);
}

/* Each its bucket, the last parameter's first: what is complete is on its way before finish, unless one before it is
 * not. */
static void sends_early(amp_dtype wire) {
    static const struct {
        int param;
        size_t sent;
    } ready[] = { { 3, 1 }, { 1, 1 }, { 2, 3 } };
    struct net net;
    amp_mpi_average *average = NULL;
    amp_mpi_average_options options = AMP_MPI_AVERAGE_OPTIONS_INIT;
    options.wire = wire, options.bucket_bytes = 1;
    net_open(&net, MPI_COMM_WORLD);
    bool right = amp_mpi_average_open(net.mpi, net.handles, BUFFERS, &options, &average) == AMP_OK &&
                 amp_mpi_average_begin(average) == AMP_OK;
    for (size_t i = 0; right && i < sizeof ready / sizeof *ready; i++)
        right = amp_mpi_ready(average, net.handles[ready[i].param]) == AMP_OK && average->sent == ready[i].sent;
    ok(right && amp_mpi_average_finish(average) == AMP_OK, "buckets are sent as they are complete, in their order");
    amp_mpi_average_close(average);
    net_close(&net);
}

static void refuses(void) {
    struct net net;
    amp_mpi_average *average = NULL;
    amp_mpi_average_options options = AMP_MPI_AVERAGE_OPTIONS_INIT;
    net_open(&net, MPI_COMM_WORLD);
    if (rank == 1) options.bucket_bytes = 4;
    ok(amp_mpi_average_open(net.mpi, net.handles, BUFFERS, &options, &average) == AMP_ERR_CONFLICT && !average,
       "options that differ on one rank");
    ok(says(&net, "options differ"), "and are said to");
    if (rank == 1) options.wire = AMP_FLOAT64;
    ok(amp_mpi_average_open(net.mpi, net.handles, BUFFERS, &options, &average) ==
           (rank == 1 ? AMP_ERR_INVALID_ARGUMENT : AMP_ERR_HOST_FAILED),
       "a wire that does not exist, on one rank");
    bool right = amp_mpi_average_open(net.mpi, net.handles, BUFFERS - 1, NULL, &average) == AMP_OK;
    ok(right && amp_mpi_ready(average, net.handles[0]) == AMP_ERR_WRONG_STATE &&
           amp_mpi_average_finish(average) == AMP_ERR_WRONG_STATE,
       "ready and finish before begin");
    right = amp_mpi_average_begin(average) == AMP_OK && amp_mpi_average_begin(average) == AMP_ERR_WRONG_STATE;
    ok(right && amp_mpi_ready(average, net.handles[3]) == AMP_ERR_NOT_FOUND && says(&net, "d is not"),
       "not in the list");
    right = amp_mpi_ready(average, net.handles[1]) == AMP_OK &&
            amp_mpi_ready(average, net.handles[1]) == AMP_ERR_WRONG_STATE;
    ok(right && says(&net, "b was announced"), "announced twice");
    ok(amp_mpi_average_finish(average) == AMP_OK, "and finish is right all the same");
    amp_mpi_average_close(average);
    net_close(&net);
}

/* ---- under libamp: an overflow on one rank, and gradients that meet after the bracket ---- */

static amp_status step(struct net *net, amp_optimizer *optimizer, amp_mpi_average *average, bool inside, float value,
                       amp_action *action) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_status status = amp_scale_loss_begin(optimizer, NULL, &scaled);
    fill(net);
    for (int i = 0; i < BUFFERS; i++)
        for (int k = 0; k < sizes[i]; k++) net->grads[i][k] *= amp_seed_factor(&scaled);
    net->grads[2][0] = value;
    if (status == AMP_OK && inside) status = amp_mpi_average_begin(average);
    if (status == AMP_OK && inside) status = amp_mpi_average_finish(average);
    if (status == AMP_OK) status = amp_scale_loss_end(&scaled);
    *action = scaled.action;
    if (status == AMP_OK && !inside && *action != AMP_SKIP) status = amp_mpi_average_masters(average, optimizer);
    return status;
}

static bool begin(struct net *net, amp_optimizer *optimizer, amp_mpi_average **average) {
    amp_config config = AMP_CONFIG_INIT;
    config.level = AMP_O2, config.emulate = AMP_ON, config.init_scale = 1024.0f;
    return net_initialize(net, optimizer, &config, false) &&
           amp_mpi_check_settings(net->mpi, net->model.amp) == AMP_OK &&
           amp_mpi_average_open(net->mpi, net->handles, BUFFERS, NULL, average) == AMP_OK;
}

static void end(struct net *net, amp_mpi_average *average) {
    amp_mpi_average_close(average);
    (void)amp_shutdown(net->model.amp);
    net_close(net);
}

/* A master that no 16-bit type holds, each rank's own, and its parameter. */
static void broadcasts_late(void) {
    struct net net;
    amp_optimizer optimizer;
    amp_mpi_average *average = NULL;
    bool right = begin(&net, &optimizer, &average);
    amp_master master = AMP_MASTER_INIT;
    size_t n = 0;
    right = right && amp_master_params(&optimizer, &master, 1, &n) == AMP_OK;
    if (right) *(float *)master.data = 1.0001f + (float)rank;
    net.data[0][0] = 1.0f + (float)rank;
    right = right && amp_mpi_broadcast(net.mpi) == AMP_OK && amp_masters_reconcile(net.model.amp) == AMP_OK;
    ok(right && amp_mpi_check_masters(net.mpi, &optimizer) == AMP_ERR_CONFLICT, "a late broadcast: masters are apart");
    right = amp_mpi_broadcast_masters(net.mpi, &optimizer) == AMP_OK &&
            amp_mpi_check_masters(net.mpi, &optimizer) == AMP_OK && amp_mpi_check_equal(net.mpi) == AMP_OK;
    ok(right && *(float *)master.data == 1.0001f, "until they are those of rank 0");
    end(&net, average);
}

/* Rank 1 cannot average, and cancels; the others end. */
static void cancels(void) {
    struct net net;
    amp_optimizer optimizer;
    amp_mpi_average *average = NULL;
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    bool right = begin(&net, &optimizer, &average) && amp_scale_loss_begin(&optimizer, NULL, &scaled) == AMP_OK &&
                 amp_seed_factor(&scaled) == 1024.0f && amp_mpi_average_begin(average) == AMP_OK;
    fill(&net);
    amp_buffer *const kept = net.params[2].grad;
    if (rank == 1) net.params[2].grad = NULL;
    const amp_status status = right ? amp_mpi_average_finish(average) : AMP_OK;
    net.params[2].grad = kept;
    right = right && status == (rank == 1 ? AMP_ERR_WRONG_STATE : AMP_OK) &&
            (rank == 1 ? amp_scale_loss_cancel(&scaled) : amp_scale_loss_end(&scaled)) == AMP_OK;
    ok(right && amp_step_begin(&optimizer, &info) == AMP_OK && info.action == AMP_SKIP &&
           amp_step_end(&optimizer) == AMP_OK,
       "one rank that cannot average cancels: all skip");
    end(&net, average);
}

static void decides(bool inside, const char *what) {
    struct net net;
    amp_optimizer optimizer;
    amp_mpi_average *average = NULL;
    amp_step_info info = AMP_STEP_INFO_INIT;
    amp_mpi_average_options plain = AMP_MPI_AVERAGE_OPTIONS_INIT;
    amp_action first = AMP_STEP, second = AMP_SKIP;
    plain.wire = AMP_FLOAT32;
    bool right = begin(&net, &optimizer, &average) &&
                 step(&net, &optimizer, average, inside, rank == 1 ? INFINITY : 1.0f, &first) == AMP_OK &&
                 amp_step_begin(&optimizer, &info) == AMP_OK && amp_step_end(&optimizer) == AMP_OK;
    memset(net.grads, 0, sizeof net.grads);
    right = right && step(&net, &optimizer, average, inside, 512.0f, &second) == AMP_OK;
    ok(right && first == AMP_SKIP && second == AMP_STEP, what);
    amp_master masters[BUFFERS] = { AMP_MASTER_INIT };
    size_t n = 0;
    right = right && amp_master_params(&optimizer, masters, BUFFERS, &n) == AMP_OK && n == BUFFERS;
    for (int k = 0; right && k < sizes[3]; k++) right = is_average(((float *)masters[3].grad)[k], 3, k, &plain);
    right = right && ((float *)masters[2].grad)[0] == 1.0f;
    ok(right && amp_mpi_check_masters(net.mpi, &optimizer) == AMP_OK, "master gradients are the average, unscaled");
    if (rank == 1) net.data[3][29] += 1.0f;
    ok(amp_masters_reconcile(net.model.amp) == AMP_OK &&
           amp_mpi_check_masters(net.mpi, &optimizer) == AMP_ERR_CONFLICT && says(&net, "d is not"),
       "a master that differs");
    end(&net, average);
}

int main(int argc, char **argv) {
    amp_mpi *early = NULL;
    const bool refused = amp_mpi_open(MPI_COMM_WORLD, NULL, &early) == AMP_ERR_WRONG_STATE && !early;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    ok(refused && size > 2, "before MPI_Init it is refused; three ranks or more are there");
    reduces();
    keeps_apart();
    broadcasts();
    names_the_first();
    refuses_other_models();
    refuses_other_names();
    tells_who_failed();
    averages_on(AMP_FLOAT32, "FP32");
    averages_on(AMP_FLOAT16, "FP16");
    averages_on(AMP_BFLOAT16, "BF16");
    adds_in_fp32();
    misses_gradients(AMP_FLOAT32);
    misses_gradients(AMP_BFLOAT16);
    sends_early(AMP_FLOAT32);
    sends_early(AMP_FLOAT16);
    refuses();
    broadcasts_late();
    cancels();
    gives_up();
    decides(true, "averaged inside the bracket: an overflow on one rank skips on all");
    decides(false, "averaged after it: the same");
    gives_up_a_pass();
    return done();
}
