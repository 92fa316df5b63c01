/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the products of gemm.c; with an argument through the adapter that amp-adapt wrote, product.c. */
#include <stdio.h>

int product_start(void);
void product_health(void);
int run(void);

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1 && product_start()) return 1;
    run();
    fflush(stdout);
    if (argc > 1) product_health();
    return 0;
}
