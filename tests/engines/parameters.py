"""Which sampling parameters an engine takes beside drafts: each is asked for alone, with drafts and without."""

import functools

TAKEN = "taken"


def outcome(ask):
    """What a request gives, and in a word how it went: taken, or what its refusal says."""
    try:
        return ask(), TAKEN
    except Exception as error:
        words = " ".join(str(error).split()).replace("|", "/")
        return None, f"{type(error).__name__}: {words[:100]}{'...' * (len(words) > 100)}"


def asked(write, given):
    """The outcome of each of ``given``, a dict from names to values, and of nothing, whose name is ""."""
    return {name: outcome(functools.partial(write, value)) for name, value in ({"": {}} | given).items()}


def compared(engine, table, plain, drafted, own=None, idle=()):
    """A row for each parameter: outcomes without drafts, beside drafts that its own verifies, and beside ours.

    What is taken without drafts must be with ours, and write the same text, but for what the engine itself refuses
    beside any drafts. What it does not look at is in `idle`.
    """
    lost, usual = [], plain.pop("")[0]
    for name, (alone, without) in plain.items():
        beside, with_drafts = drafted[name]
        theirs = None if own is None else own[name][1]
        row = {} if own is None else {"drafts, its own verification": theirs}
        row = {"parameter": f"`{name}`", "no drafts": without} | row | {"drafts, ours": with_drafts}
        if name in idle:
            row |= dict.fromkeys([*row][1:], "not read")
        table(f"{engine}: sampling parameters", row)
        same = (alone, without) == (beside, with_drafts)
        if without == TAKEN and not same and (with_drafts == TAKEN or with_drafts != theirs):
            lost.append((name, with_drafts, alone, beside))
        elif without == TAKEN and name not in SILENT and (alone == usual) != (name in idle):
            lost.append((name, "has no effect"))
    assert not lost, lost


# They change how a text is told, or nothing of the ones that are written here.
SILENT = {
    "ignore_eos", "skip_special_tokens", "spaces_between_special_tokens", "detokenize", "flat_logprobs", "extra_args",
    "watermarking", "watermark", "custom_params", "stream_interval", "output_kind", "no_stop_trim",
    "include_stop_str_in_output", "renormalize_logits", "remove_invalid_values", "begin_suppress_tokens",
    "repetition_detection", "num_beams", "forced_bos_token_id", "structural_tag", "stream", "stream_options", "user",
    "best_of", "chat_template_kwargs", "num_draft_tokens",
}  # fmt: skip
