"""README and docs: the code blocks run, the links resolve, the commands they name exist."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path

import pytest

from dissensus.experiments.cli import VERBS
from dissensus.experiments.cli.parsing import Parser
from dissensus.experiments.config import Study

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "VIOLATIONS.md"]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.M | re.S)
INDENTED = re.compile(r"(?:^ {4}[^\n]*\n)+", re.M)
SPAN = re.compile(r"`dissensus ([a-z][^`]*)`")
BY_PROCESS = ROOT / "docs" / "index.md"
"""The page whose commands are run as a user runs them; the others' run in forks of one interpreter."""


def blocks(*languages: str) -> list[tuple[str, str]]:
    """(place, body) of every fenced block in one of these languages."""
    return [
        (f"{page.relative_to(ROOT)}#{at}", body)
        for page in PAGES
        for at, (tag, body) in enumerate(FENCE.findall(page.read_text()))
        if tag in languages
    ]


def commands(body: str) -> list[str]:
    """The arguments after `dissensus` of every command line in a block, continued lines joined, comments left out."""
    lines = re.sub(r"\s#\s.*", "", body).replace("\\\n", " ").splitlines()
    found = (re.search(r"(?:^\s*(?:\$ )?|-m )dissensus ([a-z].*)", line) for line in lines)
    return [one[1] for one in found if one]


