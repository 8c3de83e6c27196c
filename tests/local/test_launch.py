"""`hvdkit launch` on this machine, with real mpirun, real Gloo ranks and real processes."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from launching import LIMIT, launching, run_hvdkit, wait_until

import hvdkit

RANK = "int(os.environ.get('HOROVOD_RANK') or os.environ.get('OMPI_COMM_WORLD_RANK'))"
CONTROLLERS = ("mpi", "gloo")


def python(code: str) -> list[str]:
    return ["--", "python", "-c", f"import os, sys, time, signal; rank = {RANK}\n{code}"]


def launch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_hvdkit("launch", "--backend", "local", *arguments)


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_all_output_arrives_whole_and_in_order(controller: str, tmp_path: Path) -> None:
    code = """
for line in range(400):
    print(f'<{rank}:{line}:' + 'x' * (line * 37 % 9000) + '>')
    print(f'<{rank}:{line}:error>', file=sys.stderr)
sys.stdout.write(f'last words of {rank}')"""
    result = launch("--workers", "4", "--controller", controller, "--log-dir", str(tmp_path), *python(code))
    assert result.returncode == 0, result.stderr
    for rank in range(4):
        expected = [f"<{rank}:{line}:" + "x" * (line * 37 % 9000) + ">" for line in range(400)]
        printed = [line[4:] for line in result.stdout.splitlines() if line.startswith(f"[{rank}] ")]
        assert printed == [*expected, f"last words of {rank}"]
        errors = [line[4:] for line in result.stderr.splitlines() if line.startswith(f"[{rank}] ")]
        assert errors == [f"<{rank}:{line}:error>" for line in range(400)]
        log = (tmp_path / f"rank-{rank}.log").read_text()
        assert all(line in log for line in (*expected, *errors))


def test_more_ranks_than_cores_have_one_core_each_of_those_we_may_use() -> None:
    allowed = sorted(os.sched_getaffinity(0))
    ranks = len(allowed) + 1
    result = launch("--workers", str(ranks), *python("print(rank, sorted(os.sched_getaffinity(0)))"))
    assert result.returncode == 0, result.stderr
    expected = [f"[{rank}] {rank} [{allowed[rank % len(allowed)]}]" for rank in range(ranks)]
    assert sorted(result.stdout.splitlines()) == sorted(expected)


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_exit_code_is_that_of_the_first_rank_that_failed(controller: str) -> None:
    code = "print('all is well with', rank)\nif rank == 1: print('it broke here'); sys.exit(41)\ntime.sleep(600)"
    result = launch("--workers", "3", "--controller", controller, *python(code))
    assert result.returncode == 41
    assert "rank 1 on" in result.stderr and "exited with code 41" in result.stderr
    assert result.stderr.rstrip().endswith("it broke here")


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_the_rank_that_raised_is_blamed_not_the_one_that_lost_its_partner(controller: str) -> None:
    # The rank that raises waits in Horovod's shutdown; the other one fails in its barrier and ends first.
    code = """
import horovod.torch as hvd
hvd.init()
assert rank != 1, 'the data of rank 1 is bad'
hvd.barrier()"""
    result = launch("--workers", "2", "--controller", controller, *python(code))
    assert result.returncode == 1
    assert "hvdkit: rank 1 on" in result.stderr, result.stderr
    assert result.stderr.rstrip().splitlines()[-1].endswith("AssertionError: the data of rank 1 is bad"), result.stderr


def test_a_helper_process_that_raises_is_not_blamed() -> None:
    code = """
import subprocess
if rank == 1: subprocess.run([sys.executable, '-c', 'raise SystemError']); open('helper failed', 'w')
while not os.path.exists('helper failed'): time.sleep(0.05)
if rank == 0: sys.exit(5)
time.sleep(600)"""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["launch", "--backend", "local", "--workers", "2", *python(code)]
        result = run_hvdkit(*arguments, cwd=folder)
    assert result.returncode == 5 and "hvdkit: rank 0 on" in result.stderr, result.stderr


def test_a_signal_that_ends_a_rank_is_named() -> None:
    result = launch("--workers", "2", *python("if rank == 0: os.kill(os.getpid(), signal.SIGSEGV)\ntime.sleep(600)"))
    assert result.returncode == 128 + signal.SIGSEGV
    assert "rank 0" in result.stderr and "SIGSEGV" in result.stderr


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_sigterm_lets_ranks_stop_in_good_order(controller: str, tmp_path: Path) -> None:
    # mpirun alone would kill the ranks a second after a SIGTERM; they take longer than that here.
    code = """
