/* SPDX-License-Identifier: Apache-2.0 */
/* Products in device memory: arguments are checked here, beyond the checks of matmul.c, and passed to the backend. */
#include "kernels/device.h"
#include "kernels/fpenv.h"
#include "kernels/matmul.h"

/* ---- checks ---- */

static bool is_type(amp_dtype dtype) { return dtype == AMP_FLOAT32 || dtype == AMP_FLOAT16 || dtype == AMP_BFLOAT16; }

static amp_status check_aligned(const char *name, const void *data, size_t to) {
    AMP_RETURN_IF((uintptr_t)data % to, AMP_ERR_INVALID_ARGUMENT,
                  "matmul: the address of %s is no multiple of %zu bytes", name, to);
    return AMP_OK;
}

static amp_status check_addresses(const amp_matmul_args *g) {
    AMP_TRY(check_aligned("a", g->a, amp__dtype_size(g->a_dtype)));
    AMP_TRY(check_aligned("b", g->b, amp__dtype_size(g->b_dtype)));
    AMP_TRY(check_aligned("d", g->d, amp__dtype_size(g->d_dtype)));
    if (g->c) AMP_TRY(check_aligned("c", g->c, amp__dtype_size(g->c_dtype)));
    return g->bias ? check_aligned("bias", g->bias, amp__dtype_size(g->bias_dtype)) : AMP_OK;
}

static amp_status check_stream(const amp_matmul_args *g) {
    AMP_RETURN_IF(!g->stream, AMP_ERR_INVALID_ARGUMENT,
                  "matmul: stream is NULL, CUDA's legacy default stream: make one (cudaStreamNonBlocking), or pass "
                  "cudaStreamPerThread");
    return AMP_OK;
}

static int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* Fills in the distances. */
static amp_status check_aux(const amp_matmul_args *g, amp_device_epilogue *e) {
    const int64_t unit = g->activation == AMP_ACTIVATION_RELU ? 128 : 8, width = (int64_t)amp__dtype_size(g->d_dtype);
    AMP_RETURN_IF(e->backward && g->activation != AMP_ACTIVATION_NONE && !e->aux, AMP_ERR_INVALID_ARGUMENT,
                  "matmul: aux is NULL, and backward reads what forward wrote there");
    if (g->activation == AMP_ACTIVATION_NONE) e->aux = NULL;
    if (!e->aux) return AMP_OK;
    if (e->ld_aux == 0) e->ld_aux = round_up(g->n, unit);
    AMP_TRY(check_aligned("aux", e->aux, 16));
    AMP_RETURN_IF(e->ld_aux < g->n || e->ld_aux % unit || e->ld_aux > PTRDIFF_MAX / 8 / width / (g->m ? g->m : 1),
                  AMP_ERR_INVALID_ARGUMENT, "matmul: ld_aux is %lld: use a multiple of %d from %lld on",
                  (long long)e->ld_aux, (int)unit, (long long)g->n);
    if (e->stride_aux == 0) e->stride_aux = g->m * e->ld_aux;
    AMP_RETURN_IF(g->batch > 1 && (e->stride_aux < g->m * e->ld_aux || e->stride_aux % unit ||
                                   e->stride_aux > PTRDIFF_MAX / 8 / g->batch),
                  AMP_ERR_INVALID_ARGUMENT, "matmul: stride_aux is %lld: use a multiple of %d from %lld on",
                  (long long)e->stride_aux, (int)unit, (long long)(g->m * e->ld_aux));
    return AMP_OK;
}

