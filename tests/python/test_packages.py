"""Packages that pip and `python -m build` make contain the needed files and are small, and their extension needs only the C++ runtime."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from polyhead import _core

ROOT = Path(__file__).resolve().parents[2]
READ_BY_THE_BUILD = ["CMakeLists.txt", "pyproject.toml", "LICENSE", "apps", "cmake", "include", "models", "python", "src", "viewer"]


def test_the_source_package_has_what_a_build_reads_and_is_small(tmp_path: Path, summary: list[str]) -> None:
    pytest.importorskip("scikit_build_core")
    make = "import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))"
    made = subprocess.run([sys.executable, "-c", make, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=1200, check=True)
    archive = tmp_path / made.stdout.split()[-1]
    with tarfile.open(archive) as file:
        packed = {name.partition("/")[2] for name in file.getnames()}
    expected = set()
    for name in READ_BY_THE_BUILD:
        path = ROOT / name
        files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file() and not {"__pycache__", "build"} & {*file.parts[len(ROOT.parts) :]}]
        expected |= {file.relative_to(ROOT).as_posix() for file in files if not re.search(r"^test_|_test[._]|^README", file.name)}
    expected = {name for name in expected if not name.startswith(("apps/live/", "apps/onnxruntime/"))}  # left out, because they are built separately: the engine of live pages, the operator for ONNX Runtime
    assert len(expected) > 200 and expected - packed == set()
    assert {name.partition("/")[0] for name in packed} <= {*READ_BY_THE_BUILD, "MODELS.md", "PKG-INFO", ".gitignore"}
    size = archive.stat().st_size
    assert size < 2_750_000  # 2.68 MB now: built-in models take more than half of it, because their int8 numbers can hardly be compressed; the sources take 1.1 MB, their comments included
    summary.append(f"source package: {len(packed)} files, {size / 1e6:.2f} MB")


FILES = importlib.metadata.files("polyhead") or []
of_a_wheel = pytest.mark.skipif(
    not any(path.name.startswith("_core.") for path in FILES), reason="the module is imported from a build folder; scripts/test --full and scripts/wheels make a wheel"
)


@of_a_wheel
def test_the_installed_package_is_the_package_and_nothing_else() -> None:
    files = FILES
    outside = [path for path in files if path.parts[0].partition("-")[0] != "polyhead"]
    assert [path.parts[-2:] for path in outside] == [("bin", "polyhead")], "files other than the package and its command"
    names = {path.name for path in files}
    assert {"py.typed", "_core.pyi", "__init__.py", "__main__.py", "LICENSE"} <= names
    assert not [name for name in names if name.endswith((".a", ".h", ".cc", ".cmake"))]
    requirements = [text for text in importlib.metadata.requires("polyhead") or [] if "extra ==" not in text]
    assert [re.split(r"\W", text)[0] for text in requirements] == ["numpy"]


@of_a_wheel
@pytest.mark.skipif(not sys.platform.startswith("linux") or shutil.which("readelf") is None, reason="needs readelf, which lists the libraries that the extension links")
def test_the_extension_links_the_cpp_runtime_alone() -> None:
    listed = subprocess.run(["readelf", "-d", os.fsdecode(str(_core.__file__))], capture_output=True, text=True, check=True, env=os.environ | {"LC_ALL": "C"})
    needed = re.findall(r"\(NEEDED\).*\[(\S+?)\.so", listed.stdout)
    assert needed and {*needed} <= {"libstdc++", "libc++", "libc++abi", "libgcc_s", "libm", "libc", "libpthread", "ld-linux-x86-64", "ld-linux-aarch64"}, needed
