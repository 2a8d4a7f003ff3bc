"""Measures time and memory of a step of protein models, with the attention of their own packages and with polyhead's (polyhead.patch), in turns.

    python bench/folding.py [--residues 128 256 384] [--threads 1] [--rounds 5] [--seconds 60] [--only boltz] [--passes forward backward]

Prints the tables of docs/folding.md. Packages that are not installed are left out. A time is the processor time divided by the number of threads, as
the median over the rounds. In each round the time of the package's step is divided by the time of the polyhead step next to it; the ratio is the median of these quotients.
Memory is the peak during a step in a separate process, minus the memory of that process before the step. With --rounds 0 the time is that of this step, too, which
halves the time of the measurement.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib
import json
import os
import platform
import statistics
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

os.environ.setdefault("LAYERNORM_TYPE", "torch")  # protenix' default compiles a CUDA kernel on import

import polyhead
import polyhead.patch
from peer.process_memory import field, restart_peak

ALIGNED = 64  # number of sequences in the alignment
SAMPLES = 5  # number of structures that a step of a diffusion model computes at once
ATOMS = 8  # number of atoms of a residue
WARM = 16  # number of residues of a call that is not measured
QUERIES, KEYS = 32, 128  # sizes of the atoms' windows
S, Z, TOKEN, ATOM, ATOM_PAIR = 384, 128, 768, 128, 16  # widths: residues, pairs, tokens and atoms of the diffusion model, pairs of atoms

Step = tuple[torch.nn.Module, list[Tensor], Callable[..., Any]]  # a module, its inputs, and a call with these inputs


def of(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


def residues(n: int) -> list[Tensor]:
    return [torch.randn(1, n, S), torch.randn(1, n, n, Z)]


def tokens(n: int) -> list[Tensor]:
    return [torch.randn(SAMPLES, n, TOKEN), torch.randn(SAMPLES, n, S)]


def atoms(n: int) -> list[Tensor]:
    return [torch.randn(SAMPLES, ATOMS * n, ATOM), torch.randn(SAMPLES, ATOMS * n, ATOM)]


def boltz_triangle(n: int) -> Step:
    layer = of("boltz.model.layers.triangular_attention.attention", "TriangleAttentionStartingNode")(Z, 32, 4)
    mask = torch.ones(1, n, n)
    return layer, [torch.randn(1, n, n, Z)], lambda z: layer(z, mask=mask)


def boltz_pair_bias(n: int) -> Step:
    layer = of("boltz.model.layers.attentionv2", "AttentionPairBias")(S, Z, 16)
    mask = torch.ones(1, n)
    return layer, residues(n), lambda s, z: layer(s, z, mask, s)


def boltz_trunk(n: int) -> Step:
    layer = of("boltz.model.layers.pairformer", "PairformerLayer")(S, Z, v2=True, dropout=0.0)
    mask, pairs = torch.ones(1, n), torch.ones(1, n, n)
    return layer, residues(n), lambda s, z: layer(s, z, mask, pairs)


def boltz_confidence(n: int) -> Step:
    """Every residue is one atom here: the atoms give only distances."""
    head = of("boltz.model.modules.confidencev2", "ConfidenceModule")(
        S, Z, {"num_blocks": 1, "num_heads": 16, "dropout": 0.0, "v2": True}, add_s_to_z_prod=True, add_s_input_to_s=True, confidence_args={}
    )
    ones, zeros, own = torch.ones(1, n), torch.zeros(1, n, dtype=torch.long), torch.eye(n)[None]
    features = {
        "token_to_rep_atom": own, "atom_to_token": own, "token_pad_mask": ones, "atom_pad_mask": ones, "mol_type": zeros, "asym_id": zeros,
        "frames_idx": (torch.arange(n)[None, :, None] + torch.tensor([-1, 0, 1])) % n,
    }  # fmt: skip
    x, distances = 10 * torch.randn(1, n, 3), torch.randn(1, n, n, 64)
    return head, [torch.randn(1, n, S), *residues(n)], lambda inputs, s, z: head(inputs, s, z, x, features, distances)


def boltz_tokens(n: int) -> Step:
    layer = of("boltz.model.modules.transformersv2", "DiffusionTransformerLayer")(16, TOKEN, TOKEN)
    mask = torch.ones(SAMPLES, n)
    inputs = [torch.randn(SAMPLES, n, TOKEN), torch.randn(SAMPLES, n, TOKEN), torch.randn(1, n, n, 16)]
    return layer, inputs, lambda a, s, bias: layer(a, s, bias, mask, multiplicity=SAMPLES)


def boltz_atoms(n: int) -> Step:
    windows = ATOMS * n // QUERIES
    layer = of("boltz.model.modules.transformersv2", "AtomTransformer")(QUERIES, KEYS, depth=1, heads=4, dim=ATOM, dim_single_cond=ATOM)
    index = of("boltz.model.modules.encodersv2", "get_indexing_matrix")(windows, QUERIES, KEYS, "cpu")
    to_keys = of("boltz.model.modules.encodersv2", "single_to_keys")
    mask = torch.ones(SAMPLES, ATOMS * n)
    inputs = [*atoms(n), torch.randn(1, windows, QUERIES, KEYS, 4)]
    return layer, inputs, lambda a, s, bias: layer(a, s, bias, lambda x: to_keys(x, index, QUERIES, KEYS), mask, SAMPLES)


def protenix_triangle(n: int) -> Step:
    layer = of("protenix.model.triangular.triangular", "TriangleAttention")(Z, 32, 4)
    mask = torch.ones(n, n)
    return layer, [torch.randn(n, n, Z)], lambda z: layer(z, mask=mask)


def protenix_trunk(n: int) -> Step:
    layer = of("protenix.model.modules.pairformer", "PairformerBlock")(dropout=0.0)
    mask = torch.ones(n, n)
    return layer, [x[0] for x in residues(n)], lambda s, z: layer(s, z, mask)


def protenix_confidence(n: int) -> Step:
    head = of("protenix.model.modules.confidence", "ConfidenceHead")(n_blocks=1)
    mask, x = torch.ones(n, n), 10 * torch.randn(1, n, 3)
    features = {"distogram_rep_atom_mask": torch.ones(n), "atom_to_token_idx": torch.arange(n), "atom_to_tokatom_idx": torch.zeros(n, dtype=torch.long)}
    return head, [torch.randn(n, 449), *(x[0] for x in residues(n))], lambda inputs, s, z: head(features, inputs, s, z, mask, x)


def protenix_tokens(n: int) -> Step:
    layer = of("protenix.model.modules.transformer", "DiffusionTransformerBlock")(TOKEN, S, Z, 16)
    return layer, [*tokens(n), torch.randn(1, n, n, Z)], layer


def openfold3_blocks(*path: str) -> dict[str, Any]:
    """The sizes of a stack in openfold3's own configuration, with one block and without dropout."""
    found = of("openfold3.projects.of3_all_atom.config.model_config", "model_config").architecture
    for name in path:
        found = found[name]
    sizes = dict(found.copy_and_resolve_references())
    return sizes | {name: value for name, value in (("no_blocks", 1), ("pair_dropout", 0.0)) if name in sizes}


