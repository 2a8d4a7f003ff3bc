"""Compares trained models that PyPI packages contain with transformers. Each is opened twice: as its package saved it, converted by the line that polyhead's error names, and as
transformers saves it today."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import re  # noqa: E402
import shutil  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any, NamedTuple  # noqa: E402

import numpy as np  # noqa: E402
import pytest  # noqa: E402
from effort import QUICK  # noqa: E402

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

import polyhead  # noqa: E402

MODELS = Path(os.environ.get("POLYHEAD_MODEL_PACKAGES", Path(__file__).parents[2] / "build/models"))
PACKAGES = [line.strip() for line in (Path(__file__).parent / "model_packages.txt").read_text().splitlines() if not line.startswith("#")]


class Published(NamedTuple):
    package: str
    folder: str
    text: list[str]
    kind: str


PUBLISHED = {
    "RXNMapper": Published("rxnmapper", "rxnmapper/models/transformers/albert_heads_8_uspto_all_1310k", ["[CLS]", "C", "C", "(", "=", "O", ")", "O", ".", "C", "N", ">>", "C", "C", "(", "=", "O", ")", "N", "C", "[SEP]"], "Albert"),
    "AntiBERTy": Published("antiberty", "antiberty/trained_models/AntiBERTy_md_smooth", ["[CLS]", *"EVQLVESGGGLVQPGGSLRLSCAASGFTFS", "[SEP]"], "Bert"),
}  # fmt: skip


def shipped(name: str) -> Path:
    package = PUBLISHED[name].package
    (version,) = (line.split("==")[1] for line in PACKAGES if line.startswith(package + "=="))
    folder = MODELS / f"{package}-{version}" / PUBLISHED[name].folder
    if not (folder / "pytorch_model.bin").is_file():
        pytest.skip(f"{package} {version} is not in {MODELS}; scripts/test fetches it")
    return folder


def opened_as_transformers(folder: Path, name: str) -> Any:
    """Opens a model in transformers with a state that is read here, because transformers may refuse to read a pickle with this version of torch."""
    config = transformers.AutoConfig.from_pretrained(folder)
    config._attn_implementation = "eager"
    model = getattr(transformers, PUBLISHED[name].kind + "Model")(config).eval()
    prefix = PUBLISHED[name].kind.lower() + "."
    state = {key.removeprefix(prefix): tensor for key, tensor in torch.load(folder / "pytorch_model.bin", weights_only=True, map_location="cpu").items() if key.startswith(prefix)}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert all("position_ids" in key for key in [*missing, *unexpected]), (missing, unexpected)
    return model


def ids_of(folder: Path, name: str) -> np.ndarray:
    vocabulary = next(path for path in (folder / "vocab.txt", folder.parent / "vocab.txt") if path.exists())
    words = vocabulary.read_text().splitlines()
    return np.array([words.index(word) for word in PUBLISHED[name].text])


def compare(folder: Path, expected: Any, ids: np.ndarray) -> None:
    ours = polyhead.models.load(folder).run(ids, outputs=["all_hidden", "attentions"])
    for got, wanted in ((ours.all_hidden, expected.hidden_states), (ours.attentions, expected.attentions)):
        wanted = torch.cat(wanted).numpy()
        assert got.shape == wanted.shape and np.isfinite(got).all()
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4 * max(1.0, np.abs(wanted).max()))
    assert ours.attentions.max() > 0.3, "a trained head does not attend to all tokens equally"


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_package_gives_the_states_and_maps_of_transformers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if QUICK and name == "AntiBERTy":
        pytest.skip("the model has 104 MB of parameters, and POLYHEAD_TEST_EFFORT is quick")
    source = shipped(name)
    theirs, ids = opened_as_transformers(source, name), ids_of(source, name)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids)[None], output_hidden_states=True, output_attentions=True)

    # The package contains a pickle. polyhead refuses it with a line of Python that converts it; this line is run here.
    shutil.copy(source / "config.json", tmp_path)
    (tmp_path / "model.safetensors").symlink_to(source / "pytorch_model.bin")
    with pytest.raises(ValueError, match="in Python converts it") as error:
        polyhead.models.load(tmp_path)
    line = re.search(r"`(safetensors\.torch\.save_file.*?)`", str(error.value)).group(1)  # type: ignore[union-attr]
    (tmp_path / "model.safetensors").unlink()
    monkeypatch.chdir(tmp_path)
    import safetensors.torch

    exec(line, {"safetensors": safetensors, "torch": torch, "PATH": source / "pytorch_model.bin"})
    compare(tmp_path, expected, ids)

    # The same model as transformers saves it today.
    theirs.save_pretrained(tmp_path / "today")
    compare(tmp_path / "today", expected, ids)
