"""The HTML report in a real browser: no complaint, nothing loaded, plots visible, in light and in dark."""

import sys
from pathlib import Path

import pytest
from browser import program, started
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent.parent / "unit"))
from bench_samples import World, make_results

from hvdkit.bench.colours import DARK, LIGHT
from hvdkit.bench.points import IDEAL
from hvdkit.bench.report import write_report


@pytest.fixture(scope="module", autouse=True)
def browser_is_here() -> None:
    """A missing browser is a failure: a skip would look like success."""
    assert program() is not None, "there is no Chromium here; Debian: apt install chromium"


PLOTS = ("throughput", "efficiency", "breakdown", "ranks")
PLACE = """(() => {{
  const box = document.querySelector('#{name} svg').getBoundingClientRect();
  return [box.left + scrollX, box.top + scrollY, box.right + scrollX, box.bottom + scrollY, innerWidth];
}})()"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    worlds = {(engine, workers): World() for engine in ("horovod", IDEAL) for workers in (1, 2, 4)}
    worlds["horovod", 4] = World(communication=0.03, slower={2: 0.02})
    worlds |= {("ddp", workers): World(waits_hidden=True, communication=0.01 * workers) for workers in (1, 2, 4)}
    folder = tmp_path_factory.mktemp("report")
    write_report([make_results(worlds, name="made up")], folder)
    return folder / "report.html"


def rgb(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[place : place + 2], 16) for place in (1, 3, 5))


def count(image: Image.Image, colour: str) -> int:
    """Pixels of exactly this colour."""
    return sum(number for number, seen in image.getcolors(image.width * image.height) if seen == rgb(colour))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_report_can_be_seen(page: Path, dark: bool, tmp_path: Path) -> None:
    colours, others = (DARK, LIGHT) if dark else (LIGHT, DARK)
    with started() as tab:
        tab.open(page, dark=dark)
        places = {name: tab.evaluate(PLACE.format(name=name)) for name in PLOTS}
        cut = tab.evaluate("[...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth).length")
        assert cut == 0, "a table is wider than the page and hides its last columns"
        tab.screenshot(tmp_path / "page.png")
        assert tab.complaints == []
        assert {url for url in tab.requests() if not url.startswith(("about:", "data:"))} == {page.as_uri()}
    screen = Image.open(tmp_path / "page.png").convert("RGB")
    ground = colours["page"]
    assert count(screen, ground) > 0.5 * screen.width * screen.height
    for name, (left, top, right, bottom, width) in places.items():
        assert right - left > 400 and bottom - top > 100, f"{name} is too small to read"
        assert left >= 0 and right <= width, f"{name} runs out of the page"
        plot = screen.crop((round(left), round(top), round(right), round(bottom)))
        assert count(plot, colours["blue"]) > 50 and count(plot, colours["orange"]) > 50, f"{name} has no lines"
        assert count(plot, others["blue"]) == 0 and count(plot, others["page"]) == 0, f"{name} has foreign colours"


def test_the_report_fits_a_telephone(page: Path) -> None:
    with started() as tab:
        tab.open(page, dark=False, width=380)
        assert tab.evaluate("document.documentElement.scrollWidth <= innerWidth"), "the page must not scroll sideways"
        for name in PLOTS:
            left, _, right, _, width = tab.evaluate(PLACE.format(name=name))
            assert left >= 0 and right <= width
