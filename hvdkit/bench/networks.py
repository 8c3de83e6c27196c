"""Networks by name, as two links: between GPUs of one server, and between servers.

DATA_SHEETS are what a network could do. The latencies are those by which NCCL itself chooses its algorithm: table
hwLat, rows Ring/Simple (https://github.com/NVIDIA/nccl/blob/v2.17.1-1/src/graph/tuning.cc); the network's was 6.6 us
until NCCL 2.6, 9.6 us until 2.17, and is 14 us since. The bandwidths are line rates times what the headers leave for
data, and within a server those of NCCL's src/graph/topo.h.

NETWORKS are what to expect: the same times two factors, which `hvdkit bench project --published` finds on the one
cluster of which enough is published. It had Pascal GPUs and NCCL 2.0; today's should do better.
"""

from dataclasses import dataclass, replace

from hvdkit.errors import InputError

# RoCE v2 in frames of 1,024 bytes, the RDMA MTU that fits an Ethernet MTU of 1,500: preamble and gap 20, Ethernet 18,
# IPv4 20, UDP 8, InfiniBand transport 12 and its checksum 4 bytes a frame.
ROCE_SHARE = 1024 / (1024 + 20 + 18 + 20 + 8 + 12 + 4)
# The same headers around frames of 4,096 bytes, as networks of 100 Gbit/s and more are set up.
ROCE_JUMBO_SHARE = 4096 / (4096 + 20 + 18 + 20 + 8 + 12 + 4)
# InfiniBand: local route 8, transport 12, checksums 6 bytes around 4,096.
INFINIBAND_SHARE = 4096 / (4096 + 8 + 12 + 6)

LATENCY_FACTOR, BANDWIDTH_FACTOR = 3.0, 0.9  # a test keeps them equal to what the fit finds

START_SECONDS = 8.4e-6  # of any ring: NCCL's baseLat
_NVLINK_STEP, _PCIE_STEP, _NETWORK_STEP = 3.4e-6, 5.7e-6, 9.6e-6  # a step of a ring: NCCL's hwLat
_PCIE_BYTES = 12e9  # PCIe 3.0 x16 by NCCL's own figure (PCI_WIDTH); between GPUs below one switch
_NVLINK_BYTES = 370e9  # NVLink 4 (H100, 450 GB/s each way) by NCCL's own figure: 18 links of 20.6 GB/s


@dataclass(frozen=True, kw_only=True)
class Link:
    """What it costs to send n bytes: step_seconds + n / bytes_per_second."""

    step_seconds: float
    bytes_per_second: float


@dataclass(frozen=True, kw_only=True)
class Network:
    """Servers full of GPUs."""

    name: str
    description: str
    gpus_per_server: int
    inside: Link
    """Between neighbours within a server."""

    between: Link
    """Between servers; the bandwidth is that of all cards of a server together, each way."""

    start_seconds: float = START_SECONDS
    """What any allreduce costs before its first step."""


def _ethernet(gigabits: int, share: float, gpus: int) -> Network:
    return Network(
        name=f"{gigabits}gbe",
        description=f"{gpus} GPUs a server on PCIe 3.0, one {gigabits} Gbit/s RoCE card a server",
        gpus_per_server=gpus,
        inside=Link(step_seconds=_PCIE_STEP, bytes_per_second=_PCIE_BYTES),
        between=Link(step_seconds=_NETWORK_STEP, bytes_per_second=gigabits / 8 * 1e9 * share),
    )


DATA_SHEETS = {
    network.name: network
    for network in (
        _ethernet(25, ROCE_SHARE, 4),
        _ethernet(100, ROCE_JUMBO_SHARE, 8),
        _ethernet(400, ROCE_JUMBO_SHARE, 8),
        Network(
            name="nvlink-ib",
            description="8 GPUs a server on NVLink 4, one 400 Gbit/s InfiniBand card a GPU",
            gpus_per_server=8,
            inside=Link(step_seconds=_NVLINK_STEP, bytes_per_second=_NVLINK_BYTES),
            between=Link(step_seconds=_NETWORK_STEP, bytes_per_second=8 * 400 / 8 * 1e9 * INFINIBAND_SHARE),
        ),
    )
}


def scaled(network: Network, *, latency: float = 1.0, bandwidth: float = 1.0) -> Network:
    """The network with every latency and every bandwidth times a factor: to see how much they matter."""

    def link(one: Link) -> Link:
        return Link(step_seconds=one.step_seconds * latency, bytes_per_second=one.bytes_per_second * bandwidth)

    return replace(
        network,
        inside=link(network.inside),
        between=link(network.between),
        start_seconds=network.start_seconds * latency,
    )


NETWORKS = {
    name: scaled(network, latency=LATENCY_FACTOR, bandwidth=BANDWIDTH_FACTOR) for name, network in DATA_SHEETS.items()
}


def find_network(name: str) -> Network:
    """The network of that name; InputError when there is none."""
    if name not in NETWORKS:
        raise InputError(f"--network '{name}' is unknown; there are {', '.join(NETWORKS)}.")
    return NETWORKS[name]
