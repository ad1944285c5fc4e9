"""An automaton as a picture: states as circles, tokens on the arrows between them."""

from collections import defaultdict
from collections.abc import Sequence
from html import escape

import numpy as np

from hmmlm.errors import InputError
from hmmlm.generate.automata import NEVER, Automaton

MOST = 60
RADIUS, GAP, STEP = 18, 170, 74
MARGIN, TOP = 70, 104
SHOWN = 3
"""Tokens that an arrow names, unless all of its are few."""


def draw_automaton(automaton: Automaton, names: Sequence[str], title: str) -> str:
    """An SVG of the states from which a text can still be met, from left to right as they are met.

    A double circle is where a text may end. Arrows say which tokens, by their names; "other" are
    those of the largest kind. Ways to where nothing can be met any more are left out.
    """
    kept = np.flatnonzero(automaton.distance < NEVER).tolist()
    if len(kept) > MOST:
        raise InputError(
            f"The automaton has {len(kept):,} states, and a picture at most {MOST}; draw a part of "
            f"the constraint, or leave --svg out."
        )
    places = _places(automaton, kept)
    width = max(x for x, _ in places.values()) + MARGIN + RADIUS
    height = max(y for _, y in places.values()) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="11">',
        "<defs><marker id='tip' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' "
        "markerHeight='7' orient='auto'><path d='M0 0 L8 4 L0 8 z' fill='#555'/></marker></defs>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="12" y="20" font-size="13">{escape(title)}</text>',
    ]
    for (source, goal), label in _arrows(automaton, kept, names).items():
        parts.append(_arrow(places[source], places[goal], label))
    for state in kept:
        x, y = places[state]
        fill = "#dcebff" if state == 0 else "white"
        parts.append(f'<circle cx="{x}" cy="{y}" r="{RADIUS}" fill="{fill}" stroke="#222"/>')
        if automaton.accepting[state]:
            parts.append(f'<circle cx="{x}" cy="{y}" r="{RADIUS - 4}" fill="none" stroke="#222"/>')
        parts.append(f'<text x="{x}" y="{y + 4}" text-anchor="middle">{state}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _places(automaton: Automaton, kept: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Where states stand: in columns by their distance from the beginning."""
    depth = {0: 0}
    for state in (waiting := [0]):
        for goal in automaton.next[state].tolist():
            if goal not in depth and goal in kept:
                depth[goal] = depth[state] + 1
                waiting.append(goal)
    columns: defaultdict[int, list[int]] = defaultdict(list)
    for state, column in depth.items():
        columns[column].append(state)
    tallest = max(map(len, columns.values()))
    places = {}
    for column, states in columns.items():
        top = TOP + (tallest - len(states)) * STEP // 2
        for row, state in enumerate(states):
            places[state] = (MARGIN + column * GAP, top + row * STEP)
    return places


def _arrows(
    automaton: Automaton, kept: Sequence[int], names: Sequence[str]
) -> dict[tuple[int, int], str]:
    """What stands on the arrow of each pair of states."""
    tokens: defaultdict[int, list[str]] = defaultdict(list)
    for name, column in zip(names, automaton.column.tolist(), strict=True):
        tokens[column].append(name)
    largest = max(tokens, key=lambda column: len(tokens[column]))
    found: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for state in kept:
        for column, goal in enumerate(automaton.next[state].tolist()):
            if goal in kept:
                found[state, goal].append(column)
    labels = {}
    for pair, columns in found.items():
        named = [name for column in columns if column != largest for name in tokens[column]]
        shown = named if len(named) <= SHOWN + 1 else [*named[:SHOWN], f"+{len(named) - SHOWN}"]
        if largest in columns:
            shown = ["other"] if len(named) > SHOWN + 1 else [*shown, "other"]
        labels[pair] = ", ".join(shown)
    return labels


def _arrow(source: tuple[int, int], goal: tuple[int, int], label: str) -> str:
    (x, y), (to_x, to_y) = source, goal
    if source == goal:
        low, high = y - RADIUS + 2, y - 52
        path = f"M{x - 8} {low} C{x - 26} {high} {x + 26} {high} {x + 8} {low}"
        at = (x, y - 44)
    else:
        length = max(1.0, ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5)
        across, down = (to_x - x) / length, (to_y - y) / length
        bend = 18 if to_x > x else 44
        middle = ((x + to_x) / 2 + bend * down, (y + to_y) / 2 - bend * across)
        begin = (x + RADIUS * across, y + RADIUS * down)
        end = (to_x - RADIUS * across, to_y - RADIUS * down)
        path = (
            f"M{begin[0]:.0f} {begin[1]:.0f} Q{middle[0]:.0f} {middle[1]:.0f} "
            f"{end[0]:.0f} {end[1]:.0f}"
        )
        at = ((x + to_x) / 2 + bend * down / 2, (y + to_y) / 2 - bend * across / 2 - 3)
    return (
        f'<path d="{path}" fill="none" stroke="#555" marker-end="url(#tip)"/>'
        f'<text x="{at[0]:.0f}" y="{at[1]:.0f}" text-anchor="middle" fill="#06c">'
        f"{escape(label)}</text>"
    )
