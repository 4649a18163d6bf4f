"""What makes a site of pages that are also read as they lie in the repository; mkdocs calls it, see mkdocs.yml.

README, CONTRIBUTING and CHANGELOG become pages. Pictures outside docs/ that pages show are taken along; notebooks and
files of the code that they link to become pages too, so that a link is the same in the repository and in the site.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import unquote

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = {"README.md": "readme.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
PICTURES = {".png", ".svg", ".jpg"}
SOURCE = "source/"  # where pages of other files lie
LANGUAGES = {".py": "python", ".json": "json", ".yml": "yaml", ".toml": "toml"}
COPY = TemporaryDirectory()  # of the code, until the process ends
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?(\))")
# In rows of tables: the space between a number and its unit, at which a narrow column would break.
UNIT = re.compile(r"(?<=\d) (?=(?:[KMGT]?i?B|ms|µs|s|%)(?!\w))|(?<=<) (?=\d)")
FENCE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1`*$", re.MULTILINE | re.DOTALL)


@event_priority(100)  # before mkdocstrings reads it
def on_config(config: MkDocsConfig) -> None:
    """Show the reference's reader the package as a wheel has it: it follows no `__path__` and no links."""
    for folder in ("actfit", "coefficients", "fitting", "codegen", "kernels"):
        place = Path(COPY.name, "actfit", folder if folder != "actfit" else "")
        shutil.copytree(
            ROOT / folder, place, ignore=shutil.ignore_patterns("*.json", "__pycache__"), dirs_exist_ok=True
        )
        (place / "__init__.py").touch()
    config.plugins["mkdocstrings"].config["handlers"]["python"]["paths"] = [COPY.name]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside docs/, and what pages link to there."""
    for name, uri in PAGES.items():
        files.append(File.generated(config, uri, abs_src_path=str(ROOT / name)))
    waiting = [file for file in files if file.is_documentation_page()]
    while waiting:
        for path in _targets(waiting.pop()):
            uri = _uri(path)
            if uri is None or files.get_file_from_path(uri) is not None:
                continue
            if path.suffix in PICTURES:
                files.append(File.generated(config, uri, abs_src_path=str(path)))
            else:
                page = File.generated(config, uri, content=_page(path), inclusion=InclusionLevel.NOT_IN_NAV)
                files.append(page)
                waiting.append(page)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to where the site has what they lead to in the repository, and hold numbers and units together."""
    here, folder = _origin(page.file).parent, os.path.dirname(page.file.src_uri) or "."

    def moved(match: re.Match[str]) -> str:
        before, target, anchor, after = match.groups()
        uri = _uri((here / unquote(target)).resolve())
        return match[0] if uri is None else f"{before}{os.path.relpath(uri, folder)}{anchor or ''}{after}"

    return "".join(part if code else _held(LINK.sub(moved, part)) for part, code in _parts(markdown))


def _held(text: str) -> str:
    return "\n".join(UNIT.sub("\xa0", line) if line.startswith("|") else line for line in text.split("\n"))


def _origin(file: File) -> Path:
    """The file of the repository that a page was made of."""
    return Path(file.abs_src_path or ROOT / file.src_uri.removeprefix(SOURCE).removesuffix(".md"))


def _uri(path: Path) -> str | None:
    """Where the site has a file of the repository; None for what is no file of it."""
    if not path.is_file() or not path.is_relative_to(ROOT):
        return None
    if path.is_relative_to(DOCS):
        return path.relative_to(DOCS).as_posix()
    inside = path.relative_to(ROOT).as_posix()
    return PAGES.get(inside) or (inside if path.suffix in PICTURES else f"{SOURCE}{inside}.md")


def _targets(file: File) -> Iterator[Path]:
    """Files that a page links to, in the repository."""
    for part, code in _parts(file.content_string):
        for match in () if code else LINK.finditer(part):
            yield (_origin(file).parent / unquote(match[2])).resolve()


def _parts(markdown: str) -> Iterator[tuple[str, bool]]:
    """Text and blocks of code in turn, and which of the two each is."""
    end = 0
    for block in FENCE.finditer(markdown):
        yield markdown[end : block.start()], False
        yield block[0], True
        end = block.end()
    yield markdown[end:], False


def _page(path: Path) -> str:
    """A page that shows a file; search finds what it is linked from, not its text."""
    text = path.read_text(encoding="utf-8").rstrip("\n")
    if path.suffix == ".ipynb":
        body = _cells(json.loads(text))
    else:
        body = f"# `{path.relative_to(ROOT).as_posix()}`\n\n{_block(text, LANGUAGES.get(path.suffix, 'text'))}"
    return f"---\nsearch:\n  exclude: true\nhide:\n  - navigation\n  - toc\n---\n{body}\n"


def _cells(notebook: dict[str, list[dict[str, object]]]) -> str:
    """A notebook without its results: texts, and code to be run in Jupyter."""
    parts = []
    for cell in notebook["cells"]:
        source = cell["source"]
        text = "".join(source) if isinstance(source, list) else str(source)
        parts.append(_block(text, "python") if cell["cell_type"] == "code" else text)
    return "\n\n".join(parts)


def _block(text: str, language: str) -> str:
    return f"``````{language}\n{text}\n``````"
