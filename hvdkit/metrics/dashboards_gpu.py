"""The dashboard GPU: what NVIDIA's DCGM exporter says about the GPUs of a job."""

from typing import Any

from hvdkit.metrics import queries
from hvdkit.metrics.dashboards_panels import RATE, Query, lines, page, value, variable

# As the exporter's default list of counters has them; MiB, W, degrees, bytes.
METRICS = (
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_DEV_POWER_USAGE",
    "DCGM_FI_DEV_GPU_TEMP",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_FB_FREE",
    "DCGM_FI_DEV_SM_CLOCK",
    "DCGM_FI_DEV_XID_ERRORS",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "DCGM_FI_PROF_NVLINK_TX_BYTES",
    "DCGM_FI_PROF_NVLINK_RX_BYTES",
)
_GPU = "{{pod}} GPU {{gpu}}"


def gpu() -> Any:
    """Are the GPUs busy, throttled, full; and do they talk over NVLink?"""
    used, free = _of("DCGM_FI_DEV_FB_USED"), _of("DCGM_FI_DEV_FB_FREE")
    return page(
        "hvdkit-gpu",
        "hvdkit / GPU",
        "The GPUs that pods of a job use, by NVIDIA's DCGM exporter. A job named 'a' also shows the GPUs of 'a-b'.",
        [variable("job", "Job", "label_values(hvdkit_info, hvdkit_job)")],
        [
            value(
                "GPUs", "In use by the job.", Query(expression=f"count({_of('DCGM_FI_DEV_GPU_UTIL')})"), unit="short"
            ),
            value(
                "Mean utilisation",
                "Share of the time in which any kernel ran; a full one can still use little of the GPU.",
                Query(expression=f"avg({_of('DCGM_FI_DEV_GPU_UTIL')})"),
                unit="percent",
            ),
            value("Power", "Of all GPUs.", Query(expression=f"sum({_of('DCGM_FI_DEV_POWER_USAGE')})"), unit="watt"),
            value(
                "Hottest",
                "GPUs slow down by themselves above about 85 degrees.",
                Query(expression=f"max({_of('DCGM_FI_DEV_GPU_TEMP')})"),
                unit="celsius",
                thresholds=((None, "green"), (80, "orange"), (87, "red")),
            ),
            value(
                "Fullest memory",
                "Of the GPU that has least left.",
                Query(expression=f"max(({used}) / (({used}) + ({free})))"),
                unit="percentunit",
                thresholds=((None, "green"), (0.9, "orange"), (0.97, "red")),
            ),
            value(
                "Last XID error",
                "0: none. Others mean a fault of the driver or the GPU; NVIDIA lists them.",
                Query(expression=f"max({_of('DCGM_FI_DEV_XID_ERRORS')})"),
                unit="short",
                thresholds=((None, "green"), (1, "red")),
            ),
            lines(
                "Utilisation",
                "Gaps are waits: for data, or for the other ranks.",
                Query(expression=_of("DCGM_FI_DEV_GPU_UTIL"), legend=_GPU),
                unit="percent",
                low=0,
                high=100,
            ),
            lines(
                "Tensor cores active",
                "Share of cycles; near zero with float32, which does not use them.",
                Query(expression=_of("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"), legend=_GPU),
                unit="percentunit",
                low=0,
                high=1,
            ),
            lines(
                "Power",
                "Of each GPU.",
                Query(expression=_of("DCGM_FI_DEV_POWER_USAGE"), legend=_GPU),
                unit="watt",
                low=0,
            ),
            lines(
                "Temperature",
                "Of each GPU.",
                Query(expression=_of("DCGM_FI_DEV_GPU_TEMP"), legend=_GPU),
                unit="celsius",
            ),
            lines("Memory in use", "Of each GPU.", Query(expression=used, legend=_GPU), unit="mbytes", low=0),
            lines(
                "Clock",
                "A clock that falls under load is throttled by heat or power.",
                Query(expression=f"({_of('DCGM_FI_DEV_SM_CLOCK')}) * 1e6", legend=_GPU),
                unit="hertz",
            ),
            lines(
                "NVLink",
                "Sent and received by each GPU; nothing here and slow allreduces mean that traffic goes over PCIe.",
                Query(expression=_nvlink("DCGM_FI_PROF_NVLINK_TX_BYTES"), legend=f"{_GPU} sent"),
                Query(expression=_nvlink("DCGM_FI_PROF_NVLINK_RX_BYTES"), legend=f"{_GPU} received"),
                unit="Bps",
                low=0,
            ),
            lines(
                "Images a second for a watt",
                "Throughput of the job by the power of its GPUs.",
                Query(
                    expression='max(hvdkit_images_per_second{hvdkit_job="$job"}) '
                    f"/ sum({_of('DCGM_FI_DEV_POWER_USAGE')})",
                    legend="images/s/W",
                ),
                unit="short",
                low=0,
            ),
        ],
        refresh="10s",
    )


def _of(metric: str) -> str:
    return queries.of_gpus(metric, "$job")


def _nvlink(metric: str) -> str:
    """These two count bytes since the driver was loaded."""
    renamed = f'label_replace(rate({metric}{{exported_pod=~"$job-.*"}}[{RATE}]), "pod", "$1", "exported_pod", "(.*)")'
    return f'rate({metric}{{exported_pod="", pod=~"$job-.*"}}[{RATE}]) or {renamed}'
