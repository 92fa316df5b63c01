/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a safetensors header. */
#include "state/header.h"

#include <stdio.h>
#include <string.h>

static const char no_crc[] = "0000000000000000 0000000000000000";

amp_status amp__header_init(struct amp__header *header) {
    memset(header, 0, sizeof *header);
    header->json = json_object();
    json_t *metadata = json_object();
    /* the first key, so that the checksums have one place; the library keeps the order */
    bool failed = !header->json || !metadata || json_object_set_new(metadata, "libamp.crc64", json_string(no_crc));
    failed = failed || json_object_set(header->json, "__metadata__", metadata);
    json_decref(metadata);
    header->metadata = metadata;
    if (!failed) return AMP_OK;
    amp__header_clear(header);
    return amp__fail_memory();
}

amp_status amp__header_put(struct amp__header *header, const char *key, const char *value) {
    return json_object_set_new(header->metadata, key, json_string(value)) ? amp__fail_memory() : AMP_OK;
}

static json_t *shape_of(const int64_t *shape, int32_t ndim) {
    json_t *list = json_array();
    for (int32_t i = 0; list && i < ndim; i++)
        if (json_array_append_new(list, json_integer(shape[i]))) {
            json_decref(list);
            return NULL;
        }
    return list;
}

/* Of the bytes that may follow each other in UTF-8: no overlong form, no surrogate, nothing above U+10FFFF. */
static bool is_utf8(const char *text) {
    for (const unsigned char *p = (const unsigned char *)text; *p;) {
        const int more = *p < 0x80    ? 0
            : *p >= 0xc2 && *p < 0xe0 ? 1
            : (*p & 0xf0) == 0xe0     ? 2
            : *p >= 0xf0 && *p < 0xf5 ? 3
                                      : -1;
        const unsigned char low = *p == 0xe0 ? 0xa0 : *p == 0xf0 ? 0x90 : 0x80;
        const unsigned char high = *p == 0xed ? 0x9f : *p == 0xf4 ? 0x8f : 0xbf;
        if (more < 0 || (more && (p[1] < low || p[1] > high))) return false;
        for (int i = 2; i <= more; i++)
            if ((p[i] & 0xc0) != 0x80) return false;
        p += 1 + more;
    }
    return true;
}

amp_status amp__header_add(struct amp__header *header, const char *name, const int64_t *shape, int32_t ndim,
                           uint64_t size) {
    AMP_RETURN_IF(!is_utf8(name) || !strcmp(name, "__metadata__"), AMP_ERR_INVALID_ARGUMENT,
                  "a parameter's name cannot be stored in a state: %s",
                  is_utf8(name) ? "__metadata__ is reserved" : "not UTF-8");
    AMP_RETURN_IF(json_object_get(header->json, name), AMP_ERR_CONFLICT,
                  "two tensors of the state would be named %.200s", name);
    const uint64_t begin = header->data_bytes, end = begin + 4 * size;
    json_t *entry = json_object();
    json_t *offsets = json_pack("[I,I]", (json_int_t)begin, (json_int_t)end);
    /* each set_new takes its value, also when it fails */
    if (!entry || json_object_set_new(entry, "dtype", json_string("F32")) ||
        json_object_set_new(entry, "shape", shape_of(shape, ndim)) ||
        json_object_set(entry, "data_offsets", offsets)) {
        json_decref(entry);
        json_decref(offsets);
        return amp__fail_memory();
    }
    json_decref(offsets);
    if (json_object_set_new(header->json, name, entry)) return amp__fail_memory();
    header->data_bytes = end;
    header->n_tensors++;
    return AMP_OK;
}

static amp_status add_padding(char **text, size_t *length) {
    const size_t padded = (*length + 7) & ~(size_t)7;
    char *block = amp__alloc(8 + padded + 1, 1);
    if (!block) return amp__fail_memory();
    for (int i = 0; i < 8; i++) block[i] = (char)(padded >> (8 * i) & 0xff);
    memcpy(block + 8, *text, *length);
    memset(block + 8 + *length, ' ', padded - *length);
    amp__free(*text);
    *text = block;
    *length = 8 + padded;
    return AMP_OK;
}

amp_status amp__header_bytes(const struct amp__header *header, uint64_t data_crc, char **out, size_t *bytes) {
    char *block = NULL, digits[sizeof no_crc];
    size_t length = 0;
    AMP_TRY(amp__json_text(header->json, &block, &length));
    amp_status status = add_padding(&block, &length);
    if (status == AMP_OK && length - 8 > AMP__STATE_MAX_HEADER)
        status = amp__fail(AMP_ERR_UNSUPPORTED, "the state's header would have %zu byte%s; %u is the format's limit",
                           length - 8, AMP__S(length - 8), (unsigned)AMP__STATE_MAX_HEADER);
    if (status != AMP_OK) {
        amp__free(block);
        return status;
    }
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)data_crc);
    memcpy(block + AMP__CRC_AT + 17, digits, 16);
    snprintf(digits, sizeof digits, "%016llx", (unsigned long long)amp__header_crc(block, length));
    memcpy(block + AMP__CRC_AT, digits, 16);
    *out = block;
    *bytes = length;
    return AMP_OK;
}
