/* SPDX-License-Identifier: Apache-2.0 */
/* The cast lists against those of Apex and torch.autocast, transcribed here once more, and what both have of
 * torch.amp's lists of today; and the names they match. */
#include "checks.h"
#include "../support/levels.h"
#include "opt_levels/lists.h"

struct group {
    amp_class op_class;
    const char *names;
};

static const struct group apex[] = {
    { AMP_LOWER, "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc linear prelu addmm "
                 "addmv addr matmul mm mv addbmm baddbmm bmm __matmul__ rnn_relu rnn_tanh gru lstm rnn_relu_cell "
                 "rnn_tanh_cell gru_cell lstm_cell" },
    { AMP_FP32, "interpolate grid_sample softplus softmin log_softmax softmax gelu layer_norm group_norm "
                "local_response_norm normalize cosine_similarity poisson_nll_loss cosine_embedding_loss cross_entropy "
                "hinge_embedding_loss kl_div l1_loss mse_loss margin_ranking_loss multilabel_margin_loss "
                "multilabel_soft_margin_loss multi_margin_loss nll_loss binary_cross_entropy_with_logits "
                "smooth_l1_loss soft_margin_loss triplet_margin_loss ctc_loss" },
    { AMP_FP32, "acos asin cosh erfinv exp expm1 log log10 log2 reciprocal rsqrt sinh tan pow cumprod cumsum dist norm "
                "prod std sum var renorm __pow__ __rpow__ cpu" },
    { AMP_PROMOTE, "addcdiv addcmul atan2 cross bilinear dot add div mul eq equal ge gt le lt ne __add__ __div__ "
                   "__eq__ __ge__ __gt__ __ipow__ __iadd__ __idiv__ __imul__ __isub__ __itruediv__ __le__ __lt__ "
                   "__mul__ __ne__ __radd__ __rdiv__ __rmul__ __rsub__ __rtruediv__ __sub__ __truediv__" },
    { AMP_PROMOTE_SEQUENCE, "cat stack" },
    { AMP_BANNED, "binary_cross_entropy" },
    { AMP_BY_LIST, "batch_norm instance_norm dropout embedding sigmoid tanh relu mean log1p erf sin cos logsumexp" },
};

/* Younger than Apex's lists. */
static const struct group today[] = {
    { AMP_LOWER, "chain_matmul convolution cudnn_convolution cudnn_convolution_transpose einsum linalg_matmul "
                 "linalg_multi_dot linalg_vecdot scaled_dot_product_attention" },
    { AMP_FP32, "huber_loss native_layer_norm rms_norm frobenius_norm nuclear_norm linalg_norm linalg_vector_norm "
                "linalg_matrix_norm cdist pdist" },
    { AMP_PROMOTE, "inner linalg_cross vdot tensordot grid_sampler index_put scatter_add" },
    { AMP_PROMOTE, "sub rsub true_divide" }, /* Apex had their operators alone */
};

/* Both lists: what has no kernels in 16 bits on processors. */
static const struct group wide[] = {
    { AMP_FP32,
      "cholesky cholesky_inverse cholesky_solve det geqrf inverse logdet lu lu_solve matrix_power orgqr "
      "ormqr pinverse qr slogdet svd triangular_solve quantile nanquantile stft polar view_as_complex "
      "view_as_complex_copy avg_pool3d" },
    { AMP_FP32,
      "linalg_cholesky linalg_cholesky_ex linalg_cond linalg_det linalg_eig linalg_eigh linalg_eigvals "
      "linalg_eigvalsh linalg_householder_product linalg_inv linalg_inv_ex linalg_ldl_factor "
      "linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor linalg_lu_factor_ex "
      "linalg_lu_solve linalg_matrix_power linalg_matrix_rank linalg_matrix_sqrth linalg_pinv linalg_polar "
      "linalg_qr linalg_slogdet linalg_solve linalg_solve_ex linalg_solve_triangular linalg_svd linalg_svdvals "
      "linalg_tensorinv linalg_tensorsolve" },
    { AMP_FP32,
      "fft_fft fft_fft2 fft_fftn fft_hfft fft_hfft2 fft_hfftn fft_ifft fft_ifft2 fft_ifftn fft_ihfft "
      "fft_ihfft2 fft_ihfftn fft_irfft fft_irfft2 fft_irfftn fft_rfft fft_rfft2 fft_rfftn" },
    { AMP_PROMOTE, "grid_sampler_2d grid_sampler_3d index_copy" },
    { AMP_BY_LIST, "linalg_diagonal linalg_matrix_exp fft_fftshift matrix_exp trace max_pool3d pad" },
};

