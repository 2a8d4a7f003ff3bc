#!/usr/bin/env python3
"""In Chinese, the page shows no English except the words of the model and of its texts; in English, it shows no Chinese.

    language_test.py PAGE.html ARRAYS.safetensors [--seed N]

The test opens all views, menus and dialogs, and reads the visible text, the titles and the labels.
"""
import json
import pathlib
import re

from session import exported, reload, run

# Words that a Chinese page may have in Latin letters: names of file formats, keys of the keyboard, languages, people and methods.
NAMES = {"SVG", "PNG", "CSV", "JavaScript", "NaN", "Esc", "Enter", "Home", "End", "Language", "English", "Jensen", "Shannon", "Kobayashi", "Abnar", "Zuidema", "rollout", "softmax", "exp", "out"}

# Returns the page's own texts: what is visible, in tooltips, or for screen readers. Words of the user or the model are left out.
TEXTS = """() => {
  const texts = [];
  for (const element of document.querySelectorAll('body, body *')) {
    if (element.closest('script, style, noscript, bdi, #sentence, h1, #model') || !element.checkVisibility({ visibilityProperty: false })) continue;
    for (const node of element.childNodes) if (node.nodeType === Node.TEXT_NODE) texts.push(node.data);
    for (const name of ['title', 'aria-label', 'placeholder', 'alt']) if (element.hasAttribute(name)) texts.push(element.getAttribute(name));
  }
  for (const option of document.querySelectorAll('#text option')) texts.push(option.textContent.replace(/^\\d+: .*/, ''));
  return [...new Set(texts.map((text) => text.trim()).filter(Boolean))];
}"""


def states(session):
    """Brings the page into one state after the other, and yields the name of each state."""
    page = session.page
    yield "all heads"
    page.locator("#export summary").click()
    yield "menu of Export"
    page.locator("#menu summary").click()
    yield "menu"
    for dialog in ("help", "about"):
        page.locator(f'#menu [data-dialog="{dialog}"]').click()
        yield f"dialog {dialog}"
        page.keyboard.press("Escape")
        page.locator("#menu summary").click()
    page.keyboard.press("Escape")
    for scale in page.locator("#scale option").evaluate_all("(options) => options.map((option) => option.value)"):
        page.locator("#scale").select_option(scale)
        yield f"scale {scale}"
    for measure in page.locator("#measure option").evaluate_all("(options) => options.map((option) => option.value)"):
        page.locator("#measure").select_option(measure)
        yield f"measure {measure}"
    page.locator("#sort").check()
    yield "sorted"
    session.open(2, 7)
    yield "matrix"
    session.hover(3, 4)
    yield "matrix, a pair"
    page.keyboard.press("s")
    yield "without special tokens"
    page.keyboard.press("s")
    page.locator("#cover").fill("60")
    yield "strongest links"
    page.locator(".cells").focus()
    page.keyboard.press("ArrowDown")
    page.locator("#weighting").select_option("norm")
    yield "weights times norms"
    page.locator("#walk-open").click()
    for step in range(page.locator("#walk-steps li").count()):
        page.locator(f'#walk-steps [data-place="{step}"]').click()
        yield f"step {step + 1} of one head"
    page.locator('[data-view="lines"]').click()
    page.locator(".words.left .label").nth(3).click()
    yield "lines, a word"
    page.locator("#cover").fill("100")
    page.locator(".lines-body").press("ArrowRight")
    yield "lines, a pair"
    for view in page.locator("[data-view]:visible").evaluate_all("(buttons) => buttons.map((button) => button.dataset.view)"):
        page.locator(f'[data-view="{view}"]').click()
        yield view
        for key in ("Home", "ArrowDown", "ArrowRight"):
            page.keyboard.press(key)
        yield f"{view}, a pair"
        page.locator("#stage [data-index]:visible").nth(3).click()
        yield f"{view}, a word"
    page.locator("#weighting").select_option("attention")
    page.locator('[data-view="compare"]').click()
    yield "compare"
    page.locator('[data-view="matrix"]').click()
    page.keyboard.press("m")
    yield "mean of the heads"
    page.keyboard.press("Escape")
    page.locator("#sort").uncheck()
    page.locator('.thumb[data-layer="mean"]').click()
    yield "mean of all heads"
    page.keyboard.press("Escape")
    page.locator('[data-heads="distances"]').click()
    page.locator("#distances .cells").wait_for()
    yield "distances"
    page.locator("#distances .cells").hover()
    yield "distances, a pair"
    page.locator("#distances .label").nth(3).hover()
    yield "distances, a head"


