"""The data of `benchmarks.training`: a text and handwritten digits, both available offline.

The text is that of Python's help topics, so it depends on Python's version; every row stores its digest.
"""

import hashlib
from dataclasses import dataclass
from pydoc_data.topics import topics

import torch
from torch import Tensor

from actfit.coefficients.command import Misuse

TRAINED = 0.9  # of the text, from its beginning; the rest is held out
TEXTS = ("text", "gpt", "llama")  # tasks that learn the text
EVERY = 4  # one in so many images of each digit is held out


@dataclass(frozen=True)
class Text:
    """Character codes, int64: `train` and `held_out`, both flat; `symbols[code]` is the character."""

    train: Tensor
    held_out: Tensor
    context: int
    symbols: str

    @property
    def classes(self) -> int:
        return len(self.symbols)

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Random windows [size, context], and the next character after each of their characters."""
        starts = torch.randint(len(self.train) - self.context, (size,), generator=generator)
        return self._windows(self.train, starts)

    def judged(self, share: int = 1) -> tuple[Tensor, Tensor]:
        """Every `share`-th window of the held-out text, which they divide without overlap."""
        starts = torch.arange(0, len(self.held_out) - self.context, self.context * share)
        return self._windows(self.held_out, starts)

    def _windows(self, text: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
        places = starts.to(text.device)[:, None] + torch.arange(self.context, device=text.device)
        return text[places], text[places + 1]


@dataclass(frozen=True)
class Images:
    """Images [n, 1, 8, 8], float32 with mean 0 and variance 1 over the training images, and their digits [n], int64."""

    train: tuple[Tensor, Tensor]
    held_out: tuple[Tensor, Tensor]
    classes: int = 10

    def batch(self, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Images drawn with replacement, so that batches are independent, and their digits."""
        images, digits = self.train
        drawn = torch.randint(len(digits), (size,), generator=generator).to(digits.device)
        return images[drawn], digits[drawn]

    def judged(self, share: int = 1) -> tuple[Tensor, Tensor]:
        """Every `share`-th held-out image, and its digit."""
        return self.held_out[0][::share], self.held_out[1][::share]


Data = Text | Images


def text(context: int, device: torch.device) -> Text:
    """The help topics, joined in the order of their names; the last part is held out."""
    joined = "".join(topics[name] for name in sorted(topics))
    symbols = "".join(sorted(set(joined)))
    number = {symbol: i for i, symbol in enumerate(symbols)}
    codes = torch.tensor([number[symbol] for symbol in joined], device=device)
    border = int(TRAINED * len(codes))
    return Text(codes[:border], codes[border:], context, symbols)


def digits(device: torch.device) -> Images:
    """scikit-learn's 8x8 digits. Every fourth image of each digit is held out; nothing is random."""
    try:
        from sklearn.datasets import load_digits  # for this task only
    except ImportError:
        raise Misuse("task digits needs scikit-learn: pip install scikit-learn, or --task text") from None
    loaded = load_digits()
    images = torch.tensor(loaded.images, dtype=torch.float32)[:, None]
    labels = torch.tensor(loaded.target, dtype=torch.int64)
    held = torch.zeros(len(labels), dtype=torch.bool)
    for digit in labels.unique():
        held[(labels == digit).nonzero().flatten()[EVERY - 1 :: EVERY]] = True
    mean, spread = images[~held].mean(), images[~held].std()
    images = (images - mean) / spread
    parts = [(images[of].to(device), labels[of].to(device)) for of in (~held, held)]
    return Images(*parts)


def data(task: str, context: int, device: torch.device) -> Data:
    """The data of a task: the text, or the digits."""
    return text(context, device) if task in TEXTS else digits(device)


def digest(samples: Data) -> str:
    """A hash of all numbers and of the split."""
    parts = (samples.train, samples.held_out) if isinstance(samples, Text) else (*samples.train, *samples.held_out)
    sums = [hashlib.sha256(part.cpu().numpy().tobytes()).hexdigest() for part in parts]
    return hashlib.sha256("".join(sums).encode()).hexdigest()[:12]
