"""Reads and writes safetensors files, and reads npz files, with Python's standard library only."""
import ast
import base64
import json
import struct
import zipfile
from array import array
from math import prod

CODES = {"F32": "f", "F64": "d", "BF16": "H", "I64": "q", "I32": "i", "U8": "B", "BOOL": "B"}


def flat(nested):
    """Returns the numbers of nested lists in one list."""
    return [x for item in nested for x in flat(item)] if isinstance(nested, list) else [nested]


def floats_of(text):
    """Decodes float32 numbers in base64, the form in which pages have them."""
    return array("f", base64.b64decode(text))


def save_safetensors(path, tensors, metadata=None):
    """Writes a file. `tensors` is {name: (dtype, shape, flat list)}; elements of BF16 are their bits."""
    header, body = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, values) in tensors.items():
        data = array(CODES[dtype], values).tobytes()
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def load_safetensors(path):
    """Returns {name: (shape, values)}, and the metadata under the name '__metadata__'."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    result = {"__metadata__": header.pop("__metadata__", {})}
    for name, entry in header.items():
        first, last = entry["data_offsets"]
        values = array(CODES[entry["dtype"]])
        values.frombytes(data[8 + length + first:8 + length + last])
        assert len(values) == prod(entry["shape"])
        result[name] = (tuple(entry["shape"]), values)
    return result


def adapted(path, folder):
    """Copies a golden vector and changes it to the form that the program reads. The tensor `weights` becomes `attention_weights`. A layer's mask [*,T,S] and bias, which has
    only the first of the dimensions *, get all dimensions of [*,N,T,S]."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + length])
    if "weights" in header:
        header["attention_weights"] = header.pop("weights")
    if "query" in header and not path.stem.startswith("torch"):
        rank = len(header["query"]["shape"]) + 1
        for name, last in (("block", 2), ("bias", 3), ("d_bias", 3)):
            shape = header.get(name, {}).get("shape", [])
            if 2 < len(shape) < rank:
                header[name]["shape"] = shape[:-last] + [1] * (rank - len(shape)) + shape[-last:]
    text = json.dumps(header).encode()
    copy = folder / path.name
    copy.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length:])
    return copy


def load_npz(path):
    codes = {"<f4": "f", "<f8": "d", "<i8": "q", "<i4": "i", "|b1": "B"}
    result = {}
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        for name in archive.namelist():
            data = archive.read(name)
            assert data[:6] == b"\x93NUMPY" and data[6] == 1
            (length,) = struct.unpack("<H", data[8:10])
            header = ast.literal_eval(data[10:10 + length].decode())
            assert not header["fortran_order"]
            values = array(codes[header["descr"]])
            values.frombytes(data[10 + length:])
            result[name.removesuffix(".npy")] = (header["shape"], values)
    return result
