/* SPDX-License-Identifier: Apache-2.0 */
/* What a program needs lies beside it, so that both can be moved together. */
#ifndef BESIDE_H
#define BESIDE_H

#include <stddef.h>

/* "FOLDER/name" with the folder of this program's file, in `path`; where the system does not say it, or it is too long,
 * the name alone, which is in the current folder. */
const char *beside_program(char *path, size_t size, const char *name);

#endif
