"""`generate --chat`: conversations in the form of the tokenizer's template, answered turn by turn."""

import json
import sys

import pytest

from specdec_kernels.cli import printing
from specdec_kernels.generate import generate, load_model
from specdec_kernels.generate import loop as generation_loop
from specdec_kernels.generate.train import byte_tokenizer, new_model, save

TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'system' and not loop.first %}"
    "{{ raise_exception('only the first message is the system\\'s') }}{% endif %}"
    "[{{ message.role }}]{{ message.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)
OPTIONS = ["generate", "--chat", "--max-new-tokens", 12, "--seed", 4]


@pytest.fixture(scope="module")
def chatty(tmp_path_factory):
    """A model with a chat template."""
    path = tmp_path_factory.mktemp("chatty")
    save(new_model("draft", 400), path)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    return path


def reports(run, *arguments):
    status, out, err = run(*OPTIONS, "--json", *arguments)
    assert (status, err) == (0, "")
    return list(map(json.loads, out.splitlines()))


def answer(path, said, seed=4):
    """The answer to a conversation that was written out by hand; the template has no beginning-of-text token."""
    target = load_model(path)
    tokens = target.tokenizer(said, add_special_tokens=False)["input_ids"]
    return generate([tokens], target, method="plain", seed=seed, max_new_tokens=12)[0]


def test_a_message_and_a_system_prompt(run, chatty):
    (report,) = reports(run, "--target", chatty, "--prompt", "Hi", "--system", "Be brief")
    assert report["tokens"] == answer(chatty, "[system]Be brief\n[user]Hi\n[assistant]").tokens
    first, second = reports(run, "--target", chatty, "--prompt", "Hi", "--prompt", "Ho")
    assert first["tokens"] == answer(chatty, "[user]Hi\n[assistant]").tokens
    assert second["tokens"] == answer(chatty, "[user]Ho\n[assistant]", seed=5).tokens


@pytest.mark.parametrize("draft", ["ngram-cache", "none"])
def test_several_turns_from_a_file(run, chatty, tmp_path, draft):
    path = tmp_path / "talk.json"
    said = ["Hi", {"role": "assistant", "content": "Yes?"}, "Who?", "Why?"]
    path.write_text(json.dumps(said), encoding="utf-8-sig")
    first, second = reports(run, "--target", chatty, "--prompt-file", path, "--draft", draft)
    before = "[user]Hi\n[assistant]Yes?\n[user]Who?\n[assistant]"
    assert first["tokens"] == answer(chatty, before).tokens
    assert second["tokens"] == answer(chatty, f"{before}{first['text']}\n[user]Why?\n[assistant]").tokens
    status, out, err = run(*OPTIONS, "--target", chatty, "--prompt-file", path)
    assert (status, out) == (0, f"> Who?\n{first['text']}\n> Why?\n{second['text']}\n")
    assert err.startswith("24 tokens, ")


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"role": "user"}', '[{"role": "cook", "content": "a"}]', "[1]", '["a", 2]']
)
def test_files_that_hold_no_conversation_are_named(refused, tmp_path, content):
    path = tmp_path / "talk.json"
    path.write_text(content)
    assert "argument --prompt-file: expected a JSON list of" in refused(*OPTIONS, "--prompt-file", path)


def test_what_a_template_refuses_is_said(run, chatty, tmp_path):
    path = tmp_path / "talk.json"
    path.write_text('["Hi", {"role": "system", "content": "Be brief"}, "Ho"]')
    status, _, err = run(*OPTIONS, "--target", chatty, "--prompt-file", path)
    assert status == 2
    assert "template takes no such conversation (only the first message is the system's)" in err


# Long prompts.


def test_long_prompts_are_read_in_pieces_on_one_line(run, monkeypatch):
    monkeypatch.setattr(generation_loop, "PIECE", 16)
    options = ["generate", "--max-new-tokens", 8, "--prompt", "O Romeo, Romeo, wherefore art thou?"]
    for shape in ([], ["--tree", "chain:2"]):
        quiet = run(*options, *shape)
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
        status, out, err = run(*options, *shape)
        assert (status, out) == (0, quiet[1])
        said = "\rread 16 of 36 tokens\rread 32 of 36 tokens\r\x1b[K"
        assert err.startswith(said), repr(err)
        assert quiet[2].count("tokens a call") == 1
        assert "\rread" not in quiet[2]
        monkeypatch.undo()
        monkeypatch.setattr(generation_loop, "PIECE", 16)


def test_pieces_leave_the_text_as_it_is(monkeypatch):
    target = load_model("embedded:draft", dtype="float64")
    prompts, options = ["O Romeo, Romeo, wherefore art thou?", "What is the matter, lady?"], dict(max_new_tokens=20)
    whole = generate(prompts, target, method="plain", **options)
    monkeypatch.setattr(generation_loop, "PIECE", 5)
    seen = []
    pieces = generate(prompts, target, method="plain", progress=lambda *place: seen.append(place), **options)
    assert [text.tokens for text in pieces] == [text.tokens for text in whole]
    assert seen == [(5, 26), (10, 26), (15, 26), (20, 26), (25, 26)]
    assert printing.reading() is None
