/* SPDX-License-Identifier: Apache-2.0 */
/* Common parts of reading and writing the header. */
#ifndef AMP_STATE_HEADER_H
#define AMP_STATE_HEADER_H

#include "state/json.h"

#define AMP__HEADER_BEGIN "{\"__metadata__\":{\"libamp.crc64\":\""
#define AMP__CRC_AT (8 + sizeof AMP__HEADER_BEGIN - 1) /* of the first digit: header, a space, data */

/* Of the length and the header, its own digits taken as zeros. */
uint64_t amp__header_crc(const char *block, size_t bytes);

#endif