static const struct group torch[] = {
    { AMP_LOWER, "_convolution conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d "
                 "convolution cudnn_convolution cudnn_convolution_transpose prelu addmm addmv addr matmul einsum mm mv "
                 "linalg_vecdot linear addbmm baddbmm bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell "
                 "_thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell lstm gru rnn_tanh rnn_relu "
                 "scaled_dot_product_attention _scaled_dot_product_flash_attention linalg_matmul" },
    { AMP_FP32, "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow softplus "
                "layer_norm native_layer_norm group_norm frobenius_norm nuclear_norm cosine_similarity "
                "poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss "
                "smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss "
                "triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits dist pdist cdist renorm "
                "logsumexp upsample_nearest2d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d rms_norm "
                "linalg_norm _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d "
                "_upsample_bilinear2d_aa _upsample_bicubic2d_aa" },
    { AMP_FP32, "prod softmax log_softmax cumprod cumsum linalg_vector_norm linalg_matrix_norm sum norm" },
    { AMP_PROMOTE, "addcdiv addcmul atan2 bilinear cross dot vdot grid_sampler index_put tensordot scatter_add" },
    { AMP_PROMOTE_SEQUENCE, "cat stack" },
    { AMP_BANNED, "binary_cross_entropy" },
    { AMP_BY_LIST, "gelu std var local_response_norm normalize batch_norm add mul relu dropout" },
};

/* What hosts without PyTorch call a product. */
TEST(a_product_by_its_name_in_blas) {
    for (int32_t lists = AMP_LISTS_APEX; lists <= AMP_LISTS_TORCH; lists++) {
        ck_assert_int_eq(amp__list_class(lists, AMP_FLOAT16, "gemm"), AMP_LOWER);
        ck_assert_int_eq(amp__list_class(lists, AMP_BFLOAT16, "sgemm"), AMP_LOWER);
        ck_assert_int_eq(amp__list_class(lists, AMP_FLOAT16, "dgemm"), AMP_BY_LIST);
    }
}

static void check_groups(int32_t lists, amp_dtype low, const struct group *groups, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char names[2048], *rest = NULL;
        ck_assert_uint_lt(strlen(groups[i].names), sizeof names);
        strcpy(names, groups[i].names);
        for (const char *name = strtok_r(names, " ", &rest); name; name = strtok_r(NULL, " ", &rest)) {
            const amp_class found = amp__list_class(lists, low, name);
            ck_assert_msg(found == groups[i].op_class, "%s is %s", name, amp__class_name(found));
        }
    }
}

DIFFERENCE(apex_for_fp16) { check_groups(AMP_LISTS_APEX, AMP_FLOAT16, apex, sizeof apex / sizeof apex[0]); }
TEST(apex_for_bf16) { check_groups(AMP_LISTS_APEX, AMP_BFLOAT16, apex, 5); }
DIFFERENCE_TIMES(apex_with_what_came_later, 2) {
    check_groups(AMP_LISTS_APEX, _i ? AMP_BFLOAT16 : AMP_FLOAT16, today, sizeof today / sizeof today[0]);
}
DIFFERENCE_TIMES(both_in_fp32_where_16_bits_have_no_kernels, 2) {
    check_groups(AMP_LISTS_APEX, _i ? AMP_BFLOAT16 : AMP_FLOAT16, wide, sizeof wide / sizeof wide[0]);
    check_groups(AMP_LISTS_TORCH, _i ? AMP_BFLOAT16 : AMP_FLOAT16, wide, sizeof wide / sizeof wide[0]);
}
TEST(torch_for_fp16) { check_groups(AMP_LISTS_TORCH, AMP_FLOAT16, torch, sizeof torch / sizeof torch[0]); }

