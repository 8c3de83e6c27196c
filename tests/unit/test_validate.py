"""`hvdkit validate`: each broken manifest fails with its sentence, correct ones and the operators' own pass."""

import gzip
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from hvdkit.checks.validate import ERROR, NOTE, WARNING, validate_files, validate_objects
from hvdkit.checks.validate_catalog import CUSTOM_KINDS, FOLDER
from hvdkit.cli import cli

HERE = Path(__file__).parent
BROKEN = sorted((HERE / "broken_manifests").glob("*.yaml"))
CORRECT = sorted((HERE / "correct_manifests").glob("*.yaml"))
GOLDEN = sorted((HERE / "golden").glob("*.yaml"))
UPSTREAM = sorted((HERE / "upstream_examples").glob("*.yaml"))
EXPECTATION = re.compile(r"# expect: (error|warning) in line (\d+): (.*)")


def validate(*arguments: str, text: str | None = None):
    return CliRunner().invoke(cli, ["validate", *arguments], input=text, standalone_mode=False)


def load(name: str) -> str:
    return (HERE / "correct_manifests" / f"{name}.yaml").read_text()


def test_there_is_something_to_test() -> None:
    assert len(BROKEN) >= 30 and len(GOLDEN) >= 20 and len(CORRECT) >= 8 and len(UPSTREAM) >= 9


@pytest.mark.parametrize("file", BROKEN, ids=lambda file: file.stem)
def test_a_broken_manifest_fails_with_exactly_its_sentence(file: Path) -> None:
    severity, line, sentence = EXPECTATION.fullmatch(file.read_text().splitlines()[0]).groups()
    findings = validate_files([str(file)]).findings
    assert [(each.severity, each.line or 0, str(each)) for each in findings] == [(severity, int(line), sentence)]
    assert findings[0].way_out
    assert validate("--strict", str(file)).return_value == 1


@pytest.mark.parametrize("file", CORRECT, ids=lambda file: file.stem)
def test_a_correct_manifest_passes_without_a_word(file: Path) -> None:
    assert validate_files([str(file)]).findings == []


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: file.stem)
def test_what_hvdkit_renders_passes(file: Path) -> None:
    findings = validate_files([str(file)]).findings
    # Only generateName is worth a note: it is asked for, and needs `kubectl create`.
    assert [str(each) for each in findings if each.severity != NOTE] == []


@pytest.mark.parametrize("file", UPSTREAM, ids=lambda file: file.stem)
def test_the_operators_own_examples_pass(file: Path) -> None:
    report = validate_files([str(file)])
    assert report.objects == 1
    assert [str(each) for each in report.findings if each.severity == ERROR] == []


def test_what_is_wanting_in_the_operators_examples_is_said() -> None:
    findings = validate_files([str(HERE / "upstream_examples" / "tensorflow-benchmarks.yaml")]).findings
    assert [each.path for each in findings] == [
        "spec.mpiReplicaSpecs.Launcher.template.spec",
        "spec.mpiReplicaSpecs.Worker.template.spec.volumes",
    ]
    # Its image waits for the workers by itself.
    assert validate_files([str(HERE / "upstream_examples" / "pi-intel.yaml")]).findings == []


@pytest.mark.parametrize("notice", [FOLDER / "NOTICE", HERE / "upstream_examples" / "NOTICE"], ids=["schemas", "tests"])
def test_files_of_others_are_unmodified_and_named_in_the_notice(notice: Path) -> None:
    sums = dict(reversed(line.split()) for line in notice.read_text().splitlines() if re.match(r"[0-9a-f]{64}  ", line))
    ours = {"NOTICE", "monarch.pytorch.org_monarchmeshes.yaml"}
    assert sums.keys() == {file.name for file in notice.parent.iterdir()} - ours
    for name, expected in sums.items():
        content = (notice.parent / name).read_bytes()
        content = gzip.decompress(content) if name.endswith(".gz") else content
        assert hashlib.sha256(content).hexdigest() == expected, name


def test_every_custom_kind_has_its_file() -> None:
    assert {FOLDER / file for file in CUSTOM_KINDS.values()} == set(FOLDER.glob("*.yaml"))


