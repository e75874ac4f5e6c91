"""Public ops that accept fields of grouped arguments by name: ``verify_chain(**call, **{"draft.space": "probs"})``.

Tests vary one part of a call at a time, and errors name parts so. A part that is None is left out.
"""

import functools
import inspect

import specdec_kernels
from specdec_kernels import Draft, InputPositions, Packing


def grouped(call):
    """A call's arguments in the op's form."""
    whole = {name: value for name, value in call.items() if "." not in name}
    for name, value in call.items():
        group, _, field = name.partition(".")
        if field and value is not None:
            whole[group] = _with_field(group, whole.get(group), field, value)
    return whole


def _with_field(group, given, field, value):
    if group == "draft":
        return (given if isinstance(given, Draft) else Draft(given))._replace(**{field: value})
    if group == "packing":
        return (Packing() if given is None else given)._replace(**{field: value})
    return (given if isinstance(given, InputPositions) else InputPositions(None))._replace(**{field: value})


def _taking_parts(op):
    names = list(inspect.signature(op).parameters)

    @functools.wraps(op)
    def call(*arguments, **options):
        if not any("." in name for name in options):
            return op(*arguments, **options)
        return op(**grouped(dict(zip(names, arguments, strict=False)) | options))

    return call


overlap = _taking_parts(specdec_kernels.overlap)
residual = _taking_parts(specdec_kernels.residual)
verify_chain = _taking_parts(specdec_kernels.verify_chain)
verify_tree = _taking_parts(specdec_kernels.verify_tree)
