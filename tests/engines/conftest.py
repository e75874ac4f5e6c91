"""What `make test-engines` measures, in tables at its end; the pages' are made of what is kept of them."""

import importlib
import json
import sys
from pathlib import Path

import pytest

from specdec_kernels.engines import vllm
from tests.engines import llama_stand_in, mlx_stand_in, sglang_stand_in, vllm_stand_in, vllm_v1_stand_in

TABLES = {}
KEPT = Path(__file__).resolve().parents[2] / "bench" / "results" / "engines.json"


def stand_ins(monkeypatch, modules, *adapters):
    """An engine's modules by their names, for adapters that have not imported others; a generator, for fixtures."""
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    names = [f"specdec_kernels.engines.{adapter}" for adapter in adapters]

    def forget():
        for name in names:
            sys.modules.pop(name, None)

    forget()
    yield modules
    forget()


@pytest.fixture
def v2(monkeypatch):
    """vLLM's V2 runner, where no method is chosen."""
    monkeypatch.delenv("SPECDEC_VLLM", raising=False)
    yield from stand_ins(monkeypatch, vllm_stand_in.modules(), "_vllm")
    vllm.uninstall()


@pytest.fixture
def v1(monkeypatch):
    """The adapter of vLLM's V1 runner."""
    for _ in stand_ins(monkeypatch, vllm_v1_stand_in.modules(), "_vllm_v1"):
        yield importlib.import_module("specdec_kernels.engines._vllm_v1")


@pytest.fixture
def mlx(monkeypatch):
    """mlx's and mlx-lm's modules."""
    yield from stand_ins(monkeypatch, mlx_stand_in.modules(), "_mlx_lm")


@pytest.fixture
def llama_cpp(monkeypatch):
    """llama-cpp-python without contexts."""
    llama_stand_in.contexts.clear()
    yield from stand_ins(monkeypatch, {"llama_cpp": llama_stand_in.MODULE}, "_llamacpp")


@pytest.fixture
def engine(monkeypatch):
    """SGLang's options, sampling backends and ranks, which tests turn."""
    yield from sglang_stand_in.installed(monkeypatch)


@pytest.fixture
def table():
    """``table(title, row)``: a row of a table, as a dict from columns to values."""
    return lambda title, row: TABLES.setdefault(title, []).append(row)


def pytest_terminal_summary(terminalreporter, config):
    for title, rows in TABLES.items():
        terminalreporter.write_line(f"\n{title}\n")
        lines = [list(rows[0]), ["---"] * len(rows[0]), *([str(value) for value in row.values()] for row in rows)]
        for line in lines:
            terminalreporter.write_line(f"| {' | '.join(line)} |")
    if TABLES and not config.option.keyword:  # whole tables alone
        kept = json.loads(KEPT.read_text(encoding="utf-8")) | TABLES
        KEPT.write_text(json.dumps(kept, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
