"""The documents and docstrings say what is true: their examples run, their links lead somewhere."""

import doctest
import importlib
import importlib.util
import inspect
import itertools
import pkgutil
import re
from pathlib import Path

import pytest
import yaml

import specdec_kernels

ROOT = Path(__file__).resolve().parents[2]
# By the parts that import them.
ENGINES = (
    {"_gguf": "gguf", "_llamacpp": "llama_cpp", "_mlx_lm": "mlx_lm"}
    | dict.fromkeys(("_vllm", "_vllm_v1"), "vllm")
    | dict.fromkeys(("_sglang", "_sglang_blocks", "_sglang_penalties", "_sglang_sharded"), "sglang")
)
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "packaging" / "README.md"]


@pytest.mark.parametrize("name", specdec_kernels.__all__)
def test_every_public_name_has_an_example(name):
    """Classes of results may have theirs in the op that returns them; whatever is called must show a call."""
    value = getattr(specdec_kernels, name)
    if not callable(value):
        return
    documented = inspect.getdoc(value) or ""
    methods = [m for _, m in inspect.getmembers(value, inspect.isroutine)] if inspect.isclass(value) else []
    assert documented, f"{name} has no docstring"
    if not (inspect.isclass(value) and issubclass(value, tuple)):
        assert ">>>" in documented or any(">>>" in (m.__doc__ or "") for m in methods), f"{name} has no example"


def modules(package):
    """The names of a package's own modules, itself first; Triton's are reached by their installed name.

    Parts of adapters that import their engine are left out where it is not installed.
    """
    found = pkgutil.walk_packages(package.__path__, package.__name__ + ".")
    return [package.__name__, *(module.name for module in found if not absent(module.name))]


def absent(name):
    engine = ENGINES.get(name.removeprefix("specdec_kernels.engines."))
    return name.endswith("_C") or bool(engine and importlib.util.find_spec(engine) is None)


@pytest.mark.parametrize("name", modules(specdec_kernels))
def test_docstring_examples_run(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def test_docstring_examples_of_the_triton_kernels_run():
    pytest.importorskip("triton", reason="no triton for this Python here")
    for name in modules(importlib.import_module("specdec_kernels.triton_kernels")):
        assert doctest.testmod(importlib.import_module(name)).failed == 0, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_in_documents_run(page):
    """All ``python`` blocks of a page, in order, in one namespace."""
    namespace = {}
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        line = text[: match.start()].count("\n") + 1
        exec(compile("\n" * line + match[1], str(page), "exec"), namespace)


def test_the_site_shows_the_files_that_pages_name_by_a_mark():
    hooks, text = script("_site"), (ROOT / "docs" / "generator.md").read_text(encoding="utf-8")
    shown = hooks._SOURCE.sub(hooks.source, text)
    assert "<!-- source" not in shown
    assert (ROOT / "specdec_kernels" / "generate" / "minimal.py").read_text(encoding="utf-8") in shown


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_named_files_exist(page):
    text = page.read_text(encoding="utf-8")
    links = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert not [link for link in links if link and not (page.parent / link).exists()]
    named = re.findall(r"`((?:csrc|tests|bench|docs|specdec_kernels|triton_kernels|examples)/[\w./-]+)`", text)
    assert not [name for name in named if not (ROOT / name).exists()]


def test_the_cuda_page_quotes_the_kernel_that_it_explains():
    """Else the explanation is of lines that are gone."""
    page = (ROOT / "docs" / "cuda.md").read_text(encoding="utf-8")
    kernel = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "csrc" / "cuda" / "chain").iterdir())
    quoted = re.findall(r"^```cpp\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(quoted) == 3
    assert not [code for code in quoted if code not in kernel]


def test_the_recipe_for_an_op_is_true_to_the_line():
    """By the example that its table says it is; rows of files that many ops share count what they need."""
    rows = re.findall(r"^\| ([^|]*<op>[^|]*) \| [^|]* \| ([\d, ]+) \|$", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    said = {name.replace("<op>", "uniform"): int(lines) for names, counts in rows
            for name, lines in zip(re.findall(r"`([^`]+)`", names), counts.split(","), strict=True)}  # fmt: skip
    assert len(said) == 6
    assert said == {name: len((ROOT / name).read_text().splitlines()) for name in said}


def navigation():
    """The pages of mkdocs.yml, as paths in docs/."""

    def pages(entries):
        for entry in entries:
            for value in entry.values() if isinstance(entry, dict) else [entry]:
                yield from [value] if isinstance(value, str) else pages(value)

    return [*pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])]


