/* SPDX-License-Identifier: Apache-2.0 */
/* What a context has found, for tests of it. */
#ifndef TEST_FINDINGS_H
#define TEST_FINDINGS_H

#include "../support/found.h"
#include "bracket.h"

#define ck_health(rig, words) ck_assert_msg(strstr(health((rig)->context), (words)), "%s", health((rig)->context))
#define ck_found(rig, code) ck_assert_msg(found((rig)->context, (code)), "%s", health((rig)->context))

static inline void train(struct rig *rig, int steps) {
    for (int i = 0; i < steps; i++) ck_ok(net_train_step(&rig->net, 0.5));
}

#endif
