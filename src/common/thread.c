/* SPDX-License-Identifier: Apache-2.0 */
#include "common/thread.h"

static _Thread_local struct amp__thread state;

struct amp__thread *amp__thread_state(void) { return &state; }

static void leave_top(struct amp__thread *thread) {
    thread->scope = thread->marks[--thread->n_marks].saved;
}

/*
 * The anchor may lie in frames of others by now: what stands there is only looked at. A frame that is not below it is
 * none that the wrapper called. (An anchor that is not in its frame is AddressSanitizer's: it can keep locals elsewhere.)
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
    leave_top(thread);
    if (abandoned) abandoned(user);
}

void amp__thread_recover(struct amp__thread *thread, const void *frame) {
    while (thread->n_marks && is_gone(&thread->marks[thread->n_marks - 1], frame)) drop_top(thread);
}

void amp__thread_unwind(struct amp__thread *thread, uint32_t n_marks, struct amp__scope_state scope) {
    while (thread->n_marks > n_marks) drop_top(thread);
    thread->scope = scope;
}

bool amp__mark_push(struct amp__thread *thread, const void *frame, amp__anchor *anchor, struct amp__scope_state scope,
                    void (*abandoned)(void *), void *user) {
    if (thread->n_marks == AMP__MARKS) return false;
    struct amp__mark *mark = &thread->marks[thread->n_marks++];
    mark->frame = (uintptr_t)frame;
    mark->anchor = anchor;
    mark->number = (uintptr_t)&thread->marks ^ ++thread->last_number << 16; /* no common word */
    for (size_t i = 0; i < AMP_COUNT(anchor->words); i++) anchor->words[i] = mark->number;
    __asm__ volatile("" : : "r"(anchor) : "memory"); /* nobody reads them but is_gone, later */
    mark->saved = thread->scope;
    mark->owner = NULL;
    mark->traps.masked = false;
    mark->abandoned = abandoned;
    mark->user = user;
    thread->scope = scope;
    return true;
}

void amp__mark_pop(struct amp__thread *thread, const amp__anchor *anchor) {
    while (thread->marks[thread->n_marks - 1].anchor != anchor) drop_top(thread);
    leave_top(thread);
    __asm__ volatile("" : : "r"(anchor) : "memory"); /* they are in the frame until here */
}
