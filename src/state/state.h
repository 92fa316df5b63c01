/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State files as bytes: the safetensors header, Apex's text form, checksums, exact numbers. Pure format code over
 * memory and files (system/files.h): knows no context, no parameter, no scaler. The only room with <jansson.h>.
 *
 *     8 bytes   length of the header, little-endian
 *     header    JSON, padded with spaces to 8 bytes: {"__metadata__":{"libamp.crc64":"<header> <data>", ...},
 *               "<name>":{"dtype":"F32","shape":[...],"data_offsets":[begin,end]}, ...}
 *     data      the tensors, one after the other, without gaps
 *
 * Memory. Reading allocates at most AMP__STATE_MEMORY times the header's bytes (plus a page), whatever it says.
 */
#ifndef AMP_STATE_ROOM_H
#define AMP_STATE_ROOM_H

#include "system/system.h"

#define AMP__STATE_MAX_HEADER 100000000u /* bytes; the limit of the safetensors package too */
#define AMP__STATE_MAX_TEXT (16u << 20)  /* bytes of Apex's form */
#define AMP__STATE_MAX_DIMS 64
#define AMP__STATE_MEMORY 64

/* ---- crc64.c: CRC-64/XZ (ECMA-182 reflected), which finds every burst of up to 64 bits ---- */

struct amp__crc64 {
    uint64_t table[8][256];
    uint64_t value;
};

void amp__crc64_init(struct amp__crc64 *crc);
void amp__crc64_add(struct amp__crc64 *crc, const void *data, size_t bytes);
static inline uint64_t amp__crc64_value(const struct amp__crc64 *crc) { return ~crc->value; }

/* ---- numbers.c: numbers as text, exactly and in every locale ---- */

#define AMP__NUMBER_SIZE 32

/* "0x1p+16": an integer times a power of two, which C's strtod and Python's float.fromhex read. Finite,
 * not negative. */
void amp__float_to_text(float value, char text[AMP__NUMBER_SIZE]);
/* Nothing else is read: false on any other text, also on numbers that no float has. */
bool amp__float_from_text(const char *text, float *value);
/* The same for a double; a float's value is spelt as amp__float_to_text spells it. */
void amp__double_to_text(double value, char text[AMP__NUMBER_SIZE]);
bool amp__double_from_text(const char *text, double *value);
/* Decimal digits without sign or leading zeros, at most `max`. */
bool amp__uint_from_text(const char *text, uint64_t max, uint64_t *value);

/* ---- header.c, header_write.c ---- */

struct amp__state_tensor {
    const char *name;
    const int64_t *shape;
    int32_t ndim;
    uint64_t begin, end; /* in the data */
    size_t user;         /* the reader's own */
};

struct amp__header {
    void *json, *metadata;
    struct amp__state_tensor *tensors; /* in the data's order */
    size_t n_tensors;
    int64_t *dims;
    uint64_t data_bytes; /* of all tensors */
    uint64_t data_crc;
};

/* `block`: the file's first bytes, length and header. Checks everything that can be known without the data. */
amp_status amp__header_parse(const void *block, size_t bytes, struct amp__header *header);
/* NULL: there is none. */
const char *amp__header_get(const struct amp__header *header, const char *key);

/* For writing start from amp__header_init; after an error only clear is allowed. */
amp_status amp__header_init(struct amp__header *header);
amp_status amp__header_put(struct amp__header *header, const char *key, const char *value);
/* An F32 tensor behind those before. `name` must be UTF-8 and not be taken. */
amp_status amp__header_add(struct amp__header *header, const char *name, const int64_t *shape, int32_t ndim,
                           uint64_t size);
/* The file's first bytes, ours to free. */
amp_status amp__header_bytes(const struct amp__header *header, uint64_t data_crc, char **block, size_t *bytes);

void amp__header_clear(struct amp__header *header);

/* ---- apex.c: {"loss_scaler0": {"loss_scale": 65536.0, "unskipped": 12}, ...} ---- */

struct amp__apex_scaler {
    uint32_t index; /* from the key */
    float loss_scale;
    uint32_t unskipped;
};

amp_status amp__apex_parse(const void *text, size_t bytes, struct amp__apex_scaler **scalers, size_t *n);
amp_status amp__apex_text(const struct amp__apex_scaler *scalers, size_t n, char **text, size_t *bytes);

#endif
