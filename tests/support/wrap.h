/* SPDX-License-Identifier: Apache-2.0 */
/* WRAP(int, fsync, int fd) { ... } stands in the place of fsync, which is __real_fsync, in a program that is linked
 * with -Wl,--wrap=fsync. */
#ifndef TEST_WRAP_H
#define TEST_WRAP_H

#define WRAP(type, name, ...)                                                                                          \
    type __real_##name(__VA_ARGS__);                                                                                   \
    type __wrap_##name(__VA_ARGS__);                                                                                   \
    type __wrap_##name(__VA_ARGS__)

#endif