def own_words(session):
    """Returns the words of the user or the model, which may be English in a Chinese page."""
    words = set(re.findall(r"[A-Za-z]+", f"{session.expected.data['title']} {session.expected.data['model']}"))
    for text in session.expected.data["texts"]:
        for side in ("queries", "keys"):
            words |= {word for piece in text.get(side, {}).get("pieces", []) for word in re.findall(r"[A-Za-z]+", piece)}
    return words


def left_in(texts, words):
    """Returns the texts that contain a word of two or more Latin letters that is not in `words`."""
    return [text for text in texts if any(word not in words for word in re.findall(r"[A-Za-z]{2,}", text))]


def check_chinese(checks, session):
    words = NAMES | own_words(session)
    checks.that(session.page.locator("html").get_attribute("lang") == "zh-CN", "lang is zh-CN")
    for state in states(session):
        texts = session.page.evaluate(TEXTS)
        checks.that(any("头" in text for text in texts) and not left_in(texts, words), f"state '{state}': all texts are Chinese", left_in(texts, words))
        wrong = left_in([session.page.title()], words)
        checks.that(not wrong, f"state '{state}': the title of the tab is Chinese", wrong)


def check_english(checks, session):
    checks.that(session.page.locator("html").get_attribute("lang") == "en", "lang is en")
    for state in states(session):
        texts = session.page.evaluate(TEXTS)
        wrong = [text for text in texts if re.search(r"[\u4e00-\u9fff]", text.replace("语言", "").replace("中文", ""))]
        checks.that(len(texts) > 20 and not wrong, f"state '{state}': all texts are English", wrong)
        wrong = [text for text in texts if re.search(r"\{\d|undefined|\[object", text)]
        checks.that(not wrong, f"state '{state}': no text has an unfilled placeholder", wrong)


def several_texts(data):
    """Adds what makes the page show more of its texts: unknown tokens, words of several pieces, segments, known links, masked keys, sets of maps and a second text."""
    text = data["texts"][0]
    text["queries"].update(unknown=[[2, "狐狸"], [5, "犬"]], segment=[0] * 6 + [1] * (len(text["queries"]["pieces"]) - 6))
    text["queries"]["pieces"][4] = "##fox"
    other = json.loads(json.dumps({**text, "group": 1, "name": "Decoder", "bias": "with"}))
    other["queries"]["pieces"][3] = "red"
    crossed = json.loads(json.dumps({**other, "name": "Cross-attention", "bias": "without"}))
    crossed["keys"] = {**crossed["queries"], "pieces": [str(at) for at in range(len(text["queries"]["pieces"]))], "unknown": []}
    text.update(blocked=[9], links={"sure": [[2, 3]], "possible": [[3, 4]]})
    data["texts"] += [other, crossed]


def check_several(checks, session):
    """The page is also in Chinese where it speaks of several texts, sets of maps, unknown tokens and merged words."""
    page, words = session.page, NAMES | own_words(session) | {"red", "language", "test", "py", "polyhead"}

    def read(state):
        texts = page.evaluate(TEXTS)
        checks.that(len(texts) > 20 and not left_in(texts, words), f"several texts: {state}", left_in(texts, words))
    read("all heads")
    page.locator("#text").select_option("1")
    for tab in (2, 1):
        page.locator(f'[data-tab="{tab}"]').click()
        read(f"tab {tab}")
    page.locator("#text").select_option("0")
    session.open(1, 4)
    page.locator(".cells").click(position={"x": 60, "y": 60})
    read("a pair")
    page.locator("#merge").check()
    read("merged")
    page.keyboard.press("s")
    read("merged, without special tokens")
    page.locator("#merge").uncheck()
    session.open("rollout", "mean")
    read("rollout")
    session.open(1, 4)
    page.locator('[data-view="compare"]').click()
    for text in ("1", "2"):
        page.locator("#other-text").select_option(text)
        read(f"compared with text {text}")
        page.locator(".pane.a .label").nth(2).hover()
        read(f"compared with text {text}, a word")
    page.locator("#other-file").set_input_files(str(pathlib.Path(__file__)))
    page.locator("#partner .note:visible").wait_for()
    read("a file that is no page")


