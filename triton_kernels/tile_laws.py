"""``RowStats`` of rows from their mass tiles, and probabilities: one launch, a program for each row."""

import triton.language as tl
from specdec_kernels.triton_kernels import _arguments, _launch, _math, _rows


@_launch.kernel
def tile_laws_kernel(
    tiles, count: tl.int32, raw, raw_row: tl.int64, values: tl.int32, temperature: _arguments.Number, row_stats, probs,
    ITEMS: tl.constexpr, VALUES: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    inverse, _, _ = _math.inverse_temperature(_arguments.number(temperature, 0, row, row >= 0))
    items = tiles.to(tl.pointer_type(tl.float32), bitcast=True) + row * 3 * count
    top, log_sum, _ = _rows.finish_mass(items, count, ITEMS)
    tl.store(row_stats + 2 * row, top)
    tl.store(row_stats + 2 * row + 1, log_sum)
    value_index = tl.arange(0, VALUES)
    x = tl.load(raw + row * raw_row + value_index, mask=value_index < values, other=0.0).to(tl.float32)
    p = _math.probability(_math.scaled(x, inverse), top, log_sum)
    tl.store(probs + row * values + value_index, p, mask=value_index < values)


def tile_laws(call):
    """``row_stats`` float32 [n, 2], ``probs`` float32 [n, k] from ``tiles`` int32 [n, 3 tiles] and ``raw`` [n, k]."""
    rows, values = call.raw.shape
    count = call.tiles.shape[1] // 3
    with _launch.on_device(call.raw):
        arguments = dict(
            tiles=call.tiles, count=count, raw=call.raw, raw_row=call.raw.stride(0), values=values,
            temperature=_arguments.number_of(call.temperature),
            row_stats=call.row_stats, probs=call.probs, ITEMS=_launch.power_of_2(count),
            VALUES=_launch.power_of_2(values),
        )  # fmt: skip
        _launch.launch(tile_laws_kernel, (rows,), 1, arguments)
