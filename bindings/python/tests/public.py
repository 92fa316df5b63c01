# SPDX-License-Identifier: Apache-2.0
"""Arguments for every public function of torch, torch.linalg, torch.fft and torch.nn.functional that takes floating
tensors."""
import casting
from casting import words

torch = casting.torch
F = torch.nn.functional
NEWEST = (2, 15)  # the PyTorch whose functions these are: what a later one has besides is not known here


class Maker(casting.Maker):
    def matrix(self, n, grad=True):
        """Positive definite."""
        dtype = self.dtypes[len(self.made) % len(self.dtypes)]
        values = torch.rand(n, n, generator=self.random, dtype=torch.float64)
        tensor = (values @ values.T + n * torch.eye(n)).to(dtype).requires_grad_(grad)
        self.made.append(tensor)
        return tensor


def same(names, make):
    return dict.fromkeys(words(names), make)


def _index(*values):
    return torch.tensor(values)


def _weights(t, gates):
    return [t(gates * 4, 3), t(gates * 4, 4), t(gates * 4), t(gates * 4)]


def _rnn(gates):
    return lambda t: (t(5, 1, 3), t(1, 1, 4), _weights(t, gates), True, 1, 0.0, False, False, False)


def _cell(gates):
    return lambda t: (t(2, 3), t(2, 4), *_weights(t, gates))


