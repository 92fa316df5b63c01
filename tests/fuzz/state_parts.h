/* SPDX-License-Identifier: Apache-2.0 */
/* The half of fuzz_state.c that loads a state in parts. */
#ifndef TEST_FUZZ_STATE_PARTS_H
#define TEST_FUZZ_STATE_PARTS_H

#include <stddef.h>
#include <stdint.h>

/* Makes both checksums of a state right, whatever is between them; nothing where they have no place. */
void write_checksums(char *state, size_t size);

/* The input chooses among parts that three sharded optimizers saved, damages one, and loads them together. */
void load_parts(const uint8_t *input, size_t size);

#endif
