#!/usr/bin/env python3
"""The page shows how one attention weight is computed: its numbers, recomputed in float64, give the attention weight and the head's output.

    cell_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""
import base64
import math
import random
import struct
import xml.etree.ElementTree as xml

from session import downloaded, encoded, floats_of, pixels_of, prints, reload, run, title

TOLERANCE = 1e-5
HEADS, QUERIES, KEYS, WIDTH, VALUES = 4, 5, 7, 6, 3  # sizes of the page that is made from random arrays; two query heads share a key/value head
SCALE = 0.21


def number(text):
    return {"-∞": -math.inf, "∞": math.inf}.get(text.strip(), None) if "∞" in text else float(text)


def table(session, selector):
    """Returns the rows of a table's body as lists of texts."""
    return session.page.locator(f"{selector} tbody tr").evaluate_all("(rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent))")


def softmax(scores):
    largest = max(scores)
    exps = [0.0 if largest == -math.inf else math.exp(score - largest) for score in scores]
    return [x / sum(exps) if sum(exps) else 0.0 for x in exps]


def worked(session):
    """The panel's numbers, and the same numbers recomputed from it: {name: (shown, computed)}."""
    *features, total = table(session, ".features")
    features = [[float(x) for x in row[1:]] for row in features]
    steps = {row.get_attribute("data-step"): (row.locator("th").text_content(), number(row.locator("output").text_content())) for row in session.page.locator(".steps tbody tr").all()}
    rows = table(session, ".softmax")
    scores = [number(row[1]) for row in rows[:-1]]
    weights = softmax(scores)
    dot = sum(q * k for q, k, _ in features)
    found = {"products": max(abs(q * k - product) for q, k, product in features), "dot": abs(dot - steps["dot"][1]), "sum of the products": abs(float(total[3]) - dot),
             "row": max(abs(float(row[3]) - weight) for row, weight in zip(rows, weights)), "row sum": abs(float(rows[-1][3]) - sum(weights))}
    values = table(session, ".values")
    terms = [float(row[2]) * float(row[3]) for row in values[:-1]]
    found["weight × v"] = max(abs(float(row[4]) - term) for row, term in zip(values, terms))
    found["output"] = abs(float(values[-1][4]) - sum(terms))
    return found, dot, steps, weights


def pin(session, row, column):
    session.hover(row, column)
    session.page.mouse.down()
    session.page.mouse.up()


def check_model(checks, session, choose):
    expected, page = session.expected, session.page
    width = len(floats_of(expected.data["texts"][0]["vectors"]["q"][0][0])) // expected.rows
    for layer, head in choose.heads(3):
        session.open(layer, head)
        row, column = choose.cells(1)[0]
        pin(session, row, column)
        found, dot, steps, weights = worked(session)
        wrong = {name: error for name, error in found.items() if not error <= TOLERANCE}
        checks.that(not wrong, f"layer {layer}, head {head}, row {row}, column {column}: each number of the calculation follows from the numbers before it", wrong)
        by_hand = softmax([score if at != column else dot / math.sqrt(width) for at, score in enumerate([number(line[1]) for line in table(session, ".softmax")[:-1]])])[column]
        weight = expected.weight(layer, head, row, column)
        checks.that(abs(by_hand - weight) <= TOLERANCE and abs(steps["weight"][1] - weight) <= TOLERANCE, f"the numbers on the page lead to the model's attention weight {weight:.6f}", (by_hand, steps["weight"]))
        every = max(abs(weights[at] - expected.weight(layer, head, row, at)) for at in range(expected.columns))
        checks.that(every <= TOLERANCE, "the page shows the model's attention weights of the other keys", every)
        checks.that(session.text("#worked-title") == f"“{expected.word(expected.queries, row)}” → “{expected.word(expected.keys, column)}”, worked out" and not page.locator("#worked-note").is_visible(),
                    "the panel names the two words and shows no note", session.text("#worked-title"))
        page.keyboard.press("Escape")


def type_feature(page, feature):
    """Types the number of a feature key by key: Firefox reports no change of a value that Playwright's fill() has set."""
    page.locator("#worked-feature").select_text()
    page.keyboard.type(str(feature))
    page.keyboard.press("Enter")


