/* SPDX-License-Identifier: Apache-2.0 */
/* Damaged and hostile states: each is refused in words and changes nothing, in memory and as a file. */
#include "forge.h"

#include <unistd.h>

/* A context whose values differ from the state's, so that any change shows. */
static struct bytes differing(struct rig *rig, amp_state_format format) {
    rig_start(rig, AMP_O2, FAKE_RETAINS);
    train_some(rig, 2);
    struct bytes state = state_of(rig, format);
    train_some(rig, 3);
    return state;
}

static void refuses(struct rig *rig, const struct bytes *state, size_t size, const struct snapshot *before) {
    char *exact = malloc(size ? size : 1); /* so that a sanitizer sees a read behind the end */
    memcpy(exact, state->data, size);
    const amp_status status = amp_state_load_memory(rig->context, exact, size);
    free(exact);
    ck_assert_msg(status == AMP_ERR_BAD_FILE, "%s with %zu bytes", amp_status_name(status), size);
    ck_assert_uint_gt(strlen(amp_last_error()), 20);
    ck_still(rig, before);
}

TEST_TIMES(every_truncation, 2) {
    RIG(rig);
    OWN_BYTES state = differing(&rig, _i ? AMP_STATE_APEX : AMP_STATE_SAFETENSORS);
    const struct snapshot before = snap(&rig);
    for (size_t size = 0; size < state.size; size++) refuses(&rig, &state, size, &before);
    ck_ok(load(&rig, &state));
}

TEST(every_truncation_of_a_file) {
    const char *path = "test_truncated.safetensors";
    RIG(rig);
    OWN_BYTES state = differing(&rig, AMP_STATE_SAFETENSORS);
    const struct snapshot before = snap(&rig);
    write_file(path, state.data, state.size);
    for (size_t size = state.size; size--;) {
        ck_assert_int_eq(truncate(path, (off_t)size), 0);
        ck_fails(AMP_ERR_BAD_FILE, amp_state_load(rig.context, path));
    }
    ck_still(&rig, &before);
    unlink(path);
}

/* None is harmless: every byte of the file is under one of the two checksums, or is one. */
TEST(every_bit_flip) {
    RIG(rig);
    OWN_BYTES state = differing(&rig, AMP_STATE_SAFETENSORS);
    const struct snapshot before = snap(&rig);
    for (size_t bit = 0; bit < 8 * state.size; bit++) {
        state.data[bit / 8] = (char)(state.data[bit / 8] ^ 1 << bit % 8);
        refuses(&rig, &state, state.size, &before);
        state.data[bit / 8] = (char)(state.data[bit / 8] ^ 1 << bit % 8);
    }
}

/* Apex's form has no checksum: a flip is refused, or it is another valid scale or count, which is loaded. */
TEST(every_bit_flip_of_text) {
    RIG(rig);
    OWN_BYTES state = differing(&rig, AMP_STATE_APEX);
    unsigned refused = 0;
    for (size_t bit = 0; bit < 8 * state.size; bit++) {
        state.data[bit / 8] = (char)(state.data[bit / 8] ^ 1 << bit % 8);
        const struct snapshot before = snap(&rig);
        const amp_status status = load(&rig, &state);
        const struct snapshot after = snap(&rig);
        if (status != AMP_OK) {
            refused++;
            ck_assert(same(&before, &after));
        }
        ck_assert(after.scale >= 0x1p-126f && after.scale <= 0x1p24f);
        state.data[bit / 8] = (char)(state.data[bit / 8] ^ 1 << bit % 8);
    }
    ck_assert_uint_gt(refused, 4 * state.size);
}

TEST_TIMES(something_added, 2) {
    RIG(rig);
    OWN_BYTES state = differing(&rig, _i ? AMP_STATE_APEX : AMP_STATE_SAFETENSORS);
    const struct snapshot before = snap(&rig);
    state.data = realloc(state.data, state.size + 8);
    memcpy(state.data + state.size, "xxxxxxxx", 8);
    for (size_t n = 1; n <= 8; n++) refuses(&rig, &state, state.size + n, &before);
}

/* ---- forged headers: right checksums, wrong content ---- */

#define T(name, dtype, shape, offsets) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define META ",\"libamp.format\":\"1\",\"libamp.config.num_losses\":\"0\"}"
#define GOOD3 \
    T("weight", "F32", "[4]", "[0,16]") "," T("bias", "F32", "[4]", "[16,32]") "," T("gamma", "F32", "[4]", "[32,48]")
