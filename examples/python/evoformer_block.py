"""The two attentions of an Evoformer block on a table of sequences: along the rows with a bias from the pair representation, then along the columns.

Jumper et al. 2021, supplementary algorithms 7 and 8. The table is [B, sequences, residues, c_m]; nothing is transposed by hand, attention runs along an axis.
"""

# %%
from __future__ import annotations

import sys

try:
    import torch
    from torch import Tensor, nn

    from polyhead.torch import GatedAttention
except ImportError as error:
    sys.exit(f"this example needs polyhead and torch (pip install torch): {error}")

BATCH, SEQUENCES, RESIDUES, C_M, C_Z, C, HEADS = 2, 16, 24, 32, 16, 8, 4


# %% The block, with residual connections.
class RowAndColumnAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_rows, self.norm_columns, self.norm_pair = nn.LayerNorm(C_M), nn.LayerNorm(C_M), nn.LayerNorm(C_Z)
        self.pair_bias = nn.Linear(C_Z, HEADS, bias=False)
        self.rows = GatedAttention(C_M, C, HEADS, axis=-2, gated=True)  # a residue attends to the residues of its own sequence
        self.columns = GatedAttention(C_M, C, HEADS, axis=-3, gated=True)  # at each residue position, sequences attend to one another

    def bias(self, pair: Tensor) -> Tensor:
        """The pair bias [B,N,residues,residues], which all sequences share without a copy."""
        out: Tensor = self.pair_bias(self.norm_pair(pair)).permute(0, 3, 1, 2)
        return out

    def forward(self, table: Tensor, pair: Tensor, is_residue: Tensor) -> Tensor:
        """table [B,sequences,residues,c_m], pair [B,residues,residues,c_z], is_residue [B,sequences,residues] (False: a gap or padding)."""
        table = table + self.rows(self.norm_rows(table), self.bias(pair), is_residue)
        out: Tensor = table + self.columns(self.norm_columns(table), attend_keys=is_residue, mask_like_input=True)  # the mask's dimensions are in the order of the table's
        return out


# %% The two attentions of the block in torch's operators, written as in the algorithms.
def formula(layer: GatedAttention, x: Tensor, bias: Tensor | None, attend_keys: Tensor) -> Tensor:
    """Attention along S of x [B,rows,S,c_m], with bias [B,N,S,S] or None and attend_keys [B,rows,S]."""
    q, k, v = (linear(x).unflatten(-1, (HEADS, C)).transpose(-3, -2) for linear in (layer.linear_q, layer.linear_k, layer.linear_v))
    score = q @ k.mT / C**0.5
    if bias is not None:
        score = score + bias.unsqueeze(1)
    score = score + 1e8 * (attend_keys.to(x.dtype) - 1)[..., None, None, :]
    assert layer.linear_g is not None
    out: Tensor = layer.linear_o(torch.sigmoid(layer.linear_g(x)) * (score.softmax(-1) @ v).transpose(-3, -2).flatten(-2))
    return out


def formula_of_block(block: RowAndColumnAttention, table: Tensor, pair: Tensor, is_residue: Tensor) -> Tensor:
    table = table + formula(block.rows, block.norm_rows(table), block.bias(pair), is_residue)
    columns = block.norm_columns(table).transpose(1, 2)
    return table + formula(block.columns, columns, None, is_residue.mT).transpose(1, 2)


# %% Inputs, in float64 so that rounding hides no difference.
torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
block = RowAndColumnAttention()
table = torch.randn(BATCH, SEQUENCES, RESIDUES, C_M)
pair = torch.randn(BATCH, RESIDUES, RESIDUES, C_Z, requires_grad=True)
is_residue = torch.rand(BATCH, SEQUENCES, RESIDUES) < 0.9
is_residue[:, 0] = True  # sequence 0, whose structure is wanted, has no gaps

# %% Compare the block with the formula: outputs, and gradients of every parameter and of the pair representation.
weight = torch.randn_like(table)
inputs = {"pair": pair, **dict(block.named_parameters())}
ours, theirs = (f(table, pair, is_residue) for f in (block, lambda *tensors: formula_of_block(block, *tensors)))
found = (ours - theirs).abs().max().item()
print(f"output {list(ours.shape)}, largest difference from the formula {found:.1e}")
assert found < 1e-12
for name, mine, other in zip(inputs, *(torch.autograd.grad((out * weight).sum(), list(inputs.values())) for out in (ours, theirs))):
    # Divide by at least 1: norm_pair.bias adds a constant to all scores of a row, which does not change the softmax, so its gradient is 0 up to rounding.
    difference = ((mine - other).abs().max() / other.abs().max().clamp(min=1)).item()
    if name in ("pair", "pair_bias.weight"):
        print(f"gradient of {name} {list(mine.shape)}, relative difference {difference:.1e}")
    assert mine.shape == inputs[name].shape and difference < 1e-11, name

# %% The gradient of the bias has the shape of the bias: polyhead sums over the sequences, and no [B,sequences,N,residues,residues] tensor exists.
bias = block.bias(pair).detach().requires_grad_()
block.rows(table, bias).sum().backward()
assert bias.grad is not None and bias.grad.shape == (BATCH, HEADS, RESIDUES, RESIDUES)
print(f"gradient of the pair bias {list(bias.grad.shape)}; spread over the sequences it would be {SEQUENCES} times as large")

# %% Global attention (algorithm 19): one query per column, one key and value head for all heads; the gate gives each position its own result.
extra = GatedAttention(C_M, C, HEADS, axis=-3, gated=True, is_global=True, query_mean="attended")
print(f"global column attention {list(extra(table, attend_keys=is_residue, mask_like_input=True).shape)}")
assert extra(table, attend_keys=is_residue, mask_like_input=True).shape == table.shape
