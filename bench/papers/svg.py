# SPDX-License-Identifier: Apache-2.0
"""Pictures as SVG, in the colours of libamp's report, light and dark: axes, lines, bars, cells and images."""
from __future__ import annotations

import base64
import html
import math
import pathlib
import re
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

PAGE = pathlib.Path(__file__).resolve().parents[2] / "bindings" / "python" / "libamp" / "_report" / "page.css"
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
STYLE = """
text { font: 13px system-ui, "DejaVu Sans", sans-serif; fill: var(--ink); }
text.soft { fill: var(--soft); font-size: 12px; }
text.head { font-size: 15px; font-weight: 600; }
text.small { font-size: 11px; }
.ground { fill: var(--card); }
.grid { stroke: var(--line); }
.axis { stroke: var(--soft); }
image { image-rendering: pixelated; }
"""
MARGIN = 16  # no label begins left of it
SIZES = {"": 13, "soft": 12, "head": 15 * 1.15, "small": 11}  # as in STYLE; 1.15: bold letters are as much wider
# Advance widths of DejaVu Sans, the widest of the usual fonts, in its size, rounded up. All other letters: 1.
WIDTHS = {letter: width for width, letters in (
    (0.37, " ',-./:;IJ\\fijl|"), (0.42, "!()[]rt⁰¹²³⁴⁵⁶⁷⁸⁹"), (0.55, "\"*?_`csz⁻"), (0.62, "FLPTYaekovxy"),
    (0.64, "$0123456789ESbdghnpqu{}"), (0.7, "ABCKRVXZ"), (0.79, "&DGHNOQU"), (0.84, "#+<=>^w~"), (0.95, "M%"),
) for letter in letters}
Point = tuple[float, float]


def colours() -> str:
    """Returns the rules of the report's page that define its colours, for both schemes."""
    text = PAGE.read_text(encoding="utf-8")
    light = re.search(r"^:root \{.*?^\}", text, re.MULTILINE | re.DOTALL)
    dark = re.search(r"^@media \(prefers-color-scheme: dark\) \{.*?^\}", text, re.MULTILINE | re.DOTALL)
    if light is None or dark is None:
        raise ValueError(f"{PAGE.name} defines no colours")
    return f"{light.group()}\n{dark.group()}"


def colour(index: int) -> str:
    return f"var(--c{index % 6})"


def power(exponent: int, base: int = 2) -> str:
    return f"{base}{str(exponent).translate(SUPERSCRIPTS)}"


def short(value: float) -> str:
    return f"{value:.4g}" if value == 0 or 1e-3 <= abs(value) < 1e5 else f"{value:.0e}"


def width_of(text: str, kind: str) -> float:
    return SIZES[kind] * sum(WIDTHS.get(letter, 1.0) for letter in text)


def png(rows: Sequence[Sequence[int]]) -> str:
    """Returns a grey picture as an address for <image>: rows of values from 0, black, to 255."""
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    raw = b"".join(b"\0" + bytes(row) for row in rows)
    head = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


class Picture:
    """An SVG file. words: its description for readers who do not see it."""

    def __init__(self, width: int, height: int, title: str, words: str) -> None:
        self.width, self.height, self.title, self.words = width, height, title, words
        self.parts: list[str] = []
        self.text(16, 26, title, "head")

    def add(self, tag: str, text: object = "", **attributes: object) -> None:
        told = "".join(f' {name.rstrip("_").replace("_", "-")}="{html.escape(_told(value))}"'
                       for name, value in attributes.items())
        self.parts.append(f"<{tag}{told}>{html.escape(str(text), quote=False)}</{tag}>" if text else f"<{tag}{told}/>")

    def text(self, x: float, y: float, text: str, kind: str = "soft", anchor: str = "start", **more: object) -> None:
        """Draws a label. One that is too long for the picture is made narrower."""
        before, behind = x - MARGIN, self.width - x
        room = {"start": behind, "end": before, "middle": 2 * min(before, behind)}[anchor]
        if "transform" not in more and width_of(text, kind) > room:
            more |= {"textLength": room, "lengthAdjust": "spacingAndGlyphs"}
        self.add("text", text, x=x, y=y, class_=kind, text_anchor=anchor, **more)

    def rect(self, x: float, y: float, width: float, height: float, fill: str, **more: object) -> None:
        self.add("rect", x=x, y=y, width=width, height=height, fill=fill, **more)

    def image(self, x: float, y: float, width: float, height: float, rows: Sequence[Sequence[int]]) -> None:
        self.add("image", x=x, y=y, width=width, height=height, href=png(rows), preserveAspectRatio="none")

    def legend(self, x: float, y: float, entries: Iterable[tuple[str, str]], dashed: Iterable[str] = ()) -> None:
        """Draws names with colours in a row. dashed: names with a broken line."""
        dashed = set(dashed)
        for name, fill in entries:
            self.add("line", x1=x, x2=x + 20, y1=y - 4, y2=y - 4, stroke=fill, stroke_width=3,
                     stroke_dasharray="4 3" if name in dashed else "none")
            self.text(x + 26, y, name, "")
            x += 44 + 7.2 * len(name)

    def svg(self) -> str:
        head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" role="img">')
        told = f"<title>{html.escape(self.title)}</title>\n<desc>{html.escape(self.words)}</desc>"
        ground = f'<rect class="ground" width="{self.width}" height="{self.height}" rx="8"/>'
        return "\n".join([head, "<!-- SPDX-License-Identifier: Apache-2.0 -->", told,
                          f"<style>\n{colours()}{STYLE}</style>", ground, *self.parts, "</svg>", ""])


