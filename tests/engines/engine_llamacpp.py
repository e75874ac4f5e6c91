"""llama.cpp itself, beside ours: `make test-engines` runs this file."""

import ctypes
import inspect
import statistics
import subprocess
import sys
import time
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import pytest
import torch
from llama_cpp import Llama, LogitsProcessorList
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from llama_cpp.server.types import CreateCompletionRequest

import specdec_kernels as specdec
from specdec_kernels import Sampling
from specdec_kernels import generate as generator
from specdec_kernels.engines.llamacpp import LlamaDraft, LlamaModel, RaceProcessor, generate, install, write_gguf
from tests.engines import llama_stand_in as stand_in
from tests.engines.parameters import asked, compared
from tests.engines.random_gguf import write_llama
from tests.engines.servers import alone_and_at_once, answered, serving

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(llama_cpp.__file__).parent
PROMPTS = ("ROMEO:", "First Citizen:\nBefore we", "KING HENRY:\n", "What say you")
CLOCK = time.process_time  # all is on one thread, and other programs do not count
NEW, K, SEED, V = 200, 4, 7, 128_256
DEFAULT = dict(top_k=40, top_p=0.95, min_p=0.05)
SAMPLING = Sampling.llamacpp(0.8, **DEFAULT)
WAYS = {
    "chain": dict(k=K),
    "tree": dict(tree=[-1, 0, 0, 1, 1, 2]),
    "look-up": dict(k=K),
}


@pytest.fixture(scope="session")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    return [str(write_gguf(f"embedded:{name}", folder / f"{name}.gguf")) for name in ("target", "draft")]


def opened(path, **options):
    return Llama(path, **(dict(n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False, seed=SEED) | options))


WIDE = dict(type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32)  # a cache in float32


@pytest.fixture(scope="session")
def pair(paths):
    return tuple(LlamaModel(opened(path), name=path) for path in paths)


@pytest.fixture(scope="session")
def wide_pair(paths):
    return tuple(LlamaModel(opened(path, **WIDE), name=path) for path in paths)


def write_recurrent(path, kind, noise):
    """A random model of three layers in float32: LFM2's convolutions and attention, or Mamba; by noise one near it."""
    own, other, width, vocabulary = np.random.default_rng(1), np.random.default_rng(2), 32, 24

    def weight(name, *shape, scale=None):
        parts = [random.normal(size=shape) * (scale or shape[-1] ** -0.5) for random in (own, other)]
        writer.add_tensor(name, (parts[0] + noise * parts[1]).astype(np.float32))

    def ones(name, size):
        writer.add_tensor(name, np.ones(size, np.float32))

    writer = gguf.GGUFWriter(path, kind)
    for add, value in {
        "vocab_size": vocabulary, "context_length": 512, "embedding_length": width, "block_count": 3,
        "feed_forward_length": 48 if kind == "lfm2" else 0, "layer_norm_rms_eps": 1e-5,
        "head_count": 4 if kind == "lfm2" else 0, "head_count_kv": [0, 2, 0] if kind == "lfm2" else 0,
        "tokenizer_model": "no_vocab",
    }.items():  # fmt: skip
        getattr(writer, f"add_{add}")(value)
    weight("token_embd.weight", vocabulary, width, scale=1.0)
    weight("output.weight", vocabulary, width, scale=2 * width**-0.5)
    ones("token_embd_norm.weight" if kind == "lfm2" else "output_norm.weight", width)
    if kind == "lfm2":
        writer.add_shortconv_l_cache(3)
        writer.add_rope_dimension_count(8)
        writer.add_rope_freq_base(10000.0)
    else:
        for add, value in dict(conv_kernel=4, inner_size=2 * width, state_size=8, time_step_rank=4).items():
            getattr(writer, f"add_ssm_{add}")(value)
    for layer in range(3):
        block = f"blk.{layer}"
        ones(f"{block}.attn_norm.weight", width)
        if kind == "mamba":
            weight(f"{block}.ssm_in.weight", 4 * width, width)
            weight(f"{block}.ssm_conv1d.weight", 2 * width, 4)
            weight(f"{block}.ssm_conv1d.bias", 2 * width, scale=0.1)
            weight(f"{block}.ssm_x.weight", 4 + 2 * 8, 2 * width)
            weight(f"{block}.ssm_dt.weight", 2 * width, 4)
            weight(f"{block}.ssm_dt.bias", 2 * width, scale=0.1)
            writer.add_tensor(f"{block}.ssm_a", -np.tile(np.arange(1, 9, dtype=np.float32), (2 * width, 1)))
            ones(f"{block}.ssm_d", 2 * width)
            weight(f"{block}.ssm_out.weight", width, 2 * width)
            continue
        ones(f"{block}.ffn_norm.weight", width)
        for part, rows, columns in ("gate", 48, width), ("up", 48, width), ("down", width, 48):
            weight(f"{block}.ffn_{part}.weight", rows, columns)
        if layer == 1:
            for part, rows in ("q", width), ("k", 16), ("v", 16), ("output", width):
                weight(f"{block}.attn_{part}.weight", rows, width)
            for part in "qk":
                ones(f"{block}.attn_{part}_norm.weight", 8)
        else:
            weight(f"{block}.shortconv.conv.weight", width, 3)
            weight(f"{block}.shortconv.in_proj.weight", 3 * width, width)
            weight(f"{block}.shortconv.out_proj.weight", width, width)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


