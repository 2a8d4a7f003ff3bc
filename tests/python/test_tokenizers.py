"""Compares tokenizers of model folders with PyPI's `tokenizers`: ids, spans, segments and decoded texts of random Unicode texts, for each kind of sample_tokenizers.py.

With POLYHEAD_TEST_EFFORT=quick, some hundred texts of each kind are compared, otherwise POLYHEAD_TOKENIZER_TEXTS (by default 5,000). To compare any number of texts:
    python tests/python/test_tokenizers.py TEXTS [KIND...]
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from effort import QUICK

tokenizers = pytest.importorskip("tokenizers")

from sample_tokenizers import KINDS, WORDS  # noqa: E402

ROOT = Path(__file__).parents[2]
PROGRAM = Path(os.environ.get("POLYHEAD_ENCODE_TEXTS", ROOT / "build/dev/tests/tokenizers/polyhead_encode_texts"))
SEED = int(os.environ.get("POLYHEAD_TEST_SEED", "0"))
TEXTS = 300 if QUICK else int(os.environ.get("POLYHEAD_TOKENIZER_TEXTS", "5000"))

needs_program = pytest.mark.skipif(not PROGRAM.exists(), reason="polyhead_encode_texts has not been built")

BLOCKS = [(0x20, 0x7F), (0x20, 0x7F), (0, 0x20), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x590), (0x590, 0x900), (0x900, 0xE80), (0xE80, 0x1200), (0x1100, 0x1200), (0x1780, 0x2000)]
BLOCKS += [(0x2000, 0x2070), (0x20A0, 0x2C00), (0x3000, 0x3400), (0x4E00, 0x4F00), (0xA640, 0xAC00), (0xAC00, 0xAD00), (0xFB00, 0x10000), (0x10000, 0x11000), (0x11000, 0x11FFF)]
BLOCKS += [(0x1D100, 0x1D7FF), (0x1E000, 0x1EFFF), (0x1F1E6, 0x1F200), (0x1F300, 0x1FAFF), (0x20000, 0x20100), (0x2EBF0, 0x2EC00), (0xE0000, 0xE01F0), (0, 0x30000), (0, 0x110000)]
PIECES = ["  ", " ", "\n", "\r\n", "\t", "▁", "Ġ", "'s", "'LL", "don't", " 's", "123", "3.5", "a\u0301", "e\u0308\u0323", "ſ", "İ", "ß", "ﬁ", "ΣΑΣ", "क्ष", "각", "\u1100\u1161\u11a8", "\uc694\u11a7", "\uc694\u11a8", "👩\u200d👧", "🇩🇪"]
PIECES += ["©\u200d©", "x\u0301", "\u0600x", "\u00a0", "\u200b", "\u200d", "\u3000", "\ufeff", "\ufffd", "\0", "\x85", "½", "ⅷ", "<0x0A>", "<s>", "</s>", "<unk>", "[UNK]", "[MASK]", "<mask>", " <mask> "]
PIECES += ["<|endoftext|>", "<|begin_of_text|>", "<|im_start|>", "<extra_id_1>", "<tool_call>", "straße", "Straße", "[X] y", "[X]  ", " y", "both", "word", "Word", "one", "ÜNÏTED", "abcab", "  abc", "\ufb01", "\u0915\u094d\u0937\u0301"]


def random_text(rng: random.Random) -> str:
    kind = rng.random()
    length = rng.randint(0, 12) if kind < 0.9 else rng.randint(12, 60)
    parts: list[str] = []
    block = rng.choice(BLOCKS)
    for _ in range(length):
        draw = rng.random()
        if draw < 0.45:
            parts.append(rng.choice(WORDS) if rng.random() < 0.8 else rng.choice(WORDS).upper())
            if rng.random() < 0.8:
                parts.append(" ")
        elif draw < 0.65:
            parts.append(rng.choice(PIECES))
        else:
            if rng.random() < 0.3:
                block = rng.choice(BLOCKS)
            parts += [chr(rng.randrange(*block)) for _ in range(rng.randint(1, 4))]
    return "".join(part for part in parts if not any(0xD800 <= ord(c) < 0xE000 for c in part))


def texts_of(count: int, seed: int) -> list[list[str]]:
    rng = random.Random(seed)
    return [[random_text(rng) for _ in range(2 if rng.random() < 0.1 else 1)] for _ in range(count)]


def theirs(tokenizer: Any, texts: list[str]) -> dict[str, Any]:
    encoding = tokenizer.encode(*texts)
    places = [[0], [0]]
    for text, place in zip(texts, places):
        for character in text:
            place.append(place[-1] + len(character.encode()))
    spans = []
    for (first, last), text in zip(encoding.offsets, encoding.sequence_ids):
        spans.append([0, 0] if text is None else [places[text][first], places[text][last]])
    return {
        "ids": encoding.ids,
        "spans": spans,
        "segments": encoding.type_ids,
        "special": [bool(mask) for mask in encoding.special_tokens_mask],
        "decoded": tokenizer.decode(encoding.ids) if encoding.ids else "",
        "decoded_all": tokenizer.decode(encoding.ids, skip_special_tokens=False) if encoding.ids else "",
    }


def ours(folder: Path, texts: list[list[str]]) -> Iterator[dict[str, Any]]:
    lines = "".join(json.dumps(pair, ensure_ascii=False) + "\n" for pair in texts)
    done = subprocess.run([PROGRAM, folder], input=lines.encode(), capture_output=True, timeout=3600)
    assert done.returncode == 0, done.stderr.decode()
    for line in done.stdout.splitlines():
        yield json.loads(line)


def differences(kind: str, count: int, seed: int) -> list[str]:
    tokenizer = KINDS[kind]()
    texts = texts_of(count, seed)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(str(Path(folder) / "tokenizer.json"))
        results = list(ours(Path(folder), texts))
    assert len(results) == count
    for number, (pair, result) in enumerate(zip(texts, results)):
        try:
            expected = theirs(tokenizer, pair)
        except BaseException as error:  # noqa: BLE001  # a panic of Rust is no Exception
            expected = {"error": str(error)}
        for name, value in expected.items():
            if name in result and name == "error":
                continue
            if result.get(name) != value:
                found.append(f"{kind}, seed {seed}, text {number} {ascii(pair)}: {name}\n  theirs {ascii(value)}\n  ours   {ascii(result.get(name, result))}")
                break
    return found


@needs_program
@pytest.mark.parametrize("kind", KINDS)
def test_random_texts_give_the_ids_spans_and_decoded_texts_of_tokenizers(kind: str) -> None:
    found = differences(kind, TEXTS, SEED)
    assert not found, f"{len(found)} of {TEXTS} differ\n" + "\n".join(found[:5])


def of_every_character(normalizer: Any) -> list[str]:
    """Normalises texts with every character, and returns those whose normalised bytes or spans differ from those of `tokenizers`."""
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={character: number for number, character in enumerate(sorted(alphabet))}, merges=[]))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    # All code points that are assigned or may be assigned soon, but of the CJK ideographs, Hangul syllables and other unassigned codes only every 97th.
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000 and (code < 0x3400 or 0xA000 <= code < 0xAC00 or 0xF900 <= code < 0x20000 or 0xE0000 <= code < 0xE0200 or code % 97 == 0)]
    texts = [[f"a{chr(code)}\u0301\u0334b"] for code in codes[:: 29 if QUICK else 1]]
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(str(Path(folder) / "tokenizer.json"))
        results = ours(Path(folder), texts)
        return [ascii(text) for text, result in zip(texts, results) if (expected := theirs(tokenizer, text)) and (result["ids"], result["spans"]) != (expected["ids"], expected["spans"])]


@needs_program
@pytest.mark.parametrize("name", ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "BertNormalizer"])
def test_every_character_is_normalised_and_split_as_tokenizers_does(name: str) -> None:
    """Also tests the Unicode classes of letters, numbers and white space, by the pattern of GPT-2's pre-tokeniser."""
    found = of_every_character(getattr(tokenizers.normalizers, name)())
    assert not found, f"{len(found)} characters differ, such as {found[:10]}"


