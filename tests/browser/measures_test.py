#!/usr/bin/env python3
"""The page's measures of heads agree with the arrays; heads are sorted and filtered by them.

    measures_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""
import math

from session import exported_rows, reload, run, title


def measured(expected, layer, head):
    """Returns {name of a measure: its mean over the rows of tokens that are not special}; measures that no row has are left out."""
    special, size = set(expected.queries["special"]), expected.rows
    rows = [t for t in range(size) if t not in special]
    p = lambda t, s: expected.weight(layer, head, t, s)
    mean = lambda numbers: sum(numbers) / len(numbers)
    total = {t: math.fsum(p(t, s) for s in range(size)) for t in rows}
    entropy = lambda t: -math.fsum(p(t, s) / total[t] * math.log2(p(t, s) / total[t]) for s in range(size) if p(t, s) > 0)
    pieces = expected.queries["pieces"]
    earlier = {t: [s for s in range(t) if pieces[s] == pieces[t]] for t in rows}
    again = [t for t in rows if earlier[t]]
    kind = lambda t, s: ("place", s) if s == 0 or s in special else ("distance", s - t)
    given = {}
    for t in rows:
        for s in range(size):
            given.setdefault(kind(t, s), {})[t] = p(t, s)

    def overlap(t):
        others = [[weight for row, weight in given[kind(t, s)].items() if row != t] for s in range(size)]
        predicted = [mean(weights) if weights else 0 for weights in others]
        return math.fsum(min(p(t, s) / total[t], predicted[s] / math.fsum(predicted)) for s in range(size)) if any(predicted) else 0

    values = {
        "first-token sink": [p(t, 0) for t in rows if t > 1 and pieces[t] != pieces[0]],
        "induction": [math.fsum(p(t, s + 1) for s in earlier[t]) for t in again],
        "duplicate token": [math.fsum(p(t, s) for s in earlier[t]) for t in again],
        "positional share": [overlap(t) for t in rows] if len(rows) > 1 else [],
    }
    return {name: mean(of_rows) for name, of_rows in values.items() if of_rows} | {
        "previous token": mean([p(t, t - 1) for t in rows if t > 0]),
        "next token": mean([p(t, t + 1) for t in rows if t + 1 < size]),
        "same token": mean([p(t, t) for t in rows]),
        "first token": mean([p(t, 0) for t in rows]),
        "separators": mean([math.fsum(p(t, s) for s in special if s > 0) for t in rows]),
        "entropy in bits": mean([entropy(t) for t in rows]),
        "distance in tokens": mean([math.fsum(p(t, s) * abs(t - s) for s in range(size)) / total[t] for t in rows]),
    }


def check_numbers(checks, session, choose):
    expected = session.expected
    names, *rows = exported_rows(session.page)
    rows = [dict(zip(names, row)) for row in rows]
    checks.that(len(rows) == expected.layers * expected.heads, "a row for each head", len(rows))
    worst = {}
    for row in rows:
        for name, wanted in measured(expected, int(row["layer"]), int(row["head"])).items():
            worst[name] = max(worst.get(name, 0), abs(float(row[name]) - wanted))
    # A weight stored in 16 bits has an error of up to 7.7e-6. Three measures have larger errors, because they sum over all weights of a row: entropy with the factors
    # log2(1/p), distance with the factors |t - s|, and positional share divides by a sum that may be small.
    allowed = {"entropy in bits": 1e-3, "distance in tokens": 1e-3, "positional share": 1e-3}
    checks.that(len(worst) == 11 and all(error <= allowed.get(name, 3e-5) for name, error in worst.items()), f"the exported measures of {len(rows)} heads agree with the arrays", worst)
    layer, head = choose.heads(1)[0]
    session.open(layer, head)
    shown = session.page.locator("#badges li").all_text_contents()
    want = measured(expected, layer, head)
    checks.that(f"previous token {round(100 * want['previous token'])} %" in shown and f"distance {want['distance in tokens']:.1f} tokens" in shown, "an open head shows its measures", shown)


def check_order(checks, session, name):
    expected, page = session.expected, session.page
    places = [(layer, head) for layer in range(expected.layers) for head in range(expected.heads)]
    values = {place: measured(expected, *place)[name] for place in places}
    wanted = sorted(places, key=lambda place: -values[place])
    page.locator("#measure").select_option(label=name.split(" in ")[0])
    page.locator("#sort").check()
    shown = lambda: [tuple(int(place) for place in one) for one in page.evaluate("() => [...document.querySelectorAll('#grid .thumb')].map((one) => [one.dataset.layer, one.dataset.head])")]
    order = shown()
    close = all(values[a] - values[b] > -1e-3 for a, b in zip(order, order[1:]))
    checks.that(sorted(order) == places and order[0] == wanted[0] and close, f"sorted by {name}: {order[:3]}", wanted[:3])
    checks.that(page.locator("#grid .thumb").first.get_attribute("aria-label").startswith(f"{title(*wanted[0])}, {name.split(' in ')[0]} "), "the label of a thumbnail has the head's value of the measure")
    page.locator("#least").fill("40")
    least = 0.4 * (max(values.values()) if " in " in name else 1)
    kept = [place for place in wanted if values[place] >= least]
    checks.that(shown() == [place for place in order if place in kept] and session.text("#least-value").endswith(f"{len(kept)} head{'' if len(kept) == 1 else 's'}"),
                f"with the limit of 40 %, {len(kept)} heads stay visible", (len(shown()), session.text("#least-value")))
    page.keyboard.press("Escape")
    reload(page)
    session.drawn()
    checks.that(shown() == [place for place in order if place in kept], "a reload keeps the order of the heads, and the limit below which heads are hidden")
    page.locator("#sort").uncheck()
    dim = page.locator("#grid .thumb.dim:not(.mean)").count()
    checks.that(dim == len(places) - len(kept), "when heads are ordered by layer, those below the limit are dimmed", dim)


def check_none(checks, session):
    checks.that(session.page.locator("#sort").is_visible() is False and session.page.locator("#grid .thumb.dim").count() == 0, "without a measure all heads are shown")


def rounds(test):
    choose = test.choose
    return [
        ("numbers", check_numbers, [choose], {}),
        ("previous", check_order, ["previous token"], {}),
        ("separators", check_order, ["separators"], {}),
        ("entropy", check_order, ["entropy in bits"], {}),
        ("none", check_none, [], {}),
    ]


if __name__ == "__main__":
    run(__doc__, rounds)
