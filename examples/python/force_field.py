"""A loss on forces: forces are the gradient of an energy, so training on them needs second derivatives, which polyhead's attention has.

Atoms attend to one another with a bias made from their distances. The model learns energies and forces of a pair potential.
"""

# %%
from __future__ import annotations

import sys
from collections.abc import Callable

try:
    import torch
    from torch import Tensor, nn

    from polyhead.torch import attention
except ImportError as error:
    sys.exit(f"this example needs polyhead and torch (pip install torch): {error}")

CLUSTERS, KINDS, WIDTH, HEADS, BASIS, LAYERS = 16, 2, 32, 4, 12, 2
CORNERS = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3)  # positions of 8 atoms: the corners of a cube


# %% Distances enter through a bias [B,N,A,A] of each layer, so forces need the gradient of the bias, and the loss on forces needs second derivatives.
class ForceField(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(KINDS, WIDTH)
        self.pair = nn.ModuleList(nn.Linear(BASIS, HEADS) for _ in range(LAYERS))
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        self.sink = nn.Parameter(torch.zeros(LAYERS, HEADS))  # with a sink, an atom whose neighbours are all far away can attend to none of them
        self.step = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH)) for _ in range(LAYERS))
        self.readout = nn.Linear(WIDTH, 1)

    def forward(self, positions: Tensor, kinds: Tensor, attend: Callable[..., Tensor] = attention) -> Tensor:
        """The energies [B] of positions [B,A,3]."""
        basis = torch.exp(-4 * (distances(positions).unsqueeze(-1) - torch.linspace(0.5, 3, BASIS).to(positions)) ** 2)
        x = self.embedding(kinds)
        for pair, qkv, sink, step in zip(self.pair, self.qkv, self.sink, self.step):
            q, k, v = qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
            x = x + step(attend(q, k, v, bias=pair(basis).permute(0, 3, 1, 2), sink=sink).transpose(1, 2).flatten(2))
        out: Tensor = self.readout(x).sum((1, 2))
        return out


def distances(positions: Tensor) -> Tensor:
    apart = positions.unsqueeze(2) - positions.unsqueeze(1)
    return (apart.square().sum(-1) + torch.eye(positions.size(1)).to(positions)).sqrt()  # the added 1 on the diagonal keeps the root from 0, where its slope is infinite


def potential(positions: Tensor, kinds: Tensor) -> Tensor:
    """Morse's potential, whose depth depends on the kinds of both atoms."""
    depth = 0.2 * (1 + kinds.unsqueeze(2) + kinds.unsqueeze(1)) * (1 - torch.eye(positions.size(1)).to(positions))
    return (depth * ((1 - torch.exp(1.2 - distances(positions))) ** 2 - 1)).sum((1, 2)) / 2


# %% create_graph keeps the graph of the forces, through which the loss reaches the parameters.
def forces(energy: Tensor, positions: Tensor, create_graph: bool = False) -> Tensor:
    return -torch.autograd.grad(energy.sum(), positions, create_graph=create_graph)[0]


def train(steps: int, dtype: torch.dtype = torch.float32, attend: Callable[..., Tensor] = attention) -> tuple[ForceField, Tensor, Tensor, list[float]]:
    """The model, the positions and kinds of its atoms, and the loss of each step."""
    torch.manual_seed(0)
    model = ForceField().to(dtype)
    positions = (1.2 * CORNERS + 0.15 * torch.randn(CLUSTERS, 8, 3)).to(dtype).requires_grad_()
    kinds = torch.randint(KINDS, (CLUSTERS, 8))
    target = potential(positions, kinds)
    target_forces, target = forces(target, positions), (target - target.mean()).detach()
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for _ in range(steps):
        energy = model(positions, kinds, attend)
        loss = (energy - target).square().mean() / 8 + 10 * (forces(energy, positions, create_graph=True) - target_forces).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, positions.detach(), kinds, losses


# %% The loss falls. The Hessian of the energy, from which vibrations follow, is symmetric, and its product with a shift of all atoms is 0.
if __name__ == "__main__":
    model, positions, kinds, losses = train(100)
    for step in (0, 10, 20, 50, 99):
        print(f"step {step:2}: loss on energy and forces {losses[step]:.4f}")
    assert losses[-1] < 0.05 * losses[0]
    hessian = torch.func.hessian(lambda x: model(x.unsqueeze(0), kinds[:1])[0])(positions[0])
    symmetric, shift = (x.abs().max() / hessian.abs().max() for x in (hessian - hessian.permute(2, 3, 0, 1), hessian.sum(2)))
    print(f"Hessian {list(hessian.shape)}: {symmetric:.0e} from symmetric, {shift:.0e} from 0 for a shift")
    assert symmetric < 1e-4 and shift < 1e-4
