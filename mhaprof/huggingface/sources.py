"""Where a config.json comes from: a file, a preset, or the hub (``hf:org/name``)."""

from __future__ import annotations

import contextlib
import difflib
import json
import logging
import re
import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mhaprof.errors import ConfigError, LocatedFault, MissingExtra, UsageError
from mhaprof.huggingface.formats import refuse_weights
from mhaprof.huggingface.keys import Locate, locator

HUB_PREFIX = "hf:"

PRESET_FOLDERS = (
    Path(__file__).resolve().parents[1] / "presets",
    Path(__file__).resolve().parents[2] / "configs" / "models",
)
"""Where presets lie: in the installed package, or in the repository."""


@dataclass(frozen=True, kw_only=True)
class RawConfig:
    """A config as it was written; ``locate`` finds a key's line and column, if known."""

    source: str
    values: Mapping[str, Any]
    locate: Locate | None


def read_config(reference: str) -> RawConfig:
    """Read ``path/to/config.json`` (or its folder), a preset, or ``hf:org/name[@revision]``.

    Raises UsageError for what cannot be found or read, ConfigError for text that is no
    JSON object, MissingExtra if the hub's client is needed and not installed.
    """
    if reference.startswith(HUB_PREFIX):
        return _parsed(_from_hub(reference), source=reference)
    path = Path(reference)
    if path.is_dir():
        inside = (path / name for name in ("config.json", "params.json", "open_clip_config.json"))
        path = next((each for each in inside if each.exists()), path / "config.json")
    elif reference in preset_names() and not path.exists():
        return read_preset(reference)
    return _parsed(path, source=str(path))


def _hint(reference: str) -> str:
    """Say what a name that is no file was probably meant to be."""
    near = difflib.get_close_matches(reference, preset_names(), n=1)
    if near:
        return f"; did you mean the preset {near[0]}?"
    hub = re.fullmatch(r"[\w.-]+/[\w.-]+(@\w+)?", reference) and not reference.endswith(".json")
    return f"; for the model on the hub give {HUB_PREFIX}{reference}" if hub else ""


MAX_CHARACTERS = 4 * 1024**2
"""The longest config.json: many times what any published one has."""


def _parsed(path: Path, *, source: str) -> RawConfig:
    try:
        refuse_weights(path, source=source)
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(MAX_CHARACTERS + 1)
    except OSError as error:
        hint = _hint(source) if isinstance(error, FileNotFoundError) else ""
        raise UsageError(f"--model {source}: {error.strerror or error}{hint}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--model {source}: is not UTF-8 text; expected JSON") from error
    except ValueError as error:  # a NUL in the name
        raise UsageError(f"--model {source!r}: is not the name of a file") from error
    if len(text) > MAX_CHARACTERS:
        raise UsageError(
            f"--model {source}: is longer than {MAX_CHARACTERS} characters; expected a config.json"
        )
    try:
        values = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        raise ConfigError(
            [
                LocatedFault(
                    file=source,
                    line=error.lineno,
                    column=error.colno,
                    key="JSON",
                    message=error.msg,
                )
            ]
        ) from error
    except (ValueError, RecursionError) as error:
        reason = str(error) or "it is nested too deeply"
        raise UsageError(f"--model {source}: is not a config.json: {reason}") from error
    if not isinstance(values, dict):
        raise UsageError(f"--model {source}: expected a JSON object of keys")
    return RawConfig(source=source, values=values, locate=locator(text))


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object of its keys; a key given twice is an error, not a choice."""
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice} is given twice")
    return values


def _from_hub(reference: str) -> Path:
    """Fetch config.json through the hub's own client and cache; honours its offline mode."""
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import (
            EntryNotFoundError,
            GatedRepoError,
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
            RepositoryNotFoundError,
        )
    except ImportError as error:
        raise MissingExtra(
            package="huggingface_hub", extra="hf", purpose=f"--model {reference}"
        ) from error
    name, _, revision = reference.removeprefix(HUB_PREFIX).partition("@")
    if name.count("/") > 1 or not name.strip("/"):
        raise UsageError(f"--model {reference}: expected hf:org/name or hf:org/name@revision")
    try:
        with _quietly():
            return Path(
                hf_hub_download(
                    name,
                    "config.json",
                    revision=revision or None,
                    local_files_only=not _hub_may_answer(),
                )
            )
    except GatedRepoError as error:
        reason = "is gated"
        cause: Exception = error
    except RepositoryNotFoundError as error:
        reason, cause = "does not exist, or is private", error
    except LocalEntryNotFoundError as error:
        reason, cause = "is not in the cache, and the hub cannot be reached", error
    except EntryNotFoundError as error:
        reason, cause = "has no config.json", error
    except HFValidationError as error:
        raise UsageError(
            f"--model {reference}: expected hf:org/name or hf:org/name@revision"
        ) from error
    except (HfHubHTTPError, OSError) as error:
        reason, cause = f"cannot be fetched ({type(error).__name__})", error
    raise UsageError(
        f"--model {reference}: {name} {reason}; save its config.json and give --model FILE"
    ) from cause


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Keep the client from logging each failed try: what it means is said in one line."""
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _hub_may_answer() -> bool:
    """Say whether the hub's name resolves, or a proxy would: without, retries are in vain."""
    from huggingface_hub.constants import ENDPOINT

    if urllib.request.getproxies():
        return True
    try:
        socket.getaddrinfo(urllib.parse.urlsplit(ENDPOINT).hostname, None)
    except OSError:
        return False
    return True


def preset_names() -> list[str]:
    """Return the names of the presets, sorted."""
    return sorted(path.stem for path in _preset_folder().glob("*.yaml"))


def read_preset(name: str) -> RawConfig:
    """Read a preset by its name.  Raises UsageError for an unknown one."""
    names = preset_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {near[0]}?" if near else "`mhaprof presets` lists them"
        raise UsageError(f"--preset {name!r} is not a preset; {hint}")
    path = _preset_folder() / f"{name}.yaml"
    return RawConfig(source=name, values=_yaml(path), locate=None)


def preset_note(name: str) -> str:
    """Return the comment at the top of a preset: the model's name and the facts' source."""
    lines = (_preset_folder() / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    comments = [line.removeprefix("#").strip() for line in lines if line.startswith("#")]
    return " ".join(line for line in comments if not line.startswith("yaml-language-server"))


def _preset_folder() -> Path:
    found = next((folder for folder in PRESET_FOLDERS if folder.is_dir()), None)
    if found is None:
        raise UsageError("the presets are not installed beside mhaprof; install it anew")
    return found


def _yaml(path: Path) -> dict[str, Any]:
    from ruamel.yaml import YAML

    values: dict[str, Any] = YAML(typ="safe", pure=True).load(path)
    return values
