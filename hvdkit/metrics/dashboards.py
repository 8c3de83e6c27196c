"""Grafana dashboards as code: `python -m hvdkit.metrics.dashboards FOLDER` writes their JSON."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VARIABLES = ("datasource", "job", "model", "data", "backend", "mode", "engine")


def dashboards() -> dict[str, dict[str, Any]]:
    """File name → the dashboard's JSON."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder

    from hvdkit.metrics.dashboards_gpu import gpu
    from hvdkit.metrics.dashboards_health import job_health
    from hvdkit.metrics.dashboards_live import live_job
    from hvdkit.metrics.dashboards_scaling import scaling

    made = {"scaling": scaling(), "live-job": live_job(), "gpu": gpu(), "job-health": job_health()}
    encoder = JSONEncoder()
    return {f"{name}.json": _portable(json.loads(encoder.encode(one.build()))) for name, one in made.items()}


def files() -> dict[str, str]:
    """File name → its text."""
    return {name: json.dumps(one, indent=2, sort_keys=True) + "\n" for name, one in dashboards().items()}


def queries_of(dashboard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Title of the panel and PromQL of every query."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def fill_in(query: str, **values: str) -> str:
    """The query as Grafana sends it: variables by their values, $__rate_interval by `rate_interval`."""
    names = {"__rate_interval": values.pop("rate_interval", "1m"), **values}
    return re.sub(r"\$(__rate_interval|[a-z]+)\b", lambda match: names.get(match[1], match[0]), query)


def _portable(dashboard: dict[str, Any]) -> dict[str, Any]:
    """Without what only the newest Grafana knows: there it would hide the links in a menu."""
    for link in dashboard.get("links", []):
        link.pop("placement", None)
    return dashboard


if __name__ == "__main__":
    for name, text in files().items():
        (Path(sys.argv[1]) / name).write_text(text)
