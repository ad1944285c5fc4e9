"""Embeddings that begin with what a teacher knows (Lee & Berg-Kirkpatrick 2025, appendix B)."""

import torch
from torch import nn

from hmmlm.distill.labels import StateLabels
from hmmlm.errors import InputError, counted
from hmmlm.params.embedding import Table
from hmmlm.params.features import Features


def begin(model: Features, labels: StateLabels, what: str) -> list[nn.Parameter]:
    """Gives a model the centres of its states, the words of the teacher's head, or both.

    `what` is "centres", "head" or "both". All embeddings of states get the centres, as they are; a
    state whose centre is NaN keeps its own. Returns the parameters that were given something.
    """
    centres, head, teacher = labels.centres, labels.head, labels.about["teacher"]
    check_beginning(what, model.width, centres.shape[1], head is not None, teacher)
    given: list[nn.Parameter] = []
    states, words = model.support.num_states, model.support.vocab_size
    with torch.no_grad():
        if what != "head":
            if len(centres) != states:
                raise InputError(
                    f"The labels have {counted(len(centres), 'centre')} but the model has "
                    f"{counted(states, 'state')}; make states for this model."
                )
            known = ~centres.isnan().any(1)
            for table in model.embeddings.values():
                assert isinstance(table, Table)
                place = known.to(table.weight.device)
                table.weight[place] = centres[known].to(table.weight)
                given.append(table.weight)
        if what != "centres":
            assert head is not None
            if len(head) != words:
                raise InputError(
                    f"The labels have a head of {counted(len(head), 'word')} but the model has "
                    f"{counted(words, 'word')}; make states for this text."
                )
            model.words.copy_(head)
            given.append(model.words)
    return given


def check_beginning(what: str, width: int, found: int, has_head: bool, teacher: str) -> None:
    """Refuses a model of a `width` to begin with what a teacher has `found` numbers for."""
    if what != "centres" and not has_head:
        raise InputError(
            f"train.begin_with is {what} but the labels of {teacher} have no head: a causal model "
            f"has one, for its last layer. Use such a teacher with hmmlm distill (remove labels "
            f"that were made before heads were kept), or train.begin_with=centres."
        )
    if width != found:
        raise InputError(
            f"train.begin_with is {what} but the model has width {width:,} and what {teacher} "
            f"gives has {counted(found, 'number')}; set distill.dim={width} if the teacher has as "
            f"many, or model.width={found}."
        )
