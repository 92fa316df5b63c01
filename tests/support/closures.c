/* SPDX-License-Identifier: Apache-2.0 */
/* A program with this file runs on libffi's closures alone where AMP_TEST_CLOSURES is set: the same tests, the other
 * way into libamp. */
#include "closures.h"

#include <stdlib.h>

__attribute__((constructor)) static void choose_way(void) {
    if (getenv("AMP_TEST_CLOSURES")) use_up_stubs();
}
