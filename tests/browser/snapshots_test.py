#!/usr/bin/env python3
"""A page with snapshots of a training run has a slider over the training steps, which shows the maps of each step and keeps the chosen head and pair of words.

    snapshots_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""
import copy

from session import axe_violations, encoded, reload, run

STEPS = (0, 10, 40)


def part_of(step):
    return (step + 10) / 50  # a test's maps of this step are the model's maps times this factor, which is 1 for the last step


def add_steps(expected):
    """Gives the page's text three snapshots, which are not in the order of their steps, and adds a second text with two snapshots."""
    def edit(data):
        first = data["texts"][0]
        snapshots = []
        for name, steps in (("fox", (40, 0, 10)), ("other", (0, 40))):
            for step in steps:
                text = copy.deepcopy(first)
                text.pop("vectors", None)
                text.update(text=name, step=step, answer=f"answer {step}", group=len(snapshots))
                text["weights"] = [[encoded([part_of(step) * expected.weight(layer, head, t, s) for t in range(expected.rows) for s in range(expected.columns)]) for head in range(expected.heads)] for layer in range(expected.layers)]
                snapshots.append(text)
        data["texts"] = snapshots
    return edit


def add_tabs(data):
    """Gives each snapshot a second tab with another text, as the tab of a translator's decoder shows the translation."""
    data["texts"] = [{**copy.deepcopy(one), "name": name, "text": text} for one in data["texts"] for name, text in (("Encoder", one["text"]), ("Decoder", f"translated {one['text']} {one['step']}"))]


def shows(session, checks, step, place, pair, how):
    expected = session.expected
    wanted = part_of(step) * expected.weight(*place, *pair)
    shown = session.shown_weight()
    checks.that(session.text("#step-value") == f"{step} of 40" and session.text("#step-answer") == f"answer {step}" and abs(float(shown) - wanted) < 1e-4, f"{how}: the page shows step {step}, its maps, and the same pair of words", (session.text("#step-value"), shown, wanted))


def check_slider(checks, session, choose):
    page, slider = session.page, session.page.locator("#step")
    checks.that(page.locator("#text option").all_text_contents() == ["0: fox", "1: other"], "each text is listed once", page.locator("#text option").all_text_contents())
    place, pair = choose.heads(1)[0], choose.cells(1)[0]
    slider.fill("0")
    session.open(*place)
    page.goto(f"{page.url}&row={pair[0]}&column={pair[1]}")
    page.reload()
    shows(session, checks, 0, place, pair, "the first snapshot")
    slider.focus()
    page.keyboard.press("ArrowRight")
    shows(session, checks, 10, place, pair, "the right arrow key")
    page.keyboard.press("End")
    shows(session, checks, 40, place, pair, "the key End")
    page.keyboard.press("ArrowLeft")
    shows(session, checks, 10, place, pair, "the left arrow key")
    checks.that(slider.get_attribute("aria-valuetext") == "10 of 40: answer 10", "the slider tells screen readers the step and the model's answer", slider.get_attribute("aria-valuetext"))
    reload(page)
    shows(session, checks, 10, place, pair, "a reload")
    checks.that(not page.locator("#over").is_visible(), "measures are not averaged over the steps of a text")
    page.locator("#text").select_option(label="1: other")
    checks.that(page.locator("#step").get_attribute("max") == "1", "the slider has the steps of the other text")
    checks.that(page.locator("#over option").last.text_content().startswith("2 texts: "), "measures are averaged over the texts of one step", page.locator("#over option").all_text_contents())


def check_tabs(checks, session):
    page, slider = session.page, session.page.locator("#step")
    page.locator("#text").select_option(label="0: fox")
    slider.fill("0")
    page.locator("#tabs button", has_text="Decoder").click()
    shown = lambda: (page.locator("#step-control").is_visible(), session.text("#step-value"), session.text("#step-answer"), page.locator("#text").evaluate("(one) => one.selectedOptions[0]?.text"), session.text("#sentence"))
    checks.that(shown() == (True, "0 of 40", "answer 0", "0: fox", "translated fox 0"), "a tab with another text keeps the slider and the name of the text", shown())
    slider.focus()
    page.keyboard.press("ArrowRight")
    checks.that(shown() == (True, "10 of 40", "answer 10", "0: fox", "translated fox 10"), "the slider moves to the same tab of the next step", shown())
    checks.that(page.locator("#step-note").is_visible() and "moving average" in session.text("#step-note"), "a note says that the saved model may have other parameters", session.text("#step-note"))


def check_access(checks, session):
    for width in (1280, 390):
        session.resize(width)
        violations = axe_violations(session.page)
        checks.that(not violations and session.page.evaluate("() => document.documentElement.scrollWidth") <= width, f"accessible at {width} pixels", [one["id"] for one in violations])
    session.page.locator("#lang").evaluate("(one) => { one.value = 'zh'; one.dispatchEvent(new Event('change')); }")
    checks.that(session.text("#step-control").startswith("训练步") and "共 40 步" in session.text("#step-value"), "the slider speaks Chinese", session.text("#step-control"))


def check_none(checks, session):
    checks.that(not session.page.locator("#step-control, #step-note").filter(visible=True).count(), "a page without snapshots has no slider")


def rounds(test):
    made = test.made(add_steps(test.expected))
    tabs = lambda data: (add_steps(test.expected)(data), add_tabs(data))
    return [("slider", check_slider, [test.choose], made), ("tabs", check_tabs, [], test.made(tabs)), ("access", check_access, [], made), ("access in the dark", check_access, [], {**made, "color_scheme": "dark"}), ("none", check_none, [], {})]


if __name__ == "__main__":
    run(__doc__, rounds)
