"""tests/e2e/prometheus_server.py on a machine without lists of packages; apt is made up."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "e2e"))
import prometheus_server

APT = """#!/bin/sh
echo "$1" >> "$LOG"
case $1 in
    update) : > "$LOG.lists" ;;
    download) [ -e "$LOG.lists" ] || exit 100; shift 2; for name; do : > "$name.deb"; done ;;
esac
"""


def test_lists_that_are_missing_are_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = {"apt-get": APT, "dpkg-deb": '#!/bin/sh\necho "$2" >> "$LOG"\n'}
    for name, script in programs.items():
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)
    log = tmp_path / "log"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LOG", str(log))
    monkeypatch.setenv("HVDKIT_CACHE_DIR", str(tmp_path / "cache"))
    prometheus_server.fetch()
    calls = log.read_text().splitlines()
    assert calls[:3] == ["download", "update", "download"]
    assert sorted(calls[3:]) == [
        str(tmp_path / "cache/debian-prometheus" / name)
        for name in ("prometheus-pushgateway.deb", "prometheus.deb")
    ]
