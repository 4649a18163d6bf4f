"""The kinds of storage from forward to backward; the kernel template and the PyTorch reference have a case for each."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Storage:
    """One kind of storage."""

    name: str  # STORAGE in `actfit.kernels.engine.templates.elementwise`
    text: str  # what backward reads, for people; {bits} is the number of packed bits an element
    like_input: bool = False  # whether a tensor of the shape of x is stored
    packed: bool = False  # whether bits are stored, packed in planes
    keeps_output: bool = False  # whether backward reads y, which the next layer saves anyway


DERIVATIVE = Storage("derivative", "f'(x) itself, a tensor like x", like_input=True)
CODES = Storage("codes", "the code of x, packed: {bits} bit{s} an element", packed=True)
# Codes searched in `Method.table` at run time: forward and backward call no emitted `code` and `level`.
TABLE_CODES = Storage(
    "table_codes", "the code of x from a table in memory, packed: {bits} bits an element", packed=True
)
OUTPUT = Storage("output", "y alone, which the next layer saves anyway", keeps_output=True)
BRANCH_BIT = Storage(
    "branch_bit",
    "y, which the next layer saves anyway, and the branch of x, packed: 1 bit an element",
    packed=True,
    keeps_output=True,
)
BRANCH_AND_ROUNDING = Storage(
    "branch_and_rounding",
    "y, which the next layer saves anyway, and packed the branch of x and whether y was rounded away from zero: {bits}"
    " bits an element",
    packed=True,
    keeps_output=True,
)
MARKED_OUTPUT = Storage("marked_output", "y alone, with the branch of x in its lowest bit", keeps_output=True)
SIGNED_OUTPUT = Storage("signed_output", "y - min f, with the branch of x in its sign", like_input=True)