class TestObjects:
    """The function that other parts of hvdkit call."""

    def job(self, **changes: object) -> dict:
        pod = {"restartPolicy": "Never", "containers": [{"name": "a", "image": "example.org/a:1"}]} | changes
        spec = {"template": {"spec": pod}}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a"}, "spec": spec}

    def test_good_objects_give_nothing(self) -> None:
        assert validate_objects([self.job()]) == []

    def test_a_finding_names_the_object_and_its_place(self) -> None:
        broken = self.job(hostNetworks=True) | {"metadata": {"name": "b", "namespace": "n"}}
        (finding,) = validate_objects([self.job(), broken])
        assert (finding.document, finding.object, finding.line, finding.file) == (2, "Job n/b", None, "")
        assert str(finding) == "spec.template.spec.hostNetworks: unknown field; did you mean 'hostNetwork'?"

    @pytest.mark.parametrize(
        ("level", "problems"),
        [
            (None, []),
            ("privileged", []),
            ("baseline", ["volumes[0].hostPath"]),
            ("restricted", ["volumes[0].hostPath", "containers[0].securityContext"]),
        ],
    )
    def test_pod_security(self, level: str | None, problems: list[str]) -> None:
        job = self.job(volumes=[{"name": "a", "hostPath": {"path": "/a"}}])
        findings = validate_objects([job], pod_security=level)
        assert [each.path.removeprefix("spec.template.spec.") for each in findings] == problems

    def test_a_namespace_of_the_input_says_more_than_the_flag(self) -> None:
        labels = {"pod-security.kubernetes.io/enforce": "privileged"}
        namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n", "labels": labels}}
        job = self.job(hostNetwork=True)
        job["metadata"]["namespace"] = "n"
        assert validate_objects([namespace, job], pod_security="restricted") == []
        assert validate_objects([job], pod_security="restricted") != []

    def test_the_same_object_twice_is_fine_and_a_changed_one_is_not(self) -> None:
        assert validate_objects([self.job(), self.job()]) == []
        (finding,) = validate_objects([self.job(), self.job(hostname="x")])
        assert finding.document == 2 and "already defined, differently, in object 1" in finding.sentence

    def test_hvdkits_launcher_waits_for_the_workers(self) -> None:
        import yaml

        job = yaml.safe_load(load("mpijob"))
        del job["spec"]["launcherCreationPolicy"]
        launcher = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]
        assert [each.severity for each in validate_objects([job])] == [WARNING]
        launcher["command"] = ["python", "-m", "hvdkit.runtime.mpijob_launcher"]
        assert validate_objects([job]) == []

    @pytest.mark.parametrize(
        ("command", "complains"),
        [
            (["mpirun", "-n", "3", "python", "a.py"], True),
            (["/opt/openmpi/bin/mpirun", "--np=3", "python"], True),
            (["sh", "-c", "set -e\nexec horovodrun --num-proc 3 python a.py # all"], True),
            (["sh", "-c", "it's half a quotation; mpirun -np 3 python"], True),
            (["mpirun", "-x", "PYTHONPATH", "-np", "2", "python", "a.py", "-n", "3"], False),
            (["mpirun", "python", "a.py", "-n", "3"], False),
            (["mpirun", "-np", "$(RANKS)", "python"], False),
            (["mpirun", "-np", "3", "--oversubscribe", "python"], False),
            (["mpirun", "-np", "3", "-H", "a:3", "python"], False),
            (["python", "a.py", "-np", "3"], False),
            (["mpirun", "-np"], False),
        ],
    )
    def test_the_number_of_ranks_is_read_from_command_lines(self, command: list[str], complains: bool) -> None:
        import yaml

        job = yaml.safe_load(load("mpijob"))
        job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"][0]["command"] = command
        assert [each.sentence.split(",")[0] for each in validate_objects([job])] == ["3 ranks asked for"] * complains

    def test_a_launcher_that_works_counts_as_a_worker(self) -> None:
        import yaml

        job = yaml.safe_load(load("mpijob"))
        job["spec"]["runLauncherAsWorker"] = True
        (finding,) = validate_objects([job])
        assert finding.sentence.startswith("2 ranks asked for, but 3 workers x 1 slot = 3")

    def test_generate_name_is_noted(self) -> None:
        (finding,) = validate_objects([self.job() | {"metadata": {"generateName": "a-"}}])
        assert finding.severity == NOTE and "kubectl create" in finding.way_out

    def test_members_of_typed_lists_need_no_kind(self) -> None:
        pod = {"metadata": {"name": "a"}, "spec": {"containers": [{"name": "a", "image": "a", "imag": 1}]}}
        (finding,) = validate_objects([{"apiVersion": "v1", "kind": "PodList", "items": [pod]}])
        assert str(finding) == "items[0].spec.containers[0].imag: unknown field; did you mean 'image'?"


