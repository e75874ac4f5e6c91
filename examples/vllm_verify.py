"""A step of vLLM's speculative decoding with our functions, and what its plug-in changes.

Run it: python examples/vllm_verify.py

The functions have the names and signatures of vLLM's V2 runner, and run on CPU tensors as well. In vLLM itself nothing
is called by hand: with this package installed, one variable switches the verification over.

    SPECDEC_VLLM=race vllm serve MODEL --speculative-config '{"method": "eagle3", "model": DRAFT, ...}'
"""

import torch

from specdec_kernels.engines import vllm

SLOTS, DRAFTS, VOCABULARY = 16, 3, 32_000


def main() -> None:
    generator = torch.Generator().manual_seed(1)
    # Four requests in four of sixteen slots. The last one has no drafts in this step.
    slots, rows = torch.tensor([3, 0, 9, 5]), torch.tensor([4, 4, 4, 1])
    request = torch.repeat_interleave(torch.arange(4), rows)
    place = torch.cat([torch.arange(count) for count in rows.tolist()])
    position = torch.tensor([17, 801, 3, 55])[request] + place  # of each row's input token
    temperature, seed = torch.full((SLOTS,), 0.8), torch.arange(SLOTS)

    target = 3 * torch.randn(len(request), VOCABULARY, generator=generator)
    draft = torch.zeros(SLOTS, DRAFTS, VOCABULARY)  # the drafts' logits, by slot, before the temperature
    tokens = torch.zeros(len(request), dtype=torch.int64)
    for step in range(DRAFTS):
        here = place == step + 1
        logits = target[place == step][: here.sum()] + torch.randn(int(here.sum()), VOCABULARY, generator=generator)
        tokens[here] = vllm.gumbel_sample(
            logits, slots[request[here]], temperature, seed, position[here] - 1, apply_temperature=True,
            is_drafting=True, logits_cache=draft, logits_cache_col=torch.tensor(step),
        )  # fmt: skip

    # vLLM applies temperature and filters to the target's rows before it verifies; the plug-in fuses them.
    processed = vllm.apply_top_k_top_p(target / 0.8, torch.full((len(request),), 50), None)
    ends = torch.nn.functional.pad(rows.cumsum(0), (1, 0)).int()
    sampled, count = vllm.rejection_sample(
        processed, draft, tokens, ends, position, slots, slots[request], place, temperature, seed, DRAFTS
    )
    for slot, row, emitted in zip(slots.tolist(), sampled.tolist(), count.tolist(), strict=True):
        print(f"slot {slot}: {row[:emitted]}")


if __name__ == "__main__":
    main()
