"""``hf:org/name``: through the hub's own client and cache; offline it says what to do."""

from __future__ import annotations

import builtins
import json
import logging
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from mhaprof.errors import MissingExtra, UsageError
from mhaprof.huggingface.sources import read_config

CONFIG = {"model_type": "llama", "hidden_size": 64}


def test_without_the_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("huggingface_hub"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r"mhaprof\[hf\]"):
        read_config("hf:org/name")


@pytest.mark.parametrize("reference", ["hf:", "hf:a/b/c", "hf:/", "hf:org/na me"])
def test_a_name_that_cannot_be_one_is_refused(reference: str) -> None:
    pytest.importorskip("huggingface_hub")
    with pytest.raises(UsageError, match="expected hf:org/name"):
        read_config(reference)


def offline(cache: Path, *references: str) -> list[str]:
    """Read references in a fresh process that may not use the network: a line for each."""
    code = (
        "import sys\n"
        "from mhaprof.errors import UsageError\n"
        "from mhaprof.huggingface.sources import read_config\n"
        "for reference in sys.argv[1:]:\n"
        "    try: print(dict(read_config(reference).values))\n"
        "    except UsageError as error: print(f'refused: {error}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *references],
        capture_output=True,
        text=True,
        env={"PATH": "", "HF_HUB_OFFLINE": "1", "HF_HOME": str(cache), "HOME": str(cache)},
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_the_offline_cache_is_honoured_and_what_is_not_in_it_says_how_to_hand_it_over(
    tmp_path: Path,
) -> None:
    pytest.importorskip("huggingface_hub")
    commit = "0" * 40
    repository = tmp_path / "hub" / "models--org--name"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    (snapshot / "config.json").write_text(json.dumps(CONFIG))
    cached, out = offline(tmp_path, "hf:org/name", "hf:org/other")
    assert cached == str(CONFIG)
    assert out.startswith("refused: --model hf:org/other: org/other is not in the cache")
    assert "save its config.json and give --model FILE" in out


@pytest.mark.parametrize(
    ("resolves", "proxies"), [(True, {}), (False, {}), (False, {"https": "http://proxy:1"})]
)
def test_a_hub_whose_name_does_not_resolve_is_not_asked_again_and_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, resolves: bool, proxies: dict[str, str]
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    asked: list[bool] = []

    def find(*_: Any, **__: Any) -> list[Any]:
        if not resolves:
            raise socket.gaierror("Name or service not known")
        return []

    def download(*_: Any, local_files_only: bool, **__: Any) -> str:
        asked.append(local_files_only)
        assert not logging.getLogger("huggingface_hub").isEnabledFor(logging.WARNING)
        path = tmp_path / "config.json"
        path.write_text(json.dumps(CONFIG))
        return str(path)

    monkeypatch.setattr(socket, "getaddrinfo", find)
    monkeypatch.setattr(urllib.request, "getproxies", lambda: proxies)
    monkeypatch.setattr(hub, "hf_hub_download", download)
    before = logging.getLogger("huggingface_hub").level
    assert read_config("hf:org/name").values == CONFIG
    assert asked == [not resolves and not proxies]
    assert logging.getLogger("huggingface_hub").level == before


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("GatedRepoError", "is gated"),
        ("RepositoryNotFoundError", "does not exist, or is private"),
        ("RemoteEntryNotFoundError", "has no config.json"),
        ("HfHubHTTPError", "cannot be fetched"),
    ],
)
def test_an_answer_of_the_hub_becomes_one_line(
    monkeypatch: pytest.MonkeyPatch, error: str, said: str
) -> None:
    hub = pytest.importorskip("huggingface_hub")
    kind = getattr(hub.errors, error)

    def fail(*_: Any, **__: Any) -> str:
        raise kind.__new__(kind)

    monkeypatch.setattr(hub, "hf_hub_download", fail)
    with pytest.raises(UsageError, match=said) as caught:
        read_config("hf:org/name")
    assert "save its config.json" in str(caught.value)
