/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-64/XZ, eight bytes a step. The tables are computed, not stored: 2,048 steps against files of megabytes. */
#include "state/state.h"

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
