"""Ops on rows [..., V]: arguments are read by the declaration, for calls that C++ declined."""

from specdec_kernels._constants import MASS_TILE
from specdec_kernels.calls import inputs
from specdec_kernels.calls.op import Op
from specdec_kernels.calls.values import Noise
from specdec_kernels.ops import _edits as edit
from specdec_kernels.ops import _laws as laws
from specdec_kernels.status import raise_for_status


class RowOp(Op):
    """An op on rows, whose calls are read here where C++ declined them."""

    def read(self, check, raw):
        return Reading(self, check, raw)()


class Reading:
    """A call's ``values`` for backends, by the names of the op's arguments. Calling it makes outputs, and runs."""

    def __init__(self, op, check, raw):
        given = self.given = dict(zip(op.names, raw, strict=True))
        self.op, self.check, self.name = op, check, op.names[0]
        target = self.target = given[self.name]
        inputs.check_rows(self.name, target)
        self.drafted, self.draft_name = laws.drafted(given["draft"]) if "draft_law" in op.arguments else (None, None)
        lead, device = target.shape[:-1], target.device
        vocab = target.shape[-1]
        sizes = {"*": lead, "V": vocab, "I": -(-vocab // edit.WORD), "J": -(-vocab // MASS_TILE), "device": device}
        self.rows = inputs.rows3(self.name, target)
        values = self.values = given.copy()
        values[op.first] = self.rows
        if self.drafted is not None:
            self._read_pair()
        elif given.get("draft_map") is not None:
            laws.check_draft_map("draft_map", given["draft_map"], vocab, None, device)
        for size in op.sizes:
            expected = "an int from {least} to the vocabulary's {most}"
            sizes["K"] = op.size(size, given[size], expected, vocab)
        for name in ("tokens", "least"):
            if name in given:
                op.check(sizes, **{name: given[name]})
                values[name] = given[name].reshape(self.rows.shape[:2] if name == "tokens" else -1)
        self._read_numbers()
        self.sizes = sizes

    def _read_pair(self):
        name, rows, lead = self.draft_name, self.drafted.rows, self.target.shape[:-1]
        inputs.check_rows(name, rows)
        inputs.check_device(name, rows, self.target.device)
        if self.given["request_index"] is None:
            if rows.shape[:-1] != lead:
                raise ValueError(f"{name}: expected shape {[*lead, 'V']}; got {inputs.shown(rows)}")
        elif rows.ndim != self.target.ndim or rows.shape[1:-1] != lead[1:]:
            raise ValueError(f"{name}: expected shape {['S', *lead[1:], 'V']}; got {inputs.shown(rows)}")
        laws.check_vocabularies(name, self.drafted, self.target)
        self.values |= {"draft": inputs.rows3(name, rows), "draft_map": self.drafted.map}

    def _read_numbers(self):
        """Laws, edits, noise, and other numbers of rows."""
        given, values, target, device = self.given, self.values, self.target, self.target.device
        temperature, sampling, edits, index = (
            given["temperature"], given["sampling"], given["edits"], given["request_index"]
        )  # fmt: skip
        counters = [given[x] for x in Noise._fields] if "seed" in given else ()
        draft_rows = None if self.drafted is None else self.drafted.rows
        numbers = () if index is None else (*laws.numbers_in(temperature, sampling), *edit.lists(edits), *counters)
        shape, seen = laws.number_shapes(target, self.rows, index, draft_rows, *numbers)
        law = laws.target_law(given["space"], temperature, sampling, shape, device, seen)
        self.laws, values["law"] = [law], law
        if draft_rows is not None:
            self.laws.append(laws.draft_law(law, self.drafted, shape, device, seen))
            values["target_law"], values["draft_law"] = self.laws
        values["edits"] = edit.of_rows(edits, law, target, self.rows, shape, seen)
        if draft_rows is None and given.get("draft_map") is not None and values["edits"].on():
            raise ValueError(
                "edits: expected None beside draft_map, for they are edits of a target's rows; got a LogitEdits"
            )
        if counters:
            values["noise"] = laws.noise_of(self.rows.shape[:2].numel(), *counters, shape, device, seen)
        if "draft_prob" in given:
            values["draft_prob"] = self.op.number("draft_prob", given["draft_prob"], shape, device, seen)

    def __call__(self):
        """Run the op."""
        op, check, given = self.op, self.check, self.given
        made, given_outputs = op.make(self.sizes, given, check)
        lead = self.target.shape[:-1]
        count, dims = lead.numel(), len(lead)
        for name, x in made.items():  # backends have one dimension for all rows
            if x is not None and x.ndim > dims:
                self.values[name] = x.view(count, x.shape[dims:].numel())
            else:
                self.values[name] = x if x is None or dims == 1 else x.view(count)
        if check:
            inputs.check_logits(self.name, self.target, self.laws[0].space)
        if check and self.drafted is not None:
            inputs.check_logits(self.draft_name, self.drafted.rows, self.laws[1].space)
        op.run(op.Call(*[self.values[name] for name in op.arguments]), given_outputs)
        if check:
            raise_for_status(op.name, made["status"])
        return op.returned(made)
