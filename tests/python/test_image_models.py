"""Compares models of images (ViT, DeiT, CLIP, SigLIP) with transformers, and the preparation of images with the image processors of transformers."""

from __future__ import annotations

import copy
import importlib
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyhead
from program_support import page_data

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

from checkpoint_support import change_config, close, saved  # noqa: E402

SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 40, "image_size": 16, "patch_size": 4}
# {name: (prefix of transformers' classes, settings of a tiny model)}. Each family has one row that is named like the family.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViT", SIZES),
    "vit, wide images": ("ViT", SIZES | {"image_size": [9, 14], "patch_size": [3, 4], "num_channels": 2, "qkv_bias": False, "hidden_act": "relu", "pooler_output_size": 7, "pooler_act": "gelu", "layer_norm_eps": 1e-5}),
    "deit": ("DeiT", SIZES),
    "clip_vision_model": ("CLIPVision", SIZES | {"projection_dim": 24}),
    "clip_vision_model, gelu": ("CLIPVision", SIZES | {"projection_dim": 24, "hidden_act": "gelu", "image_size": 18}),
    "siglip_vision_model": ("SiglipVision", SIZES),
    "siglip_vision_model without a head": ("SiglipVision", SIZES | {"vision_use_head": False}),
}  # fmt: skip


def saved_model(case: str, folder: Path, head: str = "Model", dtype: Any = torch.float32, **settings: Any) -> Any:
    """Makes a random model of transformers and saves it in the folder."""
    name, own = CASES[case]
    config = getattr(transformers, f"{name}Config")(**own | settings)
    return made(getattr(transformers, f"{name}{head}"), config, folder, dtype)


def made(kind: Any, config: Any, folder: Path, dtype: Any = torch.float32) -> Any:
    torch.manual_seed(sum(kind.__name__.encode()))
    config._attn_implementation = "eager"
    return saved(kind(config), folder, dtype)


def images(config: Any, count: int = 2) -> np.ndarray:
    """Returns random pixels [B,C,height,width]."""
    sides = config.image_size if isinstance(config.image_size, (list, tuple)) else [config.image_size] * 2
    return np.random.default_rng(7).normal(size=(count, config.num_channels, *sides)).astype(np.float32)


def compare(expected: Any, result: Any, tolerance: float = 1e-4) -> None:
    """Compares the outputs of transformers with hidden, all_hidden and attentions of polyhead."""
    close(result.hidden, expected.last_hidden_state, tolerance)
    assert len(result.all_hidden) == len(expected.hidden_states)
    for layer, hidden in enumerate(expected.hidden_states):
        close(result.all_hidden[layer], hidden, tolerance)
    assert len(result.attentions) == len(expected.attentions)
    for layer, attention in enumerate(expected.attentions):
        close(result.attentions[layer], attention, tolerance)


def theirs_of(model: Any, pixels: np.ndarray) -> Any:
    with torch.no_grad():
        return model(torch.from_numpy(pixels), output_hidden_states=True, output_attentions=True)


INNER = ["hidden", "all_hidden", "attentions"]


@pytest.mark.parametrize("case", CASES)
def test_a_family_computes_what_transformers_does(case: str, tmp_path: Path) -> None:
    theirs = saved_model(case, tmp_path)
    ours = polyhead.models.load(tmp_path)
    assert isinstance(ours, polyhead.models.VisionEncoder) and ours.config["model"] == theirs.config.model_type
    pixels = images(theirs.config)
    expected = theirs_of(theirs, pixels)
    pools = expected.pooler_output is not None
    result = ours.run(pixels, outputs=[*INNER, "pooled"] if pools else INNER)
    compare(expected, result)
    if pools:
        close(result.pooled, expected.pooler_output)
    else:
        with pytest.raises(ValueError, match="pooled is asked for; this siglip_vision_model model has no pooler"):
            ours.run(pixels, outputs=["pooled"])


HEADS = [("vit", "ForImageClassification"), ("vit", "ForMaskedImageModeling"), ("deit", "ForImageClassification"), ("deit", "ForImageClassificationWithTeacher"), ("deit", "ForMaskedImageModeling"),
         ("clip_vision_model", "ModelWithProjection")]  # fmt: skip


@pytest.mark.parametrize(("case", "head"), HEADS)
def test_a_model_with_a_head_opens(case: str, head: str, tmp_path: Path) -> None:
    theirs = saved_model(case, tmp_path, head, **({"num_labels": 5} if "Class" in head else {}))
    ours = polyhead.models.load(tmp_path)
    pixels = images(theirs.config)
    base = theirs.base_model if theirs.base_model is not theirs else theirs.vision_model
    compare(theirs_of(base, pixels), ours.run(pixels, outputs=INNER))
    if "Class" in head:
        close(ours.run(pixels, outputs=["logits"]).logits, theirs_of(theirs, pixels).logits)
        assert ours.config["labels"] == [f"LABEL_{i}" for i in range(5)]
    else:
        with pytest.raises(ValueError, match=f"logits are asked for; this {case} model has no classifier"):
            ours.run(pixels, outputs=["logits"])
    if head == "ModelWithProjection":
        close(ours.run(pixels, outputs=["embedding"]).embedding, theirs_of(theirs, pixels).image_embeds)


