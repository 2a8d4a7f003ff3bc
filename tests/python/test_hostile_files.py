"""For a damaged file, polyhead.load must raise ValueError with the file's name, whether or not the damage was intended to do harm."""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import polyhead

LAYER = polyhead.MultiHeadAttention(8, heads=2, seed=1)
FILES = 800


def npy(
    descr: str = "'<f4'", shape: str = "(2,)", data: bytes = bytes(8), version: tuple[int, int] = (1, 0), header: str | None = None
) -> bytes:
    text = (f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}" if header is None else header).encode("latin1")
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + bytes(version) + struct.pack("<H" if version == (1, 0) else "<I", len(text)) + text + data


def npz(*members: bytes, compression: int = zipfile.ZIP_STORED, name: str = "a") -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for i, member in enumerate(members):
            archive.writestr(f"{name}{i}.npy", member)
    return buffer.getvalue()


def patched(content: bytes, signature: bytes, offset: int, new: bytes) -> bytes:
    at = content.rindex(signature) + offset
    return content[:at] + new + content[at + len(new) :]


def safetensors(header: str, length: int | None = None, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header.encode() + data


DIRECTORY = b"PK\1\2"  # start of an entry in a zip file's directory; it has flags at byte 8, sizes at 20 and 24, and the offset of the member at 42
TWO = npz(npy(), npy())

HOSTILE: dict[str, tuple[bytes, str]] = {
    "open brackets.npz": (npz(npy(header="(" * 4000)), "header of the array 'a0'"),
    "many signs.npz": (npz(npy(header="-" * 4000 + "1")), "header of the array 'a0'"),
    "an open string.npz": (npz(npy(header="'''")), "header of the array 'a0'"),
    "no dictionary.npz": (npz(npy(header="[1, 2]")), "header of the array 'a0'"),
    "an unknown dtype.npz": (npz(npy(descr="'|V99999999999'")), "header of the array 'a0'"),
    "4 TB.npz": (npz(npy(shape="(1099511627776,)")), r"\(1099511627776,\) of float32, which needs 4398046511104 bytes; the file has 8 bytes"),
    "more than 64 bits.npz": (npz(npy(shape=f"({10**30},)")), "the file has 8 bytes"),
    "a product that wraps.npz": (npz(npy(shape="(4294967296, 4294967296, 4294967296)", data=b"")), "the file has 0 bytes"),
    "a negative extent.npz": (npz(npy(shape="(-2,)")), r"the shape \(-2,\)"),
    "a boolean extent.npz": (npz(npy(shape="(True,)")), r"the shape \(True,\)"),
    "100 dimensions.npz": (npz(npy(shape="(" + "1," * 100 + ")", data=bytes(4))), "dimension"),
    "40 dimensions.npz": (npz(npy(shape="(" + "1," * 40 + ")", data=bytes(4))), "dimension"),
    "a pickle.npz": (npz(npy(descr="'|O'")), "dtype object"),
    "complex numbers.npz": (npz(npy(descr="'<c8'", shape="(1,)")), "dtype complex64"),
    "big-endian numbers.npz": (npz(npy(descr="'>f4'")), "dtype >f4"),
    "text.npz": (npz(npy(descr="'<U1'")), "dtype <U1"),
    "records.npz": (npz(npy(descr="[('x', '<f4')]")), "dtype"),
    "version 9.npz": (npz(npy(version=(9, 0))), r"version \(9, 0\)"),
    "too short.npz": (npz(npy(data=bytes(7))), "8 bytes; the file has 7 bytes"),
    "too long.npz": (npz(npy(data=bytes(9))), "8 bytes; the file has 9 bytes"),
    "lzma.npz": (npz(npy(shape="(1000000,)", data=bytes(4000000)), compression=zipfile.ZIP_LZMA), "compression 14"),
    "no zip file.npz": (b"hello", "zip"),
    "nothing.npz": (b"", "zip"),
    "one array.npz": (npy(), "zip"),
    "encrypted.npz": (patched(TWO, DIRECTORY, 8, b"\1\0"), "encrypted"),
    "another place.npz": (patched(TWO, DIRECTORY, 42, b"\xff\xff\xff\x7f"), "no npz file"),
    "4 GB stored.npz": (patched(TWO, DIRECTORY, 20, b"\xf0\xff\xff\xff" * 2), "claims 4294967280 bytes, more than the file has left"),
    "4 GB unpacked.npz": (patched(npz(npy(), compression=zipfile.ZIP_DEFLATED), DIRECTORY, 24, b"\xf0\xff\xff\xff"), "claims 4294967280 bytes; its"),
    "another sum.npz": (TWO.replace(bytes(8), bytes(7) + b"\1", 1), "CRC"),
    "twice one name.npz": (npz(npy(), npy()).replace(b"a1.npy", b"a0.npy"), "two members 'a0'"),
    "nothing.safetensors": (b"", "0 bytes"),
    "a long header.safetensors": (safetensors("{}", 1 << 60), "1152921504606846976 bytes"),
    "open brackets.safetensors": (safetensors('{"a":' + "[" * 200000), "header"),
    "no object.safetensors": (safetensors("null"), "JSON object"),
    "16 TB.safetensors": (safetensors('{"a":{"dtype":"F32","shape":[4398046511104],"data_offsets":[0,17592186044416]}}'), "has 0 bytes of data"),
    "a product that wraps.safetensors": (safetensors('{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}}'), "more than 2"),
    "no format": (b"abc", "in none of the formats"),
    "an array.npy": (npy(), "no attention layer"),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_a_value_error_with_its_name(name: str, tmp_path: Path) -> None:
    content, message = HOSTILE[name]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        polyhead.load(path, heads=2)
    assert type(caught.value) is ValueError and str(path) in str(caught.value)


CONFIGURATIONS = {
    "open brackets": "[" * 100000,
    "negative": '{"num_heads": -4}',
    "too many": '{"num_heads": 1' + "0" * 30 + "}",
    "5000 digits": '{"n_head": 1' + "0" * 5000 + "}",
    "no integer": '{"n_head": 2.5}',
    "no object": "[]",
    "no JSON": "\0",
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_hostile_configuration_does_not_say_how_many_heads(name: str, tmp_path: Path) -> None:
    polyhead.save(LAYER, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(CONFIGURATIONS[name])
    with pytest.raises(ValueError, match="does not say how many heads.*give heads=") as caught:
        polyhead.load(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert polyhead.load(tmp_path, heads=2).config["heads"] == 2


def mutated(content: bytes, rng: random.Random) -> bytes:
    """Returns the content with one to four changes, most of them near the beginning or the end, where headers and directories are."""
    result = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 4])):
        if not result:
            break
        last = len(result) - 1
        at = rng.choice([rng.randrange(last + 1), rng.randrange(min(last + 1, 200)), last - rng.randrange(min(last + 1, 400))])
        change = rng.randrange(6)
        if change == 0:
            result[at] ^= 1 << rng.randrange(8)
        elif change == 1:
            result[at] = rng.randrange(256)
        elif change == 2:
            del result[at : at + rng.choice([1, 8, 100])]
        elif change == 3:
            result[at:at] = bytes([result[at]]) * rng.choice([1, 50, 3000])
        elif change == 4:
            result[at : at + 8] = rng.choice([b"\xff" * 8, bytes(8), b"\0\0\0\x80" * 2, struct.pack("<Q", 1 << 42)])
        else:
            del result[at:]
    return bytes(result)


def test_mutated_files_are_layers_or_value_errors_with_their_names(tmp_path: Path, summary: list[str]) -> None:
    rng = random.Random(7)
    state = LAYER.state()
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **state)
    polyhead.save(LAYER, tmp_path / "whole.npz")
    polyhead.save(LAYER, tmp_path / "whole.safetensors")
    index = json.dumps({"metadata": {}, "weight_map": {name: "model-00001-of-00001.safetensors" for name in state}}).encode()
    polyhead.save(LAYER, tmp_path / "model-00001-of-00001.safetensors")
    whole = {
        "stored.npz": (tmp_path / "whole.npz").read_bytes(),
        "deflated.npz": buffer.getvalue(),
        "file.safetensors": (tmp_path / "whole.safetensors").read_bytes(),
        "model.safetensors.index.json": index,
    }
    for name, content in whole.items():
        (tmp_path / name).write_bytes(content)
        assert polyhead.load(tmp_path / name, heads=2).config["heads"] == 2
    results: Counter[str] = Counter()
    for i in range(FILES):
        name = rng.choice(list(whole))
        path = tmp_path / name
        path.write_bytes(mutated(whole[name], rng))
        try:
            polyhead.load(path, heads=2)
            results["loaded"] += 1
        except ValueError as error:
            assert type(error) is ValueError and str(tmp_path) in str(error), f"file {i}, {name}: {error}"
            results["refused"] += 1
        except OSError as error:  # an index may name a file that does not exist
            assert name.endswith(".json") and str(tmp_path) in str(error), f"file {i}, {name}: {error}"
            results["names a file that is not there"] += 1
    summary.append(f"load: {FILES} mutated files: {', '.join(f'{count} {what}' for what, count in results.items())}")
    assert results["refused"] > FILES // 2
