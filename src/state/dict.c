/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints: amp_state_save, amp_state_load and the same in memory. */
#include "amp_state.h"
#include "state/dict.h"
#include "bracket/bracket.h"
#include "context/brackets.h"
#include "context/optimizer.h"
#include "context/parts.h"
#include "context/report.h"

#include "common/thread.h"

#include <string.h>

static amp_status check_idle(const amp_context *context, const char *who) {
    AMP_RETURN_IF(!context, AMP_ERR_INVALID_ARGUMENT, "%s: context is NULL", who);
    struct amp__brackets *brackets = amp__brackets_of(context);
    const struct amp__optimizers *optimizers = amp__optimizers_of(context);
    amp__thread_recover(amp__thread_state(), __builtin_frame_address(0));
    for (uint32_t i = 0; i < brackets->n; i++)
        AMP_RETURN_IF(amp__bracket_is_open(&brackets->list[i]), AMP_ERR_WRONG_STATE,
                      "%s inside a bracket (loss_id %u): call it after amp_scale_loss_end, best after the step", who,
                      (unsigned)i);
    for (size_t i = 0; i < optimizers->n; i++) {
        const struct amp__optimizer *optimizer = &optimizers->list[i];
        AMP_RETURN_IF(amp__step_is_running(optimizer), AMP_ERR_WRONG_STATE, "%s inside a step of optimizer %zu: call "
                      "it after amp_step_end", who, i);
        AMP_RETURN_IF(amp__step_is_delayed(optimizer), AMP_ERR_WRONG_STATE,
                      "%s while the gradients of optimizer %zu are still scaled (AMP_DELAY_UNSCALE)", who, i);
        AMP_RETURN_IF(optimizer->delay.unchecked, AMP_ERR_WRONG_STATE,
                      "%s while an overflow of optimizer %zu's gradients is not decided (AMP_DELAY_OVERFLOW_CHECK)",
                      who, i);
    }
    return AMP_OK;
}

static amp_status check_save(const amp_context *context, amp_state_format format, const char *who) {
    AMP_TRY(check_idle(context, who));
    AMP_RETURN_IF(format != AMP_STATE_SAFETENSORS && format != AMP_STATE_APEX, AMP_ERR_INVALID_ARGUMENT,
                  "%s: format %d does not exist: use AMP_STATE_SAFETENSORS or AMP_STATE_APEX", who, (int)format);
    return AMP_OK;
}

/* The number functions and the JSON library compute; a host that traps on inexact results must not hear of it. */
static amp_status finish_call(const struct amp__traps *traps, const char *who, const char *path, amp_status status) {
    amp__traps_restore(traps);
    if (status == AMP_OK) return AMP_OK;
    return path ? amp__fail_prefix(status, "%s %.300s", who, path) : amp__fail_prefix(status, "%s", who);
}

/* ---- save ---- */

static amp_status produce(void *user, amp__write_fn *write, void *to) { return amp__image_write(user, write, to); }

AMP_API amp_status amp_state_save(amp_context *context, const char *path, amp_state_format format) {
    AMP_TRY(check_save(context, format, "amp_state_save"));
    AMP_RETURN_IF(!path, AMP_ERR_INVALID_ARGUMENT, "amp_state_save: path is NULL");
    struct amp__traps traps;
    struct amp__image image;
    char line[600] = "";
    amp__text lost = { line, sizeof line, 0 };
    amp__traps_mask(&traps);
    amp_status status = amp__image_make(context, format, false, &image);
    if (status == AMP_OK) {
        status = amp__file_replace(path, produce, &image, &lost);
        amp__image_clear(&image);
        if (status == AMP_OK && lost.length) (void)amp__warn(context, "amp_state_save: %s", line);
    }
    return finish_call(&traps, "amp_state_save", NULL, status);
}

static amp_status copy_piece(void *user, const void *data, size_t bytes) {
    char **at = user;
    memcpy(*at, data, bytes);
    *at += bytes;
    return AMP_OK;
}

static amp_status save_memory(amp_context *context, amp_state_format format, void *data, size_t capacity,
                              size_t *size) {
    struct amp__image image;
    AMP_TRY(amp__image_make(context, format, !data, &image));
    amp_status status = AMP_OK;
    char *at = data;
    if (data && image.bytes > capacity)
        status = amp__fail(AMP_ERR_INVALID_ARGUMENT, "the state has %llu byte%s, and there is room for %zu",
                           (unsigned long long)image.bytes, AMP__S(image.bytes), capacity);
    else if (data) status = amp__image_write(&image, copy_piece, &at);
    if (status == AMP_OK) *size = (size_t)image.bytes;
    amp__image_clear(&image);
    return status;
}

AMP_API amp_status amp_state_save_memory(amp_context *context, amp_state_format format, void *data, size_t capacity,
                                         size_t *size) {
    static const char who[] = "amp_state_save_memory";
    AMP_TRY(check_save(context, format, who));
    AMP_RETURN_IF(!size || (capacity && !data), AMP_ERR_INVALID_ARGUMENT, "%s: %s is NULL", who,
                  size ? "data" : "size");
    struct amp__traps traps;
    amp__traps_mask(&traps);
    return finish_call(&traps, who, NULL, save_memory(context, format, data, capacity, size));
}

/* ---- load ---- */

AMP_API amp_status amp_state_load(amp_context *context, const char *path) {
    AMP_TRY(check_idle(context, "amp_state_load"));
    AMP_RETURN_IF(!path, AMP_ERR_INVALID_ARGUMENT, "amp_state_load: path is NULL");
    struct amp__traps traps;
    struct amp__source source;
    AMP_TRY(amp__source_open(&source, path));
    amp__traps_mask(&traps);
    const amp_status status = amp__state_apply(context, &source, 1);
    amp__source_close(&source);
    return finish_call(&traps, "amp_state_load", path, status);
}

static amp_status load_parts(amp_context *context, const char *const *paths, size_t n) {
    struct amp__source *sources = amp__alloc(n, sizeof *sources);
    if (!sources) return amp__fail_memory();
    size_t opened = 0;
    amp_status status = AMP_OK;
    while (opened < n && status == AMP_OK) {
        status = amp__source_open(&sources[opened], paths[opened]);
        opened += status == AMP_OK;
    }
    if (status == AMP_OK) status = amp__state_apply(context, sources, n);
    while (opened--) amp__source_close(&sources[opened]);
    amp__free(sources);
    return status;
}

AMP_API amp_status amp_state_load_parts(amp_context *context, const char *const *paths, size_t n) {
    static const char who[] = "amp_state_load_parts";
    AMP_TRY(check_idle(context, who));
    AMP_RETURN_IF(!paths || !n, AMP_ERR_INVALID_ARGUMENT, "%s: there are no paths", who);
    for (size_t i = 0; i < n; i++)
        AMP_RETURN_IF(!paths[i], AMP_ERR_INVALID_ARGUMENT, "%s: path %zu is NULL", who, i);
    struct amp__traps traps;
    amp__traps_mask(&traps);
    return finish_call(&traps, who, NULL, load_parts(context, paths, n));
}

AMP_API amp_status amp_state_load_memory(amp_context *context, const void *data, size_t size) {
    AMP_TRY(check_idle(context, "amp_state_load_memory"));
    AMP_RETURN_IF(!data, AMP_ERR_INVALID_ARGUMENT, "amp_state_load_memory: data is NULL");
    struct amp__traps traps;
    const struct amp__source source = { data, -1, size, NULL };
    amp__traps_mask(&traps);
    return finish_call(&traps, "amp_state_load_memory", NULL, amp__state_apply(context, &source, 1));
}
