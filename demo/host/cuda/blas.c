/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products by cuBLASLt, with sums in float; f32 is multiplied as it is, not as
 * tf32.  The library is opened when the GPU is, so that a program starts
 * without it.  cuBLASLt's matrices lie column by column: ours, row by row, are
 * their transposes, so d = a x b is asked for as d' = b' x a'.
 */
#include "cuda.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_OF_(x) #x
#define TEXT_OF(x) TEXT_OF_(x)
#define LIBRARY "libcublasLt.so." TEXT_OF(CUBLAS_VER_MAJOR)
#define WORKSPACE ((size_t)32 << 20)
#define ALIGNMENT 16 /* of every storage, and more than cuBLASLt asks for */

#define FUNCTIONS(X)                                                           \
	X(cublasLtCreate)                                                      \
	X(cublasLtGetStatusName)                                               \
	X(cublasLtMatmul)                                                      \
	X(cublasLtMatmulAlgoGetHeuristic)                                      \
	X(cublasLtMatmulDescCreate)                                            \
	X(cublasLtMatmulDescSetAttribute)                                      \
	X(cublasLtMatmulPreferenceCreate)                                      \
	X(cublasLtMatmulPreferenceDestroy)                                     \
	X(cublasLtMatmulPreferenceSetAttribute)                                \
	X(cublasLtMatrixLayoutCreate)

#define POINTER(name) __typeof__(&name) name;
static struct {
	FUNCTIONS(POINTER)
} lt;
static cublasLtHandle_t handle;
static void *workspace;

/* ---- opening ------------------------------------------------------------ */

static void *open_library(void)
{
	static const char *const places[] = {
		LIBRARY, "/usr/local/cuda/lib64/" LIBRARY,
		"/opt/cuda/lib64/" LIBRARY};
	const char *named = secure_getenv("MINITAPE_CUBLASLT");
	void *library = NULL;

	if (named)
		return dlopen(named, RTLD_NOW | RTLD_LOCAL);
	for (size_t i = 0; !library && i < sizeof(places) / sizeof(*places);
	     i++)
		library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
	return library;
}

int mtc_blas_open(void)
{
	const struct {
		const char *name;
		void *member;
	} functions[] = {
#define ROW(name) {#name, &lt.name},
		FUNCTIONS(ROW)};
	void *library = open_library();

	for (size_t i = 0; i < sizeof(functions) / sizeof(*functions); i++) {
		void *symbol = library ? dlsym(library, functions[i].name)
		                       : NULL;

		if (!symbol) {
			const char *why = dlerror();

			mti_fail("cuBLASLt (" LIBRARY ") is needed: %.120s; or "
			         "name it in MINITAPE_CUBLASLT",
			         why ? why : "no reason given");
			return -1;
		}
		memcpy(functions[i].member, &symbol, sizeof(symbol));
	}
	if (lt.cublasLtCreate(&handle) != CUBLAS_STATUS_SUCCESS ||
	    cudaMalloc(&workspace, WORKSPACE) != cudaSuccess) {
		mti_fail("cuBLASLt does not start on this GPU");
		return -1;
	}
	return 0;
}

/* ---- one entry for each shape, kept as long as the process --------------- */

struct entry {
	struct entry *next;
	int m, n, k, transpose_a, transpose_b, add;
	mt_dtype dtype;
	cublasLtMatmulDesc_t operation;
	cublasLtMatrixLayout_t a, b, d; /* as ours */
	cublasLtMatmulAlgo_t algorithm;
	size_t workspace;
};

static struct entry *entries;

static struct entry *find(const mt_product *p)
{
	struct entry *e = entries;

	while (e && (e->m != p->m || e->n != p->n || e->k != p->k ||
	             e->transpose_a != p->transpose_a ||
	             e->transpose_b != p->transpose_b || e->add != p->add ||
	             e->dtype != p->dtype))
		e = e->next;
	return e;
}

static cudaDataType type_of(mt_dtype dtype)
{
	return dtype == MT_F16    ? CUDA_R_16F
	       : dtype == MT_BF16 ? CUDA_R_16BF
	                          : CUDA_R_32F;
}

/* Stops at the first failure, whose status stays. */
#define TRY(status, call)                                                      \
	((status) = (status) == CUBLAS_STATUS_SUCCESS ? (call) : (status))

