#!/usr/bin/env python3
"""A page of pooled maps shows the blocks of the arrays, names the tokens of each block, says what a cell means, and leaves out what blocks cannot show.

    pooled_test.py PAGE.html ARRAYS.safetensors [--seed N]

The pages are variants of PAGE.html with other data: up to 65,536 tokens of two layers of three heads.
"""
import base64
import pathlib
import random
import re
import struct
import sys
import tempfile

from session import ABSOLUTE, Checks, Session, axe_violations, check_quiet, exported, exported_rows, parsed, started_browser, variant

LAYERS, HEADS = 2, 3
WORDS = ["The", "quick", "brown", "fox", "jumps", "over", "the", "lazy", "dog", "internationalization", "<b>", "狐"]


class Pooled:
    """Random pooled maps, and what the page must show of them. If n tokens are pooled to `count` blocks, block i begins at token floor(i n / count)."""

    def __init__(self, seed, kind, tokens=65536, blocks=512, keys=None):
        self.random = random.Random(seed)
        self.kind, self.blocks = kind, blocks
        self.words = self.random.choices(WORDS, k=tokens)
        self.keys = keys
        self.key_blocks = blocks if keys is None else 3
        size = blocks * self.key_blocks
        self.codes = [[struct.pack(f"<{size}H", *self.random.choices((0, 1, 2, 900, 30000, 65534), k=size)) for _ in range(HEADS)] for _ in range(LAYERS)]

    def weight(self, layer, head, row, column):
        code = struct.unpack_from("<H", self.codes[layer][head], 2 * (row * self.key_blocks + column))[0]
        return max(0, code - 1) / 65533

    def side(self, words, blocks, index):
        first, last = (index * len(words)) // blocks, ((index + 1) * len(words)) // blocks - 1
        short = lambda word: word if len(word) <= 12 else word[:11] + "…"
        return (f"{first}–{last}", f"{first}–{last}: {short(words[first])} … {short(words[last])}") if last > first else (str(first), f"{first}: {short(words[first])}")

    def row(self, index):
        return self.side(self.words, self.blocks, index)

    def column(self, index):
        return self.side(self.keys or self.words, self.key_blocks, index)

    def edit(self, data):
        entry = {"text": "long " * 500, "queries": {"pieces": self.words, "special": []}, "layers": LAYERS, "heads": HEADS, "group": 0,
                 "weights": [[base64.b64encode(codes).decode() for codes in heads] for heads in self.codes], "pooled": self.kind, "blocks": [self.blocks, self.key_blocks]}
        if self.keys:
            entry["keys"] = {"pieces": self.keys, "special": []}
        data.update(texts=[entry], encoding="linear16")


def visible(session, selector):
    return session.page.locator(selector).first.is_visible()


def check_cells(checks, session, pooled):
    page = session.page
    for layer, head in ((0, 1), (1, 2)):
        page.goto(f"{session.url}#layer={layer}&head={head}")
        page.wait_for_selector(".cells")
        if layer == 1:
            page.locator('[data-zoom="1"]').click()
        wrong = []
        for _ in range(12):
            row, column = pooled.random.randrange(pooled.blocks), pooled.random.randrange(pooled.key_blocks)
            session.hover(row, column)
            headline, weight = session.text("#readout"), pooled.weight(layer, head, row, column)
            names = f"{pooled.row(row)[1]} → {pooled.column(column)[1]}"
            if not headline.startswith(names) or abs(float(session.shown_weight()) - weight) > ABSOLUTE:
                wrong.append((row, column, headline, names, weight))
            where = session.text("#where")
            if pooled.row(row)[0] not in where or pooled.column(column)[0] not in where or ("Largest" in where) != (pooled.kind == "largest"):
                wrong.append(where)
        checks.that(not wrong, f"{pooled.kind}, layer {layer}, head {head}: pointing at a cell shows its pooled number, and the tokens of its two blocks", wrong[:2])
    sums = [session.text("#row-sum"), session.text("#column-sum")]
    checks.that(any(sums) == (pooled.kind == "share"), f"{pooled.kind}: the sums of rows and columns are shown only for maps of shares", sums)
    listed = page.locator("#row-list .word").all_text_contents()
    weights = sorted((pooled.weight(1, 2, row, at) for at in range(pooled.key_blocks)), reverse=True)[:len(listed)]
    shown = [float(text) for text in page.locator("#row-list .number").all_text_contents()]
    checks.that(shown and max(abs(a - b) for a, b in zip(shown, weights)) <= ABSOLUTE, "the list of a row has the blocks with its largest numbers", (shown, weights))


def check_mean(checks, session, pooled):
    session.page.goto(f"{session.url}#layer=0&head=mean&row=1&column=2")
    session.page.wait_for_selector("#readout .weight")
    wanted = sum(pooled.weight(0, head, 1, 2) for head in range(HEADS)) / HEADS
    checks.that(abs(float(session.shown_weight()) - wanted) <= ABSOLUTE and "over heads" in session.text("#where"), "the map of the mean shows the mean of the heads' pooled numbers, and says so", session.text("#where"))


