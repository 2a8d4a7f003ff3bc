"""Restricts processes to one instruction set: environment variables that must be set before a peer is loaded, and the compiler's flags for the roof."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class InstructionSet:
    flags: tuple[str, ...]
    variables: dict[str, dict[str, str]]  # for each peer its environment variables; a peer that is not in the table cannot be restricted


INSTRUCTION_SETS = {
    "avx2": InstructionSet(
        flags=("-mavx2", "-mfma"),
        variables={
            "polyhead": {"POLYHEAD_ISA": "avx2"},
            # torch computes matrix products by MKL, which has its own variable for the instruction set.
            "torch": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
            "openvino": {"ONEDNN_MAX_CPU_ISA": "AVX2"},
        },
    ),
}


def environment(name: str) -> dict[str, str]:
    """The environment variables that restrict all peers of a process to the named set; empty without a name."""
    return {key: value for variables in INSTRUCTION_SETS[name].variables.values() for key, value in variables.items()} if name else {}
