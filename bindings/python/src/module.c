/* SPDX-License-Identifier: Apache-2.0 */
/* libamp._core: what of libamp's C is seen from Python. The files beside this one each add a part. */
#include "py.h"

static int (*const parts[])(PyObject *) = {
    amp_py_add_errors, /* first: the others raise */
    amp_py_add_view,
    amp_py_add_tensor_view,
    amp_py_add_dlpack,
    amp_py_add_kernels,
    amp_py_add_context,
    amp_py_add_patch,
    amp_py_add_policy,
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "libamp._core", "libamp's C library, as Python sees it.", -1, NULL, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) {
        return NULL;
    }
    int bad = PyModule_AddStringConstant(module, "version", amp_version());
    for (size_t i = 0; !bad && i < sizeof(parts) / sizeof(parts[0]); i++) {
        bad = parts[i](module);
    }
    if (bad) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