TEXT: dict[str, Any] = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, "max_position_embeddings": 20, "bos_token_id": 97, "eos_token_id": 98}


def pair_config(kind: str, text: dict[str, Any] | None = None) -> Any:
    vision, words = SIZES | {"projection_dim": 24}, TEXT | (text or {})
    if kind == "CLIP":
        return transformers.CLIPConfig(text_config=words | {"projection_dim": 24}, vision_config=vision, projection_dim=24)
    return transformers.SiglipConfig(text_config=words, vision_config=SIZES)


def texts() -> tuple[np.ndarray, np.ndarray]:
    """Returns three texts of 12, 7 and 3 tokens: a start token, words, an end token, padding."""
    ids, attend = np.random.default_rng(3).integers(1, 97, (3, 12)), np.ones((3, 12), bool)
    ids[:, 0] = 97
    for row, length in enumerate((12, 7, 3)):
        ids[row, length - 1], ids[row, length:], attend[row, length:] = 98, 0, False
    return ids, attend


@pytest.mark.parametrize("attends", [False, True])
@pytest.mark.parametrize(("kind", "settings"), [("CLIP", {}), ("CLIP", {"eos_token_id": 2}), ("CLIP", {"eos_token_id": 5}), ("Siglip", {})])
def test_images_and_texts_are_compared_as_in_transformers(kind: str, settings: dict[str, Any], attends: bool, tmp_path: Path) -> None:
    config = pair_config(kind, settings)
    theirs = made(getattr(transformers, f"{kind}Model"), config, tmp_path)
    ours = polyhead.models.load(tmp_path)
    assert isinstance(ours, polyhead.models.ImageTextModel)
    ids, attend = texts()
    if settings.get("eos_token_id") == 5:
        ids[ids == 98] = 5
    pixels, mask = images(config.vision_config), {"attention_mask": torch.from_numpy(attend).long()} if attends else {}
    with torch.no_grad():
        expected = theirs(input_ids=torch.from_numpy(ids), pixel_values=torch.from_numpy(pixels), output_hidden_states=True, output_attentions=True, **mask)
    given = {"attend_keys": attend} if attends else {}
    close(ours.similarity(pixels, ids, **given), expected.logits_per_image)
    text = ours.text.run(ids, outputs=[*INNER, "embedding"], **given)
    image = ours.vision.run(pixels, outputs=[*INNER, "embedding"])
    compare(expected.vision_model_output, image)
    compare(expected.text_model_output, text)
    for own, other in ((text.embedding, expected.text_embeds), (image.embedding, expected.image_embeds)):
        close(own / np.linalg.norm(own, axis=1, keepdims=True), other)


@pytest.mark.parametrize(("kind", "head"), [("CLIPText", "Model"), ("CLIPText", "ModelWithProjection"), ("SiglipText", "Model")])
def test_a_text_side_alone_opens(kind: str, head: str, tmp_path: Path) -> None:
    theirs = made(getattr(transformers, kind + head), getattr(transformers, f"{kind}Config")(**TEXT | ({"projection_dim": 24} if kind == "CLIPText" else {})), tmp_path)
    ours = polyhead.models.load(tmp_path)
    assert isinstance(ours, polyhead.models.TextSide)
    ids, _ = texts()
    with torch.no_grad():
        expected = theirs(torch.from_numpy(ids), output_hidden_states=True, output_attentions=True)
    result = ours.run(ids, outputs=[*INNER, "pooled"])
    compare(expected, result)
    if head == "ModelWithProjection":
        close(ours.run(ids, outputs=["embedding"]).embedding, expected.text_embeds)
    else:
        close(result.pooled, expected.pooler_output)


def test_a_classifier_on_the_image_side_of_clip_opens(tmp_path: Path) -> None:
    config = pair_config("CLIP")
    config.num_labels = 3
    theirs = made(transformers.CLIPForImageClassification, config, tmp_path)
    ours = polyhead.models.load(tmp_path)
    pixels = images(config.vision_config)
    close(ours.run(pixels, outputs=["logits"]).logits, theirs_of(theirs, pixels).logits)


