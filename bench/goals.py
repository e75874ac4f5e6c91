"""The CPU goals. Unless a goal says otherwise: one thread, float32, V = 128,256, worst kind of logits, one run."""

from harness import KINDS, OURS, VOCABULARY, Goal

ROWS = ("normal", "zipf", "peaked")
PEERS = {"threads": 1, "sweep": "peers"}
SAMPLERS = ("sampling_from_logits", "top_k_top_p_sampling_from_logits", "top_k_mask_logits")
WITH_OUT = [{"call": name} for name in ("race_sample", "verify_chain(race)", "verify_chain(rejection)")]
OTHER_CALLS = [{"call": f"verify_chain(rejection), {how}"} for how in ("new outputs", "serving")]
SHORT = ("top_k 50", "top_k 50, top_p 0.9", "joint")


def times(op, peer, kinds=KINDS, as_share=False, **case):
    """The least speed-up over a peer, or the largest share of its time, over kinds of logits."""

    def value(book):
        worst = book.worst(op, peer, kinds, **case)
        return worst and (1 / worst if as_share else worst)

    return value


def of_unfiltered(filters, kinds=ROWS, op="race_sample", **case):
    """The largest share of the unfiltered call's time."""

    def value(book):
        worst = [book.worst(f"filters: {op}", "unfiltered", kinds, filters=each, threads=1, **case) for each in filters]
        return None if None in worst else 1 / min(worst)

    return value


def block_of_rejection(book):
    """The largest share of rejection's time, where both read every row and where a block refuses drafts."""

    def time(method, kind, acceptance):
        return book.find("verify_chain", OURS, method=method, kind=kind, acceptance=acceptance, **PEERS)

    pairs = [(time("block", kind, a), time("rejection", kind, 1)) for kind in KINDS for a in (0.7, 1)]
    return max(block / rejection for block, rejection in pairs) if all(map(all, pairs)) else None


def scaling(method):
    def value(book):
        one, two = (book.find("verify_chain", OURS, method=method, B=8, threads=n, sweep="threads") for n in (1, 2))
        return one / two if one and two else None

    return value


def micros(op, *cases):
    """The most microseconds of our calls."""

    def value(book):
        medians = [book.find(op, OURS, **case) for case in cases]
        return None if None in medians else max(medians) * 1e6

    return value


def triton_host_cost(method):
    return micros("host_cost of Triton", {"method": method, "part": "backend"})


def adds(op, without, cases):
    """The most microseconds that our call takes more than ``without``."""

    def value(book):
        pairs = [[book.find(op, contender, **case) for contender in (OURS, without)] for case in cases]
        return max(1e6 * (ours - other) for ours, other in pairs) if all(map(all, pairs)) else None

    return value


def edits_add(edits):
    return adds("edits: race_sample", "unedited", [{"edits": edits, "kind": kind, "threads": 1} for kind in ROWS])


def adapter_adds(*calls):
    return adds("adapter", "bare op", [{"call": call} for call in calls])


def transformers(method):
    return times("verify_chain", "transformers", method=method, acceptance=0.7, **PEERS)


