"""Tries thousands of job specs on every backend: each renders to valid objects or is refused by our own error.

    python tests/soak/job_specs.py [--cases 10000] [--seed N]

The specs and the checks are those of tests/unit/test_jobs_render.py, which tries fewer. Counted: how many specs were
rendered and how many refused, so that a run in which nothing gets as far as a manifest does not look like a success.
The exit code is 1 when a spec broke something; hypothesis prints the smallest one.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, seed, settings

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from spec_strategies import fields
from test_jobs_local import test_any_spec_renders_or_is_refused_by_our_error as check_local
from test_jobs_render import test_any_spec_renders_to_valid_objects_or_is_refused_by_our_error as check

from hvdkit.errors import InputError
from hvdkit.jobs import CLUSTER_BACKENDS, LOCAL, render
from hvdkit.jobs.spec import JobSpec

FEWEST_RENDERED = 0.1  # of the specs of a backend; below that the strategies have stopped to test anything


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=10_000, help="Specs for clusters, and as many for this machine.")
    parser.add_argument("--seed", type=int, help="Try the same specs again.  [default: new ones]")
    options = parser.parse_args()
    # Found examples are not kept: each run tries as many new specs as it says.
    chosen = settings(max_examples=options.cases, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    outcomes: Counter[tuple[str, str]] = Counter()

    @chosen
    @given(fields())
    def check_cluster(given_fields: dict[str, Any]) -> None:
        check.hypothesis.inner_test(given_fields)
        outcomes[given_fields["backend"], outcome(given_fields)] += 1

    for test in (check_cluster, chosen(check_local)):
        (test if options.seed is None else seed(options.seed)(test))()
    report(outcomes, options.cases)


def outcome(given_fields: dict[str, Any]) -> str:
    try:
        render(JobSpec(**given_fields))
    except InputError:
        return "refused"
    return "rendered"


def report(outcomes: Counter[tuple[str, str]], cases: int) -> None:
    print(f"{'backend':<12} {'rendered':>8} {'refused':>8}")
    for backend in CLUSTER_BACKENDS:
        rendered, refused = outcomes[backend, "rendered"], outcomes[backend, "refused"]
        print(f"{backend:<12} {rendered:>8,} {refused:>8,}")
        if rendered < FEWEST_RENDERED * (rendered + refused):
            raise SystemExit(f"{backend}: too few specs were rendered for this to mean anything.")
    print(f"{sum(outcomes.values()):,} specs for clusters and {cases:,} for {LOCAL}: none broke anything.")


if __name__ == "__main__":
    main()