class TestCommand:
    def test_findings_for_people(self, tmp_path: Path) -> None:
        file = tmp_path / "a.yaml"
        file.write_text(load("monarchmesh").replace("port", "x").replace("replicas: 2", "replicas: 0"))
        result = validate(str(file))
        assert result.return_value == 1
        assert result.output.splitlines() == [
            f"{file}:6: error: MonarchMesh mesh1: spec.replicas: must be at least 1, not 0",
            "  -> write a larger number",
            "1 object in 1 file: 1 error, no warnings.",
        ]

    def test_warnings_fail_only_when_asked_to(self) -> None:
        file = str(HERE / "broken_manifests" / "mpijob_dns_race.yaml")
        assert validate(file).return_value == 0
        assert validate("--strict", file).return_value == 1

    def test_json(self) -> None:
        result = validate("--json", *map(str, BROKEN[:3]), str(CORRECT[0]))
        document = json.loads(result.output)
        assert document["version"] == 1 and document["files"] == 4 and document["errors"] == 3
        assert document["findings"][0].keys() == {
            *("severity", "file", "document", "line", "object", "path", "sentence", "way_out")
        }

    def test_a_folder_with_other_things_in_it(self, tmp_path: Path) -> None:
        (tmp_path / "deep").mkdir()
        (tmp_path / "deep" / "mesh.yml").write_text(load("monarchmesh"))
        (tmp_path / "deep" / "job.json").write_text(json.dumps(TestObjects().job()))
        (tmp_path / "kustomization.yaml").write_text("resources: [deep/mesh.yml]\n")
        (tmp_path / "hvdkit.yaml").write_text("version: 1\nworkers: 4\n")
        (tmp_path / "nothing.yaml").write_text("---\n# nothing\n---\n")
        (tmp_path / "README.md").write_text("{{{")
        result = validate(str(tmp_path))
        assert result.return_value == 0
        assert result.output.splitlines() == [
            f"{tmp_path}/hvdkit.yaml:1: note: skipped: not a manifest, it has neither apiVersion nor kind",
            f"{tmp_path}/kustomization.yaml: note: skipped: kustomize reads it, a cluster never does",
            "  -> 'kustomize build … | hvdkit validate -' checks its result",
            f"{tmp_path}/nothing.yaml: warning: holds no object",
            "  -> take it out or fill it: 'kubectl apply' refuses it",
            "2 objects in 5 files: no errors, 1 warning.",
        ]
        # Named by the user it has to be a manifest.
        assert validate(str(tmp_path / "hvdkit.yaml")).return_value == 1

    def test_standard_input(self) -> None:
        result = validate("-", text=load("pytorchjob").replace("torchrun", "mpirun"))
        assert (result.return_value, result.output) == (0, "1 object in 1 file: no errors, no warnings.\n")
        assert "<stdin>:1: error" in validate("-", text="a: [").output

    def test_the_same_name_in_two_files_is_a_warning(self, tmp_path: Path) -> None:
        for name, replicas in ("a", 1), ("b", 2):
            (tmp_path / f"{name}.yaml").write_text(load("monarchmesh").replace("replicas: 2", f"replicas: {replicas}"))
        findings = validate_files([str(tmp_path)]).findings
        assert [(each.severity, Path(each.file).name) for each in findings] == [(WARNING, "b.yaml")]
        assert f"{tmp_path}/a.yaml:4" in findings[0].sentence

    def test_of_variants_in_a_folder_the_one_in_the_same_file_counts(self, tmp_path: Path) -> None:
        (tmp_path / "a.yaml").write_text(load("indexed_job"))
        other = load("indexed_job").replace("batch.kubernetes.io/job-name: train", "app: other")
        (tmp_path / "b.yaml").write_text(other)
        findings = validate_files([str(tmp_path)]).findings
        assert [Path(each.file).name for each in findings if each.severity == ERROR] == ["b.yaml"]

    @pytest.mark.parametrize("content", [b"\x7fELF\x02\x01\x01\x00\x00", b"\xff\xfea\x00p\x00i\x00", b"kind: \x80"])
    def test_a_file_that_is_no_text(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "a.yaml").write_bytes(content)
        result = validate(str(tmp_path / "a.yaml"))
        assert result.return_value == 1
        assert result.output.startswith(f"{tmp_path}/a.yaml: error: not a text file\n  -> ")

    def test_pod_security_flag(self) -> None:
        file = str(HERE / "correct_manifests" / "indexed_job.yaml")
        assert validate(file).return_value == 0
        output = validate("--pod-security", "restricted", file).output
        assert "lacks runAsNonRoot: true, allowPrivilegeEscalation" in output

    def test_an_unreadable_file_is_unusable_input(self, tmp_path: Path) -> None:
        (tmp_path / "gone.yaml").symlink_to(tmp_path / "nowhere")
        (tmp_path / "empty").mkdir()
        unusable = {
            str(tmp_path / "no.yaml"): "no.yaml cannot be read: No such file or directory. Name a file, a folder or -",
            str(tmp_path): "gone.yaml cannot be read: No such file or directory.",
            str(tmp_path / "empty"): "holds no *.yaml, *.yml, *.json file.",
            "/dev/zero": "/dev/zero is larger than 64 MiB, so it is no manifest.",
        }
        for path, sentence in unusable.items():
            result = subprocess.run([sys.executable, "-m", "hvdkit", "validate", path], capture_output=True, text=True)
            assert result.returncode == 2 and result.stdout == ""
            assert result.stderr.startswith("hvdkit: ") and sentence in result.stderr

    def test_help_and_other_commands_do_not_import_it(self) -> None:
        code = (
            "import sys\nfrom hvdkit.cli import cli\n"
            "cli(['validate', '--help'], standalone_mode=False)\n"
            "print(sorted(name for name in sys.modules if 'checks' in name or name == 'yaml'))"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert result.stdout.splitlines()[-1] == "[]"
