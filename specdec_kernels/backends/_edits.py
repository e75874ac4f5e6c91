"""Refusals of the backends that do not know edits of logits."""


def unsupported(op, call):
    """The reason why such a backend cannot do a call, or None."""
    edits = getattr(call, "edits", None)
    if edits is not None and edits.on():
        return "edits: expected none, for it knows no edits; 'cpu', 'cuda' and 'reference' do"
    return None
