"""Small PTX texts, for tests of the machine itself."""

import ctypes

import numpy as np

from tests.backends.ptx.build import build_text
from tests.backends.ptx.memory import allow

HEAD = """.version 9.0
.target sm_90
.address_size 64
"""
REGISTERS = """
.reg .pred %p<64>;
.reg .b16 %rs<64>;
.reg .b32 %r<64>;
.reg .f32 %f<64>;
.reg .b64 %rd<64>;
"""


def entry(name, body, shared="", launch=""):
    """A kernel with the address of what it writes: %rd1 of the whole, %rd2 of this thread's 8 bytes; %r1 is %tid.x."""
    return f"""{shared}
.visible .entry {name}(.param .u64 {name}_out) {launch}
{{
{REGISTERS}
ld.param.u64 %rd1, [{name}_out];
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd2, %r1, 8;
add.s64 %rd2, %rd1, %rd2;
{body}
ret;
}}
"""


class Texts:
    """The kernels of a text. ``run`` gives the machine's report, "" for none, and 8-byte words that were written."""

    def __init__(self, *entries):
        self.library = ctypes.CDLL(str(build_text(HEAD + "\n".join(entries))))
        self.library.host_cuda_last_fault.restype = ctypes.c_char_p

    def launch(self, name, words=64, threads=1, blocks=1, cluster=1, dynamic=0, overlaps=False, schedule=1):
        """Whether it failed, and what was written."""
        self.library.host_cuda_configure(4, 2, 90, 4, ctypes.c_uint64(schedule))
        out = np.full(words, 0xA5A5A5A5A5A5A5A5, np.uint64)
        allow(self.library, [(out.ctypes.data, out.nbytes)])
        address = ctypes.c_uint64(out.ctypes.data)
        grid = (ctypes.c_uint * 3)(blocks, 1, 1)
        failed = self.library.ptx_launch(
            name.encode(), grid, threads, cluster, ctypes.c_size_t(dynamic), overlaps, ctypes.byref(address)
        )
        return bool(failed), out

    def run(self, name, **options):
        failed, out = self.launch(name, **options)
        report = self.library.host_cuda_last_fault().decode()
        assert failed == bool(report)
        return report, out
