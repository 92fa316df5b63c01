/* SPDX-License-Identifier: Apache-2.0 */
/* amp_config.verify as a probe: on the host's side a reference (reference.c), on the op's side a watch (watch.c). */
#include "common/traps.h"
#include "context/op.h"
#include "context/parts.h"
#include "context/policy.h"
#include "raw/raw.h"

struct verifying {
    struct amp__watch watch;
    struct amp__reference reference;
};
_Static_assert(sizeof(struct verifying) <= AMP__PROBE_ROOM, "room of a call");

static amp_status rehearse(struct amp__watch *watch, const struct amp__probed *call) {
    struct amp__traps traps;
    amp__traps_mask(&traps);
    const amp_status status = amp__watch_probe(watch, call);
    amp__traps_restore(&traps);
    return status;
}

static amp_status enter(const struct amp__probed *call, enum amp__side side, void *room) {
    struct verifying *verifying = room;
    if (side == AMP__OP_SIDE) {
        AMP_TRY(amp__watch_enter(&verifying->watch, call));
        return rehearse(&verifying->watch, call);
    }
    verifying->reference.n = 0;
    return call->mode == AMP__RAW_REPLACE ? amp__reference_run(&verifying->reference, call) : AMP_OK;
}

static void leave(const struct amp__probed *call, enum amp__side side, void *room) {
    struct verifying *verifying = room;
    struct amp__reference *reference = &verifying->reference;
    if (side == AMP__HOST_SIDE && reference->n) amp__reference_judge(reference, call->op);
    if (side == AMP__OP_SIDE && !amp__watch_leave(&verifying->watch, call->op, reference)) reference->n = 0;
}

void amp__verify_begin(amp_context *context) {
    const struct amp__policy *policy = amp__policy_of(context);
    const struct amp__models *models = amp__models_of(context);
    static const struct amp__probe probe = { .strict = true, .enter = enter, .leave = leave };
    for (size_t i = 0; policy->verify && i < models->n; i++) {
        struct amp__model *model = &models->list[i];
        amp__op_put_probe(&model->forward, AMP__PROBE_VERIFY, &probe);
        for (size_t j = 0; j < model->n_ops; j++) amp__op_put_probe(&model->ops[j], AMP__PROBE_VERIFY, &probe);
    }
}
