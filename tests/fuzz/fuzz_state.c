/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer target: states. Bit 0 of the first byte: the rest is a file as it is; else the rest is what follows the
 * checksums in a header, with bytes 1 and 2 as the data's length, and both checksums are made right, so that the fuzzer
 * gets behind them. Bit 1: parts of a state, which state_parts.c has. What is refused must have changed nothing.
 */
#include "../support/fakenet.h"
#include "state/header.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "state_parts.h"

static struct fake host;
static struct net net;
static amp_context *context;

static void need(bool condition, const char *what) {
    if (condition) return;
    fprintf(stderr, "%s: %s\n", what, amp_last_error());
    abort();
}

static void start(void) {
    amp_config config = AMP_CONFIG_INIT;
    amp_model *model = &net.model;
    amp_optimizer *optimizer = &net.optimizer;
    config.level = AMP_O2;
    config.num_losses = 2;
    fake_init(&host, FAKE_RETAINS);
    net_init(&net, &host);
    need(amp_initialize_many(&model, 1, &optimizer, 1, &config, &context) == AMP_OK, "initialize");
}

/* The whole state as bytes is its own snapshot. */
static size_t snapshot(char *data, size_t capacity) {
    size_t size = 0;
    need(amp_state_save_memory(context, AMP_STATE_SAFETENSORS, data, capacity, &size) == AMP_OK, "save");
    return size;
}

static void write_digits(char *at, uint64_t value) {
    char digits[17];
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)value);
    memcpy(at, digits, 16);
}

void write_checksums(char *state, size_t size) {
    uint64_t length;
    struct amp__crc64 crc;
    if (size < sizeof length) return;
    memcpy(&length, state, sizeof length);
    if (length > size - 8 || 8 + length < AMP__CRC_AT + 33) return; /* two times 16 digits, a space between */
    amp__crc64_init(&crc);
    amp__crc64_add(&crc, state + 8 + length, size - 8 - length);
    write_digits(state + AMP__CRC_AT + 17, amp__crc64_value(&crc));
    write_digits(state + AMP__CRC_AT, amp__header_crc(state, 8 + length));
}

static char *forge(const uint8_t *rest, size_t rest_bytes, size_t data_bytes, size_t *size) {
    static const char begin[] = AMP__HEADER_BEGIN "0000000000000000 0000000000000000\"";
    const uint64_t length = sizeof begin - 1 + rest_bytes;
    char *state = calloc(1, 8 + length + data_bytes);
    if (!state) abort();
    memcpy(state, &length, 8);
    memcpy(state + 8, begin, sizeof begin - 1);
    if (rest_bytes) memcpy(state + 8 + sizeof begin - 1, rest, rest_bytes);
    *size = 8 + length + data_bytes;
    write_checksums(state, *size);
    return state;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size) {
    static char before[16384], after[16384];
    if (!context) start();
    if (size < 3) return 0;
    if (input[0] & 2) {
        load_parts(input + 1, size - 1);
        return 0;
    }
    size_t bytes = size - 3;
    char *state = input[0] & 1 ? NULL : forge(input + 3, bytes, (size_t)(input[1] | input[2] << 8), &bytes);
    const size_t was = snapshot(before, sizeof before);
    const amp_status status = amp_state_load_memory(context, state ? state : (const char *)input + 3, bytes);
    const size_t is = snapshot(after, sizeof after);
    free(state);
    if (status != AMP_OK) need(was == is && !memcmp(before, after, was), "a refused state changed something");
    else need(amp_state_load_memory(context, after, is) == AMP_OK, "what was loaded cannot be saved and loaded again");
    return 0;
}
