/* SPDX-License-Identifier: Apache-2.0 */
/* Assertions on what libamp returns and says, and descriptors in one expression. */
#ifndef TEST_ASSERTS_H
#define TEST_ASSERTS_H

#include "test.h"

#include <amp_all.h>
#include <string.h>

#define ck_ok(expression) ck_assert_msg((expression) == AMP_OK, "%s: %s", #expression, amp_last_error())
#define ck_fails(status, expression)                                                                                   \
    do {                                                                                                               \
        const amp_status ck_status_ = (expression);                                                                    \
        ck_assert_msg(ck_status_ == (status), "%s: %s, not %s", #expression, amp_status_name(ck_status_), #status);    \
    } while (0)
#define ck_says(text) ck_assert_msg(strstr(amp_last_error(), (text)), "\"%s\" not in: %s", (text), amp_last_error())
/* Both: refused so, in words that name what was wrong. */
#define ck_refused(status, text, expression)                                                                           \
    do {                                                                                                               \
        ck_fails(status, expression);                                                                                  \
        ck_says(text);                                                                                                 \
    } while (0)

/* What amp_explain says of an op, or of the context (NULL). */
static inline const char *explanation(amp_context *context, const char *op) {
    static char text[16384];
    ck_ok(amp_explain(context, op, text, sizeof text, NULL));
    return text;
}
#define ck_explains(context, op, what)                                                                                 \
    ck_assert_msg(strstr(explanation(context, op), (what)), "\"%s\" not in: %s", (what), explanation(context, op))

/* The first members in their order, the others by their names; what is not given is as the _INIT macros have it. C's
 * alone: C++ has no such expressions. */
#define SIZED(type, ...) ((type){ .struct_size = (uint32_t)sizeof(type), __VA_ARGS__ })
#define CONFIG(...) SIZED(amp_config, .level = __VA_ARGS__)
#define OP(op_name, op_schema, ...) SIZED(amp_op, .name = (op_name), .schema = (op_schema), .slot = (void *)__VA_ARGS__)
#define FIELD(field_name, field_role, ...) SIZED(amp_field, .name = (field_name), .role = (field_role), __VA_ARGS__)

#endif
