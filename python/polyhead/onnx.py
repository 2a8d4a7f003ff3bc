"""Changes ONNX models so that polyhead computes their attention in ONNX Runtime. This needs the package onnx, and the library that the CMake option
POLYHEAD_BUILD_ONNXRUNTIME builds.

::

    result = polyhead.onnx.replace_attention(onnx.load("model.onnx"))
    print(result.replaced, result.kept)
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library("/usr/local/lib/libpolyhead_onnxruntime.so")
    session = onnxruntime.InferenceSession(result.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["Replacement", "replace_attention"]

_SERVED = {"is_causal", "kv_num_heads", "left_window_size", "q_num_heads", "qk_matmul_output_mode", "right_window_size", "scale", "softcap", "softmax_precision"}
_DOUBLE = 11  # TensorProto.DOUBLE
# For each input of MultiHeadAttention, the place of this input in Attention. None: Attention has no such input.
_INPUTS = {"query": 0, "key": 1, "value": 2, "bias": None, "key_padding_mask": None, "attention_bias": 3, "past_key": 4, "past_value": 5, "past_sequence_length": None, "cache_indirection": None}


class Replacement(NamedTuple):
    """The result of `replace_attention`."""

    model: Any
    """The changed copy of the model, an onnx.ModelProto."""
    replaced: list[str]
    """The nodes that polyhead computes. A node without a name is listed by the name of its first output."""
    kept: dict[str, str]
    """The attention nodes that stay as they are, and why. The name of a node inside a function starts with the function's name: "block/attention"."""


def replace_attention(model: Any) -> Replacement:
    """Replaces the attention nodes of an ONNX model by polyhead's operator (in the domain ``polyhead``), which computes the same values.

    The function replaces nodes `Attention` of ONNX (opsets 23 to 25) and nodes `MultiHeadAttention` of the domain ``com.microsoft``, also inside of subgraphs
    and functions. The output of a query without keys is 0, as in ONNX Runtime 1.32. There is one difference: ONNX Runtime's MultiHeadAttention gives NaN for a
    query whose bias is -inf for all keys.

    Args:
        model: an onnx.ModelProto; it is not changed.

    Returns:
        A changed copy, with lists of the replaced nodes and of the nodes that stay. A node stays if it has an output of scores, a softmax in float64, a
        negative softcap, a bias of the projections, a key padding mask, keys that are packed together with queries or values, or an attribute that polyhead's
        operator does not have. The other attention operators of ``com.microsoft`` always stay.

    Raises:
        TypeError: model is not an onnx.ModelProto.
    """
    import onnx

    if not isinstance(model, onnx.ModelProto):
        raise TypeError(f"replace_attention: model is {type(model).__name__}; it must be an onnx.ModelProto, as onnx.load returns")
    result = Replacement(onnx.ModelProto(), [], {})
    result.model.CopyFrom(model)
    for owner, nodes in [(result.model, result.model.graph.node), *((function, function.node) for function in result.model.functions)]:
        before = len(result.replaced)
        for node in _all_nodes(nodes):
            standard = node.domain in ("", "ai.onnx") and node.op_type == "Attention"
            if not standard and not (node.domain == "com.microsoft" and "Attention" in node.op_type):
                continue
            name = node.name or next((output for output in node.output if output), "without a name")
            if owner is not result.model:
                name = f"{owner.name}/{name}"
            if standard:
                why = _replace(node)
            elif node.op_type == "MultiHeadAttention":
                why = _replace_multi_head(node, onnx.helper.make_attribute)
            else:
                why = f"it is {node.op_type} of com.microsoft"
            if why:
                result.kept[name] = why
            else:
                result.replaced.append(name)
        if len(result.replaced) > before and not any(opset.domain == "polyhead" for opset in owner.opset_import):
            owner.opset_import.append(onnx.helper.make_opsetid("polyhead", 1))
    return result


def _all_nodes(nodes: Any) -> Iterator[Any]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _all_nodes(graph.node)


def _replace(node: Any) -> str | None:
    """Changes the node, or returns why it stays."""
    if len(node.output) > 3 and node.output[3]:
        return "it has the output qk_matmul_output"
    for attribute in node.attribute:
        if attribute.name not in _SERVED:
            return f"it has the attribute {attribute.name}"
        if attribute.name == "softmax_precision" and attribute.ref_attr_name:
            return "its softmax_precision refers to an attribute of the function"
        if attribute.name == "softmax_precision" and attribute.i == _DOUBLE:
            return "its softmax_precision is DOUBLE"
        if attribute.name == "softcap" and attribute.f < 0:
            return f"its softcap is {attribute.f:g}"
    del node.output[3:]
    node.domain = "polyhead"
    return None


def _replace_multi_head(node: Any, make: Any) -> str | None:
    if len(node.output) > 3 and node.output[3]:
        return "it has the output qk"
    attributes = {attribute.name: attribute for attribute in node.attribute}
    inputs = dict(zip(_INPUTS, node.input))
    for name, place in _INPUTS.items():
        if place is None and inputs.get(name):
            return f"it has the input {name}"
    if not (inputs.get("key") and inputs.get("value")):
        return "its keys and values are packed into the query or the key"
    unknown = sorted(attributes.keys() - {"num_heads", "scale", "unidirectional", "mask_filter_value"})  # mask_filter_value: the score of masked keys
    if unknown:
        return f"it has the attribute {unknown[0]}"
    for name, attribute in attributes.items():
        if attribute.ref_attr_name:
            return f"its {name} refers to an attribute of the function"  # so the value is known only where the function is called
    if "num_heads" not in attributes:
        return "it has no num_heads"
    if "unidirectional" in attributes and attributes["unidirectional"].i:
        return "it is unidirectional"
    heads, scale = attributes["num_heads"].i, attributes["scale"].f if "scale" in attributes else 0.0
    given = [""] * 6
    for name, place in _INPUTS.items():
        if place is not None:
            given[place] = inputs.get(name, "")
    while not given[-1]:
        given.pop()
    del node.input[:], node.attribute[:], node.output[3:]
    node.input.extend(given)
    node.attribute.extend([make("q_num_heads", heads), make("kv_num_heads", heads), *([make("scale", scale)] if scale else [])])  # a scale of 0 is 1/sqrt(width)
    node.domain, node.op_type = "polyhead", "Attention"
    return None
