"""Masks of xgrammar, llguidance and outlines-core themselves, by the lines of docs/recipes.md, through every method."""

import re
from functools import cache
from itertools import product
from pathlib import Path

import pytest
import torch

from specdec_kernels import (
    DraftTree,
    LogitEdits,
    Status,
    merge_chains,
    race_sample,
    race_topk,
    verify_chain,
    verify_tree,
)
from tests.support.laws import assert_law

llguidance, outlines_core, xgrammar = map(pytest.importorskip, ("llguidance", "outlines_core", "xgrammar"))
from llguidance.torch import fill_next_token_bitmask, fill_next_token_bitmask_par_with_draft_tokens  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"
SAID = ["a", "b", "c", "ab", "bc"]  # the stop token is next, and others that no grammar of these takes
WORDS = [*SAID, "</s>", *(chr(65 + i) * 2 for i in range(26)), *map(str, range(5))]
STOP, V = len(SAID), 44  # the model's rows are wider than the tokenizer's 37 tokens, in as many words
GRAMMARS = ("ab*c?", "(a|b)*c", "(ab|ba){1,2}c")
LIBRARIES = ("xgrammar", "llguidance", "outlines")
TREES = {"tree": DraftTree.specinfer((3, 2, 1)), "chain": DraftTree.chain(3)}
LENGTH = 3  # tokens of a text that are compared with the law


class Tokenizer:
    """What llguidance's TokenizerWrapper asks for. Padding is tokens without bytes."""

    eos_token_id, bos_token_id, special_token_ids = STOP, None, [STOP]

    def __init__(self, size):
        self.tokens = [word.encode() for word in WORDS] + [b""] * (size - len(WORDS))

    def __call__(self, text):
        text, found = text.decode() if isinstance(text, bytes) else text, []
        while text:
            token = max((i for i, w in enumerate(WORDS) if text.startswith(w)), key=lambda i: len(WORDS[i]))
            text, found = text[len(WORDS[token]) :], [*found, token]
        return found


@cache
def llguidance_tokenizer(size=V):
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(Tokenizer(size)))


@cache
def compiled(library, grammar, size=V):
    if library == "xgrammar":
        info = xgrammar.TokenizerInfo(WORDS, vocab_size=size, stop_token_ids=[STOP])
        return xgrammar.GrammarCompiler(info).compile_regex(grammar)
    if library == "llguidance":
        return f'%llguidance {{ "no_forcing": true }}\nstart: /{grammar}/'  # all spellings, as the others
    words = {word: [i] for i, word in enumerate(WORDS) if i != STOP}
    return outlines_core.Index(grammar, outlines_core.Vocabulary(STOP, words))


def matcher(library, grammar, said=(), size=V):
    """A library's state after a text."""
    made = compiled(library, grammar, size)
    if library == "xgrammar":
        state = xgrammar.GrammarMatcher(made)
        assert all(state.accept_token(token) for token in said)
    elif library == "llguidance":
        state = llguidance.LLMatcher(llguidance_tokenizer(size), made, log_level=0)
        assert state.try_consume_tokens(list(said)) == len(said)
    else:
        state = outlines_core.Guide(made)
        for token in said:
            state.advance(token)
    return state


@cache
def root(library, grammar):
    """The state before a text, which walks leave as it is."""
    return matcher(library, grammar)


