"""The command lines of the benchmarks. Nothing is imported here that takes long: options are read before all else.

Each function makes the parser of the module of its name; `doc` is that module's text.
"""

import argparse
from collections.abc import Sequence

from actfit.coefficients import command

Words = Sequence[str]
FILES = "files in benchmarks/results/<device>/"
QUICK_FUNCTIONS = ("gelu", "tanh")
RIVAL_WHATS = ("memory", "accuracy", "speed")
COMPRESSION_WHATS, COMPRESSION_RUNS = ("bytes", "times"), 9
FITTED = {f"fit {share}": share for share in (0.7, 0.4, 0.2, 0.1)}  # plans, for a share of the bytes that eager keeps
BY_INDUCTOR = {
    f"{way} compiled": way for way in ("compress exact", "compress 8 bits", "compress 4 bits", *FITTED)
}  # by the way that Inductor compiles
COMPRESSION_WAYS = (
    *("eager", "compiled", "layers compiled", "checkpoint", "compiled checkpoint", "compiled with the flag"),
    *(f"compiled with budget {share}" for share in (0.1, 0.5, 0.9)),
    *("compiled with fp8", *(f"hook {bits} bits" for bits in (8, 4, 2))),
    *("compress exact", "compress exact in chunks", *(f"compress {bits} bits" for bits in (8, 4, 2))),
    *FITTED,
    *(f"coded {bits} bits" for bits in (8, 4, 3, 2)),
    *BY_INDUCTOR,
)
SUITES = ("accuracy", "memory", "speed", "training")
KERNEL_FUNCTIONS, KERNEL_DTYPES = ("gelu", "silu"), ("bfloat16", "float16", "float32")
KERNEL_RIVALS = ("eager", "compile")
KERNEL_OURS = ("forward-ad", *(f"fewbit-{bits}" for bits in (1, 2, 3, 4)), "invact", "invact-precision-bit")
KERNEL_METHODS = (*KERNEL_RIVALS, *KERNEL_OURS)
TASKS = ("text", "digits", "gpt", "llama", "resnet", "small-vit")
ACTIVATION_VARIANTS = (
    *("stock", "invact", "forward-ad", "fewbit-4", "fewbit-3", "fewbit-2", "fewbit-1"),
    *("actnn-4", "actnn-2", "actnn-1", "recompute"),
)
CODED_VARIANTS = (
    *("compiled", "exact"),
    *(f"{method}-{bits}" for method in ("hook", "coded", "compress", "stochastic") for bits in (8, 4, 3, 2)),
    *("plan-3", "plan-5", "plan-8", "plan-12"),
    *("compiled-plan-3", "compiled-plan-5", "compiled-plan-8", "compiled-plan-12"),
)
VARIANTS = (*ACTIVATION_VARIANTS, *CODED_VARIANTS)
MODELS = ("bert", "roberta-large", "gpt2", "vit", "clip", "ast", "llama", "resnet50", "efficientnet-b0")


def plain(module: str, doc: str | None) -> command.Parser:
    """The parser of a module without options."""
    formatter = argparse.RawDescriptionHelpFormatter
    return command.Parser(prog=f"python -m benchmarks.{module}", description=doc, formatter_class=formatter)


def measuring(module: str, doc: str | None, out: str = FILES) -> command.Parser:
    """The parser of a module that writes rows: it has --out."""
    parser = plain(module, doc)
    parser.add_argument("-o", "--out", metavar="FILE", help=f"instead of {out}")
    return parser


def file_of(name: str) -> str:
    """Where rows of this name go."""
    return f"benchmarks/results/<device>/{name}.jsonl"


def add_device(parser: command.Parser) -> None:
    """Add the option of which device to measure on."""
    parser.add_argument("--device", metavar="D", help="cuda or cpu (default: cuda where there is one)")


def of_kinds(module: str, doc: str | None, kinds: Words, runs: str) -> command.Parser:
    """The parser of a benchmark of several kinds of rows, each in a file of its own; runs: how many by default."""
    parser = measuring(module, doc)
    parser.add_argument("--what", metavar="W,...", help=f"default: {','.join(kinds)}")
    add_device(parser)
    parser.add_argument("--runs", metavar="N", help=f"rounds of times (default: {runs})")
    parser.add_argument("--quick", action="store_true", help="little of each, few rounds: to see that all of it runs")
    return parser