TORCH = {
    **casting.TORCH_LOWER,
    **casting.TORCH_FP32,
    **casting.TORCH_PROMOTE,
    **casting.SEQUENCE,
    # of one tensor
    **same(
        "abs absolute acos acosh all amax amin aminmax angle any arccos arccosh arcsin arcsinh arctan arctanh argmax "
        "argmin argsort argwhere asin asinh atan atanh atleast_1d atleast_2d atleast_3d bernoulli ceil clone conj "
        "conj_physical corrcoef cos cosh count_nonzero cov deg2rad detach diag diag_embed diagflat diff digamma erf "
        "erfc erfinv exp exp2 expm1 fix flatten fliplr flipud floor frac frexp i0 isfinite isinf isnan isneginf "
        "isposinf isreal lgamma log log10 log1p log2 logical_not logit max mean median min mode msort nan_to_num "
        "nanmean nanmedian nansum neg negative nonzero norm numel positive prod rad2deg ravel real reciprocal relu "
        "resolve_conj resolve_neg round rsqrt selu sgn sigmoid sign signbit sin sinc sinh sort sqrt square squeeze "
        "squeeze_copy std std_mean sum t t_copy tan tanh tril triu trunc var var_mean zeros_like ones_like empty_like "
        "rand_like randn_like celu rrelu hardshrink nuclear_norm alias_copy adjoint diagonal diagonal_copy "
        "nonzero_static poisson",
        lambda t: (t(3, 4),),
    ),
    **same("detach_copy unique unique_consecutive", lambda t: (t(3, 4, grad=False),)),
    "nonzero_static": lambda t: (t(3, 4), {"size": 2}),
    **same(
        "cummax cummin cumprod cumsum logcumsumexp logsumexp softmax log_softmax unbind unbind_copy unsqueeze "
        "unsqueeze_copy repeat_interleave split unsafe_split split_copy kthvalue",
        lambda t: (t(4, 4), 1),
    ),
    **same("roll chunk unsafe_chunk tensor_split hsplit vsplit", lambda t: (t(4, 4), 2)),
    **same("flip permute permute_copy", lambda t: (t(3, 4), (1, 0))),
    **same("swapaxes swapdims transpose transpose_copy movedim moveaxis", lambda t: (t(3, 4), 0, 1)),
    **same("split_with_sizes split_with_sizes_copy unsafe_split_with_sizes", lambda t: (t(3, 4), [1, 2])),
    **same("broadcast_to expand_copy reshape view_copy", lambda t: (t(3, 4), (3, 4))),
    **same("as_strided as_strided_copy", lambda t: (t(3, 4), (2, 2), (1, 2))),
    **same("select select_copy", lambda t: (t(3, 4), 0, 1)),
    **same("narrow narrow_copy slice_copy", lambda t: (t(3, 4), 0, 1, 2)),
    **same("clamp clip clamp_max clamp_min", lambda t: (t(3, 4), 0.5)),
    **same("full_like fill", lambda t: (t(3, 4), 0.5)),
    **same(
        "dropout alpha_dropout feature_alpha_dropout feature_dropout native_dropout", lambda t: (t(3, 4, 2), 0.5, True)
    ),
    "block_diag": lambda t: (t(2, 2), t(3, 3)),
    "cartesian_prod": lambda t: (t(2), t(3)),
    "combinations": lambda t: (t(4),),
    "constant_pad_nd": lambda t: (t(3, 4), (1, 1)),
    "cumulative_trapezoid": lambda t: (t(3, 4),),
    "dsplit": lambda t: (t(2, 2, 4), 2),
    "embedding": lambda t: (t(5, 4), _index(1, 3)),
    "embedding_bag": lambda t: (t(5, 4), _index(1, 3), _index(0)),
    "gradient": lambda t: (t(5),),
    "frobenius_norm": lambda t: (t(3, 4), 1),
    "histc": lambda t: (t(3, 4), 3),
    "histogram": lambda t: (t(4, grad=False), 3),
    "histogramdd": lambda t: (t(4, 2, grad=False), [2, 2]),
    "istft": lambda t: (torch.ones(5, 4, dtype=torch.complex64), 8),
    "matrix_exp": lambda t: (t.matrix(3),),
    "matrix_power": lambda t: (t.matrix(3), -2),
    "multinomial": lambda t: (t(4, grad=False), 2),
    "mvlgamma": lambda t: (torch.add(t(3), 2), 2),
    "norm_except_dim": lambda t: (t(3, 4), 2, 0),
    "normal": lambda t: (t(3), t(3)),
    "pixel_shuffle": lambda t: (t(1, 4, 2, 2), 2),
    "pixel_unshuffle": lambda t: (t(1, 1, 4, 4), 2),
    **same("channel_shuffle native_channel_shuffle", lambda t: (t(1, 4, 2, 2, grad=False), 2)),
    "polygamma": lambda t: (1, t(3)),
    **same("quantile nanquantile", lambda t: (t(3, 4), 0.5)),
    "rot90": lambda t: (t(3, 4),),
    "segment_reduce": lambda t: (t(4), "sum", {"lengths": _index(1, 3)}),
    "stft": lambda t: (t(16), 8, {"window": t(8, grad=False), "return_complex": True}),
    "threshold": lambda t: (t(3, 4), 0.5, 0.0),
    "tile": lambda t: (t(3, 4), (2, 1)),
    "topk": lambda t: (t(3, 4), 2),
    "trace": lambda t: (t(3, 3),),
    **same("trapezoid trapz", lambda t: (t(3, 4), t(3, 4))),
    "unflatten": lambda t: (t(4), 0, (2, 2)),
    "unfold_copy": lambda t: (t(4), 0, 2, 1),
    "vander": lambda t: (t(4, grad=False),),
    "view_as_complex": lambda t: (t(3, 2),),
    "view_as_complex_copy": lambda t: (t(3, 2, grad=False),),
    # of several
    **same(
        "arctan2 complex copysign divide dist float_power fmax fmin fmod greater greater_equal hypot isclose isin kron "
        "ldexp less less_equal logaddexp logaddexp2 logical_and logical_or logical_xor maximum minimum multiply "
        "not_equal polar remainder rsub sub subtract true_divide xlogy pairwise_distance cosine_similarity",
        lambda t: (t(3, 4), t(3, 4)),
    ),
    **same("inner vdot outer ger", lambda t: (t(3), t(3))),
    **same("allclose floor_divide nextafter heaviside igamma igammac", lambda t: (t(3, grad=False), t(3, grad=False))),
    **same("broadcast_tensors", lambda t: (t(3), t(3))),
    "meshgrid": lambda t: (t(3), t(2), {"indexing": "ij"}),
    **same("hstack vstack dstack row_stack column_stack concat concatenate", lambda t: ((t(2, 2), t(2, 2)),)),
    "addmv": lambda t: (t(2), t(2, 3), t(3)),
    "bucketize": lambda t: (t(3, grad=False), torch.arange(3.0)),
    "searchsorted": lambda t: (torch.arange(3.0), t(3, grad=False)),
    "cdist": lambda t: (t(3, 4), t(2, 4)),
    "pdist": lambda t: (t(3, 4),),
    "chain_matmul": lambda t: (t(2, 3), t(3, 4), t(4, 2)),
    "einsum": lambda t: ("ij,jk->ik", t(2, 3), t(3, 4)),
    "lerp": lambda t: (t(3), t(3), t(3)),
    "tensordot": lambda t: (t(2, 3), t(3, 4), 1),
    "where": lambda t: (_index(1, 0, 1) > 0, t(3), t(3)),
    "equal": lambda t: (t(3), t(3)),
    # by index
    **same("gather take_along_dim", lambda t: (t(3, 4), {"dim": 0, "index": torch.zeros(1, 4, dtype=torch.int64)})),
    "take_along_dim": lambda t: (t(3, 4), torch.zeros(1, 4, dtype=torch.int64), 0),
    **same("index_add index_copy", lambda t: (t(3, 4), 0, _index(0, 2), t(2, 4))),
    "index_fill": lambda t: (t(3, 4), 0, _index(0, 2), 0.5),
    "index_put": lambda t: (t(3, 4), (_index(0, 2),), t(2, 4)),
    "index_reduce": lambda t: (t(3, 4), 0, _index(0, 2), t(2, 4), "amax"),
    "index_select": lambda t: (t(3, 4), 0, _index(0, 2)),
    "masked_fill": lambda t: (t(3), _index(1, 0, 1) > 0, 0.5),
    "masked_scatter": lambda t: (t(3), _index(1, 0, 1) > 0, t(3)),
    "masked_select": lambda t: (t(3), _index(1, 0, 1) > 0),
    "put": lambda t: (t(3), _index(0, 1), t(2)),
    "take": lambda t: (t(3), _index(0, 1)),
    **same("scatter scatter_add", lambda t: (t(3, 4), 0, torch.zeros(1, 4, dtype=torch.int64), t(1, 4))),
    "scatter_reduce": lambda t: (t(3, 4), 0, torch.zeros(1, 4, dtype=torch.int64), t(1, 4), "sum"),
    "select_scatter": lambda t: (t(3, 4), t(4), 0, 1),
    "slice_scatter": lambda t: (t(3, 4), t(1, 4), 0, 1, 2),
    "diagonal_scatter": lambda t: (t(3, 3), t(3)),
    "as_strided_scatter": lambda t: (t(3, 4), t(2), (2,), (1,)),
    # matrices
    **same("cholesky_inverse det inverse logdet lu pinverse slogdet svd", lambda t: (t.matrix(3),)),
    "geqrf": lambda t: (t(3, 3, grad=False),),
    "cholesky_solve": lambda t: (t(3, 2), t.matrix(3)),
    "lu_solve": lambda t: (t(3, 2), t.matrix(3), torch.tensor([1, 2, 3], dtype=torch.int32)),
    "lu_unpack": lambda t: (t.matrix(3), torch.tensor([1, 2, 3], dtype=torch.int32)),
    "orgqr": lambda t: (t(3, 2), t(2)),
    "ormqr": lambda t: (t(3, 2, grad=False), t(2, grad=False), t(3, 2, grad=False)),
    "triangular_solve": lambda t: (t(3, 2), t.matrix(3)),
    **same("svd_lowrank pca_lowrank", lambda t: (t(4, 4), {"q": 2})),
    # layers
    "adaptive_avg_pool1d": lambda t: (t(1, 2, 4), 2),
    "adaptive_max_pool1d": lambda t: (t(1, 2, 4), 2),
    **same("avg_pool1d max_pool1d max_pool1d_with_indices", lambda t: (t(1, 2, 4), 2)),
    "max_pool2d": lambda t: (t(1, 2, 4, 4), 2),
    "max_pool3d": lambda t: (t(1, 2, 4, 4, 4), 2),
    "affine_grid_generator": lambda t: (t(1, 2, 3), (1, 2, 2, 2), False),
    "batch_norm": lambda t: (t(4, 3), t(3), t(3), torch.zeros(3), torch.ones(3), True, 0.1, 1e-5, False),
    "instance_norm": lambda t: (t(2, 3, 4), t(3), t(3), None, None, True, 0.1, 1e-5, False),
    "layer_norm": lambda t: (t(3, 4), (4,), t(4), t(4)),
    "native_layer_norm": lambda t: (t(3, 4), (4,), t(4), t(4), 1e-5),
    "group_norm": lambda t: (t(2, 4, 3), 2, t(4), t(4)),
    "native_group_norm": lambda t: (t(2, 4, 3), t(4), t(4), 2, 4, 3, 2, 1e-5),
    "native_batch_norm": lambda t: (t(4, 3), t(3), t(3), torch.zeros(3), torch.ones(3), True, 0.1, 1e-5),
    "rms_norm": lambda t: (t(3, 4), (4,), t(4)),
    "convolution": lambda t: (t(1, 2, 6), t(3, 2, 3), t(3), [1], [0], [1], False, [0], 1),
    **same("grid_sampler grid_sampler_2d", lambda t: (t(1, 2, 4, 4), t(1, 3, 3, 2), 0, 0, False)),
    "grid_sampler_3d": lambda t: (t(1, 2, 3, 3, 3), t(1, 2, 2, 2, 3), 0, 0, False),
    "lstm": lambda t: (t(5, 1, 3), (t(1, 1, 4), t(1, 1, 4)), _weights(t, 4), True, 1, 0.0, False, False, False),
    "gru": _rnn(3),
    **same("rnn_tanh rnn_relu", _rnn(1)),
    "lstm_cell": lambda t: (t(2, 3), (t(2, 4), t(2, 4)), *_weights(t, 4)),
    "gru_cell": _cell(3),
    **same("rnn_tanh_cell rnn_relu_cell", _cell(1)),
    # losses
    "binary_cross_entropy_with_logits": lambda t: (t(3), t(3, grad=False)),
    "cosine_embedding_loss": lambda t: (t(3, 4), t(3, 4), casting._sign(3)),
    "ctc_loss": lambda t: (t(5, 2, 4), torch.tensor([[1, 2], [2, 3]]), _index(5, 5), _index(2, 2)),
    "hinge_embedding_loss": lambda t: (t(3), casting._sign(3)),
    "kl_div": lambda t: (t(3, 4), t(3, 4, grad=False)),
    "margin_ranking_loss": lambda t: (t(3), t(3), casting._sign(3)),
    "poisson_nll_loss": lambda t: (t(3), t(3, grad=False), True, False, 1e-8, 1),
    "triplet_margin_loss": lambda t: (t(3, 4), t(3, 4), t(3, 4)),
}
LINALG = {
    **same(
        "cholesky cholesky_ex cond det eig eigh eigvals eigvalsh inv inv_ex lu lu_factor lu_factor_ex matrix_exp "
        "matrix_norm matrix_rank matrix_sqrth norm pinv polar qr slogdet svd svdvals vector_norm diagonal",
           lambda t: (t.matrix(3),)),
    "cross": lambda t: (t(2, 3), t(2, 3)),
    "householder_product": lambda t: (t(3, 2), t(2)),
    **same("ldl_factor ldl_factor_ex", lambda t: (t.matrix(3, grad=False),)),
    "ldl_solve": lambda t: (t.matrix(3, grad=False), torch.tensor([1, 2, 3], dtype=torch.int32), t(3, 2, grad=False)),
    **same("lstsq solve solve_ex", lambda t: (t.matrix(3), t(3, 2))),
    "lu_solve": lambda t: (t.matrix(3), torch.tensor([1, 2, 3], dtype=torch.int32), t(3, 2)),
    "matmul": lambda t: (t(2, 3), t(3, 4)),
    "matrix_power": lambda t: (t.matrix(3), -2),
    "multi_dot": lambda t: ([t(2, 3), t(3, 4), t(4, 2)],),
    "solve_triangular": lambda t: (t.matrix(3), t(3, 2), {"upper": True}),
    "tensorinv": lambda t: (t.matrix(4).reshape(2, 2, 4), 2),
    "tensorsolve": lambda t: (t.matrix(4), t(4)),
    "vander": lambda t: (t(4),),
    "vecdot": lambda t: (t(2, 3), t(2, 3)),
}
FFT = {
    **same(
        "fft ifft rfft ihfft hfft irfft fftn ifftn rfftn ihfftn hfftn irfftn fft2 ifft2 rfft2 ihfft2 hfft2 irfft2 "
        "fftshift ifftshift", lambda t: (t(4, 4),)),
}
FUNCTIONAL = {
    **casting.FUNCTIONAL_LOWER,
    **casting.FUNCTIONAL_FP32,
    **same(
        "celu elu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 rrelu selu "
        "sigmoid silu softshrink softsign tanh tanhshrink gumbel_softmax",
        lambda t: (t(3, 4),),
    ),
    **same("dropout alpha_dropout feature_alpha_dropout dropout1d", lambda t: (t(3, 4, 2),)),
    "dropout2d": lambda t: (t(1, 2, 3, 3),),
    "dropout3d": lambda t: (t(1, 2, 3, 3, 3),),
    **same(
        "adaptive_avg_pool1d adaptive_max_pool1d adaptive_max_pool1d_with_indices avg_pool1d max_pool1d "
        "max_pool1d_with_indices",
        lambda t: (t(1, 2, 4), 2),
    ),
    **same(
        "adaptive_avg_pool2d adaptive_max_pool2d adaptive_max_pool2d_with_indices avg_pool2d max_pool2d "
        "max_pool2d_with_indices",
        lambda t: (t(1, 2, 4, 4), 2),
    ),
    **same(
        "adaptive_avg_pool3d adaptive_max_pool3d adaptive_max_pool3d_with_indices avg_pool3d max_pool3d "
        "max_pool3d_with_indices",
        lambda t: (t(1, 2, 4, 4, 4), 2),
    ),
    **same("fractional_max_pool2d fractional_max_pool2d_with_indices", lambda t: (t(1, 2, 4, 4), 2, 2)),
    **same("fractional_max_pool3d fractional_max_pool3d_with_indices", lambda t: (t(1, 2, 4, 4, 4), 2, 2)),
    "lp_pool1d": lambda t: (t(1, 2, 4), 2, 2),
    "lp_pool2d": lambda t: (t(1, 2, 4, 4), 2, 2),
    "lp_pool3d": lambda t: (t(1, 2, 4, 4, 4), 2, 2),
    "max_unpool1d": lambda t: (t(1, 1, 2), torch.tensor([[[0, 2]]]), 2),
    "max_unpool2d": lambda t: (t(1, 1, 1, 2), torch.tensor([[[[0, 2]]]]), 2),
    "max_unpool3d": lambda t: (t(1, 1, 1, 1, 2), torch.tensor([[[[[0, 2]]]]]), 2),
    "affine_grid": lambda t: (t(1, 2, 3), (1, 2, 2, 2)),
    "batch_norm": lambda t: (t(4, 3), torch.zeros(3), torch.ones(3), t(3), t(3), True),
    "instance_norm": lambda t: (t(2, 3, 4), None, None, t(3), t(3)),
    "rms_norm": lambda t: (t(3, 4), (4,), t(4)),
    "bilinear": lambda t: (t(2, 3), t(2, 4), t(5, 3, 4), t(5)),
    "binary_cross_entropy": lambda t: (t(3), t(3, grad=False)),
    "channel_shuffle": lambda t: (t(1, 4, 2, 2, grad=False), 2),
    "native_channel_shuffle": lambda t: (t(1, 4, 2, 2, grad=False), 2),
    "embedding": lambda t: (_index(1, 3), t(5, 4)),
    "embedding_bag": lambda t: (_index(1, 3), t(5, 4), _index(0)),
    "fold": lambda t: (t(1, 4, 4), (3, 3), 2),
    "unfold": lambda t: (t(1, 1, 3, 3), 2),
    "gaussian_nll_loss": lambda t: (t(3), t(3, grad=False), t(3)),
    "huber_loss": lambda t: (t(3), t(3, grad=False)),
    "linear_cross_entropy": lambda t: (t(3, 4), t(5, 4), _index(1, 0, 4)),
    "multi_head_attention_forward": lambda t: (
        t(2, 1, 4),
        t(2, 1, 4),
        t(2, 1, 4),
        4,
        2,
        t(12, 4),
        t(12),
        None,
        None,
        False,
        0.0,
        t(4, 4),
        t(4),
    ),
    "pad": lambda t: (t(1, 2, 4), (1, 1), "reflect"),
    "pairwise_distance": lambda t: (t(3, 4), t(3, 4)),
    "pdist": lambda t: (t(3, 4),),
    "pixel_shuffle": lambda t: (t(1, 4, 2, 2), 2),
    "pixel_unshuffle": lambda t: (t(1, 1, 4, 4), 2),
    "prelu": lambda t: (t(2, 3), t(1)),
    "scaled_dot_product_attention": lambda t: (t(1, 2, 3, 4), t(1, 2, 3, 4), t(1, 2, 3, 4)),
    "threshold": lambda t: (t(3, 4), 0.5, 0.0),
    "triplet_margin_with_distance_loss": lambda t: (t(3, 4), t(3, 4), t(3, 4)),
    **same("upsample upsample_bilinear upsample_nearest", lambda t: (t(1, 2, 4, 4), 8)),
}
NAMESPACES = {"torch": (torch, TORCH), "torch.linalg": (torch.linalg, LINALG), "torch.fft": (torch.fft, FFT),
              "torch.nn.functional": (F, FUNCTIONAL)}

