"""Counting what a compiled kernel does, from its assembly: SASS of NVIDIA's GPUs, and AMD's.

Every instruction is counted once, so the counts are exact for straight-line code. Where code jumps back (`loops`) or
calls (`calls`), a thread may do more; where it jumps ahead over something (`skips`), less.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

KINDS = ("float", "integer and logic", "conversion", "special", "memory", "uniform", "control, other")
_LOGIC = (
    "BFE BMSK FMNMX FMNMX3 FSEL FSET FSETP HMNMX2 HSET2 HSETP2 IABS IADD IADD3 IMNMX ISETP LEA LOP LOP3 MOV P2R PLOP3"
    " PRMT R2P SEL SGXT SHF SHL SHR VIADD VIADDMNMX VIMNMX VOTE"
)

# Pattern of an opcode with its modifiers, kind, unit of `actfit.codegen.machine`; the first that matches counts.
_SASS = tuple(
    (re.compile(pattern), kind, unit)
    for pattern, kind, unit in (
        (r"U(?!NDEF)|LDCU|R2UR|S2UR", "uniform", ""),
        (r"MUFU", "special", "special"),
        (r"(F2FP|I2FP|F2IP)\b", "conversion", "logic"),
        (r"(F2F|F2I|I2F|FRND|POPC|FLO)\b", "conversion", "special"),
        (r"HADD2\.F32", "conversion", "float"),
        (r"(F|H)(ADD|MUL|FMA|SWZADD)", "float", "float"),
        (r"(IMAD|IDP|IMUL)", "integer and logic", "float"),
        (rf"({_LOGIC.replace(' ', '|')})\b", "integer and logic", "logic"),
        (r"(LD|ST|ATOM|RED)(?!EP)", "memory", ""),
    )
)
_AMD = tuple(
    (re.compile(pattern), kind, "")
    for pattern, kind in (
        (r"(global|flat|buffer|scratch|ds|s_load|s_buffer)_", "memory"),
        (r"s_(c?branch|endpgm|waitcnt|nop|barrier|setpc|swappc)", "control, other"),
        (r"s_", "uniform"),
        (r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_", "special"),
        (r"v_cvt_", "conversion"),
        (r"v_(pk_)?(fma|fmac|mul|add|sub|subrev|mac|mad|ldexp)\w*_f(16|32|64)", "float"),
        (r"v_", "integer and logic"),
    )
)
_SASS_LINE = re.compile(
    r"^(\.L_x_\w+):|/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[T\d]\s+)?([A-Z][A-Z0-9_.]*)([^;]*);", re.MULTILINE
)
_SASS_JUMP = re.compile(r"BRA|JMP|BRX|JMX")
_AMD_LINE = re.compile(r"^(\.LBB\w+):|^\t([a-z][a-z0-9_]+)(.*)")
_AMD_JUMP = re.compile(r"s_c?branch")
_AMD_WIDTHS = {"dwordx4": 128, "dwordx3": 96, "dwordx2": 64, "dword": 32, "short": 16, "ushort": 16, "byte": 8}
_ENDS = ("EXIT", "s_endpgm")


@dataclass(frozen=True)
class Code:
    """Instructions of a thread, by opcode, kind and unit; accesses to global memory by direction and width in bits."""

    opcodes: Mapping[str, int]
    kinds: Mapping[str, int]
    units: Mapping[str, int]
    accesses: Mapping[tuple[str, int], int]
    loops: int = 0
    skips: int = 0
    calls: int = 0

    @property
    def total(self) -> int:
        """All instructions."""
        return sum(self.opcodes.values())


def sass(listing: str) -> Code:
    """From nvdisasm's listing; without padding, and without the jump to itself after the last EXIT."""
    places: dict[str, int] = {}
    instructions: list[tuple[str, str]] = []
    for label, opcode, operands in _SASS_LINE.findall(listing):
        if label:
            places[label] = len(instructions)
        elif opcode != "NOP":
            instructions.append((opcode, operands))
    ends = [index for index, (opcode, _) in enumerate(instructions) if opcode == "EXIT"]
    rest = instructions[ends[-1] + 1 :] if ends else []
    calls = sum(opcode.startswith(("CALL", "RET")) for opcode, _ in instructions)
    # Anything but a jump to itself after the last EXIT is a subroutine.
    calls += sum(opcode != "BRA" for opcode, _ in rest) if not calls else 0
    instructions = instructions[: len(instructions) - len(rest)]
    loops, skips = _jumps(instructions, places, _SASS_JUMP)
    accesses = Counter(
        ("load" if opcode.startswith("LDG") else "store", _sass_width(opcode))
        for opcode, _ in instructions
        if opcode.startswith(("LDG", "STG"))
    )
    return _count((opcode for opcode, _ in instructions), _SASS, accesses, loops, skips, calls)


