"""Requests to the Kubernetes API: plain objects in, plain objects out, and errors that are a sentence.

The official client reads the configuration, logs in and speaks TLS. Its typed models stay out of it: an object goes to
the API exactly as it was rendered.
"""

import contextlib
import json
import random
import re
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from hvdkit.cluster.connection import Login, log_in
from hvdkit.cluster.kinds import Kind, Object, kind_of
from hvdkit.errors import EXIT_ENVIRONMENT, HvdkitError

SECONDS_TO_CONNECT = 10.0
SECONDS_TO_ANSWER = 30.0
PAGE = 500  # objects of one list answer
TIMES_SENT_AWAY = 5  # that an overloaded API server may tell us to come later, before that is an error
_PASSING = (429, 500, 502, 503, 504)  # also "Too large resource version", which is a 504
_MERGE = "application/merge-patch+json"


class ApiError(HvdkitError):
    """The API server refused, or could not be asked."""

    exit_code = EXIT_ENVIRONMENT

    def __init__(self, sentence: str, *, status: int = 0, reason: str = "", retry_after: float | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        """Of HTTP; 0 when there was no answer."""

        self.reason = reason
        """Kubernetes' word, such as AlreadyExists."""

        self.retry_after = retry_after

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.status == 0 or self.status in _PASSING


class Cluster:
    """A cluster, seen through one context and one namespace. May be used from several threads."""

    def __init__(self, *, context: str | None = None, namespace: str | None = None) -> None:
        self._context = context
        self._use(log_in(context))
        import urllib3  # comes with the client, whose absence log_in explains

        self.cut_off = (urllib3.exceptions.HTTPError, OSError, ValueError)
        """What reading a stream raises when the other end goes."""

        self.namespace = namespace or self._login.namespace
        self.warnings: list[str] = []
        """What the API server warned of."""

    @property
    def context(self) -> str:
        """Name of the context."""
        return self._login.context

    @property
    def server(self) -> str:
        """Address of the API server."""
        return self._login.configuration.host

    @property
    def client(self) -> Any:
        """The official ApiClient, for what is not plain HTTP."""
        return self._client

    def _use(self, login: Login) -> None:
        from kubernetes import client

        self._login = login
        self._client = client.ApiClient(login.configuration)

    def request(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        content_type: str = "application/json",
        patience: float = 0.0,
        **query: Any,
    ) -> Object:
        """Ask and return the answer; what passes by itself is tried again for `patience` seconds."""
        give_up = time.monotonic() + patience
        attempt = 0
        while True:
            try:
                with contextlib.closing(self.open(method, path, body=body, content_type=content_type, **query)) as got:
                    return json.loads(got.read() or b"{}")
            except ApiError as error:
                # A server that asks us to come later has done nothing yet, so that every request may be repeated.
                later = error.status == 429 and attempt < TIMES_SENT_AWAY
                if not error.passing or not (later or time.monotonic() < give_up):
                    raise
                time.sleep(pause(attempt, error))
            except self.cut_off as error:  # in the middle of the answer
                if time.monotonic() >= give_up:
                    raise self.unanswered(error) from None
                time.sleep(pause(attempt))
            attempt += 1

    def open(
        self,
        method: str,
        path: str,
        *,
        body: Object | None = None,
        content_type: str = "application/json",
        read_timeout: float | None = SECONDS_TO_ANSWER,
        **query: Any,
    ) -> Any:
        """Send one request and return the response as a stream (urllib3's), which the caller closes."""
        response = self._send(method, path, body, content_type, read_timeout, query)
        if response.status == 401:
            # Tokens are renewed in the file while we follow a job for days.
            response.close()
            self._use(log_in(self._context))
            response = self._send(method, path, body, content_type, read_timeout, query)
        self._note_warnings(response)
        if response.status < 400:
            return response
        with contextlib.closing(response):
            raise self._refused(response, path)

    def _send(
        self, method: str, path: str, body: Object | None, content_type: str, read_timeout: float | None, query: Any
    ) -> Any:
        import urllib3

        words = {key: value for key, value in query.items() if value is not None}
        url = self.server + path + (f"?{urlencode(words)}" if words else "")
        headers = {"Accept": "application/json, */*", "User-Agent": "hvdkit"}
        for setting in self._login.configuration.auth_settings().values():
            if setting["value"]:
                headers[setting["key"]] = setting["value"]
        data = None
        if body is not None:
            headers["Content-Type"] = content_type
            data = json.dumps(body).encode()
        timeout = urllib3.Timeout(connect=SECONDS_TO_CONNECT, read=read_timeout)
        pool = self._client.rest_client.pool_manager
        try:
            return pool.request(
                method, url, body=data, headers=headers, timeout=timeout, retries=False, preload_content=False
            )
        except urllib3.exceptions.HTTPError as error:
            raise self.unanswered(error) from None

    def get(self, kind: Kind, name: str, *, patience: float = 0.0) -> Object | None:
        """One object; None when there is none, or the cluster does not know its kind."""
        try:
            return self.request("GET", kind.path(self.namespace, name), patience=patience)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def items(
        self, kind: Kind, *, labels: str | None = None, fields: str | None = None, patience: float = 0.0
    ) -> list[Object]:
        """The objects of a kind in the namespace; none where the cluster does not know the kind."""
        try:
            return self.items_with_version(kind, labels=labels, fields=fields, patience=patience)[0]
        except ApiError as error:
            if error.status == 404:
                return []
            raise

    def items_with_version(
        self, kind: Kind, *, labels: str | None = None, fields: str | None = None, patience: float = 0.0
    ) -> tuple[list[Object], str]:
        """The objects, page by page, and the version from which a watch goes on."""
        found: list[Object] = []
        page: str | None = None
        while True:
            query = {"labelSelector": labels, "fieldSelector": fields, "limit": PAGE, "continue": page}
            answer = self.request("GET", kind.path(self.namespace), patience=patience, **query)
            found += [trimmed({"apiVersion": kind.api_version, "kind": kind.kind, **one}) for one in answer["items"]]
            page = answer["metadata"].get("continue")
            if not page:
                return found, answer["metadata"].get("resourceVersion") or "0"

    def create(self, made: Object, *, dry_run: bool = False) -> Object:
        """Create an object, or only let the server say what it thinks of it; an unknown field is an error."""
        path = kind_of(made).path(self.namespace)
        query = {"fieldManager": "hvdkit", "fieldValidation": "Strict", "dryRun": "All" if dry_run else None}
        return self.request("POST", path, body=made, **query)

    def patch(self, kind: Kind, name: str, change: Object, *, patience: float = 10.0) -> Object:
        """Merge a change into an object."""
        return self.request(
            "PATCH",
            kind.path(self.namespace, name),
            body=change,
            content_type=_MERGE,
            patience=patience,
            fieldManager="hvdkit",
        )

    def delete(self, kind: Kind, name: str, *, uid: str | None = None, patience: float = 10.0) -> bool:
        """Delete an object, and after it what belongs to it; False when it was not there."""
        options: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            self.request("DELETE", kind.path(self.namespace, name), body=options, patience=patience)
        except ApiError as error:
            if error.status == 404:
                return False
            raise
        return True

    def _note_warnings(self, response: Any) -> None:
        for header in response.headers.getlist("Warning"):
            match = re.match(r'\d+ \S+ "((?:[^"\\]|\\.)*)"', header)
            text = match[1].replace('\\"', '"') if match else header
            if text not in self.warnings:
                self.warnings.append(text)

    def unanswered(self, error: Exception) -> ApiError:
        """The error of a connection that failed or was cut."""
        return ApiError(
            f"the API server of context '{self.context}' ({self.server}) does not answer: {in_short(error)}; "
            "check the network, or choose another cluster with --context."
        )

    def _refused(self, response: Any, path: str) -> ApiError:
        try:
            answer = json.loads(response.read())
            said, reason = answer.get("message") or "", answer.get("reason") or ""
        except (OSError, ValueError, AttributeError):
            said, reason = "", ""
        said = (said or f"{response.status} {response.reason or ''} for {path}").strip().rstrip(".")
        later = response.headers.get("Retry-After") or ""
        retry_after = float(later) if later.isdecimal() else None
        if response.status == 401:
            sentence = f"the cluster of context '{self.context}' does not accept our credentials; log in again."
        elif response.status == 403 and "cannot" in said:
            sentence = f"{said}; manifests/rbac.yaml has the rights that hvdkit needs."
        else:
            sentence = f"the API server says: {said}."
        return ApiError(sentence, status=response.status, reason=reason, retry_after=retry_after)


def pause(attempt: int, error: ApiError | None = None) -> float:
    """Seconds until the next attempt: longer each time, and not in step with other clients."""
    if error is not None and error.retry_after is not None:
        return min(error.retry_after, 30.0)
    return min(0.2 * 2 ** min(attempt, 10), 5.0) * random.uniform(0.5, 1.0)


def trimmed(one: Object) -> Object:
    """The object without the record of who set which field: it is often larger than all the rest."""
    (one.get("metadata") or {}).pop("managedFields", None)
    return one


def in_short(error: BaseException) -> str:
    """The innermost reason in one line: these libraries wrap errors in errors."""
    status = getattr(error, "status", None)
    if status:
        return f"it answered {status} {getattr(error, 'reason', '')}".strip()
    while isinstance(getattr(error, "reason", None), Exception):
        error = error.reason  # type: ignore[attr-defined]
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else type(error).__name__
    # urllib3 puts the object's own description in front: "HTTPSConnection(host=…): Failed to …".
    return text.partition("): ")[2] or text


def lines_of(response: Any) -> Iterator[bytes]:
    """The whole lines of a stream, as they come; what comes after the last one is a line, too."""
    rest = b""
    for data in response.stream(1 << 16, decode_content=True):
        *lines, rest = (rest + data).split(b"\n")
        yield from lines
    if rest:
        yield rest
