"""``mhaprof schema``: the JSON Schema of configuration files, for editors."""

from __future__ import annotations

from mhaprof.cli.options import takes
from mhaprof.cli.output import Output, OutputGroup
from mhaprof.config import schema_text
from mhaprof.errors import EXIT_OK


@takes(out=OutputGroup("json"))
def schema(*, out: Output) -> int:
    """Print the JSON Schema (draft 2020-12) of configuration files.

    Editors with yaml-language-server check a file that begins with
    '# yaml-language-server: $schema=PATH'.
    """
    out.write(schema_text())
    return EXIT_OK