def test_configs_and_tensors_of_transformers_4_open(tmp_path: Path) -> None:
    """In files of transformers 4, text_config_dict replaces text_config, and position ids are among the tensors."""
    theirs = made(transformers.CLIPModel, pair_config("CLIP"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    pixels, (ids, _) = images(theirs.config.vision_config), texts()
    expected = polyhead.models.load(tmp_path).similarity(pixels, ids)
    for side in ("text_config", "vision_config"):
        config[f"{side}_dict"] = dict(config[side])
        config[side] |= {"num_attention_heads": 2, "add_cross_attention": False, "is_decoder": False, "torchscript": False, "pruned_heads": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    path = tmp_path / "model.safetensors"
    tensors = safetensors_torch.load_file(path)
    for side, count in (("text_model", 20), ("vision_model", 17)):
        tensors[f"{side}.embeddings.position_ids"] = torch.arange(count)[None]
    safetensors_torch.save_file(tensors, path)
    assert np.array_equal(polyhead.models.load(tmp_path).similarity(pixels, ids), expected)


@pytest.mark.parametrize("case", ["vit", "deit", "clip_vision_model", "siglip_vision_model"])
def test_bfloat16_is_as_close_as_the_type(case: str, tmp_path: Path) -> None:
    theirs = saved_model(case, tmp_path, dtype=torch.bfloat16)
    pixels = images(theirs.config)
    wide = type(theirs).from_pretrained(tmp_path, attn_implementation="eager", dtype=torch.float32).eval()
    result = polyhead.models.load(tmp_path).run(pixels, outputs=["hidden", "pooled"])
    expected = theirs_of(wide, pixels)
    close(result.hidden, expected.last_hidden_state, 0.06)
    close(result.pooled, expected.pooler_output, 0.06)


@pytest.mark.parametrize(("changes", "message"), [
    ({"model_type": "dinov2"}, "model_type is 'dinov2'; known encoders are bert, .*; known models of images are vit, deit, clip_vision_model, siglip_vision_model, .*clip, siglip; the nearest is"),
    ({"rope_theta": 100}, "\"rope_theta\" is the number 100; models of the type vit are not known to have this key, and it may change results"),
    ({"hidden_act": "gelu_fast"}, "hidden_act is 'gelu_fast'; gelu, .*quick_gelu.* are known"),
    ({"num_attention_heads": 5}, "num_attention_heads is 5; it must divide hidden_size = 32"),
    ({"patch_size": 17}, "patch_size is 17 x 17; image_size is 16 x 16, which holds no patch"),
    ({"image_size": [16, 16, 3]}, "image_size is neither a number nor a list of two numbers"),
    ({"image_size": 20}, r"'embeddings.position_embeddings' is \[1,17,32\]; config.json makes it \[26,32\]"),
    ({"num_hidden_layers": 2}, r"'encoder.layer.2.*' \[.*\] has no place in a model of the type vit with this config.json"),
    ({"num_hidden_layers": 4}, "has no tensor 'encoder.layer.3.attention.attention.query.weight', which config.json implies"),
    ({"layer_norm_eps": 0}, "layer_norm_eps is 0; it must be above 0"),
])  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    saved_model("vit", tmp_path)
    change_config(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        polyhead.models.load(tmp_path)


def test_a_run_names_what_does_not_fit(tmp_path: Path) -> None:
    theirs = made(transformers.CLIPModel, pair_config("CLIP"), tmp_path)
    ours = polyhead.models.load(tmp_path)
    pixels, (ids, _) = images(theirs.config.vision_config), texts()
    for pixels_given, message in (
        (pixels[:, :, :15], r"pixels is \[2,3,15,16\]; the model's images are 16 x 16. Resize them: positions are not interpolated"),
        (pixels[:, :2], r"the model has C = 3 channels"),
        (pixels.astype(np.uint8), r"pixels is uint8 \[2,3,16,16\]; it must be floating \[\*,C,height,width\]"),
    ):
        with pytest.raises(ValueError, match=message):
            ours.vision.run(pixels_given)
    for ids_given, outputs, message in (
        (np.zeros((1, 21), np.int64), ["hidden"], "the text has 21 tokens; the model has positions for 1 to 20"),
        (ids[:, :5], ["pooled"], r"text 0 has no end token \(eos_token_id = 98\)"),
        ([99], ["hidden"], "99"),
        (ids, ["logits"], "outputs has 'logits'; hidden, all_hidden, attentions, pooled, embedding, q, k, v and value_norms are known"),
    ):
        with pytest.raises(ValueError, match=message):
            ours.text.run(ids_given, outputs=outputs)


def test_a_model_is_copied_pickled_and_shown(tmp_path: Path) -> None:
    theirs = made(transformers.CLIPModel, pair_config("CLIP"), tmp_path)
    ours = polyhead.models.load(tmp_path)
    pixels, (ids, _) = images(theirs.config.vision_config), texts()
    expected, hidden = ours.similarity(pixels, ids), ours.vision.run(pixels).hidden
    for other in (copy.copy(ours), copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert np.array_equal(other.similarity(pixels, ids), expected)
    assert np.array_equal(pickle.loads(pickle.dumps(ours.vision)).run(pixels).hidden, hidden)
    assert "text.words.weight" in ours.parameters and repr(ours.vision).startswith("VisionEncoder(model='clip_vision_model', layers=3, heads=4,")
    # Images may have no batch dimension, or two.
    assert np.array_equal(ours.vision.run(pixels[0]).hidden, hidden[0])
    assert np.array_equal(ours.vision.run(pixels[None]).hidden, hidden[None])
    result = ours.vision.run(pixels, outputs=["q", "k", "attentions"])
    scores = result.q @ np.swapaxes(result.k, -1, -2) / np.sqrt(8)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    close(weights / weights.sum(-1, keepdims=True), result.attentions)


def processor(kind: str, **settings: Any) -> Any:
    """Returns the image processor of transformers that resizes with Pillow."""
    pytest.importorskip("PIL")
    return getattr(importlib.import_module(f"transformers.models.{kind.lower()}.image_processing_pil_{kind.lower()}"), f"{kind}ImageProcessorPil")(**settings)


def noisy(height: int, width: int) -> np.ndarray:
    """Returns an image of noise with large plain areas: at their edges, errors of a resampling filter would be large."""
    rng = np.random.default_rng(height * 1000 + width)
    image = rng.integers(0, 256, (height, width, 3), np.uint8)
    image[: height // 3, : width // 2] = 255
    image[height // 2 :, width // 3 :] //= 8
    return image


PROCESSORS: list[tuple[str, dict[str, Any]]] = [
    ("ViT", {"size": {"height": 16, "width": 16}}),
    ("ViT", {"size": {"height": 15, "width": 22}, "resample": 1, "image_mean": [0.4, 0.5, 0.6], "image_std": [0.1, 0.2, 0.3]}),
    ("ViT", {"size": {"height": 40, "width": 12}, "resample": 4, "do_normalize": False}),
    ("ViT", {"size": {"height": 30, "width": 31}, "resample": 5, "do_rescale": False}),
    ("DeiT", {"size": {"height": 20, "width": 20}, "crop_size": {"height": 16, "width": 15}}),
    ("CLIP", {"size": {"shortest_edge": 18}, "crop_size": {"height": 16, "width": 16}}),
    ("CLIP", {"size": {"shortest_edge": 16}, "do_center_crop": False, "rescale_factor": 0.01}),
    ("CLIP", {"do_resize": False, "crop_size": {"height": 7, "width": 9}}),
    ("Siglip", {"size": {"height": 16, "width": 16}}),
]


@pytest.mark.parametrize(("kind", "settings"), PROCESSORS)
def test_images_are_prepared_as_by_the_image_processor(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    theirs = processor(kind, **settings)
    saved_model("vit", tmp_path)
    theirs.save_pretrained(tmp_path)
    ours = polyhead.models.load(tmp_path)
    for height, width in ((37, 53), (61, 24), (9, 10)):
        image = noisy(height, width)
        if not settings.get("do_resize", True) and height < 37:
            image = noisy(11, 12)
        expected = theirs(image, return_tensors="np", input_data_format="channels_last")["pixel_values"][0]
        pixels = ours.prepare(image)
        assert pixels.dtype == np.float32 and pixels.shape == expected.shape
        np.testing.assert_allclose(pixels, expected, rtol=0, atol=2e-6 * max(1, np.abs(expected).max()))


def test_old_files_of_image_processors_open(tmp_path: Path) -> None:
    """In files of transformers 4.10, a size is one number."""
    saved_model("vit", tmp_path)
    path, image = tmp_path / "preprocessor_config.json", noisy(40, 30)
    for old, new in (
        ({"feature_extractor_type": "ViTFeatureExtractor", "size": 16, "resample": 2, "do_resize": True}, processor("ViT", size={"height": 16, "width": 16})),
        ({"feature_extractor_type": "CLIPFeatureExtractor", "size": 18, "crop_size": 16, "resample": 3}, processor("CLIP", size={"shortest_edge": 18}, crop_size={"height": 16, "width": 16})),
        *(({"image_processor_type": f"{kind}ImageProcessor", "size": 18, "do_center_crop": False} | square, processor(kind, size=18, do_center_crop=False, **square)) for kind in ("ViT", "DeiT", "CLIP", "Siglip") for square in ({}, {"default_to_square": True}, {"default_to_square": False})),
        ({"image_processor_type": "ViTImageProcessor", "size": {"height": 12, "width": 16}, "default_to_square": False}, processor("ViT", size={"height": 12, "width": 16})),
    ):
        path.write_text(json.dumps(old))
        np.testing.assert_allclose(polyhead.models.load(tmp_path).prepare(image), new(image, return_tensors="np", input_data_format="channels_last")["pixel_values"][0], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("changes", "message"), [
    ({"image_processor_type": "BeitImageProcessor"}, "image_processor_type is 'BeitImageProcessor'; those of ViT, DeiT, CLIP, Siglip are supported"),
    ({"resample": 0}, r"resample is 0; Pillow's 1 \(Lanczos\)"),
    ({"size": {"shortest_edge": 16, "longest_edge": 20}}, "longest_edge"),
    ({"do_pad": True}, "do_pad is true; padding is not supported"),
    ({"image_std": [0.5, 0, 0.5]}, "image_std has 0; it must be above 0"),
    ({"do_reduce_labels": True}, "\"do_reduce_labels\" is true; models of the type ViTImageProcessor are not known to have this key"),
    ({"do_center_crop": True, "crop_size": 50}, "the image is 16 x 16 pixels, too small for a crop of 50 x 50; padding is not supported"),
])  # fmt: skip
def test_an_unsupported_preparation_of_images_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    saved_model("vit", tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}} | changes))
    ours = polyhead.models.load(tmp_path)
    with pytest.raises(ValueError, match=message):
        ours.prepare(noisy(30, 20))
    with pytest.raises((ValueError, TypeError), match="image is float32"):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "ViTImageProcessor", "size": 16}))
        ours.prepare(np.zeros((30, 20, 3), np.float32))


def program(*arguments: Any, fails: bool = False) -> subprocess.CompletedProcess[str]:
    result = subprocess.run([sys.executable, "-m", "polyhead", *map(str, arguments)], capture_output=True, text=True, timeout=600)
    if "was built without image files" in result.stderr:
        pytest.skip("polyhead was built without image files")
    assert (result.returncode != 0) == fails, result.stderr
    return result


def test_view_reads_image_files_as_pillow_does(tmp_path: Path) -> None:
    """`view --image` reads the same pixels as Pillow, and the arrays that it writes are those of a pass over these pixels."""
    image_of = pytest.importorskip("PIL.Image")
    model = tmp_path / "model"
    theirs = saved_model("vit", model, "ForImageClassification", num_labels=3)
    processor("ViT", size={"height": 16, "width": 16}, resample=3).save_pretrained(model)
    ours = polyhead.models.load(model)
    image = noisy(45, 33)
    smooth = image_of.fromarray(image).resize((80, 60), 3)
    files: dict[str, Any] = {
        "rgb.png": smooth, "rgba.png": smooth.convert("RGBA"), "grey.png": smooth.convert("L"), "palette.png": smooth.convert("P", palette=image_of.Palette.ADAPTIVE), "bits.png": smooth.convert("1"),
        "colour.jpg": smooth, "grey.jpg": smooth.convert("L"), "progressive.jpg": smooth, "subsampled.jpg": smooth, "turned.jpg": smooth, "turned.png": smooth,
    }  # fmt: skip
    exif = image_of.Exif()
    exif[0x0112] = 6
    options: dict[str, dict[str, Any]] = {"progressive.jpg": {"progressive": True, "quality": 60}, "subsampled.jpg": {"subsampling": 2, "quality": 30}, "turned.jpg": {"exif": exif}, "turned.png": {"exif": exif}}
    paths = []
    for name, one in files.items():
        paths.append(tmp_path / name)
        one.save(paths[-1], **options.get(name, {}))
    arrays = tmp_path / "arrays.npz"
    program("view", model, *(word for path in paths for word in ("--image", path)), "--arrays", arrays)
    with np.load(arrays) as found:
        for i, path in enumerate(paths):
            opened = image_of.open(path)
            upright = importlib.import_module("PIL.ImageOps").exif_transpose(opened).convert("RGB")
            np.testing.assert_array_equal(found[f"pixels_{i}"], ours.prepare(np.asarray(upright)), err_msg=path.name)
        run = ours.run(found["pixels_0"], outputs=["hidden", "attentions", "logits"])
        for name in ("hidden", "attentions", "logits"):
            np.testing.assert_allclose(found[f"{name}_0"], getattr(run, name), rtol=0, atol=1e-6)
        close(found["logits_0"][None], theirs_of(theirs, found["pixels_0"][None]).logits)


def test_view_writes_a_page_and_json(tmp_path: Path) -> None:
    image_of = pytest.importorskip("PIL.Image")
    model = tmp_path / "model"
    made(transformers.CLIPModel, pair_config("CLIP"), model)
    processor("CLIP", size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}).save_pretrained(model)
    image_of.fromarray(noisy(30, 40)).save(tmp_path / "photo.png")
    result = program("view", model, "--image", tmp_path / "photo.png", "-o", tmp_path / "page.html", "--json")
    told = json.loads(result.stdout)
    ours = polyhead.models.load(model)
    run = ours.vision.run(ours.vision.prepare(noisy(30, 40)), outputs=["embedding", "attentions"])
    np.testing.assert_allclose(told["images"][0]["embedding"], run.embedding, rtol=0, atol=1e-5)
    np.testing.assert_allclose(told["images"][0]["map"], run.attentions[-1].mean(0), rtol=0, atol=1e-6)
    page = (tmp_path / "page.html").read_text()
    assert '"channels":3' in page.replace(" ", "") or "photo.png" in page
    for arguments, message in (
        (["--image", tmp_path / "photo.png", "--text", "a"], "lacks tokenizer.json"),
        (["--image", tmp_path / "photo.png", "--text", "a", "--text", "b"], "--image can be combined with one --text only"),
        (["--image", tmp_path / "none.png"], "none.png"),
        (["--text", "a"], "lacks tokenizer.json"),
    ):
        refused = program("view", model, *arguments, fails=True)
        assert message in refused.stderr, refused.stderr


def sets_of(page: Path) -> list[dict[str, Any]]:
    """Returns the sets of maps of a page. Sets with the same group belong to one text, whose tabs they are."""
    listed: list[dict[str, Any]] = page_data(page.read_text(encoding="utf-8"))["texts"]
    return listed


def clip_with_a_tokenizer(folder: Path) -> tuple[Any, Any]:
    """Saves a CLIP model with a tokenizer of five words. Returns model and tokenizer."""
    words = ["a", "photo", "of", "red", "bike"]
    alphabet = sorted({c for word in words for c in word})
    merges = [(word[:i], word[i] + ("</w>" if i == len(word) - 1 else "")) for word in words for i in range(1, len(word))]
    pieces = [*alphabet, *(c + "</w>" for c in alphabet), *dict.fromkeys(a + b for a, b in merges), "<|startoftext|>", "<|endoftext|>"]
    tokenizer = transformers.CLIPTokenizer(vocab={piece: i for i, piece in enumerate(pieces)}, merges=merges)
    theirs = made(transformers.CLIPModel, pair_config("CLIP", {"vocab_size": len(pieces), "bos_token_id": len(pieces) - 2, "eos_token_id": len(pieces) - 1}), folder)
    tokenizer.save_pretrained(folder)
    return theirs, tokenizer


def test_the_text_side_of_clip_is_shown(tmp_path: Path) -> None:
    """The program's token ids are those of transformers' CLIPTokenizer."""
    theirs, tokenizer = clip_with_a_tokenizer(tmp_path)
    result = program("view", tmp_path, "--text", "A photo of  a red Bike", "--json")
    told = json.loads(result.stdout)["texts"][0]
    ids = tokenizer("A photo of  a red Bike")["input_ids"]
    assert told["ids"] == ids
    with torch.no_grad():
        expected = theirs.get_text_features(torch.tensor([ids])).pooler_output[0]
    close(np.array(told["embedding"]), expected)


def test_both_sides_of_clip_are_shown_on_one_page(tmp_path: Path) -> None:
    image_of = pytest.importorskip("PIL.Image")
    theirs, tokenizer = clip_with_a_tokenizer(tmp_path)
    processor("CLIP", size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}).save_pretrained(tmp_path)
    image_of.fromarray(noisy(30, 40)).save(tmp_path / "photo.png")
    arrays = tmp_path / "arrays.npz"
    result = program("view", tmp_path, "--image", tmp_path / "photo.png", "--text", "a red bike", "-o", tmp_path / "page.html", "--arrays", arrays, "--json")
    told = json.loads(result.stdout)
    ids = tokenizer("a red bike", return_tensors="pt")["input_ids"]
    with np.load(arrays) as found, torch.no_grad():
        expected = theirs(input_ids=ids, pixel_values=torch.tensor(found["pixels"][None]))
        np.testing.assert_allclose(told["images"][0]["similarity"], float(expected.logits_per_image), rtol=1e-4)
        assert found["text_ids"].tolist() == ids[0].tolist()
        assert found["text_attentions"].shape[-1] == ids.shape[1]
        assert "text_value_norms" not in found
    program("view", tmp_path, "--image", tmp_path / "photo.png", "--text", "a red bike", "--weighting", "norm", "--arrays", arrays, "--json")
    with np.load(arrays) as found:
        assert found["text_value_norms"].shape == (*found["text_attentions"].shape[:2], ids.shape[1])
        assert found["value_norms"].shape == found["attentions"].shape[:3]
    image, text = sets_of(tmp_path / "page.html")
    assert [image["name"], text["name"]] == ["Image", "Text"]
    assert image["group"] == text["group"] == 0
    assert image["image"]["channels"] == 3
    assert "image" not in text
    polyhead.view(tmp_path, "a red bike", image=noisy(30, 40), path=tmp_path / "own.html")
    for own, of_program in zip(sets_of(tmp_path / "own.html"), (image, text), strict=True):
        assert {**own, "text": ""} == {**of_program, "text": ""}
    assert sets_of(tmp_path / "own.html")[0]["text"].endswith(f": {told['images'][0]['similarity']:.2f} to the text")
    saved_model("vit", tmp_path / "vit")
    processor("ViT", size={"height": 16, "width": 16}).save_pretrained(tmp_path / "vit")
    with pytest.raises(ValueError, match="is not a model with an image encoder and a text encoder"):
        polyhead.view(tmp_path / "vit", "a red bike", image=noisy(30, 40))


