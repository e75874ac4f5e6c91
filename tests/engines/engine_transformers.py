"""transformers' own assisted generation, with and without us."""

import time

import pytest
import torch

from specdec_kernels.engines import transformers
from specdec_kernels.generate import ModelDrafter, generate, load_model
from tests.engines.parameters import asked, compared
from tests.generate.test_hybrid import pair as hybrids

NEW, K, PROMPTS = 120, 4, ("ROMEO:", "First Citizen:\nBefore we", "KING HENRY:\n")


@pytest.fixture(scope="module")
def pair():
    target, draft = load_model("embedded:target"), load_model("embedded:draft")
    target.model.generation_config.eos_token_id = draft.model.generation_config.eos_token_id = None
    config = draft.model.generation_config
    config.num_assistant_tokens, config.num_assistant_tokens_schedule = K, "constant"
    config.assistant_confidence_threshold = 0.0
    return target, draft


def test_generation(pair, table):
    """Calls of the target are counted at its forward, the prompt's among them."""
    target, draft = pair
    ways = {
        "plain": {},
        "assisted": {"assistant_model": draft.model},
        "assisted, our verification": {"assistant_model": draft.model},
        "our loop, rejection": {"custom_generate": transformers.generate, "method": "rejection"},
        "our loop, race": {"custom_generate": transformers.generate, "method": "race"},
    }
    for name, options in ways.items():
        if "our loop" in name:
            options |= {"assistant_model": draft.model, "k": K, "seed": 1}
        calls = []
        hook = target.model.register_forward_pre_hook(lambda *_, calls=calls: calls.append(1))
        if "our verification" in name:
            transformers.install()
        torch.manual_seed(1)
        start = time.process_time()
        try:
            for prompt in PROMPTS:
                text = torch.tensor([target.encode(prompt)])
                row = target.model.generate(text, do_sample=True, temperature=0.8, max_new_tokens=NEW, **options)
                assert row.shape[1] == text.shape[1] + NEW
        finally:
            seconds = time.process_time() - start
            transformers.uninstall()
            hook.remove()
        written = len(PROMPTS) * NEW
        figures = {"tokens a call": f"{written / len(calls):.2f}", "tokens/s": f"{written / seconds:.0f}"}
        table(f"transformers: {len(PROMPTS)} texts of {NEW} tokens, temperature 0.8", {"generation": name, **figures})


def test_recurrent_layers(table):
    """How many passes of the target, and tokens read, the bound of what is pending takes; greedy, k = 4."""
    target, draft = hybrids("qwen3_next")
    prompt, options = [[7, 3, 9]], dict(temperature=0.0, max_new_tokens=100)
    texts = {"plain": generate(prompt, target, method="plain", **options)[0]}
    for most in (1, 4, 8, 16, 100):
        (texts[f"at most {most}"],) = generate(prompt, target, ModelDrafter(draft), k=4, max_pending=most, **options)
    for name, text in texts.items():
        assert text.tokens == texts["plain"].tokens
        tokens = sum(sum(entry.read) for entry in text.rounds)
        figures = {"rounds": str(len(text.rounds)), "passes": str(text.target_calls), "tokens read": str(tokens)}
        table("transformers: a tiny Qwen3-Next, 100 tokens, k = 4", {"pending": name, **figures})


OF_SAMPLING = {
    "max_new_tokens": 5, "min_new_tokens": 9, "min_length": 12, "stop_strings": ["e"], "do_sample": False,
    "num_beams": 2, "temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.3, "top_h": 0.4, "typical_p": 0.5,
    "epsilon_cutoff": 0.1, "eta_cutoff": 0.1, "repetition_penalty": 1.6, "encoder_repetition_penalty": 1.6,
    "no_repeat_ngram_size": 1, "bad_words_ids": [[101], [32]], "renormalize_logits": True,
    "forced_bos_token_id": 97, "forced_eos_token_id": 97, "remove_invalid_values": True,
    "exponential_decay_length_penalty": (4, 2.0), "suppress_tokens": [101, 32], "begin_suppress_tokens": [101, 32],
    "sequence_bias": [[[101], 5.0]], "guidance_scale": 1.5, "num_return_sequences": 2, "output_scores": True,
    "eos_token_id": 101, "seed": 9,
}  # fmt: skip
WITH = {key: {"eos_token_id": 101} for key in ("min_new_tokens", "min_length", "exponential_decay_length_penalty")}


def test_parameters(pair, table):
    """Of a text that our loop writes by a race, with the assistant and without; what their own loop says beside it."""
    target, draft = pair
    prompt = torch.tensor([target.encode("ROMEO: ")])
    given = {name: {name: value} | WITH.get(name, {}) for name, value in OF_SAMPLING.items()}

    def write(ours, **drafts):
        def texts(more):
            usual = {"do_sample": True, "temperature": 0.8, "max_new_tokens": 16, "return_dict_in_generate": True}
            if ours:
                usual |= {"custom_generate": transformers.generate, "seed": 1}
            else:
                more = {name: value for name, value in more.items() if name != "seed"}
            found = target.model.generate(prompt, **usual | drafts | more)
            scores = getattr(found, "scores", None)
            return found.sequences.tolist(), None if scores is None else len(scores)

        return texts

    plain, drafted = write(True, method="plain"), write(True, method="race", assistant_model=draft.model, k=K)
    own = write(False, assistant_model=draft.model)
    compared("transformers", table, *(asked(each, given) for each in (plain, drafted, own)))
