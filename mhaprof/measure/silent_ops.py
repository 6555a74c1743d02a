"""Which operators may stay uncounted without a word, and which may not.

Silent is what does no multiply-add of the matmul class: elementwise
arithmetic, views, copies, indexing, reductions, softmax, norms, dropout,
pooling, interpolation, factories.  It is an allowlist: an operator nobody
thought of is named in the row.  torch's own tags decide where they exist
(``pointwise``; a return that aliases an input is a view), names the rest.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import torch

from mhaprof.measure.torch_private import schema_of

# Values of Python that the trace shows as operators.
_LANGUAGE = """
    Bool Complex ComplexImplicit Float FloatImplicit Int IntImplicit ScalarImplicit __and__
    __or__ __xor__ __iand__ __ior__ __ixor__ __lshift__ __rshift__ __contains__ __getitem__
    __is__ __isnot__ __not__ __range_length append dim device element_size equal format index
    is_complex is_contiguous is_floating_point is_nonzero is_same_size item len list numel
    result_type size storage_offset stride str tensor warn _local_scalar_dense sym_numel
    sym_size sym_stride _shape_as_tensor _list_to_tensor _tensor_to_list broadcast_shapes
    can_cast promote_types _assert_async _assert_scalar _assert_tensor_metadata
    _functional_assert_async _functional_assert_scalar sym_constrain_range
    sym_constrain_range_for_size _is_all_true _is_any_true floordiv manual_seed
"""
# Aliases of elementwise operators, which carry no tag.
_ALIASES = """
    absolute arccos arccosh arcsin arcsinh arctan arctan2 arctanh divide fabs fix greater
    greater_equal less less_equal multiply negative not_equal subtract true_divide floor_divide
    _add_relu copysign glu hardswish gelu log_sigmoid log_sigmoid_forward mish polar complex
    prelu _prelu_kernel relu6 rrelu rrelu_with_noise threshold isclose allclose isin radians
    softplus type_as to masked_fill fill masked_scatter where outer ger kron addr cross clamp
    quantize_per_tensor quantize_per_tensor_dynamic quantize_per_channel dequantize
    cosine_similarity pairwise_distance gradient diff trapezoid trapz cumulative_trapezoid
"""
# Copies, layout and joining.
_LAYOUT = """
    _chunk_cat _cast_Byte _cast_Char _cast_Double _cast_Float _cast_Half _cast_Int _cast_Long
    _cast_Short _copy_from _efficientzerotensor _lazy_clone _mkldnn_reshape _mkldnn_transpose
    _pin_memory _reshape_from_tensor _resize_output _stack _to_copy _to_cpu _to_dense
    _unsafe_view as_strided as_strided_scatter atleast_1d atleast_2d atleast_3d block_diag
    broadcast_tensors cartesian_prod cat chalf channel_shuffle native_channel_shuffle clone
    column_stack combinations concat concatenate constant_pad_nd copy diag diag_embed diagflat
    diagonal_scatter dstack flatten_dense_tensors flip fliplr flipud hstack im2col col2im lift
    lift_fresh meshgrid pad _pad_circular _pad_enum pad_sequence _pack_padded_sequence
    _pad_packed_sequence pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d
    reflection_pad3d repeat repeat_interleave replication_pad1d replication_pad2d
    replication_pad3d resize resize_as roll rot90 row_stack select_scatter set slice_scatter
    stack tile to_dense to_padded_tensor tril triu unflatten_dense_tensors unsafe_chunk
    unsafe_split unsafe_split_with_sizes vstack zero requires_grad
"""
# Indexing, sorting and searching.
_INDEXING = """
    _index_put_impl _unsafe_index _unsafe_index_put _unsafe_masked_index
    _unsafe_masked_index_put_accumulate _unique _unique2 argsort argwhere bucketize embedding
    embedding_renorm gather index_add index_copy index_fill index_put index_reduce index_select
    kthvalue masked_select mode msort multinomial nonzero nonzero_numpy nonzero_static one_hot
    put scatter scatter_add scatter_reduce searchsorted sort take take_along_dim topk
    embedding_dense slice select diagonal unfold trace value_selecting_reduction
    unique_consecutive unique_dim unique_dim_consecutive _embedding_bag
    _embedding_bag_forward_only embedding_bag bincount histc
