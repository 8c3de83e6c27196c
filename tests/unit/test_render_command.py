"""`hvdkit render`: flags to a manifest that a cluster accepts, and errors that name the flag."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from hvdkit.checks.validate import validate_objects
from hvdkit.checks.validate_finding import ERROR
from hvdkit.cli.job_flags import FLAGS, flag_settings
from hvdkit.cli.render import command
from hvdkit.config.settings import make_spec
from hvdkit.errors import InputError
from hvdkit.jobs import CLUSTER_BACKENDS
from hvdkit.jobs.policy import Elastic
from hvdkit.jobs.volumes import Nfs, Volume

NFS = ("--nfs", "10.0.0.5:/exports/data:/data")


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place without the settings of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("HVDKIT_")]:
        monkeypatch.delenv(name)
    return tmp_path


def render(*arguments: str) -> str:
    result = CliRunner().invoke(command, [*arguments], standalone_mode=False)
    if result.exception:
        raise result.exception
    return result.output


def pods(value: object) -> list[dict]:
    """Every pod's spec in some objects, wherever a kind keeps it."""
    if isinstance(value, list):
        return [pod for member in value for pod in pods(member)]
    if not isinstance(value, dict):
        return []
    return [value] if "containers" in value else [pod for member in value.values() for pod in pods(member)]


@pytest.mark.parametrize("backend", CLUSTER_BACKENDS)
def test_nfs_is_on_every_pod_of_a_valid_manifest(backend: str) -> None:
    objects = list(yaml.safe_load_all(render("--backend", backend, "--workers", "4", *NFS)))
    assert [finding for finding in validate_objects(objects) if finding.severity == ERROR] == []
    found = pods(objects)
    assert len(found) >= (2 if backend in ("mpijob", "pytorchjob", "monarch") else 1)
    for pod in found:
        volume = next(volume for volume in pod["volumes"] if "nfs" in volume)
        assert volume["nfs"]["server"] == "10.0.0.5" and volume["nfs"]["path"] == "/exports/data"
        for container in pod["containers"]:
            assert {"name": volume["name"], "mountPath": "/data"} in container["volumeMounts"]


def test_the_whole_command_and_validate_fit_together() -> None:
    hvdkit = [sys.executable, "-m", "hvdkit"]
    arguments = ["render", "--backend", "mpijob", "--workers", "4", *NFS]
    rendered = subprocess.run([*hvdkit, *arguments], capture_output=True, text=True, timeout=120, check=True)
    checked = subprocess.run([*hvdkit, "validate", "-"], input=rendered.stdout, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "1 object in 1 file: no errors" in checked.stdout


def test_json_and_yaml_say_the_same_and_a_file_gets_what_would_be_printed(empty_folder: Path) -> None:
    arguments = ("--backend", "indexed-job", "--name", "train")
    as_yaml = render(*arguments)
    assert json.loads(render(*arguments, "--format", "json"))["items"] == list(yaml.safe_load_all(as_yaml))
    assert render(*arguments, "-o", "job.yaml") == ""
    assert (empty_folder / "job.yaml").read_text() == as_yaml


def test_a_job_without_a_name_gets_one_of_its_own() -> None:
    names = {yaml.safe_load(render("--backend", "mpijob"))["metadata"]["name"] for _ in range(3)}
    assert len(names) == 3 and all(name.startswith("train-") and len(name) == 11 for name in names)


def test_the_cluster_may_finish_the_name() -> None:
    jobs = [made for made in yaml.safe_load_all(render("--backend", "job", "--generate-name")) if made["kind"] == "Job"]
    assert jobs[0]["metadata"]["generateName"] == "train-"


def test_flags_become_fields() -> None:
    given = {
        "workers": 3,
        "env": ("A=1=2", "B="),
        "nfs": ("[fd00::5]:/exports:/data:ro",),
        "pvc": ("claim:/code",),
        "min_workers": 2,
        "max_workers": 4,
        "autotune": True,
        "queue": "null",
    }
    spec = make_spec(flag_settings(given, ("python", "-c", "null")), name="train")
    assert spec.scheduling.queue == "null" and spec.workers == 3 and spec.env == {"A": "1=2", "B": ""} and spec.autotune
    assert spec.volumes == (
        Volume(mount="/data", nfs=Nfs(server="fd00::5", path="/exports"), read_only=True),
        Volume(mount="/code", pvc="claim"),
    )
    assert spec.elastic == Elastic(min_workers=2, max_workers=4)
    assert spec.command == ("python", "-c", "null")


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.option)
def test_every_flag_has_a_field(flag) -> None:
    """Whatever the flag is given, its field is what the setting is called."""
    value = True if flag.type is bool else 1 if flag.type is int else flag.type[0] if flag.type is not str else "a"
    if flag.many:
        value = {"--nfs": ("a:/b:/c",), "--pvc": ("a:/b",)}.get(flag.option, ("a=b",))
    settings = flag_settings({flag.parameter: value})
    assert [setting.source for setting in settings] == [flag.option]
    assert settings[0].name.startswith(flag.path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--workers", "0"], "--workers: 0 is too few"),
        (["--cpus", "4GB"], "--cpus: '4GB' is not an amount"),
        (["--env", "A"], "--env: 'A' has no '='; write --env KEY=VALUE."),
        (["--env", "1A=x"], "--env: '1A' is not a variable name"),
        (["--nfs", "10.0.0.5:/data"], "--nfs: '10.0.0.5:/data' is not server:/export:/mount"),
        (["--nfs", "10.0.0.5:exports:/data"], "--nfs: 'exports' is not an absolute path"),
        (["--nfs", "10.0.0.5:/exports:data"], "--nfs: 'data' is not an absolute path"),
        (["--pvc", "claim"], "--pvc: 'claim' is not CLAIM:/mount"),
        (["--min-workers", "1"], "--min-workers: elastic.max_workers: it is missing, and elastic needs it."),
        (["--min-workers", "3", "--max-workers", "2"], "--min-workers: 3 is more than max_workers, 2."),
        (["--config", "none.yaml"], "--config: there is no file none.yaml."),
        (["--independent"], "--independent: backend mpijob cannot do that"),
        (["--name", "A b"], "--name: 'A b' is not a DNS label"),
        (["--profile", "gpu"], "--profile gpu: profiles stand in hvdkit.yaml, and there is none in this folder."),
    ],
)
def test_an_error_names_the_flag(arguments: list[str], sentence: str) -> None:
    with pytest.raises(InputError) as error:
        render("--backend", "mpijob", *arguments)
    assert str(error.value).startswith(sentence)


def test_this_machine_has_no_manifest() -> None:
    with pytest.raises(InputError, match=r"^--backend: 'local' has no manifest; use one of mpijob, "):
        render("--backend", "local")
    with pytest.raises(InputError, match=r"^backend: 'local' has no manifest"):
        render()
