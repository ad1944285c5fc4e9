"""What the site does beyond mkdocs: TeX becomes MathML, files of the repository a part of it.

On a page, `../PATH` is a file of the repository. Markdown becomes a page of the site, other files
are copied beside it, and a folder is named without a link.
"""

import html
import re
from pathlib import Path, PurePosixPath
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(((?:\.\./)*)([^)#:\s]+)(#[^)]*)?\)")
TEX = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.S)
FENCED = re.compile(r"^```.*?^```", re.M | re.S)
ITEM = re.compile(r"(-|\d+\.) ")
PLACES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
COPIED = "repository"


def on_files(files: Files, config: Any) -> Files:
    """Adds the files of the repository that pages link to, and those that these link to."""
    files.append(File.generated(config, "changelog.md", content=_read("CHANGELOG.md")))
    pages = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    while pages:
        where, text = pages.pop()
        for path in _linked(where, text):
            place = _place(path)
            if (ROOT / path).is_file() and place not in files.src_uris:
                if path.endswith(".md"):
                    files.append(File.generated(config, place, content=_read(path)))
                    pages.append((place, _read(path)))
                else:
                    source = str(ROOT / path)
                    files.append(File.generated(config, place, abs_src_path=source))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Points links that leave the docs to where their files are on the site."""
    where = page.file.src_uri

    def point(found: re.Match[str]) -> str:
        words, ups, rest, anchor = found[1], found[2], found[3], found[4] or ""
        path = _in_repository(where, ups + rest)
        if path is None:
            return found[0]
        if not (ROOT / path).is_file():
            return words
        return f"[{words}]({_relative(where, _place(path))}{anchor})"

    return _settle(LINK.sub(point, markdown))


def on_page_content(content: str, **_: Any) -> str:
    """Writes formulas as MathML, which browsers draw by themselves."""

    def draw(found: re.Match[str]) -> str:
        display = "block" if found[2] == "[" else "inline"
        drawn = convert(html.unescape(found[3]), display=display)
        # As an operator it keeps its distance: "log p", not "logp".
        return drawn.replace("<mi>log</mi>", '<mo lspace="0.17em" rspace="0.17em">log</mo>')

    return TEX.sub(draw, content)


def _settle(markdown: str) -> str:
    """What mkdocs reads otherwise than others do.

    A list needs a blank line before it, and a page one title: where it has more, they and all that
    is below them go down by one.
    """
    settled: list[str] = []
    is_code = is_list = False
    titles = 0
    is_many = sum(line.startswith("# ") for line in FENCED.sub("", markdown).splitlines()) > 1
    for line in markdown.splitlines():
        is_code ^= line.startswith("```")
        if not line.strip():
            is_list = False
        elif ITEM.match(line) and not is_code:
            if settled and settled[-1].strip() and not is_list:
                settled.append("")
            is_list = True
        elif line.startswith("#") and not is_code:
            titles += 1
            line = f"#{line}" if is_many and titles > 1 else line
        settled.append(line)
    return "\n".join(settled)


def _read(path: str) -> str:
    return (ROOT / path).read_text()


def _linked(where: str, text: str) -> list[str]:
    found = (_in_repository(where, link[2] + link[3]) for link in LINK.finditer(text))
    return [path for path in found if path is not None]


def _in_repository(where: str, link: str) -> str | None:
    """The file of the repository that a link of a page means; None if it is one of the docs'."""
    copied = where.startswith(f"{COPIED}/")
    at = PurePosixPath(where.removeprefix(f"{COPIED}/") if copied else f"docs/{where}").parent
    parts: list[str] = []
    for part in (*at.parts, *PurePosixPath(link).parts):
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return None if parts[0] == "docs" and not copied else "/".join(parts)


def _place(path: str) -> str:
    """Where a file of the repository is on the site."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return PLACES.get(path, f"{COPIED}/{path}")


def _relative(where: str, place: str) -> str:
    return "../" * where.count("/") + place
