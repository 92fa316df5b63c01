/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that do not agree: on lists, settings, the place in the program; and MPI's own errors. Each is found on all
 * ranks, before a wrong number comes of it.
 *
 *     mpirun -n 4 test_agree        rank 0 prints TAP
 */
#include "ranks.h"

#include <math.h>

/* ---- lists ---- */

/* Equal sizes in another order: q's gradient would be averaged with v's. */
static void compares_orders(void) {
    struct net net;
    amp_mpi_average *average = NULL;
    net_open(&net, MPI_COMM_WORLD);
    for (int i = 0; i < BUFFERS; i++) net.params[i].size = net.gradients[i].size = 1;
    if (rank == 2) net.handles[1] = &net.params[2], net.handles[2] = &net.params[1];
    ok(amp_mpi_average_open(net.mpi, net.handles, BUFFERS, NULL, &average) == AMP_ERR_CONFLICT && !average &&
           says(&net, "rank 2 does not have what rank 0 has at place 1") && says(&net, rank == 2 ? "is b" : "is c"),
       "equal sizes in another order on one rank: the first place is named");
    ok(amp_mpi_average_open(net.mpi, net.handles, rank == 1 ? 3 : BUFFERS, NULL, &average) == AMP_ERR_CONFLICT &&
           says(&net, "rank 1 does not list as many"),
       "a shorter list on one rank");
    net_close(&net);
}

/* ---- settings ---- */

static amp_config settings(void) {
    amp_config config = AMP_CONFIG_INIT;
    config.level = AMP_O2, config.emulate = AMP_ON, config.init_scale = 1024.0f, config.num_losses = 2;
    return config;
}

/* One member is another on rank 2. */
static void compares_setting(const amp_config *config, const char *words) {
    struct net net;
    amp_optimizer optimizer;
    const amp_config plain = settings();
    const bool right = net_initialize(&net, &optimizer, rank == 2 ? config : &plain, false);
    ok(right && amp_mpi_check_settings(net.mpi, net.model.amp) == AMP_ERR_CONFLICT && says(&net, words), words);
    net_end(&net);
}

