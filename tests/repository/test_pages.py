"""README and docs: the code blocks run, the links resolve, the commands they name exist."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "VIOLATIONS.md"]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.M | re.S)


def blocks(language: str) -> list:
    found = []
    for page in PAGES:
        for at, (tag, body) in enumerate(FENCE.findall(page.read_text())):
            if tag == language:
                found.append(pytest.param(body, id=f"{page.relative_to(ROOT)}#{at}"))
    return found


@pytest.mark.parametrize("code", blocks("python"))
def test_python_blocks_run(code: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", code],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr


def commands() -> list:
    lines = [(p.values[0], p.id) for p in blocks("console")]
    return [
        pytest.param(line[2:], id=f"{where}: {line[2:]}"[:120])
        for body, where in lines
        for line in body.replace("\\\n", " ").splitlines()
        if line.startswith("$ dissensus ")
    ]


@pytest.mark.parametrize("line", commands())
def test_console_lines_succeed(line: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *shlex.split(line)], capture_output=True, text=True, timeout=240, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


def test_the_study_of_the_page_is_one(tmp_path: Path) -> None:
    from dissensus.experiments.loading import load

    found = [body for tag, body in FENCE.findall((ROOT / "docs" / "study.md").read_text()) if tag == "toml"]
    files = [tmp_path / "first.toml", tmp_path / "sweep.toml"]
    for file, body in zip(files, found, strict=True):
        file.write_text(body)
    assert list(load(files[0]).arms) == ["centralized", "dsgd", "dsgd-ac"]
    study = load(files)
    assert len(study.arms) == 2 + 2 + 2 * 3
    assert study.label("dsgd-ac-6") == "DSGD-AC, optimizer.momentum 0.9, p 3"
