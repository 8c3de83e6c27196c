"""Columns of text, and times as people say them."""

from datetime import datetime, timezone

import click


def show_table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """Print rows under titles, each column as wide as its widest cell."""
    widths = [max(len(row[column]) for row in [titles, *rows]) for column in range(len(titles))]
    for row in [titles, *rows]:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def age(moment: str | None) -> str:
    """How long ago a moment was."""
    return duration(moment, None)


def duration(start: str | None, end: str | None) -> str:
    """From one moment to another, or to now; '-' when it is not known."""
    if not start:
        return "-"
    try:
        last = _read(end) if end else datetime.now(timezone.utc)
        seconds = int((last - _read(start)).total_seconds())
    except ValueError:
        return "-"
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{max(0, seconds)} s"


def _read(moment: str) -> datetime:
    return datetime.fromisoformat(moment.replace("Z", "+00:00"))
