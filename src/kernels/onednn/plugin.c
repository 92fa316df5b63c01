/* SPDX-License-Identifier: Apache-2.0 */
/* libamp_onednn.so's table: matrix products on the CPU by oneDNN, version 2 or 3. */
#include "kernels/onednn/matmul.h"
#include "kernels/onednn/product.h"

#include <stdio.h>

/* Refuses another major version of oneDNN, with possibly different structures. The linker should have refused it. */
static amp_status init_onednn(const struct amp__backend_host *host, char *version, size_t size) {
    char text[160];
    const dnnl_version_t *v = dnnl_version();
    snprintf(version, size, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    if (v->major != DNNL_VERSION_MAJOR) {
        snprintf(text, sizeof text, "it was built for oneDNN %d and found %d.%d. Install version %d.",
                 DNNL_VERSION_MAJOR, v->major, v->minor, DNNL_VERSION_MAJOR);
        return host->fail(AMP_ERR_BACKEND, text);
    }
    if (product_init() != dnnl_success)
        return host->fail(AMP_ERR_NO_DEVICE, "oneDNN was built without its CPU engine. Install one that has it.");
    onednn_matmul_init(host);
    return AMP_OK;
}

__attribute__((visibility("default"))) const struct amp__backend *amp_backend(void);

__attribute__((visibility("default"))) const struct amp__backend *amp_backend(void) {
    static void *const locks[] = { &product_lock, &pack_lock, &scratch_lock, NULL };
    static const struct amp__backend table = {
        .magic = AMP__BACKEND_MAGIC,
        .abi = AMP__BACKEND_ABI,
        .name = "onednn",
        .init = init_onednn,
        .matmul = onednn_matmul,
        .matmul_explain = onednn_matmul_explain,
        .locks = locks,
        .matmul_unit = onednn_matmul_unit,
    };
    return &table;
}
