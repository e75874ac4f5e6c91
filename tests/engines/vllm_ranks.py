"""The embedded pair in a wide vocabulary, and what the whole tests ask of vLLM's ranks that share it."""

import json

from safetensors.torch import load_file, save_file

VOCABULARY = 128_256
OWN = 258


def moved(token):
    """The wide token of one of the pair's: odd ones are in the second rank's half."""
    return token + (token % 2) * (VOCABULARY // 2 + 2048)


def widened(source, place):
    """The pair's model in this folder. Tokens that it has not got have the logits of one that no text has."""
    place.mkdir()
    for name in ("config.json", "generation_config.json"):
        config = json.loads((source / name).read_text())
        config |= {"bos_token_id": moved(256), "eos_token_id": moved(257)}
        (place / name).write_text(json.dumps(config | ({"vocab_size": VOCABULARY} if "vocab_size" in config else {})))
    weights = load_file(source / "model.safetensors")
    rows = weights["model.embed_tokens.weight"]
    wide = weights["model.embed_tokens.weight"] = rows[1].repeat(VOCABULARY, 1)
    wide[[*map(moved, range(OWN))]] = rows
    save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
    words = json.loads((source / "tokenizer.json").read_text())
    words["model"]["vocab"] = {word: moved(token) for word, token in words["model"]["vocab"].items()}
    words["post_processor"]["special_tokens"]["<bos>"]["ids"] = [moved(256)]
    for token in words["added_tokens"]:
        token["id"] = moved(token["id"])
    (place / "tokenizer.json").write_text(json.dumps(words))
    (place / "tokenizer_config.json").write_text((source / "tokenizer_config.json").read_text())
    return str(place)


def by_gloo():
    """A plug-in of vLLM: on a CPU ranks talk by gloo, and not by shared memory, which spins while it waits."""
    from vllm.distributed.device_communicators.cpu_communicator import CpuCommunicator

    CpuCommunicator._all_group_ranks_share_shm_group_name = lambda self: False


# What a worker does when it is asked by `LLM.collective_rpc`.


def sampler_of(worker):
    return worker.model_runner._sample.__self__


def verify_by(worker, method):
    sampler_of(worker).method = method


def gather_again(worker):
    """From now on this rank has whole rows, as vLLM gathers them."""
    import specdec_kernels

    runner, sampler = worker.model_runner, sampler_of(worker)
    sampler.slices.keeps, runner.sample_tokens = False, runner.sample_tokens.args[0]
    runner._get_prompt_logprobs_dict = runner._get_prompt_logprobs_dict.args[0]
    sampler.ops, sampler.slices = specdec_kernels, None


def count(worker):
    """Count the bytes that this rank sends from now on: for whole rows, and of ours."""
    from vllm.distributed import get_tp_group

    from specdec_kernels.sharded import _shard

    if not hasattr(worker, "seen"):
        group, gather, ours = get_tp_group(), get_tp_group().all_gather, _shard.all_gather

        def all_gather(rows, dim=-1):
            worker.seen += rows.nbytes
            return gather(rows, dim)

        def gathered(every, mine, **how):
            worker.seen += mine.nbytes
            return ours(every, mine, **how)

        group.all_gather, _shard.all_gather = all_gather, gathered
    worker.seen = 0


def counted(worker):
    return worker.seen
