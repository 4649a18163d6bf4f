"""What runs on tensors without contents."""

from collections.abc import Iterator

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode


@pytest.fixture
def fake() -> Iterator[FakeTensorMode]:
    with FakeTensorMode() as mode:
        yield mode
