"""Makes and trains tokenizers of many kinds with PyPI's `tokenizers`, with the steps of published models. test_tokenizers.py compares polyhead with each of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

# Patterns with which published models split texts into words.
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
DEEPSEEK = [r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]

WORDS = (
    "the of and to in is was for that it with as his on be at by had not are but from or have an they which one you were all her she there would their we him been has when who will no "
    "more if out so up said what its about than into them can only other time new some could these two may first then do any my now such like our over man me even most made after also did "
    "many off before must through back years where much your way well down should because each just those people how too little state good very make world still see own work men day get "
    "here between both life being under never day same another know while last might us great old year off come since against go came right used take three it's don't I'm we'll they've "
    "naïve café über straße ñandú garçon élève ångström Œuvre façade δεν είναι και της ΑΘΗΝΑ Привет мир это текст не что как он она 我们 在 中国 的 是 一 不 人 日本 です こんにちは カタカナ 한국어 안녕하세요 "
    "सबसे हिन्दी भाषा में العربية لغة שלום עולם ไทย ภาษา 12 345 2024 3.14 1,000 ½ ² ⅷ ٣٤ ... !? -- (a) [b] {c} <d> #tag @name a_b x=y e.g. i.e. U.S. co-op rock'n'roll 😀 👍🏽 👨‍👩‍👧 🇩🇪"
).split()


def corpus(lines: int = 400, seed: int = 5) -> list[str]:
    random_words = random.Random(seed)
    return [" ".join(random_words.choices(WORDS, k=random_words.randint(3, 14))).capitalize() for _ in range(lines)]


def trained(tokenizer: Tokenizer, trainer: Any) -> Tokenizer:
    tokenizer.train_from_iterator(corpus(), trainer)
    return tokenizer


def byte_level(pre_tokenizer: Any, special: list[str], size: int = 900, **model: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(**model))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(tokenizer, trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False))


def bert(lowercase: bool) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trained(tokenizer, trainers.WordPieceTrainer(vocab_size=800, special_tokens=special, show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing("[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)])
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def bert_uncased() -> Tokenizer:
    return bert(True)


def bert_cased() -> Tokenizer:
    tokenizer = bert(False)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def gpt2() -> Tokenizer:
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False), ["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def roberta() -> Tokenizer:
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), special)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=True)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    return tokenizer


def llama3() -> Tokenizer:
    words = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer = byte_level(words, [], ignore_merges=True)
    start = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    template = processors.TemplateProcessing("<|begin_of_text|> $A", "<|begin_of_text|> $A <|begin_of_text|>:1 $B:1", [("<|begin_of_text|>", start)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return tokenizer


def qwen2() -> Tokenizer:
    words = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(QWEN2), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer = byte_level(words, [])
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("Straße", normalized=True)])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def o200k() -> Tokenizer:
    words = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(O200K), "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer = byte_level(words, ["<|endoftext|>"])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True, add_prefix_space=False)
    return tokenizer


def deepseek() -> Tokenizer:
    parts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in DEEPSEEK]
    tokenizer = byte_level(pre_tokenizers.Sequence([*parts, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]), [])
    tokenizer.normalizer = normalizers.Sequence([])
    return tokenizer


def clip() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix="</w>", unk_token="<|endoftext|>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    split = pre_tokenizers.Split(Regex(CLIP), "removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|startoftext|>", "<|endoftext|>"]
    trained(tokenizer, trainers.BpeTrainer(vocab_size=1200, special_tokens=special, initial_alphabet=alphabet, end_of_word_suffix="</w>", show_progress=False))
    tokenizer.post_processor = processors.RobertaProcessing(("<|endoftext|>", 1), ("<|startoftext|>", 0), trim_offsets=False, add_prefix_space=False)
    tokenizer.decoder = decoders.Sequence([decoders.Replace("</w>", " "), decoders.ByteLevel()])
    return tokenizer


def llama2() -> Tokenizer:
    """BPE with byte fallback. Normalisers replace spaces by sentencepiece's mark."""
    byte_pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trained(tokenizer, trainers.BpeTrainer(vocab_size=900, special_tokens=["<unk>", "<s>", "</s>", *byte_pieces], show_progress=False))
    bytes_are_plain(tokenizer)
    tokenizer = reload(tokenizer, lambda file: file["added_tokens"].__setitem__(slice(None), [t for t in file["added_tokens"] if t["id"] < 3]))
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s>:1 $B:1", [("<s>", 1)])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return tokenizer


