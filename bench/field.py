"""Whether public packages keep the target's law: by enumeration of their own code on toy models.

    python -m bench.field FOLDER                installs pinned packages there and runs each
    python -m bench.field FOLDER --only NAME

It writes bench/results/field.json, from which the table of docs/who_keeps.md is made. It is no part of CI.
"""

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

RESULTS = Path(__file__).parent / "results" / "field.json"
# Without dependencies: torch, transformers and numpy are those of the interpreter.
PACKAGES = {
    "transformers": ["transformers==5.23.0"],
    "rotalabs-accel": ["rotalabs-accel==1.1.1"],
    "sequential-speculative-decoding": ["sequential-speculative-decoding==0.1.1"],
    "mini-infer": ["mini-infer==0.2.5"],
    "speculative-decoding": ["speculative-decoding==0.2.0", "einops==0.8.1", "beartype==0.22.2"],
    "specdec": ["specdec==0.2.0"],
    "economize": ["economize==0.3.2"],
    "flashspec": ["flashspec==0.3.1"],
    "csaq-quant": ["csaq-quant==0.6.0"],
    "mtplx": ["mtplx==2.12.2"],
    "divine-mtp": ["divine-mtp==0.1.0"],
    "dflash": ["dflash==0.1.0"],
}
V, PROMPT, LENGTH = 3, [1, 2], 3


