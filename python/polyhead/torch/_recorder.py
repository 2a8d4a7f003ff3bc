"""Watches the operators of a running model, and records attention maps for `polyhead.capture`.

The recorder is a dispatch mode: torch calls it for each operator, after torch has chosen the operator. So the capture changes neither the choice of operators
nor any bit of the output. Hooks or function modes would switch off torch's fused layers.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, _C, nn
from torch.utils._python_dispatch import TorchDispatchMode

import polyhead
from .._capture import KEPT, CapturedCall, MissedCall
from . import _eager, _ops
from ._operators import FUSED, Problem
from ._numbers import numbers_of

_ATTENTION = re.compile("attention", re.IGNORECASE)
_ATTENTION_OPERATOR = re.compile(r"attention|attn|flash|_mha_|transformer_encoder|transformer_decoder", re.IGNORECASE)
_NO_CALL = re.compile("backward|fused_sdp_choice|_fill|_mask$")

_SOFTMAX = {"_softmax", "softmax", "special_softmax", "_safe_softmax"}
_PRODUCTS = {"bmm": 0, "mm": 0, "matmul": 0, "baddbmm": 1}  # operators that multiply matrices -> index of the first factor among the arguments
_COPIES = {"clone", "contiguous", "reshape", "flatten", "to", "_to_copy", "type_as"}  # operators that copy attention weights to other memory
_DROPOUT = {"dropout", "native_dropout", "feature_dropout"}
_CHANGES = {"mul", "div", "masked_fill", "where", "nan_to_num"}  # operators that change attention weights; a result that is multiplied by values is recorded as the map
_PARTS = {"slice", "narrow"}
_KNOWN = {("polyhead", "attention_map"), ("polyhead", "attention_backward")}  # operators that belong to a call that is recorded anyway
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads", "nhead", "num_head")


class _Module(NamedTuple):
    """A module that is running."""

    name: str
    module: nn.Module
    seen: int  # the numbers of calls and of missed calls that had been recorded before the module ran


class _Weights:
    """A tensor of attention weights that may be multiplied by values: a softmax, or the result of an operator on a softmax."""

    def __init__(self, tensor: Tensor, p: Tensor | None, depth: int, is_dropped: bool = False, why: str = "") -> None:
        self.tensor = tensor  # kept alive: its memory, once freed, could be given to another tensor, which would be mistaken for this one
        self.p = p  # attention weights before dropout; None if they are not known, and then `why` is the reason
        self.depth = depth
        self.is_dropped = is_dropped
        self.why = why

    def is_same(self, tensor: Tensor) -> bool:
        """True if `tensor` is a view of the elements of `self.tensor`, in any shape and order."""
        one, other = self.tensor, tensor
        return _memory(one) == _memory(other) and one.storage_offset() == other.storage_offset() and one.numel() == other.numel() and one.dtype == other.dtype

    def has_keys(self, tensor: Tensor, axis: int) -> bool:
        """True if this axis of `tensor` has the size and the stride of the keys, the last axis of `self.tensor`."""
        return tensor.size(axis) == self.tensor.size(-1) and (tensor.size(axis) == 1 or tensor.stride(axis) == self.tensor.stride(-1))


def _memory(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_dense(tensor: object) -> bool:
    return isinstance(tensor, Tensor) and not tensor.is_nested and tensor.layout == torch.strided and tensor.device.type != "meta"


def _refuse_compiled(model: nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, torch._dynamo.eval_frame.OptimizedModule) or getattr(module, "_compiled_call_impl", None) is not None:
            what = f"its module {name!r}" if name else type(module).__name__
            raise NotImplementedError(f"capture: {what} is compiled, and attention inside of compiled code cannot be seen; capture the model before torch.compile")


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs an operator so that its result has the same bits as without a capture. In inference mode, the dispatch mode receives a linear layer as one operator,
    and the operators inside of it would run without view tracking. Then the transposed parameter would not require grad, matmul would fold other dimensions,
    and the bits would differ. So view tracking is switched on here."""
    if func is not torch.ops.aten.linear.default or not torch.is_inference_mode_enabled():
        return func(*args, **kwargs)
    excluded = _C._dispatch_tls_local_exclude_set().remove(_C.DispatchKey.ADInplaceOrView)
    with _C._ForceDispatchKeyGuard(_C._dispatch_tls_local_include_set(), excluded):
        out = func(*args, **kwargs)
    return out.detach()  # drop the view tracking of the result, which would prevent views of it in inference mode


