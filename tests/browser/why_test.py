#!/usr/bin/env python3
"""The page shows why a row looks where it looks: q × k of all keys by feature, and what rotation, scale, bias and mask make of q · k.

    why_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""
import math
import random
import re
import struct

from cell_test import drop, floats, number, pin, softmax, table
from session import encoded, floats_of, pixels_of, run

TOLERANCE = 1e-5
HEADS, TOKENS, WIDTH, TURNED = 2, 5, 6, 4  # the first TURNED features of a head are rotated
FACTOR = 1.3  # the tables of cos and sin are multiplied by this factor, as YaRN does


class Rotated:
    """Random causal self-attention with rotary positions. q and k here are not rotated; write() stores the rotated vectors in the data of the page."""

    def __init__(self, seed, neighbours):
        self.draw, self.neighbours = random.Random(seed), neighbours
        take = lambda *shape: [struct.unpack("f", struct.pack("f", self.draw.gauss(0, 1)))[0] for _ in range(math.prod(shape))]
        angles = [[self.draw.uniform(0, 6) for _ in range(TURNED // 2)] for _ in range(TOKENS)]
        self.cos, self.sin = ([[FACTOR * turn(angle) for angle in row] for row in angles] for turn in (math.cos, math.sin))
        self.q, self.k = ([[take(WIDTH) for _ in range(TOKENS)] for _ in range(HEADS)] for _ in range(2))  # [head][token][feature], before the rotation
        self.bias = [[take(TOKENS) for _ in range(TOKENS)] for _ in range(HEADS)]

    def turned(self, row, t):
        result = list(row)
        for i in range(TURNED // 2):
            a, b = (2 * i, 2 * i + 1) if self.neighbours else (i, i + TURNED // 2)
            result[a] = row[a] * self.cos[t][i] - row[b] * self.sin[t][i]
            result[b] = row[a] * self.sin[t][i] + row[b] * self.cos[t][i]
        return result

    def dot(self, head, t, s, turn=True):
        q, k = self.q[head][t], self.k[head][s]
        return sum(x * y for x, y in zip(self.turned(q, t) if turn else q, self.turned(k, s) if turn else k))

    def score(self, head, t, s):
        return self.dot(head, t, s) / math.sqrt(WIDTH) + self.bias[head][t][s] if s <= t else -math.inf

    def write(self, data):
        data["encoding"] = "linear16"
        flat = lambda rows: floats([x for row in rows for x in row])
        weights = [[x for t in range(TOKENS) for x in softmax([self.score(head, t, s) for s in range(TOKENS)])] for head in range(HEADS)]
        all_turned = lambda rows: flat([self.turned(row, t) for t, row in enumerate(rows)])
        vectors = {"scale": 1 / math.sqrt(WIDTH), "root": True, "q": [[all_turned(rows) for rows in self.q]], "k": [[all_turned(rows) for rows in self.k]],
                   "bias": [[flat(rows) for rows in self.bias]], "attend": [[floats([float(s <= t) for t in range(TOKENS) for s in range(TOKENS)])]],
                   "rotary": {"cos": [[flat(self.cos)]], "sin": [[flat(self.sin)]], "neighbours": self.neighbours}}
        data["texts"] = [{"text": "rotated", "queries": {"pieces": [f"w{i}" for i in range(TOKENS)], "special": []}, "layers": 1, "heads": HEADS, "weights": [[encoded(map_) for map_ in weights]], "vectors": vectors}]


def check_rotated(checks, session, arrays):
    """Checks the table that leads from q · k to the score of every key: rotation, scale, bias, mask."""
    for head in range(HEADS):
        session.open(0, head)
        t, s = 3, arrays.draw.randrange(4)
        pin(session, t, s)
        rows = table(session, ".why")
        names = session.page.locator(".why thead th").all_text_contents()
        checks.that(names == ["key", "q × k, all features", "q · k without rotation", "rotation adds", "q · k", "/ √6", "bias adds", "score"], "the columns name the steps", names)
        for key in range(TOKENS):
            plain, dot = arrays.dot(head, t, key, turn=False), arrays.dot(head, t, key)
            wanted = [plain, dot - plain, dot, dot / math.sqrt(WIDTH), arrays.bias[head][t][key], arrays.score(head, t, key)]
            shown = [number(cell) for cell in rows[key][2:]]
            wrong = [(one, two) for one, two in zip(shown, wanted) if one != two and not abs(one - two) <= TOLERANCE]
            checks.that(len(shown) == len(wanted) and not wrong, f"head {head}, key {key}: the table shows the effects of rotation, scale, bias and mask", wrong)
        checks.that(session.page.locator(".why tr.lit th").text_content() == f"w{s}", "the chosen key is marked")
        session.page.keyboard.press("Escape")


def check_squares(checks, page, products):
    """Checks that each square has the colour of its product. The legend has 65 colours at equal distances; colours between them are interpolated."""
    legend, bound = pixels_of(page.locator(".why-of .bounds canvas")), max(abs(x) for line in products for x in line)
    wrong = []
    for key, line in enumerate(products):
        squares = pixels_of(page.locator(f'.why tr[data-key="{key}"] canvas'))
        checks.that(len(squares) == 4 * len(line), f"key {key}: there is a square for each feature", len(squares))
        for i, x in enumerate(line):
            at = 32 * (1 + x / bound)
            between = [legend[4 * place:4 * place + 3] for place in (math.floor(at), math.ceil(at))]
            if any(not min(ends) - 2 <= found <= max(ends) + 2 for found, *ends in zip(squares[4 * i:4 * i + 3], *between)):
                wrong.append((key, i, x, squares[4 * i:4 * i + 3], between))
    checks.that(not wrong, "every square has the colour of its product", wrong[:3])


def check_model(checks, session, choose):
    """Checks the sum and the colours of each key's line, and the features with the largest share in the difference between the chosen key and the other keys."""
    expected, page = session.expected, session.page
    entry = expected.data["texts"][0]
    for layer, head in choose.heads(2):
        session.open(layer, head)
        row, column = choose.cells(1)[0]
        pin(session, row, column)
        q, k = (floats_of(entry["vectors"][name][layer][head]) for name in "qk")
        width = len(q) // expected.rows
        products = [[q[row * width + i] * k[s * width + i] for i in range(width)] for s in range(expected.columns)]
        rows = table(session, ".why")
        wrong = [s for s in range(expected.columns) if abs(float(rows[s][2]) - sum(products[s])) > TOLERANCE or abs(float(rows[s][3]) - sum(products[s]) / math.sqrt(width)) > TOLERANCE]
        checks.that(not wrong and len(rows) == expected.columns, f"layer {layer}, head {head}, row {row}: the table has q · k and the score of every key", wrong)
        check_squares(checks, page, products)
        apart = [(products[column][i] - sum(products[s][i] for s in range(expected.columns) if s != column) / (expected.columns - 1)) / math.sqrt(width) for i in range(width)]
        told = session.text("#why-told").replace("−", "-")
        whole = float(re.search(r"keys: ([-+]\d+\.\d+)", told).group(1))
        named = [(int(feature), float(part)) for feature, part in re.findall(r"(\d+): ([-+]\d+\.\d+)", told.split("feature:")[1])]
        order = sorted(range(width), key=lambda i: -abs(apart[i]))[:4]
        checks.that(abs(whole - sum(apart)) <= 0.006 and len(named) == 4 and all(abs(part - apart[feature]) <= 0.006 and abs(abs(part) - abs(apart[at])) <= 0.006 for (feature, part), at in zip(named, order)), "the page names the features in which the chosen key differs most from the other keys", told)
        page.keyboard.press("Escape")


def check_missing(checks, session, choose):
    session.open(*choose.heads(1)[0])
    pin(session, *choose.cells(1)[0])
    checks.that(session.page.locator(".why").count() == 0, "a page without q and k has no table of the products of q and k")


def rounds(test):
    halves, pairs = Rotated(test.seed, False), Rotated(test.seed + 1, True)
    return [
        ("rotated halves", check_rotated, [halves], test.made(halves.write)),
        ("rotated neighbours", check_rotated, [pairs], test.made(pairs.write)),
        ("model", check_model, [test.choose], {}),
        ("model in a narrow window", check_model, [test.choose], {"viewport": {"width": 390, "height": 800}, "color_scheme": "dark"}),
        ("weights only", check_missing, [test.choose], test.made(drop)),
    ]


if __name__ == "__main__":
    run(__doc__, rounds)
