/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who calls, and which BLAS that call would reach without this library. RTLD_NEXT alone would be wrong: NumPy's wheel
 * brings a BLAS that no other object sees, and libtorch_cpu.so exports its own.
 */
#include "../environment.h"
#include "adapter.h"

#include <dlfcn.h>
#include <errno.h>
#include <fnmatch.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/auxv.h>

/* ---- the environment ---- */

static struct wish wanted;

/* Not by wish(), which calls it. */
void tell(const char *format, ...) {
    char text[1024];
    va_list values;
    if (wanted.quiet) return;
    va_start(values, format);
    (void)vsnprintf(text, sizeof text, format, values);
    va_end(values);
    (void)fprintf(stderr, "libamp_blas: %s: %s\n", program_invocation_short_name, text);
}

static void read_wish(void) {
    const char *level = given("AMP_LEVEL"), *log = given("AMP_LOG");
    wanted.off = getauxval(AT_SECURE) != 0;
    if (wanted.off) return;
    wanted.callers = given("AMP_BLAS_CALLERS");
    wanted.quiet = log && !strcmp(log, "off");
    wanted.gate = given_switch("AMP_GATE") != 0;
    wanted.counts = !wanted.callers || !level || strcasecmp(level, "O4") != 0;
    if (level && strcasecmp(level, "O4") != 0 && strcasecmp(level, "O0") != 0)
        tell("AMP_LEVEL=%s: products stay FP32. Only O4 is possible: fp16 needs a loss scale, and O5 masters, which a "
             "BLAS does not see", level);
    else if (wanted.callers && !level)
        tell("AMP_LEVEL is not set: products stay FP32. AMP_LEVEL=O4 makes them bfloat16");
    if (atexit(report) != 0) tell("no report at the end: out of memory");
}

const struct wish *wish(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, read_wish);
    return &wanted;
}

/* AMP_BLAS_CALLERS: names of objects, or of sites in them, as in a shell (*, ?, [a-z]), separated by commas or blanks.
 * Gives the next one, which the caller frees; NULL: that was the last. */
static char *next_name(const char **list) {
    if (!*list) return NULL;
    *list += strspn(*list, ", ");
    const size_t length = strcspn(*list, ", ");
    char *name = length ? strndup(*list, length) : NULL;
    *list += length;
    return name;
}

static bool is_named(const struct site *site, const char *name) {
    return !fnmatch(name, site->caller, 0) || !fnmatch(name, site->name, 0);
}

static bool is_listed(const struct site *site) {
    const char *list = wish()->counts ? NULL : wish()->callers;
    bool named = false;
    for (char *name; !named && (name = next_name(&list)) != NULL; free(name)) named = is_named(site, name);
    return named;
}

void tell_unknown(struct site *const *sites, size_t n) {
    const char *list = wish()->counts ? NULL : wish()->callers;
    for (char *name; (name = next_name(&list)) != NULL; free(name)) {
        bool known = false;
        for (size_t i = 0; i < n && !known; i++) known = is_named(sites[i], name);
        if (!known && n) tell("AMP_BLAS_CALLERS: %s has multiplied nothing", name);
    }
}

/* ---- the original ---- */

static bool is_ours(enum entry entry, const void *function) {
    const amp_fn ours = entry_function(entry);
    return !memcmp(&function, &ours, sizeof ours);
}

/* In the dynamic linker's order: of what is loaded for all, which comes behind this library, then of the object and the
 * libraries that it is linked to. */
static const void *find(enum entry entry, const char *object) {
    void *handle = dlopen(object, RTLD_LAZY | RTLD_NOLOAD);
    const void *function = dlsym(RTLD_NEXT, entry_name(entry));
    if (!function && handle) function = dlsym(handle, entry_name(entry));
    if (handle) (void)dlclose(handle);
    return function && !is_ours(entry, function) ? function : NULL;
}

