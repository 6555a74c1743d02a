"""``mhaprof schema``: the JSON Schema of configuration files, for editors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mhaprof.cli.output import Output, check_writable
from mhaprof.config import schema_text
from mhaprof.errors import EXIT_OK


def schema(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="write to this file instead of standard output"
        ),
    ] = None,
) -> int:
    """Print the JSON Schema (draft 2020-12) of configuration files.

    Editors with yaml-language-server check a file that begins with
    '# yaml-language-server: $schema=PATH'.
    """
    if output is not None:
        check_writable(output)
    Output(format="json", path=output).write(schema_text())
    return EXIT_OK
