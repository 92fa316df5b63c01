/* SPDX-License-Identifier: Apache-2.0 */
/* Statuses and the thread's last error: a fixed buffer per thread, so that reporting an error cannot fail. */
#include "common/common.h"
#include "common/thread.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
    amp_status status;
    const char *name, *text;
} statuses[] = {
#define AMP_STATUS_ROW(name, value, text) { value, #name, text },
    AMP_STATUS_MAP(AMP_STATUS_ROW)
#undef AMP_STATUS_ROW
};

AMP_API const char *amp_status_name(amp_status status) {
    for (size_t i = 0; i < AMP_COUNT(statuses); i++)
        if (statuses[i].status == status) return statuses[i].name;
    return "unknown status";
}

AMP_API const char *amp_status_text(amp_status status) {
    for (size_t i = 0; i < AMP_COUNT(statuses); i++)
        if (statuses[i].status == status) return statuses[i].text;
    return "a status that this libamp does not know";
}

const char *amp__system_text(int error, char *buffer, size_t size) {
#ifdef __GLIBC__ /* GNU's returns the text, everybody else's fills the buffer */
    return strerror_r(error, buffer, size);
#else
    return strerror_r(error, buffer, size) ? "unknown error" : buffer;
#endif
}

AMP_API const char *amp_last_error(void) { return amp__thread_state()->error; }

amp_status amp__fail(amp_status status, const char *format, ...) {
    char *error = amp__thread_state()->error;
    char text[AMP__ERROR_SIZE]; /* the arguments may lie in the buffer itself */
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    memcpy(error, text, sizeof text);
    return status;
}

amp_status amp__fail_prefix(amp_status status, const char *format, ...) {
    char *error = amp__thread_state()->error;
    char text[AMP__ERROR_SIZE];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const size_t prefix = length < 0 ? 0 : (size_t)length < AMP__ERROR_SIZE / 2 ? (size_t)length : AMP__ERROR_SIZE / 2;
    memmove(error + prefix + 2, error, AMP__ERROR_SIZE - prefix - 3);
    memcpy(error, text, prefix);
    memcpy(error + prefix, ": ", 2);
    error[AMP__ERROR_SIZE - 1] = '\0';
    return status;
}

amp_status amp__fail_memory(void) { return amp__fail(AMP_ERR_NO_MEMORY, "out of memory"); }