def openfold3_trunk(n: int) -> Step:
    layer = of("openfold3.core.model.latent.pairformer", "PairFormerStack")(**openfold3_blocks("pairformer"))
    mask, pairs = torch.ones(1, n), torch.ones(1, n, n)
    return layer, residues(n), lambda s, z: layer(s, z, mask, pairs)


def openfold3_confidence(n: int) -> Step:
    heads = of("openfold3.projects.of3_all_atom.config.model_config", "model_config").architecture.heads.copy_and_resolve_references()
    heads.pairformer_embedding.pairformer.update(no_blocks=1, pair_dropout=0.0)
    head = of("openfold3.core.model.heads.head_modules", "AuxiliaryHeadsAllAtom")(heads)
    ones, zeros = torch.ones(1, n), torch.zeros(1, n, dtype=torch.long)
    features = {
        "token_mask": ones, "atom_mask": ones, "is_atomized": ones.long(), "is_protein": zeros, "is_dna": zeros, "is_rna": zeros, "restype": torch.zeros(1, n, 32, dtype=torch.long),
        "start_atom_index": torch.arange(n)[None], "num_atoms_per_token": ones.int(),
    }  # fmt: skip
    x = 10 * torch.randn(1, n, 3)

    def call(inputs: Tensor, s: Tensor, z: Tensor) -> Any:
        return head(features, inputs, {"si_trunk": s, "zij_trunk": z, "atom_positions_predicted": x}, True)

    return head, [torch.randn(1, n, heads.pairformer_embedding.c_s_input), *residues(n)], call


