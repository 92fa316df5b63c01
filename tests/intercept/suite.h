/* SPDX-License-Identifier: Apache-2.0 */
/* What every test of this folder needs around its tests. */
#ifndef TEST_INTERCEPT_SUITE_H
#define TEST_INTERCEPT_SUITE_H

#include "amp_all.h"

#include "test.h"
#include <stdlib.h>
#include <string.h>

#define ck_ok(expression) ck_assert_msg((expression) == AMP_OK, "%s", amp_last_error())
#define ck_fails(status, expression) ck_assert_int_eq((expression), (status))
#define ck_says(text) ck_assert_msg(strstr(amp_last_error(), (text)), "\"%s\" not in: %s", (text), amp_last_error())

#endif