def test_python_shows_images(tmp_path: Path) -> None:
    image_of = pytest.importorskip("PIL.Image")
    made(transformers.CLIPModel, pair_config("CLIP"), tmp_path)
    processor("CLIP", size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}).save_pretrained(tmp_path)
    image_of.fromarray(noisy(30, 40)).save(tmp_path / "photo.png")
    program("view", tmp_path, "--image", tmp_path / "photo.png", "-o", tmp_path / "page.html")
    (of_program,) = sets_of(tmp_path / "page.html")
    page = polyhead.view(tmp_path, image=noisy(30, 40), title="a photo", path=tmp_path / "own.html")
    (entry,) = sets_of(tmp_path / "own.html")
    assert {**entry, "text": ""} == {**of_program, "text": ""}
    assert "a photo" in page.html
    polyhead.view(tmp_path, image=[noisy(30, 40), noisy(20, 24)], path=tmp_path / "two.html")
    assert [one["text"] for one in sets_of(tmp_path / "two.html")] == ["image 1", "image 2"]
    for arguments, message in (
        ({"image": noisy(30, 40), "text": ["a"]}, "text is a list, and image is given"),
        ({"image": noisy(30, 40), "call": polyhead.ModelCall(pair="a")}, "pair may be given only with texts, and image is given"),
        ({"image": noisy(30, 40).astype(np.float32)}, "for a model it must be uint8"),
        ({"image": []}, "image is empty"),
        ({"image": noisy(30, 40), "patches": (4, 4)}, "patches may be given only with attention weights"),
        ({}, "text is missing"),
    ):
        with pytest.raises(ValueError, match=message):
            polyhead.view(tmp_path, **arguments)  # type: ignore[arg-type]


