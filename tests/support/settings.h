/* SPDX-License-Identifier: Apache-2.0 */
/* A rig whose configuration has more than a level. */
#ifndef TEST_SETTINGS_H
#define TEST_SETTINGS_H

#include "checks.h"

/* As RIG_START, with members of amp_config: RIG_WITH(rig, AMP_O1, 0, .window = 2, .max_skips = 3); */
#define RIG_WITH(name, level_, options, ...)                                                                           \
    RIG_INIT(name, options);                                                                                           \
    ck_assert_msg(rig_config(&name, &(amp_config){ .struct_size = sizeof(amp_config), .level = (level_),               \
                                                   __VA_ARGS__ }) == AMP_OK, "%s", amp_last_error())

#endif