#define GOOD2 T("bias", "F32", "[4]", "[16,32]") "," T("gamma", "F32", "[4]", "[32,48]") "}"

enum { BAD = AMP_ERR_BAD_FILE };

static const struct {
    const char *header, *says;
    amp_status status;
} forged[] = {
    { META "," GOOD3 "}", NULL, AMP_OK },
    { META "," GOOD3 "}        ", NULL, AMP_OK },
    { "," GOOD3 "}", "not valid JSON", BAD },
    { "}," GOOD3 "}", "format is not 1", BAD },
    { ",\"libamp.format\":\"2\"}," GOOD3 "}", "newer libamp", BAD },
    { ",\"libamp.format\":\"1\"}," GOOD3 "}", "num_losses is missing", BAD },
    { ",\"libamp.format\":\"1\",\"libamp.config.num_losses\":\"-1\"}," GOOD3 "}", "num_losses", BAD },
    { ",\"libamp.format\":\"1\",\"libamp.config.num_losses\":\"1\"}," GOOD3 "}", "loss_scaler0.scale", BAD },
    { ",\"libamp.format\":\"1\",\"libamp.config.num_losses\":\"65537\"}," GOOD3 "}", "num_losses", BAD },
    { ",\"libamp.format\":1}," GOOD3 "}", "not a string", BAD },
    { ",\"libamp.format\":{\"a\":\"b\"}}," GOOD3 "}", "not a string", BAD },
    { META "," GOOD3 ",\"__metadata__\":{}}", "not valid JSON", BAD },
    { META "," GOOD3 "," T("weight", "F32", "[4]", "[48,64]") "}", "not valid JSON", BAD },
    { META "," GOOD3 "}x", "not valid JSON", BAD },
    { META "," GOOD3 "}{}", "not valid JSON", BAD },
    { META "," GOOD3, "not valid JSON", BAD },
    { META ",\"w\xff\":1}", "not valid JSON", BAD },
    { META ",\"\xc0\x80\":1}", "not valid JSON", BAD },
    { META ",\"\\ud800\":1}", "not valid JSON", BAD },
    { META ",\"a\\u0000b\":1}", "not valid JSON", BAD },
    { META ",\"weight\":NaN}", "not valid JSON", BAD },
    { META ",\"weight\":[[[[[[1]]]]]]}", "nested more than 4", BAD },
    { META ",\"weight\":{}}", "dtype, shape and data_offsets", BAD },
    { META ",\"weight\":7}", "dtype, shape and data_offsets", BAD },
    { META ",\"weight\":null}", "dtype, shape and data_offsets", BAD },
    { META "," T("weight", "F16", "[8]", "[0,16]") "," GOOD2, "type F16", BAD },
    { META "," T("weight", "f32", "[4]", "[0,16]") "," GOOD2, "type f32", BAD },
    { META "," T("weight", "F32", "[4]", "[0,17]") "," GOOD2, "its shape does not fit", BAD },
    { META "," T("weight", "F32", "[-4]", "[0,16]") "," GOOD2, "its shape does not fit", BAD },
    { META "," T("weight", "F32", "[4.0]", "[0,16]") "," GOOD2, "its shape does not fit", BAD },
    { META "," T("weight", "F32", "[\"4\"]", "[0,16]") "," GOOD2, "its shape does not fit", BAD },
    { META "," T("weight", "F32", "[4294967296,4294967296,4]", "[0,16]") "," GOOD2, "does not fit", BAD },
    { META "," T("weight", "F32", "[9223372036854775807]", "[0,16]") "," GOOD2, "does not fit", BAD },
    { META "," T("weight", "F32", "[18446744073709551616]", "[0,16]") "," GOOD2, "not valid JSON", BAD },
    { META "," T("weight", "F32", "{\"a\":4}", "[0,16]") "," GOOD2, "dtype, shape", BAD },
    { META "," T("weight", "F32", "[4]", "[0,16,32]") "," GOOD2, "dtype, shape", BAD },
    { META "," T("weight", "F32", "[4]", "[16,0]") "," GOOD2, "rising", BAD },
    { META "," T("weight", "F32", "[4]", "[-16,0]") "," GOOD2, "rising", BAD },
    { META "," T("weight", "F32", "[4]", "[0,1e1]") "," GOOD2, "rising", BAD },
    { META "," T("weight", "F32", "[4]", "[8,24]") "," GOOD2, "leaves a gap", BAD },
    { META "," T("weight", "F32", "[4]", "[16,32]") "," GOOD2, "leaves a gap", BAD },
    { META "," T("weight", "F32", "[8]", "[0,32]") "," GOOD2, "overlaps", BAD },
    { META "," T("weight", "F32", "[5]", "[48,68]") "," T("x", "F32", "[4]", "[0,16]") "," GOOD2, "48 follow", BAD },
    { META "," T("weight", "F32", "[4]", "[9223372036854775791,9223372036854775807]") "," GOOD2, "gap", BAD },
    { META "," T("weight", "F32", "[2,2]", "[0,16]") "," GOOD2, "[2, 2] in the file and [4] here", AMP_ERR_CONFLICT },
    { META "," T("mass", "F32", "[4]", "[0,16]") "," GOOD2, "not here (mass)", AMP_ERR_CONFLICT },
    { META "," GOOD3 "," T("wide", "F32", "[0]", "[48,48]") "}", "not here (wide)", AMP_ERR_CONFLICT },
    { META "," T("weight", "F32", "[4]", "[0,16]") "," T("bias", "F32", "[8]", "[16,48]") "}",
      "not in the file (gamma)", AMP_ERR_CONFLICT },
};