@pytest.fixture(scope="session", params=["lfm2", "mamba"])
def recurrent_pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recurrent")
    files = [write_recurrent(folder / f"{i}.gguf", request.param, noise) for i, noise in enumerate((0.0, 0.3))]
    return request.param, *(LlamaModel(opened(path, **WIDE), name=path) for path in files)


def test_models_with_recurrent_layers(recurrent_pair, table):
    """A race writes plain's texts; what was accepted behind a refusal is read again in front of the next drafts."""
    kind, target, draft = recurrent_pair
    prompts, options = ([1, 2, 3], [4], [5, 6, 7, 8, 9]), dict(seed=SEED, max_new_tokens=120, eos_token_ids=[])
    plain = [text.tokens for text in generate(prompts, target, method="plain", **options)]
    for most in (1, 4, 16):
        for method in ("race", "rejection", "block"):
            texts = generate(prompts, target, draft, method=method, k=K, max_pending=most, **options)
            same = sum(text.tokens == other for text, other in zip(texts, plain, strict=True))
            assert same == len(prompts) or method != "race"
            table(f"llama.cpp: {kind}, three texts of 120 tokens, K = {K}", {
                "method": method, "pending at most": str(most),
                "passes of the target a text": f"{sum(text.target_calls for text in texts) / len(texts):.0f}",
                "texts that are plain's": f"{same} of {len(prompts)}",
            })  # fmt: skip


def test_law_of_rejection_with_recurrent_layers(recurrent_pair):
    """Of two tokens, from llama.cpp's logits: the second is read behind what was refused."""
    from tests.support.laws import assert_law

    _, target, draft = recurrent_pair
    reader, prompt = target.reader(1, 16), [1, 2, 3]
    laws = []
    for first in range(24):
        row = reader.read(torch.tensor([[*prompt, first]]), [4], rows=1)[0, 0]
        laws.append(row.double().softmax(-1))
        reader.roll_back([0])
    start = reader.read(torch.tensor([prompt]), [3], rows=1)[0, 0].double().softmax(-1)
    found = []
    for seed in range(0, 4000, 40):
        texts = generate([prompt] * 40, target, draft, method="rejection", k=2, seed=seed, max_new_tokens=2,
                         eos_token_ids=[])  # fmt: skip
        found += [text.tokens[0] * 24 + text.tokens[1] for text in texts]
    assert_law(found, (start[:, None] * torch.stack(laws)).flatten())


def drafter_of(way, pair):
    return generator.NgramDrafter() if way == "look-up" else pair[1]


def test_the_stand_in_has_its_types():
    assert stand_in.llama_batch._fields_ == llama_cpp.llama_batch._fields_
    assert dict(stand_in.ContextParams._fields_).items() <= dict(llama_cpp.llama_context_params._fields_).items()
    functions = {name: x for name, x in vars(stand_in).items() if name.startswith("llama_") and inspect.isfunction(x)}
    for name, function in functions.items():
        assert len(inspect.signature(function).parameters) == len(getattr(llama_cpp, name).argtypes)
    known = inspect.signature(Llama.generate).parameters
    for name, parameter in inspect.signature(stand_in.Llama.generate).parameters.items():
        assert parameter.default == known[name].default


