"""Reads npz files that may be damaged or malicious. The reader never allocates more memory than the file has data for."""

from __future__ import annotations

import errno
import math
import os
import zipfile
from typing import IO, Any

Array = Any

_MOST_RATIO = 1032  # largest compression ratio of deflate: 2 bits can stand for 258 bytes, which are 2064 bits
_MAGIC = b"\x93NUMPY"
_CHUNK = 1 << 18


def read_npz(path: str) -> dict[str, Array]:
    """Reads the arrays of a file, by name. Raises OSError if the file cannot be read, and a ValueError that names the file if the file is not an npz file of
    numbers."""
    with open(path, "rb") as file:
        try:
            return _arrays(file)
        except Exception as error:  # zipfile, zlib and NumPy's parser of headers raise errors of many kinds
            if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # EINVAL: an offset in a damaged file points before its start
                raise
            reason = str(error).split("\n")[0][:200] or type(error).__name__
            raise ValueError(f"'{path}' is no npz file that polyhead can read: {reason}") from error


def _arrays(file: IO[bytes]) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    left = os.fstat(file.fileno()).st_size
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            left -= member.compress_size
            if left < 0:
                raise ValueError(f"the member {name!r} claims {member.compress_size} bytes, more than the file has left")
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise ValueError(f"the member {name!r} has the compression {member.compress_type}; NumPy writes 0 (none) and 8 (deflate)")
            most = member.compress_size * (1 if member.compress_type == zipfile.ZIP_STORED else _MOST_RATIO)
            if member.file_size > most:
                raise ValueError(f"the member {name!r} claims {member.file_size} bytes; its {member.compress_size} stored bytes hold at most {most}")
            with archive.open(member) as stream:
                array = _array(stream, name, member.file_size)
            if array is not None and name in arrays:
                raise ValueError(f"there are two members {name!r}")
            if array is not None:
                arrays[name] = array
    return arrays


def _array(stream: IO[bytes], name: str, size: int) -> Array:
    """Reads the array of a member of `size` bytes; None if the member is not in the format npy."""
    import numpy
    from numpy.lib import format as npy

    if stream.read(len(_MAGIC)) != _MAGIC:
        return None
    version = (*stream.read(2),)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"the array {name!r} is of the npy version {version}; it must be (1, 0) or (2, 0)")
    try:
        shape, by_columns, dtype = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(stream)
    except Exception as error:
        raise ValueError(f"the header of the array {name!r} is damaged ({type(error).__name__})") from error
    if dtype.kind not in "fiub" or not dtype.isnative or not 1 <= dtype.itemsize <= 8:
        raise ValueError(f"the array {name!r} has dtype {str(dtype)[:100]}; polyhead reads floating-point numbers, integers and bool of at most 8 bytes, in native byte order")
    if any(type(extent) is not int or extent < 0 for extent in shape):
        raise ValueError(f"the array {name!r} has the shape {str(shape)[:100]}; extents must be integers of at least 0")
    length, stored = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if length != stored:
        raise ValueError(f"the array {name!r} has the shape {str(shape)[:100]} of {dtype}, which needs {length} bytes; the file has {stored} bytes for it")
    values = numpy.empty(length // dtype.itemsize, dtype)
    memory = values.view(numpy.uint8)
    position = 0
    while chunk := stream.read(_CHUNK):  # read the member to its end, because zipfile compares the checksum only there
        if position + len(chunk) > length:
            raise ValueError(f"the array {name!r} is longer than the {length} bytes of its shape")
        memory[position : position + len(chunk)] = numpy.frombuffer(chunk, numpy.uint8)
        position += len(chunk)
    if position != length:
        raise ValueError(f"the array {name!r} ends after {position} of {length} bytes")
    return values.reshape(shape, order="F" if by_columns else "C")