@pytest.fixture(scope="module")
def page():
    """The recipe's functions; its last lines are run by a test of their own."""
    block = re.search(r"^## 7. Grammars.*?^```py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)[1]
    lines, usage = re.split(r"^(?=allowed = )", block, flags=re.M)
    namespace = {"torch": torch, "LogitEdits": LogitEdits, "verify_tree": verify_tree, "STOP": STOP}
    exec(compile(lines, str(PAGE), "exec"), namespace)
    return namespace | {"usage": usage}


@cache
def language(grammar):
    """All strings of a grammar up to ten letters."""
    words = ("".join(letters) for length in range(11) for letters in product("abc", repeat=length))
    return [word for word in words if re.fullmatch(grammar, word)]


@cache
def may_come(grammar, said):
    """bool [V]: what a grammar allows after a text, by its strings alone; nothing after what it forbids or the stop."""
    row, text = torch.zeros(V, dtype=torch.bool), "".join(WORDS[token] for token in said if token >= 0)
    strings = language(grammar)
    if STOP in said or -1 in said or not any(string.startswith(text) for string in strings):
        return row
    row[STOP] = text in strings
    for token, word in enumerate(SAID):
        row[token] = any(string.startswith(text + word) for string in strings)
    return row


def bits(rows, vocabulary=V):
    return ((rows.unsqueeze(-1) >> torch.arange(32)) & 1).bool().flatten(-2)[..., :vocabulary]


def paths(tree, tokens):
    """The drafts down to each node of a tree."""
    said = [()]
    for node, parent in list(enumerate(tree.parents))[1:]:
        said.append((*said[parent], tokens[node]))
    return said


def rows_of(page, library, grammar, tree, tokens, *, held=0, state=None):
    """int32 [N, words]: what the page's lines write for a tree; ``held`` stood in the buffer before."""
    allowed = torch.full((len(tree.parents), (V + 31) // 32), held, dtype=torch.int32)
    page[f"{library}_rows"](state or root(library, grammar), tree, list(tokens), allowed)
    return allowed


def random_drafts(tree, seed, count):
    """Drafts of the tokens that grammars take, of others and absent ones."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(-1, STOP + 2, (count, len(tree.parents)), generator=generator)
    tokens[:, 0] = -1
    return tokens.tolist()


class TestRows:
    """Bit for bit those of the grammar's strings."""

    @pytest.mark.parametrize("grammar", GRAMMARS)
    @pytest.mark.parametrize("library", LIBRARIES)
    def test_of_every_node(self, page, library, grammar):
        for tree in TREES.values():
            for tokens in random_drafts(tree, 0, 60):
                found = bits(rows_of(page, library, grammar, tree, tokens))
                expected = torch.stack([may_come(grammar, said) for said in paths(tree, tokens)])
                assert torch.equal(found, expected), tokens

    @pytest.mark.parametrize("library", LIBRARIES)
    def test_the_state_is_as_before(self, page, library):
        """A round may be walked again, and goes on from the text."""
        state, said = matcher(library, "ab*c?", (0,)), (0,)
        for tokens in ([-1, 1, 2, STOP], [-1, 4, STOP, STOP], [-1, 2, 2, 1]):
            found = bits(rows_of(page, library, None, TREES["chain"], tokens, state=state))
            expected = [may_come("ab*c?", said + path) for path in paths(TREES["chain"], tokens)]
            assert torch.equal(found, torch.stack(expected))

    def test_one_row_for_each_row_of_all_requests(self):
        """llguidance's chains, one after the other: what LogitEdits takes as [B (K + 1), words]."""
        drafts, K = [[0, 1, 2], [3, STOP, 0], [0, 0, 1]], 3
        allowed = torch.zeros(len(drafts) * (K + 1), 2, dtype=torch.int32)
        states = [matcher("llguidance", "ab*c?") for _ in drafts]
        work = [(state, b * (K + 1), one) for b, (state, one) in enumerate(zip(states, drafts, strict=True))]
        fill_next_token_bitmask_par_with_draft_tokens(llguidance.LLExecutor(1), work, allowed)
        target = torch.zeros(3, K + 1, V)
        call = dict(method="race", seed=torch.arange(3), position=0)
        found = verify_chain(torch.tensor(drafts), target, edits=LogitEdits(allowed=allowed), **call)
        expected = verify_chain(
            torch.tensor(drafts), target, edits=LogitEdits(allowed=allowed.view(3, K + 1, 2)), **call
        )
        assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
        assert set(found.tokens[:, 0].tolist()) <= {0, 3}


class TestWhatThePageSays:
    """The table of the page, cell by cell: a library that changes is seen."""

    def test_xgrammar(self):
        state, buffer = matcher("xgrammar", "ab*c?"), torch.full((5, 2), 0x55555555, dtype=torch.int32)
        # The root's children: "b", which is forbidden, with "a" below; "ab", then the stop token, then "b".
        first, following = torch.tensor([1, 2, -1, 4, -1]), torch.tensor([-1, 3, -1, -1, -1])
        assert state.traverse_draft_tree(first, following, torch.tensor([-1, 1, 0, 3, STOP]), buffer)
        assert not buffer[1].any()
        assert not buffer[4].any()
        assert (buffer[2] == 0x55555555).all()
        assert state.accept_token(3)
        assert state.accept_token(STOP)
        with pytest.raises(RuntimeError, match="terminated"):
            state.fill_next_token_bitmask(buffer, 0)

    def test_llguidance(self):
        state, buffer = matcher("llguidance", "ab*c?"), torch.full((4, 2), 0x55555555, dtype=torch.int32)
        executor = llguidance.LLExecutor(1)
        fill_next_token_bitmask_par_with_draft_tokens(executor, [(state, 0, [3, STOP, 1])], buffer)
        assert bits(buffer[2]).nonzero().tolist() == [[STOP]]
        assert (buffer[3] == 0x55555555).all()
        buffer.fill_(0x55555555)
        fill_next_token_bitmask_par_with_draft_tokens(executor, [(state, 0, [3, 0, 1])], buffer)
        assert bits(buffer[1]).any()
        assert (buffer[2:] == 0x55555555).all()
        buffer.fill_(0x55555555)
        end = matcher("llguidance", "ab*c?", (0,))
        fill_next_token_bitmask_par_with_draft_tokens(executor, [(end, 0, [2, STOP, 1])], buffer)
        assert bits(buffer[1]).nonzero().tolist() == [[STOP]]
        assert (buffer[2:] == 0x55555555).all()

    def test_llguidance_allows_one_spelling(self):
        """Where one text is left, "ab" is not allowed as "a"."""
        allowed = torch.zeros(1, 2, dtype=torch.int32)
        forcing = llguidance.LLMatcher.grammar_from_regex("abc")
        fill_next_token_bitmask(llguidance.LLMatcher(llguidance_tokenizer(), forcing), allowed)
        assert bits(allowed[0]).nonzero().flatten().tolist() == [3]
        assert matcher("xgrammar", "abc").fill_next_token_bitmask(allowed)
        assert bits(allowed[0]).nonzero().flatten().tolist() == [0, 3]

    def test_llguidance_pads_by_tokens_alone(self):
        tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Tokenizer(len(WORDS))), n_vocab=100)
        assert tokenizer.vocab_size == len(WORDS)
        assert llguidance_tokenizer(100).vocab_size == 100

    def test_outlines(self):
        guide = matcher("outlines", "ab*c?", (3,))
        assert STOP in guide.get_tokens()
        assert guide.is_finished()
        with pytest.raises(ValueError, match="No next state"):
            guide.advance(STOP)
        allowed = torch.full((1, 4), -1, dtype=torch.int32)
        guide.write_mask_into(allowed.data_ptr(), 4, 4)
        assert bits(allowed[0], 128).nonzero().flatten().tolist() == [1, 2, 4, STOP]

    def test_outlines_leaves_out_what_begins_an_optional_rest(self):
        """After "a" the text may end, or go on with "bc": not by the token "b"."""
        assert sorted(matcher("outlines", "a(bc)?", (0,)).get_tokens()) == [4, STOP]
        allowed = torch.zeros(1, 2, dtype=torch.int32)
        assert matcher("xgrammar", "a(bc)?", (0,)).fill_next_token_bitmask(allowed)
        assert bits(allowed[0]).nonzero().flatten().tolist() == [1, 4, STOP]

    @pytest.mark.parametrize("library", LIBRARIES)
    def test_bits_past_the_vocabulary(self, page, library):
        """A grammar that takes every token of the tokenizer; the model's V is 44, and words have room for 64."""
        grammar = "[a-zA-Z0-9]*"
        found = bits(rows_of(page, library, grammar, DraftTree.chain(0), [-1]), 64)[0]
        assert found[: len(WORDS)].all()
        assert not found[len(WORDS) : V].any()
        assert found[V:].all() == found[V:].any() == (library == "xgrammar")
        if library == "xgrammar":  # without the model's V
            allowed = torch.zeros(1, 2, dtype=torch.int32)
            matcher(library, grammar, size=None).fill_next_token_bitmask(allowed)
            assert bits(allowed, 64).all()


# ---- laws ------------------------------------------------------------------------------------------------------------

generator = torch.Generator().manual_seed(3)
TARGET = torch.randn(STOP + 1, V, generator=generator)  # a language model: the logits after each token that may come
TARGET[:, : STOP + 1] += 4
DRAFT = TARGET + torch.randn(STOP + 1, V, generator=generator)
ROOT = 0


def logits(table, tokens):
    """After these tokens; after others a grammar allows nothing, so that any row will do."""
    return table[torch.where((tokens < 0) | (tokens > STOP), ROOT, tokens)]


@cache
def law_of_texts(grammar):
    """{text: probability}: of the first tokens of a text, up to the stop token, each by the target's masked row."""
    done, open_texts = {}, {(): 1.0}
    for _ in range(LENGTH):
        longer = {}
        for said, chance in open_texts.items():
            law = law_after(grammar, said)
            for token in law.nonzero().flatten().tolist():
                (done if token == STOP else longer)[(*said, token)] = chance * law[token].item()
        open_texts = longer
    return done | open_texts


@cache
def law_after(grammar, text):
    row = TARGET[text[-1] if text else ROOT].double()
    return row.masked_fill(~may_come(grammar, text), -torch.inf).softmax(-1)


def completed(grammar, emitted, generator):
    """Texts of a round cut at the stop token or ``LENGTH``, or continued by the target under the grammar's strings."""
    for text in emitted:
        text = tuple(text[: text.index(STOP) + 1] if STOP in text else text)[:LENGTH]
        while STOP not in text and len(text) < LENGTH:
            text += (int(torch.multinomial(law_after(grammar, text), 1, generator=generator)),)
        yield text


def drafted(method, tree, count):
    """(tokens [B, N], trees, the rows that children were drawn from [B, N, V], paths' leaves) of the draft model.

    It knows no grammar. Children come without replacement; each node has a nonce of its own.
    """
    seed, nodes = torch.arange(count), len(tree.parents)
    if method == "paths":
        chains = []
        for chain in range(2):
            tokens = torch.full((count, 1), ROOT)
            for depth in range(LENGTH):
                rows = logits(DRAFT, tokens[:, -1])
                drawn = race_sample(rows, seed=seed, position=depth, nonce=chain + 1)
                tokens = torch.cat([tokens, drawn[:, None]], 1)
            chains.append(tokens[:, 1:])
        merged = merge_chains(torch.stack(chains, 1))
        return merged.draft_tokens, merged.parents, logits(DRAFT, merged.draft_tokens), merged.leaves
    tokens = torch.full((count, nodes), -1)
    for node, children in enumerate(tree.children):
        if children:
            rows = logits(DRAFT, tokens[:, node])
            drawn = race_topk(rows, len(children), seed=seed, position=tree.depths[node], nonce=node + 1)
            tokens[:, list(children)] = drawn
    return tokens, tree.tensor().expand(count, nodes), logits(DRAFT, tokens), None


def masks(page, library, grammar, tokens, parents, held=0):
    """[B, N, words]: what a library writes for each request; equal drafts are walked once."""
    known, found = {}, []
    for one, above in zip(tokens.tolist(), parents.tolist(), strict=True):
        key = (tuple(one), tuple(above))
        if key not in known:
            tree = DraftTree((-1, *(max(parent, 0) for parent in above[1:])))
            absent = [-1 if parent < 0 else token for token, parent in zip(one, above, strict=True)]
            known[key] = rows_of(page, library, grammar, tree, absent, held=held)
        found.append(known[key])
    return torch.stack(found)


METHODS = ["rejection", "block", "race", "traversal", "paths"]


def decide(method, tokens, parents, draft, leaves, allowed, chain):
    """The verdict of every request; a chain by verify_chain, else by verify_tree."""
    target, edits = logits(TARGET, tokens), LogitEdits(allowed=allowed)
    call = dict(edits=edits, method=method, seed=torch.arange(len(tokens)), position=0)
    draft = None if method == "race" else draft
    if chain:
        return verify_chain(tokens[:, 1:].contiguous(), target, None if draft is None else draft[:, :-1], **call)
    return verify_tree(tokens, target, draft, parents=parents, leaves=leaves, **call)


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("shape, method", [
    *(("chain", method) for method in ("rejection", "block", "race", "paths")),
    *(("tree", method) for method in ("rejection", "race", "traversal")),
])  # fmt: skip
@pytest.mark.parametrize("grammar", GRAMMARS)
def test_texts_have_the_law_of_the_target_under_the_grammar(page, grammar, shape, method, library):
    """The first three tokens of 3,000 requests, by chi-squared. False alarms: 1e-6."""
    count = 3000
    tokens, parents, draft, leaves = drafted(method, TREES[shape], count)
    allowed = masks(page, library, grammar, tokens, parents)
    chain = shape == "chain" and method != "paths"
    found = decide(method, tokens, parents, draft, leaves, allowed, chain)
    assert found.num_accepted.float().mean() > 0.1  # drafts that a grammar takes are accepted
    emitted = [row[: n + 1] for row, n in zip(found.tokens.tolist(), found.num_accepted.tolist(), strict=True)]
    law = law_of_texts(grammar)
    index = {text: i for i, text in enumerate(law)}
    texts = completed(grammar, emitted, torch.Generator().manual_seed(1))
    assert_law([index[text] for text in texts], torch.tensor([*law.values()]))
    ended = torch.tensor([STOP in text[:-1] for text in emitted])  # their last row is of a text that has ended
    assert torch.equal(found.status == Status.NON_FINITE, ended)
    assert (found.status[~ended] == 0).all()

    # Rows below a forbidden draft or a stop token, and bits past V, change nothing.
    if library == "xgrammar":
        dirty = masks(page, library, grammar, tokens, parents, held=-1)
        assert not torch.equal(bits(dirty), bits(allowed))
        dirty[..., -1] |= -1 << (V % 32)
        again = decide(method, tokens, parents, draft, leaves, dirty, chain)
        assert torch.equal(found.num_accepted, again.num_accepted)
        assert torch.equal(found.tokens, again.tokens)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_race_writes_the_text_of_plain_sampling(page, library):
    """Rounds of the page's own last lines; states go on with what was emitted. All grammars, two trees."""
    for number, (grammar, tree) in enumerate(product(GRAMMARS, TREES.values())):
        seed, plain = torch.tensor([5 + number, 90 + number]), []
        for one in seed.tolist():
            said = ()
            while STOP not in said and len(said) < 12:
                row = LogitEdits(allowed=rows_of(page, library, None, DraftTree.chain(0), [-1],
                                            state=matcher(library, grammar, said))[0])  # fmt: skip
                last = torch.tensor(said[-1] if said else ROOT)
                said += (int(race_sample(logits(TARGET, last), seed=one, position=len(said), edits=row)),)
            plain.append(said)
        texts = [(), ()]
        while any(STOP not in text and len(text) < 12 for text in texts):
            live = [b for b, text in enumerate(texts) if STOP not in text and len(text) < 12]
            tokens = torch.tensor(random_drafts(tree, len(texts[live[0]]), len(live)))
            for row, b in zip(tokens, live, strict=True):  # some of them are right
                for node in range(1, len(tree.parents), 2):
                    depth = len(texts[b]) + tree.depths[node] - 1
                    row[node] = plain[b][depth] if depth < len(plain[b]) else STOP
            tokens[:, 0] = torch.tensor([texts[b][-1] if texts[b] else ROOT for b in live])
            states = [matcher(library, grammar, texts[b]) for b in live]
            namespace = page | {
                "B": len(live), "N": len(tree.parents), "V": V, "tree": tree, "tokens": tokens, "matchers": states,
                "target": logits(TARGET, tokens), "seed": seed[live],
                "position": torch.tensor([len(texts[b]) for b in live]), "xgrammar_rows": page[f"{library}_rows"],
            }  # fmt: skip
            exec(page["usage"], namespace)
            verdict = namespace["verdict"]
            for b, row, n in zip(live, verdict.tokens.tolist(), verdict.num_accepted.tolist(), strict=True):
                text = (*texts[b], *row[: n + 1])
                texts[b] = (text[: text.index(STOP) + 1] if STOP in text else text)[:12]
        assert texts == plain, (grammar, tree)
