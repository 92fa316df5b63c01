/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the fuzzers of numbers: reading the input, elements of any bits, guarded blocks; and the families of
 * fuzz_numbers.c. */
#ifndef TEST_FUZZ_NUMBERS_H
#define TEST_FUZZ_NUMBERS_H

#include "../kernels/support.h"

#include <stdio.h>
#include <stdlib.h>

/* Ends the program with a message if `condition` is false. */
#define need(condition, ...)                                                                                           \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                            \
            fprintf(stderr, __VA_ARGS__);                                                                              \
            fprintf(stderr, " (%s)\n", amp_last_error());                                                              \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

struct bytes {
    const uint8_t *at, *end;
};

unsigned take(struct bytes *bytes);                      /* the next byte; 0 behind the last */
unsigned take_below(struct bytes *bytes, unsigned n);    /* from 0 on; n at most 65536 */
float take_factor(struct bytes *bytes);                  /* of a table: ordinary, extreme and not finite ones */
size_t take_size(struct bytes *bytes, size_t most);      /* mostly short */
/* Elements: a pattern of the kernels' tests, or the bytes that are left, over and over. */
void take_elements(struct bytes *bytes, amp_dtype type, void *data, size_t n);

/* ---- blocks ---- */

enum { ENTRIES = 4, LONGEST_ENTRY = 700, BLOCKS = 16 };

/* Block `number` for this input, of so many bytes, aligned to `align` and no more; a guard page is right behind it. */
void *block(unsigned number, size_t bytes, size_t align, struct bytes *bytes_);
/* Fails if a byte around a block of this input has changed. */
void need_borders(void);
void forget_blocks(void);

/* A refusal has words. */
static inline void need_refused(amp_status status, const char *what) {
    need(status != AMP_OK, "%s: taken", what);
    need(*amp_last_error(), "%s: refused without words", what);
}

void fuzz_lists(struct bytes *bytes);    /* numbers_lists.c: amp_kernels.h's lists, against the oracle */
void fuzz_sums(struct bytes *bytes);     /* numbers_sums.c: norms, statistics, split masters */
void fuzz_packs(struct bytes *bytes);    /* numbers_packs.c: amp_pack.h, against the format written again */
void fuzz_product(struct bytes *bytes);  /* numbers_packs.c: amp_matmul, against sums in double */
void fuzz_optimizer(struct bytes *bytes); /* numbers_optim.c: amp_optim_list, against the scalar set and the papers */

#endif