def check_kept(checks, session, choose):
    """The arrow keys pin a cell. The page's address keeps the pinned cell. The cell stays pinned when another head is opened."""
    page, expected = session.page, session.expected
    session.open(1, 2)
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):
        page.keyboard.press(key)
    wanted = f"“{expected.word(expected.queries, 1)}” → “{expected.word(expected.keys, 1)}”, worked out"
    checks.that(session.text("#worked-title") == wanted, "arrow keys pin a cell", session.text("#worked-title"))
    type_feature(page, 5)
    page.wait_for_function("() => /row=1/.test(location.hash) && /column=1/.test(location.hash) && /feature=5/.test(location.hash)")
    before = page.locator("#worked-body").text_content()
    reload(page)
    session.drawn()
    checks.that(page.locator("#worked-body").text_content() == before and "v[5]" in before, "after a reload, the page shows the same cell and feature, which are in its address")
    page.locator(".cells").focus()
    page.keyboard.press("n")
    checks.that(page.locator("#worked-body").text_content() != before and session.text("#worked-title") == wanted, "in another head, the same pair is shown with that head's numbers")
    page.locator("#special").select_option("hide")
    checks.that(len(table(session, ".softmax")) == expected.columns + 1, "the softmax of the row still includes hidden tokens")
    page.keyboard.press("m")
    checks.that("mean over heads" in session.text("#worked-note") and page.locator("#worked-body").text_content() == "", "the mean of heads has a note which says why it has no q and k", session.text("#worked-note"))


def check_export(checks, session, choose):
    page = session.page
    layer, head = choose.heads(1)[0]
    session.open(layer, head)
    pin(session, *choose.cells(1)[0])
    root = xml.fromstring(downloaded(page, page.locator("#worked-export").click)[1])
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    cells = [cell for selector in (".features", ".steps", ".softmax", ".why") for row in table(session, selector) for cell in row if cell.strip()]
    missing = [text for text in [*cells, session.text("#why-told")] if text not in words]
    checks.that(words[0] == f"{title(layer, head)}: {session.text('#worked-title')}" and not missing, "the figure has the head's name and every number", (words[0], missing[:5]))
    squares = [element.get("fill") for element in root.iter("{http://www.w3.org/2000/svg}rect") if element.get("stroke-width")]
    shown = [f"#{red:02x}{green:02x}{blue:02x}" for strip in page.locator("#worked-body .squares[role=img]:not(.bounds *)").all() for red, green, blue, _ in zip(*[iter(pixels_of(strip))] * 4)]
    width = len(table(session, ".features")) - 1
    del shown[3 * width:4 * width]  # the page shows q a second time, above the products of q with all keys; the figure does not
    checks.that(len(set(squares)) > 20 and squares == shown, "the figure has the page's coloured squares, in the same order", (len(squares), len(shown)))
    if not prints(page):
        return
    page.emulate_media(media="print")
    checks.that(page.locator(".softmax").is_visible() and not page.locator("#worked-export").is_visible(), "print: the numbers, without the button")


def floats(values):
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


