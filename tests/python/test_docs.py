"""Docstrings, types, stub and README are complete, and examples in them run and print what they show."""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib.util
import inspect
import io
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import polyhead
from polyhead import _core

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(polyhead.__file__).resolve().parent
README = ROOT / "python" / "README.md"
MINILM = Path(os.environ.get("POLYHEAD_MINILM_DIR", "none"))

TORCH = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
needs_torch = pytest.mark.skipif(not TORCH, reason="torch or transformers is not installed")


# --- the public names of the package


def modules() -> list[ModuleType]:
    names = [*(["polyhead.torch", "polyhead.transformers", "polyhead.patch", "polyhead.distributed"] if TORCH else []), *(["polyhead.jax"] if importlib.util.find_spec("jax") else [])]
    return [polyhead, *map(importlib.import_module, names)]


def names_of(module: ModuleType) -> list[str]:
    listed: list[str] | None = getattr(module, "__all__", None)
    if listed is not None:
        return listed
    return [name for name, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")]


@dataclass(frozen=True)
class Public:
    """A public name. `signature` is None for names that users do not call, such as properties and classes of results."""

    name: str
    value: Any
    doc: str
    signature: inspect.Signature | None


# Classes whose objects users do not construct: results of calls, and protocols.
RESULTS = {"polyhead.Gradients", "polyhead.SecondGradients", "polyhead.LayerGradients", "polyhead.TopKeys", "polyhead.Capture", "polyhead.CapturedCall", "polyhead.MissedCall", "polyhead.Saved", "polyhead.patch.Patch", "polyhead.torch.SdpaReplacement", "polyhead.distributed.Communicator", "polyhead.distributed.Transfer"}


def own_doc(value: Any) -> str:
    """Returns the docstring of an object. An inherited docstring, which inspect.getdoc would return, does not count."""
    return inspect.cleandoc(value.__doc__ or "")


def collect() -> Iterator[Public]:
    for module in modules():
        yield Public(module.__name__, module, own_doc(module), None)
        for name in names_of(module):
            value, full = getattr(module, name), f"{module.__name__}.{name}"
            if inspect.isclass(value):
                yield Public(full, value, own_doc(value), None if full in RESULTS else inspect.signature(value))
                for part, member in vars(value).items():
                    if part.startswith("_") and part != "__call__" or not (inspect.isfunction(member) or isinstance(member, property)):
                        continue
                    signature = inspect.signature(member) if inspect.isfunction(member) else None
                    yield Public(f"{full}.{part}", member, own_doc(member), signature)
            elif callable(value):
                yield Public(full, value, own_doc(value), inspect.signature(value))


PUBLIC = {public.name: public for public in collect()}
CALLED = {name: public for name, public in PUBLIC.items() if public.signature is not None and set(public.signature.parameters) - {"self"}}

public_names = pytest.mark.parametrize("name", PUBLIC)
called_names = pytest.mark.parametrize("name", CALLED)


def section(doc: str, title: str) -> str:
    """Returns the indented lines below "Title:", or an empty text."""
    found = re.search(rf"^{title}:\n((?:(?: {{4}}.*)?\n)*(?: {{4}}.*))", doc, re.MULTILINE)
    return found.group(1) if found else ""


def entries(doc: str, title: str) -> dict[str, str]:
    """Returns {name: text} of a section, whose entries have the form "name, name: text"."""
    result: dict[str, str] = {}
    for entry in re.split(r"^ {4}(?=\S)", section(doc, title), flags=re.MULTILINE)[1:]:
        listed, _, text = entry.partition(":")
        result |= {name.strip(): text for name in listed.split(",")}
    return result


def is_array(annotation: object) -> bool:
    return str(annotation) in ("Array", "Tensor", "Tensor | None")


def arguments(public: Public) -> dict[str, inspect.Parameter]:
    assert public.signature is not None
    return {name: parameter for name, parameter in public.signature.parameters.items() if name != "self"}


# --- docstrings


def test_the_lists_are_not_empty() -> None:
    """The lists of names must not be empty, because then the other tests of this file would pass without checking anything."""
    assert len(PUBLIC) >= 30 and len(CALLED) >= 15
    assert {"polyhead.sdpa", "polyhead.MultiHeadAttention.forward", "polyhead.Saved.maps", "polyhead.Page.save"} <= CALLED.keys()


@needs_torch
def test_the_lists_have_torch_and_transformers() -> None:
    expected = {"torch.scaled_dot_product_attention", "torch.MultiheadAttention.forward", "torch.GatedAttention", "transformers.attention_forward"}
    assert {f"polyhead.{name}" for name in expected} <= CALLED.keys()


@public_names
def test_every_public_name_says_what_it_is(name: str) -> None:
    if name.endswith(".__version__"):
        return
    first = PUBLIC[name].doc.split("\n\n")[0]
    assert len(first) >= 20 and first.rstrip().endswith((".", "::", ":")), f"{name}: {first!r}"
    assert "tuple(" not in first and not first.startswith(PUBLIC[name].name.rpartition(".")[2] + "("), "a generated docstring"


def described_arguments(name: str) -> dict[str, str]:
    """Returns the entries of the section Args. The entry "options: as given to `sdpa`" stands for every argument that sdpa has, too, and that has no other entry."""
    described = entries(CALLED[name].doc, "Args")
    if "options" not in described or "options" in arguments(CALLED[name]):
        return described
    text = described.pop("options")
    (target,) = (entries(PUBLIC[target].doc, "Args") for target in refers_to(text))
    return {argument: text for argument in arguments(CALLED[name]) if argument in target} | described


@called_names
def test_every_argument_is_described(name: str) -> None:
    described, given = described_arguments(name), arguments(CALLED[name])
    assert given.keys() - described.keys() == set(), "arguments that Args does not describe"
    assert described.keys() - given.keys() == set(), "entries of Args that are no arguments"
    assert all(text.strip() for text in described.values())


def refers_to(text: str) -> list[str]:
    """Returns the public names to which a text such as "as given to `sdpa`" refers."""
    found = re.findall(r"\bas (?:given to |in |the |of )?`(?:polyhead\.)?([\w.]+)", text)
    whole = [f"polyhead.{reference}" for reference in found]
    return [name for full in whole for name in ([full] if full in PUBLIC else [public for public in PUBLIC if public.endswith(full.removeprefix("polyhead"))])]


@called_names
def test_every_array_has_a_shape(name: str) -> None:
    described = described_arguments(name)
    arrays = [argument for argument, parameter in arguments(CALLED[name]).items() if is_array(parameter.annotation)]
    if name == "polyhead.view":
        arrays.append("source")
    for argument in arrays:
        text = described[argument]
        if "``[" in text or "shaped as" in text:
            continue
        targets = [entries(PUBLIC[target].doc, "Args") for target in refers_to(text)]
        assert any("``[" in target.get(argument, "") for target in targets), f"{argument}: has no shape, and refers to no description that has it: {text!r}"


@called_names
def test_errors_are_described(name: str) -> None:
    errors = entries(CALLED[name].doc, "Raises")
    assert errors, "no Raises"
    for error in errors:
        assert isinstance(getattr(builtins, error, None), type) and issubclass(getattr(builtins, error), Exception), error


@called_names
def test_results_are_described(name: str) -> None:
    public = CALLED[name]
    assert public.signature is not None
    annotation = str(public.signature.return_annotation)
    if inspect.isclass(public.value) or annotation == "None":
        return
    returns = section(public.doc, "Returns")
    assert returns, "no Returns"
    if "Array" in annotation or "Tensor" in annotation:
        assert "``[" in returns or "shaped as" in returns or "as copies" in public.doc, returns


@public_names
def test_properties_that_are_arrays_have_shapes(name: str) -> None:
    public = PUBLIC[name]
    if isinstance(public.value, property) and "Array" in str(inspect.signature(public.value.fget).return_annotation):  # type: ignore[arg-type]
        assert "``[" in public.doc


# Functions and classes that compute a published formula, and the reference that their docstring must name.
SOURCES = {
    "polyhead.sdpa": r"Vaswani et al\. 2017, equation 1\b",
    "polyhead.sdpa_backward": r"Dao et al\. 2022, appendix B",
    "polyhead.sdpa_jvp": r"Pearlmutter 1994, section 3\b",
    "polyhead.maps": r"Dao et al\. 2022, appendix B",
    "polyhead.head_divergence": r"Lin 1991",
    "polyhead.rollout": r"Abnar and Zuidema 2020, section 3\b",
    "polyhead.dropout_keep_bits": r"Salmon et al\. 2011",
    "polyhead.MultiHeadAttention": r"Vaswani et al\. 2017, section 3\.2\.2",
    "polyhead.RotaryEmbedding": r"Su et al\. 2021, RoFormer, section 3\.2\.2",
    "polyhead.torch.scaled_dot_product_attention": r"Vaswani et al\. 2017, equation 1\b",
    "polyhead.torch.MultiheadAttention": r"Vaswani et al\. 2017, section 3\.2\.2",
    "polyhead.torch.GatedAttention": r"Jumper et al\. 2021, supplementary\s+algorithms",
    "polyhead.torch.attention_pair_bias": r"Abramson et al\. 2024, supplementary algorithm 24",
    "polyhead.torch.sequence_local_attention": r"Abramson et al\. 2024, supplementary algorithm 7\b",
    "polyhead.torch.triangle_attention": r"Jumper et al\. 2021, supplementary algorithms 13 and 14",
    "polyhead.transformers.attention_forward": r"Vaswani et al\. 2017, equation 1\b",
    "polyhead.distributed.sdpa": r"2310\.01889(.|\n)*2309\.14509",
    "polyhead.distributed.sdpa_backward": r"Dao et al\. 2022, appendix B(.|\n)*2310\.01889",
    "polyhead.distributed.attention": r"2310\.01889(.|\n)*2309\.14509",
    "polyhead.distributed.sequence_parallel": r"2310\.01889(.|\n)*2309\.14509",
}
OPTIONS = {"dropout": r"Srivastava et al\. 2014", "softcap": r"Gemma 2 \(2024\), section 2", "k": r"Ainslie et al\. 2023", "seed": r"Salmon et al\. 2011"}
UNITS = {
    "polyhead.head_statistics": ["nats", "positions"],
    "polyhead.num_threads": ["threads"],
    "polyhead.view": ["probabilities"],
    "polyhead.pooled_map": ["probability"],
    "polyhead.head_divergence": ["nats"],
    "polyhead.map_windows": ["positions"],
    "polyhead.distributed.sdpa": ["seconds"],
}


@pytest.mark.parametrize("name", SOURCES)
def test_published_formulas_have_their_source(name: str) -> None:
    if name not in PUBLIC:
        pytest.skip("torch or transformers is not installed")
    assert re.search(SOURCES[name], PUBLIC[name].doc)


@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_sdpa_have_their_source(option: str) -> None:
    assert re.search(OPTIONS[option], entries(PUBLIC["polyhead.sdpa"].doc, "Args")[option])


@pytest.mark.parametrize("name", UNITS)
def test_numbers_have_units(name: str) -> None:
    assert all(unit in PUBLIC[name].doc for unit in UNITS[name])


@called_names
def test_docstrings_say_that_dropout_is_a_probability(name: str) -> None:
    for argument, text in described_arguments(name).items():
        if argument in ("dropout", "dropout_p") and not refers_to(text):
            assert "probabilit" in text, f"{argument}: {text!r}"


# --- types


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_the_stub_has_every_name_of_the_extension() -> None:
    stub = PACKAGE / "_core.pyi"
    if not stub.is_file() and ROOT in PACKAGE.parents:
        pytest.skip("polyhead is imported from the source folder; the build writes the stub into wheels")
    tree = ast.parse(stub.read_text())
    told = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    variables = {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    there = {name: value for name, value in vars(_core).items() if not name.startswith("_")}
    assert there.keys() == told.keys() | variables
    for name, value in there.items():
        if isinstance(value, type):
            members = {member for member in vars(value) if not member.startswith("_")}
            node = told[name]
            assert isinstance(node, ast.ClassDef)
            assert members == {part.name for part in node.body if isinstance(part, ast.FunctionDef) and not part.name.startswith("_")}, name


@needs_torch
def test_types_are_right(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    """mypy, with the strict rules of pyproject.toml, finds no error in the package, in the examples and in typed_calls.py, which states the types of results."""
    pytest.importorskip("mypy")
    assert "strict = true" in (ROOT / "pyproject.toml").read_text()
    if not (PACKAGE / "_core.pyi").is_file():
        pytest.skip("polyhead is imported from the source folder without the stub; mypy would not know the extension")
    cache = pytestconfig.cache.mkdir("mypy") if getattr(pytestconfig, "cache", None) else os.devnull
    examples = sorted(path.stem for path in (ROOT / "examples" / "python").glob("*.py"))
    assert len(examples) > 3
    calls = ["typed_calls"] if importlib.util.find_spec("jax") else []
    # mypy finds an installed package by its name. With the path of site-packages, mypy would check all packages that are installed there.
    paths = [ROOT / "examples" / "python", ROOT / "tests" / "python", *([] if PACKAGE.parent.name == "site-packages" else [PACKAGE.parent])]
    # One run checks all, because mypy spends most of its time on torch and JAX.
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(cache), "-p", "polyhead", *(word for name in examples + calls for word in ("-m", name))]
    result = subprocess.run(command, capture_output=True, text=True, timeout=6000, cwd=tmp_path, env=os.environ | {"MYPYPATH": os.pathsep.join(map(str, paths))})
    assert result.returncode == 0, result.stdout + result.stderr
    assert int(re.search(r"no issues found in (\d+) source files", result.stdout)[1]) > 80 + len(examples)  # type: ignore[index]


# --- README

Block = tuple[int, str, str]


def blocks() -> list[Block]:
    """Returns (line, code, shown output) of every python block. The output is the text block that follows the code."""
    text = README.read_text()
    found = re.finditer(r"^```python\n(.*?)^```\n(?:\n?```text\n(.*?)^```\n)?", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start()) + 1, match[1], match[2] or "") for match in found]


MODEL = "all-MiniLM-L6-v2"


@needs_torch
def test_the_readme_runs_and_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, summary: list[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    has_model = (MINILM / "config.json").is_file()
    if has_model:
        (tmp_path / MODEL).symlink_to(MINILM.resolve())
    namespace: dict[str, Any] = {"__name__": "__main__"}
    run = [block for block in blocks() if has_model or MODEL not in block[1]]
    assert len(run) >= 8
    for line, code, shown in run:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * line + code, str(README), "exec"), namespace)
        assert printed.getvalue() == shown, f"python/README.md, line {line}"
    left_out = "" if has_model else f", without those that need {MODEL} (POLYHEAD_MINILM_DIR)"
    summary.append(f"python/README.md: {len(run)} blocks run{left_out}")


def test_the_readme_names_every_public_name() -> None:
    text = README.read_text()
    missing = [name for module in modules() for name in names_of(module) if not re.search(rf"\b{name}\b", text) and name not in ("__version__",)]
    assert not missing


def test_the_code_of_the_front_page_runs() -> None:
    found = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    assert found
    for code in found:
        exec(compile(code, "README.md", "exec"), {"__name__": "__main__"})
