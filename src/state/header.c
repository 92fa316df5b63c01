/* SPDX-License-Identifier: Apache-2.0 */
/* Reading a safetensors header that may have been made to hurt. */
#include "state/header.h"

#include <stdlib.h>
#include <string.h>

/* ---- CRC-64/XZ, eight bytes a step. The tables are computed, not stored: 2,048 steps against megabytes ---- */

void amp__crc64_init(struct amp__crc64 *crc) {
    for (uint32_t i = 0; i < 256; i++) {
        uint64_t r = i;
        for (int bit = 0; bit < 8; bit++) r = (r >> 1) ^ (0xc96c5795d7870f42u & (0 - (r & 1)));
        crc->table[0][i] = r;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t i = 0; i < 256; i++) {
            const uint64_t r = crc->table[k - 1][i];
            crc->table[k][i] = crc->table[0][r & 0xff] ^ (r >> 8);
        }
    crc->value = ~UINT64_C(0);
}

void amp__crc64_add(struct amp__crc64 *crc, const void *data, size_t bytes) {
    const unsigned char *p = data;
    uint64_t value = crc->value;
    for (; bytes >= 8; bytes -= 8, p += 8) {
        for (int k = 0; k < 8; k++) value ^= (uint64_t)p[k] << (8 * k);
        uint64_t next = 0;
        for (int k = 0; k < 8; k++) next ^= crc->table[7 - k][(value >> (8 * k)) & 0xff];
        value = next;
    }
    while (bytes--) value = crc->table[0][(value ^ *p++) & 0xff] ^ (value >> 8);
    crc->value = value;
}

/* ---- the header ---- */

void amp__header_clear(struct amp__header *header) {
    json_decref(header->json);
    amp__free(header->tensors);
    amp__free(header->dims);
    memset(header, 0, sizeof *header);
}

uint64_t amp__header_crc(const char *block, size_t bytes) {
    static const char zeros[] = "0000000000000000";
    struct amp__crc64 crc;
    amp__crc64_init(&crc);
    amp__crc64_add(&crc, block, AMP__CRC_AT);
    amp__crc64_add(&crc, zeros, 16);
    amp__crc64_add(&crc, block + AMP__CRC_AT + 16, bytes - AMP__CRC_AT - 16);
    return amp__crc64_value(&crc);
}

/* Sixteen digits, lower case only: one spelling a number, so that a flipped bit cannot pass for another. */
static bool read_hex(const char *digits, uint64_t *value) {
    uint64_t result = 0;
    for (int i = 0; i < 16; i++) {
        const char c = digits[i];
        if (c >= '0' && c <= '9') result = result << 4 | (uint64_t)(c - '0');
        else if (c >= 'a' && c <= 'f') result = result << 4 | (uint64_t)(c - 'a' + 10);
        else return false;
    }
    *value = result;
    return true;
}

/* libamp writes its checksums first, at a fixed position. A header that starts differently was not written by it, or
 * was changed. */
static amp_status check_crc(const char *block, size_t bytes, uint64_t *data_crc) {
    static const char begin[] = AMP__HEADER_BEGIN;
    uint64_t header_crc;
    AMP_RETURN_IF(bytes < AMP__CRC_AT + 34 || memcmp(block + 8, begin, sizeof begin - 1), AMP_ERR_BAD_FILE,
                  "this is no state of libamp, or another program rewrote it: its header does not begin with "
                  "libamp's checksum");
    const char *digits = block + AMP__CRC_AT;
    AMP_RETURN_IF(!read_hex(digits, &header_crc) || digits[16] != ' ' || !read_hex(digits + 17, data_crc) ||
                      digits[33] != '"' || amp__header_crc(block, bytes) != header_crc,
                  AMP_ERR_BAD_FILE, "the header is damaged: its checksum does not match");
    return AMP_OK;
}

/* ---- tensors ---- */

