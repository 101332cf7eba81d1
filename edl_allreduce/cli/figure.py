"""Line figures as SVG, written by hand: a few panels one above the other, one colour per series."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

COLOURS = ("#0072b2", "#009e73", "#e69f00", "#999999", "#cc79a7", "#56b4e9")
"""Okabe and Ito's, which people who do not tell red from green can tell apart."""
WIDTH, HEIGHT = 760, 190
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 30, 36
MOST_POINTS = 600

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    x: str
    series: Mapping[str, Points]
    steps: bool = True
    """A value holds until the next one."""
    logarithmic: bool = False
    """The x axis."""


def svg(title: str, panels: Sequence[Panel]) -> str:
    """The whole file."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    head = 52
    height = head + HEIGHT * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(LEFT, 20, title, size=15),
    ]
    at = LEFT
    for name in names:
        parts.append(f'<rect x="{at}" y="33" width="18" height="4" fill="{colours[name]}"/>')
        parts.append(_text(at + 24, 40, name))
        at += 40 + 8 * len(name)
    for number, panel in enumerate(panels):
        parts += _panel(panel, head + HEIGHT * number, colours)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(panel: Panel, top: int, colours: Mapping[str, str]) -> list[str]:
    everything = [point for points in panel.series.values() for point in points]
    if not everything:
        return [_text(LEFT, top + 18, f"{panel.title}: nothing to show")]
    place = _log if panel.logarithmic else float
    low = min(place(x) for x, _ in everything)
    high = max(place(x) for x, _ in everything)
    tallest = max(y for _, y in everything) or 1.0
    inner, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def across(x: float) -> float:
        return LEFT + inner * (place(x) - low) / ((high - low) or 1.0)

    def down(y: float) -> float:
        return top + TOP + tall * (1 - y / tallest)

    parts = [_text(LEFT, top + 18, panel.title, size=13)]
    for part in (0.0, 0.5, 1.0):
        y = down(part * tallest)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(_text(LEFT - 6, y + 4, f"{part * tallest:.4g}", anchor="end"))
    for number in range(5):
        along = low + (high - low) * number / 4
        x = LEFT + inner * number / 4
        said = f"{10**along if panel.logarithmic else along:.3g}"
        parts.append(_text(x, top + HEIGHT - BOTTOM + 16, said, anchor="middle"))
    parts.append(_text(WIDTH - RIGHT, top + HEIGHT - BOTTOM + 30, panel.x, anchor="end"))
    for name, points in panel.series.items():
        path = _path([(across(x), down(y)) for x, y in _thinned(points)], panel.steps)
        parts.append(f'<path d="{path}" fill="none" stroke="{colours[name]}" stroke-width="1.5"/>')
    return parts


def _log(value: float) -> float:
    return math.log10(max(value, 1e-3))


def _thinned(points: Points) -> Points:
    every = -(-len(points) // MOST_POINTS)
    return points if every <= 1 else [*points[::every], points[-1]]


def _path(points: Points, steps: bool) -> str:
    words = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"] if points else []
    for x, y in points[1:]:
        words.append(f"H{x:.1f}V{y:.1f}" if steps else f"L{x:.1f} {y:.1f}")
    return "".join(words)


def _text(x: float, y: float, words: str, size: int = 12, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}">{escape(words)}</text>'