@dataclass(frozen=True)
class Axis:
    """low, high: its ends. ticks: values with their text; without, round ones. log: by powers."""

    low: float
    high: float
    name: str
    ticks: Sequence[tuple[float, str]] | None = None
    log: bool = False

    def at(self, value: float) -> float:
        """Returns the place of a value, from 0 to 1."""
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def marks(self, most: int = 6) -> list[tuple[float, str]]:
        if self.ticks is not None:
            return list(self.ticks)
        if self.log:
            powers = range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)
            return [(10.0**k, power(k, 10)) for k in powers]
        rough = (self.high - self.low) / most
        base = 10.0 ** math.floor(math.log10(rough))
        step = next(m * base for m in (1, 2, 5, 10) if m * base >= rough * (1 - 1e-9))
        first = math.ceil(self.low / step - 1e-9)
        return [(k * step, short(k * step)) for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


class Plot:
    """Axes in a rectangle of a picture. Values beyond them are drawn at their ends."""

    def __init__(self, picture: Picture, left: float, top: float, width: float, height: float, x: Axis, y: Axis,
                 title: str = "") -> None:
        self.picture, self.x, self.y = picture, x, y
        self.left, self.top, self.width, self.height = left, top, width, height
        if title:
            picture.text(left, top - 10, title, "")
        for value, text in y.marks():
            at = self.py(value)
            picture.add("line", class_="grid", x1=left, x2=left + width, y1=at, y2=at)
            picture.text(left - 6, at + 4, text, anchor="end")
        for value, text in x.marks():
            at = self.px(value)
            picture.add("line", class_="axis", x1=at, x2=at, y1=top + height, y2=top + height + 4)
            picture.text(at, top + height + 17, text, anchor="middle")
        picture.add("line", class_="axis", x1=left, x2=left + width, y1=top + height, y2=top + height)
        picture.text(left + width / 2, top + height + 36, x.name, anchor="middle")
        picture.text(0, 0, y.name, anchor="middle",
                     transform=f"translate({left - 46:.1f} {top + height / 2:.1f}) rotate(-90)")

    def px(self, value: float) -> float:
        return self.left + self.width * min(max(self.x.at(value), 0.0), 1.0)

    def py(self, value: float) -> float:
        return self.top + self.height * (1 - min(max(self.y.at(value), 0.0), 1.0))

    def line(self, points: Iterable[Point], stroke: str, dash: str = "none", width: float = 2) -> None:
        places = "L".join(f"{self.px(x):.1f} {self.py(y):.1f}" for x, y in points)
        if places:
            self.picture.add("path", d=f"M{places}", fill="none", stroke=stroke, stroke_width=width,
                             stroke_dasharray=dash, stroke_linejoin="round")

    def band(self, low: Sequence[Point], high: Sequence[Point], fill: str) -> None:
        places = [*low, *reversed(high)]
        if places:
            told = "L".join(f"{self.px(x):.1f} {self.py(y):.1f}" for x, y in places)
            self.picture.add("path", d=f"M{told}Z", fill=fill, fill_opacity=0.18)

    def bar(self, start: float, end: float, low: float, high: float, fill: str, **more: object) -> None:
        x, y = self.px(start), self.py(high)
        self.picture.rect(x, y, max(self.px(end) - x, 0.5), max(self.py(low) - y, 0), fill, **more)

    def cross(self, x: float, y: float, stroke: str = "var(--bad)") -> None:
        at = f"M{self.px(x) - 5:.1f} {self.py(y) - 5:.1f}l10 10m0 -10l-10 10"
        self.picture.add("path", d=at, stroke=stroke, stroke_width=2, fill="none")

    def rule(self, x: float, text: str, anchor: str = "start", stroke: str = "var(--bad)") -> None:
        """Draws a vertical line with its name."""
        at = self.px(x)
        self.picture.add("line", x1=at, x2=at, y1=self.top, y2=self.top + self.height, stroke=stroke,
                         stroke_dasharray="5 4")
        self.picture.text(at + (6 if anchor == "start" else -6), self.top + 12, text, "small", anchor)


def _told(value: object) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) and abs(value) >= 1 else str(value)
