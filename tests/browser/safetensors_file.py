"""Reads one float32 tensor of a safetensors file, with Python's standard library only."""
import array
import json
import struct
import sys


def read_float32(path, name):
    """Returns (values in row-major order, shape)."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        if name not in header:
            raise SystemExit(f"{path} has no tensor {name!r}; it holds {', '.join(key for key in header if key != '__metadata__')}")
        entry = header[name]
        if entry["dtype"] != "F32":
            raise SystemExit(f"{path}: {name} is {entry['dtype']}; F32 is needed")
        begin, end = entry["data_offsets"]
        file.seek(8 + length + begin)
        values = array.array("f", file.read(end - begin))
    if sys.byteorder == "big":
        values.byteswap()
    return values, entry["shape"]
