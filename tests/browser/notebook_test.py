#!/usr/bin/env python3
"""Opens the page in <iframe srcdoc>, as a notebook shows it, and clicks in the page: in Chromium, and in Firefox if it is installed.

    notebook_test.py PAGE.html ARRAYS.safetensors [--seed N]
"""
import html
import pathlib
import shutil
import sys
import tempfile
import time

from session import Checks, Choose, Expected, parsed, started_browser, title

# The iframe that Page._repr_html_ (python/polyhead/_view.py) writes. A notebook adds the attribute sandbox if it does not trust the output.
FRAME = '<!doctype html><meta charset="utf-8"><h1>Notebook</h1><iframe srcdoc="{}" style="width:100%;height:720px;border:0" title="attention" {}></iframe>'
HOVER = """() => {
  const cells = document.querySelector('.cells'), box = cells.getBoundingClientRect(), side = box.width / %d;
  cells.dispatchEvent(new PointerEvent('pointermove', { bubbles: true, clientX: box.left + %g * side, clientY: box.top + %g * side }));
}"""


def write(page, folder, extra):
    path = folder / f"notebook{len(extra)}.html"
    path.write_text(FRAME.format(html.escape(page.read_text(encoding="utf-8"), quote=True), extra), encoding="utf-8")
    return path


def check_chromium(checks, browser, path, name, fits, expected, choose):
    tab = browser.new_page(viewport={"width": 1000, "height": 800})
    complaints = []
    tab.on("console", lambda message: complaints.append(message.text))
    tab.on("pageerror", lambda error: complaints.append(str(error)))
    tab.goto(path.as_uri())
    frame = tab.frame_locator("iframe")
    layer, head = choose.heads(1)[0]
    row, column = choose.cells(1)[0]
    try:
        frame.locator(f'.thumb[data-layer="{layer}"][data-head="{head}"]').click(timeout=20000)
        opened = " ".join(frame.locator("#head-title").text_content(timeout=20000).split())
        checks.that(opened == title(layer, head) and frame.locator("#head").is_visible(), f"{name}: a click opens a head", opened)
        tab.frames[1].evaluate(HOVER % (expected.columns, column + 0.5, row + 0.5))
        shown = frame.locator("#readout .weight").text_content(timeout=20000)
        checks.that(abs(float(shown) - expected.weight(layer, head, row, column)) < 6e-5, f"{name}: a cell shows its weight", shown)
        frame.locator('[data-view="lines"]').click(timeout=20000)
        checks.that(frame.locator(".lines").is_visible(), f"{name}: the button Lines shows the lines")
        frame.locator("#special").select_option("hide", timeout=20000)
        special = len(expected.queries["special"])
        checks.that(frame.locator(".words.left .label").count() == expected.rows - special, f"{name}: special tokens are hidden")
        frame.locator("#back").click(timeout=20000)
        checks.that(not frame.locator("#head").is_visible(), f"{name}: the button Back closes the head")
        frame.locator(f'.thumb[data-layer="{layer}"][data-head="{head}"]').click(timeout=20000)
        frame.locator('[data-view="matrix"]').click(timeout=20000)
    except Exception as error:
        checks.that(False, f"{name}: the controls can be used", str(error).splitlines()[0])
    if fits:
        heights = []
        for _ in range(3):
            tab.wait_for_timeout(300)
            heights.append(tab.evaluate("() => document.querySelector('iframe').clientHeight"))
        inner = tab.frames[1].evaluate("() => document.documentElement.scrollHeight")
        checks.that(len(set(heights)) == 1 and heights[0] == inner and inner != 720, f"{name}: the iframe becomes as high as the page and keeps this height", (heights, inner))
    checks.that(not complaints, f"{name}: the browser's console is empty", complaints)
    tab.close()


def check_firefox(checks, path, expected, choose):
    firefox = shutil.which("firefox-esr") or shutil.which("firefox")
    if not firefox:
        print("skip Firefox is not installed")
        return
    try:
        from marionette_driver import By, Wait
        from marionette_driver.errors import MarionetteException
        from marionette_driver.marionette import Marionette
    except ImportError:
        print("skip Firefox: the package marionette-driver is not installed")
        return
    driver = Marionette(bin=firefox, headless=True, gecko_log=str(path.with_name("firefox.log")))  # by default Firefox writes its log into the current folder
    try:
        driver.start_session()
        driver.navigate(path.as_uri())
        driver.switch_to_frame(driver.find_element(By.TAG_NAME, "iframe"))
        layer, head = choose.heads(1)[0]
        find = lambda selector: driver.find_element(By.CSS_SELECTOR, selector)
        until = lambda holds, seconds=60: Wait(driver, timeout=seconds).until(lambda _: holds())  # Firefox handles a click after the call returns

        def press(selector, holds):
            for _ in range(5):  # While the iframe still changes its height, a click may hit another element. Therefore try again.
                find(selector).click()
                try:
                    return until(holds, 4)
                except MarionetteException:
                    driver.execute_script("document.querySelector(arguments[0]).scrollIntoView({block: 'center'})", [selector])
            raise MarionetteException(f"no click on {selector} had its effect")

        drawn = "return document.querySelector('.thumb') && [...document.querySelectorAll('.thumb img')].every((image) => image.naturalWidth > 0)"
        until(lambda: driver.execute_script(drawn))
        press(f'.thumb[data-layer="{layer}"][data-head="{head}"]', lambda: find("#head").is_displayed())
        opened = find("#head-title").text
        checks.that(opened == title(layer, head), "Firefox: a click opens a head", opened)
        row, column = choose.cells(1)[0]
        driver.execute_script(f"({HOVER % (expected.columns, column + 0.5, row + 0.5)})()")
        shown = find("#readout .weight").text
        checks.that(abs(float(shown) - expected.weight(layer, head, row, column)) < 6e-5, "Firefox: a cell shows its weight", shown)
        press('[data-view="lines"]', lambda: find(".lines").is_displayed())
        press("#back", lambda: not find("#head").is_displayed())
        checks.that(True, "Firefox: the buttons Lines and Back work")
        heights = "return [document.documentElement.scrollHeight, frameElement.clientHeight]"
        for _ in range(20):  # the iframe gets the height of the page some time after the page's layout
            inner, outer = driver.execute_script(heights)
            if inner <= outer <= inner + 1:  # Firefox rounds heights with half a pixel
                break
            time.sleep(0.3)
        checks.that(inner <= outer <= inner + 1 and inner != 720, "Firefox: the iframe becomes as high as the page", (outer, inner))
    except Exception as error:
        checks.that(False, "Firefox: the controls can be used", str(error).splitlines()[:1] or type(error).__name__)
    finally:
        driver.quit()


def main():
    arguments = parsed(__doc__)
    expected = Expected.of(arguments)
    checks, choose = Checks(), Choose(arguments.seed, expected)
    with tempfile.TemporaryDirectory() as folder, started_browser() as browser:
        folder = pathlib.Path(folder)
        path = write(arguments.page, folder, "")
        check_chromium(checks, browser, path, "notebook", True, expected, choose)
        check_chromium(checks, browser, write(arguments.page, folder, 'sandbox="allow-scripts"'), "sandbox", False, expected, choose)
        check_firefox(checks, path, expected, choose)
    print(f"{checks.passed} passed, {checks.failed} failed")
    return 1 if checks.failed else 0


if __name__ == "__main__":
    sys.exit(main())
