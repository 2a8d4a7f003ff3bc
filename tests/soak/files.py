"""Worker of scripts/soak: damages files and opens them with polyhead. polyhead must refuse a file with a ValueError that names the file, or accept the file if a strict
reader accepts it, and then read the same contents.

    files.py FIRST_SEED SECONDS [PROGRAM]   events as attention.py; PROGRAM is polyhead_encode_texts, which compares tokenizers
    files.py --seed SEED [PROGRAM]          runs only this seed, and keeps its files below the folder soak_files
"""

from __future__ import annotations

import io
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polyhead
import strict

TEXTS = ["The quick brown fox, 12 of 34!", "naïve café — Straße\n\t東京 👩\u200d👧", "", "aaaa bbbb it's <mask> [SEP] </s>"]


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Returns the content with one to four changes, most of them near the beginning or the end, where headers and directories are."""
    result = bytearray(content)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        if not result:
            break
        last = len(result) - 1
        at = rng.choice([rng.randrange(last + 1), rng.randrange(min(last + 1, 200)), rng.randrange(min(last + 1, 1500)), last - rng.randrange(min(last + 1, 400))])
        change = rng.randrange(9)
        if change == 0:
            result[at] ^= 1 << rng.randrange(8)
        elif change == 1:
            result[at] = rng.randrange(256)
        elif change == 2:
            del result[at : at + rng.choice([1, 1, 8, 100])]
        elif change == 3:
            result[at:at] = bytes([result[at]]) * rng.choice([1, 1, 50, 3000])
        elif change == 4:
            result[at : at + 8] = rng.choice([b"\xff" * 8, bytes(8), b"\0\0\0\x80" * 2, (1 << 42).to_bytes(8, "little")])
        elif change == 5:
            del result[at:]
        elif change == 6:  # change a digit of a size or an offset
            digits = [i for i in range(min(len(result), 4000)) if 0x30 <= result[i] <= 0x39]
            if digits:
                result[rng.choice(digits)] = rng.choice(b"0123456789-.e")
        elif change == 7:
            result += bytes(rng.choice([1, 8, 4096]))
        else:
            other = rng.randrange(last + 1)
            result[at : at + 4] = result[other : other + 4]
    return bytes(result)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    result = [at] if at else []
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value[:40]) if isinstance(value, list) else ():
        result += places(inner, (*at, key))
    return result


def changed_json(value: Any, rng: random.Random) -> Any:
    """Returns the JSON value with one or two changes of its meaning."""
    value = json.loads(json.dumps(value))
    for _ in range(rng.choice([1, 1, 2])):
        where = places(value)
        if not where:
            break
        # Most values are in long lists and vocabularies, so every second time a value near the root is chosen.
        place = rng.choice(where) if rng.random() < 0.5 else min(rng.sample(where, min(len(where), 12)), key=len)
        holder = value
        for key in place[:-1]:
            holder = holder[key]
        old = holder[place[-1]]
        change = rng.randrange(5)
        if change == 0:
            del holder[place[-1]]
        elif change == 1 and isinstance(old, bool):
            holder[place[-1]] = not old
        elif change <= 2 and isinstance(old, int):
            holder[place[-1]] = rng.choice([0, 1, -1, old + 1, old - 1, 2 * old, 2**31, 2**32 + old, 2**63, 10**30, float(old), str(old)])
        else:
            holder[place[-1]] = rng.choice([None, True, False, 0, 1, -1, 0.5, 1e308, "", "x", [], {}, [old], {"type": old}, old, "\ud800", "Sequence", 10**9])
    return value


class Files:
    """Makes the undamaged files once, and damages copies of them."""

    def __init__(self, folder: Path, program: str | None) -> None:
        self.folder, self.program = folder, program
        self.kinds: dict[str, Callable[[random.Random], str | None]] = {"safetensors": self.safetensors, "npz": self.npz, "npy": self.npy, "config": self.config}
        layer = polyhead.MultiHeadAttention(8, heads=2, seed=1)
        polyhead.save(layer, folder / "whole.safetensors")
        self.whole = (folder / "whole.safetensors").read_bytes()
        polyhead.save(layer, folder / "whole.npz")
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **layer.state())
        self.archives = [(folder / "whole.npz").read_bytes(), buffer.getvalue()]
        self.model = folder / "model"
        self.make_model()
        if program is not None:
            self.kinds["tokenizer"] = self.tokenizer
            self.make_tokenizers()

    def make_model(self) -> None:
        """Writes a BERT model of some kilobytes."""
        width, hidden, words = 8, 16, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fox", "##s"]
        self.config_of_model = {"model_type": "bert", "architectures": ["BertModel"], "hidden_act": "gelu", "hidden_size": width, "intermediate_size": hidden, "max_position_embeddings": 64, "num_attention_heads": 2,
                                "num_hidden_layers": 1, "type_vocab_size": 2, "vocab_size": len(words), "layer_norm_eps": 1e-12, "position_embedding_type": "absolute", "pad_token_id": 0, "hidden_dropout_prob": 0.1}  # fmt: skip
        shapes: dict[str, tuple[int, ...]] = {"embeddings.word_embeddings.weight": (len(words), width), "embeddings.position_embeddings.weight": (64, width), "embeddings.token_type_embeddings.weight": (2, width)}
        at = "encoder.layer.0."
        for name, out, inner in (*((f"attention.self.{name}", width, width) for name in ("query", "key", "value")), ("attention.output.dense", width, width), ("intermediate.dense", hidden, width), ("output.dense", width, hidden)):
            shapes |= {f"{at}{name}.weight": (out, inner), f"{at}{name}.bias": (out,)}
        for name in ("embeddings.LayerNorm", f"{at}attention.output.LayerNorm", f"{at}output.LayerNorm"):
            shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
        rng = np.random.default_rng(1)
        header, data = {}, b""
        for name, shape in shapes.items():
            piece = rng.standard_normal(shape).astype("<f4").tobytes()
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(piece)]}
            data += piece
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        self.model.mkdir()
        (self.model / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
        (self.model / "vocab.txt").write_text("\n".join(words) + "\n")

    def make_tokenizers(self) -> None:
        sys.path.insert(0, str(Path(__file__).parents[1] / "python"))
        import sample_tokenizers
        import tokenizers

        self.from_text = tokenizers.Tokenizer.from_str
        names = ("bert_uncased", "gpt2", "roberta", "llama3", "qwen2", "clip")
        self.tokenizers = {name: json.loads(getattr(sample_tokenizers, name)().to_str()) for name in names if hasattr(sample_tokenizers, name)}

    def refused(self, path: Path, call: Callable[[], Any], also: tuple[type[Exception], ...] = ()) -> tuple[Any, str | None]:
        """Calls `call`. Returns (its result, None), or (None, None) if the file was refused properly, or (None, what is wrong with the refusal)."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return call(), None
        except (ValueError, *also) as error:
            if not any(name in str(error) for name in (str(self.folder), "config.json", "model.safetensors")):
                return None, f"{path.name}: the message does not name the file: {type(error).__name__}: {error}"
            return None, None

    def safetensors(self, rng: random.Random) -> str | None:
        path = self.folder / "file.safetensors"
        content = damaged(self.whole, rng)
        path.write_bytes(content)
        layer, wrong = self.refused(path, lambda: polyhead.load(path, heads=2))
        if layer is None:
            return wrong
        try:
            tensors = strict.safetensors_of(content)
        except ValueError as error:
            return f"file.safetensors was accepted; a strict reader says: {error}"
        for name, array in layer.state().items():
            if name not in tensors or not np.array_equal(array.view(np.uint32), tensors[name].view(np.uint32)):
                return f"file.safetensors: {name} is not what the file has"
        return None

    def npz(self, rng: random.Random) -> str | None:
        path = self.folder / "file.npz"
        path.write_bytes(damaged(rng.choice(self.archives), rng))
        layer, wrong = self.refused(path, lambda: polyhead.load(path, heads=2))
        if layer is None:
            return wrong
        with np.load(path, allow_pickle=False) as arrays:
            for name, array in layer.state().items():
                if not np.array_equal(array, arrays[name], equal_nan=True):
                    return f"file.npz: {name} is not what the file has"
        return None

    def npy(self, rng: random.Random) -> str | None:
        path = self.folder / "file.npy"
        array = np.arange(12).astype(rng.choice(["<f4", "<f8", "<i4", "<i8", "|b1", "<f2"])).reshape(rng.choice([(12,), (3, 4), (2, 3, 2), (12, 1)]))
        buffer = io.BytesIO()
        np.save(buffer, np.asfortranarray(array) if rng.random() < 0.2 else array)
        path.write_bytes(damaged(buffer.getvalue(), rng))
        done = subprocess.run([sys.executable, "-m", "polyhead", "inspect", str(path), "--json"], capture_output=True, timeout=120)
        if done.returncode == 1 and path.name.encode() in done.stderr and b"Traceback" not in done.stderr:
            return None
        if done.returncode != 0:
            return f"file.npy: exit code {done.returncode}: {done.stderr[-300:]!r}"
        (told,) = json.loads(done.stdout)["tensors"]
        try:
            with path.open("rb") as file:
                loaded = np.load(file, allow_pickle=False)
                rest = file.read()
        except Exception as error:
            return f"file.npy was accepted as {told}; NumPy says: {error}"
        if rest or tuple(told["shape"]) != loaded.shape or told["dtype"] != str(loaded.dtype):
            return f"file.npy was accepted as {told}; NumPy reads {loaded.dtype} {loaded.shape} and leaves {len(rest)} bytes"
        return None

    def config(self, rng: random.Random) -> str | None:
        path = self.model / "config.json"
        if rng.random() < 0.3:
            content = damaged(json.dumps(self.config_of_model).encode(), rng)
        else:
            content = json.dumps(changed_json(self.config_of_model, rng)).encode("utf-8", "surrogatepass")
        path.write_bytes(content)
        model, wrong = self.refused(path, lambda: polyhead.models.load(self.model), (OSError,))
        if model is None:
            return wrong
        try:
            strict.json_of(content)
        except ValueError as error:
            return f"config.json was accepted; a strict reader says: {error}"
        try:
            hidden = model.run([[2, 5, 6, 3]]).hidden
        except ValueError:
            return None
        return None if hidden.shape == (1, 4, 8) else f"config.json: the result has the shape {hidden.shape}"

    def tokenizer(self, rng: random.Random) -> str | None:
        name = rng.choice(list(self.tokenizers))
        folder = self.folder / "tokenizer"
        folder.mkdir(exist_ok=True)
        if rng.random() < 0.3:
            content = damaged(json.dumps(self.tokenizers[name], ensure_ascii=False).encode(), rng)
        else:
            content = json.dumps(changed_json(self.tokenizers[name], rng)).encode("utf-8", "surrogatepass")
        (folder / "tokenizer.json").write_bytes(content)
        done = subprocess.run([str(self.program), str(folder)], input="".join(json.dumps([text]) + "\n" for text in TEXTS).encode(), capture_output=True, timeout=120)
        if done.returncode == 1 and b"tokenizer" in done.stderr:
            return None
        if done.returncode != 0:
            return f"tokenizer.json of {name}: exit code {done.returncode}: {done.stderr[-300:]!r}"
        ours = [json.loads(line) for line in done.stdout.splitlines()]
        try:
            theirs = self.from_text(content.decode())
        except BaseException:  # PyPI's tokenizers also refuse files that lack a field without a meaning, so a refusal by that package does not prove that a file is wrong
            return None
        for text, line in zip(TEXTS, ours):
            try:
                ids = theirs.encode(text).ids
            except BaseException:
                continue
            if "ids" in line and line["ids"] != ids:
                return f"tokenizer.json of {name}: {text!r} has the ids {line['ids'][:20]}, those of PyPI's tokenizers are {ids[:20]}"
        return None

    def one(self, seed: int) -> tuple[str, str | None]:
        rng = random.Random(seed)
        kind = rng.choice([*self.kinds, "safetensors", "config"])
        try:
            return kind, self.kinds[kind](rng)
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            return kind, f"{kind}: {type(error).__name__}: {error} ({at.name}, line {at.lineno})"


def main() -> None:
    def tell(**event: Any) -> None:
        print(json.dumps(event), flush=True)

    program = sys.argv[3] if len(sys.argv) > 3 else None
    if sys.argv[1] == "--seed":
        shutil.rmtree("soak_files", ignore_errors=True)
        Path("soak_files").mkdir()
        print(Files(Path("soak_files").absolute(), program).one(int(sys.argv[2])))
        return
    with tempfile.TemporaryDirectory() as folder:
        files = Files(Path(folder), program)
        seed, end = int(sys.argv[1]), time.monotonic() + float(sys.argv[2])
        while time.monotonic() < end:
            tell(start=seed)
            kind, wrong = files.one(seed)
            tell(done=seed, kind=kind)
            if wrong:
                tell(finding=[wrong], seed=seed)
            seed += 1
        tell(end=seed)


if __name__ == "__main__":
    main()
