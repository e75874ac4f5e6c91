"""One pair of models serves several threads: each generates what it generates alone."""

from specdec_kernels.generate import ModelDrafter, generate
from tests.support.threads import together


def test_four_threads(small_pair):
    target, draft = small_pair
    methods = ("race", "rejection", "block", "race")

    def texts(i):
        found = generate(
            [[1, 2, i], [2]], target, ModelDrafter(draft), method=methods[i], k=3, max_new_tokens=12, seed=i
        )
        return [one.tokens for one in found]

    wanted = [texts(i) for i in range(4)]

    def work(i):
        for _ in range(12):
            assert texts(i) == wanted[i]

    together(*(lambda i=i: work(i) for i in range(4)))