def test_the_pair_is_what_it_was(wide_pair):
    """Tokens and logits of the GGUF files are those of the checkpoints."""
    for name, model in zip(("target", "draft"), wide_pair, strict=True):
        own = generator.load_model(f"embedded:{name}")
        text = "ROMEO:\nWhat é, ho!"
        tokens = model.encode(text)
        assert tokens == own.encode(text)
        assert model.tokenizer.decode(tokens) == text
        assert model.eos_token_ids == own.eos_token_ids
        reader, length = model.reader(1, 64), len(tokens)
        found = reader.read(torch.tensor([tokens]), [length], rows=length)[0]
        with torch.no_grad():
            expected = own.model(torch.tensor([tokens])).logits[0]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("cache", ["float32", "float16"])
@pytest.mark.parametrize("way", WAYS)
def test_a_race_is_plain_sampling(pair, wide_pair, way, cache, table):
    """But for rounding: logits of several tokens at once differ in last bits from those of one."""
    models = pair if cache == "float16" else wide_pair
    options = dict(sampling=SAMPLING, seed=SEED, max_new_tokens=NEW, eos_token_ids=[])
    plain = generate(PROMPTS, models[0], method="plain", **options)
    race = generate(PROMPTS, models[0], drafter_of(way, models), method="race", **WAYS[way], **options)
    same = sum(one.tokens == other.tokens for one, other in zip(plain, race, strict=True))
    row = {"cache": cache, "drafts": way, "texts that are the same": f"{same} of {len(PROMPTS)}"}
    table(f"llama.cpp: a race beside plain sampling, texts of {NEW} tokens", row)
    assert same == len(PROMPTS) or cache == "float16"


def test_law_of_rejection(pair):
    """Of one token after a prompt, by chi-squared, from llama.cpp's logits."""
    from tests.support.laws import assert_law

    tokens = pair[0].encode(PROMPTS[0])
    row = pair[0].reader(1, 64).read(torch.tensor([tokens]), [len(tokens)], rows=1)[0, 0].clone()
    law = specdec.residual(row, row, sampling=SAMPLING, draft_prob=0.0).probs
    found = []
    for seed in range(0, 2000, 20):
        texts = generate([tokens] * 20, *pair, method="rejection", k=2, sampling=SAMPLING, seed=seed, max_new_tokens=2)
        found += [text.tokens[0] for text in texts]
    assert_law(found, law)


class Counted:
    """Calls of a Llama's eval after the prompt's."""

    def __init__(self, llama):
        self.calls, read = -1, llama.eval

        def counting(tokens):
            self.calls += 1
            return read(tokens)

        llama.eval = counting


def theirs(path, prompt, draft_model=None, **options):
    """Tokens, calls and seconds of ``Llama.generate``."""
    llama = opened(path, draft_model=draft_model)
    counted, tokens = Counted(llama), llama.tokenize(prompt.encode())
    start = CLOCK()
    rounds = llama.generate(tokens, **(dict(temp=0.8, **DEFAULT) | options))
    found = [next(rounds) for _ in range(NEW)]
    return found, 1 + counted.calls, CLOCK() - start


def ours(pair, prompt, drafter, **options):
    start = CLOCK()
    (found,) = generate(
        [prompt], pair[0], drafter, sampling=SAMPLING, seed=SEED, max_new_tokens=NEW, eos_token_ids=[], **options
    )
    return found.tokens, found.target_calls, CLOCK() - start


