/* SPDX-License-Identifier: Apache-2.0 */
/* A folder with one state in it, and a system whose calls fail, come up short or are interrupted when told to. For
 * tests linked with --wrap for the calls in place.c. */
#ifndef TEST_PLACE_H
#define TEST_PLACE_H

#include "forge.h"

/* Libamp's allocations and the JSON library's: the n-th from fail_none on fails. Bytes in use, and the most
 * there were. */
extern unsigned long allocations, allocation_fails_at; /* 0: none */
extern size_t in_use, peak;

enum { ON_OPEN, ON_PREAD, ON_WRITE, ON_FSYNC, ON_LINK, ON_RENAME, ON_CHOWN, ON_RANDOM, N_CALLS };
extern bool interrupted, shortened; /* every other call fails with EINTR; writes and reads move a few bytes only */

extern bool no_nameless;            /* O_TMPFILE is refused, as by file systems that have none */
extern bool always;                 /* from the n-th on, all of them */
/* files that somebody else could open while they had content, or before they got some */
extern unsigned readable_by_others;
extern bool cleaner_comes; /* one who cannot see our process locks the next file before we do, and removes it */
extern unsigned removed_unlocked; /* files that were removed while nobody held their lock */

/* Nothing fails any more, and counting begins anew. */
void fail_none(void);
/* The same, but for the n-th call of this kind. */
void fail_call(int call, unsigned long n, int error);
/* Did a call fail since? */
bool one_failed(void);

struct place {
    struct rig rig;
    char folder[64], path[96];
    struct bytes old, fresh; /* the file there, and what the next save writes */
};

void place_init(struct place *place);
void place_end(struct place *place);
#define PLACE(name) __attribute__((cleanup(place_end))) struct place name; place_init(&name)

bool holds(const struct place *place, const struct bytes *wanted);
/* Removes what is not the state itself; how many there were. */
int strangers(const struct place *place);
/* The old file is there and no other. `what` and n are for the message. */
void still_old(const struct place *place, const char *what, unsigned long n);

#endif