class TimmBlock(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width, 1e-6), torch.nn.LayerNorm(width, 1e-6)
        self.attn = torch.nn.ModuleDict({"qkv": torch.nn.Linear(width, 3 * width, bias), "proj": torch.nn.Linear(width, width)})
        self.mlp = torch.nn.ModuleDict({"fc1": torch.nn.Linear(width, 4 * width), "fc2": torch.nn.Linear(4 * width, width)})

    def forward(self, x: Any) -> tuple[Any, Any]:
        batch, tokens, width = x.shape
        q, k, v = self.attn["qkv"](self.norm1(x)).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        x = x + self.attn["proj"]((weights @ v).transpose(1, 2).reshape(batch, tokens, width))
        return x + self.mlp["fc2"](torch.nn.functional.gelu(self.mlp["fc1"](self.norm2(x)))), weights


class TimmViT(torch.nn.Module):  # type: ignore[misc]
    """Computes the same as VisionTransformer and VisionTransformerDistilled of timm 1.0.31, with timm's names of parameters."""

    def __init__(self, width: int, depth: int, heads: int, *, classes: int = 5, average: bool = False, class_token: bool = True, registers: int = 0, distilled: bool = False, embed_class: bool = True, bias: bool = True) -> None:  # fmt: skip
        super().__init__()
        self.patch_embed = torch.nn.ModuleDict({"proj": torch.nn.Conv2d(3, width, 4, 4)})
        if class_token:
            self.cls_token = torch.nn.Parameter(torch.randn(1, 1, width))
        if distilled:
            self.dist_token, self.head_dist = torch.nn.Parameter(torch.randn(1, 1, width)), torch.nn.Linear(width, classes)
        if registers:
            self.reg_token = torch.nn.Parameter(torch.randn(1, registers, width))
        self.before = [name for name in ("cls_token", "dist_token", "reg_token") if hasattr(self, name)]
        self.count, self.average, self.embed_class = int(class_token) + int(distilled) + registers, average, embed_class
        self.pos_embed = torch.nn.Parameter(torch.randn(1, 16 + (self.count if embed_class else 0), width))
        self.blocks = torch.nn.ModuleList(TimmBlock(width, heads, bias) for _ in range(depth))
        setattr(self, "fc_norm" if average else "norm", torch.nn.LayerNorm(width, 1e-6))
        self.head = torch.nn.Linear(width, classes)

    def forward(self, pixels: Any) -> dict[str, Any]:
        x = self.patch_embed["proj"](pixels).flatten(2).transpose(1, 2)
        before = [getattr(self, name).expand(len(x), -1, -1) for name in self.before]
        x = torch.cat([*before, x], 1) + self.pos_embed if self.embed_class else torch.cat([*before, x + self.pos_embed], 1)
        attentions = []
        for block in self.blocks:
            x, weights = block(x)
            attentions.append(weights)
        if self.average:
            pooled = self.fc_norm(x[:, self.count :].mean(1))
            return {"hidden": x, "attentions": attentions, "pooled": pooled, "logits": self.head(pooled)}
        x = self.norm(x)
        logits = self.head(x[:, 0])
        if hasattr(self, "head_dist"):
            logits = (logits + self.head_dist(x[:, 1])) / 2
        return {"hidden": x, "attentions": attentions, "pooled": x[:, 0], "logits": logits}


