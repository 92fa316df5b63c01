/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold between any two calls, and when a bracket has ended. */
#include "api_world.h"
#include "../support/levels.h"

#include <math.h>
#include <string.h>

static size_t index_of(const struct world *world, const amp_context *context) {
    size_t i = 0;
    while (world->contexts[i] != context) i++;
    return i;
}

bool world_enabled(const struct world *world, const amp_context *context) {
    return world->configs[index_of(world, context)].enabled != AMP_OFF;
}

/* Does found_inf mean a skip? Not with a static scale of 1, which steps as FP32 training would. */
static bool skips(const amp_config *config) {
    const bool dynamic_level = level_is_dynamic(config->level);
    const float scale = config->loss_scale != 0.0f ? config->loss_scale : dynamic_level ? AMP_DYNAMIC : 1.0f;
    return config->enabled != AMP_OFF && scale != 1.0f;
}

static void check_record(const amp_record *record) {
    need(record->scale_after > 0.0f && isfinite(record->scale_after), "the scale is %a", (double)record->scale_after);
    need(record->scale_before > 0.0f && isfinite(record->scale_before), "the scale was %a",
         (double)record->scale_before);
    need(record->skipped <= record->brackets, "%llu of %llu brackets skipped", (unsigned long long)record->skipped,
         (unsigned long long)record->brackets);
}

void world_check(struct world *world) {
    for (size_t k = 0; k < CONTEXTS; k++) {
        const uint32_t n = world->configs[k].num_losses;
        for (uint32_t i = 0; world->contexts[k] && i < (n ? n : 1); i++) {
            amp_record record = AMP_RECORD_INIT;
            need(amp_get_record(world->contexts[k], i, &record) == AMP_OK, "amp_get_record failed");
            check_record(&record);
        }
    }
    for (size_t k = 0; k < LOSSES; k++) { /* whose scale the host may read */
        const struct bracket *bracket = &world->brackets[k];
        if (bracket->open)
            need(*bracket->scaled.scale > 0.0f && isfinite(*bracket->scaled.scale), "an open bracket's scale is %a",
                 (double)*bracket->scaled.scale);
    }
    need(world->host.over_released == 0, "a handle was released twice");
}

static bool all_finite(const void *data, amp_dtype dtype, uint64_t size) {
    for (uint64_t i = 0; i < size; i++) {
        uint64_t element = 0;
        const size_t width = dtype == AMP_FLOAT64 ? 8 : dtype == AMP_FLOAT32 ? 4 : 2;
        const uint64_t exponent = dtype == AMP_FLOAT64    ? 0x7ffull << 52
                                  : dtype == AMP_FLOAT32  ? 0x7f800000u
                                  : dtype == AMP_FLOAT16  ? 0x7c00u
                                                          : 0x7f80u;
        memcpy(&element, (const char *)data + i * width, width);
        if ((element & exponent) == exponent) return false;
    }
    return true;
}

/* Was it not finite when the bracket began, after an overflow that no step has followed? A bracket decides on what its
 * own backward made: what all its optimizers will skip in any case is no reason. */
static bool is_excused(const struct world *world, const struct bracket *bracket, size_t param) {
    for (unsigned k = 0; k < OPTIMIZERS; k++)
        if (bracket->optimizers & 1u << k && optimizer_holds(world, k, world_param(world, param)) &&
            !world->overflowed[k])
            return false;
    for (size_t j = 0; j < NET_SIZE; j++) {
        double value;
        memcpy(&value, &bracket->before.params[param].grads[j], sizeof value);
        if (bracket->before.params[param].grads[j] == SNAPSHOT_NAN || isinf(value)) return true;
    }
    return bracket->over_delayed; /* what it began with was then something else */
}

/* The gradients that backward made in a bracket which said STEP. */
static void check_finite(struct world *world, const struct bracket *bracket) {
    for (unsigned k = 0; k < OPTIMIZERS; k++) {
        amp_master masters[8];
        size_t count = 0;
        if (!(bracket->optimizers & 1u << k)) continue;
        for (size_t i = 0; i < 8; i++) masters[i] = (amp_master)AMP_MASTER_INIT;
        if (amp_master_params(world->optimizers[k], masters, 8, &count) != AMP_OK) continue;
        for (size_t i = 0; i < count && i < 8; i++)
            for (size_t net = 0; net < NETS; net++)
                for (size_t j = 0; j < 3 && bracket->fresh[net]; j++)
                    if (world->nets[net].trained[j] == masters[i].param && masters[i].grad &&
                        !is_excused(world, bracket, net * NET_PARAMS + j))
                        need(all_finite(masters[i].grad, masters[i].is_master ? AMP_FLOAT32 : masters[i].dtype,
                                        masters[i].size) ||
                                 fake_dtype(((struct fake_tensor *)masters[i].param)->grad) != masters[i].dtype,
                             "STEP with a gradient of %s that is not finite", masters[i].name);
    }
}

static void check_decision(struct world *world, struct bracket *bracket) {
    const struct amp_record *was = &bracket->record;
    const amp_config *config = &world->configs[index_of(world, bracket->context)];
    amp_record now = AMP_RECORD_INIT;
    if (config->enabled == AMP_OFF || bracket->delay)
        need(bracket->scaled.action == AMP_STEP, "a bracket that decides nothing said %d", (int)bracket->scaled.action);
    if (config->enabled == AMP_OFF) return;
    need(amp_get_record(bracket->context, bracket->loss_id, &now) == AMP_OK, "amp_get_record failed");
    if (bracket->delay) {
        need(now.brackets == was->brackets, "a bracket that decides nothing was counted");
        return;
    }
    const bool skip = bracket->scaled.action == AMP_SKIP;
    need(skip || bracket->scaled.action == AMP_STEP, "end wrote action %d", (int)bracket->scaled.action);
    need(now.action == bracket->scaled.action, "record and bracket disagree");
    need(now.brackets == was->brackets + 1 && now.skipped == was->skipped + skip, "the record's counters went wrong");
    need(now.skips_in_row == (skip ? was->skips_in_row + 1 : 0), "%u skips in a row after %u", now.skips_in_row,
         was->skips_in_row);
    need(!skip || now.unskipped == 0, "unskipped is %u after a skip", now.unskipped);
    if (!skip && skips(config) && bracket->whole) check_finite(world, bracket);
}

/* Whose next step will be skipped; more of them where checks were delayed, and a decision is theirs too. */
static void note_overflow(struct world *world, const struct bracket *bracket, bool decided) {
    for (unsigned k = 0; k < OPTIMIZERS; k++)
        if (bracket->optimizers & 1u << k || (world->checks_delayed && world->optimizers[k]->amp == bracket->context))
            world->overflowed[k] |= !decided || bracket->scaled.action == AMP_SKIP;
}

void bracket_closed(struct world *world, struct bracket *bracket, amp_status status, bool cancelled) {
    static const char *const names[] = { "amp_scale_loss_end", "amp_scale_loss_cancel" };
    const bool decided = !cancelled && (status == AMP_OK || status == AMP_ERR_TOO_MANY_SKIPS);
    if (decided) check_decision(world, bracket);
    note_overflow(world, bracket, decided);
    if (!decided && bracket->whole && (status == AMP_OK || !cancelled))
        snapshot_same_grads(&bracket->before, world, bracket->optimizers, names[cancelled]);
    if (bracket->loss) fake_release(bracket->loss);
    const amp_scaled_loss scaled = bracket->scaled;
    need(!scaled.priv[0] && !scaled.priv[1], "a closed bracket still looks open");
    *bracket = (struct bracket){ .scaled = scaled };
}
