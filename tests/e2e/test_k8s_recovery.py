"""A worker's pod is deleted while it trains, on a real cluster: nothing that was committed is lost."""

import json
import time
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
    """Once its world has made some checkpoints; the step of the newest then."""
    began = wait_for(lambda: starts(place, name), "a start", LIMIT)[-1]["step"]
    wait_for(lambda: newest_step(place, name) >= began + 40, "two checkpoints", LIMIT)
    committed = newest_step(place, name)
    where = f"--namespace={place.user.namespace}"
    place.cluster.kubectl("delete", "pod", f"{name}-worker-1", where, "--wait=false")
    return committed


def newest_step(place: Place, name: str) -> int:
    """Of the checkpoints that there are."""
    files = (place.shared / name / "checkpoints").glob("step-*.pt")
    return max((int(file.name.removeprefix("step-").partition(".")[0]) for file in files), default=0)


def test_the_job_starts_again_from_its_checkpoint(place: Place) -> None:
    words = place.launch("lost", "mpijob", "--working-dir", "/shared")
    process = place.user.start(*words, *training("lost", *FLAGS))
    committed = lose_a_worker(place, "lost")
    wait_for(lambda: len(starts(place, "lost")) == 2, "a second start", LIMIT)
    (place.shared / "slow").unlink()
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, out + err
    assert "Restarting" in err
    first, *_, last = ends_of_launchers(place, "lost")
    left = json.loads(first["message"])
    assert (first["exitCode"], left["exit_code"], left["reason"]) == (75, 75, "stopped in good order"), first
    assert last["exitCode"] == 0
    assert starts(place, "lost")[1]["step"] >= committed
    assert_every_step_once(place, "lost")


def test_an_elastic_job_grows_and_shrinks_without_a_restart(place: Place) -> None:
    """`hvdkit scale` gives it a second worker, and then that one is lost."""
    (place.shared / "slow").write_text("0.2")  # so that it does not end meanwhile
    flags = ("--min-workers", "1", "--max-workers", "2", "--working-dir", "/shared")
    words = place.launch("bend", "mpijob", *flags, workers=1)
    process = place.user.start(*words, *training("bend", "--elastic", *FLAGS, "--max-steps", "400"))
    wait_for(lambda: starts(place, "bend"), "a start", LIMIT)
    assert place.user.hvdkit("scale", "bend", "--workers", "2").stdout == "bend: 1 -> 2 workers.\n"

    def larger() -> bool:
        refresh(place, "bend")
        return len(starts(place, "bend")) >= 2

    wait_for(larger, "a larger world", LIMIT)
    committed = lose_a_worker(place, "bend")
    wait_for(lambda: len(starts(place, "bend")) >= 3, "a smaller world", LIMIT)
    (place.shared / "slow").unlink()
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, out + err
    assert [(pod["phase"], pod["restarts"]) for pod in place.launchers("bend")] == [("Succeeded", 0)]
    assert [one["world"]["ranks"] for one in starts(place, "bend")][:3] == [1, 2, 1]
    assert starts(place, "bend")[1]["step"] > 0 and starts(place, "bend")[2]["step"] >= committed
    assert_every_step_once(place, "bend")


def refresh(place: Place, name: str) -> None:
    """Have the launcher see a changed list of hosts now; by itself a kubelet brings it once a minute."""
    mark = f"hvdkit.io/test-refresh={time.time()}"
    place.cluster.kubectl("annotate", "--overwrite", "pods", *of_launchers(place, name), mark)


def ends_of_launchers(place: Place, name: str) -> list[dict]:
    """How each launcher of a job ended, the first one first."""
    pods = place.cluster.get("pods", *of_launchers(place, name))["items"]
    pods.sort(key=lambda pod: pod["metadata"]["creationTimestamp"])
    return [pod["status"]["containerStatuses"][0]["state"]["terminated"] for pod in pods]


def of_launchers(place: Place, name: str) -> tuple[str, str]:
    """Flags of kubectl."""
    selector = f"--selector=hvdkit.io/job={name},training.kubeflow.org/job-role=launcher"
    return f"--namespace={place.user.namespace}", selector


def starts(place: Place, run: str) -> list[dict]:
    """How often a run began, and where; none as long as it has written nothing."""
    there = (place.shared / run / "metrics.jsonl").exists()
    return [one for one in place.history(run) if one["kind"] == "start"] if there else []


def assert_every_step_once(place: Place, run: str) -> None:
    steps = [one["step"] for one in place.history(run) if one["kind"] == "interval"]
    assert steps == sorted(set(steps))
    assert place.history(run)[-1]["kind"] == "summary"
