"""polyhead.MultiHeadAttention next to its formula in NumPy, step by step (Vaswani et al. 2017, equation 1 and section 3.2.2)."""

# %%
from __future__ import annotations

import sys

try:
    import numpy as np

    import polyhead
except ImportError as error:
    sys.exit(f"this example needs polyhead and NumPy (pip install numpy): {error}")

BATCH, QUERIES, KEYS, WIDTH, HEADS = 2, 5, 7, 12, 3
H = WIDTH // HEADS
rng = np.random.default_rng(0)
x = rng.standard_normal((BATCH, QUERIES, WIDTH))
memory = rng.standard_normal((BATCH, KEYS, WIDTH))
lengths = np.array([7, 4])  # the second memory has three positions of padding
position_bias = rng.standard_normal((1, HEADS, QUERIES, KEYS))


def same(what: str, ours: np.ndarray, formula: np.ndarray) -> None:
    difference = float(np.abs(ours - formula).max())
    print(f"{what:34} {str(list(ours.shape)):18} {difference:.1e}")
    assert ours.shape == formula.shape and difference < 1e-12


# %% The layer. Its parameters are NumPy arrays that share the layer's memory.
layer = polyhead.MultiHeadAttention(WIDTH, HEADS, dtype="float64", seed=1)
out, saved = layer.forward(x, memory, key_lengths=lengths, bias=position_bias)
w = layer.parameters
print(f"{'step':34} {'shape':18} difference from the formula")

# %% 1. Projections, and the split into heads: [B,T,N*H] -> [B,N,T,H] is a view.
q, k, v = (
    (source @ w[f"{name}.weight"].T + w[f"{name}.bias"]).reshape(BATCH, -1, HEADS, H).swapaxes(1, 2)
    for name, source in (("q", x), ("k", memory), ("v", memory))
)

# %% 2. Scores. A bias of [1,N,T,S] is shared by the batch; a key beyond the length does not exist, so its score is minus infinity.
score = q @ k.swapaxes(-1, -2) / np.sqrt(H) + position_bias
score[np.broadcast_to(np.arange(KEYS) >= lengths[:, None, None, None], score.shape)] = -np.inf
same("scores", np.nan_to_num(saved.maps("score"), neginf=0), np.nan_to_num(score, neginf=0))

# %% 3. Softmax over the keys: p = exp(score - lse).
lse = np.log(np.exp(score - score.max(-1, keepdims=True)).sum(-1)) + score.max(-1)
p = np.exp(score - lse[..., None])
same("lse", saved.lse, lse)
same("attention weights", saved.maps(), p)
assert (saved.maps()[1, ..., 4:] == 0).all()

# %% 4. The weighted mean of the values, head by head: polyhead.sdpa, which the layer calls.
heads = p @ v
attended, attended_lse = polyhead.sdpa(q, k, v, key_lengths=lengths, bias=position_bias, return_lse=True)
same("heads", attended, heads)

# %% 5. Merged heads, and the output projection.
merged = heads.swapaxes(1, 2).reshape(BATCH, QUERIES, WIDTH)
same("output", out, merged @ w["output.weight"].T + w["output.bias"])

# %% 6. Backward through the softmax, by hand: d_score = p * (d_p - sum p d_p).
d_heads = rng.standard_normal(heads.shape)
d_p = d_heads @ v.swapaxes(-1, -2)
d_score = p * (d_p - (p * d_p).sum(-1, keepdims=True))
gradients = polyhead.sdpa_backward(q, k, v, attended, attended_lse, d_heads, key_lengths=lengths, bias=position_bias)
same("gradient of q", gradients.q, d_score @ k / np.sqrt(H))
same("gradient of k", gradients.k, d_score.swapaxes(-1, -2) @ q / np.sqrt(H))
same("gradient of v", gradients.v, p.swapaxes(-1, -2) @ d_heads)
same("gradient of the bias, its own shape", gradients.bias, d_score.sum(0, keepdims=True))

# %% 7. The layer's gradients, against a central difference of one parameter.
d_out = rng.standard_normal(out.shape)
analytic = saved.backward(d_out).parameters
assert analytic is not None
step, at = 1e-5, (2, 3)
loss = []
for sign in (1, -1):
    w["k.weight"][at] += sign * step
    loss.append(float((layer(x, memory, key_lengths=lengths, bias=position_bias) * d_out).sum()))
    w["k.weight"][at] -= sign * step
numeric = (loss[0] - loss[1]) / (2 * step)
print(f"gradient of k.weight[2,3]: {analytic['k.weight'][at]:.8f}, by a central difference {numeric:.8f}")
assert abs(analytic["k.weight"][at] - numeric) < 1e-6 * max(1.0, abs(numeric))
