"""The few kinds of panels that our dashboards are made of, each with a title, a unit and an explanation.

Only kinds that Grafana 10, 11 and 12 read alike: xychart, for one, changed its format between them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grafana_foundation_sdk.builders import barchart, common, dashboard, prometheus, stat, table, timeseries, trend
from grafana_foundation_sdk.models import common as models
from grafana_foundation_sdk.models.dashboard import (
    DataTransformerConfig,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
RATE = "$__rate_interval"
HEADINGS = {
    "namespace": "Namespace",
    "hvdkit_job": "Job",
    "rank": "Rank",
    "host": "Host",
    "library": "Library",
    "engine": "Engine",
    "workers": "Workers",
}
GOOD, DOUBTFUL, BAD = "green", "orange", "red"
FAINT = "#8e8e99"
ENGINES = {"horovod": "blue", "ddp": "orange"}  # the same colour in every panel


@dataclass(frozen=True, kw_only=True)
class Query:
    """A question to Prometheus and the name of what it answers."""

    expression: str
    legend: str = ""


def lines(
    title: str,
    description: str,
    *queries: Query,
    unit: str,
    height: int = 8,
    alarm: float | None = None,
    **limits: float,
) -> Any:
    """Values over time; a dashed red line at the value that is an `alarm`."""
    panel = timeseries.Panel().legend(_legend()).tooltip(_tooltip()).line_width(2).fill_opacity(0)
    panel = panel.show_points(models.VisibilityMode.AUTO)  # never would hide what has been seen but once
    if alarm is not None:
        dashed = common.GraphThresholdsStyleConfig().mode(models.GraphThresholdsStyleMode.DASHED)
        panel = panel.thresholds(_thresholds(((None, "transparent"), (alarm, BAD)))).thresholds_style(dashed)
    return _common(panel, title, description, unit, 12, height, [_range(query) for query in queries], limits)


def value(
    title: str,
    description: str,
    query: Query,
    *,
    unit: str,
    thresholds: Sequence[tuple[float | None, str]] = ((None, "blue"),),
    width: int = 4,
    decimals: int | None = None,
) -> Any:
    """One large number, or one a series."""
    panel = stat.Panel().color_mode(models.BigValueColorMode.VALUE).graph_mode(models.BigValueGraphMode.NONE)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"])).thresholds(_thresholds(thresholds))
    if decimals is not None:
        panel = panel.decimals(decimals)
    return _common(panel, title, description, unit, width, 4, [_instant(query)], {})


def over_workers(title: str, description: str, query: Query, *, unit: str, **limits: float) -> Any:
    """Lines over the number of workers: the query's answers have the labels workers and series."""
    panel = trend.Panel().x_field("workers").legend(_legend()).tooltip(_tooltip()).line_width(2)
    panel = panel.show_points(models.VisibilityMode.ALWAYS).point_size(8).axis_soft_min(0)
    panel = panel.override_by_regexp("linear.*", [_style("dot", 0, 8), _colour(FAINT)])
    panel = panel.override_by_name("ideal", [_style("dash", 8, 8), _colour("green")])
    panel = panel.override_by_name("workers", [DynamicConfigValue(id_val="custom.axisLabel", value="workers")])
    for engine, colour in ENGINES.items():
        panel = panel.override_by_name(engine, [_colour(colour)])
    for transformation in _matrix("workers", "series", number=True):
        panel = panel.with_transformation(transformation)
    return _common(panel, title, description, unit, 12, 11, [_instant(query, as_table=True)], limits)


def stacked(
    title: str, description: str, query: Query, *, unit: str, row: str, column: str, colours: Mapping[str, str]
) -> Any:
    """Bars of parts: one bar a value of the label `row`, one of the `colours` a value of the label `column`."""
    panel = barchart.Panel().x_field(row).legend(_legend()).tooltip(_tooltip()).fill_opacity(80).bar_width(0.8)
    panel = panel.stacking(models.StackingMode.NORMAL).show_value(models.VisibilityMode.NEVER)
    for part, colour in colours.items():
        panel = panel.override_by_name(part, [_colour(colour)])
    for transformation in _matrix(row, column):
        panel = panel.with_transformation(transformation)
    return _common(panel, title, description, unit, 12, 11, [_instant(query, as_table=True)], {"high": 1})


def rows(
    title: str,
    description: str,
    columns: Sequence[tuple[str, str, str]],
    *,
    labels: Sequence[str],
    alarms: Mapping[str, float] | None = None,
    height: int = 9,
) -> Any:
    """A table: `columns` are (name, query, unit), joined where their labels are the same; red from `alarms` on."""
    panel = table.Panel().show_header(True).min_width(70)  # else the last of many columns are out of sight
    if "hvdkit_job" in labels:
        panel = panel.override_by_name(
            HEADINGS["hvdkit_job"], [DynamicConfigValue(id_val="links", value=[_TO_LIVE_JOB])]
        )
    names = {"Value": columns[0][0]} if len(columns) == 1 else {}
    for letter, (name, _, unit) in zip("ABCDEFGHIJ", columns, strict=False):
        names[f"Value #{letter}"] = name
        properties = [DynamicConfigValue(id_val="unit", value=unit)]
        if unit == "locale":  # 1,234 where short would say 1.23 K; it knows no sensible number of decimals
            properties.append(DynamicConfigValue(id_val="decimals", value=0))
        if alarms and name in alarms:
            properties += _red_from(alarms[name])
        panel = panel.override_by_name(name, properties)
    order = [*labels, *names]
    panel = panel.with_transformation(DataTransformerConfig(id_val="merge", options={}))
    panel = panel.with_transformation(
        DataTransformerConfig(
            id_val="organize",
            options={
                "excludeByName": {"Time": True},
                "indexByName": {name: place for place, name in enumerate(order)},
                "renameByName": names | {label: HEADINGS[label] for label in labels},
            },
        )
    )
    targets = [_instant(Query(expression=query), as_table=True) for _, query, _ in columns]
    return _common(panel, title, description, "short", 24, height, targets, {})