def accuracy(doc: str | None) -> command.Parser:
    parser = measuring("accuracy", doc, file_of("accuracy"))
    parser.add_argument("--fn", metavar="F,...", help="default: all")
    add_device(parser)
    parser.add_argument("--quick", action="store_true", help=f"{' and '.join(QUICK_FUNCTIONS)} only")
    return parser


def compression(doc: str | None) -> command.Parser:
    parser = of_kinds("compression", doc, COMPRESSION_WHATS, str(COMPRESSION_RUNS))
    parser.add_argument("--models", metavar="M,...", help="default: all")
    parser.add_argument("--ways", metavar="W,...", help="default: all")
    parser.add_argument("--dtypes", metavar="D,...", help="default: both; of times float32, on a GPU bfloat16")
    return parser


def kernels(doc: str | None) -> command.Parser:
    parser = measuring("kernels", doc, file_of("kernels-time"))
    parser.add_argument("--fn", metavar="F,...", help=f"default: {','.join(KERNEL_FUNCTIONS)}")
    parser.add_argument("--dtypes", metavar="D,...", help=f"default: {','.join(KERNEL_DTYPES)}")
    methods = ",".join(KERNEL_METHODS)
    parser.add_argument("--methods", metavar="M,...", help=f"of {methods}; eager and the copy always run")
    parser.add_argument("--sizes", metavar="N,...", help="elements, as in 2^12,100003 (default: 2^12, 2^14, ... 2^28)")
    parser.add_argument("--runs", metavar="N", help="rounds that count (default: 40 on a GPU, 10 on a CPU)")
    parser.add_argument("--device", metavar="D", help="cuda, or cpu, with sizes up to 2^22 (default: cuda if there)")
    parser.add_argument("--quick", action="store_true", help="two sizes, few rounds: to see that all of it runs")
    return parser


def memory(doc: str | None) -> command.Parser:
    return measuring("memory", doc, file_of("memory"))


def rivals(doc: str | None) -> command.Parser:
    parser = of_kinds("rivals", doc, RIVAL_WHATS, "about 40")
    parser.add_argument("--dtypes", metavar="D,...", help="of times (default: bfloat16, on a CPU float32)")
    parser.add_argument("--sizes", metavar="TxW,...", help="tokens and widths of times, as in 64x256,8192x1024")
    return parser


def run(doc: str | None) -> command.Parser:
    parser = plain("run", doc)
    parser.add_argument("suites", metavar="SUITE", nargs="+", help=f"of {', '.join(SUITES)}")
    add_device(parser)
    parser.add_argument("--quick", action="store_true", help="little of each step that can, to see that it runs")
    return parser


def slack(doc: str | None) -> command.Parser:
    parser = plain("slack", doc)
    parser.add_argument("--jobs", type=command.whole, default=2, help="processes (default: 2)")
    return parser


def training(doc: str | None) -> command.Parser:
    parser = measuring("training", doc, file_of("training"))
    parser.add_argument("--task", metavar="T,...", help=f"default: {','.join(TASKS)}")
    parser.add_argument("--arms", metavar="A,...", help=f"variants, of {','.join(VARIANTS)}; stock always runs")
    parser.add_argument("--seeds", metavar="N", help="how many, from 0 (default: 3 to 10, by the task)")
    parser.add_argument("--steps", metavar="N", help="of each training (default: by the size)")
    parser.add_argument("--size", metavar="S", default="small", help="small or large, for a GPU (default: small)")
    parser.add_argument("--device", metavar="D", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--amp", action="store_true", help="compute in bfloat16 by autocast")
    parser.add_argument("--jobs", metavar="N", help="processes (default: 2 on a CPU, 1 on a GPU)")
    parser.add_argument("--threads", metavar="N", default="1", help="of each process (default: 1)")
    parser.add_argument("--quick", action="store_true", help="tiny models, few steps: to see that all of it runs")
    parser.add_argument("--fresh", action="store_true", help="train again what there are rows of")
    return parser