static bool read_offset(const json_t *value, uint64_t *out) {
    if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

/* Elements of the shape, or UINT64_MAX where that is no number of bytes. */
static uint64_t read_shape(const json_t *shape, int64_t *dims) {
    uint64_t size = 1;
    bool empty = false, huge = false;
    for (size_t i = 0; i < json_array_size(shape); i++) {
        uint64_t extent;
        if (!read_offset(json_array_get(shape, i), &extent)) return UINT64_MAX;
        dims[i] = (int64_t)extent;
        if (!extent) empty = true;
        else if (size > (uint64_t)INT64_MAX / 4 / extent) huge = true;
        else size *= extent;
    }
    return empty ? 0 : huge ? UINT64_MAX : size;
}

static amp_status read_tensor(const char *name, const json_t *entry, int64_t *dims, struct amp__state_tensor *tensor) {
    char quoted[96];
    amp__json_quote(name, quoted);
    const json_t *dtype = json_object_get(entry, "dtype"), *shape = json_object_get(entry, "shape");
    const json_t *offsets = json_object_get(entry, "data_offsets");
    AMP_RETURN_IF(json_object_size(entry) != 3 || !json_is_string(dtype) || !json_is_array(shape) ||
                      json_array_size(offsets) != 2,
                  AMP_ERR_BAD_FILE, "tensor %s: the header needs its dtype, shape and data_offsets and nothing else",
                  quoted);
    char type[96];
    AMP_RETURN_IF(strcmp(json_string_value(dtype), "F32"), AMP_ERR_BAD_FILE, "tensor %s has type %s: masters are F32",
                  quoted, amp__json_quote(json_string_value(dtype), type));
    AMP_RETURN_IF(json_array_size(shape) > AMP__STATE_MAX_DIMS, AMP_ERR_BAD_FILE, "tensor %s has %zu dimensions",
                  quoted, json_array_size(shape));
    const uint64_t size = read_shape(shape, dims);
    AMP_RETURN_IF(!read_offset(json_array_get(offsets, 0), &tensor->begin) ||
                      !read_offset(json_array_get(offsets, 1), &tensor->end) || tensor->end < tensor->begin,
                  AMP_ERR_BAD_FILE, "tensor %s: data_offsets must be two rising whole numbers", quoted);
    AMP_RETURN_IF(size == UINT64_MAX || tensor->end - tensor->begin != 4 * size, AMP_ERR_BAD_FILE,
                  "tensor %s: its shape does not fit %llu byte%s", quoted,
                  (unsigned long long)(tensor->end - tensor->begin), AMP__S(tensor->end - tensor->begin));
    tensor->name = name;
    tensor->shape = dims;
    tensor->ndim = (int32_t)json_array_size(shape);
    return AMP_OK;
}

static int by_offset(const void *a, const void *b) {
    const struct amp__state_tensor *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

static amp_status check_layout(struct amp__header *header) {
    if (header->n_tensors) qsort(header->tensors, header->n_tensors, sizeof *header->tensors, by_offset);
    uint64_t at = 0;
    for (size_t i = 0; i < header->n_tensors; i++) {
        char quoted[96];
        const struct amp__state_tensor *tensor = &header->tensors[i];
        AMP_RETURN_IF(tensor->begin != at, AMP_ERR_BAD_FILE,
                      "tensor %s %s: tensors must follow each other without gaps",
                      amp__json_quote(tensor->name, quoted),
                      tensor->begin < at ? "overlaps the one before" : "leaves a gap before it");
        at = tensor->end;
    }
    header->data_bytes = at;
    return AMP_OK;
}

static amp_status read_tensors(struct amp__header *header) {
    size_t n_dims = 0;
    const char *name;
    json_t *entry;
    json_object_foreach(header->json, name, entry) n_dims += json_array_size(json_object_get(entry, "shape"));
    header->tensors = amp__alloc(json_object_size(header->json), sizeof *header->tensors);
    header->dims = amp__alloc(n_dims, sizeof *header->dims);
    if (!header->tensors || !header->dims) return amp__fail_memory();
    int64_t *dims = header->dims;
    json_object_foreach(header->json, name, entry) {
        if (entry == header->metadata) continue;
        struct amp__state_tensor *tensor = &header->tensors[header->n_tensors++];
        AMP_TRY(read_tensor(name, entry, dims, tensor));
        dims += tensor->ndim;
    }
    return check_layout(header);
}

static amp_status check_metadata(const json_t *metadata) {
    const char *key;
    json_t *value;
    AMP_RETURN_IF(!json_is_object(metadata), AMP_ERR_BAD_FILE, "the header's __metadata__ is not an object");
    json_object_foreach((json_t *)(uintptr_t)metadata, key, value) {
        char quoted[96];
        AMP_RETURN_IF(!json_is_string(value), AMP_ERR_BAD_FILE, "the header's metadata %s is not a string",
                      amp__json_quote(key, quoted));
    }
    return AMP_OK;
}

static amp_status parse(const char *block, size_t bytes, struct amp__header *header) {
    AMP_TRY(check_crc(block, bytes, &header->data_crc));
    json_t *root;
    AMP_TRY(amp__json_parse(block + 8, bytes - 8, "the header", &root));
    header->json = root;
    header->metadata = json_object_get(root, "__metadata__");
    AMP_TRY(check_metadata(header->metadata));
    AMP_TRY(read_tensors(header));
    AMP_RETURN_IF(!amp__json_is(root, block + 8, bytes - 8), AMP_ERR_BAD_FILE,
                  "the header is not written as libamp writes it (or memory ran out while it was read)");
    return AMP_OK;
}

amp_status amp__header_parse(const void *block, size_t bytes, struct amp__header *out) {
    struct amp__header header = { .json = NULL };
    const amp_status status = parse(block, bytes, &header);
    if (status != AMP_OK) {
        amp__header_clear(&header);
        return status;
    }
    *out = header;
    return AMP_OK;
}

const char *amp__header_get(const struct amp__header *header, const char *key) {
    return json_string_value(json_object_get(header->metadata, key));
}
