"""A hook of mkdocs: an executed notebook is a page, through the Markdown of all others; the reference is complete."""

import importlib
import re
import zlib
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

ROOMS = ("theory", "algorithms", "probes", "experiments", "testing")
PICTURE = re.compile(r"!\[png\]\((\S+?)\)")
TABLE = re.compile(
    r'<div>\s*<style scoped>.*?</style>\s*<table border="1" class="dataframe">(.*?)</table>\s*</div>', re.S
)
FENCED = re.compile(r"(^```.*?^```$)", re.M | re.S)
PRINTED = re.compile(r"(?:^ {4}.*\n|^\n(?= {4}))+", re.M)
LINK = re.compile(r"(?<!\.ipynb)\]\(([\w./-]+)\.ipynb\)")
"""To a notebook by its title; where the words are the file's name, the file is meant."""


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Makes a page of every notebook; the notebook itself and its script stay beside it, to be taken along."""
    for file in [found for found in files if found.src_uri.endswith(".ipynb")]:
        page = file.src_uri.removesuffix(".ipynb")
        stem = page.rsplit("/", 1)[-1]
        text, made = MarkdownExporter().from_filename(file.abs_src_path, resources={"unique_key": stem})
        for name, data in made["outputs"].items():
            files.append(File.generated(config, page.removesuffix(stem) + name, content=data))
        files.append(File.generated(config, f"{page}.md", content=_page(text, stem)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to notebooks, which work in the repository, lead to their pages."""
    return LINK.sub(r"](\1.md)", markdown)


def on_post_build(config: Any, **_: Any) -> None:
    """Refuses a site whose reference leaves out a name that a room offers."""
    written = zlib.decompress(Path(config.site_dir, "objects.inv").read_bytes().split(b"\n", 4)[4]).decode()
    known = {line.split(" ", 1)[0] for line in written.splitlines()}
    for room in ROOMS:
        door = importlib.import_module(f"dissensus.{room}")
        homes = {name: getattr(getattr(door, name), "__module__", door.__name__) for name in door.__all__}
        last = {name.rsplit(".", 1)[-1] for name in known if name.startswith(f"{door.__name__}.")}
        left_out = [
            name
            for name, home in homes.items()
            if not {f"{door.__name__}.{name}", f"{home}.{name}"} & known and not (name.isupper() and name in last)
        ]
        if left_out:
            raise PluginError(f"docs/reference/{room}.md leaves out {', '.join(left_out)}: add ::: with the full path")


def _table(found: re.Match[str]) -> str:
    rows = re.sub(r">\s+<", "><", found[1].replace(' style="text-align: right;"', "")).strip()
    return f'<div class="frame"><table>{rows}</table></div>'


def _output(printed: re.Match[str]) -> str:
    lines = "\n".join(line[4:].rstrip() for line in printed[0].strip("\n").split("\n"))
    return f"\n```output\n{lines}\n```\n" if lines.strip() else printed[0]


def _page(text: str, stem: str) -> str:
    text = PICTURE.sub(r"![figure](\1)", text)
    text = TABLE.sub(_table, text)
    text = "".join(part if part.startswith("```") else PRINTED.sub(_output, part) for part in FENCED.split(text))
    title, _, rest = text.lstrip().partition("\n")
    return (
        f"{title}\n\nTo run it yourself: [{stem}.ipynb]({stem}.ipynb), or as a script [{stem}.py]({stem}.py).\n{rest}"
    )
