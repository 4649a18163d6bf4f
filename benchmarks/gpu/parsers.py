"""The command lines of the measurements on a GPU, read before anything is imported that takes long.

Each function reads the options of the module that it is named after; `doc` is that module's text.
"""

import argparse

from benchmarks import parsers
from benchmarks.options import DEVICES, names, one_of, output, whole
from benchmarks.parsers import Words
from coefficients import command, functions

DAY = 86_400
STEPS = ("tests", "speed", "memory", "models", "training")
GROUPS = ("exhaustive", "standalone", "kernels", "elementwise", "device")
TINY = ("bert", "llama", "vit", "resnet50")
MEMORY_WAYS = ("stock", "auto", "fewbit-3", "approx-backprop 4 bits", "compress 4 bits", "nested forward AD")
TRAINED = ("llama", "bert", "vit", "resnet50")
TRAINING_WAYS = (
    *("stock", "compile", "checkpoint", "auto", "invact", "fewbit-3"),
    *("approx-backprop 4 bits", "compress 4 bits", "coded 4 bits"),
)
MODELLED = ("llama-bare", "vit-l", "llama", "llama-lora")
MODEL_WAYS = ("eager", "compress exact", "compress graph 8 bits", "compress graph 4 bits", "checkpoint")
COMPILED_MODEL_WAYS = ("compiled", "compiled checkpoint", "coded 8 bits", "coded 4 bits")
SLOTS_QUICK = ("gelu", "relu")


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


def gpu_tests(doc: str | None, words: Words | None = None) -> argparse.Namespace:
    """Its options, checked; out: a path."""
    parser = parsers.plain("gpu.tests", doc)
    parser.add_argument("group", metavar="GROUP", help=f"of {', '.join(GROUPS)}")
    parser.add_argument("--dry", action="store_true", help="a few of them, in Triton's interpreter")
    parser.add_argument("-o", "--out", metavar="FILE", required=True, help="for the names of those that fail")
    options = parser.parse_args(words)
    one_of("group", options.group, GROUPS)
    options.out = command.output_path("out", options.out)
    return options


def _part(parser: command.Parser, words: Words | None) -> argparse.Namespace:
    parsers.add_device(parser)
    options = parser.parse_args(words)
    if options.device is not None:
        one_of("device", options.device, DEVICES)
    options.out = output(options.out)
    return options


def gpu_memory(doc: str | None, words: Words | None = None) -> argparse.Namespace:
    """Its options, checked; models and without: lists, out: a path or None."""
    return _models("memory", doc, words, parsers.MODELS, TINY, MEMORY_WAYS[1:])


def gpu_training(doc: str | None, words: Words | None = None) -> argparse.Namespace:
    """Its options, checked; models and without: lists, out: a path or None."""
    return _models("training", doc, words, TRAINED, TRAINED, TRAINING_WAYS[1:])


def gpu_models(doc: str | None, words: Words | None = None) -> argparse.Namespace:
    """Its options, checked; models, ways and without: lists, out: a path or None."""
    return _models("models", doc, words, MODELLED, MODELLED, (*MODEL_WAYS, *COMPILED_MODEL_WAYS), asks_ways=True)


def _models(
    kind: str,
    doc: str | None,
    words: Words | None,
    models: Words,
    tiny: Words,
    ways: Words,
    asks_ways: bool = False,
) -> argparse.Namespace:
    parser = parsers.measuring(f"gpu.{kind}", doc, parsers.file_of(f"gpu-{kind}"))
    of_quick = f"; tiny: {','.join(tiny)}" if tiny != models else ""
    parser.add_argument("--models", metavar="M,...", help=f"default: {','.join(models)}{of_quick}")
    if asks_ways:
        parser.add_argument("--ways", metavar="W,...", help="default: all")
    parser.add_argument("--without", metavar="W,...", help=f"ways whose tests fail, of {','.join(ways)}")
    parser.add_argument("--quick", action="store_true", help="tiny models, a few ways: to see that all of it runs")
    options = _part(parser, words)
    if asks_ways:
        options.ways = names("ways", options.ways, ways)
    options.models = names("models", options.models, tiny if options.quick else models)
    options.without = [] if options.without is None else names("without", options.without, ways)
    return options


def issue_slots(doc: str | None, words: Words | None = None) -> argparse.Namespace:
    """Its options, checked; fn: the list of functions to measure, out: a path or None."""
    parser, known = parsers.measuring("gpu.issue_slots", doc, parsers.file_of("issue-slots")), functions.names()
    parser.add_argument("--fn", metavar="F,...", help="default: all")
    parser.add_argument("--without", metavar="F,...", help="those whose tests fail")
    parser.add_argument("--quick", action="store_true", help=f"{' and '.join(SLOTS_QUICK)} only")
    options = _part(parser, words)
    asked = [*SLOTS_QUICK] if options.quick and options.fn is None else names("fn", options.fn, known)
    without = [] if options.without is None else names("without", options.without, known)
    options.fn = [name for name in asked if name not in without]
    return options