static amp_status check_bias_grad(const amp_matmul_args *g, amp_device_epilogue *e) {
    const int64_t length = e->bias_grad_of == AMP_BIAS_GRAD_A ? g->m : g->n;
    AMP_RETURN_IF(e->bias_grad_of < AMP_BIAS_GRAD_NONE || e->bias_grad_of > AMP_BIAS_GRAD_B, AMP_ERR_INVALID_ARGUMENT,
                  "matmul: bias_grad_of is %d: use AMP_BIAS_GRAD_...", (int)e->bias_grad_of);
    if (e->bias_grad_of == AMP_BIAS_GRAD_NONE) return AMP_OK;
    AMP_RETURN_IF(e->bias_grad_of == AMP_BIAS_GRAD_D && !e->backward, AMP_ERR_INVALID_ARGUMENT,
                  "matmul: AMP_BIAS_GRAD_D is for backward");
    AMP_RETURN_IF(!is_type(e->bias_grad_dtype), AMP_ERR_INVALID_ARGUMENT,
                  "matmul: bias_grad is %s: use fp32, fp16 or bf16", amp__dtype_name(e->bias_grad_dtype));
    AMP_RETURN_IF(!e->bias_grad, AMP_ERR_INVALID_ARGUMENT, "matmul: bias_grad is NULL");
    AMP_RETURN_IF((e->bias_grad_of == AMP_BIAS_GRAD_A && g->k && !g->a) ||
                      (e->bias_grad_of == AMP_BIAS_GRAD_B && g->k && !g->b),
                  AMP_ERR_INVALID_ARGUMENT, "matmul: bias_grad is a sum of a matrix that is NULL");
    if (e->stride_bias_grad == 0) e->stride_bias_grad = length;
    AMP_RETURN_IF(g->batch > 1 && (e->stride_bias_grad < length || e->stride_bias_grad > PTRDIFF_MAX / 8 / g->batch),
                  AMP_ERR_INVALID_ARGUMENT, "matmul: stride_bias_grad is %lld, less than the %lld element%s of one",
                  (long long)e->stride_bias_grad, (long long)length, AMP__S(length));
    return check_aligned("bias_grad", e->bias_grad, amp__dtype_size(e->bias_grad_dtype));
}

static amp_status check_epilogue(const amp_matmul_args *g, const amp_device_epilogue *given, amp_device_epilogue *e) {
    if (given)
        AMP_TRY(amp__copy_struct(e, sizeof *e, sizeof *e, given, given->struct_size, "amp_device_epilogue"));
    AMP_RETURN_IF(e->backward != 0 && e->backward != 1, AMP_ERR_INVALID_ARGUMENT, "matmul: backward is %d: use 0 or 1",
                  (int)e->backward);
    AMP_RETURN_IF(e->backward && g->bias, AMP_ERR_INVALID_ARGUMENT, "matmul: backward adds no bias: leave it NULL");
    AMP_TRY(check_aux(g, e));
    AMP_TRY(check_bias_grad(g, e));
    return e->workspace ? check_aligned("workspace", e->workspace, 256) : AMP_OK;
}

/* ---- calls ---- */

static amp_status backend_of(const struct amp__backend **backend) {
    amp_status status = AMP_OK;
    *backend = amp__backend_get(AMP__BACKEND_cuda, &status);
    if (!*backend) return status;
    AMP_RETURN_IF(!(*backend)->product, AMP_ERR_BACKEND,
                  "matmul: libamp_cuda.so has no products: it was built without cuBLASLt's headers");
    return AMP_OK;
}

/* explained NULL: the work is started. */
static amp_status call_backend(const struct amp__backend *backend, const struct amp__device_product *call,
                               amp__text *explained) {
    char how[512] = "";
    if (!explained) return backend->product(call);
    AMP_TRY(backend->product_explain(call, how, sizeof how));
    amp__text_add(explained, "%s", how);
    return AMP_OK;
}

int32_t amp__device_tensor_cores(int32_t id, amp_dtype type, int32_t *capability) {
    const struct amp__backend *backend = amp__backend_get(AMP__BACKEND_cuda, NULL);
    return backend && backend->tensor_cores ? backend->tensor_cores(id, type, capability) : -1;
}

static bool is_empty(const amp_matmul_args *g) { return g->m == 0 || g->n == 0; }

