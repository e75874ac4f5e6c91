"""What ``make docs`` adds to the pages of this folder: pages that live elsewhere, and the reference of public names.

MkDocs calls the functions named ``on_``. The reference is read from the sources without importing them. So a new public
name has its page as soon as it is in ``__all__``.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "specdec_kernels"
# page of the site -> file of the repository
ELSEWHERE = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "packages.md": "packaging/README.md",
    "results.md": "bench/results/README.md",
}
# page of the site -> package whose public names it lists
PACKAGES = {
    f"reference/{name}.md": f"{PACKAGE}.{name}" for name in ("theory", "generate", "headers", "conformance", "sharded")
}
# In the navigation of mkdocs.yml: the pages of the names of specdec_kernels itself.
PLACE = "reference/"
# generate() documents options that it only hands on.
OPTIONS = {"generate": {"docstring_options": {"warn_unknown_params": False}}}

_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
_SOURCE = re.compile(r"<!-- source: (\S+) -->")
_CODE = re.compile(r"^```.*?^```|^    .*?$|^#.*?$|\[[^\]]*\]\([^)]*\)|`([^`\n]+)`", re.MULTILINE | re.DOTALL)


def public_names(package: str) -> dict[str, str]:
    """``{name: full path}`` of a package's ``__all__``: the path names the module that defines it."""
    import griffe

    module = griffe.load(package, search_paths=[str(ROOT)], resolve_aliases=True)
    paths = {}
    for name in module.exports:
        target = module[name]
        while target.is_alias:
            target = target.target
        # A function has the name of its module, and then the package has one name for both.
        paths[name] = f"{target.path}.{name}" if target.is_module else target.path
    return paths


def reference_pages() -> dict[str, tuple[str, str]]:
    """``{page: (title, markdown)}``: a page for each module that defines public names, one for each other package."""
    modules = {}
    for name, path in (public_names(f"{PACKAGE}.ops") | public_names(PACKAGE)).items():
        modules.setdefault(path.rsplit(".", 1)[0], []).append((name, path))
    pages = {}
    # The ops come first.
    for module, names in sorted(modules.items(), key=lambda item: (".ops." not in item[0], item[0])):
        short = module.rsplit(".", 1)[1]
        main = short if any(name == short for name, _ in names) or len(names) > 1 else names[0][0]
        names.sort(key=lambda item: (item[0] != main, item[0]))
        heads = [] if names[0][0] == main else [f"# {main}"]
        text = [directive(name, path, 1 if name == main else 2) for name, path in names]
        text += (
            ["What a call raises, and what `check` and `space` mean, is [the same for all ops](../ops.md#errors)."]
            if ".ops." in module
            else []
        )
        pages[f"{PLACE}{short}.md"] = main, "\n\n".join(heads + text) + "\n"
    for page, package in PACKAGES.items():
        text = [directive(name, path, 2) for name, path in sorted(public_names(package).items())]
        pages[page] = f"{package}", "\n\n".join([f"# {package}", *text]) + "\n"
    return pages


def directive(name: str, path: str, level: int) -> str:
    """What mkdocstrings replaces by the documentation of a name."""
    import yaml

    options = yaml.safe_dump({"heading_level": level, **OPTIONS.get(name, {})}, default_flow_style=True, width=1000)
    return f"::: {path}\n    options: {options.strip()}"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    for page, source in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    pages = reference_pages()
    for page, (_, text) in pages.items():
        files.append(File.generated(config, page, content=text))
    own = [{title: page} for page, (title, _) in pages.items() if page not in PACKAGES]
    for section in config.nav:
        for entries in section.values():
            if PLACE in entries:
                at = entries.index(PLACE)
                entries[at : at + 1] = own
    for image in sorted((ROOT / "bench" / "results").rglob("*.svg")):
        files.append(File.generated(config, site_path(image), abs_src_path=str(image)))
    config.extra["names"] = public_names(PACKAGE) | {package: page for page, package in PACKAGES.items()}
    return files


def site_path(path: Path) -> str | None:
    """Where a file of the repository stands in the site, None if it does not."""
    name = path.relative_to(ROOT).as_posix()
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    if path.suffix == ".svg":
        return name
    return {source: page for page, source in ELSEWHERE.items()}.get(name)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links of the repository become links of the site, and a page's first mention of a public name leads to it."""
    if page.file.src_uri.startswith(PLACE):
        return markdown
    here = (ROOT / ELSEWHERE.get(page.file.src_uri, f"docs/{page.file.src_uri}")).parent

    def link(match: re.Match[str]) -> str:
        image, text, address = match.groups()
        name, mark, anchor = address.partition("#")
        if "://" in address or not name:
            return match[0]
        target = site_path((here / name).resolve())
        if target is None:
            return text
        target = posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".")
        shown = f"{image}[{text}]({target}{mark}{anchor})"
        return f"[{shown}]({target})" if image else shown  # a click shows a figure in its full size

    wanted = dict(config.extra["names"])

    def mention(match: re.Match[str]) -> str:
        path = wanted.pop(match[1], None)
        if path is None:
            return match[0]
        if not path.endswith(".md"):
            return f"[{match[0]}][{path}]"
        return f"[{match[0]}]({posixpath.relpath(path, posixpath.dirname(page.file.src_uri) or '.')})"

    return _SOURCE.sub(source, _CODE.sub(mention, _LINK.sub(link, markdown)))


def source(mark: re.Match[str]) -> str:
    """The file of the repository that a page's mark names, as a block of code."""
    return f"```python\n{(ROOT / mark[1]).read_text(encoding='utf-8')}```"