def test_tokens_a_call(paths, pair, table):
    """One text after the other, the same models and filters, one thread."""
    draft = pair[1]
    ways = {
        "its own, plain": lambda prompt: theirs(paths[0], prompt),
        "its own, look-up": lambda prompt: theirs(paths[0], prompt, LlamaPromptLookupDecoding(4, K)),
        "its own, our draft without coupling": lambda prompt: theirs(
            paths[0], prompt, LlamaDraft(draft, K, seed=SEED, sampling=SAMPLING)
        ),
        "its own, our draft, coupled": lambda prompt: theirs(
            paths[0], prompt, LlamaDraft(draft, K, seed=SEED, sampling=SAMPLING), temp=0.0,
            logits_processor=LogitsProcessorList([RaceProcessor(seed=SEED, sampling=SAMPLING)]),
        ),
        "ours, plain": lambda prompt: ours(pair, prompt, None, method="plain"),
        "ours, look-up, race": lambda prompt: ours(pair, prompt, generator.NgramDrafter(), k=K),
        "ours, draft, race": lambda prompt: ours(pair, prompt, draft, k=K),
        "ours, draft, rejection": lambda prompt: ours(pair, prompt, draft, method="rejection", k=K),
        "ours, tree of 5, race": lambda prompt: ours(pair, prompt, draft, **WAYS["tree"]),
        "ours, tree of 5, rejection": lambda prompt: ours(pair, prompt, draft, method="rejection", **WAYS["tree"]),
    }  # fmt: skip
    a_call, rate = {}, {}
    for _ in range(3):  # in turns
        for name, way in ways.items():
            found = [way(prompt) for prompt in PROMPTS]
            a_call[name] = len(PROMPTS) * NEW / sum(calls for _, calls, _ in found)
            rate.setdefault(name, []).append(len(PROMPTS) * NEW / sum(seconds for _, _, seconds in found))
    for name in ways:
        row = {"generation": name, "tokens a call": f"{a_call[name]:.2f}", "tokens/s": f"{max(rate[name]):.0f}"}
        table(f"llama.cpp: {len(PROMPTS)} texts of {NEW} tokens, one after the other, {K} drafts", row)
    assert a_call["ours, draft, race"] > a_call["its own, our draft without coupling"]
    assert a_call["its own, our draft, coupled"] > a_call["its own, our draft without coupling"]


SERVER = """
import sys, uvicorn
from llama_cpp import Llama
from llama_cpp.server import app
from llama_cpp.server.settings import Settings
from specdec_kernels.engines.llamacpp import install

target, draft, port, drafts = sys.argv[1:]
options = dict(n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)
own = {"draft_model": "prompt-lookup-decoding"} if drafts == "its own" else {}
server = app.create_app(Settings(model=target, logits_all=False, **options, **own))
if drafts != "its own":
    install(app._llama_proxy(), Llama(draft, **options) if drafts == "ours" else None, k=4)
uvicorn.run(server, port=int(port))
"""


def test_its_server(paths, pair, tmp_path, table):
    """A text does not depend on its neighbours: it is that of plain sampling."""
    bodies = [
        {
            "prompt": PROMPTS[i % 4], "max_tokens": 24 + i, "seed": i, "temperature": 0.8 * (i != 5),
            "top_k": 40 * (i % 2), "top_p": 1.0 - 0.1 * (i % 3), "min_p": 0.05, "repeat_penalty": 1.0,
        }
        for i in range(12)
    ]  # fmt: skip
    with serving([sys.executable, "-c", SERVER, *paths, "PORT", "ours"], tmp_path / "log", "/v1/models") as port:
        alone, at_once = alone_and_at_once(port, bodies)
    plain = [
        generate(
            [body["prompt"]], pair[0], method="plain", seed=body["seed"], max_new_tokens=body["max_tokens"],
            sampling=Sampling.llamacpp(*(body[name] for name in ("temperature", "top_k", "top_p", "min_p"))),
        )[0].text
        for body in bodies
    ]  # fmt: skip
    assert alone == plain
    assert at_once == alone
    assert len(set(alone)) == len(bodies)
    row = {"texts": "server over HTTP, race, draft model, 12 requests at once", "those of": "each alone, no drafts"}
    table("llama.cpp: server", row | {"the same": "12 of 12"})


