"""The command line, in process: what it prints, and one line with exit status 2 for what is wrong."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import specdec_kernels
from specdec_kernels import DraftTree, Sampling, backends
from specdec_kernels.backends import cpu
from specdec_kernels.cli import printing
from specdec_kernels.cli.main import COMMANDS
from specdec_kernels.cli.options import PRESETS
from specdec_kernels.generate import ModelDrafter, Round, TextEdits, generate, load_model
from specdec_kernels.generate.train import byte_tokenizer, new_model, save
from specdec_kernels.studies.measure import calibrate


def test_generate_prints_the_text_and_a_line_of_statistics(run):
    status, out, err = run("generate", "--prompt", "JULIET:\n", "--max-new-tokens", 30, "--seed", 4)
    text = generate(
        ["JULIET:\n"],
        load_model("embedded:target"),
        ModelDrafter(load_model("embedded:draft")),
        seed=4,
        max_new_tokens=30,
    )[0].text
    assert (status, out) == (0, f"JULIET:\n{text}\n")
    assert err.startswith("30 tokens, ")
    assert "target calls" in err
    assert "tokens/s" in err


def test_json(run):
    options = ["generate", "--max-new-tokens", 24, "--json"]
    status, out, err = run(*options, "--method", "race", "--k", 3)
    report = json.loads(out)
    assert (status, err) == (0, "")
    assert bytes(report["tokens"]).decode() == report["text"]
    assert len(report["tokens"]) == 24 > report["target_calls"]
    assert 0 < report["acceptance"] <= 1
    assert report["tokens_per_call"] == 24 / report["target_calls"]
    assert set(report["timings"]) == {"draft", "target", "verify", "total", "tokens_per_second"}
    plain = json.loads(run(*options, "--method", "plain")[1])
    assert plain["tokens"] == report["tokens"]
    assert (plain["target_calls"], plain["acceptance"]) == (24, None)


def test_a_batch_of_prompts_gives_a_line_each(run, tmp_path):
    (tmp_path / "prompt.txt").write_text("The ")
    options = ["--max-new-tokens", 12, "--seed", 7, "--json"]
    _, out, _ = run("generate", "--prompt", "First", "--prompt-file", tmp_path / "prompt.txt", *options)
    first, second = map(json.loads, out.splitlines())
    assert second["tokens"] == json.loads(run("generate", "--prompt", "The ", *options, "--seed", 8)[1])["tokens"]
    assert first["tokens"] == json.loads(run("generate", "--prompt", "First", *options)[1])["tokens"]


def test_show_marks_every_token_without_colour(run):
    status, out, _ = run("generate", "--show", "--prompt", "A", "--max-new-tokens", 40, "--method", "rejection")
    legend, rest = out.split("\n", 1)
    assert (status, legend) == (0, "accepted ‹replaced› «bonus»")
    report = json.loads(run("generate", "--json", "--prompt", "A", "--max-new-tokens", 40, "--method", "rejection")[1])
    shown = rest.rsplit("\n", 2)[0]
    assert "A" + report["text"] == shown.translate(str.maketrans("", "", "‹›«»"))
    assert shown.count("‹") + shown.count("«") in (report["target_calls"], report["target_calls"] - 1)


@pytest.mark.parametrize("colour", [False, True])
def test_texts_are_printed_as_they_are(capsys, colour):
    prompt, text = "a\tb [bold]\n", "\tc\rd\x0b\x0ce\x07\x08[f]\n"
    entry = Round(0, [1], [("accepted", text)], 1, 1, "length", {})
    printing.show([prompt], colour, None, legend=False)(entry)
    assert capsys.readouterr().out == f"{prompt}{text}\n"


def test_show_colours_on_a_terminal(run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    _, out, _ = run("generate", "--show", "--max-new-tokens", 20)
    assert out.startswith("\x1b[32maccepted\x1b[0m \x1b[1;31mreplaced\x1b[0m \x1b[1;36mbonus\x1b[0m\n")
    assert "‹" not in out


def test_show_of_a_batch_gives_a_line_per_round(run):
    _, out, _ = run("generate", "--show", "--prompt", "A", "--prompt", "B", "--max-new-tokens", 6, "--draft", "none")
    lines = out.splitlines()
    assert lines[1:3] == ["[0] A", "[1] B"]
    assert {line[:4] for line in lines[3:-1] if line.startswith("[")} == {"[0] ", "[1] "}


def test_trees_race_to_the_same_text(run):
    options = ["generate", "--max-new-tokens", 24, "--json", "--dtype", "float64"]
    report = json.loads(run(*options, "--tree", "optimal:6")[1])
    assert report["tokens"] == json.loads(run(*options, "--method", "plain")[1])["tokens"]
    assert [token for entry in report["rounds"] for token in entry["tokens"]] == report["tokens"]
    assert (report["tree"], report["assumed_acceptance"][0]) == ("optimal:6", 0.5)
    first = report["rounds"][0]
    assert len(first["parents"]) == len(first["draft_tokens"]) == 7
    assert [first["draft_tokens"][node] for node in first["path"][1:]] == first["tokens"][: len(first["path"]) - 1]
    assert sum(report["children"]["accepted"]) == report["accepted"]


def test_calibration_shapes_the_tree(run):
    options = ["generate", "--max-new-tokens", 40, "--tree", "optimal:12", "--calibrate"]
    status, out, err = run(*options, "--json")
    report = json.loads(out)
    assert err == f"acceptance by child {' '.join(f'{rate:.3f}' for rate in report['assumed_acceptance'])}\n"
    assert status == 0
    assert len(report["assumed_acceptance"]) == 8
    tree = DraftTree.optimal(report["assumed_acceptance"], 12)
    assert tuple(report["rounds"][0]["parents"]) == tree.parents
    assert ", by child 0." in run(*options)[2]


def test_calibration_is_filtered_as_the_text_is(run):
    options = ["--max-new-tokens", 24, "--tree", "optimal:4", "--calibrate", "--json", "--prompt", "A"]
    report = json.loads(run("generate", *options, "--top-k", 2)[1])
    pair = load_model("embedded:target"), ModelDrafter(load_model("embedded:draft"))
    expected = calibrate(*pair, ["A"], method="race", sampling=Sampling(top_k=2), max_new_tokens=24)
    assert report["assumed_acceptance"] == pytest.approx(expected)


def test_show_draws_trees(run):
    options = ["generate", "--max-new-tokens", 20, "--tree", "specinfer:3,2"]
    rounds = json.loads(run(*options, "--json")[1])["rounds"]
    drawn = run(*options, "--show")[1].split("\nround ")[1:]
    assert len(drawn) == len(rounds)
    for entry, text in zip(rounds, drawn, strict=True):
        assert text.count("✓") == len(entry["path"]) - 1
        assert text.count("├── ") + text.count("└── ") in (len(entry["draft_tokens"]) - 1 + extra for extra in (0, 1))
    batch = run(*options, "--show", "--prompt", "A", "--prompt", "B")[1]
    assert "\nround 1 of [0]\n'A'\n├── " in batch


@pytest.mark.parametrize(
    "options",
    [
        ["--tree", "chain:3"],
        ["--tree", "alternatives:3", "--method", "rejection"],
        ["--tree", "specinfer:2,2", "--method", "rejection", "--replacement"],
        ["--tree", "parents:-1,0,0,1", "--temperature", 0],
        ["--tree", "auto"],
        ["--draft", "ngram", "--ngram-max", 5, "--ngram-min", 2],
        ["--draft", "ngram-cache"],
        ["--drafter", "early-exit:2"],
        ["--draft-vocabulary", 128],
        ["--draft", "early-exit:2", "--tree", "chain:2", "--device", "auto"],
        ["--draft", "none"],
        ["--k", "auto"],
        ["--k", "auto", "--method", "rejection", "--draft-policy", "chain"],
        ["--k", 0, "--max-pending", 1],
        ["--temperature", 0],
        ["--method", "rejection", "--draft-prob", 0.5],
        ["--method", "rejection", "--draft-policy", "uniform"],
        ["--method", "rejection", "--draft-policy", "token", "--draft-prob", 0.8, "--k", 2],
        ["--method", "block"],
        ["--method", "block", "--k", "auto"],
        ["--method", "block", "--draft", "ngram"],
        ["--method", "traversal", "--tree", "specinfer:2,2", "--replacement"],
        ["--method", "traversal", "--tree", "optimal:5"],
        ["--method", "traversal", "--tree", "auto"],
        ["--paths", 2, "--k", 3],
        ["--paths", "auto", "--draft", "embedded:parallel"],
        ["--dtype", "bfloat16"],
    ],
    ids=lambda options: " ".join(map(str, options)),
)
def test_options(run, options):
    status, out, err = run("generate", "--max-new-tokens", 16, "--json", *options)
    assert (status, err) == (0, "")
    assert len(json.loads(out)["tokens"]) == 16


FILTERS = ["--temperature", 1.3, "--top-k", 20, "--top-p", 0.8, "--min-p", 0.02]


@pytest.mark.costly
@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_filters(run, preset):
    """`top_p` of 0.8 lies elsewhere by several of these rules, so texts tell them apart."""
    rule = [] if preset is None else ["--preset", preset]
    status, out, err = run("generate", "--max-new-tokens", 40, "--json", "--method", "plain", *FILTERS, *rule)
    report = json.loads(out)
    make = Sampling if preset is None else getattr(Sampling, preset)
    (text,) = generate(
        ["ROMEO:\n"], load_model("embedded:target"), method="plain", sampling=make(1.3, 20, 0.8, 0.02),
        max_new_tokens=40,
    )  # fmt: skip
    assert (status, err, report["tokens"]) == (0, "", text.tokens)
    assert [report[name] for name in ("temperature", "top_k", "top_p", "min_p", "preset")] == [
        1.3,
        20,
        0.8,
        0.02,
        preset,
    ]


FORBID_ALL = [word for token in range(258) for word in ("--bias", f"{token}:-inf")]


@pytest.mark.parametrize(
    "options, message",
    [
        (FORBID_ALL, "edits.bias: expected at least one token to be left that embedded:target writes; got none"),
        (["--allow", "65", "--bias", "65:-inf"], "edits.bias and edits.allowed: expected at least one token to be"),
        (["--allow", "65", "--draft-vocabulary", 9], "edits.allowed: expected at least one token to be left that "
         "embedded:draft writes; got none"),
        (["--allow", "65 ,a"], "which has 'a' in it"),
        (["--allow", "-3"], "argument --allow: expected a file of token ids; got "),
        (["--allow", ""], "edits.allowed: expected one token at least; got none"),
    ],
    ids=["bias", "both", "draft", "letters", "negative", "empty"],
)  # fmt: skip
@pytest.mark.parametrize("method", ["plain", "race", "rejection"])
def test_edits_that_leave_nothing_are_named(run, tmp_path, options, message, method):
    if options[0] == "--allow":
        (tmp_path / "ids").write_text(options[1])
        options = ["--allow", tmp_path / "ids", *options[2:]]
    status, _, err = run("generate", "--max-new-tokens", 4, "--method", method, *options)
    if method == "plain" and "--draft-vocabulary" in options:
        assert status == 0
        return
    assert (status, err.count("\n")) == (2, 1)
    assert message in err


@pytest.mark.parametrize("method", ["race", "rejection"])
def test_a_draft_that_writes_one_token(run, method):
    status, out, err = run("generate", "--max-new-tokens", 12, "--json", "--draft-vocabulary", 1, "--method", method)
    assert (status, err, len(json.loads(out)["tokens"])) == (0, "", 12)


def test_edits(run, tmp_path):
    """Every option reaches the text; reports say what was asked for."""
    allowed = [*range(32, 127), 10]
    (tmp_path / "ids").write_text("\n".join(map(str, allowed[:50])) + "\n" + ", ".join(map(str, allowed[50:])))
    options = ["--repetition-penalty", 1.3, "--frequency-penalty", 0.25, "--presence-penalty", -0.5]
    options += ["--bias", "101:-inf", "--bias", "32:1.5", "--allow", tmp_path / "ids"]
    with specdec_kernels.backend("reference"):
        status, out, err = run("generate", "--max-new-tokens", 24, "--json", *options)
        edits = TextEdits(1.3, 0.25, -0.5, {101: -float("inf"), 32: 1.5}, allowed)
        (text,) = generate(["ROMEO:\n"], load_model("embedded:target"), method="plain", edits=edits, max_new_tokens=24)
    report = json.loads(out)
    assert (status, err, report["tokens"]) == (0, "", text.tokens)
    names = "repetition_penalty", "frequency_penalty", "presence_penalty", "bias", "allowed"
    assert [report[name] for name in names] == [1.3, 0.25, -0.5, ["101:-inf", "32:1.5"], 96]


def test_presets_are_those_of_the_documents():
    page = (Path(__file__).parents[2] / "docs" / "filters.md").read_text()
    table = page.partition("## Presets")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == list(PRESETS)


def test_logprobs_of_tokens_alone(run):
    options = ["generate", "--max-new-tokens", 12, "--json", "--method", "rejection"]
    report = json.loads(run(*options, "--logprobs", 0)[1])
    assert set(report["logprobs"][0]) == {"logprob", "rank", "top_tokens", "top_logprobs"}
    assert all(entry["logprob"] <= 0 < entry["rank"] for entry in report["logprobs"])
    assert all(entry["top_tokens"] == entry["top_logprobs"] == [] for entry in report["logprobs"])
    assert "logprobs" in report["timings"]
    assert "logprobs" not in json.loads(run(*options)[1])


@pytest.mark.parametrize("options", [["--top-k", 5], ["--json", "--logprobs", 1]], ids=str)
@pytest.mark.parametrize("more", [[], ["--tree", "optimal:4", "--calibrate"]], ids=["chain", "tree"])
def test_a_backend_that_lacks_something_says_so_in_one_line(run, monkeypatch, options, more):
    def unsupported(op, call):
        lacks = op.name == "logprobs" or (op.name == "race_sample" and call.law.rules)
        return "another has it" if lacks else None

    module = SimpleNamespace(**vars(cpu) | {"unsupported": unsupported})
    monkeypatch.setitem(backends._BACKENDS, "bare", (module, ("cpu",)))
    monkeypatch.delitem(backends._loaded, "bare", raising=False)
    with specdec_kernels.backend("bare"):
        status, out, err = run("generate", "--max-new-tokens", 4, *options, *more)
    assert (status, out) == (2, "")
    err = err.splitlines()
    assert err[-1].startswith("specdec-kernels generate: error: backend 'bare' cannot do this ")
    assert err[-1].endswith("another has it")
    assert all(line.startswith("acceptance by child") for line in err[:-1])


def test_stop_strings(run):
    whole = json.loads(run("generate", "--json", "--max-new-tokens", 40)[1])["text"]
    stopped = json.loads(run("generate", "--json", "--max-new-tokens", 40, "--stop", whole[20:23])[1])
    assert stopped["text"] == whole[: whole.index(whole[20:23])]
    assert stopped["finish"] == "stop"


def test_version(run):
    assert run("--version") == (0, f"specdec-kernels {specdec_kernels.__version__}\n", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(run, command):
    status, out, err = run(command, "--help")
    assert (status, err) == (0, "")
    assert COMMANDS[command] in " ".join(out.split())


def test_commands_are_imported_when_asked_for():
    code = """
