"""The documentation against the tree: links resolve, generated pages are fresh, decisions are numbered and short."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.destinations.delta.catalog import _plain
from penstock.destinations.delta.schema import folder_name
from penstock.destinations.iceberg.catalog import place_of
from penstock.model.table import TableName

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), ROOT / "bench" / "README.md"])
DECISIONS = sorted((DOCS / "adr").glob("*.md"))

_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """Return a page without its code blocks: what stands there is no link and no heading."""
    return _FENCE.sub("", page.read_text())


def links(page: Path) -> Iterator[str]:
    for match in _LINK.finditer(prose(page)):
        if not re.match(r"[a-z]+:", match["target"]):
            yield match["target"]


def anchors(page: Path) -> set[str]:
    """Return the names that headings get: lower case, punctuation gone, hyphens for spaces."""
    titles = (match["title"].lower() for match in _HEADING.finditer(prose(page)))
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_resolves(page: Path) -> None:
    broken = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_every_page_can_be_reached_from_the_readme() -> None:
    found, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        found.add(page)
        linked = {(page.parent / link.partition("#")[0]).resolve() for link in links(page)}
        waiting.extend(target for target in linked if target.suffix == ".md" and target not in found)
    assert found == {page.resolve() for page in PAGES}


def test_the_failpoints_that_are_described_are_those_there_are() -> None:
    table = (ROOT / "CONTRIBUTING.md").read_text().partition("| failpoint | stands |")[2].partition("## ")[0]
    described = set(re.findall(r"`([a-z_]+\.[a-z_]+)`", table))
    sources = [path.read_text() for path in (ROOT / "src").rglob("*.py") if path.name != "failpoint.py"]
    assert described == {name for text in sources for name in re.findall(r'\bhit\("([a-z_.]+)"\)', text)}


def test_names_become_what_the_page_on_tables_says() -> None:
    rows = re.findall(
        r"^\| `(.+?)` \| `(.+?)` \| `(.+?)` \| `(.+?)` \|$", (DOCS / "reference/tables.md").read_text(), re.MULTILINE
    )
    assert len(rows) == 5
    for source, folder, place, registered in rows:
        name = TableName(*re.fullmatch(r'"?(.+?)"?\."?(.+?)"?', source).groups())  # type: ignore[union-attr]
        assert folder_name(name) == folder
        assert place_of(name) == place
        assert ".".join(_plain(part) for part in folder.split("/")) == registered


def test_the_configuration_reference_is_fresh() -> None:
    generator = load_generator()
    assert generator.PAGE.read_text() == generator.render(), "run: python docs/generate_reference.py"


def load_generator() -> Any:
    spec = importlib.util.spec_from_file_location("generate_reference", DOCS / "generate_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_decisions_are_numbered_without_a_gap() -> None:
    assert [int(page.name[:4]) for page in DECISIONS] == list(range(1, len(DECISIONS) + 1))


@pytest.mark.parametrize("page", DECISIONS, ids=name_of)
def test_a_decision_has_its_parts_and_fits_a_page(page: Path) -> None:
    text = page.read_text()
    headings = [match["title"] for match in _HEADING.finditer(text)]
    assert headings[0].startswith(f"{page.name[:4]}: ")
    assert headings[1:] == ["Context", "Decision", "Consequences"]
    assert re.search(r"^Date: \d{4}-\d{2}-\d{2}$", text, re.MULTILINE)
    assert len(text.split()) <= 600
