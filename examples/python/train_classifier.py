"""Train a tiny classifier whose only way to compare positions is polyhead.torch.MultiheadAttention.

The task: does the first digit of a sequence of 6 to 12 digits occur again? Shorter sequences are padded to 12 digits, so the model needs a key padding mask.
"""

# %%
from __future__ import annotations

import sys

try:
    import torch
    from torch import Tensor, nn

    from polyhead.torch import MultiheadAttention
except ImportError as error:
    sys.exit(f"this example needs polyhead and torch (pip install torch): {error}")

DIGITS, LENGTH, WIDTH, HEADS = 10, 12, 32, 4
PADDING = DIGITS  # the token of padding; its embedding is the last row of the table


# %% The data: half of the answers are yes.
def batch(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """A batch of examples: digits [B,T], a mask [B,T] that is true for padding, and the answers [B]."""
    digits = torch.randint(DIGITS, (size, LENGTH), generator=generator)
    lengths = torch.randint(LENGTH // 2, LENGTH + 1, (size, 1), generator=generator)
    answers = torch.randint(2, (size,), generator=generator)
    first = digits[:, :1]
    rest = torch.where(digits[:, 1:] == first, (first + 1) % DIGITS, digits[:, 1:])  # the first digit does not occur again
    place = 1 + (torch.rand(size, 1, generator=generator) * (lengths - 1)).long()
    digits = torch.cat([first, rest], 1)
    digits = torch.where((torch.arange(LENGTH) == place) & (answers == 1).unsqueeze(1), first, digits)
    is_padding = torch.arange(LENGTH) >= lengths
    return digits.masked_fill(is_padding, PADDING), is_padding, answers


# %% The model. torch.nn.MultiheadAttention in place of the import above would work as well.
class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.digit = nn.Embedding(DIGITS + 1, WIDTH)
        self.place = nn.Parameter(0.1 * torch.randn(LENGTH, WIDTH))
        self.attention = MultiheadAttention(WIDTH, HEADS, dropout=0.1, batch_first=True)
        self.decide = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 2))

    def forward(self, digits: Tensor, is_padding: Tensor, need_weights: bool = False) -> tuple[Tensor, Tensor | None]:
        """Returns logits [B,2] and, with need_weights, the attention weights [B,N,T] of the first position."""
        x = self.digit(digits) + self.place
        attended, weights = self.attention(x[:, :1], x, x, key_padding_mask=is_padding, need_weights=need_weights, average_attn_weights=False)
        return self.decide(attended[:, 0]), None if weights is None else weights[:, :, 0]


# %% Training. The seed decides the dropout as well, so a run can be repeated.
torch.set_num_threads(1)  # more threads do not speed up tensors of this size, and slow them down much where cores are busy
torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
losses = []
for step in range(401):
    digits, is_padding, answers = batch(64, generator)
    logits, _ = model(digits, is_padding)
    loss = nn.functional.cross_entropy(logits, answers)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step % 100 == 0:
        print(f"step {step:3d}   loss {loss.item():.3f}")

# %% The result, on sequences that the model has not seen.
model.eval()
digits, is_padding, answers = batch(1000, generator)
with torch.no_grad():
    logits, weights = model(digits, is_padding, need_weights=True)
    plain, _ = model(digits, is_padding)
accuracy = (logits.argmax(1) == answers).double().mean().item()
print(f"accuracy {accuracy:.3f} on 1000 new sequences; guessing gives 0.5")
assert losses[0] > 0.6 and sum(losses[-20:]) / 20 < 0.25
assert accuracy > 0.93

# %% What the heads look at: if the answer is yes, at the repeated digit.
assert weights is not None and torch.equal(logits, plain)  # requesting the attention weights does not change the logits
assert (weights.masked_select(is_padding.unsqueeze(1)) == 0).all()
again = (digits == digits[:, :1]) & (torch.arange(LENGTH) > 0)
share = (weights * again.unsqueeze(1))[answers == 1].sum(-1).mean(0)
print("attention weight on the repeated digit, per head:", " ".join(f"{value:.2f}" for value in share.tolist()))
assert share.max() > 3 / LENGTH  # three times the share that uniform attention gives