@needs_program
def test_a_folder_that_transformers_saves_opens(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    backend = KINDS["bert_uncased"]()
    fast = transformers.BertTokenizerFast(tokenizer_object=backend) if hasattr(transformers, "BertTokenizerFast") else transformers.PreTrainedTokenizerFast(tokenizer_object=backend)
    fast.save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer.json").exists()
    texts = [["The café is open."], ["It's not", "3.14"]]
    for text, result in zip(texts, ours(tmp_path, texts)):
        assert result["ids"] == fast(*text)["input_ids"], text


BERT, ROBERTA = {"tokenizer_class": "BertTokenizer"}, {"tokenizer_class": "RobertaTokenizer"}
LETTER = {"bos_token": "T"}  # a special token that tokenizer.json has only as an ordinary piece
# (kind of sample_tokenizers.py, model_type of config.json, tokenizer_config.json or None). tokenizer_config.json may contradict tokenizer.json.
CONFIGS: list[tuple[str, str, dict[str, Any] | None]] = [
    *(("bert_cased", "bert", BERT | keys) for keys in ({}, {"do_lower_case": True}, {"do_lower_case": False}, {"do_lower_case": False, "strip_accents": True}, {"do_lower_case": True, "strip_accents": False})),
    *(("bert_cased", "bert", config) for config in (None, {}, {"do_lower_case": True}, BERT | {"do_lower_case": False, "tokenize_chinese_chars": False}, BERT | {"do_lower_case": False, "add_bos_token": True})),
    ("bert_uncased", "bert", {"tokenizer_class": "BertTokenizerFast", "do_lower_case": False}),
    ("bert_cased", "bert", {"tokenizer_class": "PreTrainedTokenizerFast", "do_lower_case": True}),
    ("bert_cased", "modernbert", BERT | {"do_lower_case": True}),
    ("bert_cased", "distilbert", {"tokenizer_class": "DistilBertTokenizer", "do_lower_case": True}),
    ("bert_cased", "electra", {"do_lower_case": True}),
    ("bert_cased", "mpnet", {"do_lower_case": True, "cls_token": "[CLS]", "sep_token": "[SEP]", "bos_token": "[CLS]", "eos_token": "[SEP]", "pad_token": "[PAD]", "mask_token": "[MASK]"}),
    *(("gpt2", "gpt2", {"tokenizer_class": name} | keys) for name in ("GPT2Tokenizer", "GPT2TokenizerFast") for keys in ({}, {"add_prefix_space": True}, {"add_prefix_space": False}, {"add_bos_token": True, "add_eos_token": True}, LETTER, {"added_tokens_decoder": {"9": {"content": "x", "lstrip": True}}})),
    ("gpt2", "gpt_neox", {"tokenizer_class": "GPTNeoXTokenizer", "add_prefix_space": True}),
    *(("roberta", model, config) for model in ("roberta", "bart") for config in (None, ROBERTA, ROBERTA | {"add_prefix_space": True}, ROBERTA | {"add_prefix_space": False, "add_bos_token": False})),
    *(("llama2", "llama", {"tokenizer_class": "LlamaTokenizer"} | keys) for keys in ({}, {"add_prefix_space": True}, {"add_bos_token": False, "add_eos_token": True, "legacy": True}, {"add_prefix_space": None})),
    *(("llama2", "mistral", {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": given}) for given in (True, False)),
    *(("llama3", "llama", {"tokenizer_class": name, "bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"} | keys) for name in ("PreTrainedTokenizerFast", "LlamaTokenizerFast") for keys in ({}, {"add_prefix_space": True, "add_bos_token": True}, {"add_eos_token": True})),
    *(("qwen2", model, {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|endoftext|>", "add_bos_token": False, "add_prefix_space": False, "split_special_tokens": False}) for model in ("qwen2", "qwen3")),
    ("o200k", "gpt_oss", {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "add_prefix_space": True}),
    *(("xlm_roberta", "xlm-roberta", {"tokenizer_class": "XLMRobertaTokenizer"} | keys) for keys in ({}, {"add_prefix_space": True})),
    *(("clip", "clip", {"tokenizer_class": "CLIPTokenizer", "add_prefix_space": given, "do_lower_case": True}) for given in (True, False)),
]  # fmt: skip
# "Theon" has the token "the" only if the token is looked for in normalised text.
THE = {"content": "the", "__type": "AddedToken"}
CONFIGS += [("bert_uncased", "bert", BERT | keys) for keys in (*({"added_tokens_decoder": {"9": {"content": "the"} | flags}} for flags in ({}, {"special": True}, {"normalized": False})),
                                                              {"bos_token": THE}, {"additional_special_tokens": [THE]}, {"additional_special_tokens": ["the"]}, {"extra_special_tokens": {"image_token": THE}}, {"extra_special_tokens": [THE | {"special": True}]})]  # fmt: skip
CONFIGS += [("bert_uncased", "modernbert", {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": {"9": {"content": "the"}, "4": {"content": "[MASK]", "rstrip": True}}})]
CONFIGS += [("roberta", "roberta", ROBERTA | {"added_tokens_decoder": {"4": {"content": "<mask>", "lstrip": True, "special": True}}}), ("xlm_roberta", "xlm-roberta", {"tokenizer_class": "XLMRobertaTokenizer", "cls_token": "<mask>"})]
CONFIGS += [("xlm_roberta", "camembert", {"tokenizer_class": "CamembertTokenizer"})]
CONFIG_TEXTS = ["Theon [MASK] the", "Straße the Ñandú 我们 in  on 12 café", "<s>the</s> x <|endoftext|>The", "", " [SEP] A"]


def folder_of(kind: str, model_type: str, config: dict[str, Any] | None, folder: Path) -> Path:
    KINDS[kind]().save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    if config is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@needs_program
@pytest.mark.parametrize(("kind", "model_type", "config"), CONFIGS)
def test_tokenizer_config_changes_what_it_changes_in_transformers(kind: str, model_type: str, config: dict[str, Any] | None, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    fast = transformers.AutoTokenizer.from_pretrained(folder_of(kind, model_type, config, tmp_path))
    for text, result in zip(CONFIG_TEXTS, ours(tmp_path, [[text] for text in CONFIG_TEXTS])):
        assert result["ids"] == fast(text)["input_ids"], (text, type(fast).__name__)


# (tokenizer_config.json, special_tokens_map.json, added_tokens.json): files in the same folder as a tokenizer.json of GPT-2, which has "T" as a piece.
@needs_program
@pytest.mark.parametrize("files", [
    (None, {"bos_token": "T"}, None), ({"bos_token": "x"}, {"bos_token": "T"}, None), ({"added_tokens_decoder": {}}, {"bos_token": "T"}, None), ({}, None, {"T": 52}), ({"added_tokens_decoder": {}}, None, {"T": 52}),
    ({"image_token": "T"}, None, None), ({"extra_special_tokens": {"image_token": "T"}}, None, None), ({"extra_special_tokens": ["T"]}, None, None), ({"additional_special_tokens": [{"content": "T", "rstrip": True, "__type": "AddedToken"}]}, None, None),
])  # fmt: skip
def test_tokens_that_only_another_file_names_are_found(files: tuple[dict[str, Any] | None, ...], tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder_of("gpt2", "gpt2", files[0], tmp_path)
    for name, contents in zip(("special_tokens_map.json", "added_tokens.json"), files[1:]):
        if contents is not None:
            (tmp_path / name).write_text(json.dumps(contents))
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path)
    text = "The x <s>T </s>"
    assert next(ours(tmp_path, [[text]]))["ids"] == fast(text)["input_ids"]


@needs_program
@pytest.mark.parametrize(("kind", "model_type", "config", "message"), [
    ("llama2", "llama", {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}, "tokenizer_config.json: add_prefix_space is false, and tokenizer.json puts a space before a text; transformers' LlamaTokenizer would follow tokenizer_config.json"),
    ("xlm_roberta", "xlm-roberta", {"add_prefix_space": False}, "add_prefix_space is false, and tokenizer.json puts a space before a text; transformers' XLMRobertaTokenizer"),
    ("qwen2", "qwen2", {"add_prefix_space": True}, "add_prefix_space is true, and tokenizer.json puts no space before a text; transformers' Qwen2Tokenizer"),
    ("unigram_nfkc", "albert", {"do_lower_case": False}, "do_lower_case is false, and tokenizer.json has the normalizer Lowercase; transformers' AlbertTokenizer"),
    ("unigram_nfkc", "albert", {"keep_accents": False}, "keep_accents is false, and tokenizer.json lacks the normalizer StripAccents"),
    ("word_level", "bert", {"do_lower_case": True}, "do_lower_case is true, and tokenizer.json has another normalizer than BertNormalizer"),
    ("bert_cased", "bert", {"cls_token": "[SEP]"}, 'cls_token is "[SEP]", and tokenizer.json puts "[CLS]" there; transformers\' BertTokenizer'),
    ("roberta", "roberta", {"sep_token": {"content": "<mask>"}}, 'sep_token is "<mask>", and tokenizer.json puts "</s>" there'),
    ("roberta", "roberta", ROBERTA | {"added_tokens_decoder": {"4": {"content": "<mask>", "special": True}}}, 'added_tokens_decoder: lstrip of "<mask>" is false, and tokenizer.json has true; transformers\' RobertaTokenizer'),
    ("xlm_roberta", "xlm-roberta", {"bos_token": "<mask>"}, 'bos_token is "<mask>", and tokenizer.json puts "<s>" there; transformers\' XLMRobertaTokenizer'),
    ("xlm_roberta", "camembert", {"eos_token": "<mask>"}, 'eos_token is "<mask>", and tokenizer.json puts "</s>" there; transformers\' CamembertTokenizer'),
    *(("xlm_roberta", model, {"cls_token": "<mask>", "sep_token": "</s>"}, 'cls_token is "<mask>", and tokenizer.json puts "<s>" there') for model in ("big_bird",)),
    *(("xlm_roberta", "", {"tokenizer_class": name, "do_lower_case": False, "cls_token": "<mask>", "sep_token": "</s>"}, 'cls_token is "<mask>", and tokenizer.json puts "<s>" there') for name in ("DebertaV2Tokenizer", "RemBertTokenizer")),
    ("gpt2", "gpt2", {"split_special_tokens": True}, "tokenizer_config.json: split_special_tokens is true; special tokens in a text are not split"),
])  # fmt: skip
def test_a_tokenizer_config_that_is_not_followed_is_refused(kind: str, model_type: str, config: dict[str, Any], message: str, tmp_path: Path) -> None:
    done = subprocess.run([PROGRAM, folder_of(kind, model_type, config, tmp_path)], input=b"", capture_output=True, timeout=60)
    assert done.returncode != 0 and message in done.stderr.decode()


def with_member(json_value: Any, kind: str, key: str, value: Any) -> None:
    """Sets the key of all objects of this type within a JSON value."""
    for one in json_value.values() if isinstance(json_value, dict) else json_value if isinstance(json_value, list) else ():
        with_member(one, kind, key, value)
    if isinstance(json_value, dict) and json_value.get("type") == kind:
        json_value[key] = value


# Cases where a key is missing and the class's default differs from tokenizer.json: (kind, model_type and class, members of tokenizer.json, type and key and value of a step,
# message).
@needs_program
@pytest.mark.parametrize(("kind", "model_type", "members", "step", "message"), [
    ("bert_uncased", "bert", {"normalizer": None}, None, "do_lower_case is missing, which means true, and tokenizer.json has another normalizer than BertNormalizer; transformers' BertTokenizer"),
    ("bert_uncased", "bert", {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]}}, None, "do_lower_case is missing, which means true"),
    ("bert_uncased", "bert", {"post_processor": None}, None, 'cls_token is missing, which means "[CLS]", and tokenizer.json puts no token there'),
    ("roberta", "roberta", {"post_processor": None}, None, 'cls_token is missing, which means "<s>", and tokenizer.json puts no token there'),
    ("llama2", "llama", {"normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}}, None, "add_prefix_space is missing, which means true, and tokenizer.json puts no space before a text; transformers' LlamaTokenizer"),
    ("xlm_roberta", "xlm-roberta", {}, ("Metaspace", "prepend_scheme", "never"), "add_prefix_space is missing, which means true, and tokenizer.json puts no space before a text"),
    ("qwen2", "qwen2", {}, ("ByteLevel", "add_prefix_space", True), "add_prefix_space is missing, which means false, and tokenizer.json puts a space before a text; transformers' Qwen2Tokenizer"),
])  # fmt: skip
def test_a_default_of_the_class_that_contradicts_tokenizer_json_is_refused(kind: str, model_type: str, members: dict[str, Any], step: tuple[str, str, Any] | None, message: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    classes = {"bert": "BertTokenizer", "roberta": "RobertaTokenizer", "llama": "LlamaTokenizer", "xlm-roberta": "XLMRobertaTokenizer", "qwen2": "Qwen2Tokenizer"}
    path = folder_of(kind, model_type, {"tokenizer_class": classes[model_type]}, tmp_path) / "tokenizer.json"
    contents = json.loads(path.read_text()) | members
    if step is not None:
        with_member(contents, *step)
    path.write_text(json.dumps(contents))
    done = subprocess.run([PROGRAM, tmp_path], input=b"", capture_output=True, timeout=60)
    assert done.returncode != 0 and message in done.stderr.decode()
    of_file = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
    fast = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert any(fast(text)["input_ids"] != of_file(text)["input_ids"] for text in CONFIG_TEXTS)  # the two tokenizers differ, so polyhead must refuse the folder


@needs_program
def test_other_steps_before_byte_level_without_a_space_open(tmp_path: Path) -> None:
    path = folder_of("gpt2", "gpt2", {"tokenizer_class": "GPT2Tokenizer"}, tmp_path) / "tokenizer.json"
    contents = json.loads(path.read_text())
    contents["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}]}
    path.write_text(json.dumps(contents))
    assert next(ours(tmp_path, [["12"]]))["ids"]


@needs_program
def test_a_text_with_a_token_that_has_no_id_is_refused(tmp_path: Path) -> None:
    folder_of("gpt2", "gpt2", {"pad_token": "[PAD]", "added_tokens_decoder": {"2000": {"content": "<new>"}}}, tmp_path)
    assert next(ours(tmp_path, [["The [PAD"]]))["ids"]
    for name in ("[PAD]", "<new>"):
        assert f'the text has "{name}". A file beside tokenizer.json names this token, tokenizer.json has no piece for it, and the model may have no row for it' in next(ours(tmp_path, [[f"The {name}"]]))["error"]


@needs_program
def test_the_names_of_unicode_that_the_tables_follow_are_stated() -> None:
    """The first line of the Unicode tables must name the installed version of `tokenizers`. scripts/make_unicode_tables.py --check says whether another version needs other tables."""
    stated = (ROOT / "src/models/tokenizer/unicode_tables.inc").read_text().splitlines()[0]
    assert f"tokenizers {tokenizers.__version__};" in stated, f"{stated}, and {tokenizers.__version__} is installed"
    assert unicodedata.unidata_version


if __name__ == "__main__":
    wanted = sys.argv[2:] or list(KINDS)
    for kind in wanted:
        total = int(sys.argv[1])
        found = []
        for part in range(0, total, 10_000):
            found += differences(kind, min(10_000, total - part), SEED + part)
        print(f"{kind}: {len(found)} of {total} texts differ (seeds {SEED} + 0, 10000, ...)", flush=True)
        for line in found[:3]:
            print("  " + line, flush=True)
