/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The parts of a context, for files that have its address and see none of its members (context/context.h). A part has
 * its own header, and its functions take the part. The context behind a const pointer may still be written through its
 * parts: by atomics, under the lock, or by brackets and steps.
 */
#ifndef AMP_CONTEXT_PARTS_H
#define AMP_CONTEXT_PARTS_H

#include "amp.h"
#include "common/common.h"

#include <pthread.h>

struct amp__addresses;
struct amp__brackets;
struct amp__cache;
struct amp__devices;
struct amp__ledger;
struct amp__models;
struct amp__observer;
struct amp__optimizers;
struct amp__params;
struct amp__policy;
struct amp__progress;
struct amp__reporting;
struct amp__spares;
struct amp__wiring;

const struct amp__policy *amp__policy_of(const amp_context *context);
struct amp__progress *amp__progress_of(const amp_context *context);
struct amp__params *amp__params_of(const amp_context *context);
struct amp__addresses *amp__addresses_of(const amp_context *context);
struct amp__wiring *amp__wiring_of(const amp_context *context);
struct amp__brackets *amp__brackets_of(const amp_context *context);
struct amp__devices *amp__devices_of(const amp_context *context);
struct amp__reporting *amp__reporting_of(const amp_context *context);
struct amp__cache *amp__cache_of(const amp_context *context);
struct amp__ledger *amp__ledger_of(const amp_context *context); /* of the cache */
struct amp__spares *amp__spares_of(const amp_context *context);
pthread_mutex_t *amp__lock_of(const amp_context *context);
struct amp__observer *amp__observer_of(const amp_context *context); /* NULL: not observing */
const struct amp__models *amp__models_of(const amp_context *context);
const struct amp__optimizers *amp__optimizers_of(const amp_context *context);

/* Returns a host for reports: that of the first model, else of the first optimizer, else NULL. */
const amp_host *amp__any_host(const amp_context *context);
bool amp__is_python(const amp_context *context); /* Do remedies name Python's functions? */

#endif