def stop(*_):
    print('saving'); time.sleep(3); print('saved'); sys.exit(75)
signal.signal(signal.SIGTERM, stop)
print('ready')
time.sleep(600)"""
    with launching(tmp_path, "--workers", "2", "--controller", controller, *python(code)) as run:
        run.wait_for("ready", times=2)
        run.process.send_signal(signal.SIGTERM)
        assert run.wait() == 75, run.output()
        assert run.output().count("saved") == 2
        run.wait_until_gone()


def test_ranks_that_do_not_stop_are_killed_after_the_grace_period(tmp_path: Path) -> None:
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('deaf')\ntime.sleep(600)"
    with launching(tmp_path, "--workers", "2", "--grace", "1", *python(code)) as run:
        run.wait_for("deaf", times=2)
        run.process.send_signal(signal.SIGTERM)
        assert run.wait() == 128 + signal.SIGKILL
        assert "did not stop within 1 s" in run.output()
        run.wait_until_gone()


@pytest.mark.parametrize("controller", CONTROLLERS)
def test_ctrl_c_ends_every_process(controller: str, tmp_path: Path) -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '600']); print('ready'); time.sleep(600)"
    with launching(tmp_path, "--workers", "2", "--controller", controller, *python(code)) as run:
        run.wait_for("ready", times=2)
        assert len([line for line in run.processes().values() if line.startswith("sleep")]) == 2
        run.process.send_signal(signal.SIGINT)
        assert run.wait() == 130
        run.wait_until_gone()


def test_a_second_sigterm_does_not_cut_a_save_short(tmp_path: Path) -> None:
    code = """
def stop(*_):
    print('saving')
    while not os.path.exists('may end'): time.sleep(0.05)
    print('saved'); sys.exit(75)
