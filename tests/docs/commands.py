"""Runs the commands of a document: in its sh blocks, every line that begins with 'polyhead', unchanged, in a folder with the files that the commands read.

    python3 tests/docs/commands.py DOCUMENT PROGRAM

In that folder, MODEL_DIR is the model of POLYHEAD_MINILM_DIR, or else a tiny model; ENGINE is a compressed empty file. Prints the commands that fail, and at last
'N passed, N failed', the numbers of lines.
"""
import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

document, program = map(pathlib.Path, sys.argv[1:])
tests = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(tests / "cli"))
import tiny_model  # noqa: E402

text = document.read_text()
lines = [line for block in re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S) for line in block.splitlines() if line.startswith("polyhead ")]
if not lines:
    sys.exit(f"{document} has no line that begins with 'polyhead'")
failed = 0
with tempfile.TemporaryDirectory() as name:
    folder = pathlib.Path(name)
    (folder / "bin").mkdir()
    (folder / "bin/polyhead").symlink_to(program.resolve())
    model = pathlib.Path(os.environ.get("POLYHEAD_MINILM_DIR", ""))
    if (model / "config.json").is_file():
        (folder / "MODEL_DIR").symlink_to(model.resolve())
    else:
        tiny_model.write(folder / "MODEL_DIR")
    for file in ("layer.safetensors", "in.safetensors"):
        shutil.copy(tests / "golden/vectors/torch_mha_cross.safetensors", folder / file)
    shutil.copy(tests / "golden/vectors/sdpa_plain.safetensors", folder / "qk.safetensors")
    (folder / "ENGINE").write_bytes(gzip.compress(b""))  # enough to write a live page, although the engine would not run
    (folder / "abstract.txt").write_text("Long texts take time to read. We propose a reader that keeps one sentence. Experiments show that editors agree with it.\n")
    before = {path.name for path in folder.iterdir()}
    environment = os.environ | {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "NO_COLOR": "1"}
    for line in lines:
        done = subprocess.run(["sh", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=3000)
        written = {path.name for path in folder.iterdir()} - before
        before |= written
        if done.returncode != 0 or not (done.stdout or written):
            failed += 1
            print(f"{line}\n  exit code {done.returncode}\n{done.stdout}{done.stderr}")
print(f"{len(lines) - failed} passed, {failed} failed")
sys.exit(failed > 0)