def test_its_own_completions(paths, pair):
    """With our loop in the Llama: streams, stops, and what stays its own."""
    llama = opened(paths[0])
    install(llama, pair[1], k=K)
    asked = dict(max_tokens=60, seed=SEED, temperature=0.8, **DEFAULT)
    text = llama.create_completion(PROMPTS[0], **asked)["choices"][0]["text"]
    (plain,) = generate(PROMPTS[:1], pair[0], method="plain", sampling=SAMPLING, seed=SEED, max_new_tokens=60)
    assert text == plain.text
    pieces = [piece["choices"][0]["text"] for piece in llama.create_completion(PROMPTS[0], stream=True, **asked)]
    assert "".join(pieces) == text
    assert llama.create_completion(PROMPTS[0], stop=[text[20:23]], **asked)["choices"][0]["text"] == text[:20]
    biased = llama.create_completion(PROMPTS[0], logit_bias={ord("Q"): 100.0}, **asked)["choices"][0]["text"]
    assert biased == "Q" * 60


@pytest.fixture(scope="session")
def flags():
    """To compile with llama.cpp and with our library."""
    library = Path(specdec.headers.get_library_dir())
    return [
        "-std=c++17", "-O2", f"-I{HERE.parent / 'include'}", f"-I{specdec.headers.get_include()}", f"-L{HERE / 'lib'}",
        f"-L{library}", f"-Wl,-rpath,{HERE / 'lib'}", f"-Wl,-rpath,{library}", "-lllama", "-lggml", "-lggml-base",
        "-lspecdec",
    ]  # fmt: skip


EXAMPLE = ROOT / "examples" / "llamacpp_sampler.cpp"


def test_the_sampler_for_cpp(paths, flags, tmp_path, table):
    program = tmp_path / "sampler"
    subprocess.run(["g++", EXAMPLE, *flags, "-o", program], check=True)
    done = subprocess.run([program, *paths], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    table("llama.cpp: examples", {"example": EXAMPLE.name, "said": done.stdout.strip().split("\n")[-1]})


def test_the_example(table):
    example = ROOT / "examples" / "llamacpp_generate.py"
    done = subprocess.run([sys.executable, example], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    table("llama.cpp: examples", {"example": example.name, "said": done.stdout.strip().split("\n")[-1]})


@pytest.fixture(scope="session")
def wide(tmp_path_factory):
    """A Llama of V tokens that has read one, and its logits, to be overwritten."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 32, "num_attention_heads": 1}
    path = write_llama(tmp_path_factory.mktemp("wide") / "wide.gguf", V, 0, **sizes)
    reader = LlamaModel(opened(path, n_ctx=64)).reader(1, 64)
    return reader, reader.read(torch.tensor([[1]]), [1], rows=1)[0, 0]


def kinds():
    """Rows of 128,256 logits: normal, Zipf's law, and a head of 20 tokens with most of the mass."""
    rng = np.random.default_rng(1)
    normal = (rng.normal(size=V) * 3).astype(np.float32)
    zipf = rng.permutation(-1.2 * np.log(np.arange(1, V + 1))).astype(np.float32)
    peaked = (rng.normal(size=V) * 1.5).astype(np.float32)
    peaked[rng.permutation(V)[:20]] += np.linspace(14, 8, 20, dtype=np.float32)
    return {"normal": normal, "zipf": zipf, "peaked": peaked}


def new(name, *numbers):
    """A sampler of llama.cpp."""
    return getattr(llama_cpp, f"llama_sampler_init_{name}")(*numbers)


def chain_of(*samplers):
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    for sampler in samplers:
        llama_cpp.llama_sampler_chain_add(chain, sampler)
    return chain


def test_samplers(wide, flags, tmp_path, table):
    """Medians in µs, one thread, one process, in turns: a draw from logits where llama.cpp has them, its array of
    candidates filled as ``llama_sampler_sample`` fills it."""
    torch.set_num_threads(1)
    library = tmp_path / "sampler.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-DSAMPLER_ONLY", EXAMPLE, *flags, "-o", library], check=True)
    cpp = ctypes.CDLL(str(library))
    cpp.race_sampler.restype = ctypes.c_void_p
    cpp.race_sampler.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_float, ctypes.c_int,
                                 ctypes.c_float, ctypes.c_float]  # fmt: skip
    cpp.race_sample.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    reader, row = wide
    context = reader.context.pointer
    address = ctypes.cast(context, ctypes.c_void_p)
    sample = llama_cpp.llama_sampler_sample
    cases = {
        "no filter": ((1.0, 0, 1.0, 0.0), []),
        "default chain": (
            (0.8, 40, 0.95, 0.05),
            [new("top_k", 40), new("top_p", 0.95, 1), new("min_p", 0.05, 1), new("temp", 0.8)],
        ),
        "top-p 0.9": ((1.0, 0, 0.9, 0.0), [new("top_p", 0.9, 1)]),
    }
    for case, (numbers, samplers) in cases.items():
        chain, sampling = chain_of(*samplers, new("dist", SEED)), Sampling.llamacpp(*numbers)
        temperature, top_k, top_p, min_p = numbers
        race = cpp.race_sampler(V, SEED, 0, temperature, top_k, top_p, min_p)
        place = iter(range(10**9))

        def python(sampling=sampling, place=place):
            return specdec.race_sample(row, seed=SEED, position=next(place), sampling=sampling)

        calls = {
            "llama.cpp": lambda chain=chain: sample(chain, context, -1),
            "ours, Python": python,
            "ours, C++": lambda race=race: cpp.race_sample(race, address, -1),
        }
        for kind, values in kinds().items():
            row.copy_(torch.from_numpy(values))
            assert_same_support(calls, row, sampling)
            found = medians(calls)
            figures = {name: f"{1e6 * seconds:.1f}" for name, seconds in found.items()}
            ours = ("ours, Python", "ours, C++")
            figures |= {f"{name}, ×": f"{found['llama.cpp'] / found[name]:.1f}" for name in ours}
            row_of = {"filters": case, "logits": kind, **figures}
            table(f"llama.cpp: a draw from {V:,} logits, µs", row_of)
    row.fill_(0.0)