static void look(struct site *site, const void *address, enum entry entry) {
    Dl_info caller = { 0 }, blas = { 0 };
    if (!dladdr(address, &caller) || !caller.dli_fname) caller.dli_fname = "?";
    const void *function = find(entry, caller.dli_fname);
    *site = (struct site){ .address = address, .entry = entry };
    site->inside_blas = function && dladdr(function, &blas) && blas.dli_fbase == caller.dli_fbase;
    memcpy(&site->original, &function, sizeof function);
    const char *slash = strrchr(caller.dli_fname, '/');
    const size_t offset = (size_t)((const char *)address - (const char *)caller.dli_fbase);
    (void)snprintf(site->caller, sizeof site->caller, "%s", slash ? slash + 1 : caller.dli_fname);
    (void)snprintf(site->name, sizeof site->name, "%s+0x%zx", site->caller, offset);
    site->listed = !site->inside_blas && is_listed(site);
}

/* Addresses must keep their meaning, so an object that multiplies stays loaded, and its BLAS with it. */
static void keep(const struct site *site) {
    const void *function;
    Dl_info object;
    memcpy(&function, &site->original, sizeof function);
    if (dladdr(site->address, &object)) (void)dlopen(object.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (function && dladdr(function, &object)) (void)dlopen(object.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
}

/* ---- all sites ---- */

enum { CAPACITY = 8192, MOST = CAPACITY / 2 };
static struct site *table[CAPACITY], *in_order[MOST]; /* the table is read without the lock */
static size_t n_sites;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void take(void) { (void)pthread_mutex_lock(&lock); }
static void give(void) { (void)pthread_mutex_unlock(&lock); }

/* The child's report has its own calls. */
static void start_anew(void) {
    for (size_t i = 0; i < n_sites; i++) {
        struct site *site = in_order[i];
        site->calls = site->low = site->operations = site->nanoseconds = 0;
    }
    forget_other_threads();
    give();
}

__attribute__((constructor)) static void watch_forks(void) { (void)pthread_atfork(take, give, start_anew); }

static size_t slot_of(const void *address, enum entry entry) {
    const uint64_t bits = (uint64_t)(uintptr_t)address * UINT64_C(0x9E3779B97F4A7C15) + (uint64_t)entry;
    return (size_t)(bits >> 40) % CAPACITY;
}

static struct site *search(const void *address, enum entry entry, size_t *at) {
    struct site *site;
    for (*at = slot_of(address, entry); (site = __atomic_load_n(&table[*at], __ATOMIC_ACQUIRE)) != NULL;
         *at = (*at + 1) % CAPACITY)
        if (site->address == address && site->entry == entry) break;
    return site;
}

/* Without the lock: the dynamic linker has one of its own, under which constructors multiply. */
static struct site *make(const void *address, enum entry entry) {
    struct site *site = calloc(1, sizeof *site);
    if (!site) return NULL;
    look(site, address, entry);
    keep(site);
    if (site->listed) wire(site, wish()->gate);
    return site;
}

struct site *site_of(const void *address, enum entry entry, struct site *spare) {
    size_t at;
    struct site *site = search(address, entry, &at), *made;
    if (site) return site;
    made = make(address, entry);
    take();
    site = search(address, entry, &at);
    if (!site && made && n_sites < MOST) {
        __atomic_store_n(&table[at], in_order[n_sites++] = site = made, __ATOMIC_RELEASE);
        made = NULL;
    }
    give();
    if (made) unwire(made), free(made);
    if (site) return site;
    static bool told;
    if (!__atomic_exchange_n(&told, true, __ATOMIC_RELAXED))
        tell("%d call sites are known: products of others are unchanged, and not counted", MOST);
    look(spare, address, entry);
    return spare;
}

size_t all_sites(struct site **sites, size_t capacity) {
    take();
    const size_t n = n_sites < capacity ? n_sites : capacity;
    memcpy(sites, in_order, n * sizeof *sites);
    give();
    return n;
}
