/* SPDX-License-Identifier: Apache-2.0 */
/* Other copies of libamp in this process: a wheel's beside the system's, one linked statically. */
#ifndef AMP_COPIES_H
#define AMP_COPIES_H

#include <stdbool.h>

struct amp__copies {
    char own[512], other[512]; /* files, or "the program itself" if linked into it */
};

/* Each copy carries an ELF note, which is visible whatever its symbols are and however it was loaded (not in another
 * namespace of dlmopen). False: this copy is the only one, or the search is impossible (a forked child). */
bool amp__find_copy(struct amp__copies *found);

#endif
