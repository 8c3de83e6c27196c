"""The plan of a launch on this machine as text: a script, the reason for each setting, or JSON."""

import json
import shlex
from dataclasses import asdict

from hvdkit.jobs.local import LocalPlan


def shell_script(plan: LocalPlan) -> str:
    """The plan as people read it; for mpirun on this machine also a script that a shell can run."""
    lines = [
        "# HVDKIT_CHANNEL and HVDKIT_LAUNCHER_PID are added when it runs: they lead the ranks to the launcher.",
        "# Without them each rank writes straight to this terminal.",
    ]
    if plan.controller == "gloo":
        lines += [
            "# So are HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT: they lead to Horovod's rendezvous server, which",
            "# the launcher starts first. The ranks are then started together.",
        ]
    for process in plan.processes:
        command = shlex.join(process.argv)
        if process.env_on_stdin:
            lines += ["", f"{command} <<'ENVIRONMENT'", json.dumps(dict(process.env)), "ENVIRONMENT"]
        else:
            variables = [f"{name}={shlex.quote(value)}" for name, value in process.env.items()]
            lines += ["", "env " + " \\\n    ".join([*variables, command])]
    return "\n".join(lines)


def explanation(plan: LocalPlan) -> str:
    """Every setting with its value and reason."""
    return "\n".join(f"{setting.name} {setting.value}\n    {setting.reason}" for setting in plan.settings)


def plan_as_json(plan: LocalPlan) -> str:
    """The plan for machines."""
    processes = [
        {"argv": list(process.argv), "env": dict(process.env), "host": process.host} for process in plan.processes
    ]
    settings = [asdict(setting) for setting in plan.settings]
    return json.dumps({"world_size": plan.world_size, "processes": processes, "settings": settings}, indent=2)
