"""`hvdkit image`: names, command lines and what goes into a build. That the images work is tested in tests/e2e."""

import json
import re
import runpy
from pathlib import Path

import pytest
from click.testing import CliRunner

from hvdkit import __version__
from hvdkit.cli.image import command
from hvdkit.config.settings import DEFAULTS
from hvdkit.errors import EnvironmentProblem, HvdkitError
from hvdkit.horovod_wheel import cache, changes
from hvdkit.images import builders, own
from hvdkit.images.user import needs_files, user_build

REPOSITORY = Path(__file__).parents[2]
DOCKERFILE = (REPOSITORY / "images/Dockerfile").read_text()


# What a builder of today answers to `build --help`, in the part that matters.
KNOWS_CONTEXTS = '[ "$1 $2" = "build --help" ] && { echo "--build-context stringArray"; exit 0; }'


def program(folder: Path, name: str, script: str, *, knows: str = KNOWS_CONTEXTS) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{knows}\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it but what a test puts there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("HVDKIT_CACHE_DIR", str(tmp_path / "cache"))
    return folder


def invoke(*arguments: str):
    return CliRunner().invoke(command, arguments)


def value_after(words: list[str], flag: str) -> list[str]:
    return [words[index + 1] for index, word in enumerate(words) if word == flag]


def test_the_image_that_jobs_use_by_default_is_the_one_that_is_built() -> None:
    assert own.image_names("worker")[0] == DEFAULTS["image"]
    assert own.image_names("worker")[1] == "hvdkit-worker:latest"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"target": "worker", "cuda": True}, [f"hvdkit-worker:{__version__}-cuda", "hvdkit-worker:latest-cuda"]),
        ({"target": "launcher", "cuda": True}, [f"hvdkit-launcher:{__version__}", "hvdkit-launcher:latest"]),
        ({"target": "worker", "tag": "1"}, ["hvdkit-worker:1"]),
        ({"target": "worker", "registry": "example.com/team/", "tag": "x"}, ["example.com/team/hvdkit-worker:x"]),
    ],
)
def test_names(arguments: dict, expected: list[str]) -> None:
    assert own.image_names(**arguments) == expected


def test_a_client_without_its_daemon_is_passed_over(only: Path) -> None:
    program(only, "docker", "echo 'Cannot connect to the Docker daemon. Is it running?' >&2; exit 1")
    program(only, "podman", "exit 0")
    assert builders.find() == "podman"
    with pytest.raises(EnvironmentProblem, match="--builder docker cannot be used: Cannot connect to the Docker"):
        builders.find("docker")


def test_a_builder_that_is_too_old_is_passed_over(only: Path) -> None:
    """docker before 23, or without buildx: its own help lists no --build-context."""
    program(only, "docker", "echo 'Usage: docker build [OPTIONS] PATH'", knows="")
    program(only, "podman", "exit 0")
    assert builders.find() == "podman"
    sentence = "--builder docker cannot be used: it is too old, its build has no --build-context."
    with pytest.raises(EnvironmentProblem, match=f"^{re.escape(sentence)}$"):
        builders.find("docker")


def test_without_a_builder_all_three_are_named(only: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="docker: not installed; podman: not installed; buildah: not inst"):
        builders.find()


@pytest.mark.parametrize("builder", builders.PROBES)
def test_the_command_line_of_each_builder(only: Path, builder: str) -> None:
    program(only, builder, "exit 0")
    flags = ("--target=worker", "--cuda", "--base=debian:13", "--builder-arg=--no-cache", "--push", "--dry-run")
    result = invoke("build", *flags)
    assert result.exit_code == 0, result.output
    build, *pushes = (line.split() for line in result.output.splitlines())
    names = own.image_names("worker", cuda=True)
    assert build[:2] == [builder, "build"]
    assert value_after(build, "--tag") == names
    arguments = value_after(build, "--build-arg")
    assert arguments[:3] == ["BASE=debian:13", "DEVICE=cuda", "NVIDIA_VISIBLE_DEVICES=all"]
    assert f"VERSION={__version__}" in arguments
    for argument in arguments:  # one that the Dockerfile does not know would be dropped without a word
        assert re.search(rf"^ARG (.* )?{argument.partition('=')[0]}\b", DOCKERFILE, re.MULTILINE), argument
    assert build[-2:] == ["--no-cache", str(REPOSITORY)]
    assert ("--layers" in build) == (builder != "docker")
    assert pushes == [[builder, "push", name] for name in names]