class Recorder(TorchDispatchMode):
    """Records attention while the mode is active. Each captured call is appended to the list `calls`, and each attention that could not be captured to
    `missed`. The other arguments are those of `polyhead.capture`."""

    supports_higher_order_operators = True

    @classmethod
    def is_infra_mode(cls) -> bool:
        """True tells torch.compile to run compiled code as without a capture. Otherwise it would refuse to run the code, or run the operators one by one, with
        other bits."""
        return True

    def __init__(
        self, model: Any, calls: list[CapturedCall], missed: list[MissedCall], keep: frozenset[str], budget: int, top_k: int, pooled: tuple[int, int]
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if model is not None and not isinstance(model, nn.Module):
            raise TypeError(f"capture: model is of type {type(model).__name__}; it must be a torch.nn.Module or None")
        self._names: dict[int, str] = {}
        self._parameters: set[int] = set()
        if model is not None:
            _refuse_compiled(model)
            self._names = {id(module): name for name, module in model.named_modules()}
            self._parameters = {_memory(x) for x in model.parameters() if _is_dense(x)}
        self._model = model  # keeps the modules alive, so that their ids stay valid
        self._calls, self._missed = calls, missed
        self._keep, self._budget, self._left, self._top_k, self._pooled = keep, budget, budget, top_k, pooled
        self._running: list[_Module] = []
        self._weights: list[_Weights] = []
        self._noise: Tensor | None = None  # the latest result of bernoulli, which may be the mask of a dropout
        self._thread = 0
        self._call: Any = None

    def __enter__(self) -> Recorder:
        if self in _eager.recorders:
            raise RuntimeError("this capture is running already")
        self._thread = threading.get_ident()
        self._call = nn.Module.__call__
        call = self._call

        def recorded(module: nn.Module, *arguments: Any, **keywords: Any) -> Any:
            name = self._names.get(id(module))
            if name is None or threading.get_ident() != self._thread:
                return call(module, *arguments, **keywords)
            self._running.append(_Module(name, module, self._seen()))
            try:
                return call(module, *arguments, **keywords)
            finally:
                self._leave(self._running.pop())

        nn.Module.__call__ = recorded  # type: ignore[method-assign]
        _eager.recorders.append(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _eager.recorders.remove(self)
        nn.Module.__call__ = self._call  # type: ignore[method-assign]
        self._weights.clear()
        self._noise = None

    def _seen(self) -> int:
        return len(self._calls) + len(self._missed)

    def _leave(self, left: _Module) -> None:
        # The result of an nn.Softmax or nn.Dropout module is multiplied by values in the module around it, so the result is kept. Other attention weights are
        # forgotten when the model leaves their module.
        self._weights = [weights for weights in self._weights if weights.depth <= len(self._running) + isinstance(left.module, (nn.Softmax, nn.Dropout))]
        for weights in self._weights:
            weights.depth = min(weights.depth, len(self._running))
        if self._seen() == left.seen and _ATTENTION.search(type(left.module).__name__):
            self._miss(f"{type(left.module).__name__} ran, and neither a known operator of attention nor a product of a softmax and values was seen in it", left.name)

    def _name(self) -> str:
        return self._running[-1].name if self._running else ""

    def _miss(self, reason: str, name: str | None = None) -> None:
        missed = MissedCall(self._name() if name is None else name, reason)
        if missed not in self._missed:
            self._missed.append(missed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _C._current_graph_task_id() != -1 or threading.get_ident() != self._thread:
            return _run(func, args, kwargs)
        namespace, name = getattr(func, "namespace", "higher_order"), getattr(func, "_opname", None) or func.__name__
        if namespace == "aten" and name in _PRODUCTS:
            self._multiply(args[_PRODUCTS[name] :])
        elif namespace == "aten" and name == "einsum":
            self._multiply(args[1], are_ordered=False)
        if self._weights and name.endswith("_") and args and _is_dense(args[0]):
            self._save(args[0])
        out = _run(func, args, kwargs)
        with torch.no_grad():
            if namespace == "aten" and name in _SOFTMAX:
                self._softmax(out, args)
            elif (namespace, name) in FUSED:
                self._try(name, lambda: self._record_problem(FUSED[namespace, name](name, *args, **kwargs)))
            elif (namespace, name) not in _KNOWN and _ATTENTION_OPERATOR.search(name) and not _NO_CALL.search(name):
                self._miss(f"polyhead cannot read the operator {namespace}::{name}")
            elif self._weights and args and isinstance(out, (Tensor, tuple)):
                self._follow(name.rstrip("_"), args, out)
        return out

    def _try(self, what: str, record: Callable[[], None]) -> None:
        """Runs `record` and turns its errors into missed calls, because an error of the recording must not end the model's run."""
        try:
            record()
        except (TypeError, ValueError, RuntimeError, NotImplementedError, MemoryError, KeyError, IndexError) as error:
            self._miss(f"{what}: {error}")

    # ---- Attention that a model computes as a product of a softmax and values ----

    def _softmax(self, p: Tensor, args: tuple[Any, ...]) -> None:
        if not _is_dense(p):
            self._miss("a softmax of a tensor that is nested, sparse or without memory")
        elif p.dim() >= 2 and args[1] in (-1, p.dim() - 1):
            self._add(_Weights(p, p, len(self._running)))

    def _add(self, weights: _Weights) -> None:
        self._weights = [*(old for old in self._weights if not old.is_same(weights.tensor)), weights][-32:]
        while len(self._weights) > 4 and sum(kept.tensor.numel() * kept.tensor.element_size() for kept in self._weights) > self._budget:
            del self._weights[0]

    def _save(self, tensor: Tensor) -> None:
        """Copies recorded attention weights that are in the memory of the tensor. Must be called before an operator writes to the tensor."""
        for weights in self._weights:
            if weights.p is not None and _memory(weights.p) == _memory(tensor):
                weights.p = weights.p.clone()

    def _find(self, tensor: object) -> _Weights | None:
        if not _is_dense(tensor):
            return None
        return next((weights for weights in reversed(self._weights) if weights.is_same(tensor)), None)  # type: ignore[arg-type]

    def _follow(self, name: str, args: tuple[Any, ...], out: Any) -> None:
        out = out[0] if isinstance(out, tuple) and out else out
        if name == "bernoulli":
            self._noise = out
        if not _is_dense(out):
            return
        given = [args[1] if name == "where" and len(args) > 2 else args[0], *(args[0] if isinstance(args[0], (tuple, list)) else ()), *args[1:]]
        place, weights = next(((i, found) for i, x in enumerate(given) if (found := self._find(x)) is not None), (0, None))
        depth = len(self._running)
        if weights is None:
            part = next((x for x in given if _is_dense(x) and any(_memory(old.tensor) == _memory(x) for old in self._weights)), None)
            if part is not None and _memory(out) != _memory(part) and out.dim() >= 2 and out.numel() >= part.numel():
                self._add(_Weights(out, None, depth, why="a product with a part of a softmax"))
            return
        is_noise = name == "mul" and self._noise is not None and _is_dense(args[1]) and _memory(args[1]) == _memory(self._noise)
        if out.numel() == weights.tensor.numel() and _memory(out) == _memory(weights.tensor) and name not in _DROPOUT | _CHANGES:
            return  # out is a view of the same numbers, so `_find` recognises it
        if place == 0 and name in _COPIES and out.numel() == weights.tensor.numel():
            self._add(_Weights(out, weights.p, depth, weights.is_dropped, weights.why))
        elif place == 0 and (is_noise or name in _DROPOUT):
            dropped = weights.is_dropped or is_noise or name == "native_dropout" or bool(args[1] > 0 and args[2])
            self._add(_Weights(out, weights.p, depth, dropped, weights.why))
        elif place == 0 and name in _PARTS and weights.p is not None and self._is_first_keys(args, weights.tensor):
            p = out if not weights.is_dropped else weights.p.narrow(-1, 0, out.size(-1))
            self._add(_Weights(out, p, depth, weights.is_dropped))
        elif place == 0 and name in _CHANGES and out.shape == weights.tensor.shape and not weights.is_dropped and weights.p is not None:
            self._add(_Weights(out, out, depth))
        elif out.dim() >= 2 and out.numel() >= weights.tensor.numel():
            self._add(_Weights(out, None, depth, why=f"attention weights that are changed ({name}){' after dropout' if weights.is_dropped else ''}"))

    @staticmethod
    def _is_first_keys(args: tuple[Any, ...], tensor: Tensor) -> bool:
        axis, first = (*args[1:], 0, 0)[:2]
        return axis in (-1, tensor.dim() - 1) and first in (0, None)

    def _multiply(self, factors: Any, are_ordered: bool = True) -> None:
        factors = list(factors[:2])
        if not self._weights or not all(map(_is_dense, factors)) or len(factors) < 2:
            return
        for place, (factor, other) in enumerate(zip(factors, factors[::-1])):
            parts = [weights for weights in self._weights if _memory(weights.tensor) == _memory(factor)]
            if not parts or _memory(other) in self._parameters:  # a product with a parameter is a linear layer after a softmax, not attention
                continue
            weights = self._find(factor)
            if weights is None:
                self._miss("a product with a part of a softmax")
            elif are_ordered and not weights.has_keys(factor, -1 if place == 0 else -2):
                self._miss("a product with a softmax along its queries")
            elif weights.p is None:
                self._miss(weights.why)
            else:
                p = weights.p.detach()
                with torch.no_grad():
                    self._try("softmax", lambda: self._record_weights(p))
            self._weights = [old for old in self._weights if old not in parts]
            return

    def _record_weights(self, p: Tensor) -> None:
        heads = self._heads()
        if p.dim() == 3:  # the map is [B N,T,S] if the module's number of heads N is known and divides the first extent; else [B,T,S] with a single head
            p = p.unflatten(0, (-1, heads) if heads and p.size(0) % heads == 0 else (-1, 1))
        p = p.reshape((1,) * (4 - p.dim()) + p.shape).cpu()
        p = p if p.dtype == torch.float64 else p.float()

        def kept(kind: str) -> Any:
            return p.clone() if kind == "maps" else numbers_of(p, kind, self._top_k, self._pooled)

        self._keep_call("softmax", tuple(p.shape), p.element_size(), kept)

    def _heads(self) -> int | None:
        for running in reversed(self._running):
            for name in _HEADS:
                heads = getattr(running.module, name, None)
                if isinstance(heads, int) and heads > 0:
                    return heads if type(running.module).__module__.split(".")[0] in ("torch", "transformers") else None
        return None

    # ---- Operators that compute attention as a whole ----

    def record(self, q: Tensor, k: Tensor, options: dict[str, Any]) -> None:
        """Records a call of polyhead. options: options of `polyhead.sdpa`."""
        if threading.get_ident() == self._thread and _C._current_graph_task_id() == -1:
            self._try("polyhead.attention", lambda: self._record_problem(Problem("polyhead.attention", q, k, options)))

    def _record_problem(self, problem: Problem) -> None:
        operation, q, k, options = problem
        for tensor in (q, k):
            if not _is_dense(tensor):
                raise ValueError("the capture makes no maps of nested tensors, sparse tensors and tensors without memory")
        lead = (1,) * (4 - q.dim())
        q, k = (_wide(x.reshape(lead + x.shape)) for x in (q, k))
        given = {name: _beside(value, q) if isinstance(value, Tensor) else value for name, value in options.items() if name not in ("dropout", "seed", "dropout_keep", "v_scale")}
        shape = (*q.shape[:-1], k.size(-2))

        def kept(kind: str) -> Any:
            queries, keys = _ops._view(q), _ops._view(k)
            if kind == "maps":
                return _ops._tensor(polyhead.maps(queries, keys, **given))
            if kind == "statistics":
                return {name: _ops._tensor(x) for name, x in polyhead.head_statistics(queries, keys, **given).items()}
            if kind == "top_keys":
                top = polyhead.maps(queries, keys, top_k=min(self._top_k, shape[-1]), **given)
                return polyhead.TopKeys(_ops._tensor(top.probability), _ops._tensor(top.key))
            return _ops._tensor(polyhead.pooled_map(queries, keys, min(self._pooled[0], shape[-2]), min(self._pooled[1], shape[-1]), **given))

        self._keep_call(operation, shape, q.element_size(), kept)

    def _keep_call(self, operation: str, shape: tuple[int, ...], element: int, kept: Callable[[str], Any]) -> None:
        wanted = set(self._keep)
        size = math.prod(shape) * element
        if "maps" in wanted and size > self._left:
            wanted = set(KEPT) - {"maps"}
        values = {part: kept(part) for part in KEPT if part in wanted}
        if "maps" in wanted:
            self._left -= size
        self._calls.append(CapturedCall(self._name(), operation, shape, is_window=self._is_window(shape), **values))

    def _is_window(self, shape: tuple[int, ...]) -> bool:
        """True if the numbers of queries and keys are the window size of the innermost module that has a window size."""
        for running in reversed(self._running):
            size = getattr(running.module, "window_size", None)
            if isinstance(size, int):
                return not isinstance(size, bool) and shape[-1] == shape[-2] and shape[-1] in (size, size * size)
            if isinstance(size, (tuple, list)) and size and all(isinstance(extent, int) for extent in size):
                return shape[-1] == shape[-2] == math.prod(size)
        return False


def _wide(tensor: Tensor) -> Tensor:
    """Copies the tensor to host memory. Converts 16-bit dtypes to float32, so that maps are computed in float32."""
    tensor = tensor.detach().cpu()
    return tensor if tensor.dtype in (torch.float32, torch.float64, torch.int8) else tensor.float()


def _beside(tensor: Tensor, q: Tensor) -> Any:
    tensor = tensor.detach().cpu()
    return _ops._view(tensor.to(q.dtype) if tensor.is_floating_point() else tensor)
