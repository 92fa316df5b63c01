/* SPDX-License-Identifier: Apache-2.0 */
#include "common/common.h"

/* In capitals or not, whatever the locale. */
static bool is_word(const char *text, const char *word) {
    while (*word && (*text == *word || (*word >= 'a' && (*text | 0x20) == *word))) text++, word++;
    return !*text && !*word;
}

int amp__switch_parse(const char *text) {
    static const char *const words[][2] = { { "0", "1" }, { "false", "true" }, { "no", "yes" }, { "off", "on" } };
    if (!text || !*text) return 0;
    for (size_t i = 0; i < AMP_COUNT(words); i++)
        for (int on = 0; on < 2; on++)
            if (is_word(text, words[i][on])) return on;
    return -1;
}
