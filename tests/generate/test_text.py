"""Text comes out as soon as it is certain, and no sooner."""

import pytest

from specdec_kernels.generate import load_model
from specdec_kernels.generate.text import TextStream


@pytest.fixture(scope="module")
def tokenizer():
    return load_model("embedded:draft").tokenizer


def pieces(stream, text):
    given = []
    for byte in text.encode():
        stream.append([byte])
        given.append(stream.read())
    return given


def test_characters_of_several_bytes_come_whole(tokenizer):
    assert pieces(TextStream(tokenizer, [256]), "aé漢") == ["a", "", "é", "", "", "漢"]


def test_an_incomplete_character_comes_at_the_end(tokenizer):
    stream = TextStream(tokenizer, [256])
    stream.append(list("é".encode())[:1])
    assert (stream.read(), stream.read(final=True)) == ("", "\ufffd")


def test_what_may_become_a_stop_string_is_held_back(tokenizer):
    stream = TextStream(tokenizer, [256], stop=("END",))
    assert pieces(stream, "aENbEN") == ["a", "", "", "ENb", "", ""]
    assert not stream.stopped()
    stream.append(list(b"D!"))
    assert stream.stopped()
    assert stream.read(final=True) == ""


def test_special_tokens_are_no_text(tokenizer):
    stream = TextStream(tokenizer, tokenizer("x")["input_ids"])
    stream.append([ord("y"), 257])
    assert stream.read(final=True) == "y"


def test_the_byte_tokenizer_is_the_identity_on_bytes(tokenizer):
    every = bytes(range(128)).decode() + "é漢\u00ad\U0001f600"
    assert tokenizer(every)["input_ids"] == [256, *every.encode()]
    assert tokenizer.decode([256, *every.encode()], skip_special_tokens=True) == every
