/* SPDX-License-Identifier: Apache-2.0 */
/* States made by hand, with right checksums: what a forger, or a libamp with a bug, could write. */
#ifndef TEST_FORGE_H
#define TEST_FORGE_H

#include "staterig.h"
#include "state/header.h"

/* Writes both checksums of a state whose header has room for them. */
static inline void forge_checksums(struct bytes *state) {
    struct amp__crc64 crc;
    char digits[18];
    uint64_t length;
    memcpy(&length, state->data, 8);
    ck_assert_uint_le(8 + length, state->size);
    amp__crc64_init(&crc);
    amp__crc64_add(&crc, state->data + 8 + length, state->size - 8 - length);
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)amp__crc64_value(&crc));
    memcpy(state->data + AMP__CRC_AT + 17, digits, 16);
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)amp__header_crc(state->data, 8 + length));
    memcpy(state->data + AMP__CRC_AT, digits, 16);
}

/* `rest`: the header behind the checksums' closing quote. */
static inline struct bytes forge(const char *rest, size_t rest_bytes, size_t data_bytes) {
    static const char begin[] = AMP__HEADER_BEGIN "0000000000000000 0000000000000000\"";
    const uint64_t length = sizeof begin - 1 + rest_bytes;
    struct bytes state = { calloc(1, 8 + length + data_bytes + 1), 8 + length + data_bytes };
    ck_assert_ptr_nonnull(state.data);
    memcpy(state.data, &length, 8);
    memcpy(state.data + 8, begin, sizeof begin - 1);
    memcpy(state.data + 8 + sizeof begin - 1, rest, rest_bytes);
    forge_checksums(&state);
    return state;
}

#endif
