/* SPDX-License-Identifier: Apache-2.0 */
/* A program of darknet's that knows nothing of libamp: darknet_trainer CFG. For each byte that it is sent on descriptor
 * 0 it trains a step, and sends the byte back. */
#include <darknet.h>
#include <unistd.h>

int main(int argc, char **argv) {
    char byte;
    if (argc != 2) return 2;
    srand(1);
    network *net = parse_network_cfg(argv[1]);
    for (int i = 0; i < net->inputs * net->batch; i++) net->input[i] = rand_uniform(-1, 1);
    for (int i = 0; i < net->batch; i++) net->truth[i * net->truths + i % net->truths] = 1;
    while (read(0, &byte, 1) == 1) {
        train_network_datum(net);
        if (write(0, &byte, 1) != 1) return 1;
    }
    free_network(net);
    return 0;
}
