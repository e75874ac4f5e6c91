"""The gains of speculative decoding, and the best choices for a user: the papers' formulas, exactly.

Laws are arrays [V] of float64 (anything ``numpy.asarray`` takes); ``p`` is always the target, ``q`` the draft. ``k`` is
a number of draft tokens, or of a tree's nodes without the root; ``alpha`` one acceptance for every slot, or one by
slot; ``c`` and ``lam`` the time of a draft pass over that of a verification; ``a`` the probability of drafting;
``epsilon`` the over-acceptance. ``kind`` says how rounds are counted: as they renew, or as the paper does. The
functions need numpy only; `paths_expected_accepted`, whose rule is the reference backend's, needs torch. The papers are
Leviathan, Kalman and Matias (2023), Yin et al. (2024), Sun et al. (2024), Kobus and Gündüz (2025), Weng et al. (2025),
Toner et al. (2025); ``docs/theory.md`` explains each formula and lists their misprints.

Each function raises a ``ValueError`` that names the argument, for a law with a negative entry or a sum that is not 1
within 1e-6, for lengths that differ, and for numbers, trees and names that are out of range or unknown.
"""

from specdec_kernels.theory.chains import (
    acceptance,
    best_draft_length,
    block_expected_accepted,
    expected_accepted,
    expected_rejections,
    expected_tokens,
    over_acceptance,
    speedup,
    total_variation,
)
from specdec_kernels.theory.paths import paths_expected_accepted
from specdec_kernels.theory.races import race_acceptance, race_bounds, race_rank_law
from specdec_kernels.theory.randomised import (
    best_draft_prob,
    drafting_acceptance,
    drafting_gain_condition,
    drafting_rate,
)
from specdec_kernels.theory.trees import traversal_expected_accepted, tree_bound, tunstall_bound

__all__ = [
    "acceptance",
    "best_draft_length",
    "best_draft_prob",
    "block_expected_accepted",
    "drafting_acceptance",
    "drafting_gain_condition",
    "drafting_rate",
    "expected_accepted",
    "expected_rejections",
    "expected_tokens",
    "over_acceptance",
    "paths_expected_accepted",
    "race_acceptance",
    "race_bounds",
    "race_rank_law",
    "speedup",
    "total_variation",
    "traversal_expected_accepted",
    "tree_bound",
    "tunstall_bound",
]
