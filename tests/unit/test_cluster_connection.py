"""Contexts, namespaces and KUBECONFIG as kubectl has them, and errors that are a sentence."""

import socket

import pytest
from scripted_api import Request, api, kubeconfig

from hvdkit.cluster.api import ApiError, Cluster
from hvdkit.cluster.connection import configured, log_in
from hvdkit.cluster.job import find_job
from hvdkit.cluster.kinds import POD
from hvdkit.errors import EnvironmentProblem, InputError


@pytest.fixture(autouse=True)
def nowhere(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def test_several_files_are_one_configuration(tmp_path, monkeypatch) -> None:
    one = kubeconfig(tmp_path / "one", "http://127.0.0.1:1", context="one", namespace="team")
    two = kubeconfig(tmp_path / "two", "http://127.0.0.1:2", context="two")
    monkeypatch.setenv("KUBECONFIG", f"{one}:{tmp_path}/missing:{two}")
    assert configured()
    first, second = log_in(), log_in("two")
    assert (first.context, first.namespace, first.configuration.host) == ("one", "team", "http://127.0.0.1:1")
    assert (second.context, second.namespace, second.configuration.host) == ("two", "default", "http://127.0.0.1:2")
    assert Cluster(context="two", namespace="mine").namespace == "mine"


def test_a_context_that_is_not_there(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config", "http://127.0.0.1:1")))
    with pytest.raises(InputError, match=r"--context: there is no context 'prod' in .*; it has test\."):
        log_in("prod")


def test_no_current_context(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config", "http://127.0.0.1:1", current=False)))
    with pytest.raises(EnvironmentProblem, match=r"names no current context; choose one with --context \(test\)"):
        log_in()
    assert log_in("test").context == "test"


def test_a_file_that_is_no_kubeconfig(tmp_path, monkeypatch) -> None:
    (tmp_path / "config").write_text("- this\n- is: a list\n")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    with pytest.raises(EnvironmentProblem, match="config"):
        log_in()


def test_nothing_is_configured() -> None:
    assert not configured()
    with pytest.raises(EnvironmentProblem, match="no cluster is configured"):
        log_in()


def test_a_server_that_is_not_there_is_said_at_once(tmp_path, monkeypatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "config", f"http://127.0.0.1:{port}")))
    with pytest.raises(ApiError, match=r"the API server of context 'test' .* does not answer: .*refused") as raised:
        Cluster().items(POD)
    assert raised.value.exit_code == 3


def test_a_token_that_was_renewed_in_the_file_is_used(tmp_path, monkeypatch) -> None:
    tokens: list[str] = []

    def answer(request: Request) -> None:
        tokens.append(request.headers["authorization"])
        if tokens[-1] == "Bearer token-of-test":
            path = tmp_path / "config"
            path.write_text(path.read_text().replace("token-of-test", "renewed"))
            request.status(401, "Unauthorized", "Unauthorized")
        else:
            request.items()

    with api(answer, tmp_path, monkeypatch) as (cluster, _):
        assert cluster.items(POD) == []
    assert tokens == ["Bearer token-of-test", "Bearer renewed"]


def test_credentials_that_nobody_accepts(tmp_path, monkeypatch) -> None:
    with api(lambda request: request.status(401, "Unauthorized"), tmp_path, monkeypatch) as (cluster, _):
        with pytest.raises(ApiError, match="does not accept our credentials; log in again"):
            cluster.items(POD)


def test_a_job_of_somebody_else_is_left_alone(tmp_path, monkeypatch) -> None:
    def answer(request: Request) -> None:
        if "/mpijobs/" in request.route:
            request.json(200, {"metadata": {"name": "train", "uid": "1"}})
        else:
            request.status(404, "NotFound", "not found")

    with api(answer, tmp_path, monkeypatch) as (cluster, _):
        with pytest.raises(InputError, match=r"the MPIJob 'train' .* was not made by hvdkit"):
            find_job(cluster, "train")


def test_warnings_of_the_server_are_kept(tmp_path, monkeypatch) -> None:
    text = '299 - "would violate PodSecurity \\"restricted:latest\\""'
    with api(lambda request: request.json(200, {}, Warning=text), tmp_path, monkeypatch) as (cluster, _):
        cluster.request("GET", "/x")
        cluster.request("GET", "/x")
    assert cluster.warnings == ['would violate PodSecurity "restricted:latest"']
