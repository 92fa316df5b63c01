/* SPDX-License-Identifier: Apache-2.0 */
/* Apex's amp.state_dict() as JSON. Source: apex/amp/frontend.py; the index in the key counts, not the position. */
#include "state/json.h"

#include <stdio.h>
#include <string.h>

static const char prefix[] = "loss_scaler";

static amp_status read_scaler(const char *key, const json_t *value, struct amp__apex_scaler *out) {
    char quoted[96];
    uint64_t index;
    amp__json_quote(key, quoted);
    AMP_RETURN_IF(strncmp(key, prefix, sizeof prefix - 1) ||
                      !amp__uint_from_text(key + sizeof prefix - 1, UINT32_MAX, &index),
                  AMP_ERR_BAD_FILE, "\"%s\" is no key of Apex's state: they are loss_scaler0, loss_scaler1, ...",
                  quoted);
    const json_t *scale = json_object_get(value, "loss_scale"), *unskipped = json_object_get(value, "unskipped");
    AMP_RETURN_IF(json_object_size(value) != 2 || !json_is_number(scale) || !json_is_integer(unskipped),
                  AMP_ERR_BAD_FILE, "%s must be {\"loss_scale\": number, \"unskipped\": whole number}", quoted);
    const double number = json_number_value(scale);
    AMP_RETURN_IF(!(number >= 0x1p-149 && number <= 0x1.fffffep127), AMP_ERR_BAD_FILE,
                  "%s: loss_scale is %g; a scale is a finite float above 0", quoted, number);
    AMP_RETURN_IF(json_integer_value(unskipped) < 0 || json_integer_value(unskipped) > (json_int_t)UINT32_MAX,
                  AMP_ERR_BAD_FILE, "%s: unskipped is out of range", quoted);
    *out = (struct amp__apex_scaler){ (uint32_t)index, (float)number, (uint32_t)json_integer_value(unskipped) };
    return AMP_OK;
}

static amp_status read_scalers(json_t *root, struct amp__apex_scaler *scalers, size_t *n) {
    const char *key;
    json_t *value;
    AMP_RETURN_IF(!json_object_size(root), AMP_ERR_BAD_FILE, "the state has no loss_scaler0");
    *n = 0;
    json_object_foreach(root, key, value) AMP_TRY(read_scaler(key, value, &scalers[(*n)++]));
    return AMP_OK;
}

/* Read twice, because the library's reader may drop bytes where memory ends (see amp__json_is), and people write this
 * form by hand, so that there is no one spelling to compare with. */
static amp_status parse_twice(const char *text, size_t bytes, json_t **root) {
    json_t *again;
    AMP_TRY(amp__json_parse(text, bytes, "the text", root));
    amp_status status = amp__json_parse(text, bytes, "the text", &again);
    if (status == AMP_OK) {
        if (!json_equal(*root, again)) status = amp__fail_memory();
        json_decref(again);
    }
    if (status != AMP_OK) json_decref(*root);
    return status;
}

amp_status amp__apex_parse(const void *text, size_t bytes, struct amp__apex_scaler **out, size_t *n) {
    json_t *root;
    AMP_TRY(parse_twice(text, bytes, &root));
    struct amp__apex_scaler *scalers = amp__alloc(json_object_size(root), sizeof *scalers);
    const amp_status status = scalers ? read_scalers(root, scalers, n) : amp__fail_memory();
    json_decref(root);
    if (status != AMP_OK) {
        amp__free(scalers);
        return status;
    }
    *out = scalers;
    return AMP_OK;
}

amp_status amp__apex_text(const struct amp__apex_scaler *scalers, size_t n, char **text, size_t *bytes) {
    json_t *root = json_object();
    bool failed = !root;
    for (size_t i = 0; i < n && !failed; i++) {
        char key[32];
        snprintf(key, sizeof key, "%s%u", prefix, (unsigned)scalers[i].index);
        failed = json_object_set_new(root, key, json_pack("{s:f,s:I}", "loss_scale", (double)scalers[i].loss_scale,
                                                          "unskipped", (json_int_t)scalers[i].unskipped)) != 0;
    }
    const amp_status status = failed ? amp__fail_memory() : amp__json_text(root, text, bytes);
    json_decref(root);
    return status;
}