import sys
from specdec_kernels.cli import main
try:
    main(["--help"])
except SystemExit:
    late = ("generate", "studies", "theory", *(f"cli.{name}" for name in sys.argv[1:]))
    print([name for name in late if f"specdec_kernels.{name}" in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code, *COMMANDS], capture_output=True, text=True, check=True)
    assert all(text in " ".join(done.stdout.split()) for text in COMMANDS.values())
    assert done.stdout.endswith("[]\n")


def test_info(run):
    status, out, _ = run("info")
    assert status == 0
    for name in ("specdec-kernels:", "torch:", "devices: cpu", "backends:", "build:"):
        assert name in out
    assert {"versions", "devices", "backends", "build"} == set(json.loads(run("info", "--json")[1]))


WRONG = {  # the command line, and what the error says
    "generate --tree bush:3": "argument --tree: expected chain:K, alternatives:K",
    "generate --tree chain": "got 'chain'",
    "generate --tree specinfer:9,x": "got 'specinfer:9,x'",
    "generate --tree specinfer:99,99,99": "of at most 1023 tokens; got 'specinfer:99,99,99'",
    "generate --tree parents:-1,2,0": "argument --tree: parents[1]: expected a node before it, 0 to 0",
    "generate --max-pending 0": "argument --max-pending: expected a whole number >= 1; got '0'",
    "generate --tree chain:3 --k 3": "argument --tree: expected no --k, --draft-prob or",
    "generate --method traversal": "tree: expected one with method traversal (block is the same for",
    "generate --method block --k auto --draft-policy chain": "argument --draft-policy: expected --method rejection",
    "generate --paths 0": "argument --paths: expected a whole number >= 1 or 'auto'; got '0'",
    "generate --paths 2 --tree chain:3": "argument --paths: expected --method paths and no --tree",
    "generate --paths 300": "argument --paths: expected at most 1023 tokens a round; got 1200",
    "generate --method paths": "argument --method: expected --paths with paths; got none",
    "generate --tree chain:3 --calibrate": "--calibrate: expected --tree optimal:K; got chain:3",
    "generate --replacement": "argument --replacement: expected --tree with it; got none",
    "generate --draft ngram --draft-vocabulary 9": "argument --draft-vocabulary: expected a model",
    "generate --ngram-max 3": "--ngram-min: expected --draft ngram or ngram-cache; got embedded:draft",
    "generate --draft ngram-cache --ngram-max 1": "expected 1 <= shortest <= longest; got 2 and 1",
    "generate --k -1": "argument --k: expected a whole number from 0 to 1023 or 'auto'; got '-1'",
    "generate --k many": "argument --k: expected a whole number from 0 to 1023 or 'auto'; got 'many'",
    "generate --k 1000000000": "argument --k: expected a whole number from 0 to 1023 or 'auto'; got",
    "generate --temperature nan": "argument --temperature: expected a finite number >= 0; got 'nan'",
    "generate --top-k -1": "argument --top-k: expected a whole number >= 0; got '-1'",
    "generate --top-k 2.5": "argument --top-k: expected a whole number >= 0; got '2.5'",
    "generate --top-p 1.5": "argument --top-p: expected a number in [0, 1]; got '1.5'",
    "generate --min-p nan": "argument --min-p: expected a number in [0, 1]; got 'nan'",
    "generate --preset gpt": "argument --preset: invalid choice: 'gpt' (choose from",
    "generate --repetition-penalty 0": "argument --repetition-penalty: expected a finite number above 0",
    "generate --frequency-penalty inf": "argument --frequency-penalty: expected a finite number; got",
    "generate --bias 7": "argument --bias: expected ID:VALUE, a token id and a finite number or -inf",
    "generate --bias 7:inf": "argument --bias: expected ID:VALUE, a token id and a finite number or -inf",
    "generate --bias 7:1 --bias 7:2": "argument --bias: expected each token once; got 7 twice",
    "generate --bias 999:1": "edits.bias: expected token ids from 0 to 257, which embedded:target writes",
    "generate --allow /nowhere": "argument --allow: expected a file of token ids; got '/nowhere'",
    "generate --logprobs many": "argument --logprobs: expected a whole number >= 0; got 'many'",
    "generate --logprobs 2": "argument --logprobs: expected --json with it; got none",
    "generate --draft-prob 1.5": "argument --draft-prob: expected a number in [0, 1]; got '1.5'",
    "generate --max-new-tokens 0": "argument --max-new-tokens: expected a whole number >= 1; got '0'",
    "generate --max-new-tokens 600": "max_new_tokens: expected at most 504 after a prompt of 8 tokens",
    "generate --seed x": "argument --seed: expected a whole number; got 'x'",
    "generate --method gumbel": "argument --method: invalid choice: 'gumbel'",
    "generate --target /no/model --prompt x": "argument --target: /no/model: expected a Hugging Face",
    "generate --draft early-exit:six": "--draft/--drafter: expected early-exit:N with a whole number",
    "generate --draft early-exit:6": "argument --draft: layers: expected 1 to 5, less than embedded",
    "generate --draft /no/model": "argument --draft: /no/model: expected a Hugging Face",
    "generate --target /no/model": "argument --prompt: expected a prompt or --prompt-file with a target",
    "generate --prompt-file /no/file": "argument --prompt-file: expected a file of text in UTF-8; got /no/file",
    "generate --k auto --draft-prob 0.5": "argument --k: expected a number with --draft-prob",
    "generate --k auto --draft-policy token": "argument --k: expected a number with --draft-prob",
    "generate --watermark x": "argument --watermark: expected a whole number other than 0; got 'x'",
    "generate --watermark 0": "argument --watermark: expected a whole number other than 0; got '0'",
    "generate --watermark 18446744073709551616": "key: expected 64 bits at most",
    "generate --watermark 1 --method rejection": "watermark: expected a race; got rejection",
    "generate --chat": "argument --chat: expected --prompt or --prompt-file with it; got none",
    "generate --chat --prompt Hi": "--chat: expected a model whose tokenizer has a chat template; got embedded:target",
    "generate --system 'Be brief'": "--system: expected --chat with it; got none",
    "watermark": "the following arguments are required: --key",
    "watermark --key 0": "argument --key: expected a whole number other than 0; got '0'",
    "watermark --key 1 --text-file /none": "argument --text-file: expected a file of text in UTF-8",
    "compare --draft /no/model": "specdec-kernels compare: error: /no/model: expected a Hugging Face",
    "compare --tokens 0": "argument --tokens: expected a whole number >= 1; got '0'",
    "compare --k -1": "argument --k: expected a whole number from 0 to 1023; got '-1'",
    "compare --temperature inf": "argument --temperature: expected a finite number >= 0; got 'inf'",
    "train text --batch 0": "argument --batch: expected a whole number >= 1; got '0'",
    "train text --held-out 1": "argument --held-out: expected a number between 0 and 1; got '1'",
    "plan --acceptance 0.8": "--cost",
    "plan --acceptance 0.8,1.2 --cost 0.1": "--acceptance",
    "plan --acceptance high --cost 0.1": "--acceptance",
    "plan --acceptance 0.8 --cost -1": "argument --cost: expected a finite number >= 0; got '-1'",
    "plan --acceptance 0.8 --cost inf": "argument --cost: expected a finite number >= 0; got 'inf'",
    "plan --acceptance 0.8 --cost 0.1 --children 0.9,0.9": "argument --children: expected a sum of at most 1; got 1.8",
    "plan --acceptance 0.8 --cost 0.1 --children 0.2,0.5": "argument --children: expected no child above the one",
    "plan --acceptance 0.8 --cost 0.1 --max-k -1": "argument --max-k: expected a whole number from 0 to 1000000",
    "plan --acceptance 0.8 --cost 0.1 --max-k 1000000000000": "argument --max-k: expected a whole number",
    "plan --acceptance 0.8 --cost 0.1 --nodes x": "argument --nodes: expected a whole number from 0 to 1000000",
    "plan --draft embedded:parallel": "argument --draft: expected a model that drafts token by token; got embedded",
    "plan --tokens 1": "argument --tokens: expected at least 10; got 1",
    "plan --tokens 4 --max-k 3": "argument --tokens: expected at least 5; got 4",
    "plan --temperature 0": "argument --temperature: expected a finite number above 0; got '0'",
    "plan --laws nowhere.npz --cost 0.1": "argument --laws: expected an .npz file with p and q",
    "write": "argument COMMAND: invalid choice: 'write'",
    "": "the following arguments are required: COMMAND",
}


@pytest.mark.parametrize("line", WRONG)
def test_what_is_wrong_is_said_in_one_line(refused, line):
    assert WRONG[line] in refused(*shlex.split(line))


def test_a_draft_with_another_vocabulary_is_named(refused, tmp_path):
    save(new_model("draft", 64), tmp_path)
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<extra>"])
    tokenizer.save_pretrained(tmp_path)
    err = refused("generate", "--draft", tmp_path)
    assert f"draft {tmp_path}: expected the vocabulary of target embedded:target; got 1 tokens" in err


@pytest.mark.slow
def test_as_a_program():
    """No traceback, and no noise of others, outside pytest."""
    command = [sys.executable, "-m", "specdec_kernels.cli", "generate"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    wrong = subprocess.run([*command, "--draft", "/no/model"], capture_output=True, text=True, env=environment)
    assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (2, "", 1)
    right = subprocess.run([*command, "--max-new-tokens", "8"], capture_output=True, text=True, env=environment)
    assert right.returncode == 0
    assert right.stdout.startswith("ROMEO:\n")
    assert right.stderr.count("\n") == 1
