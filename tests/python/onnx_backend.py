"""ONNX's `Attention` operator (opsets 23 to 25), computed by polyhead: the code with which a runtime would run this node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx

import polyhead

# For each value of ONNX's attribute qk_matmul_output_mode, the argument `value` of polyhead.maps.
_POINTS = {0: "scaled_score", 1: "capped_score", 2: "score", 3: "probability"}


def _heads(x: np.ndarray, count: int | None) -> np.ndarray:
    """Returns [B,T,N*H] as a view [B,N,T,H]; a tensor of four dimensions stays as it is."""
    if x.ndim == 4:
        return x
    assert count is not None
    return x.reshape(x.shape[0], x.shape[1], count, x.shape[2] // count).transpose(0, 2, 1, 3)


def _diagonal(offset: int, keys: int, causal: bool, left: int, right: int) -> dict[str, Any]:
    """Returns `causal` and `window` for polyhead. The queries of the sequence begin at position `offset`.

    polyhead's diagonal is the last key of query 0: offset if causal; offset + right if the window has a right side; otherwise behind the last key.
    """
    last = offset if causal else offset + right if right >= 0 else keys
    if causal and right >= 0:
        last = min(last, offset + right)
    window = None if left < 0 else (left + last - offset, None)
    return {"causal": last if causal or right >= 0 or left >= 0 else None, "window": window}


def _padded(mask: np.ndarray, keys: int) -> np.ndarray:
    """Extends a mask that is shorter than the keys. Keys that the mask does not cover are masked."""
    missing = keys - mask.shape[-1]
    if missing <= 0:
        return mask
    fill = np.full((*mask.shape[:-1], missing), False if mask.dtype == np.bool_ else -np.inf, mask.dtype)
    return np.concatenate([mask, fill], axis=-1)


def run_attention(node: onnx.NodeProto, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Runs the node. Returns the outputs that the node names, in their order."""
    given = iter(inputs)
    tensors: list[np.ndarray | None] = [next(given) if name else None for name in node.input]
    tensors += [None] * (7 - len(tensors))
    q, k, v, mask, past_k, past_v, lengths = tensors
    assert q is not None and k is not None and v is not None
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    known = {"scale", "is_causal", "q_num_heads", "kv_num_heads", "softcap", "qk_matmul_output_mode", "softmax_precision", "left_window_size"}
    assert set(attributes) <= known | {"right_window_size"}, attributes
    # softmax_precision can be ignored: polyhead computes softmax in float32, or in float64 for float64 inputs.
    assert attributes.get("softmax_precision") != onnx.TensorProto.DOUBLE or q.dtype in (np.float32, np.float64)

    three_dimensional = q.ndim == 3
    kv_heads = attributes.get("kv_num_heads")
    q, k, v = _heads(q, attributes.get("q_num_heads")), _heads(k, kv_heads), _heads(v, kv_heads)
    if past_k is not None and past_v is not None:
        k, v = np.concatenate([past_k, k], axis=2), np.concatenate([past_v, v], axis=2)
    queries, keys = q.shape[2], k.shape[2]

    options: dict[str, Any] = {"scale": attributes.get("scale"), "softcap": attributes.get("softcap", 0.0)}
    if mask is not None:
        options["attend" if mask.dtype == np.bool_ else "bias"] = np.broadcast_to(_padded(mask, keys), (*q.shape[:3], keys))
    causal, left, right = bool(attributes.get("is_causal", 0)), attributes.get("left_window_size", -1), attributes.get("right_window_size", -1)

    out = np.empty((*q.shape[:3], v.shape[3]), q.dtype)
    wants_map = len(node.output) > 3 and node.output[3] != ""
    qk = np.empty((*q.shape[:3], keys), q.dtype)
    # If sequences have different numbers of keys, their queries have different positions, too. Then polyhead is called once for each sequence.
    parts = [slice(None)] if lengths is None else [slice(b, b + 1) for b in range(len(lengths))]
    for part in parts:
        offset = past_k.shape[2] if past_k is not None else 0 if lengths is None else int(lengths[part][0]) - queries
        here = options | {name: options[name][part] for name in ("attend", "bias") if name in options}
        here |= _diagonal(offset, keys, causal, left, right)
        here["key_lengths"] = None if lengths is None else lengths[part]
        polyhead.sdpa(q[part], k[part], v[part], out=out[part], **here)
        if wants_map:
            value = _POINTS[attributes.get("qk_matmul_output_mode", 0)]
            polyhead.maps(q[part], k[part], value=value, out=qk[part], **here)
    if three_dimensional:
        out = out.transpose(0, 2, 1, 3).reshape(out.shape[0], queries, -1)
    return [x for x, name in zip([out, k, v, qk], node.output) if name]