def assert_same_support(calls, row, sampling):
    """Every token of each of them is one that our filters keep."""
    cut = specdec.cutoff(row, sampling=sampling)
    for name, call in calls.items():
        for _ in range(20):
            token = int(call())
            assert row[token] >= cut.value, (name, token)


def medians(calls):
    """Seconds of each call; they take turns."""
    found = {name: [] for name in calls}
    for _ in range(30):
        for name, call in calls.items():
            for _ in range(5):
                start = CLOCK()
                call()
                found[name].append(CLOCK() - start)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


ASKED = {
    "suffix": "and", "max_tokens": 5, "min_tokens": 20, "temperature": 0.5, "top_p": 0.5, "min_p": 0.4, "echo": True,
    "stop": ["e"], "stream": False, "logprobs": 2, "presence_penalty": 1.5, "frequency_penalty": 1.5,
    "logit_bias": {"101": 9.0}, "seed": 8, "n": 2, "best_of": 2, "user": "a", "top_k": 2, "repeat_penalty": 1.8,
    "logit_bias_type": "input_ids", "mirostat_mode": 2, "mirostat_tau": 1.0, "mirostat_eta": 0.5,
    "grammar": 'root ::= "no " [0-9]+',
}  # fmt: skip
WITH = {
    "logit_bias_type": {"logit_bias": {"101": 9.0}}, "mirostat_tau": {"mirostat_mode": 2},
    "mirostat_eta": {"mirostat_mode": 2},
}  # fmt: skip


def test_parameters(paths, tmp_path, table):
    """Each field of a completion by itself, over HTTP."""
    assert {*ASKED} == {*CreateCompletionRequest.model_fields} - {"model", "prompt"}

    def write(port):
        usual = {"prompt": "O, ", "max_tokens": 16, "temperature": 0.8, "seed": 5, "repeat_penalty": 1.0}
        return lambda more: [{**choice, "index": 0} for choice in answered(port, usual | more)]

    given, found = {name: {name: value} | WITH.get(name, {}) for name, value in ASKED.items()}, []
    for drafts in ("none", "ours", "its own"):
        command = [sys.executable, "-c", SERVER, *paths, "PORT", drafts]
        with serving(command, tmp_path / drafts, "/v1/models") as port:
            found.append(asked(write(port), given))
    compared("llama.cpp's server", table, *found, idle=("n",))  # which it does not read
