/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loader of backends. A backend is tried once in the life of the
 * process, under a lock. The result is then published and never changes, so that later calls need no lock. An opened
 * file stays open in any case: unmapping foreign code is no safer than leaving it mapped.
 */
#include "kernels/backend.h"
#include "common/common.h"
#include "kernels/kernels.h"
#include "kernels/matmul.h"
#include "system/system.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_SIZE = 1024, TEXT_SIZE = 800, VERSION_SIZE = 64 };

struct backend {
    const char *name;
    _Atomic amp_backend_state state; /* release after the rest */
    amp_backend_state outcome;       /* of trying, under the lock */
    const struct amp__backend *table;
    struct amp__forkable locks[AMP__BACKEND_LOCKS];
    char file[PATH_SIZE], text[TEXT_SIZE], version[VERSION_SIZE];
};

static struct backend backends[AMP__BACKENDS] = {
#define BACKEND_ROW(name) \
    { #name, AMP_BACKEND_NOT_TRIED, AMP_BACKEND_NOT_TRIED, NULL, { { NULL, NULL, NULL, NULL } }, "", "", "" },
    AMP__BACKEND_MAP(BACKEND_ROW)
#undef BACKEND_ROW
};

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static struct amp__forkable loading_forkable;

/* ---- functions for plugins ---- */

static amp_status host_fail(amp_status status, const char *text) { return amp__fail(status, "%s", text); }

static void host_cast(amp_dtype dst_type, void *dst, amp_dtype src_type, const void *src, size_t n) {
    amp__kernels_get()->cast[dst_type][src_type](dst, src, n);
}

static const struct amp__backend_host host = {
    host_fail, host_cast, amp__matmul_finish,
};

/* ---- where to look ---- */

/* A line of the backend's text: room for the rest is kept by cutting. */
static void say(struct backend *b, const char *format, ...) AMP_PRINTF(2, 3);

static void say(struct backend *b, const char *format, ...) {
    const size_t length = strlen(b->text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(b->text + length, sizeof b->text - length, format, arguments);
    va_end(arguments);
}

/* Is there a file of the backend's name in this folder? Leaves its path in b->file. */
static bool find_in(struct backend *b, const char *folder, size_t length) {
    while (length > 1 && folder[length - 1] == '/') length--;
    char path[PATH_SIZE];
    const int needed = snprintf(path, sizeof path, "%.*s/libamp_%s.so", (int)length, folder, b->name);
    if (needed < 0 || (size_t)needed >= sizeof path || !amp__file_exists(path, false)) return false;
    memcpy(b->file, path, (size_t)needed + 1);
    return true;
}

/* Searches AMP_BACKEND_PATH. A relative folder depends on the current folder of the process, so it is not used. */
static bool find_on_path(struct backend *b) {
    const char *path = amp__trusted_getenv("AMP_BACKEND_PATH");
    while (path && *path) {
        const size_t length = strcspn(path, ":");
        if (length && *path != '/')
            say(b, "AMP_BACKEND_PATH: '%.*s' is not an absolute folder and was passed over. ",
                length > 100 ? 100 : (int)length, path);
        else if (length && find_in(b, path, length))
            return true;
        path += length + (path[length] == ':');
    }
    return false;
}

bool amp__backend_path_is_good(const char *path) {
    char folder[PATH_SIZE];
    while (*path) {
        const size_t length = strcspn(path, ":");
        snprintf(folder, sizeof folder, "%.*s", length < PATH_SIZE ? (int)length : 0, path);
        if (length && (*folder != '/' || !amp__file_exists(folder, true))) return false;
        path += length + (path[length] == ':');
    }
    return true;
}

/* Searches beside libamp, and in the folder libamp there, where distributions put plugins. */
static bool find_beside(struct backend *b, const char *own) {
    char folder[PATH_SIZE];
    const size_t length = (size_t)(strrchr(own, '/') - own);
    if (find_in(b, own, length ? length : 1)) return true;
    const int needed = snprintf(folder, sizeof folder, "%.*s/libamp", (int)length, own);
    return needed > 0 && (size_t)needed < sizeof folder && find_in(b, folder, (size_t)needed);
}

static bool find_file(struct backend *b) {
    char own[PATH_SIZE];
    if (find_on_path(b)) return true;
    const char *why_not = amp__own_file(own, sizeof own);
    if (why_not) {
        say(b, "%s", why_not);
    } else {
        if (find_beside(b, own)) return true;
        say(b, "There is no libamp_%s.so beside %.300s. ", b->name, own);
    }
    if (getenv("AMP_BACKEND_PATH") && !amp__trusted_getenv("AMP_BACKEND_PATH"))
        say(b, "Install it there. AMP_BACKEND_PATH is ignored: this program has more rights than its caller.");
    else
        say(b, "Install it there, or name its folder in AMP_BACKEND_PATH.");
    return false;
}

/* ---- one plugin ---- */

/* Reads the head alone, before anything of the plugin's is used. */
static bool negotiate(struct backend *b, const struct amp__backend *table) {
    if (!table || table->magic != AMP__BACKEND_MAGIC) {
        say(b, "%s is no backend of libamp: its table has another mark. Remove it.", b->file);
    } else if (table->abi != AMP__BACKEND_ABI) {
        say(b,
            "%s is of another libamp: it speaks version %u of the interface, this libamp %u. Install the one of libamp "
            "%s.",
            b->file, (unsigned)table->abi, AMP__BACKEND_ABI, amp_version());
    } else if (strcmp(table->name, b->name)) {
        say(b, "%s is another backend under this name. Remove it.", b->file);
    } else {
        return true;
    }
    return false;
}

/* The init of a plugin leaves its words in the last error, which belongs to the caller's thread. */
static amp_backend_state start_backend(struct backend *b, const struct amp__backend *table) {
    const amp_status status = table->init(&host, b->version, sizeof b->version);
    b->version[sizeof b->version - 1] = '\0';
    if (status == AMP_OK) {
        b->table = table;
        return AMP_BACKEND_READY;
    }
    say(b, "%s: %s", b->file, amp_last_error());
    return status == AMP_ERR_NO_DEVICE ? AMP_BACKEND_NO_DEVICE : AMP_BACKEND_CANNOT_LOAD;
}

static amp_backend_state try_backend(struct backend *b) {
    char why[TEXT_SIZE];
    if (!find_file(b)) return AMP_BACKEND_NOT_FOUND;
    void *library = amp__library_open(b->file, why, sizeof why);
    if (!library) {
        say(b, "%s cannot be loaded: %s", b->file, why);
        return AMP_BACKEND_CANNOT_LOAD;
    }
    amp__backend_entry_fn *entry = (amp__backend_entry_fn *)amp__library_function(library, AMP__BACKEND_SYMBOL);
    if (!entry) {
        say(b, "%s is no backend of libamp: it has no function " AMP__BACKEND_SYMBOL ". Remove it.", b->file);
        return AMP_BACKEND_CANNOT_LOAD;
    }
    const struct amp__backend *table = entry();
    return negotiate(b, table) ? start_backend(b, table) : AMP_BACKEND_CANNOT_LOAD;
}

/* ---- for the rest of libamp ---- */

static amp_status status_of(const struct backend *b, amp_backend_state state) {
    static const amp_status statuses[] = {
        [AMP_BACKEND_READY] = AMP_OK,
        [AMP_BACKEND_NOT_FOUND] = AMP_ERR_BACKEND,
        [AMP_BACKEND_CANNOT_LOAD] = AMP_ERR_BACKEND,
        [AMP_BACKEND_NO_DEVICE] = AMP_ERR_NO_DEVICE,
    };
    AMP_RETURN_IF(statuses[state] != AMP_OK, statuses[state], "backend %s: %s", b->name, b->text);
    return AMP_OK;
}

/* Fork must know a plugin's locks before anybody takes them. Not under our own: fork takes its list's first,
 * then ours. */
static bool add_locks(struct backend *b) {
    if (!b->table || !b->table->locks) return true;
    for (int i = 0; i < AMP__BACKEND_LOCKS && b->table->locks[i]; i++)
        if (amp__fork_add(&b->locks[i], b->table->locks[i]) != AMP_OK) return false;
    return true;
}

/* The thread's last error stays: that a backend is missing is no error of the call that looked for it. */
static void try_under_lock(struct backend *b) {
    char error[1024];
    pthread_mutex_lock(&loading);
    if (b->outcome == AMP_BACKEND_NOT_TRIED) {
        snprintf(error, sizeof error, "%s", amp_last_error());
        b->outcome = try_backend(b);
        amp__fail(AMP_OK, "%s", error);
    }
    pthread_mutex_unlock(&loading);
}

static amp_status try_once(struct backend *b, amp_backend_state *state) {
    AMP_TRY(amp__fork_add(&loading_forkable, &loading));
    try_under_lock(b);
    if (!add_locks(b)) return amp__fail_memory();
    *state = b->outcome;
    atomic_store_explicit(&b->state, b->outcome, memory_order_release); /* the same, whoever stores it */
    return AMP_OK;
}

const struct amp__backend *amp__backend_get(int index, amp_status *status) {
    struct backend *b = &backends[index];
    amp_backend_state state = atomic_load_explicit(&b->state, memory_order_acquire);
    const amp_status tried = state == AMP_BACKEND_NOT_TRIED ? try_once(b, &state) : AMP_OK;
    if (status) *status = tried == AMP_OK ? status_of(b, state) : tried;
    return state == AMP_BACKEND_READY ? b->table : NULL;
}

const struct amp__backend *amp__backend_in_use(int index) {
    static const char *const drivers[AMP__BACKENDS] = { [AMP__BACKEND_cuda] = "libcuda.so.1" };
    struct backend *b = &backends[index];
    if (atomic_load_explicit(&b->state, memory_order_acquire) == AMP_BACKEND_NOT_TRIED) {
        if (!drivers[index] || amp__fork_is_child() || !amp__library_is_loaded(drivers[index])) return NULL;
    }
    return amp__backend_get(index, NULL);
}

/* ---- for everybody ---- */

AMP_API amp_status amp_backend_load(const char *name) {
    char known[100] = "";
    AMP_RETURN_IF(!name, AMP_ERR_INVALID_ARGUMENT, "amp_backend_load: name is NULL");
    for (int i = 0; i < AMP__BACKENDS; i++) {
        if (!strcmp(name, backends[i].name)) {
            amp_status status = AMP_OK;
            amp__backend_get(i, &status);
            return status;
        }
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", backends[i].name);
    }
    return amp__fail(AMP_ERR_NOT_FOUND, "there is no backend '%.40s': libamp knows %s", name, known);
}

AMP_API amp_status amp_get_backends(amp_backend_info *infos, size_t capacity, size_t *count) {
    AMP_RETURN_IF(!count || (!infos && capacity), AMP_ERR_INVALID_ARGUMENT, "amp_get_backends: %s is NULL",
                  count ? "infos" : "count");
    const uint32_t stride = capacity ? infos->struct_size : 0;
    if (capacity) AMP_TRY(amp__check_struct(stride, sizeof(amp_backend_info), "amp_backend_info"));
    for (size_t i = 0; i < AMP__BACKENDS && i < capacity; i++) {
        const struct backend *b = &backends[i];
        amp_backend_info *info = (amp_backend_info *)((char *)infos + i * stride);
        const amp_backend_state state = atomic_load_explicit(&b->state, memory_order_acquire);
        const bool tried = state != AMP_BACKEND_NOT_TRIED; /* else another thread may be writing */
        const amp_backend_info filled = {
            sizeof filled, state, b->name, tried ? b->version : "", tried ? b->file : "", tried ? b->text : "",
        };
        info->struct_size = stride;
        AMP_TRY(amp__fill_struct(info, stride, sizeof filled, &filled, sizeof filled, "amp_backend_info"));
    }
    *count = AMP__BACKENDS;
    return AMP_OK;
}
