"""Train a small transformer in a loop of your own, once as it is and once with activations saved in 8 bits.

    python examples/train_loop.py

It takes less than a minute on a CPU, and prints the losses of both and what is saved for backward.
"""

import torch
from text import WORDS, rows
from torch import Tensor, nn

from actfit import compress, saved_bytes

STEPS, BATCH, LENGTH, WIDTH = 20, 8, 128, 128


class Model(nn.Module):
    """Predicts each byte from those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, activation="gelu", batch_first=True)
            for _ in range(4)
        )
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, text: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        x = self.embed(text)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(x)


def train(bits: int | None) -> list[float]:
    """The loss of each step; None: as PyTorch trains it."""
    torch.manual_seed(0)
    model = Model()
    batches = rows(STEPS * BATCH, LENGTH).split(BATCH)
    handle = None if bits is None else compress(model, bits=bits)
    print(f"bits={bits}: {saved_bytes(model, batches[0]).total / 2**20:.1f} MiB are saved for backward")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    losses = []
    for text in batches:
        loss = nn.functional.cross_entropy(model(text)[:, :-1].flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    if handle is not None:
        handle.remove()
    return losses


def main() -> None:
    for stock, compressed in zip(train(None)[::5], train(8)[::5], strict=True):
        print(f"loss {stock:.4f} as it is, {compressed:.4f} with 8 bits")


if __name__ == "__main__":
    main()
