/* SPDX-License-Identifier: Apache-2.0 */
/* What the trainer prints, from the reference of tests/hosts/common: reference 1 = level O1. */
#include "problem.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    static struct curve curve;
    if (argc != 3) return 2;
    reference_train(atoi(argv[1]), (float)atof(argv[2]), &curve);
    for (int i = 0; i < STEPS; i++) printf("%a\n", (double)curve.loss[i]);
    for (int i = 0; i < PARAM_FLOATS; i++) printf("%a\n", (double)curve.params[i]);
    return 0;
}