def script(name):
    """A module of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tables_of_figures_are_those_of_their_json():
    """`python docs/_tables.py` writes them."""
    tables, placed = script("_tables"), set()
    for page in tables.PAGES:
        text = page.read_text(encoding="utf-8")
        assert tables.written(text) == text, f"{page.name}: python docs/_tables.py"
        placed |= {place[2] for place in tables.PLACE.finditer(text)}
        assert text.count("<!-- table: ") == len(tables.PLACE.findall(text)), f"{page.name}: a mark without its end"
    assert placed == set(tables.TABLES)


def test_a_mark_without_a_table_takes_no_text_behind_it():
    page = "<!-- table: logarithms -->\n\n<!-- end -->\n\ntext\n\n<!-- table: logarithms -->\n\nold\n\n<!-- end -->\n"
    filled = script("_tables").written(page)
    assert "\n\ntext\n\n" in filled
    assert "old" not in filled
    assert filled.count("| function |") == 2


def test_the_picture_of_the_house_is_what_its_command_draws():
    """`python docs/_house.py` writes it."""
    house = script("_house")
    assert house.FILE.read_text(encoding="utf-8") == house.picture()


def test_navigation_names_every_page_and_no_other():
    hooks = script("_site")
    assert all((ROOT / source).is_file() for source in hooks.ELSEWHERE.values())
    pages = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(navigation()) == sorted([*pages, *hooks.ELSEWHERE, *hooks.PACKAGES, hooks.PLACE])


def sections(docstring):
    """Of a NumPy style docstring, each section's lines by its title; "" has what comes before."""
    found, title, lines = {}, "", inspect.cleandoc(docstring).splitlines()
    for line, following in itertools.pairwise([*lines, ""]):
        if re.fullmatch("-{4,}", following):
            title = line
        elif not re.fullmatch("-{4,}", line):
            found.setdefault(title, []).append(line)
    return found


def own_docstrings(module):
    """Docstrings of a module's classes and functions, and of the classes' methods, by name."""
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) == module.__name__:
            yield name, value.__doc__
            if inspect.isclass(value):
                parts = [(part, member) for part, member in vars(value).items() if hasattr(member, "__get__")]
                yield from ((f"{name}.{part}", member.__doc__) for part, member in parts)


@pytest.mark.parametrize("package", ["engines", "generate", "studies", "theory", "trees"])
def test_docstrings_are_of_the_form_that_the_site_reads(package):
    """Else it shows a description as a type, and an example as a quotation."""
    pytest.importorskip("transformers")
    root = importlib.import_module(f"specdec_kernels.{package}")
    seen = 0
    for name in modules(root) if hasattr(root, "__path__") else [root.__name__]:
        for place, text in own_docstrings(importlib.import_module(name)):
            parts = sections(text) if isinstance(text, str) else {}
            seen += len(parts)
            where = f"{name}.{place}"
            examples = [part for part, lines in parts.items() if ">>>" in "".join(lines)]
            assert examples in ([], ["Examples"]), where
            for part in ("Parameters", "Attributes"):
                lines = [line for line in parts.get(part, []) if line]
                for line, following in itertools.pairwise([*lines, ""]):
                    assert line.startswith(" ") or re.fullmatch(r"[\w, *]+ : .+", line), f"{where}: {line}"
                    assert line.startswith(" ") or following.startswith(" "), f"{where}: {line} without a text"
            assert not [line for line in parts.get("Raises", []) if re.match(r"\S.* : ", line)], where
    assert seen > 10
