"""The device that somebody names, if torch has it here."""

import torch

from hmmlm.errors import InputError, counted


def find_device(given: str | torch.device, *, name: str = "device") -> torch.device:
    """The device to run on; auto is a GPU if there is one. Messages call it `name`."""
    has_gpu = torch.cuda.is_available()
    if given == "auto":
        return torch.device("cuda" if has_gpu else "cpu")
    try:
        place = torch.device(given)
        if place.type != "cuda":
            torch.empty(0, device=place)
    except (RuntimeError, TypeError, AssertionError, ImportError):
        raise InputError(
            f"{name} is {given!r} but must be auto, or one that torch has here, such as cpu, cuda "
            f"or cuda:1."
        ) from None
    count = torch.cuda.device_count() if has_gpu else 0
    if place.type == "cuda" and (place.index or 0) >= count:
        raise InputError(
            f"{name} is {given} but torch finds {counted(count, 'GPU')} here; use {name} cpu."
        )
    return place