TIMM: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "vit": ("vit_tiny_patch16_224", {}, {}),
    "vit, registers": ("vit_base_patch16_224", {"registers": 3, "bias": False}, {"reg_tokens": 3, "qkv_bias": False}),
    "vit, mean": ("vit_small_patch8_224", {"average": True, "class_token": False}, {"global_pool": "avg", "class_token": False}),
    "vit, mean beside a class token": ("vit_large_patch14_224", {"average": True, "embed_class": False}, {"global_pool": "avg", "no_embed_class": True}),
    "deit, distilled": ("deit_small_distilled_patch16_224", {"distilled": True}, {}),
}  # fmt: skip


def timm_folder(case: str, folder: Path) -> Any:
    architecture, settings, arguments = TIMM[case]
    torch.manual_seed(5)
    theirs = TimmViT(24, 2, 3, **settings).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    safetensors_torch.save_file(theirs.state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({
        "architecture": architecture, "num_classes": 5, "num_features": 24, "global_pool": "avg" if settings.get("average") else "token",
        "model_args": {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5} | arguments,
        "pretrained_cfg": {"tag": "augreg", "custom_load": False, "input_size": [3, 16, 16], "fixed_input_size": True, "interpolation": "bicubic", "crop_pct": 0.9, "crop_mode": "center",
                           "mean": [0.5, 0.4, 0.3], "std": [0.5, 0.25, 0.2], "num_classes": 5, "pool_size": None, "first_conv": "patch_embed.proj", "classifier": "head", "license": "apache-2.0"},
    }))  # fmt: skip
    return theirs


