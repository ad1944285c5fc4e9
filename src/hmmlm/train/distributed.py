"""Processes that train one model together, each a rank, as torchrun starts them."""

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.rendezvous import rendezvous

from hmmlm.errors import InputError, counted

PATIENCE = timedelta(hours=1)
"""How long a rank waits for another: longer than clusters and validation take on one of them.

One that has ended is noticed at once, by its closed connections.
"""

Value = TypeVar("Value")


@dataclass(frozen=True)
class Ranks:
    """Which of how many ranks this process is, and its device. One rank exchanges nothing.

    Every method must be called by all ranks, in the same order.
    """

    rank: int = 0
    ranks: int = 1
    device: str = "cpu"

    def sum_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Puts the sums over all ranks in place of tensors."""
        if self.ranks > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def share_tensors(self, tensors: Iterable[Tensor]) -> None:
        """Puts the tensors of rank 0 in place of those of the others."""
        if self.ranks > 1:
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def total(self, *numbers: int | float) -> list[float]:
        """The sums of numbers over all ranks."""
        sums = torch.tensor(numbers, dtype=torch.float64)
        self.sum_tensors([sums])
        return sums.tolist()

    def gather(self, value: Value) -> list[Value]:
        """The values of all ranks, in their order, on each of them. Tensors must be on the CPU."""
        if self.ranks == 1:
            return [value]
        found: list[Any] = [None] * self.ranks
        dist.all_gather_object(found, value)
        return found

    def once(self, function: Callable[..., Value], *given: Any) -> Value:
        """What a function gives on rank 0, on every rank; the others wait for it."""
        if self.ranks == 1:
            return function(*given)
        found: list[Any] = [function(*given) if self.rank == 0 else None]
        dist.broadcast_object_list(found)
        return found[0]

    def agree(self, facts: Mapping[str, Any]) -> None:
        """Refuses named facts that are not the same on all ranks."""
        gathered = self.gather(dict(facts))
        for name in dict.fromkeys(name for held in gathered for name in held):
            holders: dict[str, list[str]] = {}
            for rank, held in enumerate(gathered):
                value = repr(held[name]) if name in held else "not set"
                holders.setdefault(value, []).append(str(rank))
            if len(holders) > 1:
                said = [f"{value} on rank {', '.join(who)}" for value, who in holders.items()]
                raise InputError(
                    f"{name} is {' but '.join(said)}; start all ranks with the same settings and "
                    f"the same text."
                )


ONE = Ranks()


@contextmanager
def join(device: str) -> Iterator[Ranks]:
    """The ranks that torchrun started, together while this lasts; one where it started none.

    Each rank on GPUs has the one of its number on its machine. The first rank to fail raises its
    error; the others end without a word, with status 2.
    """
    ranks = _setting("WORLD_SIZE", default=1, least=1)
    if ranks == 1:
        yield Ranks(device=device)
        return
    if "RANK" not in os.environ:
        raise InputError(f"WORLD_SIZE is {ranks:,} but RANK is not set; start ranks with torchrun.")
    rank, local = _setting("RANK"), _setting("LOCAL_RANK")
    store, _, _ = next(rendezvous("env://", timeout=PATIENCE))
    # torchrun may keep its store when it starts ranks again: what was there is of ranks that ended.
    store = PrefixStore(f"hmmlm/{restarts()}", store)
    try:
        # Small things go by the CPU: a rank that waits there for rank 0 keeps no GPU busy.
        backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
        dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=PATIENCE)
        yield Ranks(rank, ranks, own_device(device, local))
    except BaseException as error:
        # The group is not destroyed: that would wait for ranks that wait for this one.
        if not _is_first_to_fail(store):
            # torchrun ends all ranks when one ends, also one that is about to tell why.
            time.sleep(2.0)
            raise SystemExit(2) from None
        if _is_lost_connection(error):
            reason = re.sub(r"^\[.*?\] |\. .*", "", str(error).partition("\n")[0])
            raise InputError(
                f"Rank {rank} lost another rank, which ended or cannot be reached any more "
                f"({reason}); torchrun's report says how it ended."
            ) from error
        raise
    # gloo's threads need the interpreter to drop what they sent, and abort if it is ending.
    time.sleep(0.1)
    dist.destroy_process_group()


def restarts() -> int:
    """How often torchrun has started the ranks again, after one had failed."""
    return _setting("TORCHELASTIC_RESTART_COUNT")


def _setting(name: str, *, default: int = 0, least: int = 0) -> int:
    """A whole number of the environment."""
    given = os.environ.get(name, str(default))
    if not re.fullmatch(r"[0-9]{1,9}", given) or int(given) < least:
        raise InputError(
            f"{name} is {given!r} but must be a whole number of at least {least}; start ranks with "
            f"torchrun, or unset it."
        )
    return int(given)


def own_device(device: str, local: int) -> str:
    """The device of the rank with a number on its machine, made the current one."""
    if device == "cpu":
        return device
    if device != "cuda":
        raise InputError(
            f"The device is {device} but several ranks would share it; say cuda, and each rank of "
            f"a machine has a GPU of its own."
        )
    if local >= torch.cuda.device_count():
        raise InputError(
            f"There are more than {counted(local, 'rank')} on this machine but torch finds "
            f"{counted(torch.cuda.device_count(), 'GPU')} here; give torchrun --nproc-per-node "
            f"{torch.cuda.device_count()}."
        )
    torch.cuda.set_device(local)
    return f"cuda:{local}"


def _is_first_to_fail(store: Any) -> bool:
    try:
        return store.add("failed", 1) == 1
    except dist.DistError:  # whoever held the store has failed before
        return False


def _is_lost_connection(error: BaseException) -> bool:
    # gloo raises RuntimeError itself.
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and "gloo" in str(error)
    )
