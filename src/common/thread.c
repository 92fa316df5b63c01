/* SPDX-License-Identifier: Apache-2.0 */
#include "common/thread.h"

static _Thread_local struct amp__thread state;

struct amp__thread *amp__thread_state(void) { return &state; }

static void leave_top(struct amp__thread *thread) {
    thread->scope = thread->marks[--thread->n_marks].saved;
}

void amp__thread_recover(struct amp__thread *thread, const void *frame) {
    while (thread->n_marks && thread->marks[thread->n_marks - 1].frame < (uintptr_t)frame) {
        const struct amp__mark *mark = &thread->marks[thread->n_marks - 1];
        void (*abandoned)(void *) = mark->abandoned;
        void *user = mark->user;
        amp__traps_restore(&mark->traps);
        leave_top(thread);
        if (abandoned) abandoned(user);
    }
}

bool amp__mark_push(struct amp__thread *thread, const void *frame, struct amp__scope_state scope,
                    void (*abandoned)(void *), void *user) {
    if (thread->n_marks == AMP__MARKS) return false;
    struct amp__mark *mark = &thread->marks[thread->n_marks++];
    mark->frame = (uintptr_t)frame;
    mark->saved = thread->scope;
    mark->traps.masked = false;
    mark->abandoned = abandoned;
    mark->user = user;
    thread->scope = scope;
    return true;
}

void amp__mark_pop(struct amp__thread *thread, const void *frame) {
    amp__thread_recover(thread, frame);
    leave_top(thread);
}
