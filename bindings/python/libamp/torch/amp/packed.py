# SPDX-License-Identifier: Apache-2.0
"""Packs saved tensors of autograd into fewer bits, and unpacks them. The hooks of amp.compress_activations call this.

A storage is packed once for all of its saved views: query, key and value are slices of one, and the result of ReLU is
also the input of the next layer. The identity of a storage is known while its packed form lives: a weak reference
prevents the reuse of its number.

On a GPU nothing waits to learn whether all elements are finite. Until then the elements are held unpacked, of a limited
number of tensors. Tensors with an infinity remain unpacked.
"""
from __future__ import annotations

import itertools
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad

from ... import kernels

GROUP = 256  # of amp_pack.h
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_NARROWER = {torch.int64: (torch.int16, torch.int32), torch.int32: (torch.int16,)}
_WORDS = {0: "narrowed", 1: "1 bit", 2: "2 bits", 4: "4 bits", 8: "8 bits"}
_LOOK = 64  # elements that are checked before a whole tensor counts as a mask
_UNHEARD = 8  # maximum of tensors that a GPU may not have packed yet

# Nodes that pass on elements in another order or type
_VIEWS = frozenset(
    f"{name}Backward{i}"
    for name in (
        "T", "Transpose", "Permute", "View", "UnsafeView", "ReshapeAlias", "Alias", "Clone", "ToCopy", "Expand",
        "Squeeze", "Unsqueeze", "Select", "Slice", "Split", "SplitWithSizes", "UnsafeSplit", "AsStrided", "Unbind",
    )
    for i in (0, 1)
)
_Tensor, _STRIDED = torch.Tensor, torch.strided
_free_weak_ref: Callable[[int], None] = torch.UntypedStorage._free_weak_ref


class _Names(dict[type, str]):
    """Names of node types, "" for a node that only passes on. A node's own name is computed anew at each access."""

    def __missing__(self, kind: type) -> str:
        name = "" if kind.__name__ in _VIEWS else kind.__name__
        if not hasattr(kind, "_forward_cls"):  # torch's own node types live as long as torch
            self[kind] = name
        return name


_names = _Names()


def origin(node: Any) -> str:
    """Returns the origin of these elements, below views and casts. "AccumulateGrad" for a leaf."""
    name = _names[type(node)]
    while not name:
        parents = node.next_functions
        if not parents or parents[0][0] is None:
            break
        node = parents[0][0]
        name = _names[type(node)]
    return name


class _Kept:
    """A saved storage, found by its key until the last node that needs it is gone."""

    __slots__ = ("__weakref__", "_alive", "_key", "_storage", "size")
    _storage: int
    size: int

    def be_known(self, alive: dict[Any, Any], key: Any, storage: Any) -> None:
        self._storage, self._alive, self._key = storage._weak_ref(), alive, key
        alive[key] = weakref.ref(self)

    def __del__(self) -> None:
        if self._storage:
            self._alive.pop(self._key, None)
            _free_weak_ref(self._storage)


class Packed(_Kept):
    """The elements in fewer bits, or, with bits 0, in a narrower type."""

    __slots__ = ("bits", "codes", "dtype", "exact", "unheard")
    exact: tuple[torch.Tensor, torch.Tensor, int] | None
    unheard: _Unheard | None

    def __init__(self, codes: torch.Tensor, bits: int, dtype: torch.dtype, size: int) -> None:
        self.codes, self.bits, self.dtype, self.size, self._storage = codes, bits, dtype, size, 0
        self.exact = None  # the unpacked elements, their owner and its version
        self.unheard = None  # until a GPU reports whether `exact` is needed

    def flat(self) -> torch.Tensor:
        """Returns all elements in the order of memory."""
        if self.exact is not None:
            elements, tensor, version = self.exact
            if tensor._version == version:
                return elements
            if self.unheard is None or not self.unheard.is_finite():
                _check_version(tensor, version)
        if not self.bits:
            return self.codes.to(self.dtype)
        dtype = torch.bfloat16 if self.dtype is torch.bool else self.dtype
        made = torch.empty(self.size, dtype=dtype, device=self.codes.device)
        kernels.unpack(made, self.codes, self.bits)
        return made.to(torch.bool) if self.dtype is torch.bool else made


