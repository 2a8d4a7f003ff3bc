"""Runs the scripts and the notebook of examples/python and checks a line of their output. The scripts themselves assert what they claim."""

from __future__ import annotations

import importlib.util
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import forked_python
from effort import QUICK

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "python"
MINILM = Path(os.environ.get("POLYHEAD_MINILM_DIR", "none"))

# {script: (packages that it imports besides NumPy, regular expression of a line of its output)}.
SCRIPTS = {
    "formula_beside_layer.py": ([], r"^gradient of the bias, its own shape +\[1, 3, 5, 7\] +\d"),
    "train_classifier.py": (["torch"], r"^accuracy (0\.9[3-9]|1\.0)\d* on 1000 new sequences"),
    "evoformer_block.py": (["torch"], r"^gradient of the pair bias \[2, 4, 24, 24\]"),
    "force_field.py": (["torch"], r"^Hessian \[8, 3, 8, 3\]: \de-0[5-9] from symmetric"),
    "ring_attention.py": (["torch"], r"^2 ranks: .* largest difference \d\.\de-0[5-9]$"),
    "heads_of_a_transformer.py": (["torch", "transformers"], r"^maps \[6, 2, 12, 12, 12\] .* largest difference from eager \d\.\de-0[6-9]$"),
}

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
NOTEBOOK = "heads_of_a_sentence.ipynb"


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"NO_COLOR": "1"}
    if name == "ring_attention.py":
        environment |= {"OMP_NUM_THREADS": "1"}  # torchrun prints a warning if it has to set this variable
        if QUICK:  # start two ranks with torchrun's variables, because torchrun imports torch three times
            return ranks_without_torchrun(environment)
        return subprocess.run([sys.executable, *TORCHRUN, str(FOLDER / name), *arguments], capture_output=True, text=True, timeout=3000, env=environment)
    imported = ["transformers", "transformers.models.bert.modeling_bert"] if "transformers" in SCRIPTS[name][0] else []
    return forked_python.run(FOLDER / name, *arguments, timeout=3000, environment=environment, imported=imported)


def ranks_without_torchrun(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        environment |= {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    first, second = forked_python.run_together(FOLDER / "ring_attention.py", [(("--tokens", "1024"), environment | {"RANK": str(rank)}) for rank in range(2)])
    assert second.returncode == 0 and second.stdout == second.stderr == "", second.stdout + second.stderr
    return first


def needs(name: str) -> None:
    for module in SCRIPTS[name][0]:
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")


def test_every_script_is_run() -> None:
    assert {path.name for path in FOLDER.glob("*.py")} == SCRIPTS.keys()
    assert [path.name for path in FOLDER.glob("*.ipynb")] == [NOTEBOOK]
    table = (FOLDER / "README.md").read_text()
    assert all(f"[{name}]({name})" in table for name in (*SCRIPTS, NOTEBOOK))


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "heads_of_a_transformer.py"])
def test_script(name: str) -> None:
    needs(name)
    result = run(name)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(SCRIPTS[name][1], result.stdout, re.MULTILINE), result.stdout
    assert result.stderr == ""


@pytest.mark.skipif(not (MINILM / "config.json").is_file(), reason="POLYHEAD_MINILM_DIR names no model folder")
def test_heads_of_a_transformer(tmp_path: Path) -> None:
    name = "heads_of_a_transformer.py"
    needs(name)
    page = tmp_path / "heads.html"
    result = run(name, str(MINILM), "-o", str(page))
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.search(SCRIPTS[name][1], result.stdout, re.MULTILINE), result.stdout
    html = page.read_text()
    assert html.startswith("<!doctype html") or html.startswith("<!DOCTYPE html")
    assert "fox" in html and "http://" not in html.replace("http://www.w3.org/", "") and "<script src" not in html


def test_a_folder_that_is_no_model_is_said_to_be_none(tmp_path: Path) -> None:
    result = run("heads_of_a_transformer.py", str(tmp_path))
    assert result.returncode == 1 and "has no config.json" in result.stderr and "Traceback" not in result.stderr


def test_errors_of_the_example_are_messages_without_a_traceback(tmp_path: Path) -> None:
    needs("heads_of_a_transformer.py")
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    for arguments, said in (([], "no model of transformers"), (["-o", str(tmp_path / "none" / "heads.html")], "is no folder")):
        result = run("heads_of_a_transformer.py", str(tmp_path), *arguments)
        assert result.returncode == 1 and said in result.stderr and "Traceback" not in result.stderr, result.stderr


def test_missing_transformers_is_said(tmp_path: Path) -> None:
    needs("heads_of_a_transformer.py")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "transformers.py").write_text("raise ImportError('no transformers here')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, str(FOLDER / "heads_of_a_transformer.py"), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=3000, env=os.environ | {"PYTHONPATH": path})
    assert result.returncode == 1 and "pip install torch transformers" in result.stderr and "Traceback" not in result.stderr


@pytest.mark.parametrize("name", [name for name in SCRIPTS if name != "heads_of_a_transformer.py"])
def test_a_missing_package_is_said_in_one_sentence(name: str, tmp_path: Path) -> None:
    package = "torch" if "torch" in SCRIPTS[name][0] else "polyhead"
    (tmp_path / f"{package}.py").write_text(f"raise ImportError('no {package} here')\n")
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    result = subprocess.run([sys.executable, str(FOLDER / name)], capture_output=True, text=True, timeout=3000, env=os.environ | {"PYTHONPATH": path})
    assert result.returncode == 1 and re.fullmatch(rf"this example needs polyhead and .*: no {package} here\n", result.stderr), result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [([], r"start this example with torchrun --nproc-per-node 4 ring_attention\.py, which sets RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT"), (["--tokens", "0"], "--tokens is 0; .*")],
)
def test_ring_attention_says_how_it_is_started(arguments: list[str], said: str) -> None:
    needs("ring_attention.py")
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    result = forked_python.run(FOLDER / "ring_attention.py", *arguments, timeout=3000, environment=environment)
    assert result.returncode == 2 and result.stdout == "" and re.fullmatch(said + "\n", result.stderr), result.stderr


def test_notebook() -> None:
    for module in ("torch", "ipykernel"):
        pytest.importorskip(module)
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    book = nbformat.read(FOLDER / NOTEBOOK, as_version=4)
    nbformat.validate(book)
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells), "commit the notebook without outputs"
    nbclient.NotebookClient(book, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(FOLDER)}}).execute()
    printed = "".join(output.get("text", "") for cell in cells for output in cell.outputs)
    assert re.search(r"^before: the quick brown fox jumps over the lazy do$", printed, re.MULTILINE), printed
    assert re.search(r"^head 0 gives 0\.9\d of its weight to the letter before, head 1 gives 0\.9\d to the letter after$", printed, re.MULTILINE), printed
    assert "<iframe" in cells[-1].outputs[-1]["data"]["text/html"]
