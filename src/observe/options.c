/* SPDX-License-Identifier: Apache-2.0 */
/* The options of amp_observe, from amp_observe_options or the environment. */
#include "observe/observe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { ALL = (AMP_SEE_UPDATES << 1) - 1 };

/* ---- amp_observe_options ---- */

void amp__observe_free_options(amp_observe_options *options) {
    for (uint32_t i = 0; options->names && i < options->n_names; i++) amp__free((char *)(uintptr_t)options->names[i]);
    amp__free((void *)(uintptr_t)options->names);
    options->names = NULL;
}

static amp_status copy_names(const char *const *given, uint32_t n, amp_observe_options *options) {
    const char **names = amp__alloc(n, sizeof *names);
    options->names = names;
    options->n_names = 0;
    if (n && !names) return amp__fail_memory();
    for (; options->n_names < n; options->n_names++) {
        const char *name = given[options->n_names];
        AMP_RETURN_IF(!name, AMP_ERR_INVALID_ARGUMENT, "amp_observe: names[%u] is NULL", (unsigned)options->n_names);
        char *copy = amp__alloc(strlen(name) + 1, 1);
        if (!copy) return amp__fail_memory();
        names[options->n_names] = strcpy(copy, name);
    }
    return AMP_OK;
}

static uint32_t or_default(uint32_t value, uint32_t fallback) { return value ? value : fallback; }

amp_status amp__observe_resolve(const amp_observe_options *given, amp_observe_options *options) {
    amp_observe_options o = AMP_OBSERVE_OPTIONS_INIT;
    if (given) AMP_TRY(amp__copy_struct(&o, sizeof o, sizeof o, given, given->struct_size, "amp_observe_options"));
    AMP_RETURN_IF(o.what & ~(uint32_t)ALL, AMP_ERR_INVALID_ARGUMENT, "amp_observe: what has unknown bits 0x%x",
                  (unsigned)(o.what & ~(uint32_t)ALL));
    AMP_RETURN_IF(o.n_names && !o.names, AMP_ERR_INVALID_ARGUMENT, "amp_observe: names is NULL, and n_names is %u",
                  (unsigned)o.n_names);
    AMP_RETURN_IF(o.sample > AMP_SAMPLE_MOST, AMP_ERR_INVALID_ARGUMENT,
                  "amp_observe: sample is %u: use 1 to %d", (unsigned)o.sample, AMP_SAMPLE_MOST);
    *options = o;
    options->what = or_default(o.what, ALL);
    options->every = or_default(o.every, 200);
    options->first = or_default(o.first, 1);
    options->after_skip = or_default(o.after_skip, 1);
    options->sample = or_default(o.sample, 1);
    options->max_bytes = o.max_bytes ? o.max_bytes : 64 << 20;
    const amp_status status = copy_names(o.names, o.n_names, options);
    if (status != AMP_OK) amp__observe_free_options(options);
    return status;
}

/* ---- AMP_OBSERVE ---- */

static amp_status unreadable(const char *item, int length) {
    return amp__fail(AMP_ERR_INVALID_ARGUMENT, "AMP_OBSERVE: \"%.*s\" is not understood: use 1, or "
                     "every=N,first=N,after_skip=N,sample=N,what=inputs+outputs+weights+scaled+gradients+masters+"
                     "updates,names=PATTERN+PATTERN", length, item);
}

static amp_status read_number(const char *item, int length, const char *value, uint32_t *out) {
    char *end;
    errno = 0;
    const unsigned long number = strtoul(value, &end, 10);
    if (errno || end == value || end != item + length || !number || number > UINT32_MAX || *value == '-')
        return unreadable(item, length);
    *out = (uint32_t)number;
    return AMP_OK;
}

static amp_status read_what(const char *item, int length, const char *value, uint32_t *out) {
    static const char *const words[] = { "inputs", "outputs", "weights", "scaled", "gradients", "masters", "updates" };
    const char *const end = item + length;
    do {
        const size_t n = strcspn(value, "+,");
        size_t i = 0;
        while (i < AMP_COUNT(words) && (strlen(words[i]) != n || strncmp(words[i], value, n) != 0)) i++;
        if (i == AMP_COUNT(words)) return unreadable(item, length);
        *out |= 1u << i;
        value += n + 1;
    } while (value <= end);
    return AMP_OK;
}

/* The patterns are cut out of `text`, which is the caller's copy. */
static amp_status read_names(char *value, const char **names, size_t capacity, uint32_t *n) {
    for (char *rest = NULL, *name = strtok_r(value, "+", &rest); name; name = strtok_r(NULL, "+", &rest)) {
        AMP_RETURN_IF(*n == capacity, AMP_ERR_INVALID_ARGUMENT, "AMP_OBSERVE: more than %zu names", capacity);
        names[(*n)++] = name;
    }
    return AMP_OK;
}

static amp_status read_item(char *item, amp_observe_options *o, const char **names, size_t capacity) {
    const int length = (int)strlen(item);
    char *value = strchr(item, '=');
    if (amp__switch_parse(item) == 1) return AMP_OK;
    if (!value++) return unreadable(item, length);
    if (!strncmp(item, "every=", 6)) return read_number(item, length, value, &o->every);
    if (!strncmp(item, "first=", 6)) return read_number(item, length, value, &o->first);
    if (!strncmp(item, "after_skip=", 11)) return read_number(item, length, value, &o->after_skip);
    if (!strncmp(item, "sample=", 7)) return read_number(item, length, value, &o->sample);
    if (!strncmp(item, "what=", 5)) return read_what(item, length, value, &o->what);
    if (!strncmp(item, "names=", 6)) return read_names(value, names, capacity, &o->n_names);
    return unreadable(item, length);
}

amp_status amp__observe_environment(amp_observe_options *options, bool *asked) {
    const char *names[64], *text = getenv("AMP_OBSERVE");
    amp_observe_options o = AMP_OBSERVE_OPTIONS_INIT;
    *asked = amp__switch_parse(text) != 0;
    if (!*asked) return AMP_OK;
    char *copy = amp__alloc(strlen(text) + 1, 1), *rest = NULL;
    if (!copy) return amp__fail_memory();
    strcpy(copy, text);
    amp_status status = AMP_OK;
    for (char *item = strtok_r(copy, ",", &rest); item && status == AMP_OK; item = strtok_r(NULL, ",", &rest))
        status = read_item(item, &o, names, AMP_COUNT(names));
    o.names = names;
    if (status == AMP_OK) status = amp__observe_resolve(&o, options);
    amp__free(copy);
    return status;
}
