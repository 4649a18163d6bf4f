"""Long arrays taken in chunks whose intermediate results stay in the processor's cache."""

LENGTH = 8192


def chunks(count: int) -> list[slice]:
    """Slices that follow each other from 0 to `count`, at least one."""
    return [slice(start, start + LENGTH) for start in range(0, max(count, 1), LENGTH)]