@pytest.fixture(scope="module")
def run() -> Iterator[Callable[..., str]]:
    runner = subprocess.Popen(
        [sys.executable, "-W", "error::UserWarning", str(Path(__file__).with_name("page_runner.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"OMP_NUM_THREADS": "1"} | os.environ,
    )
    requests, answers = runner.stdin, runner.stdout
    assert requests is not None
    assert answers is not None

    def ask(folder: Path, **request: object) -> str:
        print(json.dumps({"folder": str(folder), **request}), file=requests, flush=True)
        code, said, printed = json.loads(answers.readline())
        assert code == 0, said
        return printed

    with runner:
        yield ask
        requests.close()


def python_blocks() -> list:
    """Every block of Python with what the page says that it prints: an `output` block right behind it, or nothing."""
    found = []
    for page in PAGES:
        fences = list(FENCE.finditer(page.read_text()))
        for at, (fence, behind) in enumerate(zip_longest(fences, fences[1:])):
            if fence[1] != "python":
                continue
            adjacent = (
                behind is not None and behind[1] == "output" and not behind.string[fence.end() : behind.start()].strip()
            )
            shown = behind[2] if behind is not None and adjacent else None
            found.append(pytest.param(fence[2], shown, id=f"{page.relative_to(ROOT)}#{at}"))
    return found


@pytest.mark.parametrize(("code", "shown"), python_blocks())
def test_python_blocks_run(code: str, shown: str | None, run: Callable[..., str], tmp_path: Path) -> None:
    printed = run(tmp_path, code=code)
    assert shown is None or printed.split() == shown.split(), f"the page does not show what this prints:\n{printed}"


def test_every_output_block_is_behind_the_code_that_prints_it() -> None:
    assert sum(block.values[1] is not None for block in python_blocks()) == len(blocks("output"))


def console_lines() -> list:
    places: dict[str, list[str]] = {}
    for place, body in blocks("console"):
        for line in commands(body):
            places.setdefault(line, []).append(place)
    return [pytest.param(line, found, id=f"{' '.join(found)}: {line}"[:120]) for line, found in places.items()]


@pytest.mark.parametrize(("line", "places"), console_lines())
def test_console_lines_succeed(line: str, places: list[str], run: Callable[..., str], tmp_path: Path) -> None:
    if not any(place.startswith(str(BY_PROCESS.relative_to(ROOT))) for place in places):
        run(tmp_path, arguments=shlex.split(line))
        return
    command = [sys.executable, "-m", "dissensus", *shlex.split(line)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_one_block_leaves_nothing_to_the_next(run: Callable[..., str], tmp_path: Path) -> None:
    run(tmp_path, code="import numpy, dissensus.theory as t\nnumpy.left = t.left = 1\nopen('left', 'w').close()")
    (tmp_path / "other").mkdir()
    run(tmp_path / "other", code="import numpy, dissensus.theory as t, os\nassert not hasattr(t, 'left')\n"
        "assert not hasattr(numpy, 'left') and 'numpy' in dir() and not os.path.exists('left')")  # fmt: skip
    for code in ("raise SystemExit(3)", "assert False, 'no'", "import warnings\nwarnings.warn('careless')"):
        with pytest.raises(AssertionError):
            run(tmp_path, code=code)
    with pytest.raises(AssertionError, match="unknown topology"):
        run(tmp_path, arguments=["topology", "rong", "--n", "4"])


def named_commands() -> list:
    """Every command that a page names without running it: in blocks (`True`: complete), and in a sentence."""
    found: dict[tuple[str, bool], str] = {}
    for place, body in blocks("sh", "text", "bash"):
        found |= {(line, True): place for line in commands(body)}
    for page in PAGES:
        rest = FENCE.sub("", page.read_text())
        place = str(page.relative_to(ROOT))
        found |= {(line, True): place for part in INDENTED.findall(rest) for line in commands(part)}
        found |= {(line, False): place for line in SPAN.findall(INDENTED.sub("", rest))}
    return [pytest.param(line, whole, id=f"{place}: {line}"[:120]) for (line, whole), place in found.items()]


@pytest.mark.parametrize(("line", "whole"), named_commands())
def test_named_commands_exist(line: str, *, whole: bool) -> None:
    check_command(shlex.split(re.sub(r"\$\(\(.*?\)\)", "1", line)), whole=whole)


def check_command(words: list[str], *, whole: bool) -> None:
    """Whether verb, part and flags exist; a whole command is also parsed."""
    verb, *rest = words
    assert verb in VERBS, f"there is no verb {verb}"
    module = importlib.import_module(f"dissensus.experiments.cli.{verb}")
    parts = getattr(module, "PARTS", None)
    if parts is not None and rest:
        part, *rest = rest
        assert part in parts, f"{verb} has no part {part}"
        module = importlib.import_module(f"{module.__name__}.{part}")
    if not hasattr(module, "configure"):
        return
    parser = Parser(prog=f"dissensus {verb}")
    module.configure(parser)
    if whole:
        parser.read(rest)
    for flag in (word.partition("=")[0] for word in rest if word.startswith("--")):
        if flag not in parser._option_string_actions:
            assert parser.open_keys, f"{verb} has no {flag}"
            section, dot, key = flag.removeprefix("--").partition(".")
            assert bool(dot) != (verb == "topology"), f"{verb} has no {flag}"
            found = Study.model_fields.get(section)
            assert not dot or found is not None or section in ("algorithm", "grid"), f"there is no section [{section}]"
            model = None if found is None else found.annotation
            fields = getattr(model, "model_fields", {})
            closed = getattr(model, "model_config", {}).get("extra") == "forbid"
            assert not closed or key in fields, f"section [{section}] has no key {key}"


@pytest.mark.parametrize(
    "words", ["topologie ring", "theory station", "plan 25M --clusters x", "study a.toml --train.step 3", "probe --wat"]
)
def test_a_command_that_is_gone_is_noticed(words: str) -> None:
    with pytest.raises(AssertionError):
        check_command(words.split(), whole=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not target.startswith(("http:", "https:", "mailto:")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


@pytest.mark.parametrize("body", [pytest.param(body, id=place) for place, body in blocks("toml")])
def test_toml_blocks_are_what_they_are_shown_as(body: str, tmp_path: Path) -> None:
    """A cluster, or a study; of an excerpt the arms are left out."""
    from dissensus.experiments.loading import load
    from dissensus.experiments.planning.machines import machine

    file = tmp_path / "block.toml"
    file.write_text(body)
    read = tomllib.loads(body)
    if "nodes" in read:
        assert machine(str(file)).size == read["nodes"] * read["workers_per_node"]
    elif "grid" in read:  # varies arms of the study that it is put beside
        named = [path.split(".")[1] for path in read["grid"] if path.startswith("arms.")]
        assert set(load(file, arms={name: {"algorithm": name} for name in named}).arms).isdisjoint(named)
    else:
        study = load(file) if "arms" in read else load(file, arms={"one": {"algorithm": "dsgd"}})
        assert set(study.arms) == set(read.get("arms", {"one"}))
