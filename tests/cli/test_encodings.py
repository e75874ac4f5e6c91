"""Output in encodings that lack some of what is written: that is replaced, and ends nothing. Files of other editors."""

import io
import json
import sys

import pytest

from specdec_kernels.cli.main import COMMANDS, PLAIN

TEXT = "é ‹漢›"
SHORT = ["--prompt", TEXT, "--max-new-tokens", 12]
CALLS = {
    **{f"{command} --help": [command, "--help"] for command in COMMANDS},
    "--help": ["--help"],
    "generate": ["generate", *SHORT],
    "generate --json": ["generate", *SHORT, "--json"],
    "generate --show": ["generate", *SHORT, "--show", "--method", "rejection"],
    "generate --show, two": ["generate", *SHORT, "--show", "--prompt", TEXT],
    "generate --show --tree": ["generate", *SHORT, "--show", "--tree", "optimal:6"],
    "info": ["info"],
    "plan": ["plan", "--acceptance", "0.9,0.8", "--cost", 0.1],
    "compare": ["compare", "--texts", 1, "--tokens", 4, "--repeats", 1],
}


@pytest.fixture
def written(run, monkeypatch):
    """Runs the command line with a stdout of an encoding; gives exit status, what was written, stderr."""

    def run_in(encoding, *arguments):
        stdout = io.TextIOWrapper(io.BytesIO(), encoding, newline="")
        monkeypatch.setattr(sys, "stdout", stdout)
        status, _, err = run(*arguments)
        stdout.flush()
        return status, stdout.buffer.getvalue().decode(encoding), err

    return run_in


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
def test_every_command_writes_in_every_encoding(written, call, encoding):
    status, out, err = written(encoding, *CALLS[call])
    assert (status, "rror" in err) == (0, False), err
    assert out
    if "generate --show" in call:
        shown = {"utf-8": "accepted ‹replaced› «bonus»", "cp1252": "accepted ‹replaced› «bonus»"}
        shown |= {"latin-1": "accepted <replaced> «bonus»", "ascii": "accepted <replaced> <<bonus>>"}
        assert out.startswith(shown[encoding])
    if call.startswith("generate") and call != "generate --json" and "help" not in call:
        assert "".join(each if can_write(each, encoding) else PLAIN.get(each, "?") for each in TEXT) in out


def can_write(character, encoding):
    try:
        return bool(character.encode(encoding))
    except UnicodeEncodeError:
        return False


def test_the_choice_of_who_runs_it_stays(run, monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), "ascii", "backslashreplace", newline="")
    monkeypatch.setattr(sys, "stdout", stdout)
    assert run("generate", *SHORT)[0] == 0
    assert rb"\xe9 \u2039\u6f22\u203a" in stdout.buffer.getvalue()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("closed", ["stdout", "stderr"])
def test_every_command_goes_without_a_stream(run, monkeypatch, call, closed):
    """As `specdec-kernels info >&-` starts it."""
    monkeypatch.setattr(sys, closed, None)
    status, *written = run(*CALLS[call])
    assert status == 0
    assert "rror" not in "".join(written)


def test_an_error_without_a_stderr_is_a_status(run, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert run("generate", *SHORT, "--temperature", -1) == (2, "", "")


@pytest.mark.parametrize("more", [[], ["--show"], ["--json"], ["--svg", "rounds.svg"]], ids=str)
def test_the_first_error_is_shown(run, monkeypatch, tmp_path, more):
    class Failing(io.StringIO):
        writes = 0

        def write(self, text):
            self.writes += 1
            raise OSError(f"write {self.writes}")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdout", Failing())
    status, _, err = run("generate", *SHORT, *more)
    assert (status, err.splitlines()[-1]) == (2, "specdec-kernels generate: error: write 1")


BOM = "\ufeff"


@pytest.mark.parametrize("before", ["", BOM], ids=["plain", "with a BOM"])
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_files_are_read_as_they_are(run, tmp_path, before, end):
    """Line ends count, and a byte order mark does not."""
    text, path = f"ROMEO:{end}O,{end}", tmp_path / "file.txt"
    options = ["generate", "--json", "--max-new-tokens", 8, "--method", "plain"]
    path.write_bytes((before + text).encode())
    ours, theirs = (run(*options, *given) for given in (["--prompt-file", path], ["--prompt", text]))
    assert (ours[0], ours[2]) == (0, "")
    assert json.loads(ours[1])["tokens"] == json.loads(theirs[1])["tokens"]
    path.write_bytes(f"{before}65,{end}66 67{end}".encode())
    status, out, err = run(*options, "--allow", path)
    assert (status, err) == (0, "")
    assert set(json.loads(out)["tokens"]) <= {65, 66, 67}
