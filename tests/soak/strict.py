"""Readers that accept a file only if every byte of it has a meaning. They are written from the specifications of the formats, without code of polyhead's readers."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

_SIZES = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name twice in one object")
    return result


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def json_of(content: bytes) -> Any:
    """Parses JSON as RFC 8259 says, and refuses objects that contain a name twice."""
    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def safetensors_of(content: bytes) -> dict[str, np.ndarray]:
    """Reads a safetensors file (https://github.com/huggingface/safetensors, section "Format"). float32 tensors become arrays, others bytes."""
    if len(content) < 8:
        raise ValueError("shorter than the length of its header")
    (length,) = struct.unpack("<Q", content[:8])
    if length > 100_000_000 or length > len(content) - 8:
        raise ValueError("the header is longer than the file")
    text, data = content[8 : 8 + length], content[8 + length :]
    if not text.startswith(b"{"):
        raise ValueError("the header does not begin with {")
    header = json_of(text)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("__metadata__ is no object of texts")
    result, ranges = {}, []
    for name, entry in header.items():
        if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= set(entry):
            raise ValueError(f"{name} lacks an entry")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        whole = lambda x: isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 1 << 64  # noqa: E731
        if dtype not in _SIZES or not isinstance(shape, list) or not all(map(whole, shape)) or not isinstance(offsets, list) or len(offsets) != 2 or not all(map(whole, offsets)):
            raise ValueError(f"{name}: an entry has another type")
        count = 1
        for extent in shape:
            count *= extent
        first, last = offsets
        if last - first != count * _SIZES[dtype] or last > len(data):
            raise ValueError(f"{name}: its bytes do not fit its shape or the file")
        ranges.append((first, last))
        piece = data[first:last]
        result[name] = np.frombuffer(piece, "<f4").reshape(shape) if dtype == "F32" else np.frombuffer(piece, np.uint8)
    at = 0
    for first, last in sorted(ranges):
        if first != at:
            raise ValueError("a hole, or two tensors in the same bytes")
        at = last
    if at != len(data):
        raise ValueError("bytes after the last tensor")
    return result
