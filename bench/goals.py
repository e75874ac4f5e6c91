"""The CPU goals: one thread unless said otherwise, float32, V = 128,256, ratios in one run, worst kind of logits."""

from harness import OURS, VOCABULARY, Goal


def of_argmax(book):
    worst = book.worst("race_sample", "torch.argmax", V=VOCABULARY, threads=1, sweep="peers")
    return 1 / worst if worst else None


def times_multinomial(book):
    return book.worst("race_sample", "softmax+multinomial", V=VOCABULARY, threads=1, sweep="peers")


def times_transformers(method):
    def value(book):
        return book.worst("verify_chain", "transformers", method=method, acceptance=0.7, threads=1, sweep="peers")

    return value


def scaling(method):
    def value(book):
        one, two = (book.find("verify_chain", OURS, method=method, B=8, threads=n, sweep="threads") for n in (1, 2))
        return one / two if one and two else None

    return value


def host_cost(book):
    times = [r.median for r in book.records if r.op == "host_cost" and r.contender == OURS]
    return max(times) * 1e6 if times else None


GOALS = [
    Goal("race_sample, one row: share of torch.argmax", 0.4, False, of_argmax),
    Goal("race_sample, one row: times faster than softmax + multinomial", 60, True, times_multinomial),
    Goal("verify_chain(rejection), K = 5: times faster than transformers", 15, True, times_transformers("rejection")),
    Goal("verify_chain(race), K = 5: times faster than transformers", 30, True, times_transformers("race")),
    Goal("verify_chain(rejection), B = 8: two threads over one", 1.8, True, scaling("rejection")),
    Goal("verify_chain(race), B = 8: two threads over one", 1.8, True, scaling("race")),
    Goal("host cost of a call, µs", 10, False, host_cost),
]