amp_status amp__device_matmul(const amp_matmul_args *g, amp__text *explained) {
    amp_device_epilogue epilogue = AMP_DEVICE_EPILOGUE_INIT;
    const struct amp__backend *backend = NULL;
    const struct amp__device_product call = { AMP__PRODUCT_RUN, NULL, g, &epilogue };
    if (!explained) AMP_TRY(check_stream(g));
    AMP_TRY(check_addresses(g));
    AMP_TRY(backend_of(&backend));
    return is_empty(g) ? AMP_OK : call_backend(backend, &call, explained);
}

static amp_status product(const struct amp__device_product *asked, amp_device_list *list, void *stream,
                          amp__text *explained) {
    amp_matmul_args g;
    amp_device_epilogue epilogue = AMP_DEVICE_EPILOGUE_INIT;
    struct amp__device_product call = { asked->kind, NULL, &g, &epilogue };
    const struct amp__backend *backend = NULL;
    AMP_RETURN_IF(!list || !asked->args, AMP_ERR_INVALID_ARGUMENT, "matmul: %s is NULL", list ? "args" : "list");
    AMP_RETURN_IF(list->device.type == AMP__DEVICE_SERVED, AMP_ERR_UNSUPPORTED,
                  "matmul: products need the CPU or the backend cuda (libamp_cuda.so): a served device has none");
    AMP_TRY(amp__matmul_read(&g, asked->args));
    g.device = list->device, g.stream = stream;
    if (!explained) AMP_TRY(check_stream(&g));
    AMP_TRY(check_addresses(&g));
    AMP_TRY(check_epilogue(&g, asked->epilogue, &epilogue));
    AMP_RETURN_IF(asked->kind == AMP__PRODUCT_MEASURE && g.c && g.c == g.d, AMP_ERR_INVALID_ARGUMENT,
                  "amp_device_matmul_measure: c is d, to which the product would be added again and again");
    AMP_TRY(backend_of(&backend));
    call.list = list->list;
    /* with no columns or rows of d there may still be sums of an operand, but nothing that they are a gradient of */
    return is_empty(&g) ? AMP_OK : call_backend(backend, &call, explained);
}

static amp_status product_in_default_environment(const struct amp__device_product *asked, amp_device_list *list,
                                                 void *stream, amp__text *explained) {
    const amp__fpenv saved = amp__fpenv_enter(); /* checks compare alpha with 0 */
    const amp_status status = product(asked, list, stream, explained);
    amp__fpenv_leave(saved);
    return status;
}

AMP_API amp_status amp_device_matmul(amp_device_list *list, void *stream, const amp_matmul_args *args,
                                     const amp_device_epilogue *epilogue) {
    const struct amp__device_product asked = { AMP__PRODUCT_RUN, NULL, args, epilogue };
    return product_in_default_environment(&asked, list, stream, NULL);
}

AMP_API amp_status amp_device_matmul_measure(amp_device_list *list, void *stream, const amp_matmul_args *args,
                                             const amp_device_epilogue *epilogue) {
    const struct amp__device_product asked = { AMP__PRODUCT_MEASURE, NULL, args, epilogue };
    return product_in_default_environment(&asked, list, stream, NULL);
}

AMP_API amp_status amp_device_matmul_explain(amp_device_list *list, const amp_matmul_args *args,
                                             const amp_device_epilogue *epilogue, char *text, size_t capacity,
                                             size_t *length) {
    const struct amp__device_product asked = { AMP__PRODUCT_RUN, NULL, args, epilogue };
    amp__text words = { text, capacity, 0 };
    AMP_RETURN_IF(!text && capacity, AMP_ERR_INVALID_ARGUMENT, "amp_device_matmul_explain: text is NULL");
    const amp_status status = product_in_default_environment(&asked, list, NULL, &words);
    if (status == AMP_OK && length) *length = words.length;
    return status;
}