def test_both_images_are_built_and_the_result_is_told(only: Path) -> None:
    program(only, "buildah", 'echo "STEP 1/2: FROM scratch"; echo "$@" >> "$0.log"')
    result = invoke("build", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)["images"]
    assert [image["names"][0] for image in told] == [own.image_names(one)[0] for one in own.TARGETS]
    calls = (only / "buildah.log").read_text().splitlines()
    assert [re.search(r"--target (\w+)", call)[1] for call in calls[1:]] == ["launcher", "worker"]  # the first: version


def test_a_failed_build_shows_the_end_of_its_output_and_keeps_all_of_it(only: Path, tmp_path: Path) -> None:
    program(only, "buildah", '[ "$1" = version ] || { echo "first line"; echo "E: no such package"; exit 100; }')
    result = invoke("build", "--target=launcher")
    assert isinstance(result.exception, HvdkitError)
    assert "buildah ended with code 100" in str(result.exception)
    assert "E: no such package" in result.stderr
    log = Path(str(result.exception).rpartition("the full log is ")[2])
    assert log.is_relative_to(tmp_path) and "first line" in log.read_text()


def store_wheel(tmp_path: Path, key: str, **facts) -> None:
    wheel = tmp_path / f"horovod-{key}.whl"
    wheel.write_bytes(key.encode())
    log = tmp_path / "log"
    log.touch()
    with cache.locked(key, print):
        cache.store(key, wheel, log, {"target": {"recipe": changes.digest(), "cuda": None, **facts}})


def test_only_wheels_of_this_recipe_and_device_go_into_a_build(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HVDKIT_CACHE_DIR", str(tmp_path / "cache"))
    store_wheel(tmp_path, "right")
    store_wheel(tmp_path, "nccl", cuda={"version": "13.2"})
    store_wheel(tmp_path, "older", recipe="another")
    store_wheel(tmp_path, "damaged")
    (cache.root() / "damaged/horovod-damaged.whl").write_bytes(b"cut")
    for cuda, name in ((False, "right"), (True, "nccl")):
        folder = tmp_path / f"for-{name}"
        assert own.collect_wheels(folder, cuda=cuda) == [name]
        files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))
        assert files == [f"{name}/build.json", f"{name}/horovod-{name}.whl"]


def test_an_installation_without_sources_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentProblem, match="run this in a clone of hvdkit"):
        own.own_build("worker", wheels=tmp_path, names=["x"], source=tmp_path)


@pytest.mark.parametrize("target", own.TARGETS)
def test_what_the_dockerfile_copies_is_let_into_the_context(target: str) -> None:
    assert f" AS {target}\n" in DOCKERFILE
    allowed = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copies = [line.split()[1:-1] for line in DOCKERFILE.splitlines() if re.match("COPY (?!--from)", line)]
    copied = {word for words in copies for word in words}
    assert {word.split("/")[0] for word in copied} == allowed
    assert all((REPOSITORY / word).exists() for word in copied)


def test_the_lists_of_packages_are_what_setup_cfg_and_the_packages_themselves_ask_for() -> None:
    worked_out = runpy.run_path(str(REPOSITORY / "images/requirements.py"))["lists"]()
    for name, packages in worked_out.items():
        written = (REPOSITORY / f"images/packages/{name}.txt").read_text().split()
        assert written == sorted(packages), f"run: python images/requirements.py ({name}.txt)"


