/* SPDX-License-Identifier: Apache-2.0 */
#include "common/thread.h"

static _Thread_local struct amp__thread state;

struct amp__thread *amp__thread_state(void) { return &state; }

/*
 * Returns true if the frame of a mark is gone. The anchor may be in the frame of another function now, so it is only
 * read. A frame that is not below it was not called by the wrapper. (AddressSanitizer can move the anchor out of its
 * frame.)
 */
__attribute__((noinline, no_sanitize("address", "thread"))) static bool is_gone(const struct amp__mark *mark,
                                                                               const void *frame) {
    const uintptr_t anchor = (uintptr_t)mark->anchor;
    if (mark->frame < (uintptr_t)frame) return true;
    if (anchor >= mark->frame || mark->frame - anchor > 1u << 16) return false;
    if (anchor < (uintptr_t)frame) return true;
    for (size_t i = 0; i < AMP_COUNT(mark->anchor->words); i++)
        if (mark->anchor->words[i] != mark->number) return true;
    return false;
}

static void drop_top(struct amp__thread *thread) {
    const struct amp__mark *mark = &thread->marks[thread->n_marks - 1];
    void (*abandoned)(void *) = mark->abandoned;
    void *user = mark->user;
    amp__traps_restore(&mark->traps);
    thread->scope = thread->marks[--thread->n_marks].saved;
    if (abandoned) abandoned(user);
}

void amp__thread_drop_gone(struct amp__thread *thread, const void *frame) {
    while (thread->n_marks && is_gone(&thread->marks[thread->n_marks - 1], frame)) drop_top(thread);
}

void amp__thread_unwind(struct amp__thread *thread, uint32_t n_marks, struct amp__scope_state scope) {
    while (thread->n_marks > n_marks) drop_top(thread);
    thread->scope = scope;
}

void amp__mark_drop_above(struct amp__thread *thread, const amp__anchor *anchor) {
    while (thread->marks[thread->n_marks - 1].anchor != anchor) drop_top(thread);
}
