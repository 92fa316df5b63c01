/* SPDX-License-Identifier: Apache-2.0 */
/* libamp._core: the part of libamp's C that Python uses. Each other file adds a part. */
#include "py.h"

#include <dlfcn.h>
#include <string.h>

#define TEXT_(text) #text
#define TEXT(text) TEXT_(text)
#define BUILT_FOR TEXT(AMP_VERSION_MAJOR) "." TEXT(AMP_VERSION_MINOR) "." TEXT(AMP_VERSION_PATCH)

/* A libamp.so.0 loaded earlier by a preload or the program hides the package's own. */
static int check_library(void) {
    Dl_info info;
    union {
        const char *(*function)(void);
        void *object;
    } version = { amp_version };
    if (strcmp(amp_version(), BUILT_FOR) == 0) return 0;
    const char *file = dladdr(version.object, &info) && info.dli_fname ? info.dli_fname : "a file that has no name";
    PyErr_Format(PyExc_ImportError, "libamp._core was built for libamp " BUILT_FOR ", and this process has loaded %s "
                 "from %s: take that library out of LD_PRELOAD or LD_LIBRARY_PATH, or install both in one version",
                 amp_version(), file);
    return -1;
}

static int (*const parts[])(PyObject *) = {
    amp_py_add_errors, /* first, because the others raise its exceptions */
    amp_py_add_view,
    amp_py_add_tensor_view,
    amp_py_add_dlpack,
    amp_py_add_served,
    amp_py_add_kernels,
    amp_py_add_context,
    amp_py_add_patch,
    amp_py_add_patched,
    amp_py_add_products,
    amp_py_add_policy,
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "libamp._core", "libamp's C library, as Python sees it.", -1, NULL, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void) {
    PyObject *module = check_library() ? NULL : PyModule_Create(&definition);
    if (!module) return NULL;
    int bad = PyModule_AddStringConstant(module, "version", amp_version());
    for (size_t i = 0; !bad && i < sizeof(parts) / sizeof(parts[0]); i++) bad = parts[i](module);
    if (bad) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
