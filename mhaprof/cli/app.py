"""The application: its commands, and how every error becomes one line and an exit code."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from mhaprof import signals
from mhaprof.cli.commands import COMMANDS, ROOT, add_commands
from mhaprof.cli.help import HelpCommand, HelpGroup, version
from mhaprof.cli.output import ClosedOutput, abandon_stdout, is_broken_pipe, say
from mhaprof.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_POINT_FAILED,
    EXIT_USAGE,
    MhaprofError,
    UsageError,
)
from mhaprof.report.tabular import to_json

EXIT_INTERNAL = 70
"""A defect of mhaprof itself (EX_SOFTWARE of sysexits.h)."""

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""What a full disk or a closed stream says: the user's to mend, no defect."""

EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)
"""What a machine or a limit (``ulimit``) says that has no descriptor, process or memory left."""

COMPLETION = "_MHAPROF_COMPLETE"
"""Set by the shell when it asks for completions."""


def build(arguments: Sequence[str]) -> typer.Typer:
    """Return the application with the command that ``arguments`` name loaded."""
    app = typer.Typer(
        name="mhaprof",
        help=ROOT.help,
        cls=HelpGroup,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={
            "help_option_names": ["-h", "--help", "--help-all"],
            "max_content_width": 100,
            "obj": {"everything": "--help-all" in arguments},
        },
    )
    app.callback(invoke_without_command=True)(root)
    add_commands(
        app,
        arguments,
        command=HelpCommand,
        group=HelpGroup,
        everything=COMPLETION in os.environ,
    )
    return app


def root(
    ctx: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the versions and exit.", is_eager=True)
    ] = False,
) -> None:
    """What attention costs: exact FLOP counts, trustworthy times, a gate for CI."""
    if show_version:
        raise typer.Exit(version())
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
        raise typer.Exit(EXIT_OK)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return the exit code; never raises for a user's error."""
    if sys.stdout is None:
        sys.stdout = ClosedOutput()
    arguments = _in_flags(arguments)
    command = typer.main.get_command(build(arguments))
    signals.begin()
    return signals.exit_code(_run(command, arguments))


def _in_flags(arguments: Sequence[str]) -> Sequence[str]:
    """Return ``help COMMAND`` as ``COMMAND --help``, and ``help`` as ``--help``."""
    first, *words = [*arguments, ""]
    return [*words[:-1], "--help"] if first == "help" and words[0] in ("", *COMMANDS) else arguments


def _run(command: Any, arguments: Sequence[str]) -> int:
    try:
        code = command.main(args=list(arguments), prog_name="mhaprof", standalone_mode=False)
        signals.enter("writing")
        sys.stdout.flush()
        if code == EXIT_INTERRUPTED:  # typer makes it of KeyboardInterrupt
            raise KeyboardInterrupt
        return code if isinstance(code, int) else EXIT_OK
    except typer.Exit as stop:
        return stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        signals.interrupted()
        return _failed(arguments, "interrupted", EXIT_INTERRUPTED)
    except (BrokenPipeError, SystemExit) as stop:  # typer makes the second of the first
        if not is_broken_pipe(stop):
            raise
        abandon_stdout()
        return EXIT_OK
    except MhaprofError as error:
        message = str(error)
        if type(error) is UsageError and error.__cause__ is None and message.startswith("--"):
            message += f" ({_help_of(arguments, error)})"
        return _failed(arguments, message, error.exit_code)
    except Exception as error:  # noqa: BLE001  (a defect costs one line too)
        return _unexpected(arguments, error)


def _unexpected(arguments: Sequence[str], error: Exception) -> int:
    """Word a parse error of the command line, or admit a defect in one line."""
    if isinstance(error, _command_line_error()):
        message = f"{_parse_error(arguments, error)} ({_help_of(arguments, error)})"
        return _failed(arguments, message, EXIT_USAGE)
    if signals.exit_code(EXIT_OK):  # what a library made of the interrupt
        return _failed(arguments, "interrupted", EXIT_INTERRUPTED)
    if isinstance(error, MemoryError) or getattr(error, "errno", None) in EXHAUSTED:
        reason = getattr(error, "strerror", None) or "out of memory"
        return _failed(arguments, f"{reason}: see `ulimit -a`", EXIT_POINT_FAILED)
    if isinstance(error, OSError) and error.errno in UNWRITABLE:
        abandon_stdout()
        reason = f"the output cannot be written: {error.strerror}; give --output FILE elsewhere"
        return _failed(arguments, reason, EXIT_USAGE)
    if os.environ.get("MHAPROF_TRACEBACK"):
        raise error
    message = f"internal error: {type(error).__name__}: {error}".splitlines()[0]
    return _failed(
        arguments,
        f"{message}; please report it with the output of MHAPROF_TRACEBACK=1",
        EXIT_INTERNAL,
    )


def _help_of(arguments: Sequence[str], error: Exception) -> str:
    """Return the command line that helps with an error of flags."""
    context = getattr(error, "ctx", None)
    named = [word for word in arguments[:1] if word in COMMANDS]
    return f"{context.command_path if context else ' '.join(['mhaprof', *named])} --help"


def _parse_error(arguments: Sequence[str], error: Any) -> str:
    """Word what the parser refused, with the value that was given to the option."""
    options: list[str] = getattr(getattr(error, "param", None), "opts", [])
    for index in reversed(range(len(arguments))):
        flag, equals, value = arguments[index].partition("=")
        if flag in options and isinstance(error, typer.BadParameter):
            given = value if equals else "".join(arguments[index + 1 : index + 2])
            reason = error.message.rstrip(".")
            return f"{flag} {given!r}: {reason[:1].lower()}{reason[1:]}"
    message: str = " ".join(error.format_message().split())
    return message.rstrip(".")


def _command_line_error() -> type[Exception]:
    """Return the parser's base error, wherever this version of typer keeps it."""
    return next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _failed(arguments: Sequence[str], message: str, code: int) -> int:
    signals.enter("writing")
    code = signals.exit_code(code)
    if signals.has_written() and message == "interrupted":
        return code  # all was written that there is
    for line in message.splitlines():
        say(line)
    if signals.wants_json(arguments) and not signals.has_written():
        try:
            print(to_json([], error={"message": message, "exit_code": code}), end="", flush=True)
        except OSError:  # nobody can be told more than stderr has said
            abandon_stdout()
    return code
