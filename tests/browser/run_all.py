#!/usr/bin/env python3
"""Runs tests of the page one after the other in one browser, which takes a second to start.

    run_all.py PAGE.html ARRAYS.safetensors [NAME...]

NAME is that of a file without _test.py; none: all of them.
"""
import pathlib
import runpy
import sys
import traceback

import session

FOLDER = pathlib.Path(__file__).parent


def run_one(name, page, arrays):
    """The exit status of the test `name`."""
    sys.argv = [str(FOLDER / f"{name}_test.py"), page, arrays]
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code)
        return ended.code or 0
    except Exception:  # the other tests run all the same
        traceback.print_exc(file=sys.stdout)
        return 1
    return 0


def main():
    page, arrays, *names = sys.argv[1:]
    names = names or sorted(path.name.removesuffix("_test.py") for path in FOLDER.glob("*_test.py"))
    failed = []
    with session.shared_browser():
        for name in names:
            print(f"== {name}", flush=True)
            if run_one(name, page, arrays):
                failed.append(name)
    if failed:
        print("failed:", *failed)
    print(f"{len(names) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
