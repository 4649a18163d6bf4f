"""What the command lines of benchmarks share."""

from collections.abc import Sequence

from coefficients import command


def names(option: str, text: str | None, known: Sequence[str]) -> list[str]:
    """Those of a comma-separated list, each once; all that are known for None. Raises Misuse for one that is not."""
    found = list(known) if text is None else list(dict.fromkeys(text.split(",")))
    for name in found:
        if name not in known:
            raise command.Misuse(f"{option} must be of {', '.join(known)}, got {name!r}")
    return found
