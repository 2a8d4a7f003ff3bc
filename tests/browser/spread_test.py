#!/usr/bin/env python3
"""Over several texts, the page shows the mean and the standard deviation of each measure, and sorts and filters heads by the mean.

    spread_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""
import copy
import statistics

from compare_test import Maps, add_texts
from measures_test import measured
from session import exported_rows, reload, run


def texts_of(expected):
    """Returns the expected contents of the page's text and of the two texts that add_texts() adds, in the form that measured() reads."""
    other, less = copy.copy(expected), copy.copy(expected)
    other.weight = lambda layer, head, t, s: Maps(expected, 5).row(layer, head, t)[s]
    other.queries = {**expected.queries, "pieces": [expected.queries["pieces"][0], "one", "grey", "cat", *expected.queries["pieces"][4:]]}
    less.weight = expected.weight
    less.rows = less.columns = expected.rows - 2
    less.queries = {"pieces": expected.queries["pieces"][:less.rows], "special": [0]}
    return [expected, other, less]


def of_text(one, layer, head):
    """Returns the measures of one text. The measure "separators" is left out if the text has no separators."""
    return {name: value for name, value in measured(one, layer, head).items() if name != "separators" or any(s > 0 for s in one.queries["special"])}


def check_numbers(checks, session, choose, every):
    page = session.page
    page.locator("#measure").select_option("previous")
    page.locator("#over").select_option("all")
    page.wait_for_function("() => document.querySelector('.thumb[data-note*=\"±\"]')")
    head, *rows = exported_rows(page)
    worst = {}
    for row in rows:
        for name, values in every[int(row[0]), int(row[1])].items():
            at = head.index(name)
            wanted = (statistics.mean(values), statistics.stdev(values))
            worst[name] = max(worst.get(name, 0), *(abs(float(row[at + i]) - one) for i, one in enumerate(wanted)))
    allowed = {"entropy in bits": 1e-3, "distance in tokens": 1e-3, "positional share": 1e-3}
    checks.that(len(worst) == 11 and all(error <= allowed.get(name, 3e-5) for name, error in worst.items()), f"the exported means and standard deviations of {len(rows)} heads over three texts agree with the arrays", worst)
    place = choose.heads(1)[0]
    values = every[place]["previous token"]
    errors = (-3e-5, 0, 3e-5)  # weights stored in 16 bits may have these errors, which may change how a percentage is rounded
    labels = {f"{round(100 * (statistics.mean(values) + of_mean))} % ± {round(100 * abs(statistics.stdev(values) + of_spread))} %" for of_mean in errors for of_spread in errors}
    thumb = page.locator(f'.thumb[data-layer="{place[0]}"][data-head="{place[1]}"]')
    checks.that(any(thumb.get_attribute("aria-label").endswith(f", previous token {label}") for label in labels), "a thumbnail shows mean and standard deviation", (thumb.get_attribute("aria-label"), labels))
    session.open(*place)
    checks.that(any(f"previous token {label}" in page.locator("#badges li").all_text_contents() for label in labels), "an open head shows mean and standard deviation", page.locator("#badges li").all_text_contents())


def check_order(checks, session, every):
    page = session.page
    checks.that(page.locator("#over").input_value() == "text", "by default the measures are those of the text that is shown", page.locator("#over").input_value())
    page.locator("#measure").select_option("entropy")
    page.locator("#over").select_option("all")
    page.locator("#sort").check()
    page.wait_for_function("() => document.querySelector('#grid .row.sorted .thumb[data-note*=\"±\"]')")
    mean = {place: statistics.mean(values["entropy in bits"]) for place, values in every.items()}
    shown = lambda: [tuple(map(int, one)) for one in page.evaluate("() => [...document.querySelectorAll('#grid .thumb')].map((one) => [one.dataset.layer, one.dataset.head])")]
    order = shown()
    checks.that(sorted(order) == sorted(mean) and all(mean[a] - mean[b] > -1e-3 for a, b in zip(order, order[1:])), "heads are sorted by the mean over the texts")
    page.locator("#least").fill("60")
    kept = [place for place in order if mean[place] >= 0.6 * max(mean.values())]
    checks.that(shown() == kept, f"the limit applies to the mean over the texts, which leaves {len(kept)} heads", len(shown()))
    reload(page)
    session.drawn()
    page.wait_for_function("() => document.querySelector('#grid .row.sorted .thumb[data-note*=\"±\"]')")
    checks.that(shown() == kept, "a reload keeps the filter")
    page.locator("#over").select_option("text")
    checks.that("±" not in page.locator("#grid .thumb").first.get_attribute("data-note"), "measures of this text alone have no standard deviation")


def check_one(checks, session):
    checks.that(not session.page.locator("#over").is_visible(), "a page with one text does not offer means over texts")


def rounds(test):
    expected = test.expected
    every = {}
    for one in texts_of(expected):
        for place in [(layer, head) for layer in range(expected.layers) for head in range(expected.heads)]:
            for name, value in of_text(one, *place).items():
                every.setdefault(place, {}).setdefault(name, []).append(value)
    three = test.made(add_texts(expected))
    return [
        ("numbers", check_numbers, [test.choose, every], three),
        ("order", check_order, [every], three),
        ("one", check_one, [], {}),
    ]


if __name__ == "__main__":
    run(__doc__, rounds)
