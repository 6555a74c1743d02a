"""``hf:org/name``: through the hub's own client and cache; offline it says what to do."""

from __future__ import annotations

import builtins
import json
import subprocess
import sys
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


def offline(cache: Path, reference: str) -> subprocess.CompletedProcess[str]:
    """Read a reference in a fresh process that may not use the network."""
    code = (
        "import sys\n"
        "from mhaprof.errors import UsageError\n"
        "from mhaprof.huggingface.sources import read_config\n"
        "try: print(dict(read_config(sys.argv[1]).values))\n"
        "except UsageError as error: print(f'refused: {error}')\n"
    )
    return subprocess.run(
        [sys.executable, "-c", code, reference],
        capture_output=True,
        text=True,
        env={"PATH": "", "HF_HUB_OFFLINE": "1", "HF_HOME": str(cache), "HOME": str(cache)},
        check=True,
    )


def test_the_offline_cache_is_honoured(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    commit = "0" * 40
    repository = tmp_path / "hub" / "models--org--name"
    snapshot = repository / "snapshots" / commit
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    (snapshot / "config.json").write_text(json.dumps(CONFIG))
    assert offline(tmp_path, "hf:org/name").stdout.strip() == str(CONFIG)


def test_a_model_that_is_not_cached_says_how_to_hand_its_file_over(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    out = offline(tmp_path, "hf:org/other").stdout
    assert out.startswith("refused: --model hf:org/other: org/other is not in the cache")
    assert "save its config.json and give --model FILE" in out


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
