"""The CPU goals: one thread unless said otherwise, float32, V = 128,256, ratios in one run, worst kind of logits."""

from harness import KINDS, OURS, VOCABULARY, Goal


def of_argmax(book):
    worst = book.worst("race_sample", "torch.argmax", V=VOCABULARY, threads=1, sweep="peers")
    return 1 / worst if worst else None


def times_multinomial(book):
    return book.worst("race_sample", "softmax+multinomial", V=VOCABULARY, threads=1, sweep="peers")


def times_transformers(method):
    def value(book):
        return book.worst("verify_chain", "transformers", method=method, acceptance=0.7, threads=1, sweep="peers")

    return value


def block_of_rejection(book):
    """The largest share of rejection's time where both read every row, and of blocks that refuse drafts."""

    def time(method, kind, acceptance):
        return book.find(
            "verify_chain", OURS, method=method, kind=kind, acceptance=acceptance, threads=1, sweep="peers"
        )

    times = [(time("block", kind, a), time("rejection", kind, 1)) for kind in KINDS for a in (0.7, 1)]
    return max(block / rejection for block, rejection in times) if all(map(all, times)) else None


def paths_of_traversal(book):
    worst = book.worst("paths", "traversal")
    return 1 / worst if worst else None


def scaling(method):
    def value(book):
        one, two = (book.find("verify_chain", OURS, method=method, B=8, threads=n, sweep="threads") for n in (1, 2))
        return one / two if one and two else None

    return value


def host_cost(book):
    times = [r.median for r in book.records if r.op == "host_cost" and r.contender == OURS]
    return max(times) * 1e6 if times else None


def triton_host_cost(method):
    def value(book):
        time = book.find("host_cost of Triton", OURS, method=method, part="backend")
        return time * 1e6 if time else None

    return value


def of_unfiltered(filters, kinds, op="race_sample", **case):
    """The largest share of the unfiltered call's time."""

    def value(book):
        ratios = [
            book.ratio(f"filters: {op}", "unfiltered", filters=each, kind=kind, threads=1, **case)
            for each in filters
            for kind in kinds
        ]
        return None if None in ratios else 1 / min(ratios)

    return value


def filters_against(peer, filters):
    def value(book):
        kinds = ("normal", "zipf", "peaked")
        ratios = [book.ratio("filters: race_sample", peer, filters=filters, kind=kind, threads=1) for kind in kinds]
        return None if None in ratios else min(ratios)

    return value


def edits_add(edits):
    """The most microseconds that edits add to a call."""

    def value(book):
        times = [
            [book.find("edits: race_sample", who, edits=edits, kind=kind, threads=1) for who in (OURS, "unedited")]
            for kind in ("normal", "zipf", "peaked")
        ]
        return max(1e6 * (ours - plain) for ours, plain in times) if all(map(all, times)) else None

    return value


def adapter_adds(calls):
    """The most microseconds that an engine's adapter adds to the bare op."""

    def value(book):
        times = [[book.find("adapter", who, call=call) for who in (OURS, "bare op")] for call in calls]
        return max(1e6 * (ours - bare) for ours, bare in times) if all(map(all, times)) else None

    return value


SAMPLERS = ("sampling_from_logits", "top_k_top_p_sampling_from_logits", "top_k_mask_logits")
SHORT = ("top_k 50", "top_k 50, top_p 0.9", "joint")

GOALS = [
    Goal("race_sample, one row: share of torch.argmax", 0.15, False, of_argmax),
    Goal("race_sample, one row: times faster than softmax + multinomial", 60, True, times_multinomial),
    Goal("verify_chain(rejection), K = 5: times faster than transformers", 30, True, times_transformers("rejection")),
    Goal("verify_chain(race), K = 5: times faster than transformers", 30, True, times_transformers("race")),
    Goal("verify_chain(block), K = 5: times faster than transformers", 18, True, times_transformers("block")),
    Goal("verify_chain(block), K = 5: share of rejection, every row read", 1.6, False, block_of_rejection),
    Goal("verify_tree(paths), 4 chains of 5: share of traversal on that tree", 1.3, False, paths_of_traversal),
    Goal(
        "verify_tree(paths), 4 chains of 5: times faster than transformers for each chain",
        15,
        True,
        lambda book: book.worst("paths", "transformers, each chain"),
    ),
    Goal("verify_chain(rejection), B = 8: two threads over one", 1.9, True, scaling("rejection")),
    Goal("verify_chain(race), B = 8: two threads over one", 1.9, True, scaling("race")),
    Goal("host cost of a call, µs", 10, False, host_cost),
    Goal("host cost of Triton's race, nothing launched, µs", 25, False, triton_host_cost("race")),
    Goal("host cost of Triton's rejection, nothing launched, µs", 35, False, triton_host_cost("rejection")),
    Goal(
        "top_k 50, with top_p or without, min_p: share of unfiltered, any row",
        1.1,
        False,
        of_unfiltered((*SHORT, "min_p 0.05"), ("normal", "zipf", "peaked")),
    ),
    Goal(
        "top_k 50, with top_p or without: share of unfiltered, normal and Zipf rows",
        0.8,
        False,
        of_unfiltered(SHORT, ("normal", "zipf")),
    ),
    Goal(
        "top_p 0.9 over the row: share of unfiltered, peaked rows",
        1.4,
        False,
        of_unfiltered(("top_p 0.9",), ("peaked",)),
    ),
    Goal("top_p 0.9 over the row: share of unfiltered, Zipf rows", 2, False, of_unfiltered(("top_p 0.9",), ("zipf",))),
    Goal(
        "top_p 0.9 over the row: share of unfiltered, normal rows", 2, False, of_unfiltered(("top_p 0.9",), ("normal",))
    ),
    Goal(
        "verify_chain(race), top_k 50 + top_p 0.9: share of unfiltered",
        1.1,
        False,
        of_unfiltered(("top_k 50, top_p 0.9",), ("normal", "zipf", "peaked"), "verify_chain", method="race"),
    ),
    Goal(
        "verify_chain(rejection), top_k 50: share of unfiltered, peaked rows",
        1.0,
        False,
        of_unfiltered(("top_k 50",), ("peaked",), "verify_chain", method="rejection"),
    ),
    Goal(
        "verify_chain(rejection), top_p 0.9: share of unfiltered, peaked rows",
        1.4,
        False,
        of_unfiltered(("top_p 0.9",), ("peaked",), "verify_chain", method="rejection"),
    ),
    Goal(
        "top_k 50 + top_p 0.9: times faster than transformers",
        100,
        True,
        filters_against("transformers", "top_k 50, top_p 0.9"),
    ),
    Goal("top_p 0.9: times faster than transformers", 150, True, filters_against("transformers", "top_p 0.9")),
    Goal("top_k 50: times faster than torch.topk and a draw", 4, True, filters_against("torch.topk", "top_k 50")),
    Goal("a grammar's mask: µs more a row", 8, False, edits_add("grammar")),
    Goal("penalties, 1,500 tokens seen: µs more a row", 15, False, edits_add("penalties")),
    Goal("FlashInfer's samplers by our ops: µs more a call", 20, False, adapter_adds(SAMPLERS)),
    Goal("transformers' verification by our op: µs more a call", 20, False, adapter_adds(("speculative_sampling",))),
    Goal("FlashInfer's chain by our op: µs more a call", 20, False, adapter_adds(("chain_speculative_sampling",))),
]
