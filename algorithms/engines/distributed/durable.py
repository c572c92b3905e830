"""Files that are there whole or not at all, whenever the machine stops: written beside, forced to disk, moved over.

`os.replace` is atomic, so a reader sees the old file or the new one. What a kill leaves behind is a draft whose name
starts with a dot. Directories are forced to disk too, so that an order of two moves holds through a power cut.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple


class Written(NamedTuple):
    """What a file holds, as far as can be told from outside."""

    bytes: int
    sha256: str


def write_durably(path: Path, write: Callable[[BinaryIO], object], check: Callable[[Path], object] = bool) -> Written:
    """Writes a file whole or not at all. `check` sees the draft, and may refuse it by raising."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        check(draft)
        written = measured(draft)
        os.replace(draft, path)
    except Exception:
        draft.unlink(missing_ok=True)  # a disk that is full needs the room
        raise
    settle(path.parent)
    return written


def measured(path: Path) -> Written:
    """The length and hash of a file."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        return Written(stream.tell(), digest)


def settle(folder: Path) -> None:
    """Forces the names in a folder to disk, where the file system can."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError:
        return  # some network file systems have nothing to force
    finally:
        os.close(handle)


def remove_last(folder: Path, first: str) -> None:
    """Removes a folder of files, the file `first` before all others: without it the folder counts as incomplete."""
    (folder / first).unlink(missing_ok=True)
    settle(folder)
    for path in folder.iterdir():
        path.unlink(missing_ok=True)
    os.rmdir(folder)
