"""What is broken or missing is said in one line with the right exit status; what was written before stays."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys

import pytest
import torch

import specdec_kernels.generate
from specdec_kernels.generate import stream
from specdec_kernels.generate.models import EMBEDDED
from specdec_kernels.generate.train import new_model, save

PROGRAM = [sys.executable, "-m", "specdec_kernels.cli"]
ALONE = os.environ | {"OMP_NUM_THREADS": "1"}


def truncate(path):
    path.write_bytes(path.read_bytes()[:1000])


def garble(path):
    path.write_bytes(b"\xff" * 3000)


def of_another_shape(path):
    shutil.copy(EMBEDDED / "target" / "model.safetensors", path)


WRONG = {
    "truncated": truncate,
    "garbled": garble,
    "empty": lambda path: path.write_bytes(b""),
    "absent": lambda path: path.unlink(),
    "of another model": of_another_shape,
}


@pytest.mark.parametrize(
    "command, wrong", [*(("generate", wrong) for wrong in WRONG), ("plan", "garbled"), ("compare", "garbled")]
)
def test_weights_that_are_not_there_are_named(refused, tmp_path, command, wrong):
    save(new_model("draft", 64), tmp_path)
    WRONG[wrong](tmp_path / "model.safetensors")
    err = refused(command, "--draft", tmp_path)
    assert f"{tmp_path}: expected a Hugging Face causal language model directory (" in err


def test_text_that_is_not_utf8_is_named(refused, tmp_path):
    (tmp_path / "prompt.txt").write_bytes(b"ROM\xff")
    err = refused("generate", "--prompt-file", tmp_path / "prompt.txt")
    assert "argument --prompt-file: expected a file of text in UTF-8; got" in err
    for option in ("--prompt", "--stop"):
        assert f"argument {option}: expected text in UTF-8" in refused("generate", option, "ROM\udcff")
    assert "argument --stop: expected text in UTF-8 that is not empty; got ''" in refused("generate", "--stop", "")
    assert "argument --prompt: expected text in UTF-8" in refused("plan", "--prompt", "ROM\udcff")


def test_a_device_that_is_not_there_is_named(refused, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    err = refused("generate", "--device", "cuda")
    assert "argument --device: expected one of this machine, which has no CUDA device; got cuda" in err


@pytest.mark.parametrize("held", [b"", b"short"], ids=["empty", "short"])
def test_a_text_that_is_too_short_is_named(refused, tmp_path, held):
    (tmp_path / "text").write_bytes(held)
    err = refused("train", tmp_path / "text", "--out", tmp_path)
    assert f"TEXTFILE: expected at least 512 bytes in each part; got {len(held)} in all" in err


def test_a_folder_that_cannot_be_made_is_met_before_the_work(refused, tmp_path):
    (tmp_path / "file").touch()
    err = refused("train", "text", "--out", tmp_path / "file" / "folder")
    assert "argument --out: expected a folder to write to; got" in err
    assert "(Not a directory)" in err


def test_what_brings_a_missing_package_is_named(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "specdec_kernels.generate", None)
    assert "pip install specdec-kernels[generate]" in refused("generate")


def test_show_without_colour_keeps_replaced_and_bonus_apart(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    _, out, _ = run("generate", "--show", "--max-new-tokens", 20)
    assert "accepted" in out
    assert "‹replaced›" in out
    assert "«bonus»" in out


def test_a_model_without_a_law_ends_with_status_1(run, tmp_path):
    model = new_model("draft", 64)
    with torch.no_grad():
        model.get_input_embeddings().weight[10] = float("nan")
    save(model, tmp_path)
    for method in ("plain", "race", "rejection"):
        options = ["generate", "--target", tmp_path, "--draft", "ngram", "--prompt", "ab", "--max-new-tokens", 9]
        options += ["--method", method]
        status, out, err = run(*options)
        assert (status, out, err.count("\n")) == (1, "ab\n", 2)
        assert err.startswith("0 tokens, 0 target calls ")
        assert err.endswith(f"error: {tmp_path}: expected finite logits; got nan after 3 tokens of prompts[0]\n")
        status, out, err = run(*options, "--json")
        assert (status, err.count("\n"), json.loads(out)["finish"]) == (1, 1, None)


@pytest.fixture
def interrupted(monkeypatch):
    """Ctrl-C after three rounds."""

    def three_rounds(*arguments, **options):
        for count, entry in enumerate(stream(*arguments, **options), start=1):
            yield entry
            if count == 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(specdec_kernels.generate, "stream", three_rounds)


@pytest.mark.parametrize("shape", [[], ["--tree", "chain:2"]], ids=["chain", "tree"])
def test_json_is_closed_when_interrupted(run, interrupted, shape):
    status, out, err = run("generate", "--json", "--prompt", "A", "--prompt", "B", *shape)
    first, second = map(json.loads, out.splitlines())
    assert (status, err) == (130, "")
    assert (first["finish"], second["finish"]) == (None, None)
    assert (first["target_calls"], second["target_calls"]) == (2, 1)
    assert len(first["tokens"]) >= 2


def test_an_interrupt_leaves_the_text(run, interrupted):
    whole = json.loads(run("generate", "--json")[1])["text"]
    status, out, err = run("generate")
    assert (status, out) == (130, f"ROMEO:\n{whole}\n")
    assert ", 3 target calls (" in err
    assert err.count("\n") == 1


def test_interrupts_show_no_traceback():
    with subprocess.Popen(
        [*PROGRAM, "generate", "--max-new-tokens", "500", "--method", "plain"], env=ALONE, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        # A shell's job in the background ignores interrupts, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as program:  # fmt: skip
        begun = program.stdout.read(10)
        program.send_signal(signal.SIGINT)
        rest, err = program.communicate(timeout=60)
    assert begun.startswith("ROMEO:\n")
    assert program.returncode == 130, err
    assert rest.endswith("\n")
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["generate"], ["generate", "--json"], ["info"]], ids=" ".join)
def test_a_full_disk_is_said(arguments):
    arguments += ["--max-new-tokens", "8"] if "generate" in arguments else []
    with open("/dev/full", "w") as full:
        done = subprocess.run([*PROGRAM, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, env=ALONE)
    assert done.returncode == 2
    assert "No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1


def test_nobody_reads():
    done = subprocess.Popen([*PROGRAM, "info"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ALONE)
    with contextlib.closing(done.stderr):
        done.stdout.close()
        err = done.stderr.read()
        assert (done.wait(60), err) == (1, b"")
