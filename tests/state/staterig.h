/* SPDX-License-Identifier: Apache-2.0 */
/* States of the fake net: saved, compared, and taken apart. */
#ifndef TEST_STATERIG_H
#define TEST_STATERIG_H

#include "../support/checks.h"

#include <stdio.h>

struct bytes {
    char *data;
    size_t size;
};

static inline void bytes_end(struct bytes *bytes) { free(bytes->data); }
#define OWN_BYTES __attribute__((cleanup(bytes_end))) struct bytes

/* A scaler that grows after three clean brackets. */
#define START(name, level_) RIG_WITH(name, FAKE_RETAINS, level_, .window = 3)

/* What a state restores, and what a refused load must leave alone. */
struct snapshot {
    amp_dtype dtypes[3];
    double params[3][NET_SIZE];
    float masters[3][NET_SIZE];
    float scale;
    uint32_t unskipped, skips_in_row;
};

static inline struct bytes state_of(struct rig *rig, amp_state_format format) {
    struct bytes state = { NULL, 0 };
    size_t again = 0;
    ck_ok(amp_state_save_memory(rig->context, format, NULL, 0, &state.size));
    state.data = malloc(state.size);
    ck_assert_ptr_nonnull(state.data);
    ck_ok(amp_state_save_memory(rig->context, format, state.data, state.size, &again));
    ck_assert_uint_eq(again, state.size);
    return state;
}

static inline struct snapshot snap(struct rig *rig) {
    struct snapshot s;
    memset(&s, 0, sizeof s);
    amp_master masters[3] = { AMP_MASTER_INIT, AMP_MASTER_INIT, AMP_MASTER_INIT };
    size_t n = 0;
    ck_ok(amp_master_params(&rig->net.optimizer, masters, 3, &n));
    const amp_record record = rig_record(rig, 0);
    for (size_t k = 0; k < 3; k++) {
        struct fake_tensor *param = rig->net.trained[k];
        s.dtypes[k] = fake_dtype(param);
        for (int i = 0; i < NET_SIZE; i++) s.params[k][i] = fake_get(param, i);
        if (masters[k].dtype == AMP_FLOAT32) memcpy(s.masters[k], masters[k].data, sizeof s.masters[k]);
    }
    s.scale = record.scale_after;
    s.unskipped = record.unskipped;
    s.skips_in_row = record.skips_in_row;
    return s;
}

static inline bool same(const struct snapshot *a, const struct snapshot *b) { return !memcmp(a, b, sizeof *a); }

/* The rig is now what it was. */
static inline void ck_still(struct rig *rig, const struct snapshot *before) {
    const struct snapshot now = snap(rig);
    ck_assert(same(before, &now));
}

static inline amp_status load(struct rig *rig, const struct bytes *state) {
    return amp_state_load_memory(rig->context, state->data, state->size);
}

/* Values that 16 bits do not hold, and a scaler in mid-window. */
static inline void train_some(struct rig *rig, int steps) {
    for (int i = 0; i < steps; i++) ck_ok(net_train_step(&rig->net, 0.1 + 0.01 * i));
}

static inline void write_file(const char *path, const void *data, size_t size) {
    FILE *file = fopen(path, "wb");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, size, file), size);
    ck_assert_int_eq(fclose(file), 0);
}

static inline struct bytes read_file(const char *path) {
    struct bytes result = { malloc(1 << 20), 0 };
    FILE *file = fopen(path, "rb");
    ck_assert_msg(file != NULL, "%s does not exist", path);
    result.size = fread(result.data, 1, 1 << 20, file);
    fclose(file);
    return result;
}

#endif
