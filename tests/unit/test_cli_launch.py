"""`hvdkit launch` reads the same description of a job as `hvdkit render`; nothing is started here."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from hvdkit import __version__
from hvdkit.cli import launch, render
from hvdkit.errors import EnvironmentProblem, HvdkitError, InputError
from hvdkit.jobs import CLUSTER_BACKENDS

# Something of every kind: numbers, mappings, lists, parts and what only one of the commands could forget.
JOB = ["--name", "train", "--workers", "3", "--env", "A=1", "--cpus", "2", "--gpus", "1", "--nfs", "10.0.0.5:/a:/data"]
JOB += ["--namespace", "team", "--grace", "60", "--label", "team=vision", "--image", "registry/me/train:1"]
FILE = "version: 1\nimage: registry/me/train:2\nenv: {B: '2'}\nprofiles: {gpu: {resources: {gpus: 1}}}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place without a cluster and without the settings of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("HVDKIT_") or name == "KUBECONFIG"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = folder / "kubeconfig"
    file.write_text("apiVersion: v1\nkind: Config\n")
    monkeypatch.setenv("KUBECONFIG", str(file))
    return file


def invoke(command, *arguments: str) -> Result:
    result = CliRunner().invoke(command, arguments, standalone_mode=False)
    if result.exception:
        raise result.exception
    return result


def hvdkit_launch(*arguments: str) -> str:
    return invoke(launch.command, *arguments).stdout


def hvdkit_render(*arguments: str) -> str:
    return invoke(render.command, *arguments).stdout


def plan(*arguments: str) -> dict:
    """What a launch on this machine would start."""
    return json.loads(hvdkit_launch("--dry-run", "--json", *arguments))


def variables(*arguments: str) -> dict[str, str]:
    return {setting["name"]: setting["value"] for setting in plan(*arguments)["settings"]}


def error(kind: type[HvdkitError], *arguments: str) -> str:
    with pytest.raises(kind) as raised:
        hvdkit_launch(*arguments)
    return str(raised.value)


@pytest.mark.parametrize("backend", CLUSTER_BACKENDS)
def test_a_dry_run_prints_what_render_prints(backend: str, folder: Path) -> None:
    words = ("--backend", backend, *JOB, "--", "python", "train.py", "--dry-run")
    assert hvdkit_launch("--dry-run", *words) == hvdkit_render(*words) != ""
    assert hvdkit_launch("--dry-run", "--json", *words) == hvdkit_render("--format", "json", *words)
    (folder / "hvdkit.yaml").write_text(FILE)
    words = ("--backend", backend, "--name", "train", "--profile", "gpu")
    printed = hvdkit_launch("--dry-run", *words)
    assert printed == hvdkit_render(*words) and "registry/me/train:2" in printed and "nvidia.com/gpu: 1" in printed


def test_auto_is_an_mpijob_where_a_cluster_is_configured(cluster: Path) -> None:
    assert hvdkit_launch("--dry-run", "--name", "a") == hvdkit_render("--name", "a", "--backend", "mpijob")
    assert "mpirun" in plan("--backend", "local")["processes"][0]["argv"][0]
    assert "mpirun" in plan("--hosts", "a:2,b")["processes"][0]["argv"][0]


def test_auto_is_this_machine_without_one() -> None:
    assert plan("--workers", "2")["world_size"] == 2
    assert plan("--backend", "auto", "--workers", "2")["world_size"] == 2


def test_a_dry_run_for_a_cluster_imports_no_client_of_it(cluster: Path) -> None:
    code = (
        "import sys\nfrom hvdkit.cli import cli\ncli(['launch', '--dry-run'], standalone_mode=False)\n"
        "print(sorted({'torch', 'kubernetes', 'horovod', 'numpy', 'rich'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert "kind: MPIJob" in result.stdout and result.stdout.splitlines()[-1] == "[]", result.stdout + result.stderr


def test_a_cluster_that_cannot_be_used_is_no_reason_to_run_here(cluster: Path) -> None:
    assert f"{cluster} names no current context" in error(EnvironmentProblem)
    for backend in CLUSTER_BACKENDS:
        assert f"{cluster} names no current context" in error(EnvironmentProblem, "--backend", backend)
    # What is wrong with the job itself comes first.
    assert error(InputError, "--workers", "0").startswith("--workers: 0 is too few")
    assert error(InputError, "--log-dir", "logs").startswith("--log-dir: backend mpijob has no use for it")


@pytest.mark.parametrize("command", [launch.command, render.command])
def test_a_variable_that_looks_like_a_setting_is_named(command, monkeypatch) -> None:
    arguments = ["--backend", "job", "--name", "train", *(["--dry-run"] if command is launch.command else [])]
    before = invoke(command, *arguments)
    monkeypatch.setenv("HVDKIT_WORKRS", "3")
    result = invoke(command, *arguments)
    assert "hvdkit: HVDKIT_WORKRS sets nothing; did you mean HVDKIT_WORKERS?\n" in result.stderr
    assert result.stdout == before.stdout


@pytest.mark.parametrize("arguments", [(), ("--dry-run",), ("--backend", "monarch"), ("--backend", "mpijob")])
def test_a_kubeconfig_that_is_no_file_is_no_reason_to_run_here(folder: Path, arguments: tuple, monkeypatch) -> None:
    for named in (str(folder), f"{folder}/missing:{folder}/neither"):
        monkeypatch.setenv("KUBECONFIG", named)
        assert error(EnvironmentProblem, *arguments).startswith(f"KUBECONFIG: '{named}' names no file; correct it, or")
        assert plan("--backend", "local")["world_size"] == 1
    monkeypatch.setenv("KUBECONFIG", os.devnull)  # says on purpose that there is none
    assert plan()["world_size"] == 1


@pytest.mark.parametrize(
    "flag",
    [
        "--detach",
        "--no-capacity-check",
        "--context=a",
        "--on-interrupt=keep",
        "--save-logs=x",
    ],
)
def test_what_only_a_cluster_has_is_refused_here(flag: str) -> None:
    assert error(InputError, flag).startswith(f"{flag.partition('=')[0]}: backend local on this machine has no use")


def test_monarch_without_a_cluster_says_that_it_would_run_here() -> None:
    result = invoke(launch.command, "--backend", "monarch", "--name", "train", "--dry-run")
    assert result.stdout == hvdkit_render("--backend", "monarch", "--name", "train")
    assert "without --dry-run it runs on this machine" in result.stderr


def test_monarch_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "monarch", None)  # Python's own way to say that there is no such module
    assert "pip install 'hvdkit[monarch]'" in error(EnvironmentProblem, "--backend", "monarch", "--workers", "2")


def test_the_file_and_the_environment_count_here_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "version: 1\nbackend: local\nworkers: 3\nslots: 2\nthreads: 5\nenv: {A: '1'}\ncommand: [python, my.py]\n"
    # One file serves both: what only a cluster can do is not used here.
    for_cluster = "image: registry/me/train:1\nresources: {gpus: 1}\nelastic: {min_workers: 8, max_workers: 9}\n"
    (folder / "hvdkit.yaml").write_text(text + for_cluster)
    found = plan()
    assert found["world_size"] == 6 and found["processes"][0]["argv"][-1] == "my.py"
    monkeypatch.setenv("HVDKIT_WORKERS", "2")
    found = variables("--env", "B=2", "--threads", "1")
    assert [found[name] for name in ("HVDKIT_WORLD_SIZE", "OMP_NUM_THREADS", "A", "B")] == ["4", "1", "1", "2"]


def test_hosts_are_the_workers(folder: Path) -> None:
    assert plan("--hosts", "a:4,b", "--slots", "2")["world_size"] == 6
    (folder / "hvdkit.yaml").write_text("version: 1\nworkers: 8\nslots: 3\n")
    assert plan("--hosts", "a,b:1")["world_size"] == 4
    (folder / "hvdkit.yaml").write_text("version: 1\nhosts: [{name: a, slots: 4}, {name: b}]\n")
    assert plan()["world_size"] == 5
    assert error(InputError, "--workers", "3").startswith("--workers: 3 workers, but --hosts lists 2")


@pytest.mark.parametrize("arguments", [["--backend", "local"], []], ids=["local", "auto"])
@pytest.mark.parametrize(
    "flag",
    [
        ["--image", "a"],
        ["--nfs", "a:/b:/c"],
        ["--gpus", "1"],
        ["--namespace", "team"],
        ["--label", "a=b"],
        ["--generate-name"],
        ["--min-workers", "1", "--max-workers", "2"],
    ],
    ids=lambda flag: flag[0],
)
def test_a_flag_that_means_nothing_here_is_an_error(flag: list[str], arguments: list[str]) -> None:
    sentence = f"{flag[0]}: backend local on this machine has no use for it"
    assert error(InputError, *arguments, *flag).startswith(sentence)


def test_flags_of_horovod_mean_nothing_to_monarch() -> None:
    arguments = ("--backend", "monarch", "--workers", "2")
    assert error(InputError, *arguments, "--autotune").startswith("--autotune: backend monarch on this machine")
    assert error(InputError, *arguments, "--engine", "horovod").startswith("--engine: backend monarch cannot do that")
    assert error(InputError, *arguments, "--hosts", "a,b").startswith("--hosts: backend monarch on this machine")


def test_this_machine_has_no_ddp_but_monarchs(folder: Path) -> None:
    sentence = "engine: backend local starts Horovod ranks; for DDP use --backend monarch, or torchrun."
    assert error(InputError, "--engine", "ddp") == f"--{sentence}"
    (folder / "hvdkit.yaml").write_text("version: 1\nengine: ddp\n")
    assert error(InputError) == f"hvdkit.yaml: {sentence}"


def test_the_timeline_is_a_file_of_this_folder(folder: Path) -> None:
    assert variables("--timeline", "t.json")["HOROVOD_TIMELINE"] == str(folder / "t.json")
    assert error(InputError, "--timeline", ".").startswith("--timeline: '.' is a folder")


def test_explain_says_where_the_settings_of_a_cluster_job_came_from(folder: Path) -> None:
    (folder / "hvdkit.yaml").write_text(FILE)
    rows = {tuple(line.split()) for line in hvdkit_launch("--explain", "--backend", "job", "--slots", "2").splitlines()}
    assert {("slots", "2", "--slots"), ("env.B", '"2"', "hvdkit.yaml"), ("workers", "1", "default")} <= rows


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    done = subprocess.run(["git", "-C", str(folder), *identity, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def origin(text: str) -> dict[str, str]:
    """What the job and its pods say they were made from."""
    (job,) = yaml.safe_load_all(text)
    pod = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]
    found = [part["metadata"].get("annotations", {}) for part in (job, pod)]
    of_job, of_pod = ({key: notes[key] for key in notes if key.startswith("hvdkit.io/")} for notes in found)
    assert of_job == of_pod
    return of_job


MPIJOB = ("--backend", "mpijob", "--name", "train")
VERSION = {"hvdkit.io/version": __version__}


def test_manifests_say_what_they_were_made_from(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert origin(hvdkit_render(*MPIJOB)) == VERSION  # not a checkout
    git(folder, "init", "-q")
    assert origin(hvdkit_render(*MPIJOB)) == VERSION  # no commit yet
    git(folder, "commit", "-q", "--allow-empty", "-m", "first")
    commit = git(folder, "rev-parse", "HEAD")
    (folder / "below").mkdir()
    monkeypatch.chdir(folder / "below")
    for text in (hvdkit_render(*MPIJOB), hvdkit_launch("--dry-run", *MPIJOB)):
        assert origin(text) == VERSION | {"hvdkit.io/git-commit": commit}


def test_a_file_can_say_another_origin_or_none(folder: Path) -> None:
    (folder / "hvdkit.yaml").write_text("version: 1\nprovenance: {git-commit: abc}\n")
    assert origin(hvdkit_render(*MPIJOB)) == VERSION | {"hvdkit.io/git-commit": "abc"}
    (folder / "hvdkit.yaml").write_text("version: 1\nprovenance: {}\n")
    assert origin(hvdkit_render(*MPIJOB)) == {}


def test_without_git_there_is_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert origin(hvdkit_render(*MPIJOB)) == VERSION
