"""Parts of the package that are imported on first use, and the error if a package that they need is missing."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import textwrap

import pytest

NEEDS = {"torch": "torch", "jax": "jax", "patch": "torch", "transformers": "torch", "distributed": None}
there = {name: package is None or importlib.util.find_spec(package) is not None for name, package in NEEDS.items()}


def output(code: str) -> str:
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True, timeout=600).stdout.strip()


@pytest.mark.parametrize("name", [name for name, is_there in there.items() if is_there])
def test_a_part_is_imported_when_it_is_first_used(name: str) -> None:
    told = output(
        f"""
        import json, sys
        import polyhead
        before = [part for part in ("torch", "jax", "polyhead.{name}") if part in sys.modules]
        listed = "{name}" in dir(polyhead)
        print(json.dumps([before, listed, polyhead.{name}.__name__, sorted(polyhead.{name}.__all__ if hasattr(polyhead.{name}, "__all__") else ["register"])]))
        """
    )
    before, listed, found, names = json.loads(told)
    assert before == [] and listed and found == f"polyhead.{name}" and names


MISSING = """
    import sys
    sys.modules["torch"] = sys.modules["jax"] = None    # as if they were not installed
    import polyhead
"""


@pytest.mark.parametrize("use", ["polyhead.{}", "from polyhead import {}", "import polyhead.{}"])
@pytest.mark.parametrize("name", [name for name, package in NEEDS.items() if package])
def test_a_missing_package_is_named_with_the_line_that_installs_it(name: str, use: str) -> None:
    told = output(MISSING + f"""
    try:
        {use.format(name)}
    except ImportError as error:
        print(type(error).__name__, error.name, error)
    """)
    package = NEEDS[name]
    sentence = {"torch": "PyTorch, which is not installed: pip install torch", "jax": "JAX 0.5 or later, which is not installed: pip install 'jax>=0.5'"}[str(package)]
    assert told == f"ModuleNotFoundError {package} polyhead.{name} needs {sentence}"


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


def test_another_name_is_an_attribute_error() -> None:
    told = output("import polyhead\nprint(hasattr(polyhead, 'tensorflow'), hasattr(polyhead, '_none'))")
    assert told == "False False"
