"""Rows of text to train on without a download: Python's own source, a byte a token."""

import argparse
from pathlib import Path

import torch
from torch import Tensor

WORDS = 256


def rows(count: int, length: int) -> Tensor:
    """`count` rows of `length` bytes, as whole numbers from 0 to 255."""
    source = Path(argparse.__file__).read_bytes()
    return torch.frombuffer(bytearray(source[: count * length]), dtype=torch.uint8).long().reshape(count, length)
