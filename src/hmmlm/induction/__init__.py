"""States that no tag was told of, beside tags: how well they agree, and merged to fewer."""

from hmmlm.induction.agreement import Agreement, Matching, agreement, count_together, match
from hmmlm.induction.merging import merge_states

__all__ = ["Agreement", "Matching", "agreement", "count_together", "match", "merge_states"]
