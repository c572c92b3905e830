"""What goes first when a folder is removed, and what a hash says."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from dissensus.algorithms.engines.distributed.durable import measured, remove_last, write_durably


def test_the_description_goes_first_and_is_known_to_be_gone_before_anything_else_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    for name in ("a", "state.json", "z", ".draft"):
        (folder / name).write_text(name)
    happened: list[str] = []
    for name in ("unlink", "fsync", "rmdir"):
        real = getattr(os, name)

        def spied(what: Any, *args: Any, name: str = name, real: Any = real) -> None:
            happened.append(name if name == "fsync" else f"{name} {Path(what).name}")
            real(what, *args)

        monkeypatch.setattr(os, name, spied)
    remove_last(folder, "state.json")
    assert happened[:2] == ["unlink state.json", "fsync"]
    assert sorted(happened[2:-1]) == ["unlink .draft", "unlink a", "unlink z"]
    assert happened[-1] == "rmdir old"
    assert not folder.exists()


def test_a_file_is_measured_and_a_refused_draft_is_gone(tmp_path: Path) -> None:
    written = write_durably(tmp_path / "a", lambda stream: stream.write(b"abc"))
    assert written == measured(tmp_path / "a") == (3, hashlib.sha256(b"abc").hexdigest())

    def refuse(draft: Path) -> None:
        assert draft.read_bytes() == b"xyz"
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        write_durably(tmp_path / "a", lambda stream: stream.write(b"xyz"), refuse)
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"abc"
