"""From joining the world to leaving it: what ends one rank ends all of them, and is said once."""

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar

from hvdkit.errors import EXIT_FAILED, EXIT_INTERRUPTED, HvdkitError
from hvdkit.runtime import guard
from hvdkit.runtime.engine import Engine, start

Result = TypeVar("Result")


class AllRanksLeave(HvdkitError):
    """Every rank has learnt the same reason to leave, and raises this at the same point of the program."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextlib.contextmanager
def session(engine_name: str) -> Iterator[Engine]:
    """Join the world, check that it is the one that was launched, and leave it whatever happens."""
    engine = None
    try:
        engine = start(engine_name)
        try:
            guard.check_world(engine.size, len(set(engine.hosts)), os.environ)
        except HvdkitError as error:
            raise AllRanksLeave(str(error), error.exit_code) from None
        yield engine
        engine.shutdown()
    except AllRanksLeave as reason:
        if engine.rank == 0:
            _say(f"hvdkit: {reason}")
        # A launcher ends all ranks when the first one has left: rank 0 must have spoken by then.
        engine.barrier()
        engine.shutdown()
        sys.exit(reason.exit_code)
    except BaseException as error:
        if engine is not None and engine.size == 1:
            raise  # nobody waits for us
        _leave_alone(error, engine)


def on_every_rank(engine: Engine, work: Callable[[], Result]) -> Result:
    """Do `work` on all ranks; when it fails on one, all of them leave with that rank's reason."""
    result, failure = None, None
    try:
        result = work()
    except HvdkitError as error:
        failure = (str(error), error.exit_code)
    failures = [found for found in engine.gather(failure) if found is not None]
    if failures:
        raise AllRanksLeave(*failures[0])
    return result


def _leave_alone(error: BaseException, engine: Engine | None) -> NoReturn:
    """Leave while other ranks wait for us: no shutdown, no exit handlers, both of which would wait for them.

    The process ends without MPI_Finalize, which makes mpirun end the others; under Gloo the launcher does.
    """
    rank = f"rank {engine.rank}: " if engine is not None and engine.size > 1 else ""
    code = EXIT_FAILED
    if isinstance(error, HvdkitError):
        _say(f"hvdkit: {rank}{error}")
        code = error.exit_code
    elif isinstance(error, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    elif isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    elif type(error).__name__ == "HorovodInternalError":
        # The rank that failed shows its own traceback; ours would only say that it has gone.
        _say(f"hvdkit: {rank}stopped because another rank has gone.")
    else:
        lines = traceback.format_exception(type(error), error, error.__traceback__.tb_next)  # without session()
        _say("".join(lines).rstrip())
    sys.stdout.flush()
    os._exit(code)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
