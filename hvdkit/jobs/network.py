"""What lets the pods of a job find each other, keeps others out, and lets Prometheus in. Pure."""

from hvdkit.jobs.metadata import Object, metadata, own_pods
from hvdkit.jobs.pods import metrics_ports
from hvdkit.jobs.spec import JobSpec


def headless_service(spec: JobSpec) -> Object:
    """A Service that gives the pods names; also before they are ready, because they meet to become so."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(spec, "rendezvous"),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": own_pods(spec),
            "ports": [{"name": "rendezvous", "port": spec.network.port}],
        },
    }


def network_policy(spec: JobSpec) -> list[Object]:
    """Only the job's own pods may connect to its pods; metrics stay open. Empty when the user wants none."""
    if not spec.network.policy:
        return []
    ingress: list[Object] = [{"from": [{"podSelector": {"matchLabels": own_pods(spec)}}]}]
    if spec.metrics.port is not None:
        last = spec.metrics.port + spec.slots - 1
        upper = {"endPort": last} if last > spec.metrics.port else {}
        ingress.append({"ports": [{"protocol": "TCP", "port": spec.metrics.port, **upper}]})
    return [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": metadata(spec, "network"),
            "spec": {
                "podSelector": {"matchLabels": own_pods(spec)},
                "policyTypes": ["Ingress"],
                "ingress": ingress,
            },
        }
    ]


def pod_monitor(spec: JobSpec) -> list[Object]:
    """By this the Prometheus operator finds the ranks' metrics; empty when not asked for."""
    if not spec.metrics.pod_monitor:
        return []
    return [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PodMonitor",
            "metadata": metadata(spec, "metrics"),
            "spec": {
                "selector": {"matchLabels": own_pods(spec)},
                "podTargetLabels": ["hvdkit.io/job"],
                "podMetricsEndpoints": [{"port": port["name"]} for port in metrics_ports(spec)],
            },
        }
    ]