static cublasStatus_t describe(struct entry *e)
{
	cublasOperation_t turns_a = e->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
	cublasOperation_t turns_b = e->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
	uint64_t m = (uint64_t)e->m, n = (uint64_t)e->n, k = (uint64_t)e->k;
	uint64_t rows_a = e->transpose_a ? m : k;
	uint64_t cols_a = e->transpose_a ? k : m;
	uint64_t rows_b = e->transpose_b ? k : n;
	uint64_t cols_b = e->transpose_b ? n : k;
	cudaDataType type = type_of(e->dtype);
	cublasStatus_t s = CUBLAS_STATUS_SUCCESS;

	TRY(s, lt.cublasLtMatmulDescCreate(&e->operation, CUBLAS_COMPUTE_32F,
	                                   CUDA_R_32F));
	TRY(s, lt.cublasLtMatmulDescSetAttribute(
		       e->operation, CUBLASLT_MATMUL_DESC_TRANSA, &turns_b,
		       sizeof(turns_b)));
	TRY(s, lt.cublasLtMatmulDescSetAttribute(
		       e->operation, CUBLASLT_MATMUL_DESC_TRANSB, &turns_a,
		       sizeof(turns_a)));
	TRY(s, lt.cublasLtMatrixLayoutCreate(&e->b, type, rows_b, cols_b,
	                                     (int64_t)rows_b));
	TRY(s, lt.cublasLtMatrixLayoutCreate(&e->a, type, rows_a, cols_a,
	                                     (int64_t)rows_a));
	TRY(s, lt.cublasLtMatrixLayoutCreate(&e->d, type, n, m, (int64_t)n));
	return s;
}

static cublasStatus_t choose(struct entry *e)
{
	static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
		CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
	const uint64_t limit = WORKSPACE;
	const uint32_t alignment = ALIGNMENT;
	cublasLtMatmulPreference_t preference = NULL;
	cublasLtMatmulHeuristicResult_t best;
	cublasStatus_t s = lt.cublasLtMatmulPreferenceCreate(&preference);
	int n = 0;

	TRY(s, lt.cublasLtMatmulPreferenceSetAttribute(
		       preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
		       &limit, sizeof(limit)));
	for (int i = 0; i < 4; i++)
		TRY(s, lt.cublasLtMatmulPreferenceSetAttribute(
			       preference, aligned[i], &alignment,
			       sizeof(alignment)));
	TRY(s, lt.cublasLtMatmulAlgoGetHeuristic(handle, e->operation, e->b,
	                                         e->a, e->d, e->d, preference,
	                                         1, &best, &n));
	if (preference)
		lt.cublasLtMatmulPreferenceDestroy(preference);
	if (s != CUBLAS_STATUS_SUCCESS)
		return s;
	if (n == 0)
		return CUBLAS_STATUS_NOT_SUPPORTED;
	e->algorithm = best.algo;
	e->workspace = best.workspaceSize;
	return CUBLAS_STATUS_SUCCESS;
}

static struct entry *make(const mt_product *p, cublasStatus_t *status)
{
	struct entry *e = calloc(1, sizeof(*e));

	*status = CUBLAS_STATUS_ALLOC_FAILED;
	if (!e)
		return NULL;
	e->m = p->m;
	e->n = p->n;
	e->k = p->k;
	e->transpose_a = p->transpose_a;
	e->transpose_b = p->transpose_b;
	e->add = p->add;
	e->dtype = p->dtype;
	*status = describe(e);
	TRY(*status, choose(e));
	if (*status != CUBLAS_STATUS_SUCCESS) {
		free(e); /* and some descriptors stay: all ends here */
		return NULL;
	}
	e->next = entries;
	return entries = e;
}

int mtc_blas_multiply(const mt_product *p)
{
	const float one = 1.0F, beta = p->add ? 1.0F : 0.0F;
	cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
	struct entry *e = find(p);

	if (!e)
		e = make(p, &status);
	if (e)
		status = lt.cublasLtMatmul(handle, e->operation, &one, p->b,
		                           e->b, p->a, e->a, &beta, p->d, e->d,
		                           p->d, e->d, &e->algorithm, workspace,
		                           e->workspace, p->stream);
	if (status == CUBLAS_STATUS_SUCCESS)
		return 0;
	mti_fail("cuBLASLt: %s for a product of %d x %d x %d %s",
	         lt.cublasLtGetStatusName(status), p->m, p->n, p->k,
	         mt_dtype_name(p->dtype));
	return -1;
}
