"""A worker's pod is deleted while it trains, on a real cluster: nothing that was committed is lost."""

from collections.abc import Iterator

import pytest
from cluster.cluster import Cluster
from kubernetes_jobs import wait_for
from kubernetes_training import LIMIT, Place, place_to_train, training

FLAGS = ("--model", "nets:slow", "--batch-size", "10", "--max-steps", "300", "--checkpoint-every", "20")


@pytest.fixture
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_to_train(Cluster.current(), tmp_path_factory.mktemp("user")) as found:
        (found.shared / "slow").touch()
        yield found


def lose_a_worker(place: Place, name: str) -> int:
    """Once there are some checkpoints; the step of the newest then."""
    folder = place.shared / name / "checkpoints"
    wait_for(lambda: folder.exists() and len(list(folder.glob("*.pt"))) >= 2, "two checkpoints", LIMIT)
    committed = max(int(file.name.removeprefix("step-").partition(".")[0]) for file in folder.glob("*.pt"))
    where = f"--namespace={place.user.namespace}"
    place.cluster.kubectl("delete", "pod", f"{name}-worker-1", where, "--wait=false")
    return committed


def test_the_job_starts_again_from_its_checkpoint(place: Place) -> None:
    words = place.launch("lost", "mpijob", "--working-dir", "/shared")
    process = place.user.start(*words, *training("lost", *FLAGS))
    committed = lose_a_worker(place, "lost")
    wait_for(lambda: len(starts(place, "lost")) == 2, "a second start", LIMIT)
    (place.shared / "slow").unlink()
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, out + err
    assert "Restarting" in err
    assert starts(place, "lost")[1]["step"] >= committed
    assert_every_step_once(place, "lost")


def test_an_elastic_job_goes_on_without_a_restart(place: Place) -> None:
    words = place.launch("bend", "mpijob", "--min-workers", "1", "--max-workers", "2", "--working-dir", "/shared")
    process = place.user.start(*words, *training("bend", "--elastic", *FLAGS))
    committed = lose_a_worker(place, "bend")
    wait_for(lambda: len(starts(place, "bend")) >= 2, "a smaller world", LIMIT)
    (place.shared / "slow").unlink()
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, out + err
    assert [(pod["phase"], pod["restarts"]) for pod in place.launchers("bend")] == [("Succeeded", 0)]
    assert [one["world"]["ranks"] for one in starts(place, "bend")][:2] == [2, 1]
    assert starts(place, "bend")[1]["step"] >= committed
    assert_every_step_once(place, "bend")


def starts(place: Place, run: str) -> list[dict]:
    return [one for one in place.history(run) if one["kind"] == "start"]


def assert_every_step_once(place: Place, run: str) -> None:
    steps = [one["step"] for one in place.history(run) if one["kind"] == "interval"]
    assert steps == sorted(set(steps))
    assert place.history(run)[-1]["kind"] == "summary"