def test_every_package_left_out_is_taken_from_the_list_of_torch_too() -> None:
    left_out = runpy.run_path(str(REPOSITORY / "images/requirements.py"))["LEFT_OUT"]
    lines = re.search(r"Requires-Dist: \(([^)]+)\)", DOCKERFILE)[1].split("|")
    extras = re.search(r"s/,\(([^)]+)\)", DOCKERFILE)[1].split("|")
    assert sorted([*lines, *(f"nvidia-{extra}" for extra in extras)]) == sorted(left_out)


def test_a_project_with_requirements(tmp_path: Path) -> None:
    project, folder = tmp_path / "project", tmp_path / "build"
    project.mkdir()
    folder.mkdir()
    plain = user_build(project, image="me/train:1", base="base:1", folder=folder)
    assert plain.dockerfile.read_text() == (
        "FROM base:1\nUSER 0\nCOPY --chown=1000:1000 . /workspace\nUSER 1000:1000\n"
    )
    assert plain.ignore_file is not None and ".git" in plain.ignore_file.read_text().splitlines()
    assert "--ignorefile" in builders.build_command("podman", plain)
    # docker has no such flag: it looks for this name
    assert "--ignorefile" not in builders.build_command("docker", plain)
    assert plain.ignore_file.name == f"{plain.dockerfile.name}.dockerignore"

    (project / "requirements.txt").write_text("einops\n")
    (project / ".dockerignore").write_text("data\n")
    full = user_build(project, image="me/train:1", base="base:1", folder=folder)
    text = full.dockerfile.read_text()
    assert text.index("pip install --constraint") < text.index("COPY --chown"), "code changes keep the packages' layer"
    assert full.ignore_file is None

    (project / "requirements.txt").write_text("einops\n-r base.txt\n")
    text = user_build(project, image="me/train:1", base="base:1", folder=folder).dockerfile.read_text()
    assert text.index("COPY --chown") < text.index("cd /workspace && pip install"), "pip needs base.txt"
    assert text.endswith("--requirement requirements.txt\nUSER 1000:1000\n")


@pytest.mark.parametrize(
    ("line", "needs"),
    [
        ("einops==0.8  # see docs/a.md", False),
        ("--no-index", False),
        ("--extra-index-url https://example.com/simple", False),
        ("--find-links /links", False),
        ("--find-links=https://example.com/wheels", False),
        ("https://example.com/a-1.0-py3-none-any.whl", False),
        ("git+https://example.com/a.git@main", False),
        ("a @ https://example.com/a.whl", False),
        ("-r base.txt", True),
        ("-rbase.txt", True),
        ("--requirement=base.txt", True),
        ("-c pins.txt", True),
        ("--constraint pins.txt", True),
        ("-e .", True),
        ("--editable ./lib", True),
        (".", True),
        ("./lib", True),
        ("  lib/", True),
        ("wheels/a-1.0-py3-none-any.whl", True),
        (".[train]", True),
        ("-f wheels", True),
        ("--find-links wheels", True),
        ("file:lib", True),
        ("a @ file:///workspace/lib", True),
    ],
)
def test_requirements_that_need_other_files_are_known(line: str, needs: bool) -> None:
    assert needs_files(f"einops\n{line}\ntqdm\n") == needs


def test_secrets_stay_out_of_a_project_that_does_not_say_what_does(tmp_path: Path) -> None:
    made = user_build(tmp_path, image="x", base="y", folder=tmp_path)
    lines = made.ignore_file.read_text().splitlines()
    assert {"**/.env", "**/*.pem", "**/id_rsa*", "**/id_ed25519*", "**/.netrc", "**/kubeconfig"} <= set(lines)


@pytest.mark.parametrize("project", ["missing", __file__])
def test_a_project_that_is_no_folder(project: str) -> None:
    result = invoke("user", "--image=x", project)
    assert result.exit_code == 2
    assert project in result.stderr
