#!/usr/bin/env python3
"""Writes src/models/tokenizer/unicode_tables.inc: how the installed `tokenizers` package treats each code point.

    build/venv/bin/python scripts/make_unicode_tables.py [--check]

The components of `tokenizers` follow different versions of Unicode, so the script makes each table by calling the package with every code point. The C++ code then
splits text as the package does, whatever version utf8proc and Oniguruma have. --check compares the tables with the file instead of writing it. Takes four minutes.
"""
import pathlib
import struct
import sys
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

OUTPUT = pathlib.Path(__file__).parents[1] / "src/models/tokenizer/unicode_tables.inc"
CODES = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def members(holds):
    return [c for c in CODES if holds(chr(c))]


def ranges(codes):
    result = []
    for code in sorted(codes):
        if result and result[-1][1] == code - 1:
            result[-1][1] = code
        else:
            result.append([code, code])
    return result


def pieces(pre_tokenizer, text):
    return [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)]


def bert(**switches):
    off = {"clean_text": False, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    return normalizers.BertNormalizer(**{**off, **switches}).normalize_str


def classes():
    """The sets of characters, by the name of their table."""
    clean, strip, marks = bert(clean_text=True), bert(strip_accents=True), normalizers.StripAccents().normalize_str
    nfd, nfkd = normalizers.NFD().normalize_str, normalizers.NFKD().normalize_str
    whitespace, split = pre_tokenizers.Whitespace(), pre_tokenizers.WhitespaceSplit()
    punctuation, digits = pre_tokenizers.Punctuation(), pre_tokenizers.Digits(individual_digits=True)
    white = members(lambda c: len(pieces(split, f"a{c}a")) == 2)
    assert white == members(lambda c: pieces(whitespace, f"a{c}a") == ["a", "a"])
    return {
        "white_space": white,
        "removed_control": [c for c in members(lambda c: clean(c) == "") if c not in (0, 0xFFFD)],
        "punctuation": members(lambda c: pieces(punctuation, f"a{c}a") == ["a", c, "a"]),
        "nonspacing_mark": [c for c in members(lambda c: strip("a" + c) == "a") if nfd(chr(c)) == chr(c)],
        "combining_mark": members(lambda c: marks("a" + c) == "a"),
        "numeric": members(lambda c: pieces(digits, f"a{c}a") == ["a", c, "a"]),
        "word": members(lambda c: pieces(whitespace, f"a{c}a") == [f"a{c}a"]),
        "canonical_decomposition": [c for c in members(lambda c: nfd(c) != c) if not 0xAC00 <= c < 0xD7A4],
        "compatibility_decomposition": [c for c in members(lambda c: nfkd(c) != nfd(c)) if not 0xAC00 <= c < 0xD7A4],
        "reordered": reordered(nfd),
    }


def reordered(nfd):
    """Characters whose canonical combining class is not 0. The table does not contain the class: the C++ code reads it from utf8proc, because the class of a character never changes."""
    lowest, highest = "\u0334", "\u0345"  # characters of the classes 1 and 240, the smallest and the largest class
    found = []
    for code in CODES:
        c = chr(code)
        if nfd(c) != c:
            continue
        if nfd("a" + c + lowest) == "a" + lowest + c or nfd("a" + highest + c) == "a" + c + highest or c == highest:
            found.append(code)
            assert unicodedata.combining(c) != 0, hex(code)
    return found


def lowercase():
    """Rows [first, last, step, distance]: the lower case of every step-th character c of the range is the character c + distance. U+0130 is left out: it becomes two characters."""
    lower = normalizers.Lowercase().normalize_str
    assert [c for c in CODES if len(lower(chr(c))) != 1] == [0x130]
    changed = [(c, ord(lower(chr(c))) - c) for c in CODES if c != 0x130 and lower(chr(c)) != chr(c)]
    result = []
    for code, distance in changed:
        if result:
            last = result[-1]
            step = code - last[1]
            if distance == last[3] and step in (1, 2) and (last[0] == last[1] or step == last[2]):
                last[1], last[2] = code, step
                continue
        result.append([code, code, 1, distance])
    return result


def charsmap(key, value="y"):
    """A sentencepiece charsmap that maps one character: a double array with a page of 256 units for each byte of the key, then the value."""
    units = [0] * 0x800
    units[0] = 0x100 << 10
    place = 0x100
    for byte, page in zip(key.encode(), [0x200, 0x100, 0x600, 0x100][-len(key.encode()) :]):
        place ^= byte
        units[place] = page << 10 | byte
        last, place = place, place ^ page
    units[last] |= 1 << 8  # the key ends here
    units[place] = 1 << 31  # the value of the key begins at byte 0
    return struct.pack("<I2048I", 8192, *units) + value.encode() + b"\0"


def drops(key):
    """A function that tells whether characters after `key` are dropped. Dropped characters belong to the grapheme cluster of `key`, because Precompiled
    replaces a cluster of less than 6 bytes as a whole."""
    return normalizers.Precompiled(charsmap(key)).normalize_str


def cluster_classes():
    """The class of each character in the rules of grapheme clusters. Classes without effect on clusters of less than 6 bytes are left out."""
    x, copyright, ka = drops("x"), drops("\u00a9"), drops("\u0915")
    assert [x("x" + c) for c in ("\u0301", "\u200d", "x")] == ["y", "y", "yy"] and drops("\U0001f600")("\U0001f600") == "y"
    basic = [chr(c) for c in CODES if c < 0x10000]
    kinds = members_of(r"\p{Cf}") | members_of(r"\p{Lo}") - members_of(r"\p{Han}") - members_of(r"\p{Hangul}")
    kept = "y\u0301"
    joined = members(lambda c: x("x" + c) == "y")
    return {
        "cluster_joined": joined,
        "cluster_prepend": [c for c in sorted(kinds) if drops(chr(c))(chr(c) + "x") == "y"],
        "cluster_control": [0, *(ord(c) for c in basic[1:] if drops(c)(c + "\u0301") != "y")],
        "cluster_pictograph": sorted(members_of(r"\p{Extended_Pictographic}")),
        "cluster_pictograph_extend": [c for c in joined if copyright("\u00a9" + chr(c) + "\u200d\u00a9\u0301").endswith(kept)],
        "cluster_consonant": members(lambda c: ka(c + "\u094d\u0915\u0301").endswith(kept)),
        "cluster_linker": members(lambda c: ka("\u0915" + c + "\u0915\u0301").endswith(kept)),
        "cluster_linker_or_extend": members(lambda c: ka("\u0915\u094d" + c + "\u0915\u0301").endswith(kept)),
    }


def members_of(pattern, codes=CODES):
    remove = normalizers.Replace(Regex(pattern), "").normalize_str
    return {c for c in codes if remove(chr(c)) == ""}


CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co".split()
# Arabic, Cyrillic, Devanagari, Myanmar and Common are left out: these scripts have new characters of four bytes for which Unicode 14 has no characters with
# the same properties.
SCRIPTS = ("Han Hiragana Katakana Hangul Bopomofo Latin Greek Hebrew Thai Lao Bengali Gurmukhi Gujarati Oriya Tamil Telugu Kannada Malayalam Sinhala "
           "Khmer Tibetan Georgian Armenian Ethiopic Mongolian").split()
BRACKETS = "alnum alpha blank cntrl digit graph print punct space word xdigit".split()  # `lower` and `upper` are left out for the same reason as the scripts named above


def stand_ins():
    """Rows [first, last, stand-in]. For each character that the Oniguruma of `tokenizers` knows and Unicode 14 does not, the stand-in is a character of Unicode
    14 with as many bytes of UTF-8 and the same properties. Properties are those that a pattern may test: CATEGORIES, SCRIPTS and BRACKETS."""
    if unicodedata.unidata_version != "14.0.0":
        sys.exit(f"run this with Python 3.11: its unicodedata is of Unicode 14, as Oniguruma 6.9.8; here it is {unicodedata.unidata_version}")
    assigned = sorted(set(CODES) - members_of(r"\p{Cn}"))
    signature = {c: [] for c in assigned}
    patterns = [rf"\p{{{name}}}" for name in CATEGORIES + SCRIPTS] + [f"[[:{name}:]]" for name in BRACKETS] + [r"\w", r"\s", r"\d"]
    for number, pattern in enumerate(patterns):
        for c in members_of(pattern, assigned):
            signature[c].append(number)
    old, new = {}, []
    for c in assigned:
        key = (tuple(signature[c]), len(chr(c).encode()))
        if unicodedata.category(chr(c)) != "Cn":
            if key not in old or not 0xFE00 <= c < 0x10000:  # take the last candidate that is not a full-width form, because patterns rarely name a character with such a high code
                old[key] = c
        else:
            new.append((c, key))
    lost = [(hex(c), [patterns[i] for i in key[0]]) for c, key in new if key not in old]
    if lost:
        sys.exit(f"no stand-in for {len(lost)} characters: {lost[:20]}")
    result = []
    for c, key in new:
        if result and result[-1][1] == c - 1 and result[-1][2] == old[key]:
            result[-1][1] = c
        else:
            result.append([c, c, old[key]])
    return result


def table(name, rows, comment, width):
    lines = [f"// {comment}", f"constexpr std::array<{name[0]}, {len(rows)}> {name[1]}{{{{"]
    line = ""
    for row in rows:
        cell = "{" + ", ".join(hex(value) if index < width else str(value) for index, value in enumerate(row)) + "}, "
        if len(line) + len(cell) > 150:
            lines.append("    " + line.rstrip())
            line = ""
        line += cell
    return "\n".join([*lines, "    " + line.rstrip(", ") + "}};", ""])


def main():
    parts = [f"// Made by scripts/make_unicode_tables.py from tokenizers {tokenizers.__version__}; do not edit.\n"]
    for name, codes in {**classes(), **cluster_classes()}.items():
        parts.append(table(("CodeRange", "k_" + name), ranges(codes), f"{len(codes)} characters", 2))
    parts.append(table(("LowercaseRange", "k_lowercase"), lowercase(), "first, last, step, distance to the lower case", 2))
    parts.append(table(("StandIn", "k_stand_ins"), stand_ins(), "first, last, a character of Unicode 14 with the same properties", 3))
    text = "\n".join(parts)
    if "--check" in sys.argv[1:]:
        sys.exit(0 if OUTPUT.read_text() == text else f"{OUTPUT} is not what tokenizers {tokenizers.__version__} does")
    OUTPUT.write_text(text)


if __name__ == "__main__":
    main()