def openfold3_tokens(n: int) -> Step:
    layer = of("openfold3.core.model.layers.diffusion_transformer", "DiffusionTransformer")(**openfold3_blocks("diffusion_module", "diffusion_transformer"))
    mask = torch.ones(SAMPLES, n)
    return layer, [*tokens(n), torch.randn(1, n, n, Z)], lambda a, s, z: layer(a, s, z, mask)


def openfold3_atoms(n: int) -> Step:
    sizes = openfold3_blocks("diffusion_module", "diffusion_transformer") | {"c_a": ATOM, "c_s": ATOM, "c_z": ATOM_PAIR, "c_hidden": 32, "no_heads": 4, "n_query": QUERIES, "n_key": KEYS}
    layer = of("openfold3.core.model.layers.diffusion_transformer", "DiffusionTransformer")(**sizes)
    mask = torch.ones(SAMPLES, ATOMS * n)
    return layer, [*atoms(n), torch.randn(1, ATOMS * n // QUERIES, QUERIES, KEYS, ATOM_PAIR)], lambda a, s, z: layer(a, s, z, mask)


def openfold3_rows(n: int) -> Step:
    layer = of("openfold3.core.model.layers.msa", "MSARowAttentionWithPairBias")(256, Z, 32, 8)
    return layer, [torch.randn(1, ALIGNED, n, 256), torch.randn(1, n, n, Z)], lambda m, z: layer(m, z=z)


def openfold3_columns(n: int) -> Step:
    layer = of("openfold3.core.model.layers.msa", "MSAColumnAttention")(256, 32, 8)
    return layer, [torch.randn(1, ALIGNED, n, 256)], layer


def esm_layer(n: int) -> Step:
    layer = of("esm.modules", "TransformerLayer")(1280, 5120, 20, add_bias_kv=False, use_esm1b_layer_norm=True, use_rotary_embeddings=True)
    return layer, [torch.randn(n, 1, 1280)], layer


def esmc_layer(n: int) -> Step:
    layer = of("esm.layers.blocks", "UnifiedTransformerBlock")(1152, 18, expansion_ratio=8 / 3)
    sequence = torch.ones(1, n, dtype=torch.bool)
    return layer, [torch.randn(1, n, 1152)], lambda x: layer(x, sequence, None, None, None)


CASES: dict[str, tuple[Callable[[int], Step], Callable[[], Any]]] = {
    "boltz: trunk": (boltz_trunk, polyhead.patch.boltz),
    "boltz: confidence head": (boltz_confidence, polyhead.patch.boltz),
    "boltz: diffusion, tokens": (boltz_tokens, polyhead.patch.boltz),
    "boltz: diffusion, atoms": (boltz_atoms, polyhead.patch.boltz),
    "boltz: triangle attention, starting node": (boltz_triangle, polyhead.patch.boltz),
    "boltz: attention with pair bias": (boltz_pair_bias, polyhead.patch.boltz),
    "protenix: trunk": (protenix_trunk, polyhead.patch.protenix),
    "protenix: confidence head": (protenix_confidence, polyhead.patch.protenix),
    "protenix: diffusion, tokens": (protenix_tokens, polyhead.patch.protenix),
    "protenix: triangle attention, starting node": (protenix_triangle, polyhead.patch.protenix),
    "openfold3: trunk": (openfold3_trunk, polyhead.patch.openfold),
    "openfold3: confidence head": (openfold3_confidence, polyhead.patch.openfold),
    "openfold3: diffusion, tokens": (openfold3_tokens, polyhead.patch.openfold),
    "openfold3: diffusion, atoms": (openfold3_atoms, polyhead.patch.openfold),
    f"openfold3: rows of {ALIGNED} sequences, pair bias": (openfold3_rows, polyhead.patch.openfold),
    f"openfold3: columns of {ALIGNED} sequences": (openfold3_columns, polyhead.patch.openfold),
    "fair-esm: layer of ESM-2 650M": (esm_layer, polyhead.patch.esm),
    "ESM-C: layer of 600M": (esmc_layer, polyhead.patch.esmc),
}


def floating(found: Any) -> list[Tensor]:
    """The floating tensors of a result, which may be a tensor, a tuple or a dictionary of results."""
    if isinstance(found, Tensor):
        return [found] if found.is_floating_point() else []
    return [x for part in (found.values() if isinstance(found, dict) else found or ()) for x in floating(part)]


def step(case: str, n: int, backward: bool) -> Callable[[], None]:
    torch.manual_seed(0)
    layer, inputs, call = CASES[case][0](n)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    for x in inputs:
        x.requires_grad_(backward)
    layer.train(backward)

    def run() -> None:
        with contextlib.nullcontext() if backward else torch.no_grad():
            results = floating(call(*inputs))
            if backward:
                torch.stack([x.sum() for x in results if x.requires_grad]).sum().backward()
        layer.zero_grad()
        for x in inputs:
            x.grad = None

    return run


def patched(case: str, wanted: bool) -> Any:
    return CASES[case][1]() if wanted else contextlib.nullcontext()


def apart(function: Callable[[], Any]) -> Any:
    """The result of a function in a forked process, whose memory and time do not depend on what was measured before."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        status = 1
        try:
            with open(writing, "w") as results:
                json.dump(function(), results)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading) as results:
        found = results.read()
    if os.waitpid(child, 0)[1] != 0:
        raise RuntimeError("a measuring process failed")
    return json.loads(found)


def times_of(case: str, n: int, backward: bool, threads: int, rounds: int, seconds: float) -> dict[str, list[float]]:
    """Times in ms of the package and of polyhead, which take turns."""
    torch.set_num_threads(threads)
    run, warm = step(case, n, backward), step(case, WARM, backward)
    times: dict[str, list[float]] = {"own": [], "polyhead": []}
    for which in times:  # the first call loads code
        with patched(case, which == "polyhead"):
            warm()
    began = time.perf_counter()
    while len(times["polyhead"]) < rounds and (not times["polyhead"] or time.perf_counter() - began < seconds):
        for which, found in times.items():
            with patched(case, which == "polyhead"):
                start = time.process_time()
                run()
                found.append(1e3 * (time.process_time() - start) / threads)
    return times


def single(case: str, n: int, backward: bool, ours: bool, threads: int) -> tuple[float, float]:
    """The memory in MiB and the time in ms of one step."""
    torch.set_num_threads(threads)
    run, warm = step(case, n, backward), step(case, WARM, backward)
    with patched(case, ours):
        warm()  # loads code, whose pages are not memory of the step
        del warm
        ctypes.CDLL(None).malloc_trim(0)  # memory that is free, but kept, would not be counted
        restart_peak()  # because importing torch needs more memory than a small step
        before, start = field("VmRSS"), time.process_time()
        run()
        took = time.process_time() - start
    return (field("VmHWM") - before) / 2**20, 1e3 * took / threads


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--residues", type=int, nargs="+", default=[128, 256, 384])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5, help="0: one step gives both time and memory")
    parser.add_argument("--seconds", type=float, default=60, help="time after which no further round of a row of the table begins")
    parser.add_argument("--only", default="", help="part of the names of the rows")
    parser.add_argument("--passes", nargs="+", choices=["forward", "backward"], default=["forward", "backward"])
    given = parser.parse_args()
    torch.set_num_threads(1)  # a process with threads should not be forked
    print(f"{given.threads} thread(s), torch {torch.__version__}, polyhead {polyhead.__version__}, {platform.machine()}, load {os.getloadavg()[0]:.1f}\n")
    print("| | N | pass | own, ms | polyhead, ms | ratio | own, MiB | polyhead, MiB |\n|---|---|---|---|---|---|---|---|")
    for case, (build, patch) in CASES.items():
        if given.only not in case:
            continue
        try:
            build(WARM)  # imports the package
            patch().undo()
        except (ImportError, OSError):
            continue
        for n in given.residues:
            for backward in (each == "backward" for each in given.passes):
                one = {which: apart(lambda: single(case, n, backward, which == "polyhead", given.threads)) for which in ("own", "polyhead")}
                if given.rounds > 0:
                    times = apart(lambda: times_of(case, n, backward, given.threads, given.rounds, given.seconds))
                else:
                    times = {which: [took] for which, (_, took) in one.items()}
                ratio = statistics.median(own / mine for own, mine in zip(times["own"], times["polyhead"]))
                own, mine = (statistics.median(found) for found in times.values())
                what = "forward and backward" if backward else "forward"
                print(f"| {case} | {n} | {what} | {own:.0f} | {mine:.0f} | {ratio:.2f} | {one['own'][0]:.0f} | {one['polyhead'][0]:.0f} |", flush=True)


if __name__ == "__main__":
    main()
