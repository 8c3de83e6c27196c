"""Time and bus bandwidth of an allreduce against its size."""

from pathlib import Path

from hvdkit.bench.allreduce import Measurement, Row
from hvdkit.bench.colours import LIGHT, SERIES
from hvdkit.bench.plots import MARKERS, SETTINGS  # says how to install matplotlib when it is missing
from hvdkit.errors import InputError

LINES = ("-", "--", ":", "-.")  # by number of ranks


def check_name(file: Path) -> None:
    """InputError for a format that is not drawn."""
    if file.suffix.lower() not in (".svg", ".png", ".pdf"):
        raise InputError(f"--plot {file}: the name must end in .svg, .png or .pdf.")


def plot(measurement: Measurement, file: Path) -> None:
    """Write a picture; its format follows from the file's name."""
    import matplotlib
    from matplotlib.figure import Figure

    check_name(file)
    with matplotlib.rc_context(SETTINGS):
        figure = Figure(figsize=(10, 4.2), layout="constrained")
        time, bandwidth = figure.subplots(1, 2)
        libraries = list(dict.fromkeys(row.library for row in measurement.rows))
        worlds = list(dict.fromkeys(row.ranks for row in measurement.rows))
        for number, library in enumerate(libraries):
            for order, ranks in enumerate(worlds):
                rows = [row for row in measurement.rows if (row.library, row.ranks) == (library, ranks)]
                if rows:
                    style = {
                        "label": f"{library}, {ranks} ranks",
                        "color": LIGHT[SERIES[number % len(SERIES)]],
                        "marker": MARKERS[number % len(MARKERS)],
                        "linestyle": LINES[order % len(LINES)],
                        "markersize": 4,
                    }
                    _line(time, rows, [1e6 * row.seconds for row in rows], style)
                    _line(bandwidth, rows, [row.bus_bytes_per_second / 1e9 for row in rows], style)
        for axes, label in ((time, "microseconds an allreduce"), (bandwidth, "bus bandwidth, GB/s")):
            axes.set_xscale("log", base=2)
            axes.set_xlabel("bytes")
            axes.set_ylabel(label)
            axes.grid(True)
        time.set_yscale("log")
        bandwidth.set_ylim(bottom=0)
        time.legend(fontsize=8)
        try:
            figure.savefig(file)
        except OSError as error:
            raise InputError(f"--plot {file} cannot be written: {error.strerror}.") from None


def _line(axes, rows: list[Row], values: list[float], style: dict) -> None:
    axes.plot([row.bytes for row in rows], values, **style)