def bytes_are_plain(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_to_id("<0x0A>") is not None


def reload(tokenizer: Tokenizer, change: Callable[[dict[str, Any]], None]) -> Tokenizer:
    import json

    file = json.loads(tokenizer.to_str())
    change(file)
    return Tokenizer.from_str(json.dumps(file))


def metaspace_bpe() -> Tokenizer:
    """BPE without byte fallback, with the pre-tokeniser Metaspace: each character without a piece becomes one unknown token."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="first")
    return trained(tokenizer, trainers.BpeTrainer(vocab_size=600, limit_alphabet=90, special_tokens=["<unk>"], show_progress=False))


def lossy_bpe() -> Tokenizer:
    """BPE that drops unknown characters. Pieces that do not begin a word have the prefix ##."""
    tokenizer = Tokenizer(models.BPE(continuing_subword_prefix="##"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.Punctuation("contiguous")])
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.BpeTrainer(vocab_size=600, limit_alphabet=90, continuing_subword_prefix="##", show_progress=False)
    return trained(tokenizer, trainer)


def unigram(charsmap: bytes | None, normalizer: Any, **options: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(**options)
    tokenizer.decoder = decoders.Metaspace(**{name: value for name, value in options.items() if name != "split"})
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trained(tokenizer, trainers.UnigramTrainer(vocab_size=700, special_tokens=special, unk_token="<unk>", show_progress=False))
    if charsmap is not None:  # set after the training, which cannot use a charsmap
        tokenizer.normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap), normalizers.Replace(Regex(" {2,}"), " ")])
    return tokenizer


def t5() -> Tokenizer:
    tokenizer = unigram(nmt_charsmap(), normalizers.NFKC(), prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 2)])
    tokenizer.add_special_tokens([AddedToken(f"<extra_id_{number}>", special=True) for number in range(3)])
    return tokenizer


def xlm_roberta() -> Tokenizer:
    tokenizer = unigram(nmt_charsmap(), normalizers.NFKC(), prepend_scheme="always")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")])
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> </s> $B </s>", [("<s>", 0), ("</s>", 2)])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    return tokenizer


def unigram_nfkc() -> Tokenizer:
    """Unigram with byte fallback and the normaliser Nmt, as in newer sentencepiece models."""
    tokenizer = unigram(None, normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Lowercase()]), prepend_scheme="never", split=False)

    def add_bytes(file: dict[str, Any]) -> None:
        file["model"]["vocab"] += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
        file["model"]["byte_fallback"] = True
        file["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}, file["decoder"]]}

    return reload(tokenizer, add_bytes)


def word_level() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return trained(tokenizer, trainers.WordLevelTrainer(vocab_size=300, special_tokens=["[UNK]"], show_progress=False))


def splits() -> Tokenizer:
    """Splits with each of the behaviours that a delimiter may have, one after the other."""
    tokenizer = Tokenizer(models.BPE(unk_token="?"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(Regex(r"(?<=a)"), "+"), normalizers.Replace("e", "ê"), normalizers.Strip(left=True, right=False)])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("-", "merged_with_previous"),
            pre_tokenizers.Split(Regex(r"\.|,"), "merged_with_next"),
            pre_tokenizers.Split(" ", "contiguous"),
            pre_tokenizers.Split(Regex(r"[aeiou]+"), "isolated", invert=True),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.CharDelimiterSplit("x"),
            pre_tokenizers.Punctuation("merged_with_next"),
            pre_tokenizers.FixedLength(7),
        ]
    )
    tokenizer.decoder = decoders.BPEDecoder("e")
    return trained(tokenizer, trainers.BpeTrainer(vocab_size=400, limit_alphabet=80, special_tokens=["?"], show_progress=False))


