"""The errors a user sees: one sentence that names the field, the file and the way out.

The exit codes are the same for every command: 0 done, 1 the job failed, 2 bad usage or input,
3 the environment (no cluster, no Horovod), 75 stopped in good order, 130 interrupted.
"""

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_ENVIRONMENT = 3
EXIT_RESTART_ME = 75  # sysexits' EX_TEMPFAIL: stopped in good order, run me again
EXIT_INTERRUPTED = 130


class HvdkitError(Exception):
    """Something failed, and the message says what in one sentence. Shown without a traceback."""

    exit_code = EXIT_FAILED


class InputError(HvdkitError):
    """The user asked for something that cannot be: a flag, a file or a field is wrong."""

    exit_code = EXIT_USAGE


class EnvironmentProblem(HvdkitError):
    """The machine lacks something: a compiler, Horovod, a cluster, disk space."""

    exit_code = EXIT_ENVIRONMENT