class Original(_Kept):
    """The unpacked elements, while the effect of rounding is measured."""

    __slots__ = ("_tensor", "_version", "bits", "site")

    def __init__(self, tensor: torch.Tensor, site: Any) -> None:
        self._tensor, self._version, self.site, self.bits = tensor.detach().view(-1), tensor._version, site, 0
        self.size, self._storage = tensor.numel(), 0

    def flat(self) -> torch.Tensor:
        """Returns the elements, rounded to `bits` if set."""
        _check_version(self._tensor, self._version)
        packed = rounded(self._tensor, self.bits, 0) if self.bits else None
        return self._tensor if packed is None else packed.flat()


def _is_there(tensor: torch.Tensor) -> bool:
    """Returns True if the tensor is on a GPU."""
    return tensor.is_cuda


def _codes(source: torch.Tensor, bits: int) -> torch.Tensor:
    return torch.empty(-(-source.numel() // GROUP) * (32 * bits + 4), dtype=torch.uint8, device=source.device)


def rounded(source: torch.Tensor, bits: int, seed: int, context: Any = None) -> Packed | None:
    """Returns a Packed, or None if elements are not finite or (1 bit) not restored exactly. context: whose memory
    record counts it. Waits for a GPU."""
    codes = _codes(source, bits)
    found_inf, inexact = kernels.pack(codes, source, bits, seed, context)
    return None if found_inf or inexact else Packed(codes, bits, source.dtype, source.numel())


class _Unheard:
    """A tensor packed by a GPU, before it is known whether all elements are finite."""

    def __init__(self, packed: Packed, flags: torch.Tensor) -> None:
        self.packed: weakref.ref[Packed] = weakref.ref(packed)
        self._flags = torch.empty(2, dtype=torch.float32, pin_memory=True)
        self._flags.copy_(flags, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def is_ready(self) -> bool:
        return bool(self._event.query())

    def is_finite(self) -> bool:
        self._event.synchronize()
        return not self._flags[0].item()


def _check_version(tensor: torch.Tensor, version: int) -> None:
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"a {str(tensor.dtype).removeprefix('torch.')} tensor of {list(tensor.shape)} is at version "
            f"{tensor._version}; expected version {version} instead"
        )


class Store:
    """The saved tensors of one handle. bits_of(source): the bits of these elements, or an Original."""

    def __init__(
        self, model: torch.nn.Module, bits_of: Callable[[torch.Tensor], Any], min_size: int, softmax: bool, seed: int
    ) -> None:
        self.model, self._min_size, self._softmax, self._bits_of = weakref.ref(model), min_size, softmax, bits_of
        self._seeds = itertools.count(seed)
        self._alive: dict[Any, weakref.ref[Any]] = {}
        self._last: tuple[Any, Any, int] = (None, None, 0)  # unpacked last, for the next node, and its version
        self._recent: deque[tuple[Any, Packed]] = deque(maxlen=6)  # last saved: grad_fn and packed form
        self._sources: deque[tuple[Packed, Any]] = deque(maxlen=6)  # their packed forms and sources
        self._unanswered: deque[_Unheard] = deque()
        self._ends = False  # the engine reports the end of backward
        self.begin()

    def begin(self, context: Any = None) -> None:
        """Begins a forward, with new counts here and in the context's record."""
        self._context = context
        self.counts: dict[str, list[int]] = {}  # by reason or bits: number of tensors, bytes before, bytes now
        self._counted: set[int] = set()
        self._params: set[int] | None = None
        self.small = 0
        self._forget()

    def seed(self) -> int:
        """Returns a new seed each time."""
        return next(self._seeds) & 0xFFFFFFFFFFFFFFFF

    def _forget(self) -> None:
        self._last, self._ends = (None, None, 0), False

    def _count(self, why: str, before: int, now: int) -> None:
        count = self.counts.get(why)
        if count is None:
            count = self.counts[why] = [0, 0, 0]
        count[0] += 1
        count[1] += before
        count[2] += now

    # ---- forward ----

    def save(self, tensor: torch.Tensor) -> tuple[Any, ...]:
        """The pack hook: returns the object to save instead of `tensor`."""
        node = tensor.grad_fn
        if node is None and tensor.requires_grad:
            return tensor, tensor._version  # a parameter
        if tensor.numel() < self._min_size:
            self.small += 1
            return tensor if node is None else tensor.detach(), tensor._version
        if forward_ad._current_level >= 0:  # forward-mode: tangents are saved too, and some of them have no memory
            return tensor if tensor.is_leaf else tensor.detach(), tensor._version
        plain = type(tensor) is _Tensor and tensor.layout is _STRIDED and not tensor.is_nested
        if not plain or not self._reaches(tensor):
            return self._exact(tensor, "elsewhere")
        storage = tensor.untyped_storage()
        key: Any = (storage._cdata, tensor._version, tensor.dtype)
        owner = tensor._base if tensor._is_view() else tensor  # the tensor that has the version
        part = owner is not None and owner.nbytes != storage.nbytes()  # (of unsafe_chunk) not the whole storage's
        if part:
            key = *key, tensor.storage_offset(), tensor.shape, tensor.stride()
        if node is not None and not self._softmax and "ScaledDotProduct" in node.name():
            self._attended(node)
        known = self._alive.get(key)
        packed = known() if known is not None else None
        if packed is None:
            why = "" if node is None else self._refused(tensor, node)
            packed = why or self._pack(tensor, storage, key, node is None, part)
            if isinstance(packed, str):  # why not
                return self._exact(tensor, packed)
        if type(packed) is Packed:
            self._recent.append((node, packed))
        if packed.size != storage.nbytes() // tensor.element_size():  # a part, made contiguous
            return packed, tensor.shape, None, 0
        return packed, tensor.shape, tensor.stride(), tensor.storage_offset()

    def _reaches(self, tensor: torch.Tensor) -> bool:
        """Returns True if the memory can be packed now."""
        if not _is_there(tensor):
            return tensor.is_cpu
        self._take_answers(_UNHEARD)
        return not torch.cuda.is_current_stream_capturing()

    def forward_over(self) -> None:
        """Ends the forward: drops records for later views."""
        self._recent.clear()
        self._sources.clear()

    def _attended(self, node: Any) -> None:
        """Handles fused attention, which saves its result after query, key and value. Backward recomputes the
        probabilities from query and key, beside their exact sum, with an error exponential in the rounding. So query
        and key remain exact, as results of softmax do."""
        makers = [maker for maker, _ in node.next_functions[:2]]
        for maker, packed in self._recent:
            if not packed.codes.numel() or not any(maker is each for each in makers):
                continue
            source = next((source for each, source in self._sources if each is packed), None)
            if source is not None:
                self._stays(packed, source, "softmax")

    def _stays(self, packed: Packed, source: tuple[torch.Tensor, torch.Tensor, int], why: str) -> None:
        """Records a packed tensor that remains exact nevertheless."""
        before, now = source[0].nbytes, packed.codes.nbytes
        packed.exact, packed.codes = source, packed.codes[:0]
        rounded_ones = self.counts.get(_WORDS[packed.bits])
        if rounded_ones is not None:  # else it belongs to an earlier forward
            rounded_ones[:] = [rounded_ones[0] - 1, rounded_ones[1] - before, rounded_ones[2] - now]
            self._count(why, before, before)

    def _take_answers(self, most: int) -> None:
        """Receives results until at most this many are unknown."""
        while self._unanswered and (len(self._unanswered) > most or self._unanswered[0].is_ready()):
            one = self._unanswered.popleft()
            packed = one.packed()
            if packed is None:
                continue
            packed.unheard = None
            if packed.exact is None or not packed.codes.numel():
                continue
            if one.is_finite():
                packed.exact = None
            else:
                self._stays(packed, packed.exact, "not finite")

    def _exact(self, tensor: torch.Tensor, why: str) -> tuple[Any, ...]:
        if why != "parameters" and tensor.layout is _STRIDED:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._counted:
                self._counted.add(storage._cdata)
                self._count(why, storage.nbytes(), storage.nbytes())
        # detached: a node that held its own result would never be freed
        return tensor if tensor.is_leaf else tensor.detach(), tensor._version

    def _refused(self, tensor: torch.Tensor, node: Any) -> str:
        """Returns the reason why a tensor remains exact, or ""."""
        if tensor.dtype not in FLOATS:
            return "type"
        name = origin(node)
        if name == "AccumulateGrad":
            return "parameters"
        return "softmax" if "Softmax" in name and not self._softmax else ""

    def _is_the_models(self, tensor: torch.Tensor) -> bool:
        """Returns True for a parameter or buffer, or a part of one."""
        if self._params is None:
            model = self.model()
            tensors = () if model is None else itertools.chain(model.parameters(), model.buffers())
            dense = (each for each in tensors if each.layout is torch.strided)
            self._params = {each.untyped_storage().data_ptr() for each in dense}
        return tensor.untyped_storage().data_ptr() in self._params

    def _pack(self, tensor: torch.Tensor, storage: Any, key: Any, leaf: bool, part: bool) -> Any:
        size, rest = divmod(storage.nbytes(), tensor.element_size())
        source = tensor
        if tensor.is_neg():
            return "elsewhere"
        if part:
            source = tensor.detach().contiguous()
        elif tensor.numel() != size or not tensor.is_contiguous():
            if rest or 4 * tensor.numel() < size:  # a small part of it: only that part
                source = tensor.detach().contiguous()
                key = *key, tensor.storage_offset(), tensor.shape, tensor.stride()
                known = self._alive.get(key)
                if known is not None and (packed := known()) is not None:
                    return packed
            else:
                source = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(storage)
        packed = self._leaf(source) if leaf else self._float(source, tensor)
        if not isinstance(packed, str):
            packed.be_known(self._alive, key, storage)
            before = source.nbytes
            if type(packed) is Packed and not leaf:
                self._sources.append((packed, (source.detach().view(-1), tensor.detach(), tensor._version)))
            if isinstance(packed, Original):
                self._count("measured", before, before)
            else:
                self._count(_WORDS[packed.bits], before, packed.codes.nbytes)
        return packed

    def _float(self, source: torch.Tensor, tensor: torch.Tensor) -> Any:
        bits = self._bits_of(source)
        if bits is None:
            return "skipped"
        if not isinstance(bits, int):
            return bits
        if not _is_there(source):
            return rounded(source, bits, self.seed(), self._context) or "not finite"
        packed = Packed(_codes(source, bits), bits, source.dtype, source.numel())
        flags = torch.zeros(2, dtype=torch.float32, device=source.device)
        kernels.pack(packed.codes, source, bits, self.seed(), self._context, flags)
        packed.exact = source.detach().view(-1), tensor.detach(), tensor._version
        packed.unheard = _Unheard(packed, flags)
        self._unanswered.append(packed.unheard)
        return packed

    def _leaf(self, source: torch.Tensor) -> Packed | str:
        """Packs a tensor without a graph: masks and indices, which are restored exactly. On a GPU only bool masks,
        because other checks would wait."""
        if source.dtype in FLOATS and (_is_there(source) or rounded(source.view(-1)[:_LOOK], 1, 0) is None):
            return "as given"  # data
        if self._is_the_models(source):
            return "parameters"
        if source.dtype in _NARROWER and not _is_there(source):
            low, high = (int(each) for each in source.aminmax())
            for dtype in _NARROWER[source.dtype]:
                info = torch.iinfo(dtype)
                if info.min <= low and high <= info.max:
                    return Packed(source.to(dtype), 0, source.dtype, source.numel())
        packed = None
        if source.dtype is torch.bool:
            packed = Packed(_codes(source, 1), 1, torch.bool, source.numel())
            ignored = torch.empty(2, dtype=torch.float32, device=source.device)
            kernels.pack(packed.codes, source.to(torch.bfloat16), 1, 0, self._context, ignored)
        elif source.dtype in FLOATS:
            packed = rounded(source, 1, 0, self._context)
        return packed or "as given"

    # ---- backward ----

    def restore(self, saved: tuple[Any, ...]) -> torch.Tensor:
        """The unpack hook: returns the tensor that was saved."""
        if len(saved) == 2:
            tensor, version = saved
            if tensor._version != version:
                _check_version(tensor, version)
            return tensor
        packed, shape, strides, offset = saved
        self._take_answers(_UNHEARD)
        last, flat, version = self._last
        if last is not packed or flat._version != version:  # a backward may write to saved tensors
            flat = packed.flat()
            if type(packed) is Packed and (self._ends or self._queue_end()):
                self._last = packed, flat, flat._version
        return flat.view(shape) if strides is None else flat.as_strided(shape, strides, offset)

    def _queue_end(self) -> bool:
        """Returns True in a backward pass that will report its end."""
        try:
            torch.autograd.Variable._execution_engine.queue_callback(self._forget)
            self._ends = True
        except RuntimeError:
            pass
        return self._ends
