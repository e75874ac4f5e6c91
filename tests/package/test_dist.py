"""What `make dist` does with a wheel, what other build systems find in it, and the files that describe the project."""

import email
import os
import platform
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import specdec_kernels
from specdec_kernels.headers import get_cmake_dir, get_include, get_library_dir, get_pkgconfig_dir
from tests.package.conftest import ROOT, run

pytestmark = pytest.mark.skipif(not (ROOT / "setup.py").exists(), reason="needs the source tree")
ADDRESS = "https://example.org/owner/name"
RELATIVE_LINK = re.compile(r"\]\((?![a-z]+://|#)|<img|src=")


@pytest.fixture(scope="session")
def tools():
    """The folder of the programs that `make dist` calls."""
    folder = ROOT / ".venv" / "dist" / "bin"
    if not (folder / "auditwheel").exists():
        pytest.skip("needs the tools of `make dist`: make .venv/dist/.ready")
    return folder


@pytest.fixture(scope="session")
def repaired(distribution, tools, tmp_path_factory):
    """The wheel that `make dist` leaves in dist/."""
    folder = tmp_path_factory.mktemp("repaired")
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    run([tools / "auditwheel", "repair", "--wheel-dir", folder, distribution[0]], env=environment)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(params=["installed", "in the tree"])
def package(request, distribution, tmp_path):
    """Folders of CMake's and pkg-config's files, of an unpacked wheel and of the working tree."""
    if request.param == "in the tree":
        return Path(get_cmake_dir()), Path(get_pkgconfig_dir())
    zipfile.ZipFile(distribution[0]).extractall(tmp_path)
    places = [Path(place).relative_to(ROOT) for place in (get_cmake_dir(), get_pkgconfig_dir())]
    return tuple(tmp_path / place for place in places)


