"""hvdkit.yaml, HVDKIT_* and flags: who wins, where a value came from, and what a mistake is told."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from golden_specs import GOLDEN

from hvdkit.cli.config import command, plain
from hvdkit.config.environment import likely_typos, read_environment, variables
from hvdkit.config.file import parse, read_file, settings_in
from hvdkit.config.load import load_settings
from hvdkit.config.reading import build
from hvdkit.config.settings import Setting, all_settings, declared_defaults, find, make_spec, merge, settings_of
from hvdkit.errors import InputError
from hvdkit.jobs.policy import Elastic
from hvdkit.jobs.spec import JobSpec

FILE = """
version: 1
backend: mpijob
workers: 2
env: {A: from the file, B: 1e3, C: yes}
pull_secrets: [one, two]
elastic: {min_workers: 1, max_workers: 4}
profiles:
  gpu:
    slots: 8
    resources: {gpus: 8, cpus: 1.10}
    env: {A: from the profile}
  fixed:
    elastic: null
"""


def spec_of(settings: list[Setting]) -> JobSpec:
    return make_spec(settings, name="train")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a hvdkit.yaml, which is the current one."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("HVDKIT_")]:
        monkeypatch.delenv(name)
    (tmp_path / "hvdkit.yaml").write_text(FILE)
    return tmp_path


def test_flags_win_over_environment_over_profile_over_file(folder: Path) -> None:
    flags = settings_of({"workers": 4, "env": {"D": "flag"}}, "--workers")
    environment = {"HVDKIT_WORKERS": "3", "HVDKIT_SLOTS": "16", "HVDKIT_PROFILE": "gpu", "HVDKIT_PULL_SECRETS": "[x]"}
    settings = load_settings(flags, environment | {"HVDKIT_RESOURCES_GPUS": "16"})
    spec = spec_of(settings)
    assert (spec.workers, spec.slots, spec.resources.gpus) == (4, 16, 16)
    assert spec.env == {"A": "from the profile", "B": "1e3", "C": "yes", "D": "flag"}
    assert spec.pull_secrets == ("x",)
    sources = {setting.name: setting.source for setting in settings}
    assert sources["workers"] == "--workers"
    assert sources["slots"] == "HVDKIT_SLOTS"
    assert sources["resources.cpus"] == sources["env.A"] == "hvdkit.yaml (profile gpu)"
    assert sources["env.B"] == sources["backend"] == "hvdkit.yaml"


def test_text_stays_text(folder: Path) -> None:
    assert spec_of(read_file(folder / "hvdkit.yaml", "gpu")).resources.cpus == "1.10"


def test_null_in_quotes_is_a_word() -> None:
    document = parse("version: 1\nenv: {A: 'null', B: ''}\nqueue: &q null", "hvdkit.yaml")
    assert document == {"version": "1", "env": {"A": "null", "B": ""}, "queue": None}


def test_null_takes_a_whole_part_away(folder: Path) -> None:
    file = folder / "hvdkit.yaml"
    assert spec_of(read_file(file, None)).elastic == Elastic(min_workers=1, max_workers=4)
    assert spec_of(read_file(file, "fixed")).elastic is None


def test_a_rank_does_not_take_its_own_world_for_settings() -> None:
    rank = {"HVDKIT_WORLD_SIZE": "4", "HVDKIT_HOSTS": "2", "HVDKIT_BACKEND": "mpijob"}
    assert read_environment(rank) == []
    assert read_environment({"HVDKIT_JOB": "train", "HVDKIT_BACKEND": "job"}) == []  # a pod of independent ones
    assert [setting.name for setting in read_environment({"HVDKIT_BACKEND": "mpijob"})] == ["backend"]


def test_every_field_has_a_variable_of_its_own() -> None:
    assert len(variables()) == len(list(declared_defaults(JobSpec)))
    assert {"HVDKIT_CONFIG", "HVDKIT_PROFILE"}.isdisjoint(variables())


def test_a_variable_that_is_nearly_a_setting_is_noticed() -> None:
    found = likely_typos({"HVDKIT_WORKRES": "4", "HVDKIT_CHANNEL": "x", "HVDKIT_WORKERS": "2", "HOME": "/"})
    assert found == {"HVDKIT_WORKRES": "HVDKIT_WORKERS"}


@pytest.mark.parametrize("name", GOLDEN)
def test_every_spec_can_be_written_in_the_file(name: str) -> None:
    """Out as text and in again, nothing is lost."""
    spec = GOLDEN[name]
    text = json.dumps({"version": 1, **plain(spec)}, ensure_ascii=False)
    settings = settings_in(parse(text, "hvdkit.yaml"), "hvdkit.yaml", None)
    assert build(JobSpec, {setting.path: setting.value for setting in settings}) == spec


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("workers: 2", "version: it is missing; write 'version: 1'."),
        ("version: 2", "version: '2' is not known"),
        ("[a]", "the file must begin with 'version: 1'"),
        ("version: 1\nworker: 2", "worker: there is no such key; did you mean workers?"),
        ("version: 1\nresources: {gpu: 2}", "resources.gpu: there is no such key; did you mean gpus?"),
        ("version: 1\nvolumes: [{mount: /a, pcv: b}]", "volumes[0].pcv: there is no such key; did you mean pvc?"),
        ("version: 1\nprofiles: {gpu: {slot: 2}}", "profiles.gpu.slot: there is no such key; did you mean slots?"),
        ("version: 1\nprofiles: {gpu: 2}", "profiles.gpu: it must be a mapping"),
        ("version: 1\nworkers: two", "workers: 'two' is not a whole number."),
        ("version: 1\nautotune: maybe", "autotune: 'maybe' is neither true nor false."),
        ("version: 1\ncommand: python train.py", "command: it must be a list"),
        ("version: 1\nimage: [a]", "image: it must be a single value."),
        ("version: 1\nenv: {A: null}", "env.A: it has no value; leave the key out"),
        ("version: 1\nresources: 4", "resources: it must be a mapping"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "hvdkit.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        read_file(file, None)
    assert str(error.value).startswith(f"{file}: {sentence}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("version: 1\nworkers: 2\nworkers: 3", ":3: workers is given twice; keep one of them."),
        ("version: [1", ":1: it is not YAML: "),
        ("version: 1\n? [a]\n: 2", ":1: a key must be a single word."),
    ],
)
def test_what_is_not_yaml_is_shown_with_its_line(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "hvdkit.yaml"
    file.write_text(text)
    with pytest.raises(InputError) as error:
        read_file(file, None)
    assert str(error.value).startswith(f"{file}{sentence}")


def test_a_profile_that_is_not_there_gets_the_nearest(folder: Path) -> None:
    with pytest.raises(InputError, match=r"profiles.gpus: there is no such key; did you mean gpu"):
        read_file(folder / "hvdkit.yaml", "gpus")


# Each kind of field once: how a file says something wrong, how a variable does, the field, and the error's sentence.
WRONG = [
    ("workers: 0", "HVDKIT_WORKERS", "0", "workers", "0 is too few"),
    ("shm: 1GB", "HVDKIT_SHM", "1GB", "shm", "'1GB' is not an amount"),
    ("resources: {memory: 1GB}", "HVDKIT_RESOURCES_MEMORY", "1GB", "resources.memory", "'1GB' is not an amount"),
    ("backend: slurm", "HVDKIT_BACKEND", "slurm", "backend", "'slurm' is not one of"),
    ("autotune: maybe", "HVDKIT_AUTOTUNE", "maybe", "autotune", "'maybe' is neither true nor false"),
    ("threads: two", "HVDKIT_THREADS", "two", "threads", "'two' is not a whole number"),
    ("env: {1A: x}", "HVDKIT_ENV", "{1A: x}", "env", "'1A' is not a variable name"),
    ("labels: {a: b c}", "HVDKIT_LABELS", "{a: b c}", "labels.a", "'b c' is not a label's value"),
    ("volumes: [{mount: a, pvc: b}]", "HVDKIT_VOLUMES", "[{mount: a, pvc: b}]", "volumes[0].mount", "'a' is not an"),
    ("volumes: [{mont: /a}]", "HVDKIT_VOLUMES", "[{mont: /a}]", "volumes[0].mont", "there is no such key; did you"),
    ("elastic: {min_workers: 1}", "HVDKIT_ELASTIC_MIN_WORKERS", "1", "elastic.max_workers", "it is missing, and"),
]
KINDS = [row[3] for row in WRONG]


def mistake(environment: dict[str, str], flags: list[Setting] = ()) -> str:
    with pytest.raises(InputError) as error:
        spec_of(load_settings(list(flags), environment))
    return str(error.value)


@pytest.mark.parametrize(("text", "variable", "value", "field", "sentence"), WRONG, ids=KINDS)
def test_a_wrong_value_is_told_where_it_came_from(
    folder: Path, text: str, variable: str, value: str, field: str, sentence: str
) -> None:
    file = folder / "hvdkit.yaml"
    file.write_text(f"version: 1\n{text}\n")
    assert mistake({}).startswith(f"hvdkit.yaml: {field}: {sentence}")

    file.write_text(f"version: 1\nprofiles: {{mine: {{{text}}}}}\n")
    places = (f"hvdkit.yaml (profile mine): {field}", f"hvdkit.yaml: profiles.mine.{field}")  # in building, in reading
    assert mistake({"HVDKIT_PROFILE": "mine"}).startswith(tuple(f"{place}: {sentence}" for place in places))

    file.write_text("version: 1\nenv: {A: '1'}\nlabels: {x: y}\n")  # others have set something in the same mappings
    place = {"elastic.max_workers": f"{variable}: {field}"}.get(field, variable + "".join(field.partition("[")[1:]))
    assert mistake({variable: value}).startswith(f"{place}: {sentence}")


def test_values_that_contradict_each_other_name_one_of_their_places(folder: Path) -> None:
    assert mistake({"HVDKIT_WORKERS": "9"}).startswith("HVDKIT_WORKERS: 9 is outside elastic's 1 to 4")
    flag = settings_of({"resources": {"gpus": 2}}, "--gpus")
    assert mistake({"HVDKIT_PROFILE": "gpu"}, flag).startswith("hvdkit.yaml (profile gpu): slots: 8 ranks in a worker")


def test_dev_null_is_no_file(folder: Path) -> None:
    assert find(load_settings([], {}, config=os.devnull), "workers") is None
    assert find(load_settings([], {"HVDKIT_CONFIG": os.devnull}), "workers") is None
    assert find(load_settings([], {}), "workers").value == 2


def test_a_file_or_profile_that_is_not_there_is_told_who_asked_for_it(folder: Path) -> None:
    assert mistake({"HVDKIT_CONFIG": "none.yaml"}) == "HVDKIT_CONFIG: there is no file none.yaml."
    assert mistake({"HVDKIT_PROFILE": "gpus"}).startswith("hvdkit.yaml: profiles.gpus: there is no such key")
    (folder / "hvdkit.yaml").unlink()
    assert mistake({"HVDKIT_PROFILE": "gpu"}).startswith("HVDKIT_PROFILE=gpu: profiles stand in hvdkit.yaml")


def test_an_empty_mapping_takes_away_what_was_said_before(folder: Path) -> None:
    assert spec_of(load_settings([], {"HVDKIT_ENV": "{}"})).env == {}
    (folder / "hvdkit.yaml").write_text("version: 1\nenv: {A: '1'}\nprofiles: {bare: {env: {}}, blank: {env: }}\n")
    assert spec_of(load_settings([], {}, profile="bare")).env == {}
    assert spec_of(load_settings([], {}, profile="blank")).env == {"A": "1"}
    added = settings_of({"env": {"B": "2"}}, "--env")
    assert spec_of(load_settings(added, {}, profile="bare")).env == {"B": "2"}


def test_later_layers_replace_what_lies_in_their_way() -> None:
    whole, part = settings_of({"elastic": None}, "a"), settings_of({"elastic": {"min_workers": 1}}, "b")
    assert merge(whole, part) == part and merge(part, whole) == whole


def test_all_settings_are_every_field_once() -> None:
    names = [setting.name for setting in all_settings(settings_of({"env": {"A": "1", "B": "2"}, "elastic": None}, "a"))]
    assert len(names) == len(set(names))
    assert {"env.A", "env.B", "elastic", "resources.gpus", "name"} <= set(names)
    assert not {"env", "elastic.min_workers"} & set(names)


def test_the_command_shows_values_and_sources(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HVDKIT_SLOTS", "2")
    shown = CliRunner().invoke(command, ["--workers", "3"], standalone_mode=False).output
    rows = {tuple(line.split()) for line in shown.splitlines()}
    assert {
        ("workers", "3", "--workers"),
        ("slots", "2", "HVDKIT_SLOTS"),
        ("backend", '"mpijob"', "hvdkit.yaml"),
    } <= rows
    document = json.loads(CliRunner().invoke(command, ["--json"], standalone_mode=False).output)
    found = {row["name"]: (row["value"], row["source"]) for row in document["settings"]}
    assert found["workers"] == (2, "hvdkit.yaml") and found["resources.gpus"] == (0, "default")


def test_every_gpu_has_a_rank_unless_somebody_says_else() -> None:
    gpus = Setting(path=("resources", "gpus"), value=8, source="--gpus")
    slots = Setting(path=("slots",), value=2, source="--slots")
    assert make_spec([gpus], name="a").slots == 8
    assert make_spec([gpus, slots], name="a").slots == 2
    assert find(all_settings([gpus]), "slots").source == "a rank for each GPU"
