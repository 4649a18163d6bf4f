"""What makes a site of pages that are also read as they lie in the repository; mkdocs calls it, see mkdocs.yml.

README, CONTRIBUTING and CHANGELOG become pages. Pictures outside docs/ that pages show are taken along, and files of
the code that they link to become pages too, so that a link is the same in the repository and in the site.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
PICTURES = {".png", ".svg", ".jpg"}
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")
FENCE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1`*$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/, and what pages link to there."""
    for name, uri in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    pages = [file for file in files if file.is_documentation_page()]
    outside = {target for file in pages for target in _targets(file) if _uri(target) is not None}
    for path in sorted(outside):
        uri = str(_uri(path))
        if files.get_file_from_path(uri) is not None:
            continue
        if path.suffix in PICTURES:
            files.append(File.generated(config, uri, abs_src_path=str(path)))
        else:
            page = File.generated(config, uri, content=_source(path), inclusion=InclusionLevel.NOT_IN_NAV)
            files.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to where the site has what they lead to in the repository."""
    if page.file.abs_src_path is None:
        return markdown
    here, folder = Path(page.file.abs_src_path).parent, os.path.dirname(page.file.src_uri) or "."

    def moved(match: re.Match[str]) -> str:
        before, target, anchor, after = match.groups()
        uri = _uri((here / unquote(target)).resolve())
        return match[0] if uri is None else f"{before}{os.path.relpath(uri, folder)}{anchor or ''}{after}"

    return "".join(part if code else LINK.sub(moved, part) for part, code in _parts(markdown))


def _uri(path: Path) -> str | None:
    """Where the site has a file of the repository; None for what is no file of it."""
    if not path.is_file() or not path.is_relative_to(ROOT):
        return None
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    inside = path.relative_to(ROOT).as_posix()
    return PAGES.get(inside) or (inside if path.suffix in PICTURES else f"source/{inside}.md")


def _targets(file: File) -> Iterator[Path]:
    """Files that a page links to."""
    if file.abs_src_path is None:
        return
    here = Path(file.abs_src_path).parent
    for part, code in _parts(file.content_string):
        for match in () if code else LINK.finditer(part):
            yield (here / unquote(match[2])).resolve()


def _parts(markdown: str) -> Iterator[tuple[str, bool]]:
    """Text and blocks of code in turn, and which of the two each is."""
    end = 0
    for block in FENCE.finditer(markdown):
        yield markdown[end : block.start()], False
        yield block[0], True
        end = block.end()
    yield markdown[end:], False


def _source(path: Path) -> str:
    """A page that shows a file."""
    language = {".py": "python", ".json": "json", ".yml": "yaml", ".toml": "toml"}.get(path.suffix, "text")
    name = path.relative_to(ROOT).as_posix()
    text = path.read_text(encoding="utf-8").rstrip("\n")
    return f"---\nsearch:\n  exclude: true\n---\n# `{name}`\n\n``````{language}\n{text}\n``````\n"
