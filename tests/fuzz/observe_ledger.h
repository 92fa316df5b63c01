/* SPDX-License-Identifier: Apache-2.0 */
/* The observations that fuzz_observe.c expects: its own notes, counted by the oracle of tests/kernels. */
#ifndef TEST_FUZZ_OBSERVE_LEDGER_H
#define TEST_FUZZ_OBSERVE_LEDGER_H

#include "numbers.h"

struct entry {
    uint32_t what;
    char op[64], name[32]; /* op "": a parameter */
    uint64_t iterations, iteration; /* in which it was seen; the last of them */
    amp_statistics last, total;
};

enum { MOST_ENTRIES = 96 };
struct ledger {
    struct entry entries[MOST_ENTRIES];
    size_t n;
    uint64_t iteration;
    amp_observe_options options; /* that are in force */
    bool on;
};

void ledger_begin(struct ledger *ledger, const amp_observe_options *options);
/* Elements of an op's argument (op NULL: of a parameter) in this iteration, if the options want them. */
void ledger_note(struct ledger *ledger, uint32_t what, const char *op, const char *name, amp_dtype type,
                 const void *data, size_t n);
/* Fails if libamp's observations differ from the ledger. Updates and masters are not compared. */
void ledger_compare(const struct ledger *ledger, amp_context *context);

#endif