def variable(name: str, label: str, query: str, *, several: bool = False) -> Any:
    """A choice above the dashboard, from the values of a label."""
    made = dashboard.QueryVariable(name).label(label).datasource(SOURCE).refresh(2).sort(7)
    made = made.query({"query": query, "refId": name}).definition(query)
    return made.multi(True).include_all(True).all_value(".*") if several else made


def page(
    uid: str, title: str, description: str, variables: Sequence[Any], panels: Sequence[Any], **options: str
) -> Any:
    """A dashboard; all of ours link to each other by their tag and keep the time and the chosen job."""
    made = (
        dashboard.Dashboard(title)
        .uid(uid)
        .description(description)
        .tags(["hvdkit"])
        .time(options.get("since", "now-1h"), "now")
        .refresh(options.get("refresh", "30s"))
        .timezone("browser")
        .editable()
        .tooltip(1)  # one cross-hair through all panels
        .link(dashboard.DashboardLink("hvdkit").type("dashboards").tags(["hvdkit"]).include_vars(True).keep_time(True))
        .with_variable(dashboard.DatasourceVariable("datasource").label("Data source").type("prometheus"))
    )
    for one in variables:
        made = made.with_variable(one)
    for one in panels:
        made = made.with_panel(one)
    return made


_TO_LIVE_JOB = {
    "title": "Live job",
    "url": "/d/hvdkit-live-job?var-job=${__value.raw}&${datasource:queryparam}&${__url_time_range}",
}


def _colour(name: str) -> DynamicConfigValue:
    return DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": name})


def _style(fill: str, drawn: int, free: int) -> DynamicConfigValue:
    return DynamicConfigValue(id_val="custom.lineStyle", value={"fill": fill, "dash": [drawn, free]})


def _red_from(alarm: float) -> list[DynamicConfigValue]:
    steps = [{"color": "text", "value": None}, {"color": BAD, "value": alarm}]
    return [
        DynamicConfigValue(id_val="thresholds", value={"mode": "absolute", "steps": steps}),
        DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}),
    ]


def _common(
    panel: Any, title: str, description: str, unit: str, width: int, height: int, targets: list[Any], limits: Any
) -> Any:
    panel = panel.title(title).description(description).unit(unit).span(width).height(height).datasource(SOURCE)
    for letter, target in zip("ABCDEFGHIJ", targets, strict=False):
        panel = panel.with_target(target.ref_id(letter))
    if "low" in limits:
        panel = panel.min(limits["low"])
    if "soft_high" in limits:
        panel = panel.axis_soft_max(limits["soft_high"])
    return panel.max(limits["high"]) if "high" in limits else panel


def _range(query: Query) -> Any:
    return prometheus.Dataquery().datasource(SOURCE).expr(query.expression).legend_format(query.legend).range()


def _instant(query: Query, *, as_table: bool = False) -> Any:
    made = prometheus.Dataquery().datasource(SOURCE).expr(query.expression).legend_format(query.legend).instant()
    return made.format(PromQueryFormat.TABLE) if as_table else made


def _matrix(row: str, column: str, *, number: bool = False) -> list[DataTransformerConfig]:
    """One row a value of `row`, one column a value of `column`: Grafana calls the first column row\\column."""
    first = f"{row}\\{column}"
    made = [
        DataTransformerConfig(
            id_val="groupingToMatrix", options={"rowField": row, "columnField": column, "valueField": "Value"}
        )
    ]
    if number:  # labels are texts, and as texts 10 comes before 2
        conversion = {"targetField": first, "destinationType": "number"}
        made.append(
            DataTransformerConfig(id_val="convertFieldType", options={"fields": {}, "conversions": [conversion]})
        )
    made.append(DataTransformerConfig(id_val="sortBy", options={"fields": {}, "sort": [{"field": first}]}))
    made.append(DataTransformerConfig(id_val="organize", options={"renameByName": {first: row}}))
    return made


def _thresholds(steps: Sequence[tuple[float | None, str]]) -> Any:
    return (
        dashboard.ThresholdsConfig()
        .mode(ThresholdsMode.ABSOLUTE)
        .steps([Threshold(value=value, color=color) for value, color in steps])
    )


def _legend() -> Any:
    return (
        common.VizLegendOptions()
        .display_mode(models.LegendDisplayMode.LIST)
        .placement(models.LegendPlacement.BOTTOM)
        .show_legend(True)
    )


def _tooltip() -> Any:
    return common.VizTooltipOptions().mode(models.TooltipDisplayMode.MULTI).sort(models.SortOrder.DESCENDING)
