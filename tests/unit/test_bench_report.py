"""The page is whole by itself, says what the results say, and can be read in light, in dark and without colours."""

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
from bench_samples import World, make_results
from click.testing import CliRunner

from hvdkit.bench import result_file
from hvdkit.bench.colours import DARK, LIGHT, SERIES
from hvdkit.bench.points import IDEAL
from hvdkit.bench.report import write_report
from hvdkit.bench.results import Results, Run
from hvdkit.bench.summary import summarise
from hvdkit.cli import cli
from hvdkit.errors import InputError

PLOTS = ("throughput", "efficiency", "breakdown", "ranks")
WORLDS = {
    ("horovod", 1): World(),
    ("horovod", 4): World(communication=0.04),
    ("ddp", 1): World(waits_hidden=True),
    ("ddp", 4): World(waits_hidden=True, communication=0.04),
    (IDEAL, 1): World(),
    (IDEAL, 4): World(),
}


class Page(HTMLParser):
    """Which tags and attributes a page has; that every tag is closed; that no id comes twice."""

    VOID = ("meta", "br", "img", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.feed(text)
        assert not self.open, f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def ids(self) -> list[str]:
        return [attributes["id"] for _, attributes in self.tags if "id" in attributes]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Path]:
    results = make_results(WORLDS, name="a<b>&c")
    folder = tmp_path_factory.mktemp("report")
    written = write_report([results], folder)
    assert sorted(path.relative_to(folder).as_posix() for path in written) == sorted(
        ["report.html", *(f"plots/{name}.{kind}" for name in PLOTS for kind in ("png", "svg"))]
    )
    return results, folder


def test_the_page_is_well_formed_and_loads_nothing(report: tuple[Results, Path]) -> None:
    text = (report[1] / "report.html").read_text()
    page = Page(text)
    assert len(page.ids()) == len(set(page.ids()))
    assert not {"script", "link", "img", "iframe"} & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href"):
                assert value.startswith("#"), f"<{tag} {name}={value}>"
    assert "default-src 'none'" in text and "@import" not in text
    assert all(address.startswith("#") for address in re.findall(r"url\(([^)]*)\)", text))
    assert "a&lt;b&gt;&amp;c" in text and "a<b>" not in text


def test_the_page_says_what_the_results_say(report: tuple[Results, Path]) -> None:
    results, folder = report
    text = (folder / "report.html").read_text()
    for summary in summarise(results):
        pace = summary.images_per_second
        assert f"<span>{pace.value:,.0f}</span> <span>({pace.low:,.0f} … {pace.high:,.0f})</span>" in text
    assert "limited by communication" in text and "even the rank that waits least" in text
    assert "made up" in text and "--batch-size" in text  # the machine and the flags


def test_plots_follow_the_readers_colours_and_have_words(report: tuple[Results, Path]) -> None:
    text = (report[1] / "report.html").read_text()
    assert "prefers-color-scheme: dark" in text
    for name in PLOTS:
        figure = text[text.index(f'<figure id="{name}">') :]
        figure = figure[: figure.index("</figure>")]
        assert f'role="img" aria-labelledby="caption-{name}"' in figure and f'id="caption-{name}"' in figure
        assert "var(--text)" in figure and "var(--grid)" in figure
        drawn = set(re.findall(r"#[0-9a-f]{6}\b", figure))
        assert not drawn & set(LIGHT.values()) and drawn <= {"#000000"}, f"{name} has colours of its own: {drawn}"


def test_plot_files_stand_alone(report: tuple[Results, Path]) -> None:
    for name in PLOTS:
        svg = (report[1] / "plots" / f"{name}.svg").read_text()
        ElementTree.fromstring(svg)
        assert "var(--" not in svg and LIGHT["text"] in svg
        assert (report[1] / "plots" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_can_be_seen(colours: dict[str, str]) -> None:
    assert set(LIGHT) == set(DARK)
    for name in ("text", "muted"):
        assert min(contrast(colours[name], colours[ground]) for ground in ("page", "panel")) >= 4.5
    for name in (*SERIES, "grey"):
        assert contrast(colours[name], colours["page"]) >= 3.0


# Linear RGB as seen without the long, middle or short cones (after Viénot, Brettel and Mollon, 1999).
BLINDNESS = {
    "protan": ((0.11238, 0.88762, 0.0), (0.11238, 0.88762, 0.0), (0.00401, -0.00401, 1.0)),
    "deutan": ((0.29275, 0.70725, 0.0), (0.29275, 0.70725, 0.0), (-0.02234, 0.02234, 1.0)),
    "tritan": ((1.0, 0.14461, -0.14461), (0.0, 0.85924, 0.14076), (0.0, 0.85924, 0.14076)),
}


@pytest.mark.parametrize("kind", BLINDNESS)
@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_series_differ_for_the_colour_blind(colours: dict[str, str], kind: str) -> None:
    def seen(colour: str) -> tuple[float, ...]:
        linear = [(int(colour[place : place + 2], 16) / 255) ** 2.2 for place in (1, 3, 5)]
        rows = [sum(weight * part for weight, part in zip(row, linear, strict=True)) for row in BLINDNESS[kind]]
        return tuple(255 * max(0.0, value) ** (1 / 2.2) for value in rows)

    # The first two series are what nearly every plot has; beyond that markers and hatching help.
    one, other = (seen(colours[name]) for name in SERIES[:2])
    assert sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5 > 60


def test_several_results_side_by_side(tmp_path: Path) -> None:
    slower = WORLDS | {("horovod", 4): World(communication=0.12)}
    sweeps = [make_results(WORLDS, name="before"), make_results(slower, name="after", seed=5)]
    for results in sweeps:
        result_file.save(results, tmp_path / results.name / "results.json")
    words = ["bench", "report", str(tmp_path / "before"), str(tmp_path / "after"), "--output", str(tmp_path / "both")]
    done = CliRunner().invoke(cli, words, standalone_mode=False)
    assert done.exception is None, done.output
    text = (tmp_path / "both" / "report.html").read_text()
    Page(text)
    assert "after against before" in text and "<td>slower</td>" in text
    assert "before: horovod" in text and "after: horovod" in text


def test_a_comparison_that_could_show_no_difference_says_so(tmp_path: Path) -> None:
    """Five runs a side are too few for seven points."""
    worlds = {("horovod", count): World() for count in range(1, 8)}
    write_report([make_results(worlds, name="before"), make_results(worlds, name="after", seed=5)], tmp_path)
    text = (tmp_path / "report.html").read_text()
    Page(text)
    assert text.count('<td class="number"><span>none</span></td>') == 7 and "raise --repeats" in text


def test_failed_runs_are_listed(tmp_path: Path) -> None:
    results = make_results(WORLDS)
    first = results.runs[-1]
    facts = {"began": first.began, "seconds": 1.0, "load_before": 0.0, "warmup": 5}
    results.add(Run(point=first.point, repeat=first.repeat, problem="exit code 137 <oom>", **facts))
    write_report([results], tmp_path)
    assert "exit code 137 &lt;oom&gt;" in (tmp_path / "report.html").read_text()


def test_nothing_to_report_is_said(tmp_path: Path) -> None:
    results = make_results(WORLDS)
    results.runs = []
    with pytest.raises(InputError, match="no successful run"):
        write_report([results], tmp_path)


def test_the_same_results_give_the_same_page(report: tuple[Results, Path], tmp_path: Path) -> None:
    write_report([report[0]], tmp_path)
    assert (tmp_path / "report.html").read_bytes() == (report[1] / "report.html").read_bytes()
