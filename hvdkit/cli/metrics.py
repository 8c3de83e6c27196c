"""`hvdkit metrics`: what belongs to Prometheus: old results on a Pushgateway, targets of a local run, alert rules."""

import json
import re
import time

import click

from hvdkit.errors import InputError

EXAMPLES = """\b
Examples:
  hvdkit metrics prune --pushgateway localhost:9091 --older-than 7d    remove old results
  hvdkit metrics targets --port 9400 --ranks 4 > targets.json          for file_sd_configs
  hvdkit metrics alerts --operator | kubectl apply -f -                alerts for the operator
"""
PRUNE_EXAMPLES = """\b
Examples:
  hvdkit metrics prune --pushgateway localhost:9091 --dry-run         what is older than 30 days
  hvdkit metrics prune --pushgateway localhost:9091 --older-than 7d
  hvdkit metrics prune --pushgateway localhost:9091 --job hvdkit_bench --older-than 0s
"""
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
LARGEST_PORT = 65535


@click.group(epilog=EXAMPLES)
def command() -> None:
    """What belongs to Prometheus: old results on a Pushgateway, targets of a local run, alert rules."""


@command.command(epilog=PRUNE_EXAMPLES, short_help="Remove old results from a Pushgateway.")
@click.option("--pushgateway", required=True, metavar="HOST:PORT", help="The Pushgateway, as host:port or URL.")
@click.option("--older-than", default="30d", show_default=True, metavar="AGE", help="As 45m, 12h, 7d or 2w.")
@click.option("--job", metavar="NAME", help="Only groups with this job name.")
@click.option("--dry-run", is_flag=True, help="Say what would be removed, and remove nothing.")
@click.option("--json", "as_json", is_flag=True, help="The result as JSON.")
def prune(pushgateway: str, older_than: str, job: str | None, dry_run: bool, as_json: bool) -> int:
    """Remove old results of hvdkit from a Pushgateway, which forgets nothing by itself.

    Groups that hold a metric of somebody else are left alone.
    """
    from hvdkit.metrics.push import check_address
    from hvdkit.metrics.pushgateway_admin import delete_group, list_groups, old_groups

    url, age = check_address(pushgateway), seconds_of(older_than)
    groups, now = list_groups(url), time.time()
    old = old_groups(groups, now=now, older_than=age, job=job)
    for group in [] if dry_run else old:
        delete_group(url, group)
    kept = len(groups) - len(old)
    if as_json:
        removed = [{"labels": group.labels, "age_seconds": now - group.pushed_at} for group in old]
        click.echo(json.dumps({"version": 1, "dry_run": dry_run, "removed": removed, "kept": kept}, indent=2))
        return 0
    for group in old:
        click.echo(
            f"{'would remove' if dry_run else 'removed'} {group} ({(now - group.pushed_at) / 86400:.1f} days old)"
        )
    click.echo(f"{len(old)} of {len(groups)} groups {'would be removed' if dry_run else 'removed'}, {kept} kept.")
    return 0


@command.command(short_help="Print the targets of a local run for Prometheus.")
@click.option("--port", type=int, required=True, help="As --metrics-port of the run: local rank r listens on PORT + r.")
@click.option("--ranks", type=int, required=True, help="Ranks on this machine.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where Prometheus reaches them.")
def targets(port: int, ranks: int, host: str) -> int:
    """Print the targets of a local run for Prometheus' file_sd_configs."""
    if ranks < 1:
        raise InputError(f"--ranks must be 1 or more, not {ranks}.")
    if not 0 < port <= LARGEST_PORT - ranks + 1:
        raise InputError(f"--port {port} and {ranks} ranks: ports go from 1 to {LARGEST_PORT}.")
    addresses = [f"{host}:{port + rank}" for rank in range(ranks)]
    click.echo(json.dumps([{"targets": addresses, "labels": {"namespace": "local"}}], indent=2))
    return 0


@command.command(short_help="Print the alert rules.")
@click.option("--operator", is_flag=True, help="As a PrometheusRule for the Prometheus operator.")
def alerts(operator: bool) -> int:
    """Print the alert rules: a rule file for Prometheus, or an object for its operator."""
    import yaml

    from hvdkit.metrics.alerts import prometheus_rule, rule_file

    made = prometheus_rule() if operator else rule_file()
    click.echo(yaml.safe_dump(made, sort_keys=False, width=120, allow_unicode=True), nl=False)
    return 0


def seconds_of(age: str) -> float:
    """A duration as 45m or 7d; InputError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", age.strip())
    if match is None:
        raise InputError(f"--older-than '{age}' is no age; say a number and s, m, h, d or w, as 7d.")
    return float(match[1]) * UNITS[match[2]]
