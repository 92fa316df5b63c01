/* SPDX-License-Identifier: Apache-2.0 */
/* What every test of this folder needs around its tests. */
#ifndef TEST_INTERCEPT_SUITE_H
#define TEST_INTERCEPT_SUITE_H

#include "asserts.h"

#include <stdlib.h>

#endif
