"""New tensors say their dtype and their device: the defaults of torch are the caller's, and change no result."""

import ast
from pathlib import Path

import pytest

import specdec_kernels

ROOT = Path(specdec_kernels.__file__).resolve().parent
FOLDERS = [ROOT, *(path for path in [ROOT.parent / "triton_kernels"] if path.exists())]
FACTORIES = set(
    "arange as_tensor asarray empty empty_permuted empty_strided eye full hamming_window hann_window linspace logspace "
    "normal ones rand randint randn randperm range scalar_tensor sparse_coo_tensor tensor tril_indices triu_indices "
    "zeros".split()
)
# Of the default dtype or device, whatever they are given.
NEVER = set(
    "BoolTensor DoubleTensor FloatTensor IntTensor LongTensor Tensor get_default_dtype get_default_device".split()
)


def of_torch(node):
    """The name of a function of torch that is called, or None."""
    function = node.func
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "torch":
        return function.attr
    return None


def is_float(node):
    """Whether a value is surely a float of Python, such as 1.0 or -torch.inf."""
    if isinstance(node, ast.UnaryOp):
        return is_float(node.operand)
    constant = isinstance(node, ast.Constant) and isinstance(node.value, float)
    return constant or (isinstance(node, ast.Attribute) and node.attr in ("inf", "nan", "pi"))


def is_number(node):
    """Whether a value is surely a number of Python."""
    operand = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(operand, ast.Constant) or is_float(operand)


def faults(text):
    """(line, what is missing) of each new tensor that takes something from torch's defaults."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Call):
            continue
        name, given = of_torch(node), {keyword.arg for keyword in node.keywords}
        if name in NEVER:
            yield node.lineno, f"torch.{name}"
        elif name in FACTORIES and None not in given:  # not **options
            for missing in sorted({"dtype", "device"} - given):
                yield node.lineno, f"torch.{name} without {missing}"
        elif (
            name == "where"
            and len(node.args) == 3
            and any(map(is_float, node.args[1:]))
            and all(map(is_number, node.args[1:]))
        ):
            yield node.lineno, "torch.where of two floats, which is of the default dtype"


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_new_tensors_say_their_dtype_and_their_device(folder):
    paths = [path for path in folder.rglob("*.py") if "site-packages" not in path.relative_to(folder).parts]
    assert len(paths) > 30
    found = [
        f"{path.relative_to(folder)}:{line}: {what}"
        for path in sorted(paths)
        for line, what in faults(path.read_text())
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text, what",
    [
        ("torch.zeros(3)", ["torch.zeros without device", "torch.zeros without dtype"]),
        ("torch.tensor([1], device=x.device)", ["torch.tensor without dtype"]),
        ("torch.as_tensor(x, dtype=torch.int64)", ["torch.as_tensor without device"]),
        ("torch.full((2,), 1, dtype=torch.int64, device='cpu')", []),
        ("torch.empty(*shape, **how)", []),
        ("x.new_zeros(3) + torch.zeros_like(x)", []),
        ("torch.where(x > 0, 1.0, -torch.inf)", ["torch.where of two floats, which is of the default dtype"]),
        ("torch.where(x > 0, -1, -2)", []),
        ("torch.where(x > 0, 1.0, x)", []),
        ("torch.Tensor([1.0])", ["torch.Tensor"]),
    ],
)
def test_what_is_seen(text, what):
    assert sorted(found for _, found in faults(text)) == what
