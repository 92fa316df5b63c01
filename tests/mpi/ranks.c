/* SPDX-License-Identifier: Apache-2.0 */
#include "ranks.h"

int rank, size;
const int sizes[BUFFERS] = { 7, 1, 64, 30 };
static int n_tests, n_failed;

void ok(bool good, const char *what) {
    int bad = !good;
    if (bad) fprintf(stderr, "# rank %d: %s\n", rank, what);
    MPI_Allreduce(MPI_IN_PLACE, &bad, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    n_failed += bad;
    n_tests++;
    if (rank == 0) printf("%s %d - %s\n", bad ? "not ok" : "ok", n_tests, what);
}

int done(void) {
    if (rank == 0) printf("1..%d\n", n_tests);
    fflush(stdout);
    MPI_Finalize();
    return n_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

static amp_status reduce(void *self, amp_reduction reduction, double *values, size_t n) {
    return amp_mpi_reduce(((struct net *)self)->mpi, reduction, values, n);
}

void net_open(struct net *net, MPI_Comm comm) {
    static const char *const names[BUFFERS] = { "a", "b", "c", "d" };
    memset(net, 0, sizeof *net);
    for (int i = 0; i < BUFFERS; i++) {
        for (int k = 0; k < sizes[i]; k++) net->data[i][k] = (float)(i + k);
        net->gradients[i] = (amp_buffer)AMP_BUFFER_INIT;
        net->gradients[i].data = net->grads[i], net->gradients[i].size = sizes[i];
        net->params[i] = net->gradients[i];
        net->params[i].data = net->data[i], net->params[i].grad = &net->gradients[i];
        net->handles[i] = &net->params[i];
        net->described[i] = (amp_param)AMP_PARAM_INIT;
        net->described[i].tensor = &net->params[i], net->described[i].name = names[i];
    }
    net->host = *amp_buffer_host();
    net->host.self = net;
    net->host.reduce = reduce;
    net->model = (amp_model)AMP_MODEL_INIT;
    net->model.host = &net->host;
    net->model.params = net->described, net->model.n_params = BUFFERS;
    if (amp_mpi_open(comm, &net->model, &net->mpi) == AMP_OK) return;
    fprintf(stderr, "rank %d: %s\n", rank, amp_mpi_error(NULL));
    MPI_Abort(MPI_COMM_WORLD, 1);
}

bool net_initialize(struct net *net, amp_optimizer *optimizer, const amp_config *config, bool alone) {
    amp_model *model = &net->model;
    net_open(net, MPI_COMM_WORLD);
    if (alone) net->host.reduce = NULL;
    *optimizer = (amp_optimizer)AMP_OPTIMIZER_INIT;
    optimizer->host = &net->host, optimizer->params = net->handles, optimizer->n_params = BUFFERS;
    return amp_initialize_many(&model, 1, &optimizer, 1, config, NULL) == AMP_OK;
}

bool says(const struct net *net, const char *words) { return strstr(amp_mpi_error(net->mpi), words) != NULL; }

void net_end(struct net *net) {
    (void)amp_shutdown(net->model.amp);
    net_close(net);
}

void net_close(struct net *net) { amp_mpi_close(net->mpi); }
