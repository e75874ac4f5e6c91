"""`specdec-kernels train`, on a text and for steps too few to learn much."""

import json

import pytest
import torch
from safetensors.torch import load_file

from specdec_kernels.cli import main
from specdec_kernels.generate import load_model
from specdec_kernels.generate.drafters import looks_ahead
from specdec_kernels.generate.train import ROWS, Text, learning_rate, look_ahead_logits, new_model

OPTIONS = [
    "--target-steps", "3", "--draft-steps", "3", "--parallel-steps", "3", "--batch", "2", "--context", "48",
    "--held-out", "0.2",
]  # fmt: skip


@pytest.fixture(scope="module")
def textfile(tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("All work and no play\nmakes Jack a dull boy.\n" * 20)
    return path


def test_a_run_writes_models_that_load_and_repeat(textfile, tmp_path, capsys):
    for out in ("first", "second"):
        assert main(["train", str(textfile), "--out", str(tmp_path / out), *OPTIONS]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["model"] for line in lines[:9]] == ["target"] * 3 + ["draft"] * 3 + ["parallel"] * 3
    assert lines[2]["loss"] < lines[0]["loss"] < 6
    assert 0 < lines[5]["acceptance"] <= 1
    assert len(lines[8]["acceptance"]) == ROWS
    assert all(0 < acceptance <= 1 for acceptance in lines[8]["acceptance"])
    for role in ("target", "draft", "parallel"):
        first, second = (load_file(tmp_path / out / role / "model.safetensors") for out in ("first", "second"))
        assert all(torch.equal(first[name], second[name]) for name in first)
        model = load_model(tmp_path / "first" / role)
        assert model.max_length == 48
        assert model.encode("é") == [256, 0xC3, 0xA9]
    assert looks_ahead(model)


def test_look_ahead_tokens_read_at_many_places_say_what_they_say_at_each():
    torch.manual_seed(0)
    model, tokens = new_model("parallel", 32).eval(), torch.randint(256, (2, 20))
    together = look_ahead_logits(model, tokens, torch.tensor([3, 9]))
    for index, place in enumerate((3, 9)):
        read = torch.cat([tokens[:, : place + 1], torch.arange(258, 257 + ROWS).repeat(2, 1)], dim=1)
        alone = model(read).logits[:, place + 1 :, :258]
        torch.testing.assert_close(together[:, index], alone, rtol=1e-5, atol=1e-6)


def test_windows_begin_lines_and_leave_the_held_out_part_alone(textfile):
    text = Text(textfile, held_out=0.2, context=48, seed=0)
    windows = text.windows(64)
    assert (windows[:, 0] == 256).all()
    assert {chr(first) for first in windows[:, 1].tolist()} == {"A", "m"}
    assert len(text.train) + len(text.held_out) == textfile.stat().st_size
    assert text.held_out_windows()[0, 1:].tolist() == text.held_out[:47].tolist()


def test_learning_rate_rises_stays_and_falls():
    rates = [learning_rate(step, 100, 2.0) for step in range(100)]
    assert rates[0] < rates[1] < rates[2] == rates[50] == 2.0
    assert rates[-1] == pytest.approx(2.0 / 40)
    assert sorted(rates[60:], reverse=True) == rates[60:]


@pytest.mark.parametrize(
    "content, message", [(None, "No such file"), ("short", "TEXTFILE: expected at least 48 bytes")]
)
def test_a_file_that_cannot_be_learnt_from_is_named(tmp_path, capsys, content, message):
    path = tmp_path / "text.txt"
    if content:
        path.write_text(content)
    assert main(["train", str(path), "--out", str(tmp_path), *OPTIONS]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
