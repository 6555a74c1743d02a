"""The application: its commands, and how every error becomes one line and an exit code."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from mhaprof import __version__
from mhaprof.cli.commands import add_commands
from mhaprof.cli.output import say
from mhaprof.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, MhaprofError
from mhaprof.report.tabular import to_json

EXIT_INTERNAL = 70
"""A defect of mhaprof itself (EX_SOFTWARE of sysexits.h)."""

COMPLETION = "_MHAPROF_COMPLETE"
"""Set by the shell when it asks for completions."""


def build(arguments: Sequence[str]) -> typer.Typer:
    """Return the application with the command that ``arguments`` name loaded."""
    app = typer.Typer(
        name="mhaprof",
        help="What attention costs: exact FLOP counts, trustworthy times, a gate for CI.",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback(invoke_without_command=True)(root)
    add_commands(app, arguments, everything=COMPLETION in os.environ)
    return app


def root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)
    ] = False,
) -> None:
    """What attention costs: exact FLOP counts, trustworthy times, a gate for CI."""
    if version:
        print(f"mhaprof {__version__}")
        raise typer.Exit(EXIT_OK)
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())
        raise typer.Exit(EXIT_OK)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return the exit code; never raises for a user's error."""
    command = typer.main.get_command(build(arguments))
    try:
        code = command.main(args=list(arguments), prog_name="mhaprof", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else EXIT_OK
    except typer.Exit as stop:
        return stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        return _failed(arguments, "interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        _abandon_stdout()
        return EXIT_OK
    except MhaprofError as error:
        return _failed(arguments, str(error), error.exit_code)
    except Exception as error:  # noqa: BLE001  (a defect costs one line too)
        return _unexpected(arguments, error)


def _unexpected(arguments: Sequence[str], error: Exception) -> int:
    """Word a parse error of the command line, or admit a defect in one line."""
    if isinstance(error, _command_line_error()):
        message = " ".join(error.format_message().split())  # type: ignore[attr-defined]
        return _failed(arguments, message.rstrip("."), EXIT_USAGE)
    if os.environ.get("MHAPROF_TRACEBACK"):
        raise error
    message = f"internal error: {type(error).__name__}: {error}".splitlines()[0]
    return _failed(
        arguments,
        f"{message}; please report it with the output of MHAPROF_TRACEBACK=1",
        EXIT_INTERNAL,
    )


def _command_line_error() -> type[Exception]:
    """Return the parser's base error, wherever this version of typer keeps it."""
    return next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def _failed(arguments: Sequence[str], message: str, code: int) -> int:
    for line in message.splitlines():
        say(line)
    if _wants_json(arguments):
        print(to_json([], error={"message": message, "exit_code": code}), end="")
    return code


def _wants_json(arguments: Sequence[str]) -> bool:
    """Say whether stdout has to hold valid JSON even now."""
    if "--format=json" in arguments:
        return True
    return ("--format", "json") in itertools.pairwise(arguments)


def _abandon_stdout() -> None:
    """Let the interpreter exit quietly when the reader of a pipe is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
