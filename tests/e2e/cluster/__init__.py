"""A real Kubernetes for tests, in namespaces of its own: when its first process ends, the kernel removes all of it.

From a shell: `python -m tests.e2e.cluster --help`. From a test that runs in it: `Cluster.current()`.
"""

from .cluster import Cluster

__all__ = ["Cluster"]
