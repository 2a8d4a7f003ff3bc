"""Some modules of the package are imported on first use. Also tests the error if a package that such a module needs is missing."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import textwrap

import pytest

from effort import QUICK

NEEDS = {"torch": "torch", "jax": "jax", "patch": "torch", "transformers": "torch", "distributed": None}
there = {name: package is None or importlib.util.find_spec(package) is not None for name, package in NEEDS.items()}


def output(code: str) -> str:
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True, timeout=600).stdout.strip()


PARTS = [name for name in ("jax", "distributed", "torch", "transformers", "patch") if there[name]]  # in this order, because none of these modules imports a later one


@pytest.mark.parametrize("names", [PARTS] if QUICK else [[name] for name in PARTS], ids=str)
def test_a_part_is_imported_when_it_is_first_used(names: list[str]) -> None:
    """In a quick run, one process tests all modules, because importing torch takes seconds."""
    told = output(
        f"""
        import json, sys
        import polyhead
        early = [name for name in sys.modules if name in ("torch", "jax") or name in [f"polyhead.{{part}}" for part in {names}]]
        print(json.dumps([early, [part in dir(polyhead) for part in {names}]]))
        for name in {names}:
            early = f"polyhead.{{name}}" in sys.modules
            part = getattr(polyhead, name)
            print(json.dumps([early, part.__name__, sorted(getattr(part, "__all__", ["register"])), [each for each in ("torch", "jax") if each in sys.modules]]))
        """
    )
    first, *each = map(json.loads, told.splitlines())
    assert first == [[], [True] * len(names)]
    loaded: set[str] = set()
    for name, (early, found, public, packages) in zip(names, each, strict=True):
        loaded |= {NEEDS[name]} - {None}
        assert not early and found == f"polyhead.{name}" and public and set(packages) == loaded


MISSING = """
    import sys
    sys.modules["torch"] = sys.modules["jax"] = None    # as if torch and JAX were not installed
    import polyhead
"""


@pytest.mark.parametrize("name", [name for name, package in NEEDS.items() if package])
def test_a_missing_package_is_named_with_the_line_that_installs_it(name: str) -> None:
    told = output(MISSING + f"""
    for use in ("polyhead.{name}", "from polyhead import {name}", "import polyhead.{name}"):
        try:
            exec(use)
        except ImportError as error:
            print(type(error).__name__, error.name, error)
    """)
    package = NEEDS[name]
    sentence = {"torch": "PyTorch, which is not installed: pip install torch", "jax": "JAX 0.5 or later, which is not installed: pip install 'jax>=0.5'"}[str(package)]
    assert told.splitlines() == [f"ModuleNotFoundError {package} polyhead.{name} needs {sentence}"] * 3


@pytest.mark.parametrize("name", ["attention", "sequence_parallel", "TorchCommunicator"])
def test_parts_of_distributed_that_need_torch_say_so(name: str) -> None:
    told = output(MISSING + f"""
    try:
        polyhead.distributed.{name}
    except ImportError as error:
        print(error, callable(polyhead.distributed.sdpa))
    """)
    assert told == f"polyhead.distributed.{name} needs PyTorch, which is not installed: pip install torch True"


def test_help_and_dir_work_without_the_packages() -> None:
    told = output(MISSING + """
    import pydoc
    text = pydoc.render_doc(polyhead)
    print([name for name in ("torch", "jax", "patch", "transformers", "distributed", "sdpa") if name in dir(polyhead)], "sdpa(" in text)
    """)
    assert told == "['distributed', 'sdpa'] True"


def test_an_unknown_name_is_an_attribute_error() -> None:
    told = output("import polyhead\nprint(hasattr(polyhead, 'tensorflow'), hasattr(polyhead, '_none'))")
    assert told == "False False"