class Arrays:
    """Random q, k, v, bias and mask, and the attention weights computed from them, for a page that is made from arrays."""

    def __init__(self, seed):
        draw = random.Random(seed)
        take = lambda *shape: [struct.unpack("f", struct.pack("f", draw.gauss(0, 1)))[0] for _ in range(math.prod(shape))]
        self.q, self.k, self.v = [take(QUERIES, WIDTH) for _ in range(HEADS)], [take(KEYS, WIDTH) for _ in range(HEADS // 2)], [take(KEYS, VALUES) for _ in range(HEADS // 2)]
        self.bias = [take(QUERIES, KEYS) for _ in range(HEADS)]
        self.attend = [float(s != 2 and t != 4) for t in range(QUERIES) for s in range(KEYS)]  # key 2 is masked for all queries, and query 4 may attend to no key
        self.weights, self.outputs = [], []
        for head in range(HEADS):
            rows = [softmax([self.score(head, t, s) for s in range(KEYS)]) for t in range(QUERIES)]
            self.weights.append(rows)
            self.outputs.append([[sum(row[s] * self.v[head // 2][s * VALUES + i] for s in range(KEYS)) for i in range(VALUES)] for row in rows])

    def score(self, head, t, s):
        if not self.attend[t * KEYS + s]:
            return -math.inf
        return SCALE * sum(self.q[head][t * WIDTH + i] * self.k[head // 2][s * WIDTH + i] for i in range(WIDTH)) + self.bias[head][t * KEYS + s]

    def write(self, data):
        data["encoding"] = "linear16"
        vectors = {"scale": SCALE, "root": False, "q": [[floats(x) for x in self.q]], "k": [[floats(x) for x in self.k]], "v": [[floats(x) for x in self.v]],
                   "bias": [[floats(x) for x in self.bias]], "attend": [[floats(self.attend)]]}
        tokens = lambda letter, count: {"pieces": [f"{letter}{i}" for i in range(count)], "special": []}
        data["texts"] = [{"text": "arrays", "queries": tokens("q", QUERIES), "keys": tokens("k", KEYS), "layers": 1, "heads": HEADS,
                          "weights": [[encoded([w for row in rows for w in row]) for rows in self.weights]], "vectors": vectors}]


def check_arrays(checks, session, arrays, choose):
    page = session.page
    for head in range(HEADS):
        session.open(0, head)
        t, s = choose.random.randrange(4), choose.random.choice([0, 1, 3, 4, 5, 6])
        pin(session, t, s)
        found, dot, steps, _ = worked(session)
        wrong = {name: error for name, error in found.items() if not error <= TOLERANCE}
        bias = arrays.bias[head][t * KEYS + s]
        checks.that(not wrong and abs(steps["biased"][1] - (SCALE * dot + bias)) <= TOLERANCE and f"{bias:.6f}" in steps["biased"][0] and "kept" in steps["score"][0],
                    f"head {head}: product, scale, bias and mask lead to the score", (wrong, steps))
        checks.that(abs(steps["weight"][1] - arrays.weights[head][t][s]) <= TOLERANCE, "the weight on the page equals that of the arrays, with bias, mask and shared keys", steps["weight"])
        for feature in range(VALUES):
            type_feature(page, feature)
            shown = float(table(session, ".values")[-1][4])
            checks.that(abs(shown - arrays.outputs[head][t][feature]) <= TOLERANCE, f"feature {feature} of the head's output", (shown, arrays.outputs[head][t][feature]))
        pin(session, t, 2)
        found, _, steps, _ = worked(session)
        checks.that("left out" in steps["score"][0] and steps["score"][1] == -math.inf and steps["weight"][1] == 0, "a masked key has the score -∞ and the weight 0", steps)
        pin(session, 4, s)
        _, _, steps, _ = worked(session)
        checks.that("every key is masked" in steps["weight"][0] and steps["weight"][1] == 0, "a row whose keys are all masked says so", steps)
        page.keyboard.press("Escape")


def check_without(checks, session, choose, wanted):
    session.open(*choose.heads(1)[0])
    pin(session, *choose.cells(1)[0])
    checks.that(wanted in session.text("#worked-note") and not session.page.locator("#worked-export").is_visible(), f"says why: {wanted}", session.text("#worked-note"))


def drop(data):
    del data["texts"][0]["vectors"]


def leave_out(data):
    drop(data)
    data["texts"][0]["left_out"] = 18.87
    data["limit"] = 4


def rounds(test):
    choose = test.choose
    arrays = Arrays(test.seed)
    return [
        ("model", check_model, [choose], {}),
        ("kept", check_kept, [choose], {}),
        ("export", check_export, [choose], {}),
        ("arrays", check_arrays, [arrays, choose], test.made(arrays.write)),
        ("weights only", check_without, [choose, "attention weights only"], test.made(drop)),
        ("left out", check_without, [choose, "would take 18.9 MB, and at most 4 MB"], test.made(leave_out)),
    ]


if __name__ == "__main__":
    run(__doc__, rounds)
