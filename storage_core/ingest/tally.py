"""How often each reason rejected a line, in a bounded number of reasons: a foreign file can make up any number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from storage_core.foreign_text import fitted

MOST_REASONS = 50
LONGEST_REASON = 200
OTHERS = "other reasons"


def tally(*counts: Mapping[str, int]) -> dict[str, int]:
    """Return the sum of the counts: at most 50 reasons, the commonest, and the rest together as `other reasons`.

    The sum over all reasons is exact. Adding up part by part may count some lines of a rare reason among the others.
    Reasons are cut at 200 characters; each line's whole reason is in quarantine.
    """
    total: Counter[str] = Counter()
    for each in counts:
        for reason, count in each.items():
            total[fitted(reason, LONGEST_REASON)] += count
    rest = total.pop(OTHERS, 0)
    commonest = dict(total.most_common(MOST_REASONS))
    rest += total.total() - sum(commonest.values())
    return commonest | ({OTHERS: rest} if rest else {})