"""
# Reductions and scans of one addition an element.
_REDUCTIONS = """
    _aminmax _cummax_helper _cummin_helper _logcumsumexp all amax amin aminmax any argmax argmin
    count_nonzero cummax cummin cumprod cumsum dist frobenius_norm logcumsumexp logsumexp max
    mean median min nanmean nanmedian nanquantile nansum norm prod quantile renorm std std_mean
    sum sum_to_size var var_mean linalg_norm linalg_vector_norm norm_except_dim native_norm
    segment_reduce
"""
# Softmax, norms, dropout, random numbers.
_NORMALISING = """
    _log_softmax _masked_scale _masked_softmax _safe_softmax _softmax log_softmax softmax
    special_softmax special_log_softmax special_logsumexp _batch_norm_impl_index
    _batch_norm_no_update _batch_norm_with_update _batch_norm_with_update_functional
    _fused_rms_norm _native_batch_norm_legit _native_batch_norm_legit_functional
    _native_batch_norm_legit_no_training _weight_norm _weight_norm_interface batch_norm
    cudnn_batch_norm group_norm instance_norm layer_norm native_batch_norm native_group_norm
    native_layer_norm rms_norm _fill_mem_eff_dropout_mask alpha_dropout dropout
    feature_alpha_dropout feature_dropout native_dropout _fused_dropout bernoulli binomial
    cauchy exponential gamma geometric log_normal normal normal_functional poisson random
    uniform _no_grad_fill _no_grad_normal _no_grad_uniform _no_grad_zero _sample_dirichlet
    _standard_gamma
"""
# Pooling and interpolation.
_RESAMPLING = """
    _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d avg_pool1d
    avg_pool2d avg_pool3d max_pool1d max_pool1d_with_indices max_pool2d max_pool2d_with_indices
    max_pool3d max_pool3d_with_indices max_unpool2d max_unpool3d affine_grid_generator
    grid_sampler grid_sampler_2d grid_sampler_3d _upsample_bicubic2d_aa _upsample_bilinear2d_aa
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
    upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d
    upsample_nearest2d upsample_nearest3d upsample_trilinear3d
"""
# Losses.
_LOSSES = """
    binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss
    cross_entropy_loss hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss
    mse_loss nll_loss nll_loss2d nll_loss2d_forward nll_loss_forward nll_loss_nd
    poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss
"""
# Factories.
_FACTORIES = """
    arange bartlett_window blackman_window empty empty_like empty_permuted empty_strided eye
    full full_like hamming_window hann_window kaiser_window linspace logspace new_empty
    new_empty_strided new_full new_ones new_zeros ones ones_like rand rand_like randint
    randint_like randn randn_like randperm range scalar_tensor tril_indices triu_indices vander
    zeros zeros_like fft_fftfreq fft_rfftfreq
"""
# Fourier transforms: no products; fvcore's handles count them apart.
_FOURIER = "_fft_c2c _fft_c2r _fft_r2c fft_fftshift fft_ifftshift"

_SILENT_NAMES = frozenset(
    " ".join(
        (
            _LANGUAGE,
            _ALIASES,
            _LAYOUT,
            _INDEXING,
            _REDUCTIONS,
            _NORMALISING,
            _RESAMPLING,
            _LOSSES,
            _FACTORIES,
            _FOURIER,
        )
    ).split()
)

_NO_PRODUCTS = frozenset({"profiler", "c10d", "_c10d_functional"})
"""Namespaces that mark and move data."""

_BACKWARD = re.compile(r"_(double_)?backward(_data)?$")
"""The backward of a silent operator is silent."""


@lru_cache(maxsize=4096)
def is_silent(kind: str) -> bool:
    """Tell whether operator ``kind`` (``aten::softmax``) does no matmul-class work."""
    namespace, _, name = kind.partition("::")
    if namespace in _NO_PRODUCTS:
        return True
    if namespace != "aten":
        return False
    name = _BACKWARD.sub("", name).removeprefix("_foreach_")
    if name in _SILENT_NAMES or name.rstrip("_") in _SILENT_NAMES:
        return True
    return _is_tagged_silent(name) or _is_tagged_silent(name.rstrip("_"))


def _is_tagged_silent(name: str) -> bool:
    """Read torch's own description: pointwise by tag, view by its schema."""
    packet: Any = getattr(torch.ops.aten, name, None)
    if not hasattr(packet, "overloads"):  # none, or a method that every namespace has (__eq__)
        return False
    for overload_name in packet.overloads():
        overload = getattr(packet, overload_name)
        if torch.Tag.pointwise in overload.tags:
            return True
        returns = schema_of(overload).returns
        if any(r.alias_info is not None and not r.alias_info.is_write for r in returns):
            return True
    return False
