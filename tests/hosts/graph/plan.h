/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory planning: buffers with known lifetimes get offsets in one arena, so that those which never live at the same
 * time may share bytes. Part of the frameworks in this folder; knows nothing of libamp.
 */
#ifndef PLAN_H
#define PLAN_H

#include <stddef.h>

/* A buffer that is written for the first time at step `birth` and used for the last time at step `death`. */
struct plan_item {
    size_t bytes;
    int birth, death;
    size_t offset; /* the answer; 64-byte aligned */
};

/* Fills the offsets, first fit in the order of the items. Returns the arena's size in bytes. */
size_t plan_memory(struct plan_item *items, int n);

#endif