def laws(sharp, seed):
    """Logits [V, V, V] of the token after each two tokens."""
    import torch

    return sharp * torch.randn(V, V, V, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def toy(sharp, seed):
    """A model whose logits depend on the last two tokens, however it is called; it needs no cache."""
    import torch

    class Toy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Parameter(laws(sharp, seed), requires_grad=False)
            self.config = SimpleNamespace(vocab_size=V, eos_token_id=None, max_position_embeddings=100)

        def forward(self, input_ids, *_, **__):
            before = torch.nn.functional.pad(input_ids[:, :-1], (1, 0))
            return SimpleNamespace(logits=self.table[before, input_ids], past_key_values=None)

    return Toy().eval()


def target_of(model, prompt=PROMPT, change=lambda logits: logits):
    """The law of the next token, by the model alone."""
    import torch

    def row(text):
        with torch.no_grad():
            return change(model(torch.tensor([[*prompt, *text]])).logits[0, -1].double()).softmax(-1)

    return row


def llamas(layers=1):
    """A target and a draft of transformers, of a width of 8, in float64."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    models = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=V, hidden_size=8, intermediate_size=8, num_hidden_layers=layers, num_attention_heads=2,
            initializer_range=0.8, bos_token_id=None, eos_token_id=None, pad_token_id=None, attn_implementation="eager",
        )  # fmt: skip
        models.append(LlamaForCausalLM(config).double().eval())
    return models


def run_transformers():
    import torch

    target, draft = llamas()
    deep, _ = llamas(layers=2)
    draft.generation_config.update(
        num_assistant_tokens=2, num_assistant_tokens_schedule="constant", assistant_confidence_threshold=0.0
    )
    prompt = torch.tensor([PROMPT])
    repeated = torch.tensor([[1, 2, 1, 2, 1]])
    common = {"do_sample": True, "max_new_tokens": LENGTH, "top_k": 0, "top_p": 1.0, "temperature": 1.0}

    def write(model, ids, **options):
        mask = torch.ones_like(ids)
        return model.generate(ids, attention_mask=mask, **common, **options)[0, ids.shape[1] :]

    yield "generate(assistant_model=)", lambda: write(target, prompt, assistant_model=draft), target_of(target)
    yield (
        "generate(prompt_lookup_num_tokens=2)",
        lambda: write(target, repeated, prompt_lookup_num_tokens=2),
        target_of(target, [1, 2, 1, 2, 1]),
    )
    yield "generate(assistant_early_exit=1)", lambda: write(deep, prompt, assistant_early_exit=1), target_of(deep)


def run_rotalabs_accel():
    import torch
    from rotalabs_accel.speculative.sampling import rejection_sample

    from specdec_kernels.conformance import per_request

    def verify(drafts, target, draft):
        tokens = []
        for i, x in enumerate(drafts):
            p = target[i].softmax(-1)
            accepted, token = rejection_sample(p[x], draft[i, x], x, target[i])
            tokens.append(token)
            if not accepted:
                return tokens
        return [*tokens, torch.multinomial(target[-1].softmax(-1), 1)]

    yield "speculative.sampling.rejection_sample, called for each draft", per_request(verify, logits=True), None


def run_sequential_speculative_decoding():
    import torch
    from seqspecdecod.capped_hsd import capped_hsd_step
    from seqspecdecod.naive_hsd import naive_hsd_step
    from seqspecdecod.standard_sd import standard_speculative_step

    target, draft, prompt = toy(1.5, 0), toy(1.0, 1), torch.tensor([PROMPT])
    for step in (standard_speculative_step, naive_hsd_step, capped_hsd_step):

        def write(step=step):
            ids = step(draft, target, prompt, gamma=2, draft_temperature=1.0, target_temperature=1.0)[0]
            return ids[0, len(PROMPT) :]

        yield f"{step.__name__}, one round of two drafts", write, target_of(target)


def run_mini_infer():
    import torch
    from mini_infer.speculative import speculative_step

    target, draft = toy(1.5, 0), toy(1.0, 1)

    def pair(model):
        return lambda ids: (model(ids).logits, None)

    def write():
        text = list(PROMPT)
        while len(text) < len(PROMPT) + LENGTH:
            text += speculative_step(pair(target), pair(draft), torch.tensor([text]), k_draft=2, temperature=1.0)[0]
        return text[len(PROMPT) :]

    yield "speculative_step, called until a text is full", write, target_of(target)


def run_speculative_decoding():
    import torch
    from speculative_decoding.speculative_decoding import speculative_decoding

    def net(model):
        def call(ids, seq_start_pos=None, cache=None, return_cache=False):
            return model(ids).logits, (torch.zeros(1, len(ids), 1, ids.shape[1], 1), None)

        return call

    target, draft = toy(1.5, 0), toy(1.0, 1)
    for prompts in ([PROMPT], [[1], [2]]):

        def write(prompts=prompts):
            ids, length = torch.tensor(prompts), len(prompts[0])
            tokens = speculative_decoding(
                net(target), net(draft), ids, length + (LENGTH if len(prompts) == 1 else 2), gamma=1, filter_thres=0.0
            )[0]
            return tokens[0] if len(prompts) == 1 else list(tokens)

        rows = [target_of(target, prompt) for prompt in prompts]
        yield f"speculative_decoding, a batch of {len(prompts)}", write, rows[0] if len(rows) == 1 else rows


def run_specdec():
    import torch
    from specdec.decoder import SpecDecoder

    decoder = SpecDecoder.__new__(SpecDecoder)
    decoder.small_model, decoder.big_model, decoder.device = toy(1.0, 1), toy(1.5, 0), "cpu"

    def write():
        ids = torch.tensor([PROMPT])
        while ids.shape[1] < len(PROMPT) + LENGTH:
            tokens, rows = decoder.generate_small(ids, 2)
            ids = torch.cat((ids, torch.tensor([decoder.verify(ids, tokens, rows)])), 1)
        return ids[0, len(PROMPT) :]

    yield "SpecDecoder.generate_small and verify, called until a text is full", write, target_of(decoder.big_model)


def run_economize():
    import torch
    from economize.decoding.verifiers import RejectionVerifier

    from specdec_kernels.conformance import per_request

    class Selector:
        def distribution(self, logits, history):
            return logits.softmax(-1)

        def distributions(self, logits):
            return logits.softmax(-1)

        def generator(self, device):
            return None

        def __call__(self, logits, history):
            return int(torch.multinomial(logits.softmax(-1), 1))

    verifier, selector = RejectionVerifier(), Selector()

    def verify(drafts, target, draft):
        drafts = drafts.tolist()
        count, token = verifier.verify(target, drafts, draft, selector, torch.zeros(8, dtype=torch.int64), 1)
        return [*drafts[:count], token]

    yield "RejectionVerifier.verify", per_request(verify, logits=True), None


def run_csaq_quant():
    import torch
    from csaq.inference import CSAQInferenceEngine

    target = toy(1.5, 0)
    engine = CSAQInferenceEngine.__new__(CSAQInferenceEngine)
    engine.model, engine.device, engine.tokenizer, engine.verbose = target, torch.device("cpu"), None, False
    engine.telemetry = {"total_tokens": 0, "accepted_tokens": 0, "backpressure_events": 0}
    # Drafts by the same weights: what is quantised is left out.
    engine._ensure_draft_state = engine._swap_to_verify = engine._swap_to_draft = lambda: None

    class Last(torch.nn.Module):
        """Laws that depend on the last token alone, so that it needs no cache."""

        def __init__(self):
            super().__init__()
            self.config = target.config

        def forward(self, input_ids, **_):
            return SimpleNamespace(logits=target.table[0, input_ids], past_key_values=None)

    engine.model = Last()
    prompt = torch.tensor([PROMPT])

    def write():
        return engine._generate_speculative(prompt, LENGTH, 2, 1.0, 1.0)[0][0, len(PROMPT) :]

    yield (
        "CSAQInferenceEngine._generate_speculative, drafts by the target's own weights",
        write,
        target_of(engine.model),
    )


def run_mtplx():
    import numpy as np
    from mtplx.sampling import sample_from_distribution, verify_one_token

    from specdec_kernels.conformance import per_request

    def verify(drafts, target, draft):
        rng, tokens = np.random.default_rng(), []
        target, draft = target.numpy(), draft.numpy()
        for i, x in enumerate(drafts.tolist()):
            decision = verify_one_token(target[i], draft[i], x, rng)
            tokens.append(decision.token_id)
            if not decision.accepted:
                return tokens
        return [*tokens, sample_from_distribution(target[-1], rng)]

    yield "sampling.verify_one_token, called for each draft", per_request(verify), None


def judge(name):
    """The cases of one package, in this process."""
    from importlib.metadata import version

    import numpy
    import torch

    from specdec_kernels.conformance import exact, exact_texts

    torch.set_num_threads(1)
    found = []
    for what, function, target in globals()[f"run_{name.replace('-', '_')}"]():
        if target is None:
            findings = exact(function, ["chain"]).findings
        else:
            findings = exact_texts(function, target, 2 if isinstance(target, list) else LENGTH, seconds=250).findings
        worst = max(findings, key=lambda x: (x.verdict == "failed", x.verdict == "inconclusive", x.distance or 0.0))
        found.append({"what": what, "verdict": worst.verdict, "distance": worst.distance, "said": worst.said})
        print(f"{name}: {what}: {worst.verdict}, {worst.said}", file=sys.stderr)
    versions = {"python": platform.python_version(), "torch": torch.__version__, "numpy": numpy.__version__}
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    print(json.dumps({"version": version(name), "date": today, **versions, "cases": found}))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", action="append", choices=PACKAGES)
    parser.add_argument("--judge", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.judge:
        return judge(options.judge)
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in options.only or [x for x in PACKAGES if f"run_{x.replace('-', '_')}" in globals()]:
        folder = options.folder / name
        if not folder.exists():
            pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *PACKAGES[name]]
            subprocess.run(pip, check=True)
        path = os.pathsep.join((str(folder), str(Path(__file__).resolve().parents[1])))
        command = [sys.executable, "-m", "bench.field", str(options.folder), "--judge", name]
        done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True)
        print(done.stderr[-2000:], file=sys.stderr)
        if done.returncode == 0:
            results[name] = json.loads(done.stdout.splitlines()[-1])
    RESULTS.write_text(json.dumps(dict(sorted(results.items())), indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
