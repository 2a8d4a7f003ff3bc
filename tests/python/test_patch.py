"""Tests when a patch is applied and when the package's own methods are restored, with a package that is made in this file."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import polyhead.patch
from polyhead.patch import Patch, _replace


class Own:
    def forward(self, x: int, flag: bool = False) -> str:
        return f"own {x}"


class Inherits(Own):
    pass


def replacement(own: Any, precision: str, self: Own, x: int, flag: bool = False) -> str:
    return f"ours {x}" if not flag else own(self, x, flag)


OWN = Own.forward


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[_replace._Package]:
    modules = {"folded": types.ModuleType("folded"), "folded.layers": types.ModuleType("folded.layers")}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    modules["folded.layers"].Own = Own  # type: ignore[attr-defined]
    yield made()
    assert Own.__dict__["forward"] is OWN
    Own.forward = OWN  # type: ignore[method-assign]


def made(*parameters: str, known: tuple[str, ...] = (), **changes: str) -> _replace._Package:
    row = {"module": "folded.layers", "owner": "Own", "name": "forward"} | changes
    method = _replace.Method(**row, parameters=parameters or ("x", "flag"), known=known, replacement=replacement)
    return _replace._Package("folded", ("folded",), ("folded-protein",), (method,))


def test_a_patch_applies_at_once_to_objects_that_exist(package: _replace._Package) -> None:
    existing, child = Own(), Inherits()
    patch = Patch(package)
    assert [x.forward(1) for x in (existing, child, Own())] == ["ours 1"] * 3
    assert existing.forward(2, flag=True) == "own 2"
    assert patch.applied and "applied" in repr(patch)
    patch.undo()
    assert [x.forward(1) for x in (existing, child, Own())] == ["own 1"] * 3
    assert not patch.applied and "undone" in repr(patch)
    patch.undo()  # a second undo() changes nothing
    assert Own.forward is OWN


def test_a_with_block_undoes_the_patch_also_after_an_exception(package: _replace._Package) -> None:
    with Patch(package) as patch:
        assert Own().forward(1) == "ours 1" and patch.applied
    assert Own().forward(1) == "own 1"
    with pytest.raises(KeyError), Patch(package):
        raise KeyError("x")
    assert Own().forward(1) == "own 1"
    with patch:  # a patch can be applied again
        assert Own().forward(1) == "ours 1"
        with patch:
            assert Own().forward(1) == "ours 1"
        assert Own().forward(1) == "ours 1"
    assert Own().forward(1) == "own 1"


@pytest.mark.parametrize("first", [0, 1])
def test_patches_overlap_in_any_order(package: _replace._Package, first: int) -> None:
    patches = [Patch(package), Patch(package)]
    patches[first].undo()
    patches[first].undo()
    assert Own().forward(1) == "ours 1"
    with Patch(package):
        assert Own().forward(1) == "ours 1"
    assert Own().forward(1) == "ours 1"
    patches[1 - first].undo()
    assert Own().forward(1) == "own 1"


def test_a_block_inside_a_permanent_patch_leaves_it(package: _replace._Package) -> None:
    permanent = Patch(package)
    with Patch(package):
        pass
    assert Own().forward(1) == "ours 1"
    permanent.undo()


def test_a_method_that_was_wrapped_meanwhile_stays_wrapped(package: _replace._Package) -> None:
    patch = Patch(package)
    ours = Own.forward
    Own.forward = lambda self, x: f"wrapped {ours(self, x)}"  # type: ignore[method-assign,assignment,misc]
    assert Own().forward(1) == "wrapped ours 1"
    patch.undo()
    assert Own().forward(1) == "wrapped own 1"
    Own.forward = OWN  # type: ignore[method-assign]


def test_patches_of_several_threads_at_once_are_undone(package: _replace._Package) -> None:
    errors: list[str] = []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        for _ in range(300):
            with Patch(package):
                found = Own().forward(1)
                if found != "ours 1":
                    errors.append(found)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and Own.forward is OWN and package.patches == 0


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (made("x", "mask"), r"polyhead\.patch\.folded: folded\.layers\.Own\.forward of folded takes \(x, flag\), and polyhead knows \(x, mask\)"),
        (made("x"), r"takes \(x, flag\), and polyhead knows \(x\)"),
        (made("x", "flag", "third"), r"takes \(x, flag\)"),
        (made(owner="Other"), r"has no folded\.layers\.Other\.forward; polyhead does not know this version"),
        (made(name="chunk"), r"has no folded\.layers\.Own\.chunk"),
        (made(module="folded.other"), r"has no folded\.other\.Own\.forward"),
    ],
)
def test_an_unknown_version_is_refused_by_name(package: _replace._Package, other: _replace._Package, message: str) -> None:
    with pytest.raises(NotImplementedError, match=message):
        Patch(other)
    assert Own.forward is OWN and other.patches == 0


def test_nothing_is_replaced_if_one_method_is_unknown(package: _replace._Package) -> None:
    both = _replace._Package("folded", ("folded",), ("folded-protein",), package.methods + made(owner="Other").methods)
    with pytest.raises(NotImplementedError):
        Patch(both)
    assert Own.forward is OWN


def test_further_arguments_that_are_known_are_allowed(package: _replace._Package) -> None:
    with Patch(made("x", known=("flag", "others"))):
        assert Own().forward(1) == "ours 1"


def test_a_missing_package_is_an_import_error() -> None:
    with pytest.raises(ImportError, match=r"polyhead\.patch\.folded: folded is not installed \(folded-protein\)"):
        Patch(made())


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Writes a package whose module `layers` or `__init__` has the given code."""

    def write(name: str, layers: str, init: str = "") -> None:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(init)
        if layers:
            (tmp_path / name / "layers.py").write_text(layers)

    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_a_module_that_cannot_be_imported_says_why(broken: Callable[..., None]) -> None:
    """The message gives the import error and does not speak of an unknown version. The two cases are a missing dependency and a build that fails."""
    for i, (code, message) in enumerate((("import absent_dependency", "No module named 'absent_dependency'"), ("raise RuntimeError('CUDA_HOME is not set')", "CUDA_HOME is not set"))):
        broken(f"folded{i}", code)
        broken(f"folded{i}0", "", code)
        method = made(module=f"folded{i}.layers").methods
        with pytest.raises(ImportError, match=rf"polyhead\.patch\.folded: folded{i}\.layers cannot be imported: {message}; set X"):
            Patch(_replace._Package("folded", (f"folded{i}",), ("folded-protein",), method, hint="; set X"))
        with pytest.raises(ImportError, match=rf"polyhead\.patch\.folded: folded{i}0 is installed, and cannot be imported: {message}; set X"):
            Patch(_replace._Package("folded", (f"folded{i}0",), ("folded-protein",), method, hint="; set X"))


def test_the_hint_of_protenix_names_its_variable() -> None:
    assert "LAYERNORM_TYPE=torch" in _replace._PROTENIX.hint


@pytest.mark.parametrize(("package", "other", "installed"), [("esm", "esmc", "esm"), ("esmc", "esm", "fair-esm")])
def test_packages_of_one_name_name_each_other(package: str, other: str, installed: str, broken: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "esm"]:
        monkeypatch.delitem(sys.modules, name)
    broken("esm", "")
    versions = {installed: "9.8"}
    monkeypatch.setattr(_replace, "_installed", lambda distribution: versions.get(distribution, ""))
    with pytest.raises(ImportError, match=rf"polyhead\.patch\.{package}: esm is {installed} 9\.8, for which there is polyhead\.patch\.{other}\(\)"):
        getattr(polyhead.patch, package)()
    versions.clear()
    with pytest.raises(NotImplementedError, match="polyhead does not know this version"):
        getattr(polyhead.patch, package)()
