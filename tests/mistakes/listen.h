/* SPDX-License-Identifier: Apache-2.0 */
/* What libamp said since `heard` was last made empty, a line each. */
#ifndef LISTEN_H
#define LISTEN_H

#include "mistakes.h"

enum { HEARD_SIZE = 1 << 16 };
extern char heard[HEARD_SIZE];
/* The first failure since it was last made AMP_OK. */
extern amp_status heard_status;

#endif