def check_words(checks, session, pooled):
    page = session.page
    page.goto(session.url)
    counts = len(pooled.words), len(pooled.keys or pooled.words)
    sizes = max((i + 1) * counts[0] // pooled.blocks - i * counts[0] // pooled.blocks for i in range(pooled.blocks)), max((i + 1) * counts[1] // pooled.key_blocks - i * counts[1] // pooled.key_blocks for i in range(pooled.key_blocks))
    note = session.text("#pooled-note")
    checks.that([int(number) for number in re.findall(r"\d+", note)] == [*counts, *sizes], "a note gives the numbers of tokens, and how many tokens a block has", note)
    checks.that("at most" in note or all(count % blocks == 0 for count, blocks in zip(counts, (pooled.blocks, pooled.key_blocks))), "if blocks have different numbers of tokens, the note says 'at most'", note)
    caption = session.text("#legend-caption")
    checks.that(("Largest attention weight" in caption, "Share of attention" in caption) == (pooled.kind == "largest", pooled.kind == "share"), "the legend says what a cell is", caption)
    page.locator("#menu summary").click()
    page.locator('#menu [data-dialog="about"]').click()
    about = page.locator("#about").inner_text()
    checks.that(("do not sum to 1" in about) == (pooled.kind == "largest") and "so that each row sums to 1" not in about, "the dialog About says whether rows sum to 1", about[:200])
    checks.that(all(name in about for name in ("previous", "entropy", "distance", "comparisons")), "the dialog About names the views and measures that pooled maps do not have")
    page.keyboard.press("Escape")
    measures = page.locator("#measure option").all_text_contents()
    checks.that(measures == ["none"] and not visible(session, "#measure"), "the page of a pooled map offers no measure that needs single tokens", measures)
    page.goto(f"{session.url}#layer=0&head=0&view=read&heads=distances&row=0&column=0&special=hide&measure=entropy")
    page.reload()
    page.wait_for_selector(".cells")
    shown = [name for name in ("#heads-as", "#views", "#cover-control", "#special-control", "#pieces-control", "#distances", "#worked", ".read", "#link-list .usual") if page.locator(name).count() and visible(session, name)]
    checks.that(not shown and visible(session, ".matrix"), "if the address names a view that needs single tokens, the page opens the matrix, without the controls that need single tokens", shown)
    ranked = [float(text) for text in page.locator("#link-list b").all_text_contents()]
    wanted = sorted((pooled.weight(layer, head, 0, 0) for layer in range(LAYERS) for head in range(HEADS)), reverse=True)
    checks.that(max(abs(a - b) for a, b in zip(ranked, wanted)) <= ABSOLUTE and len(ranked) == len(wanted), "heads are ranked by their pooled number for the pair of blocks", ranked)
    checks.that(len(session.text("#sentence")) <= 280, "a long text is not shown as a whole")


def check_files(checks, session, pooled):
    page = session.page
    page.goto(f"{session.url}#layer=1&head=0")
    page.wait_for_selector(".cells")
    table = exported_rows(page)
    row = pooled.random.randrange(pooled.blocks)
    wanted = [pooled.weight(1, 0, row, column) for column in range(pooled.key_blocks)]
    right = table[row + 1][0] == pooled.row(row)[1] and max(abs(float(a) - b) for a, b in zip(table[row + 1][1:], wanted)) <= 1e-6
    checks.that(len(table) == pooled.blocks + 1 and right and table[0][1] == pooled.column(0)[1] and "word" not in table[0][0], "CSV: rows and columns are named after the tokens of their blocks", table[0][:2])
    checks.that(str(len(pooled.words)) in (svg := exported(page, "svg")[1].decode()) and session.text("#legend-caption") in svg, "SVG: says that the map is pooled, and what a cell is", svg[:400])


def main():
    arguments = parsed(__doc__)
    checks = Checks()
    cases = [Pooled(arguments.seed, "largest"), Pooled(arguments.seed, "share", tokens=20000, blocks=96), Pooled(arguments.seed, "largest", tokens=1000, blocks=7, keys=["a", "b", "c", "=1+1", "e"])]
    with tempfile.TemporaryDirectory() as folder, started_browser() as browser:
        for at, pooled in enumerate(cases):
            path = variant(arguments.page, pooled.edit, pathlib.Path(folder) / f"pooled{at}.html")
            session = Session(browser, path, type("Expected", (), {"text": 0}))
            for check in (check_words, check_cells, check_mean, check_files):
                check(checks, session, pooled)
            for theme in ("light", "dark") if pooled.blocks < 512 else ():  # axe-core takes seconds for 512 blocks, and a page with fewer blocks has the same kinds of elements
                session.page.goto(f"{session.url}#layer=0&head=0&row=1&column=1&theme={theme}")
                session.page.reload()
                session.page.wait_for_selector("#readout .weight")
                wrong = [f"{one['id']}: {one['nodes'][0]['html'][:120]}" for one in axe_violations(session.page)]
                checks.that(not wrong, f"axe-core finds nothing: {theme}", wrong)
            for width in (390, 768, 1280, 1920):
                session.resize(width, 900)
                wide = session.page.evaluate("document.documentElement.scrollWidth")
                checks.that(wide <= width, f"at a width of {width} pixels, the page does not scroll sideways", wide)
            check_quiet(checks, session, f"page {at}")
            session.context.close()
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