def metadata(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_string(archive.read(name).decode())


@pytest.fixture(scope="module")
def setup_py():
    return runpy.run_path(str(ROOT / "setup.py"), run_name="setup_py")


@pytest.mark.slow
def test_repaired_wheel_names_a_glibc_and_holds_nothing_of_others(distribution, repaired):
    found = re.search(rf"-manylinux_2_(\d+)_{platform.machine()}\.whl$", repaired.name)
    assert found, repaired.name
    assert int(found[1]) <= int(platform.libc_ver()[1].split(".")[1])
    before, after = (zipfile.ZipFile(wheel) for wheel in (distribution[0], repaired))
    assert {name for name in after.namelist() if not name.endswith("/") and ".dist-info/" not in name} == {
        name for name in before.namelist() if ".dist-info/" not in name
    }
    library = "specdec_kernels/lib/libspecdec.so"
    assert after.read(library) == before.read(library)


def test_pages_of_packages_render(distribution, tools):
    assert run([tools / "twine", "check", "--strict", *distribution]).count("PASSED") == 2


def test_metadata(distribution, setup_py):
    found = metadata(distribution[0])
    assert not RELATIVE_LINK.search(found.get_payload())
    assert found.get_payload().startswith("# specdec-kernels")
    assert found["Description-Content-Type"] == "text/markdown"
    assert [part for part in found.get_all("Requires-Dist") if part.startswith("torch")] == ["torch>=2.11"]
    urls = dict(entry.split(", ", 1) for entry in found.get_all("Project-URL", []))
    assert urls == setup_py["project_urls"]()


@pytest.mark.parametrize("address", ["", ADDRESS])
def test_description_has_no_relative_link(address, setup_py):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert RELATIVE_LINK.search(readme)
    page = setup_py["description"](readme, "1.2.3", address)
    assert not RELATIVE_LINK.search(page)
    assert ("![" in page) == ("<sub>" in page) == (f"]({ADDRESS}/raw/v1.2.3/docs/figures/" in page) == bool(address)
    assert (f"[quick start]({ADDRESS}/blob/v1.2.3/docs/quick-start.md)" in page) == bool(address)
    assert all(url.startswith(ADDRESS) for url in setup_py["project_urls"](address).values())


def test_description_keeps_absolute_links_and_anchors(setup_py):
    kept = "[a](https://example.org/x) and [b](#limits)"
    assert setup_py["description"](kept, "1", ADDRESS) == setup_py["description"](kept, "1", "") == kept


CMAKE_PROJECT = """
cmake_minimum_required(VERSION 3.20)
project(engine C CXX)
find_package(specdec 0.1 REQUIRED)
add_executable(c_api "{examples}/c_api.c")
target_link_libraries(c_api specdec::specdec)
add_executable(maths "{examples}/verify_chain.cpp")
target_link_libraries(maths specdec::headers)
set_target_properties(c_api maths PROPERTIES C_STANDARD 11 CXX_STANDARD 17)
"""


@pytest.mark.skipif(not shutil.which("cmake"), reason="needs cmake")
def test_cmake_finds_the_library_and_the_headers(package, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(CMAKE_PROJECT.format(examples=ROOT / "examples"))
    build = tmp_path / "built"
    run(["cmake", "-S", tmp_path, "-B", build, f"-Dspecdec_DIR={package[0]}"])
    run(["cmake", "--build", build])
    assert run([build / "c_api"]).startswith("drafted")
    assert run([build / "maths"])


@pytest.mark.skipif(not shutil.which("cmake"), reason="needs cmake")
@pytest.mark.parametrize("wanted, fits", [("", True), ("0.1.0", True), ("0.0.9", False), ("0.2", False), ("1", False)])
def test_cmake_refuses_other_versions(wanted, fits, tmp_path):
    text = f"cmake_minimum_required(VERSION 3.20)\nproject(engine NONE)\nfind_package(specdec {wanted} REQUIRED)\n"
    (tmp_path / "CMakeLists.txt").write_text(text)
    command = ["cmake", "-S", tmp_path, "-B", tmp_path / "built", f"-Dspecdec_DIR={get_cmake_dir()}"]
    assert (subprocess.run(command, capture_output=True).returncode == 0) == fits


@pytest.mark.skipif(not shutil.which("pkg-config"), reason="needs pkg-config")
def test_pkg_config_has_the_flags(package, tmp_path):
    environment = {**os.environ, "PKG_CONFIG_PATH": str(package[1])}
    flags = run(["pkg-config", "--cflags", "--libs", "specdec"], env=environment).split()
    run(["gcc", "-std=c11", ROOT / "examples" / "c_api.c", *flags, "-o", tmp_path / "c_api"])
    assert run([tmp_path / "c_api"]).startswith("drafted")
    version = run(["pkg-config", "--modversion", "specdec"], env=environment).strip()
    assert version == specdec_kernels.__version__


def headers_command(*arguments):
    script = f"import sys, runpy; sys.modules['torch'] = None; sys.argv[1:] = {list(arguments)}; "
    script += "runpy.run_module('specdec_kernels.headers', run_name='__main__')"
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)


def test_directories_are_printed_without_torch():
    done = headers_command("--cmake", "--pkgconfig", "--include", "--lib")
    assert done.returncode == 0, done.stderr
    wanted = [get_cmake_dir(), get_pkgconfig_dir(), get_include(), get_library_dir()]
    assert done.stdout.splitlines() == wanted
    assert all(Path(folder).is_dir() for folder in wanted)
    nothing = headers_command()
    assert nothing.returncode == 2
    assert "expected one or more of --include, --lib, --cmake, --pkgconfig; got none" in nothing.stderr


def read(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_citation():
    found = read("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(found)
    assert (found["title"], found["version"]) == ("specdec-kernels", specdec_kernels.__version__)


def test_conda_recipe_says_what_the_package_says(distribution):
    recipe, found = read("packaging/conda/recipe.yaml"), metadata(distribution[0])
    assert (recipe["context"]["name"], recipe["context"]["version"]) == (found["Name"], found["Version"])
    assert recipe["about"]["summary"] == found["Summary"]
    needed = {part.replace("torch", "pytorch") for part in found.get_all("Requires-Dist") if "extra ==" not in part}
    needed.add(f"python{found['Requires-Python']}")
    assert {part.replace(" ", "") for part in recipe["requirements"]["run"]} == needed
    archive = zipfile.ZipFile(distribution[0])
    (name,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
    (entry,) = recipe["build"]["python"]["entry_points"]
    assert entry in archive.read(name).decode()


def test_workflow_runs_the_two_commands_and_builds_packages(distribution, tmp_path):
    jobs = read(".github/workflows/ci.yml")["jobs"]
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert commands["test"] == ["make demo", "make test"]
    oldest = jobs["torch"]["strategy"]["matrix"]["torch"][0]
    assert f"torch>={oldest}" in metadata(distribution[0]).get_all("Requires-Dist")
    (dist,) = commands["dist"]
    assert dist.startswith("make dist ")
    assert "manylinux_2_28" in jobs["dist"]["container"]
    (tried,) = commands["try"]
    built, matrix = (jobs[name]["strategy"]["matrix"] for name in ("dist", "try"))
    assert (built["python"], built["wheel"]) == (["cp" + x.replace(".", "") for x in matrix["python"]], matrix["wheel"])
    wheels = [f"dist/x-0.1.0-{abi.rstrip('t')}-{abi}-manylinux_2_28_x86_64.whl" for abi in built["python"]]
    (tmp_path / "dist").mkdir()
    for wheel in wheels:
        (tmp_path / wheel).touch()
    for python, wheel in zip(matrix["python"], wheels, strict=True):
        script = tried.replace("${{ matrix.python }}", python).replace("python packaging/try_wheel.py", "echo")
        assert run(["bash", "-ec", script], cwd=tmp_path).split() == [wheel]
    # What tests need has a torch of its own, so it is installed before.
    ready, torch, test = commands["torch"]
    assert (".venv/.ready" in ready, "torch==" in torch, test) == (True, True, "make test")
    targets = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    assert {"demo", "test", "dist"} <= set(targets)


def test_container_copies_what_a_build_reads(tmp_path):
    """Its first stage, as far as metadata; a container's own commands no test runs."""
    copies = re.findall(r"^COPY (?!--from)(.*) \S+$", (ROOT / "Containerfile").read_text(), re.MULTILINE)
    for name in " ".join(copies).split():
        place = tmp_path / name
        shutil.copy(ROOT / name, place) if (ROOT / name).is_file() else place.symlink_to(ROOT / name)
    command = [sys.executable, "setup.py", "-q", "--name", "--version"]
    assert run(command, cwd=tmp_path).split()[-2:] == ["specdec-kernels", specdec_kernels.__version__]
    assert {"csrc", "packaging", "specdec_kernels", "triton_kernels", "LICENSE"} <= {x.name for x in tmp_path.iterdir()}


def test_sdist_can_describe_itself(distribution, tmp_path):
    """setup.py reads these files: without one, no wheel can be made of an sdist."""
    with tarfile.open(distribution[1]) as archive:
        archive.extractall(tmp_path, filter="data")
    (root,) = tmp_path.iterdir()
    command = [sys.executable, "setup.py", "-q", "--name", "--version"]
    assert run(command, cwd=root).split()[-2:] == ["specdec-kernels", specdec_kernels.__version__]
    templates = runpy.run_path(str(root / "setup.py"), run_name="setup_py")["TEMPLATES"]
    assert all((root / "packaging" / name).is_file() for name in templates)
