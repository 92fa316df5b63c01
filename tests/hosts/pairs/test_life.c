/* SPDX-License-Identifier: Apache-2.0 */
#include "trainer.h"
static void add(TCase *tcase) { (void)tcase; }
int main(void) { return run_suite("pairs: life", add); }