RACE = {"op": "race_sample", "V": VOCABULARY, **PEERS}
FILTERED = "filters: race_sample"
AT_MOST = [
    ("race_sample, one row: share of torch.argmax", 0.15, times(peer="torch.argmax", as_share=True, **RACE)),
    ("verify_chain(block), K = 5: share of rejection, every row read", 1.6, block_of_rejection),
    (
        "verify_tree(paths), 4 chains of 5: share of traversal on that tree", 1.3,
        times("paths", "traversal", as_share=True),
    ),
    ("host cost of a call, µs", 10, micros("host_cost", *WITH_OUT, *OTHER_CALLS)),
    ("host cost of Triton's race, nothing launched, µs", 25, triton_host_cost("race")),
    ("host cost of Triton's rejection, nothing launched, µs", 35, triton_host_cost("rejection")),
    (
        "top_k 50, with top_p or without, min_p: share of unfiltered, any row", 1.1,
        of_unfiltered((*SHORT, "min_p 0.05")),
    ),
    (
        "top_k 50, with top_p or without: share of unfiltered, normal and Zipf rows", 0.8,
        of_unfiltered(SHORT, ("normal", "zipf")),
    ),
    *(
        (f"top_p 0.9 over the row: share of unfiltered, {name} rows", bound, of_unfiltered(("top_p 0.9",), (kind,)))
        for name, kind, bound in (("peaked", "peaked", 1.4), ("Zipf", "zipf", 2), ("normal", "normal", 2))
    ),
    (
        "verify_chain(race), top_k 50 + top_p 0.9: share of unfiltered", 1.1,
        of_unfiltered(("top_k 50, top_p 0.9",), op="verify_chain", method="race"),
    ),
    *(
        (
            f"verify_chain(rejection), {filters}: share of unfiltered, peaked rows", bound,
            of_unfiltered((filters,), ("peaked",), "verify_chain", method="rejection"),
        )
        for filters, bound in (("top_k 50", 1.0), ("top_p 0.9", 1.4))
    ),
    ("a grammar's mask: µs more a row", 8, edits_add("grammar")),
    ("penalties, 1,500 tokens seen: µs more a row", 15, edits_add("penalties")),
    ("FlashInfer's samplers by our ops: µs more a call", 20, adapter_adds(*SAMPLERS)),
    ("transformers' verification by our op: µs more a call", 20, adapter_adds("speculative_sampling")),
    ("FlashInfer's chain by our op: µs more a call", 20, adapter_adds("chain_speculative_sampling")),
]  # fmt: skip
AT_LEAST = [
    ("race_sample, one row: times faster than softmax + multinomial", 60, times(peer="softmax+multinomial", **RACE)),
    *(
        (f"verify_chain({method}), K = 5: times faster than transformers", bound, transformers(method))
        for method, bound in (("rejection", 30), ("race", 30), ("block", 18))
    ),
    (
        "verify_tree(paths), 4 chains of 5: times faster than transformers for each chain", 15,
        times("paths", "transformers, each chain"),
    ),
    *(
        (f"verify_chain({method}), B = 8: two threads over one", 1.9, scaling(method))
        for method in ("rejection", "race")
    ),
    *(
        (text, bound, times(FILTERED, peer, ROWS, filters=filters, threads=1))
        for text, bound, peer, filters in (
            ("top_k 50 + top_p 0.9: times faster than transformers", 100, "transformers", "top_k 50, top_p 0.9"),
            ("top_p 0.9: times faster than transformers", 150, "transformers", "top_p 0.9"),
            ("top_k 50: times faster than torch.topk and a draw", 4, "torch.topk", "top_k 50"),
        )
    ),
]  # fmt: skip
# Most users' CPUs have no more than AVX2: SPECDEC_CPU_ISA=avx2 ATEN_CPU_CAPABILITY=avx2.
AVX2_AT_MOST = [("host cost of a call with `out=`, µs", 3.5, micros("host_cost", *WITH_OUT))]
AVX2_AT_LEAST = [
    *(
        (f"verify_chain({method}), K = 5: times faster than transformers", bound, transformers(method))
        for method, bound in (("rejection", 30), ("race", 100))
    ),
    ("overlap: times faster than torch", 3, times("overlap", "torch", gradients=None)),
    ("residual: times faster than torch", 2, times("residual", "torch")),
]


def goals(isa):
    """The goals of an instruction set."""
    at_most, at_least = (AVX2_AT_MOST, AVX2_AT_LEAST) if isa == "avx2" else (AT_MOST, AT_LEAST)
    return [Goal(*goal[:2], False, goal[2]) for goal in at_most] + [Goal(*goal[:2], True, goal[2]) for goal in at_least]
