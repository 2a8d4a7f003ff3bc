#!/usr/bin/env python3
"""Compares polyhead's ring with torch's context parallel: attention of one sequence on several processes that are connected by gloo, on the CPU, forward and backward.

    python -m venv build/peers && build/peers/bin/pip install torch .
    build/peers/bin/python bench/context_parallel.py --length 8192 --heads 4 --causal
    build/peers/bin/python bench/context_parallel.py --length 8192 --sdpa MATH

polyhead and torch cut the sequence in the same way (zigzag: a rank gets one slice from the front and one from the end), with one thread per process. Times are
those of the slowest process: of the first call, and of the fastest of --repeat calls. Memory is the peak of each process minus its memory before the first call, when
the process already held its slices of q, k and v. The error is the largest difference from attention on one process, divided by the largest output.
"""

from __future__ import annotations

import argparse
import os
import socket
import time
import traceback
from typing import Any

from peer.process_memory import field, restart_peak


def measure(call: Any, repetitions: int) -> dict[str, Any]:
    """Measures call(), which returns out. The times are those of the slowest process."""
    import torch
    import torch.distributed as dist

    restart_peak()
    base, times = field("VmRSS"), []
    for _ in range(1 + repetitions):
        dist.barrier()
        begin = time.perf_counter()
        out = call()
        took = torch.tensor(time.perf_counter() - begin)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        times.append(float(took))
    return {"out": out, "first": times[0], "best": min(times[1:]), "peak": (field("VmHWM") - base) / 1e6}


def work(rank: int, given: argparse.Namespace, port: int) -> None:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.experimental import context_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel

    import polyhead
    from polyhead.distributed import attention, take_slice

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=given.processes)
    torch.set_num_threads(1)
    polyhead.set_num_threads(1)
    generator = torch.Generator().manual_seed(1)
    whole = [torch.randn(1, given.heads, given.length, given.width, generator=generator) for _ in range(3)]
    with torch.no_grad():
        expected = take_slice(F.scaled_dot_product_attention(*whole, is_causal=given.causal), -2, "zigzag", rank, given.processes)

    def trained(function: Any, leaves: list[Any]) -> Any:
        def call() -> Any:
            for leaf in leaves:
                leaf.grad = None
            out = function(*leaves)
            out.sum().backward()
            return out.detach()

        return call

    def polyhead_ring() -> dict[str, Any]:
        leaves = [take_slice(x, -2, "zigzag", rank, given.processes).clone().requires_grad_() for x in whole]
        rules = {"causal": "top_left"} if given.causal else {}
        return measure(trained(lambda q, k, v: attention(q, k, v, order="zigzag", plan=(1, given.processes), **rules), leaves), given.repeat)

    def torch_context_parallel() -> dict[str, Any]:
        buffers = [x.clone() for x in whole]
        mesh = init_device_mesh("cpu", (given.processes,))
        with sdpa_kernel(getattr(SDPBackend, given.sdpa)), context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2, 2, 2]):
            leaves = [x.detach().clone().requires_grad_() for x in buffers]
            return measure(trained(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=given.causal), leaves), given.repeat)

    for name, peer in (("polyhead ring", polyhead_ring), ("torch context_parallel", torch_context_parallel)):
        try:
            told = peer()
        except Exception as error:
            print(f"{name}, rank {rank}: {type(error).__name__}: {error}", flush=True)
            if given.traceback:
                traceback.print_exc()
            continue
        error = float((told["out"] - expected).abs().max() / expected.abs().max())
        if rank == 0:
            print(f"{name}: first call {told['first']:.2f} s, best {told['best']:.3f} s, peak {told['peak']:.0f} MB, error {error:.1e}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    import torch
    import torch.multiprocessing as processes

    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--sdpa", default="FLASH_ATTENTION", help="torch's backend: FLASH_ATTENTION (its default on the CPU) or MATH")
    parser.add_argument("--traceback", action="store_true")
    given = parser.parse_args()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    print(f"torch {torch.__version__}, {given.processes} processes, S {given.length}, {given.heads} heads, {given.width} wide{', causal' * given.causal}, float32, forward and backward")
    processes.spawn(work, (given, port), nprocs=given.processes)


if __name__ == "__main__":
    main()
