# SPDX-License-Identifier: Apache-2.0
"""SASS as cuobjdump prints it: instructions, and the cheapest way that does a given work, round a loop or through."""
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


def ways(code, wanted, heads, ends):
    """The cheapest way that does exactly `wanted`, {kind: how many}, from one of `heads` until `ends` says that a block
    ends it, as (instructions, their list); None: there is none. A kind is one of WORK, or a pattern."""
    graph = blocks(code)
    kinds = [*KINDS, *(kind for kind in wanted if kind not in KINDS)]
    goal = tuple(wanted.get(kind, 0) for kind in kinds)
    done = {}
    for start, (end, _) in graph.items():
        counted = collections.Counter(work_of(instruction.opcode) for instruction in code[start:end])
        done[start] = tuple(counted[kind] if kind in KINDS else
                            sum(bool(re.match(kind, f"{x.opcode} {x.operands}")) for x in code[start:end])
                            for kind in kinds)
    fits = lambda so_far: all(x <= y for x, y in zip(so_far, goal))
    best = None
    for head in heads(graph):
        queue = [(graph[head][0] - head, head, done[head], None)] if fits(done[head]) else []
        seen, came_from = set(), {}
        while queue:
            cost, block, so_far, before = heapq.heappop(queue)
            if (block, so_far) in seen or (best is not None and cost >= best[0]):
                continue
            seen.add((block, so_far))
            came_from[block, so_far] = before
            if so_far == goal and ends(graph, head, block):
                path, at = [], (block, so_far)
                while at:
                    path, at = [at[0], *path], came_from[at]
                best = cost, [x for start in path for x in code[start:graph[start][0]]]
                break
            for target in graph[block][1]:
                then = tuple(x + y for x, y in zip(so_far, done[target]))
                if target != head and fits(then) and (target, then) not in seen:
                    heapq.heappush(queue, (cost + graph[target][0] - target, target, then, (block, so_far)))
    return best


def round_of(code, wanted):
    """Once round a loop."""
    return ways(code, wanted, lambda graph: {to for start, (_, after) in graph.items() for to in after if to <= start},
                lambda graph, head, block: head in graph[block][1])


def through(code, wanted):
    """From the first instruction to the last one."""
    return ways(code, wanted, lambda graph: [0],
                lambda graph, _, block: code[graph[block][0] - 1].opcode == "EXIT" and not graph[block][1])


def registers(operands, wide=1):
    """Numbers of the registers in operands, the first one of `wide` in a row."""
    found = [int(number) for number in re.findall(r"\bR(\d+)", operands)]
    return set(found) | set(range(found[0], found[0] + wide) if found else ())


def trips(path):
    """How often loads of a path begin after something has waited for earlier ones. Of two guarded loads to the same
    register one is passed over."""
    pending, guarded, waited, count = set(), set(), True, 0
    for x in path:
        is_load = x.opcode.startswith("LDG")
        wide = 4 if ".128" in x.opcode else 2 if ".64" in x.opcode else 1
        target = registers(x.operands.split(",")[0], wide) if is_load else set()
        used = registers(x.operands.split(",", 1)[1] if is_load else x.operands) | (target if is_load else set())
        if is_load and x.guard and target & guarded:
            used -= target
        if used & pending:
            pending, guarded, waited = set(), set(), True
        if is_load:
            count, waited = count + waited, False
            pending |= target
            guarded |= target if x.guard else set()
    return count
