#!/usr/bin/env python3
"""When the page was made, heads were switched off one at a time; the page shows how much the model's result changes without each head, and says what that means.

    without_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""
import random

from session import exported_rows, reload, run


def label(change):
    thousandths = 1000 * change
    return f"{thousandths:.2f}" if thousandths < 1 else f"{thousandths:.1f}" if thousandths < 100 else f"{thousandths:.0f}"


def check_badges(checks, session, changes):
    page = session.page
    checks.that(page.locator("#measure").input_value() == "without", "the page opens with the measure of switched-off heads")
    notes = {tuple(map(int, place.split("."))): note for place, note in page.evaluate(
        "() => [...document.querySelectorAll('#grid .thumb')].filter((one) => one.dataset.head !== 'mean').map((one) => [`${one.dataset.layer}.${one.dataset.head}`, one.dataset.note])")}
    checks.that(notes == {place: label(changes[place]) if place in changes else "" for place in notes}, f"the {len(changes)} heads that were switched off have badges, and the other heads have none", notes)
    shown = page.locator("#grid .badge:visible").all_text_contents()
    checks.that(sorted(shown) == sorted(map(label, changes.values())), "the badges are visible", shown)
    place = max(changes, key=changes.get)
    other = next(one for one in notes if one not in changes)
    spoken = page.locator(f'.thumb[data-layer="{place[0]}"][data-head="{place[1]}"]').get_attribute("aria-label")
    checks.that(spoken == f"Layer {place[0]} · Head {place[1]}, cosine lost without it {label(changes[place])} ‰", "a screen reader speaks the head's badge", spoken)
    spoken = page.locator(f'.thumb[data-layer="{other[0]}"][data-head="{other[1]}"]').get_attribute("aria-label")
    checks.that(spoken == f"Layer {other[0]} · Head {other[1]}", "the label of a head that was not switched off does not mention the measure", spoken)
    page.locator("#sort").check()
    first = page.locator("#grid .thumb").first
    checks.that((first.get_attribute("data-layer"), first.get_attribute("data-head")) == tuple(map(str, place)), "sorted, the largest change comes first")
    page.locator("#least").fill("50")
    kept = page.locator("#grid .thumb").count()
    checks.that(kept == sum(change >= 0.5 * max(changes.values()) for change in changes.values()), "the limit hides heads with a smaller change", kept)
    page.locator("#least").fill("0")
    page.locator("#sort").uncheck()
    page.locator("#measure").select_option("none")
    reload(page)
    session.drawn()
    checks.that(page.locator("#measure").input_value() == "none" and page.locator("#grid .badge:visible").count() == 0, "the address keeps the choice of no measure")


def check_head(checks, session, changes):
    page = session.page
    place = min(changes, key=changes.get)
    session.open(*place)
    badges = page.locator("#badges li").all_text_contents()
    checks.that(f"cosine lost without it {label(changes[place])} ‰" in badges, "an open head has a badge with its change", badges)
    page.locator("#back").click()
    with_others = [one for one in ((layer, head) for layer in range(session.expected.layers) for head in range(session.expected.heads)) if one not in changes][0]
    session.open(*with_others)
    checks.that(not any("cosine lost without it" in one for one in page.locator("#badges li").all_text_contents()), "an open head that was not switched off has no such badge")
    page.locator("#back").click()
    head, *rows = exported_rows(page)
    at = head.index("cosine lost without it in ‰")
    written = {(int(row[0]), int(row[1])): row[at] for row in rows}
    checks.that({one for one, value in written.items() if value} == changes.keys() and all(abs(float(written[one]) - 1000 * change) < 1e-5 for one, change in changes.items()), "the exported table has the changes", written)


def check_words(checks, session, wanted):
    page = session.page
    page.locator("#menu summary").click()
    page.locator('#menu [data-dialog="about"]').click()
    checks.that(page.locator("#without-note").is_visible() == wanted, "the page says what the number means" if wanted else "a page for which no head was switched off does not mention the measure")
    checks.that("It does not say which word decided the model's answer" in session.text("#about"), "the page says what attention weights do not show")
    options = page.locator("#measure option").evaluate_all("(all) => all.map((one) => one.value)")
    checks.that(("without" in options) == wanted, "the measure is offered only if heads were switched off", options)


def check_measure(checks, session, changes):
    """If the caller named and computed another measure of the change, the page shows its numbers unchanged, with this name and unit."""
    page = session.page
    place = min(changes, key=changes.get)
    spoken = page.locator(f'.thumb[data-layer="{place[0]}"][data-head="{place[1]}"]').get_attribute("aria-label")
    checks.that(spoken == f"Layer {place[0]} · Head {place[1]}, <i>loss added {changes[place]:.3g} nats", "the label of a head has the given name and unit of the measure", spoken)
    checks.that("<i>loss added" in page.locator("#measure option").all_text_contents() and page.locator("#grid i").count() == 0, "the list of measures has the given name, without rendering its HTML")
    session.open(*place)
    badges = page.locator("#badges li").all_text_contents()
    checks.that(f"<i>loss added {changes[place]:.3g} nats" in badges, "an open head has a badge with its change", badges)
    page.locator("#menu summary").click()
    page.locator('#menu [data-dialog="about"]').click()
    checks.that(not page.locator("#without-note").is_visible(), "the explanation of the cosine is not shown")


def rounds(test):
    expected = test.expected
    chosen = random.Random(test.seed).sample([(layer, head) for layer in range(expected.layers) for head in range(expected.heads)], 5)
    changes = dict(zip(chosen, (0.0421, 0.0023561, 0.000012, 0.31, 0.00093)))

    def switch_off(data):
        data["texts"][0]["without"] = [[layer, head, change] for (layer, head), change in changes.items()]

    def other_measure(data):
        data["texts"][0]["without"] = [[layer, head, -10 * change] for (layer, head), change in changes.items()]
        data["without_measure"] = {"name": "<i>loss added", "unit": "nats"}

    page = test.made(switch_off)
    return [
        ("badges", check_badges, [changes], page),
        ("head", check_head, [changes], page),
        ("words", check_words, [True], page),
        ("measure", check_measure, [{place: -10 * change for place, change in changes.items()}], test.made(other_measure)),
        ("plain", check_words, [False], {}),
    ]


if __name__ == "__main__":
    run(__doc__, rounds)