@pytest.mark.parametrize("case", TIMM)
def test_folders_of_timm_open(case: str, tmp_path: Path) -> None:
    theirs = timm_folder(case, tmp_path)
    ours = polyhead.models.load(tmp_path)
    assert ours.config["model"] == "timm"
    pixels = np.random.default_rng(1).normal(size=(2, 3, 16, 16)).astype(np.float32)
    with torch.no_grad():
        expected = theirs(torch.from_numpy(pixels))
    result = ours.run(pixels, outputs=["hidden", "attentions", "pooled", "logits"])
    for name in ("hidden", "pooled", "logits"):
        close(getattr(result, name), expected[name])
    for layer, weights in enumerate(expected["attentions"]):
        close(result.attentions[layer], weights)


def test_images_are_prepared_as_timm_says(tmp_path: Path) -> None:
    """Images are resized to 16 / 0.9 = 17 pixels on the shorter side, cut to 16 x 16 and normalised."""
    image_of = pytest.importorskip("PIL.Image")
    timm_folder("vit", tmp_path)
    image = noisy(40, 47)
    resized = np.asarray(image_of.fromarray(image).resize((int(17 * 47 / 40), 17), 3), np.float32)
    assert resized.shape == (17, 19, 3)
    expected = (resized[0:16, 2:18] / 255 - np.float32([0.5, 0.4, 0.3])) / np.float32([0.5, 0.25, 0.2])  # the offset of the cut is rounded as in torchvision: 0.5 to 0 and 1.5 to 2
    np.testing.assert_allclose(polyhead.models.load(tmp_path).prepare(image), expected.transpose(2, 0, 1), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("changes", "message"), [
    ({"architecture": "resnet50"}, "architecture is 'resnet50'; of timm's models vit_SIZE_patchP_S, deit_SIZE_patchP_S"),
    ({"architecture": "vit_base_patch16_clip_224"}, "architecture is 'vit_base_patch16_clip_224'"),
    ({"global_pool": "map"}, "global_pool is 'map'; token and avg are supported"),
    ({"model_args": {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_heads": 3, "init_values": 1e-5}}, "model_args.init_values is a number that is not a 64-bit integer; models of the type timm are not known to have this key"),
    ({"model_args": {"img_size": 16, "patch_size": 4, "embed_dim": 24, "num_heads": 3}}, "has no tensor 'blocks.2.attn.qkv.weight'"),
    ({"model_args": {"img_size": 16, "patch_size": 4, "embed_dim": 24, "depth": 1, "num_heads": 3}}, r"'blocks.1.*has no place in a model of the type timm"),
])  # fmt: skip
def test_other_models_of_timm_are_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    timm_folder("vit", tmp_path)
    change_config(tmp_path, **changes)
    with pytest.raises(ValueError, match=message):
        polyhead.models.load(tmp_path)


def test_the_page_of_models_of_images_lists_the_families(tmp_path: Path) -> None:
    saved_model("vit", tmp_path)
    change_config(tmp_path, model_type="nothing")
    with pytest.raises(ValueError) as refused:
        polyhead.models.load(tmp_path)
    known = str(refused.value).split("known models of images are ")[1].split(";")[0].split(", ")
    page = Path(__file__).parents[2] / "docs" / "image-models.md"
    rows = [line.split("`")[1] for line in page.read_text().splitlines() if line.startswith("| `") and "model_type" not in line]
    assert rows == known


def test_families_are_those_that_the_program_lists() -> None:
    result = program("inspect", "--families", "--json")
    listed = json.loads(result.stdout)["families"]
    found = polyhead.models.families()
    assert [(family.kind, family.model_type, family.refused or None) for family in found] == [(one["kind"], one["model_type"], one["refused"]) for one in listed]
    assert ("images and texts", "clip", "") in found and next(family for family in found if family.model_type == "deberta").refused