def amdgcn(listing: str) -> Code:
    """From LLVM's assembly for AMD's GPUs, up to the last s_endpgm."""
    places: dict[str, int] = {}
    instructions: list[tuple[str, str]] = []
    for line in listing.split(".Lfunc_end")[0].splitlines():
        match = _AMD_LINE.match(line)
        if match is None:
            continue
        if match[1]:
            places[match[1]] = len(instructions)
        else:
            instructions.append((match[2], match[3]))
    loops, skips = _jumps(instructions, places, _AMD_JUMP)
    accesses: Counter[tuple[str, int]] = Counter()
    for opcode, _ in instructions:
        access = re.match(r"(?:global|flat|buffer)_(load|store)_s?(u?byte|u?short|dwordx?\d?)", opcode)
        if access:
            accesses[access[1], _AMD_WIDTHS[access[2].removeprefix("u")]] += 1
    calls = sum(opcode in ("s_swappc_b64", "s_setpc_b64") for opcode, _ in instructions)
    return _count((opcode for opcode, _ in instructions), _AMD, accesses, loops, skips, calls)


def usage(text: str) -> dict[str, int]:
    """Resources from `cuobjdump -res-usage`: REG (registers), STACK, LOCAL, SHARED (bytes)."""
    return {name: int(value) for name, value in re.findall(r"\b(REG|STACK|SHARED|LOCAL):(\d+)", text)}


def amd_usage(listing: str) -> dict[str, int]:
    """Vector registers and spilled registers, from the metadata at the end of AMD's assembly."""
    return {name: int(value) for name, value in re.findall(r"\.(vgpr_count|[sv]gpr_spill_count):\s+(\d+)", listing)}


def _jumps(instructions: list[tuple[str, str]], places: Mapping[str, int], jump: re.Pattern[str]) -> tuple[int, int]:
    """Jumps back, and jumps ahead or to an end."""
    back = ahead = 0
    for index, (opcode, operands) in enumerate(instructions):
        if jump.match(opcode):
            target = re.search(r"\.L\w+", operands)
            place = places.get(target[0], -1) if target else -1
            if place < 0 or (place <= index and instructions[place][0] not in _ENDS):
                back += 1
            else:
                ahead += 1
    return back, ahead


def _sass_width(opcode: str) -> int:
    widths = {"128": 128, "64": 64, "U16": 16, "S16": 16, "U8": 8, "S8": 8}
    return next((widths[word] for word in opcode.split(".") if word in widths), 32)


def _count(
    opcodes: Iterable[str],
    table: tuple[tuple[re.Pattern[str], str, str], ...],
    accesses: Mapping[tuple[str, int], int],
    loops: int,
    skips: int,
    calls: int,
) -> Code:
    counted = Counter(opcodes)
    kinds, units = Counter(dict.fromkeys(KINDS, 0)), Counter({"float": 0, "logic": 0, "special": 0})
    for opcode, count in counted.items():
        row = next((row for row in table if row[0].match(opcode)), None)
        kind, unit = (row[1], row[2]) if row else ("control, other", "")
        kinds[kind] += count
        if unit:
            units[unit] += count
    units["issue"] = counted.total()
    return Code(counted, kinds, units, accesses, loops, skips, calls)