static void compares_settings(void) {
#define DIFFERS(member, value, words)                                                                                  \
    do {                                                                                                               \
        amp_config config = settings();                                                                                \
        config.member = value;                                                                                         \
        compares_setting(&config, "rank 2 has " #member " " words);                                                    \
    } while (0)
    DIFFERS(level, AMP_O1, "AMP_O1, rank 0 has AMP_O2");
    DIFFERS(master_weights, AMP_OFF, "1, rank 0 has 2");
    DIFFERS(lists, AMP_LISTS_TORCH, "2, rank 0 has 1");
    DIFFERS(num_losses, 41, "41, rank 0 has 2");
    DIFFERS(scaler, AMP_SCALER_TORCH, "2, rank 0 has 1");
    DIFFERS(loss_scale, 64.0f, "64, rank 0 has -1");
    DIFFERS(init_scale, 1025.0f, "1025, rank 0 has 1024");
    DIFFERS(min_scale, 1.0f, "1, rank 0 has");
    DIFFERS(max_scale, 131072.0f, "131072, rank 0 has 16777216");
    DIFFERS(growth, 4.0, "4, rank 0 has 2");
    DIFFERS(backoff, 0.25, "0.25, rank 0 has 0.5");
    DIFFERS(window, 3, "3, rank 0 has 2000");
    DIFFERS(hysteresis, 5, "5, rank 0 has 1");
    DIFFERS(consecutive_hysteresis, AMP_OFF, "1, rank 0 has 2");
    DIFFERS(max_skips, 7, "7, rank 0 has 100");
#undef DIFFERS
}

/* A bracket in which every gradient begins with this number, and the step that takes its decision. */
static bool bracket(struct net *net, amp_optimizer *optimizer, float gradient) {
    amp_scaled_loss scaled = AMP_SCALED_LOSS_INIT;
    amp_step_info info = AMP_STEP_INFO_INIT;
    memset(net->grads, 0, sizeof net->grads);
    if (amp_scale_loss_begin(optimizer, NULL, &scaled) != AMP_OK) return false;
    for (int i = 0; i < BUFFERS; i++) net->grads[i][0] = gradient * amp_seed_factor(&scaled);
    return amp_scale_loss_end(&scaled) == AMP_OK && amp_step_begin(optimizer, &info) == AMP_OK &&
           amp_step_end(optimizer) == AMP_OK;
}

/* Equal settings and scales, and another place of the scale's course on rank 2: `more` is a bracket that it has before
 * the one that all have. */
static void compares_courses(float more, const char *words) {
    struct net net;
    amp_optimizer optimizer;
    amp_config config = settings();
    config.hysteresis = 3, config.consecutive_hysteresis = AMP_OFF;
    bool right = net_initialize(&net, &optimizer, &config, true) &&
                 amp_mpi_check_settings(net.mpi, net.model.amp) == AMP_OK;
    if (rank == 2) right = right && bracket(&net, &optimizer, more);
    right = right && bracket(&net, &optimizer, 1.0f);
    ok(right && amp_mpi_check_settings(net.mpi, net.model.amp) == AMP_ERR_CONFLICT && says(&net, words), words);
    net_end(&net);
}

/* ---- calls ---- */

/* NaN: the timeout stays what it was, and the ranks wait for rank 1 as before. Set by hand it is none. */
static void refuses_nan(void) {
    struct net net;
    double value = (double)(rank == 1 ? size : rank);
    net_open(&net, MPI_COMM_WORLD);
    bool right = amp_mpi_set_timeout(net.mpi, 600.0) == AMP_OK && amp_mpi_set_timeout(net.mpi, -INFINITY) == AMP_OK &&
                 amp_mpi_set_timeout(net.mpi, 600.0) == AMP_OK &&
                 amp_mpi_set_timeout(net.mpi, NAN) == AMP_ERR_INVALID_ARGUMENT && says(&net, "NaN");
    ok(right && net.mpi->timeout == 600.0, "a timeout of NaN is refused");
    net.mpi->timeout = NAN;
    const double since = MPI_Wtime();
    while (rank == 1 && MPI_Wtime() - since < 0.05) continue;
    ok(amp_mpi_reduce(net.mpi, AMP_REDUCE_MAX, &value, 1) == AMP_OK && value == size, "and never means not to wait");
    net_close(&net);
}

/* Ranks at different places of the program: each of these left the job to MPI's fatal handler, or a wrong number. */
static void finds_out_of_step(void) {
    double values[6] = { 1.0, 2.0, 3.0, 4.0, 5.0, (double)rank };
    for (int i = 0; i < 4; i++) {
        static const char *const what[] = { "one value and two", "a sum and the greatest", "a broadcast and a check",
                                            "a reduction and a check" };
        struct net net;
        amp_status status = AMP_OK;
        net_open(&net, MPI_COMM_WORLD);
        amp_mpi *mpi = net.mpi;
        const bool other = rank == 1;
        if (i == 0) status = amp_mpi_reduce(mpi, AMP_REDUCE_MAX, values, other ? 2 : 1);
        if (i == 1) status = amp_mpi_reduce(mpi, other ? AMP_REDUCE_SUM : AMP_REDUCE_MAX, values, 1);
        if (i == 2) status = other ? amp_mpi_broadcast(mpi) : amp_mpi_check_equal(mpi);
        if (i == 3) status = other ? amp_mpi_reduce(mpi, AMP_REDUCE_MAX, values, 1) : amp_mpi_check_equal(mpi);
        ok(status == AMP_ERR_BACKEND && says(&net, "out of step") && values[0] == 1.0, what[i]);
    }
}

/* An error that MPI finds while a message is on its way: Open MPI would give it to MPI_COMM_WORLD's handler, which ends
 * the job. Root sends 64 bytes, and the others expect one. */
static void returns_errors(void) {
    struct net net;
    char bytes[64] = "";
    net_open(&net, MPI_COMM_WORLD);
    (void)amp_mpi_set_timeout(net.mpi, 600.0);
    const amp_status status =
        amp_mpi_exchange_(net.mpi, bytes, rank ? 1 : sizeof bytes, 1, MPI_BYTE, MPI_OP_NULL, "truncated");
    ok(rank ? status == AMP_ERR_BACKEND && says(&net, "MPI says") : status == AMP_OK, "MPI's errors come back");
}

/* The host's communicator: its handler, which ends the job, comes back; and what is none is refused. */
static void opens(void) {
    MPI_Errhandler handler;
    MPI_Comm odd, pair;
    amp_mpi *mpi = NULL;
    struct net net;
    net_open(&net, MPI_COMM_WORLD);
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &handler);
    ok(handler == MPI_ERRORS_ARE_FATAL, "the host's error handler is its own");
    MPI_Comm_get_errhandler(net.mpi->comm, &handler);
    ok(handler == MPI_ERRORS_RETURN, "and libamp's returns");
    net_close(&net);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &odd);
    MPI_Intercomm_create(odd, 0, MPI_COMM_WORLD, 1 - rank % 2, 0, &pair);
    ok(amp_mpi_open(MPI_COMM_NULL, NULL, &mpi) == AMP_ERR_INVALID_ARGUMENT &&
           amp_mpi_open(pair, NULL, &mpi) == AMP_ERR_INVALID_ARGUMENT && !mpi,
       "no communicator, and one of two groups");
    MPI_Comm_free(&pair);
    MPI_Comm_free(&odd);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    ok(size == 4, "four ranks");
    compares_orders();
    compares_settings();
    compares_courses(1.0f, "rank 2 has unskipped 2 of loss 0, rank 0 has 1");
    compares_courses(INFINITY, "rank 2 has hysteresis_left 2 of loss 0, rank 0 has 3");
    opens();
    refuses_nan();
    finds_out_of_step();
    returns_errors();
    return done();
}
