"""Encoders of a few kilobytes with fixed parameters and a tokenizer of each kind that a live page reads."""
import base64
import json
import math
import pathlib
import re
import shutil
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "cli"))
import tiny_model  # noqa: E402
from tensor_files import save_safetensors  # noqa: E402

SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]


def byte_characters():
    """Returns the printable character by which GPT-2 stands for each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(256, 512))
    return [chr(byte if byte in plain else next(others)) for byte in range(256)]


def added(special):
    return [{"id": at, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for at, content in enumerate(special)]


def byte_pairs():
    """Returns a tokenizer.json like RoBERTa's (byte-level BPE, GPT-2's pattern), and the number of its tokens."""
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "a"), ("o", "n"), ("Ġ", "d"), ("Ġd", "o"), ("'", "t")]
    pieces = SPECIAL + byte_characters() + ["".join(pair) for pair in merges]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added(SPECIAL), "normalizer": None,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
            "post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 0], "trim_offsets": True, "add_prefix_space": False},
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "", "fuse_unk": False, "byte_fallback": False,
                      "vocab": {piece: at for at, piece in enumerate(pieces)}, "merges": [" ".join(pair) for pair in merges]}}, len(pieces)


def unigram():
    """Returns a tokenizer.json like sentencepiece's (NFKC, one space for each run of spaces, pieces with log-probabilities), and the number of its tokens."""
    letters = "abcdefghijklmnopqrstuvwxyz.,!'23中文éßa½"
    pieces = [[piece, 0.0] for piece in SPECIAL] + [["▁", -2.0], ["▁the", -2.5], ["▁a", -2.7]] + [[letter, -3 - 0.01 * at] for at, letter in enumerate(dict.fromkeys(letters))]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added(SPECIAL),
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Replace", "pattern": {"String": "``"}, "content": "\""}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}]},
            "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}, "post_processor": None, "decoder": None,
            "model": {"type": "Unigram", "unk_id": 3, "vocab": pieces, "byte_fallback": False}}, len(pieces)


def write(folder, tokenizer=None):
    """Writes a model into a folder, and returns the folder. tokenizer: byte_pairs or unigram; None: WordPiece with vocab.txt."""
    folder = pathlib.Path(folder)
    if tokenizer is None:
        return tiny_model.write(folder)
    tiny_model.write(folder)
    (folder / "vocab.txt").unlink()
    described, size = tokenizer()
    (folder / "tokenizer.json").write_text(json.dumps(described), encoding="utf-8")
    (folder / "config.json").write_text(json.dumps({**tiny_model.CONFIG, "vocab_size": size}))
    shape = (size, tiny_model.WIDTH)
    save_safetensors(folder / "model.safetensors", {**tiny_model.tensors(), "embeddings.word_embeddings.weight": ("F32", shape, tiny_model.values(math.prod(shape), 77))})
    return folder


def unpack(page, folder):
    """Writes the files of the model that a live page carries, laid out as apps/polyhead/page_files.h says."""
    packed = base64.b64decode(re.search(r'id="files">([^<]*)<', pathlib.Path(page).read_text(encoding="utf-8"))[1])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    at = 0
    while at < len(packed):
        name_bytes, file_bytes = struct.unpack_from("<II", packed, at)
        name = packed[at + 8:at + 8 + name_bytes].decode()
        at = -(-(at + 8 + name_bytes) // 64) * 64
        (folder / name).write_bytes(packed[at:at + file_bytes])
        at = -(-(at + file_bytes) // 4) * 4
    return folder
