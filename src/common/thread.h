/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data of a thread: the last error, the scope (the context with the current policy), and the marks of running wrapped
 * calls. All in one thread-local object without a destructor, so that dlopen and thread exit stay simple.
 */
#ifndef AMP_THREAD_H
#define AMP_THREAD_H

#include "common/common.h"
#include "common/traps.h"

#define AMP__ERROR_SIZE 1024
#define AMP__MARKS 64 /* wrapped forwards and steps nested on one thread; deeper calls pass through */
#define AMP__AROUND 64 /* contexts that are remembered of nested scopes */

/* The current scope. set: a scope was entered. context NULL with `set`: no policy (disabled). */
struct amp__scope_state {
    amp_context *context;
    bool set;
    bool inside; /* in a wrapped op or a host hook: calls run as they come */
    bool rehearses; /* in a run of libamp's own (verify): they are not the host's, and not counted */
};

/* Words in a wrapper's frame that hold its mark's number as long as the frame lives: several, since later frames have
 * holes; more would be paid for by each call (64 cost 6 ns of 31, these nothing that can be seen). */
typedef struct amp__anchor {
    uintptr_t words[16];
} amp__anchor;

/*
 * A wrapper running on this thread, by the address of its frame. Marks detect a longjmp out of the host: the stack
 * grows down, so a mark below the present frame belongs to a frame that is gone, and the scope that it saved must be
 * restored. If the next call comes from deeper in the stack, the address does not help but the anchor does, since later
 * frames have overwritten it (unless a large unused array skipped it, when the mark stays until a call from further
 * up).
 */
struct amp__mark {
    uintptr_t frame;
    const amp__anchor *anchor;
    uintptr_t number;
    struct amp__scope_state saved;
    const void *owner; /* context of the wrapper, which must not end meanwhile */
    struct amp__traps traps;       /* masked for the op that runs in the frame; put back if it was jumped over */
    void (*abandoned)(void *user); /* called if the frame was jumped over (may be NULL) */
    void *user;
};

struct amp__thread {
    struct amp__scope_state scope;
    struct amp__traps traps; /* of before the first open bracket that was begun on this thread */
    uint32_t scopes;         /* entered and not left */
    const amp_context *around[AMP__AROUND]; /* context around each of the first of them */
    uint32_t brackets;       /* open ones that were begun on it */
    uint32_t n_marks;
    uintptr_t last_number; /* of marks */
    struct amp__mark marks[AMP__MARKS];
    char error[AMP__ERROR_SIZE];
};

struct amp__thread *amp__thread_state(void);

/* Drops marks of frames that are gone, innermost first. `frame`: address in the caller's frame. */
void amp__thread_drop_gone(struct amp__thread *thread, const void *frame);
static inline void amp__thread_recover(struct amp__thread *thread, const void *frame) {
    if (thread->n_marks) amp__thread_drop_gone(thread, frame);
}

/* Drops the marks above the first `n_marks` when an exception leaves their frames, and restores `scope`. */
void amp__thread_unwind(struct amp__thread *thread, uint32_t n_marks, struct amp__scope_state scope);

/* Enters `scope` under a mark, false if the marks are exhausted (nothing changed). frame and anchor are
 * the caller's. */
static inline bool amp__mark_push(struct amp__thread *thread, const void *frame, amp__anchor *anchor,
                                  struct amp__scope_state scope, void (*abandoned)(void *), void *user) {
    if (thread->n_marks == AMP__MARKS) return false;
    struct amp__mark *mark = &thread->marks[thread->n_marks++];
    mark->frame = (uintptr_t)frame;
    mark->anchor = anchor;
    mark->number = (uintptr_t)&thread->marks ^ ++thread->last_number << 16; /* no common word */
#pragma GCC unroll 16 /* the end of a loop of so many would be mispredicted at each call */
    for (size_t i = 0; i < AMP_COUNT(anchor->words); i++) anchor->words[i] = mark->number;
    __asm__ volatile("" : : "r"(anchor) : "memory"); /* read later by is_gone only */
    mark->saved = thread->scope;
    mark->owner = NULL;
    mark->traps.masked = false;
    mark->abandoned = abandoned;
    mark->user = user;
    thread->scope = scope;
    return true;
}
static inline struct amp__mark *amp__mark_top(struct amp__thread *thread) {
    return &thread->marks[thread->n_marks - 1];
}
/* Sets the context of the top mark. */
static inline void amp__mark_own(struct amp__thread *thread, const void *owner) {
    amp__mark_top(thread)->owner = owner;
}
/* Drops the marks above the one that was pushed with `anchor`: a longjmp jumped over them. */
void amp__mark_drop_above(struct amp__thread *thread, const amp__anchor *anchor);
/* Leaves the mark that was pushed with `anchor`, and any above it. */
static inline void amp__mark_pop(struct amp__thread *thread, const amp__anchor *anchor) {
    if (thread->marks[thread->n_marks - 1].anchor != anchor) amp__mark_drop_above(thread, anchor);
    thread->scope = thread->marks[--thread->n_marks].saved;
    __asm__ volatile("" : : "r"(anchor) : "memory"); /* they are in the frame until here */
}

#endif
