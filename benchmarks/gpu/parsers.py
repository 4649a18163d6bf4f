"""The command lines of `benchmarks.gpu`, like `benchmarks.parsers`."""

import argparse

from actfit.coefficients import command
from benchmarks import parsers
from benchmarks.options import DEVICES, names, one_of, output, whole
from benchmarks.parsers import Words

DAY = 86_400
STEPS = ("tests", "speed", "memory", "models")
MODELLED = ("llama-bare", "vit-l", "llama", "llama-lora")
MODEL_WAYS = (
    *("eager", "compress exact", "compress 8 bits", "compress 4 bits", "checkpoint"),
    *("fit 0.7", "fit 0.4", "fit 0.2"),
)
COMPILED_MODEL_WAYS = (
    *("compiled", "compiled checkpoint"),
    *("compress exact compiled", "compress 8 bits compiled", "compress 4 bits compiled", "fit 0.4 compiled"),
)


def gpu(doc: str | None, words: Words | None = None) -> argparse.Namespace:
    """Its options, checked; steps: a list."""
    parser = parsers.plain("gpu", doc)
    steps = ", ".join(STEPS)
    parser.add_argument("--steps", metavar='"S ..."', default=" ".join(STEPS), help=f"of {steps}")
    parser.add_argument(
        "--dry", action="store_true", help="every step, tiny, without a GPU: to see that all of it runs"
    )
    parser.add_argument("--limit", metavar="SECONDS", help="begin no part that is not expected to end within them")
    parser.add_argument("--again", action="store_true", help="forget what earlier calls have done")
    options = parser.parse_args(words)
    asked = [one_of("steps", name, STEPS) for name in options.steps.split()]
    if not asked:
        raise command.Misuse(f"steps must be of {steps}, got {options.steps!r}")
    options.steps = asked
    options.limit = float("inf") if options.limit is None else whole("limit", options.limit, DAY)
    return options


def gpu_models(doc: str | None, words: Words | None = None) -> argparse.Namespace:
    """Its options, checked; models and ways: lists, out: a path or None."""
    parser = parsers.measuring("gpu.models", doc, parsers.file_of("gpu-models"))
    parser.add_argument("--models", metavar="M,...", help=f"default: {','.join(MODELLED)}")
    parser.add_argument("--ways", metavar="W,...", help="default: all")
    parser.add_argument("--quick", action="store_true", help="tiny models, a few ways: to see that all of it runs")
    parsers.add_device(parser)
    options = parser.parse_args(words)
    if options.device is not None:
        one_of("device", options.device, DEVICES)
    options.out = output(options.out)
    options.ways = names("ways", options.ways, (*MODEL_WAYS, *COMPILED_MODEL_WAYS))
    options.models = names("models", options.models, MODELLED)
    return options
