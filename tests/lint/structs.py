# SPDX-License-Identifier: Apache-2.0
"""How many members the structures have that everything goes through.

A member is one declarator on the outermost level of a structure: `size_t n, capacity;` are two. A member that is
itself a structure with a name counts once, however many members that has: LARGEST_PART holds for those. The members of
a structure or union without a name count where it stands. A bool is a member of type bool, _Atomic or not; a pointer to
bools is none.
"""
import re

# structure: (members, those of them that are bools), at most. Lower them when one loses some; nobody raises them.
LIMITS = {
    "amp_context": (17, 0),
    "amp__optimizer": (18, 4),
    "amp__op": (32, 6),
    "amp__bracket": (17, 0),
    "amp__observer": (38, 1),
}
# of a structure that is a member of one of those, so that none becomes the bag of what left them
LARGEST_PART = (16, 5)

OPENING = re.compile(r"\bstruct\s+(\w+)\s*\{")
NESTED = re.compile(r"\b(struct|union)\b([\w\s]*)\{")
PART = re.compile(r"^\s*(?:const\s+)?struct\s+(\w+)\s+\w+$")
BOOL = re.compile(r"^\s*(?:const\s+)?(?:bool|_Atomic\s*\(\s*bool\s*\))\s+(?!\*)")


def body(code, start):
    """The text between the brace that opens before `start` and its partner, and where it ends."""
    depth = 1
    for end in range(start, len(code)):
        depth += {"{": 1, "}": -1}.get(code[end], 0)
        if depth == 0:
            return code[start:end], end + 1
    return code[start:], len(code)


def outermost(text):
    """Structures inside of it become `struct NAME`; without a name, their members."""
    while match := NESTED.search(text):
        inside, end = body(text, match.end())
        kept = f"struct {match.group(2).strip()} "
        if not match.group(2).strip():
            kept, end = inside, text.find(";", end) + 1
        text = text[: match.start()] + kept + text[end:]
    return text


def members(text):
    """(declaration up to its first declarator, bool or not) of each member of a structure's body."""
    found = []
    for declaration in outermost(text).split(";"):
        declaration = " ".join(declaration.split())
        if not declaration:
            continue
        plain = re.sub(r"\([^()]*\)|\[[^\]]*\]", lambda match: match.group().replace(",", " "), declaration)
        first, *others = plain.split(",")
        is_bool = bool(BOOL.match(first))
        found.append((first, is_bool))
        found += [(other, is_bool and "*" not in other) for other in others]
    return found


def structures(code):
    """(name, line, members) of each structure that this text without comments defines."""
    for match in OPENING.finditer(code):
        yield match.group(1), code.count("\n", 0, match.start()) + 1, members(body(code, match.end())[0])


def count(found):
    return len(found), sum(is_bool for _, is_bool in found)


def parts(found):
    """The names of structures that are members."""
    return [match.group(1) for first, _ in found if (match := PART.match(first))]


def too_many(defined):
    """(structure, what is wrong) of all that is above its limit, or missing."""
    limits = dict(LIMITS)
    for name in LIMITS:
        for part in parts(defined.get(name, ())):
            limits.setdefault(part, LARGEST_PART)
    for name, limit in limits.items():
        if name not in defined:
            if name in LIMITS:
                yield name, "is not defined in any header of src/: this lint counts its members"
            continue
        for counted, most, what in zip(count(defined[name]), limit, ("members", "bools")):
            if counted > most:
                yield name, f"has {counted} {what}, {most} at most: give what belongs together a structure"