signal.signal(signal.SIGTERM, stop)
print('ready')
time.sleep(600)"""
    with launching(tmp_path, "--workers", "2", *python(code)) as run:
        run.wait_for("ready", times=2)
        for _ in range(2):
            run.process.send_signal(signal.SIGTERM)
            run.wait_for("saving", times=2)
        (tmp_path / "may end").touch()
        assert run.wait() == 75, run.output()
        assert run.output().count("saved") == 2


def test_a_reader_who_stops_reading_does_not_make_the_launcher_deaf(tmp_path: Path) -> None:
    # Each rank prints more than all buffers on the way hold, and says so in a file.
    code = "for line in range(30_000): print('x' * 1000); line or open(f'started-{rank}', 'w')"
    command = [sys.executable, "-m", "hvdkit", "launch", "--backend", "local", "--workers", "2", *python(code)]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("started-*"))) == 2, lambda: "both ranks")
    run.send_signal(signal.SIGTERM)
    assert run.wait(timeout=LIMIT) == 128 + signal.SIGTERM
    run.stdout.close()


def test_a_reader_who_has_gone_ends_the_run_and_is_no_success() -> None:
    command = [sys.executable, "-m", "hvdkit", "launch", "--backend", "local", *python("while True: print('x')")]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    run.stdout.readline()
    run.stdout.close()
    assert run.wait(timeout=LIMIT) == 128 + signal.SIGPIPE
    assert b"the reader of the output has gone" in run.stderr.read()


def test_commands_that_end_at_once_are_never_taken_for_failures() -> None:
    for _ in range(5):
        result = launch("--workers", "4", "--", "echo", "hi")
        assert result.returncode == 0, result.stderr
        assert result.stdout.count("hi") == 4


def test_what_the_other_ranks_printed_is_not_lost_when_one_fails() -> None:
    code = "print('one\\n' * 5000 + f'last of {rank}')\nif rank == 1: sys.exit(3)\ntime.sleep(600)"
    result = launch("--workers", "2", *python(code))
    assert result.returncode == 3
    assert "[1] last of 1" in result.stdout


def test_options_after_the_command_are_the_commands() -> None:
    result = run_hvdkit("launch", "--backend", "local", "--", "echo", "--name", "mine", "--workers", "7")
    assert result.stdout == "[0] --name mine --workers 7\n", result.stderr


@pytest.mark.parametrize("interpreter", [sys.executable, "/usr/bin/python3"])
def test_the_hook_for_stacks_is_silent_in_any_python(interpreter: str) -> None:
    site = Path(hvdkit.__file__).parent / "runtime" / "site"
    code = f"import sys; sys.path.insert(0, {str(site)!r}); import sitecustomize; print(1)"
    result = subprocess.run([interpreter, "-S", "-c", code], capture_output=True, text=True, timeout=LIMIT)
    assert (result.stdout, result.stderr) == ("1\n", "")


IMPORTS_TORCH = """
import gc, sys
if "script's own" in sys.argv: gc.disable()
if "a look" in sys.argv: import importlib.util; assert importlib.util.find_spec("torch")
if "much" in sys.argv: much = [[] for _ in range(300_000)]
try: import torch
except RuntimeError: pass
print(gc.isenabled(), gc.get_freeze_count() > 0)
"""


@pytest.mark.parametrize(
    ("torch", "argument", "expected"),
    [
        ("import gc; assert not gc.isenabled()", "", "True True\n"),
        ("raise RuntimeError", "", "True False\n"),
        ("", "script's own", "False False\n"),
        ("import gc; assert not gc.isenabled()", "a look", "True True\n"),
        ("import gc; assert not gc.isenabled()", "much", "True False\n"),
    ],
)
def test_collections_are_put_off_only_while_torch_is_imported(
    torch: str, argument: str, expected: str, tmp_path: Path
) -> None:
    (tmp_path / "torch.py").write_text(torch)
    env = os.environ | {"PYTHONPATH": str(Path(hvdkit.__file__).parent / "runtime" / "site")}
    command = [sys.executable, "-c", IMPORTS_TORCH, argument]
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT)
    assert (result.stdout, result.stderr) == (expected, "")


def test_what_a_rank_left_in_the_background_ends_with_it(tmp_path: Path) -> None:
    with launching(tmp_path, "--workers", "2", "--", "bash", "-c", "sleep 600 & echo started") as run:
        assert run.wait() == 0, run.output()
        run.wait_until_gone()


def test_sigquit_shows_the_stacks_of_every_rank_and_training_goes_on(tmp_path: Path) -> None:
    code = """
def stuck_in_here():
    print('ready')
    while not os.path.exists('go on'): time.sleep(0.1)