def check_files(checks, session):
    """Exported files are in the language of the page."""
    words = NAMES | own_words(session)
    for place in (None, (1, 3)):
        if place:
            session.open(*place)
        for kind, found in (("svg", r">([^<>]+)</text>"), ("csv", r'"([^"]+)"')):
            name, data = exported(session.page, kind)
            content = data.decode("utf-8-sig")
            wrong = left_in([name.removesuffix(kind), *re.findall(found, content)], words)
            checks.that(re.search(found, content) and not wrong, f"{name} is Chinese", wrong)


def check_width(checks, session):
    """Chinese characters are wider than Latin letters; all words of an exported figure must lie inside the figure."""
    page = session.page
    for address in ("", "#layer=1&head=3", "#layer=1&head=3&view=lines"):
        page.goto("about:blank")
        page.goto(session.url + address)
        session.drawn()
        outside = page.evaluate("""(svg) => {
          const place = document.createElement('div');
          place.innerHTML = svg;
          document.body.append(place);
          const figure = place.firstElementChild.getBoundingClientRect();
          const within = (box) => box.left >= figure.left && box.right <= figure.right && box.top >= figure.top;
          return [...place.querySelectorAll('text')].filter((text) => !within(text.getBoundingClientRect())).map((text) => text.textContent);
        }""", exported(page, "svg")[1].decode())
        checks.that(not outside, f"all words are inside the exported figure of the address '{address}'", outside)


def check_switch(checks, session):
    """Choosing a language in the menu changes all texts at once, and the address keeps the language."""
    page = session.page
    session.open(0, 5)
    session.hover(2, 3)
    before = page.evaluate(TEXTS)
    page.locator("#menu summary").click()
    page.locator("#lang").select_option("zh")
    page.keyboard.press("Escape")
    checks.that(session.text("#head-title") == "第 0 层 · 第 5 头" and "lang=zh" in page.url, "choosing Chinese in the menu changes the page and its address", page.url)
    reload(page)
    session.drawn()
    checks.that(session.text("#head-title") == "第 0 层 · 第 5 头", "a reload keeps the language")
    session.hover(2, 3)
    page.locator("#menu summary").click()
    page.locator("#lang").select_option("en")
    page.keyboard.press("Escape")
    session.hover(2, 3)
    after = page.evaluate(TEXTS)
    checks.that(after == before, "after switching back, all texts are as before", sorted(set(after) ^ set(before)))


def check_language(checks, session, wanted, why):
    checks.that(session.page.locator("html").get_attribute("lang") == wanted, f"{why}: {wanted}")


def rounds(test):
    def written(language):
        return test.made(lambda data: data.update(language=language))
    def read_chinese(data):
        text = data["texts"][0]
        text["text"] = "敏捷的棕色狐狸跳过了那只懒狗，" * 7
        text["queries"]["pieces"] = [piece + "敏捷的棕色狐狸" for piece in text["queries"]["pieces"]]
    chinese = {"locale": "zh-CN"}
    return [
        ("Chinese", check_chinese, [], chinese),
        ("English", check_english, [], {"locale": "en-GB"}),
        ("files", check_files, [], chinese),
        ("several texts", check_several, [], {**test.made(several_texts), **chinese}),
        ("width", check_width, [], {**test.made(read_chinese), **chinese}),
        ("switch", check_switch, [], {"locale": "en-US"}),
        ("written in Chinese", check_language, ["zh-CN", "a page for Chinese, an English reader"], {"drawn": False, **written("zh"), "locale": "en-US"}),
        ("written in English", check_language, ["en", "a page for English, a Chinese reader"], {"drawn": False, **written("en"), **chinese}),
        ("address", check_language, ["en", "the address before the page"], {"drawn": False, **written("zh"), "address": "lang=en", **chinese}),
        ("French", check_language, ["en", "a French reader"], {"drawn": False, "locale": "fr-FR"}),
    ]


if __name__ == "__main__":
    run(__doc__, rounds)
