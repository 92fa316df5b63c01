/* SPDX-License-Identifier: Apache-2.0 */
#include "context/parts.h"
#include "context/context.h"
#include "context/optimizer.h"

/* No context is a const object: amp_initialize allocates it. */
static amp_context *whole(const amp_context *context) { return (amp_context *)(uintptr_t)context; }

const struct amp__policy *amp__policy_of(const amp_context *context) { return &context->policy; }
struct amp__progress *amp__progress_of(const amp_context *context) { return &whole(context)->progress; }
struct amp__params *amp__params_of(const amp_context *context) { return &whole(context)->params; }
struct amp__addresses *amp__addresses_of(const amp_context *context) { return &whole(context)->addresses; }
struct amp__wiring *amp__wiring_of(const amp_context *context) { return &whole(context)->wiring; }
struct amp__brackets *amp__brackets_of(const amp_context *context) { return &whole(context)->brackets; }
struct amp__devices *amp__devices_of(const amp_context *context) { return &whole(context)->devices; }
struct amp__reporting *amp__reporting_of(const amp_context *context) { return &whole(context)->reporting; }
struct amp__cache *amp__cache_of(const amp_context *context) { return &whole(context)->cache; }
struct amp__ledger *amp__ledger_of(const amp_context *context) { return &whole(context)->cache.ledger; }
struct amp__spares *amp__spares_of(const amp_context *context) { return &whole(context)->spares; }
pthread_mutex_t *amp__lock_of(const amp_context *context) { return &whole(context)->lock; }
const struct amp__models *amp__models_of(const amp_context *context) { return &context->models; }
const struct amp__optimizers *amp__optimizers_of(const amp_context *context) { return &context->optimizers; }
struct amp__observer *amp__observer_of(const amp_context *context) { return context->observer; }

const amp_host *amp__any_host(const amp_context *context) {
    if (context->models.n) return &context->models.list[0].host;
    return context->optimizers.n ? &context->optimizers.list[0].host : NULL;
}

bool amp__is_python(const amp_context *context) {
    const amp_host *host = amp__any_host(context);
    return host && host->flags & AMP_HOST_IS_PYTHON;
}

size_t amp__optimizer_number(const struct amp__optimizer *optimizer) {
    return (size_t)(optimizer - optimizer->context->optimizers.list);
}
