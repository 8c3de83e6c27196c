"""The one error of the harness."""


class Problem(Exception):
    """Why there is no cluster, in one sentence that says what to do."""
