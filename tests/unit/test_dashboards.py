"""The dashboards: the files are what the code gives, every query is PromQL over metrics that exist, all is explained.

After a change that is meant to change them: python -m hvdkit.metrics.dashboards manifests/monitoring/grafana
"""

import json
import re
from pathlib import Path

import promql_parser
import pytest

from hvdkit.metrics import bench
from hvdkit.metrics.dashboards import dashboards, files, fill_in, queries_of
from hvdkit.metrics.dashboards_gpu import METRICS as OF_DCGM
from hvdkit.metrics.live import LiveMetrics
from hvdkit.train.report import Evaluation, Interval

FOLDER = Path(__file__).parents[2] / "manifests" / "monitoring" / "grafana"
DASHBOARDS = dashboards()
# Read alike by Grafana 10, 11 and 12.
STABLE = {"timeseries", "stat", "table", "barchart", "trend"}
VALUES = {
    "job": "train",
    "model": "resnet50",
    "data": "synthetic",
    "backend": "local",
    "mode": "weak",
    "engine": "(horovod|ddp)",
}


def queries() -> list:
    return [
        pytest.param(query, id=f"{name}-{title}-{number}")
        for name, dashboard in DASHBOARDS.items()
        for number, (title, query) in enumerate(queries_of(dashboard))
    ]


def live_names() -> set[str]:
    """Every name that a rank can serve."""
    metrics = LiveMetrics(
        port=0,
        job="a",
        rank=0,
        local_rank=0,
        world_size=1,
        host="h",
        model="m",
        data="d",
        engine="horovod",
        library="MPI",
        address="127.0.0.1",
    )
    try:
        metrics.observe_step(0.1, 0.01, 0.02, 64)
        numbers = dict.fromkeys(Interval.__dataclass_fields__, 1)
        metrics.interval(Interval(**numbers))
        metrics.evaluation(Evaluation(**dict.fromkeys(Evaluation.__dataclass_fields__, 1)))
        return {sample.name for family in metrics.collect() for sample in family.samples}
    finally:
        metrics.close()


def test_the_files_are_what_the_code_gives() -> None:
    assert {file.name: file.read_text() for file in FOLDER.iterdir()} == files()


@pytest.mark.parametrize("query", queries())
def test_every_query_is_promql(query: str) -> None:
    filled = fill_in(query, **VALUES)
    assert not re.search(r"\$(?!1\b)", filled), "a variable has no value"
    promql_parser.parse(filled)


def test_the_parser_refuses_what_is_wrong() -> None:
    with pytest.raises(ValueError):
        promql_parser.parse('sum by (rank) (rate(hvdkit_steps_total{job="a"}))')


def test_every_metric_exists() -> None:
    known = live_names() | set(bench.HELP) | set(OF_DCGM) | {"ALERTS"}
    asked = {
        metric
        for dashboard in DASHBOARDS.values()
        for _, query in queries_of(dashboard)
        for metric in re.findall(r"(?<![\w\"])(hvdkit_\w+|DCGM_\w+|ALERTS)\b(?=[{\[)\s]|$)", query)
    }
    assert asked - {"hvdkit_job"} <= known
    assert {"hvdkit_loss", "hvdkit_step_seconds_sum", "hvdkit_bench_efficiency_ratio", "DCGM_FI_DEV_GPU_UTIL"} <= asked


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_variable_is_defined_and_used(name: str) -> None:
    dashboard = DASHBOARDS[name]
    defined = {variable["name"] for variable in dashboard["templating"]["list"]}
    text = json.dumps(dashboard["panels"])
    used = set(re.findall(r"\$\{?([a-z]+)\b", text))
    assert used == defined


@pytest.mark.parametrize("name", DASHBOARDS)
def test_every_panel_is_stable_explained_and_in_its_place(name: str) -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARDS[name]["panels"]:
        assert panel["type"] in STABLE
        assert panel["title"] and panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["targets"] and panel["datasource"]["uid"] == "${datasource}"
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and place["x"] + place["w"] <= 24, panel["title"]
        taken |= cells


def test_the_dashboards_lead_to_each_other() -> None:
    uids = [dashboard["uid"] for dashboard in DASHBOARDS.values()]
    assert len(set(uids)) == len(uids) == 4
    for dashboard in DASHBOARDS.values():
        (link,) = dashboard["links"]
        assert link["type"] == "dashboards" and link["tags"] == dashboard["tags"] == ["hvdkit"]
        assert "placement" not in link


def test_a_job_in_the_table_of_all_leads_to_its_own_dashboard() -> None:
    (table,) = [panel for panel in DASHBOARDS["job-health.json"]["panels"] if panel["type"] == "table"]
    (link,) = [
        link
        for override in table["fieldConfig"]["overrides"]
        for value in override["properties"]
        if override["matcher"]["options"] == "Job" and value["id"] == "links"
        for link in value["value"]
    ]
    assert link["url"].startswith(f"/d/{DASHBOARDS['live-job.json']['uid']}?var-job=${{__value.raw}}&")


def test_variables_are_filled_in_as_grafana_does() -> None:
    query = 'rate(a{hvdkit_job="$job"}[$__rate_interval]) and label_replace(b, "c", "$1", "d", "(.*)")'
    filled = fill_in(query, job="x", rate_interval="20s")
    assert filled == 'rate(a{hvdkit_job="x"}[20s]) and label_replace(b, "c", "$1", "d", "(.*)")'
