"""The machine code of functions of a program, in a form that two builds of them share.

What differs between builds though the code is the same is left out: addresses, names, padding. A
jump within a function is told by where in the function it leads to; a jump or call out of it, and
an operand in memory at a fixed address, by that it is one. So other constants go unnoticed, and
another callee.
"""

import re
import subprocess
from collections import Counter
from pathlib import Path

_FUNCTION = re.compile(r"^([0-9a-f]+) <(.+)>:$")
_INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\t(.+)$")
_TARGET = re.compile(r"\b([0-9a-f]+) <[^>]*>\s*$")
_FIXED = re.compile(r"-?0x[0-9a-f]+\(%rip\)")
_JUMP = re.compile(r"^j\w+\s+([0-9a-f]+) <")
_PADDING = re.compile(r"^(nop|data16|cs nop|xchg +%ax,%ax)")


def functions(listing: str) -> list[tuple[str, list[str]]]:
    """Name and instructions of each function in what `objdump -d --no-show-raw-insn` prints."""
    out = []
    for block in listing.split("\n\n"):
        head, *lines = block.strip().splitlines() or [""]
        found = _FUNCTION.match(head)
        if not found:
            continue
        begin, name = int(found[1], 16), found[2]
        code = [match.groups() for line in lines if (match := _INSTRUCTION.match(line))]
        end = int(code[-1][0], 16) if code else begin
        out.append((name, [_normalised(text, begin, end) for _, text in code]))
        while out[-1][1] and _PADDING.match(out[-1][1][-1]):
            out[-1][1].pop()
    return out


def _normalised(text: str, begin: int, end: int) -> str:
    text = text.split("#")[0].strip()

    def target(match: re.Match) -> str:
        address = int(match[1], 16)
        return f"+{address - begin:#x}" if begin <= address <= end else "outside"

    return _FIXED.sub("fixed(%rip)", _TARGET.sub(target, text))


def listing_of(program: Path) -> str:
    return subprocess.run(
        ["objdump", "-d", "-C", "--no-show-raw-insn", str(program)],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def with_instruction(listing: str, pattern: str) -> list[tuple[str, list[str]]]:
    """The functions of a listing that hold an instruction of which `pattern` is the beginning."""
    begins = re.compile(pattern)
    return [
        (name, code)
        for name, code in functions(listing)
        if any(begins.match(line) for line in code)
    ]


def inner_loops(listing: str, pattern: str) -> Counter:
    """How often there is each innermost loop with such an instruction; a loop as its opcodes,
    sorted, so that neither registers nor their order count."""
    begins = re.compile(pattern)
    out = Counter()
    for block in listing.split("\n\n"):
        code = [
            (int(match[1], 16), match[2])
            for line in block.splitlines()
            if (match := _INSTRUCTION.match(line))
        ]
        addresses = {address for address, _ in code}
        loops = [
            (int(jump[1], 16), address)
            for address, text in code
            if (jump := _JUMP.match(text)) and int(jump[1], 16) in addresses
            if int(jump[1], 16) <= address
        ]
        for first, last in loops:
            if any(
                first <= other[0] and other[1] <= last and other != (first, last) for other in loops
            ):
                continue
            opcodes = sorted(text.split()[0] for address, text in code if first <= address <= last)
            if any(begins.match(opcode) for opcode in opcodes):
                out[tuple(opcodes)] += 1
    return out


def differing(ours: list[tuple[str, list[str]]], other: list[tuple[str, list[str]]]) -> list[str]:
    """Names of our functions that no function of the other program is like, each taken once."""
    left = ["\n".join(code) for _, code in other]
    out = []
    for name, code in ours:
        text = "\n".join(code)
        if text in left:
            left.remove(text)
        else:
            out.append(name)
    return out
