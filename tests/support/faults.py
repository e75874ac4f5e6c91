"""Faults to plant: what a change might break, and the test of the quick set that must go red.

Each is one text of one file, and what stands in its place. `tests/test_faults.py` plants them in a copy of the tree.
"""

from typing import NamedTuple


class Fault(NamedTuple):
    """``text`` stands once in ``file``. ``tests`` are arguments of pytest."""

    file: str
    text: str
    other: str
    tests: str


FAULTS = {
    # The reference and what is around the ops, in Python.
    "residual, reference: without draft_prob": Fault(
        "specdec_kernels/backends/reference/laws.py",
        "excess = p - draft_prob.unsqueeze(-1) * q",
        "excess = p - q",
        "tests/ops/test_residual.py -k reference",
    ),
    "race, reference: a row without weight has no token": Fault(
        "specdec_kernels/backends/reference/race_sample.py",
        "nobody = 0 if",
        "nobody = -1 if",
        "tests/ops/test_race_sample.py -k reference",
    ),
    "generate: a penalty does not see the prompt": Fault(
        "specdec_kernels/generate/edits.py",
        "self.prompt = mask_of(prompts, words, device)",
        "self.prompt = mask_of([[] for _ in prompts], words, device)",
        "tests/generate/test_edits.py",
    ),
    "engines: two counts of one generator give one seed": Fault(
        "specdec_kernels/engines/_noise.py",
        "seed + count * SPREAD",
        "seed + count % 4 * SPREAD",
        "tests/package/test_docs.py -k engines._noise",
    ),
    "engines, SGLang: no threshold for all children": Fault(
        "specdec_kernels/engines/sglang.py",
        "threshold_total=max(threshold_acc, 1e-9)",
        "threshold_total=1.0",
        "tests/engines/test_sglang.py",
    ),
    # Triton.
    "count_tokens, Triton: old counts stay": Fault(
        "triton_kernels/count_tokens.py",
        "mask=there & (seen == 0))",
        "mask=there & (seen == 2))",
        "tests/ops/test_count_tokens.py -k triton",
    ),
    "store_rows, Triton: a column too far is written": Fault(
        "triton_kernels/store_rows.py",
        "(place >= 0) & (place < columns)",
        "(place >= 0)",
        "tests/ops/test_store_rows.py -k triton",
    ),
    "race_sample, Triton: a row without weight has a token": Fault(
        "triton_kernels/race_sample.py",
        "tl.where(weighs | idle, token, 0)",
        "tl.where(weighs | idle, token, 1)",
        "tests/ops/test_race_sample.py -k triton",
    ),
    "race_sample, Triton: the compiler refuses what the interpreter takes": Fault(
        "triton_kernels/race_sample.py",
        "tl.where(weighs | idle, token, 0)",
        "tl.where(weighs | idle, token, sum([0]))",
        "tests/backends/test_triton_compiled.py -k reads",
    ),
}