def byte_normalizer() -> Tokenizer:
    """A normaliser turns bytes into characters before the pre-tokeniser runs, as in Qwen-like tokenizers of vision models."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.ByteLevel()])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"Ġ?[A-Za-z]+|Ġ+|[^A-Za-zĠ]+"), "isolated")
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return trained(tokenizer, trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False))


def added_tokens() -> Tokenizer:
    """Added tokens with each of the flags. Some of the tokens begin or end with white space."""
    tokenizer = bert(True)
    tokens = [
        AddedToken("[X]", rstrip=True, normalized=False),
        AddedToken(" y", normalized=False),
        AddedToken("  ", normalized=False),
        AddedToken("both", lstrip=True, rstrip=True, normalized=False),
        AddedToken("Word", single_word=True, normalized=True),
        AddedToken("one", single_word=True, normalized=False),
        AddedToken("Ünïted", normalized=True),
        AddedToken("ab", normalized=False),
        AddedToken("abc", lstrip=True, normalized=False),
    ]
    tokenizer.add_tokens(tokens)
    return tokenizer


def double_array(entries: dict[bytes, bytes]) -> bytes:
    """Returns a sentencepiece charsmap: the double array of a trie, and the replacements. Each node with children has a page of 256 units for its children; the values of nodes
    without children share pages."""
    import collections
    import struct

    replacements = bytearray()
    places: dict[bytes, int] = {}
    trie: dict[int, Any] = {}
    for key, value in sorted(entries.items()):
        if value not in places:
            places[value] = len(replacements)
            replacements += value + b"\0"
        node = trie
        for byte in key:
            node = node.setdefault(byte, {})
        node[-1] = places[value]
    units: dict[int, int] = {}
    leaves = []
    pages = 1
    open_nodes: list[tuple[dict[int, Any], int, int]] = [(trie, 0, 0)]  # (node, index of its unit, label)

    def set_unit(node: dict[int, Any], place: int, label: int, page: int) -> int:
        offset = (place ^ page << 8) & ~0xFF
        units[place] = label | (1 << 8 if -1 in node else 0) | (offset << 10 if offset < 1 << 21 else (offset >> 8) << 10 | 1 << 9)
        start = place ^ offset  # a child is at start ^ byte, and the value is at start
        if -1 in node:
            units[start] = 1 << 31 | node[-1]
        return start

    while open_nodes:
        node, place, label = open_nodes.pop()
        children = {byte: child for byte, child in node.items() if byte >= 0}
        if not children:
            leaves.append((node, place, label))
            continue
        start = set_unit(node, place, label, pages)
        pages += 1
        open_nodes += [(child, start ^ byte, byte) for byte, child in children.items()]
    used: collections.Counter[int] = collections.Counter()
    for node, place, label in leaves:
        set_unit(node, place, label, pages + used[place & 0xFF])
        used[place & 0xFF] += 1
    array = [units.get(place, 0) for place in range((pages + max(used.values())) << 8)]
    return struct.pack("<I", 4 * len(array)) + struct.pack(f"<{len(array)}I", *array) + bytes(replacements)


_charsmap: list[bytes] = []


def nmt_charsmap() -> bytes:
    """Returns a charsmap like nmt_nfkc. It replaces characters by their compatibility forms, composes some letters with marks, and removes control characters or makes them spaces."""
    if _charsmap:
        return _charsmap[0]
    import unicodedata

    entries = {}
    for code in [*range(0xA0, 0x2100), *range(0x2100, 0x2600), *range(0x3000, 0x3400), *range(0xFB00, 0x10000), *range(0x1D400, 0x1D420)]:
        character = chr(code)
        form = unicodedata.normalize("NFKC", character)
        if form != character and not 0xD800 <= code < 0xE000:
            entries[character.encode()] = form.encode()
    for base in "aeiouAEIOUncyk":
        for mark in "\u0300\u0301\u0302\u0308":
            form = unicodedata.normalize("NFKC", base + mark)
            if len(form) == 1:
                entries[(base + mark).encode()] = form.encode()
    for code in [*range(1, 9), 0xB, *range(0xE, 0x20), 0x7F]:
        entries[bytes([code])] = b""
    for text in ["\t", "\n", "\r", "\u200b", "\u200e", "\u2028", "\u3000", "\ufeff", "\u2581"]:
        entries[text.encode()] = b" "
    entries["\u0915".encode()] = b"k"
    entries["\u00a9".encode()] = b"(c)"
    _charsmap.append(double_array(entries))
    return _charsmap[0]


KINDS: dict[str, Callable[[], Tokenizer]] = {
    kind.__name__: kind
    for kind in (
        bert_uncased, bert_cased, gpt2, roberta, llama3, qwen2, o200k, deepseek, clip, llama2, metaspace_bpe, lossy_bpe, t5, xlm_roberta, unigram_nfkc, word_level, splits, byte_normalizer,
        added_tokens,
    )
}  # fmt: skip

VERSION = tokenizers.__version__
