"""What fits a GPU, as values and as a table that says what to do."""

from dataclasses import dataclass
from typing import NamedTuple

from actfit.kernels.memory.saved import size

STOCK, EXACT, CHECKPOINT, PLAN = "as it is", "exact", "checkpoint", "plan"
PEAK = (
    "Peak: of PyTorch's tensors, with what is there before a step. Gradients count as there before, as with"
    " accumulation. CUDA's context, workspaces and gaps between tensors come on top: give less than the card has."
)
TIME = "Time: by the model of costs, which is of a Llama of 16 layers in bfloat16 on an H100; nothing was timed here."
PLANNED = "The plan may fit larger batches than that; its bytes are those of this machine's operations."
NO_LOSS = "The gradient of the output counts; a loss outside of the model does not."


class Before(NamedTuple):
    """Bytes of weights and buffers, gradients and the optimizer's state; and of what the optimizer's step adds."""

    weights: int
    gradients: int
    state: int
    passing: int

    @property
    def held(self) -> int:
        """Bytes that are there during forward and backward."""
        return self.weights + self.gradients + self.state


@dataclass(frozen=True)
class Row:
    """A way to train."""

    way: str
    peak: int  # bytes of a step, with what is there before
    largest: int | None  # the largest batch that fits, 0 if none does; None: not known
    time: float | None  # of forward and backward, × those of the unchanged model; None: not known
    gradient: str  # "exact", or what is known of its error


@dataclass(frozen=True)
class Card:
    """What fits a GPU of `gpu` bytes. `str(card)` is a table, and says what to do."""

    gpu: int
    optimizer: str
    before: Before
    rows: tuple[Row, ...]
    notes: tuple[str, ...]

    def fits(self, row: Row) -> bool:
        """Whether a step of the given batch fits."""
        return row.peak <= self.gpu

    @property
    def verdict(self) -> str:
        """What to do, in a sentence or two."""
        room, fitting = self.gpu - self.before.held, [row for row in self.rows if self.fits(row)]
        if room <= 0:
            return (
                f"No batch fits: {size(self.before.held)} are there before a step. Train fewer weights, as LoRA does."
            )
        if room < self.before.passing:
            passing = size(self.before.passing)
            return f"No batch fits: the optimizer's step itself takes {passing}, but nothing with AdamW(fused=True)."
        if not fitting:
            smaller = any(row.largest for row in self.rows)
            return "This batch does not fit. " + ("A smaller one does." if smaller else "Shorten the samples.")
        if fitting[0].way == STOCK:
            return "It fits as it is."
        exact = [row for row in fitting if row.gradient == "exact"]
        fastest = [min(rows, key=lambda row: row.time or 1.0).way for rows in (fitting, exact) if rows]
        also = "" if fastest[0] == fastest[-1] else f", and {fastest[-1]} of those with exact gradients"
        call = f'compress(model, fit="{room // 2**20}MiB", inputs=batch)'
        return (
            f"It does not fit as it is. Of what fits, {fastest[0]} is fastest{also}. A plan for your training: {call}."
        )

    def __str__(self) -> str:
        held = f"weights {size(self.before.weights)}, gradients {size(self.before.gradients)}"
        held += f", state of {self.optimizer} {size(self.before.state)}" if self.before.state else ""
        table = ["| | peak | fits | largest batch | time | gradient |", "|---|---:|---|---:|---:|---|"]
        for row in self.rows:
            largest, time = "–" if row.largest is None else row.largest, f"{row.time:.2f}×" if row.time else "–"
            fits = "yes" if self.fits(row) else "no"
            table.append(f"| {row.way} | {size(row.peak)} | {fits} | {largest} | {time} | {row.gradient} |")
        notes = [text for note in self.notes for text in ("", note)]
        return "\n".join(
            [f"GPU of {size(self.gpu)}; there before a step: {held}", "", *table, "", self.verdict, *notes]
        )
