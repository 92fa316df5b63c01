/* SPDX-License-Identifier: Apache-2.0 */
/* The version; and structures that cross the boundary carry their size, so that old callers and new libraries
 * understand each other. */
#include "common/common.h"

#include <string.h>

#define STRINGIFY(x) #x
#define VERSION_TEXT(major, minor, patch) STRINGIFY(major) "." STRINGIFY(minor) "." STRINGIFY(patch)

AMP_API const char *amp_version(void) {
    return VERSION_TEXT(AMP_VERSION_MAJOR, AMP_VERSION_MINOR, AMP_VERSION_PATCH);
}

amp_status amp__check_struct(uint32_t given, size_t oldest, const char *what) {
    AMP_RETURN_IF(given == 0, AMP_ERR_ABI_MISMATCH,
                  "%s.struct_size is 0: start from its _INIT macro, which sets struct_size", what);
    AMP_RETURN_IF(given < oldest, AMP_ERR_ABI_MISMATCH,
                  "%s.struct_size is %u, less than the %zu bytes of the first release: set it with the _INIT macro",
                  what, (unsigned)given, oldest);
    AMP_RETURN_IF(given > 65536, AMP_ERR_ABI_MISMATCH,
                  "%s.struct_size is %u, which is no valid size: set it with the _INIT macro", what, (unsigned)given);
    return AMP_OK;
}

amp_status amp__copy_struct(void *dst, size_t ours, size_t oldest, const void *src, uint32_t given, const char *what) {
    AMP_TRY(amp__check_struct(given, oldest, what));
    for (size_t i = ours; i < given; i++)
        AMP_RETURN_IF(((const unsigned char *)src)[i], AMP_ERR_ABI_MISMATCH,
                      "%s is %u byte%s long and asks, at byte %zu, for something this libamp (%zu bytes) does not "
                      "know: use a newer libamp or leave it zero", what, (unsigned)given, AMP__S(given), i, ours);
    const size_t n = given < ours ? given : ours;
    memcpy(dst, src, n);
    memset((char *)dst + n, 0, ours - n);
    return AMP_OK;
}

amp_status amp__fill_struct(void *dst, uint32_t given, size_t oldest, const void *src, size_t ours, const char *what) {
    AMP_TRY(amp__check_struct(given, oldest, what));
    memcpy((char *)dst + sizeof given, (const char *)src + sizeof given, (given < ours ? given : ours) - sizeof given);
    return AMP_OK;
}
