/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A context: the result of one initialize. Built once by initialize.c, and immutable afterwards except for members that
 * are atomic, under the lock, or of brackets and steps (one thread at a time, see amp.h).
 */
#ifndef AMP_CONTEXT_H
#define AMP_CONTEXT_H

#include "call/cache.h"
#include "common/spare.h"
#include "context/addresses.h"
#include "context/brackets.h"
#include "context/devices.h"
#include "context/op.h"
#include "context/optimizer.h"
#include "context/params.h"
#include "context/policy.h"
#include "context/progress.h"
#include "context/reporting.h"
#include "context/tape.h"
#include "context/wiring.h"
#include "system/system.h"

#include <pthread.h>

struct amp_context {
    amp_context *next_live; /* live.c */
    struct amp__policy policy;
    struct amp__progress progress;
    struct amp__models models;
    struct amp__optimizers optimizers;
    struct amp__params params;
    struct amp__addresses addresses;
    struct amp__wiring wiring;
    struct amp__brackets brackets;
    struct amp__devices devices;
    struct amp__tape tape;
    struct amp__reporting reporting;
    struct amp__observer *observer; /* NULL: not observing */
    struct amp__cache cache;
    struct amp__spares spares; /* memory of calls, and packed weights */
    struct amp__forkable forkable; /* of the lock */
    pthread_mutex_t lock;          /* of the parts' members that name it */
};

#endif
