# SPDX-License-Identifier: Apache-2.0
"""SASS as cuobjdump prints it: instructions, and the cheapest way once round a loop that does a given work."""
import collections
import heapq
import re

Instruction = collections.namedtuple("Instruction", "address guard opcode operands")

# What instructions do for a group: loads and stores by their bytes, conversions of pairs, conversions to double, sums
# of squares, and atomic operations.
WORK = [("load16", r"LDG\..*\b128"), ("load8", r"LDG\..*\b64"), ("load", r"LDG\."), ("store16", r"STG\..*\b128"),
        ("store8", r"STG\..*\b64"), ("store", r"STG\."), ("from_f16", r"HADD2\.F32"), ("to_f16", r"F2FP\.F16"),
        ("to_bf16", r"F2FP\.BF16"), ("to_f64", r"F2F\.F64"), ("fma64", r"DFMA"),
        ("atomic", r"ATOMS?\.|RED\.")]
KINDS = [kind for kind, _ in WORK]


def functions(text):
    """{(arch, symbol): [Instruction]}"""
    found, arch, code = {}, None, None
    for line in text.splitlines():
        if match := re.match(r"\s*arch = (\w+)", line):
            arch = match.group(1)
        elif match := re.match(r"\s*Function : (\S+)", line):
            code = found.setdefault((arch, match.group(1)), [])
        elif (match := re.match(r"\s+/\*([0-9a-f]+)\*/\s+(?:@(!?U?P\w+) )?\s*([A-Z][\w.]*)([^;]*);",
                                line)) and code is not None:
            code.append(Instruction(int(match.group(1), 16), match.group(2), match.group(3), match.group(4).strip()))
    return found


def work_of(opcode):
    return next((kind for kind, pattern in WORK if re.match(pattern, opcode)), None)


def blocks(code):
    """{first instruction: (behind the last one, successors)}; a call comes back."""
    index = {instruction.address: i for i, instruction in enumerate(code)}
    target = lambda instruction: index.get(int(re.search(r"0x([0-9a-f]+)", instruction.operands).group(1), 16))
    leaders = {0}
    for i, instruction in enumerate(code):
        if instruction.opcode.startswith(("BRA", "EXIT", "RET")):
            leaders.add(i + 1)
        if instruction.opcode.startswith("BRA"):
            leaders.add(target(instruction))
    starts = sorted(i for i in leaders if i is not None and i < len(code))
    made = {}
    for start, end in zip(starts, starts[1:] + [len(code)]):
        last, after = code[end - 1], []
        if last.opcode.startswith("BRA") and target(last) is not None:
            after.append(target(last))
        ends = last.opcode.startswith(("BRA", "EXIT", "RET"))
        conditional = last.guard or re.match(r"!?U?P\d", last.operands)
        if end < len(code) and (conditional or not ends):
            after.append(end)
        made[start] = (end, after)
    return made


def cheapest(code, wanted):
    """The fewest instructions once round a loop that do exactly `wanted`, {kind: how many}; None: no loop does."""
    graph = blocks(code)
    goal = tuple(wanted.get(kind, 0) for kind in KINDS)
    done = {}
    for start, (end, _) in graph.items():
        counted = collections.Counter(work_of(instruction.opcode) for instruction in code[start:end])
        done[start] = tuple(counted[kind] for kind in KINDS)
    fits = lambda so_far: all(x <= y for x, y in zip(so_far, goal))
    best = None
    for head in {target for start, (_, after) in graph.items() for target in after if target <= start}:
        queue, seen = [(graph[head][0] - head, head, done[head])] if fits(done[head]) else [], set()
        while queue:
            cost, block, so_far = heapq.heappop(queue)
            if (block, so_far) in seen or (best is not None and cost >= best):
                continue
            seen.add((block, so_far))
            for target in graph[block][1]:
                if target == head:
                    best = cost if so_far == goal else best
                    continue
                then = tuple(x + y for x, y in zip(so_far, done[target]))
                if fits(then) and (target, then) not in seen:
                    heapq.heappush(queue, (cost + graph[target][0] - target, target, then))
    return best