TEST_TIMES(forged_headers, sizeof forged / sizeof forged[0]) {
    RIG_START(rig, AMP_O2, FAKE_RETAINS);
    const struct snapshot before = snap(&rig);
    OWN_BYTES state = forge(forged[_i].header, strlen(forged[_i].header), 48);
    const amp_status status = load(&rig, &state);
    ck_assert_msg(status == forged[_i].status, "%s: %s: %s", forged[_i].header, amp_status_name(status),
                  amp_last_error());
    const struct snapshot after = snap(&rig);
    if (status != AMP_OK) {
        ck_says(forged[_i].says);
        ck_assert(same(&before, &after));
    }
}

#define SCALER(n, scale, unskipped) "{\"loss_scaler" n "\":{\"loss_scale\":" scale ",\"unskipped\":" unskipped "}}"

static const char *const bad_texts[] = {
    "{}", " ", "{", "{\"loss_scaler0\":{}}", "{\"loss_scaler0\":1}", SCALER("0", "1.0", "1,\"x\":1"),
    SCALER("0", "\"1.0\"", "1"), SCALER("0", "1.0", "1.0"), SCALER("0", "1.0", "-1"), SCALER("0", "1.0", "4294967296"),
    SCALER("0", "0.0", "1"), SCALER("0", "-1.0", "1"), SCALER("0", "1e39", "1"), SCALER("0", "1e-46", "1"),
    SCALER("0", "1e999", "1"), SCALER("0", "NaN", "1"),
    "{\"loss_scaler0\":{\"loss_scale\":1.0,\"unskipped\":1},\"loss_scaler0\":{\"loss_scale\":2.0,\"unskipped\":1}}",
    SCALER("00", "1.0", "1"), SCALER("", "1.0", "1"), SCALER("-1", "1.0", "1"), SCALER(" 1", "1.0", "1"),
    SCALER("4294967296", "1.0", "1"), "{\"scale\":{\"loss_scale\":1.0,\"unskipped\":1}}",
    "{\"loss_scaler0\":{\"loss_scale\":1.0,\"unskipped\":1}} x", "[]", "\"loss_scaler0\"", "not a state at all",
};

TEST_TIMES(bad_texts_are_refused, sizeof bad_texts / sizeof bad_texts[0]) {
    RIG_START(rig, AMP_O2, FAKE_RETAINS);
    const struct snapshot before = snap(&rig);
    struct bytes text = { (char *)(uintptr_t)bad_texts[_i], 0 };
    refuses(&rig, &text, strlen(bad_texts[_i]), &before);
}

/* A sparse file of 200 MB whose first bytes claim a header of that size, or of nearly all there is. */
TEST(oversized_headers) {
    static const uint64_t lengths[] = { 100000001, 199999992, 200000000, UINT64_MAX, UINT64_C(1) << 63 };
    const char *path = "test_oversized.safetensors";
    RIG_START(rig, AMP_O2, FAKE_RETAINS);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        write_file(path, &lengths[i], 8);
        ck_assert_int_eq(truncate(path, 200000000), 0);
        ck_refused(AMP_ERR_BAD_FILE, "limit", amp_state_load(rig.context, path));
    }
    unlink(path);
}
