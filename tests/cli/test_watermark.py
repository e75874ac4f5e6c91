import io
import json
import re

from specdec_kernels.cli import main

KEY = "123456789"


def written(capsys, *options):
    assert main(["generate", "--prompt", "ROMEO:", "--max-new-tokens", "80", "--json", *options]) == 0
    return json.loads(capsys.readouterr().out)


def found(capsys, *options):
    """(p-value, tokens)"""
    assert main(["watermark", *options]) == 0
    p_value, count = re.fullmatch(r"p = (.*): .* from (.*) tokens, .* expected\n", capsys.readouterr().out).groups()
    return float(p_value), int(count)


def test_written_and_found(capsys, tmp_path, monkeypatch):
    """In a file, on stdin, as ids; not by another key, and not in another text."""
    text = written(capsys, "--watermark", KEY, "--watermark-window", "3")["text"]
    place = tmp_path / "text.txt"
    place.write_text(text)
    options = ["--key", KEY, "--window", "3"]
    by_file = found(capsys, *options, "--text-file", str(place))
    assert by_file[0] < 1e-5
    assert by_file[1] > 40
    monkeypatch.setattr("sys.stdin", io.StringIO(text))
    assert found(capsys, *options) == by_file
    ids = tmp_path / "ids.txt"
    ids.write_text(" ".join(str(byte) for byte in text.encode()))
    assert found(capsys, *options, "--ids", str(ids)) == by_file
    assert found(capsys, "--key", "5", "--window", "3", "--ids", str(ids))[0] > 1e-3
    place.write_text("")
    assert found(capsys, *options, "--text-file", str(place)) == (1.0, 0)
