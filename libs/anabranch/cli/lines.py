"""Text for terminals of any width: parts that belong together are on one line as long as they fit, and no name is ever
cut or broken. Colours are used on a terminal alone."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from anabranch.cli.printable import printable

_GAP = "  "


def fitted(parts: Sequence[str], width: int, indent: int = 0, hang: int = 2, style: str = "") -> list[Text]:
    """The parts, with two spaces between them, on as few lines as they fit on; later lines stand ``hang`` further to
    the right. A part that is longer than a line has one of its own."""
    lines: list[str] = []
    line = " " * indent
    empty = True
    for part in parts:
        if not empty and cell_len(line) + len(_GAP) + cell_len(part) > width:
            lines.append(line)
            line, empty = " " * (indent + hang), True
        line += part if empty else _GAP + part
        empty = False
    lines.append(line)
    return [Text(one.rstrip(), style=style) for one in lines]


def paragraph(text: str, width: int, indent: int = 0, hang: int = 2, style: str = "") -> list[Text]:
    """Prose, broken between words only."""
    first, later = " " * indent, " " * (indent + hang)
    wrapped = textwrap.wrap(
        text,
        max(width, 20),
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [Text(one, style=style) for one in wrapped or [first]]


def columns(rows: Iterable[Sequence[str]], width: int, indent: int = 0, styles: Sequence[str] = ()) -> list[Text]:
    """Rows whose cells are aligned in columns where all fit; a row that is too long is ``fitted`` by itself. ``styles``
    are those of the rows."""
    cells = [list(row) for row in rows]
    if not cells:
        return []
    widths = [max(cell_len(row[i]) for row in cells) for i in range(len(cells[0]))]
    lines: list[Text] = []
    whole = indent + sum(widths) + len(_GAP) * (len(widths) - 1) <= width
    for number, row in enumerate(cells):
        style = styles[number] if number < len(styles) else ""
        if whole:
            padded = [cell + " " * (size - cell_len(cell)) for cell, size in zip(row, widths, strict=True)]
            lines.append(Text((" " * indent + _GAP.join(padded)).rstrip(), style=style))
        else:
            lines += fitted([cell for cell in row if cell], width, indent, style=style)
    return lines


def listing(header: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> list[Text]:
    """Rows under a header; where one is too long for a line, each row by itself, with the header's words before its
    cells."""
    cells = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(header, *cells, strict=True)]
    if sum(widths) + len(_GAP) * (len(widths) - 1) <= width:
        return columns([header, *cells], width, styles=["bold"])
    lines: list[Text] = []
    for row in cells:
        lines += fitted([f"{name} {cell}" for name, cell in zip(header, row, strict=True) if cell], width)
    return lines


def cell(text: str) -> Text:
    """A cell of a grid, or its title: neither markup nor anything that a terminal obeys."""
    return Text(printable(text))


def safe(line: Text) -> Text:
    """A line of one style, whatever names are in it."""
    return Text(printable(line.plain), style=line.style)


def show(console: Console, lines: Iterable[Text]) -> None:
    """Print lines, each on one: a terminal that is narrower than a line breaks it itself."""
    for line in lines:
        console.print(safe(line), soft_wrap=True, highlight=False, emoji=False)