# What takes no floating tensors, or no device that is tested, or moves a type that it was told: by whole names.
OTHER = """
    is_.* set_.* get_.* sym_.* q_.* .*quantize.* .*autocast.*
    (cudnn|miopen|mkldnn|fbgemm|batch_norm|bitwise|import|parse|sparse)_.* .*(indices|values|real)_copy .*_window
    (tril|triu)_indices has_torch_function.* scaled_.* fused_moving_avg_obs_fake_quant choose_qparams_optimized
    are_deterministic_algorithms_enabled use_deterministic_algorithms handle_torch_function boolean_dispatch
    assert_int_or_pair arange as_tensor asarray bincount binomial broadcast_shapes can_cast classproperty compile
    compiled_with_cxx11_abi cond empty.* eye fork frombuffer from_.* full gcd lcm hash_tensor imag init_num_threads
    initial_seed int_repr linspace logspace load save manual_seed seed merge_type_from_type_comment native_norm ones
    zeros
    prepare_multiprocessing_environment profiler_.* slice_inverse promote_types rand randn randint randint_like randperm
    range result_type scalar_tensor tensor thread_safe_generator to_dlpack typename unify_type_list unravel_index
    view_as_real vmap wait while_loop fftfreq rfftfreq one_hot Optional dsmm hsmm hspmm saddmm smm spmm sspaddmm
    grouped_mm
    lobpcg cholesky eig lstsq matrix_rank qr solve symeig
"""
