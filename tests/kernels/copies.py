"""Copies of a module by each way that Python and PyTorch have for it."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn


def saved_and_loaded(net: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    loaded: nn.Module = torch.load(file, weights_only=False)
    return loaded


def pickled(net: nn.Module) -> nn.Module:
    made: nn.Module = pickle.loads(pickle.dumps(net))
    return made


each_copy = pytest.mark.parametrize("copied", [copy.deepcopy, pickled, saved_and_loaded])