stuck_in_here()
print('went on')"""
    with launching(tmp_path, "--workers", "2", *python(code)) as run:
        run.wait_for("ready", times=2)
        run.process.send_signal(signal.SIGQUIT)
        run.wait_for("in stuck_in_here", times=2)
        (tmp_path / "go on").touch()
        assert run.wait() == 0
        assert run.output().count("went on") == 2


def test_a_world_with_other_ranks_than_asked_for_fails() -> None:
    # A second -np stands for an MPI that does what it likes.
    result = launch("--workers", "2", "--mpi-arg=-np", "--mpi-arg=3", *python("print('trained')"))
    assert result.returncode == 1
    assert "the launcher asked for 2 ranks, but rank" in result.stderr and "is one of 3" in result.stderr
    assert "trained" not in result.stdout


def test_ranks_that_never_start_fail_the_job(tmp_path: Path) -> None:
    # An mpirun that starts nothing stands for a node that hangs; ours is found first, so it is named by PATH alone.
    code = (
        "from hvdkit.jobs import local; from hvdkit.jobs.spec import JobSpec;"
        "from hvdkit.local.machine import read_machine; from hvdkit.local.supervisor import RunOptions, run;"
        "from dataclasses import replace;"
        "machine = replace(read_machine(), mpirun=sys.argv[1]);"
        "plan = local.render(JobSpec(name='x', command=('true',), workers=2), machine);"
        "outcome = run(plan, RunOptions(start_timeout=2)); print(outcome.exit_code, outcome.reason)"
    )
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\nexec sleep 600\n")
    mpirun.chmod(0o755)
    command = [sys.executable, "-c", f"import sys; {code}", str(mpirun)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert result.stdout == "3 2 of 2 ranks did not start within 2 s (first missing: rank 0)\n", result.stderr


def test_horovod_itself_refuses_another_world_than_the_launcher_announced() -> None:
    code = "import horovod.torch as hvd; hvd.init(); print('trained')"
    result = launch("--workers", "2", "--env", "HVDKIT_WORLD_SIZE=4", *python(code))
    assert result.returncode == 1
    assert "trained" not in result.stdout
    assert "4 ranks" in result.stderr and "2 ranks" in result.stderr


def test_dry_run_prints_a_script_that_runs(tmp_path: Path) -> None:
    arguments = ["--workers", "2", "--env", "GREETING=it's $HOME", *python("print(rank, os.environ['GREETING'])")]
    script = launch("--dry-run", *arguments)
    result = subprocess.run(["bash", "-c", script.stdout], capture_output=True, text=True, timeout=LIMIT)
    assert result.returncode == 0, result.stderr
    assert sorted(result.stdout.splitlines()) == ["0 it's $HOME", "1 it's $HOME"]


def test_dry_run_json_is_what_runs(tmp_path: Path) -> None:
    code = "print('ready'); time.sleep(600)"
    arguments = ["--name", "same", "--workers", "2", *python(code)]
    plan = json.loads(launch("--dry-run", "--json", *arguments).stdout)
    with launching(tmp_path, *arguments) as run:
        run.wait_for("ready", times=2)
        pid = run.pid_of("mpirun -np")
        argv = Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
        env = dict(pair.split("=", 1) for pair in Path(f"/proc/{pid}/environ").read_text().split("\0") if pair)
    (process,) = plan["processes"]
    assert argv[1:] == process["argv"][1:]
    assert process["env"].items() <= env.items()


def test_explain_gives_a_reason_for_every_setting() -> None:
    result = launch("--workers", "2", "--explain")
    lines = result.stdout.splitlines()
    assert len(lines) > 20 and len(lines) % 2 == 0
    assert all(line.startswith("    ") and len(line) > 10 for line in lines[1::2])


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--workers", "0"], 2, "--workers: 0 is too few"),
        (["--workers", "-3"], 2, "workers: -3 is too few"),
        (["--workers", "1000000"], 2, "--workers: 1000000 workers"),
        (["--workers", "9999"], 2, "cores of this machine"),
        (["--slots", "0"], 2, "--slots: 0"),
        (["--threads", "0"], 2, "--threads: 0"),
        (["--workers", "many"], 2, "'many' is not a valid integer"),
        (["--name", "Not A Name"], 2, "--name: 'Not A Name'"),
        (["--env", "LEARNING_RATE"], 2, "--env: 'LEARNING_RATE' has no '='"),
        (["--env", "1A=2"], 2, "--env: '1A' is not a variable name"),
        (["--hosts", "a:x"], 2, "--hosts: 'a:x'"),
        (["--hosts", "a:1,a:1"], 2, "--hosts: 'a' is listed twice"),
        (["--grace", "nan"], 2, "'--grace'"),
        (["--start-timeout", "-5"], 2, "'--start-timeout'"),
        (["--hosts", "a:1", "--workers", "2"], 2, "--workers: 2 workers, but --hosts lists 1"),
        (["--hosts", "no-such-host.invalid:1"], 3, "'no-such-host.invalid' does not resolve"),
        (["--controller", "gloo", "--mpi-arg=-x"], 2, "--mpi-arg needs --controller mpi"),
        (["--debug-rank", "5"], 2, "--debug-rank: there is no rank 5"),
        (["--grace", "0"], 2, "--grace: 0 is too few"),
        (["--image", "a"], 2, "--image: backend local on this machine has no use for it"),
        (["--log-dir", "/proc/nothing"], 2, "--log-dir: cannot write to /proc/nothing"),
        (["--", "no-such-command"], 2, "command: 'no-such-command'"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], code: int, message: str) -> None:
    result = launch(*arguments)
    assert result.returncode == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_command_that_fails_to_start_on_the_ranks_says_so(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    result = launch("--workers", "2", "--", str(script))
    assert result.returncode == 127
    assert "cannot run" in result.stderr and "Traceback" not in result.stderr


def test_auto_names_the_backend_and_why(tmp_path: Path) -> None:
    clean = {key: value for key, value in os.environ.items() if key != "KUBECONFIG"} | {"HOME": str(tmp_path)}
    here = run_hvdkit("launch", "--", "true", env=clean)
    assert here.returncode == 0 and "backend local (no cluster is configured)" in here.stderr.splitlines()[0]
    (tmp_path / "config").write_text("apiVersion: v1\nkind: Config\n")
    cluster = run_hvdkit("launch", "--", "true", env=clean | {"KUBECONFIG": str(tmp_path / "config")})
    assert cluster.returncode == 3 and "names no current context" in cluster.stderr


def test_our_flag_after_the_command_is_not_lost_on_it() -> None:
    result = run_hvdkit("launch", "--backend", "local", "python", "train.py", "--dry-run")
    assert result.returncode == 2 and "--dry-run: it stands after the command" in result.stderr
    assert run_hvdkit("launch", "--backend", "local", "--dry-run", "--", "true", "--dry-run").returncode == 0


def test_json_outcome(tmp_path: Path) -> None:
    # Rank 1 fails when rank 0 has spoken: a failed rank ends the other one, wherever it is.
    said = str(tmp_path / "said")
    code = f"print('hello', flush=True)\nif rank == 0: open({said!r}, 'w')\n"
    code += f"while not os.path.exists({said!r}): time.sleep(0.05)\nsys.exit(5 * rank)"
    result = launch("--workers", "2", "--json", *python(code))
    outcome = json.loads(result.stdout)  # what the ranks print goes to stderr
    assert "[0] hello" in result.stderr
    assert result.returncode == outcome["exit_code"] == 5
    assert outcome["rank"] == 1 and outcome["tail"] == ["hello"]


@pytest.mark.parametrize("no_color", ["", "1"])
def test_colour_only_on_a_terminal_that_wants_it(no_color: str) -> None:
    output = on_a_terminal(["--workers", "2", *python("print('hello')")], env={"NO_COLOR": no_color})
    plain = re.sub(r"\x1b\[[0-9;]*m", "", output)
    assert "[0] hello" in plain and "[1] hello" in plain
    assert ("\x1b[" in output) == (no_color == "")


def test_debug_rank_gives_the_terminal_to_one_rank(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    code = f"import os\nrank = {RANK}\nsecret = 6 * 7\nbreakpoint() if rank == 1 else None\nprint('end', rank)\n"
    script.write_text(code)
    arguments = ["--workers", "2", "--debug-rank", "1", "--", "python", str(script)]
    output = on_a_terminal(arguments, answers=[("(Pdb)", "p secret\n"), ("42", "c\n")])
    assert "[0] end 0" in re.sub(r"\x1b\[[0-9;]*m", "", output)
    assert output.count("end 1") == 1  # and not a second time, as `python -m pdb` would have it


def test_debug_rank_opens_pdb_where_an_exception_ended_it(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("def divide(a, b):\n    return a / b\n")
    script = tmp_path / "train.py"
    script.write_text(f"import os, helper\nif {RANK} == 1:\n    helper.divide(7, 0)\n")
    arguments = ["--workers", "2", "--debug-rank", "1", "--", "python", str(script)]
    output = on_a_terminal(arguments, answers=[("(Pdb)", "p a * 6\n"), ("42", "q\n")])
    assert "ZeroDivisionError" in output and "rank 1 " in output


def on_a_terminal(arguments: list[str], env: dict[str, str] | None = None, answers: list[tuple[str, str]] = ()) -> str:
    """Run a launch on a pseudo-terminal, answering each prompt with its text."""
    import pty
    import select

    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(env or {})
        os.execv(sys.executable, [sys.executable, "-m", "hvdkit", "launch", "--backend", "local", *arguments])
    output, searched, waiting = "", 0, list(answers)

    def ended() -> bool:
        nonlocal output, searched
        if not select.select([terminal], [], [], 0.1)[0]:
            return False
        try:
            data = os.read(terminal, 65536)
        except OSError:  # Linux's way to say that the other side has closed the terminal
            return True
        output += data.decode(errors="replace")
        if waiting and waiting[0][0] in output[searched:]:
            searched = len(output)
            os.write(terminal, waiting.pop(0)[1].encode())
        return not data

    wait_until(ended, lambda: f"an end of: {output}")
    os.waitpid(pid, 0)
    os.close(terminal)
    return output