TEST(torch_on_bf16_runs_bce_in_fp32) { /* torch's list for the CPU */
    ck_assert_int_eq(amp__list_class(AMP_LISTS_TORCH, AMP_BFLOAT16, "binary_cross_entropy"), AMP_FP32);
}

TEST(no_name_twice) {
    for (int32_t lists = AMP_LISTS_APEX; lists <= AMP_LISTS_TORCH; lists++) {
        size_t n;
        const char *const *names = amp__list_names(lists, &n);
        ck_assert_uint_gt(n, 80);
        for (size_t i = 0; i < n; i++)
            for (size_t j = 0; j < i; j++) ck_assert_str_ne(names[i], names[j]);
    }
}

static const struct {
    const char *name, *base;
} names[] = {
    { "linear", "linear" },
    { "aten::linear", "linear" },
    { "nn.functional.linear", "linear" },
    { "torch.nn.functional.linear", "linear" },
    { "aten::add_.Tensor", "add" },
    { "aten::add.Tensor", "add" },
    { "add_", "add" },
    { "Tensor.mul_", "mul" },
    { "exp_", "exp" },
    { "my::space::matmul.out", "matmul" },
    { "aten::softmax.int", "softmax" },
    { "torch.Tensor.log_softmax", "log_softmax" },
    { "__add__", "__add__" },
    { "__iadd__", "__iadd__" },
    { "_convolution", "_convolution" },
    { "_", "_" },
};

DIFFERENCE_TIMES(base_names, sizeof names / sizeof names[0]) {
    char base[AMP__OP_NAME_MAX + 1];
    amp__op_base_name(names[_i].name, base);
    ck_assert_str_eq(base, names[_i].base);
}

/* ---- through a context ---- */

static amp_class class_at(amp_level level, int32_t lists, const char *name, const char *aliases) {
    struct fake host;
    amp_fn slot = NULL;
    amp_op op = OP(name, "f(Tensor x) -> Tensor", &slot, .aliases = aliases);
    amp_model *model = &SIZED(amp_model, .host = &host.hooks, .ops = &op, .n_ops = 1);
    const amp_config config = CONFIG(level, .lists = lists);
    amp_context *context;
    amp_op_stats stats = AMP_OP_STATS_INIT;
    size_t count;
    fake_init(&host, 0);
    ck_ok(amp_initialize_many(&model, 1, NULL, 0, &config, &context));
    ck_ok(amp_get_op_stats(context, &stats, 1, &count));
    ck_ok(amp_shutdown(context));
    return stats.op_class;
}

TEST(the_default_list_is_apex) { ck_assert_int_eq(class_at(AMP_O1, 0, "gelu", NULL), AMP_FP32); }
TEST(the_torch_list_by_config) { ck_assert_int_eq(class_at(AMP_O1, AMP_LISTS_TORCH, "gelu", NULL), AMP_LEAVE); }
DIFFERENCE(a_namespace_is_seen_through) { ck_assert_int_eq(class_at(AMP_O1, 0, "aten::linear", NULL), AMP_LOWER); }
TEST(an_alias_gives_the_class) { ck_assert_int_eq(class_at(AMP_O4, 0, "gemm_nn", "foo, matmul"), AMP_LOWER); }
TEST(the_name_comes_before_the_alias) { ck_assert_int_eq(class_at(AMP_O1, 0, "softmax", "linear"), AMP_FP32); }
TEST(an_unlisted_op_is_left) { ck_assert_int_eq(class_at(AMP_O1, 0, "batch_norm", NULL), AMP_LEAVE); }
TEST_RANGE(levels_without_patching_leave_all, 1, N_EACH_LEVEL + 1) {
    if (!level_casts_ops(_i)) ck_assert_int_eq(class_at(_i, 0, "linear", NULL), AMP_LEAVE);
}
