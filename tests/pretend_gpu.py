"""A GPU of pretence: tensors that say `cuda` and are computed on the CPU, for machines without one.

Within `pretend_gpu()` torch has one CUDA device. Tensors of two devices that meet are refused as
CUDA refuses them, and so is a generator of the other device; every wait for the device is counted
(`item`, `tolist`, `cpu`, `nonzero`, masks as indices, ...), by the line of hmmlm that waits.
Kernels and CUDA graphs are not there, and no time is measured.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_map_only

import hmmlm
from hmmlm.ops.kernels import lacking

aten = torch.ops.aten

WAITS = {
    aten._local_scalar_dense.default: 1,
    aten.equal.default: 1,
    aten.nonzero.default: 1,
    aten.masked_select.default: 1,
    aten._unique2.default: 1,
    aten.unique_dim.default: 1,
    aten.unique_consecutive.default: 1,
    aten.bincount.default: 1,
    aten.multinomial.default: 2,  # it looks at its weights first
}
"""Operations that the CPU waits for, whatever they are given."""

MAY_MIX = {aten.copy_.default, aten._to_copy.default, aten._pack_padded_sequence.default}
INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
}
NAMES = ("meta", "cuda")  # within `backward` torch does not ask `_Names`
SOURCE = str(Path(hmmlm.__file__).parent)


class OnDevice(Tensor):
    """A tensor that says it is on a GPU, and the tensor of the CPU that it is."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> "OnDevice":
        made = Tensor._make_wrapper_subclass(  # pyright: ignore[reportAttributeAccessIssue]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device="meta",  # to autograd, which asks a GPU for its streams
        )
        made.held = held
        return made

    def __init__(self, held: Tensor) -> None:
        pass

    def __repr__(self) -> str:  # pyright: ignore[reportIncompatibleMethodOverride]
        return f"OnDevice({self.held!r})"

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        return torch.device("cuda", 0)

    is_cuda = property(lambda self: True)
    is_cpu = is_meta = property(lambda self: False)

    def get_device(self) -> int:
        return 0

    def new_tensor(self, data: Any, dtype: torch.dtype | None = None, **more: Any) -> Tensor:
        return torch.tensor(data, dtype=dtype, **{"device": self.device, **more})

    def tolist(self) -> Any:
        _current().waited("tolist")
        return self.held.tolist()

    def numpy(self, *args: Any, **more: Any) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy; use Tensor.cpu() first")

    __array__ = numpy

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _current().run(op, args, kwargs or {})


class OnDeviceGenerator(torch.Generator):
    """A generator of the GPU: numbers of the CPU's, refused by tensors of the CPU."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda", 0)

    def clone_state(self) -> "OnDeviceGenerator":
        return _current().generator(state=self.get_state())


class Gpu(TorchDispatchMode):
    """What was waited for, and copied to the device: where, and how often."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()
        self.generators: dict[int, OnDeviceGenerator] = {}

    def generator(self, state: Tensor | None = None) -> OnDeviceGenerator:
        made = OnDeviceGenerator()
        self.generators[made._cdata] = made
        if state is not None:
            made.set_state(state)
        return made

    def clear(self) -> None:
        self.waits.clear()
        self.copies.clear()

    def waited(self, what: str, times: int = 1) -> None:
        self.waits[f"{where()}: {what}"] += times

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # else torch would import its compiler, which takes seconds

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(op, args, kwargs or {})

    def run(self, op: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """An operation on the CPU; its answers are on the device that they would be on."""
        leaves = list(_leaves((args, kwargs)))
        given = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        ours = [tensor for tensor in given if isinstance(tensor, OnDevice)]
        to_device = bool(ours)
        if op is aten._pin_memory.default:
            return args[0].clone()
        if op is aten.is_pinned.default:
            return False
        if kwargs.get("device") is not None:
            to_device = torch.device(kwargs["device"]).type in NAMES
            kwargs = {**kwargs, "device": torch.device("cpu")}
        if kwargs.get("pin_memory"):
            kwargs = {**kwargs, "pin_memory": False}
        if ours and len(ours) < len(given):
            self._mixed(op, args, given)
        self._generators(leaves, to_device)
        if (op is aten._to_copy.default and bool(ours) != to_device) or op is aten.copy_.default:
            self._copied(op, args, kwargs, to_device)
        elif ours:
            self._waits(op, args, kwargs)
        if not (ours or to_device):
            return op(*args, **kwargs)
        plain, more = tree_map_only(OnDevice, lambda tensor: tensor.held, (args, kwargs))
        answers = op(*plain, **more)
        if not to_device:
            return answers
        answers = tree_map_only(Tensor, OnDevice, answers)
        return return_and_correct_aliasing(op, args, kwargs, answers) if ours else answers

    def _mixed(self, op: Any, args: Any, given: list[Tensor]) -> None:
        away = [tensor for tensor in given if not isinstance(tensor, OnDevice)]
        if op in MAY_MIX:
            return
        if op in INDEXING and isinstance(args[0], OnDevice):
            indices = [index for index in args[1] if index is not None]
            if any(not isinstance(index, OnDevice) for index in indices):
                self.waited("an index on the CPU")
            away = [t for t in away if not any(t is index for index in indices)]
        takes_numbers = torch.Tag.pointwise in op.tags or op in INDEXING or "fill" in str(op)
        if any(tensor.dim() > 0 or not takes_numbers for tensor in away):
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, "
                f"cuda:0 and cpu! ({op}, {[(str(t.device), tuple(t.shape)) for t in given]})"
            )

    def _generators(self, leaves: list[Any], on_device: bool) -> None:
        for leaf in leaves:
            if isinstance(leaf, torch.Generator):
                is_ours = leaf._cdata in self.generators
                if is_ours != on_device:
                    wanted, found = ("cuda", "cpu") if on_device else ("cpu", "cuda")
                    raise RuntimeError(
                        f"Expected a '{wanted}' device type for generator but found '{found}'"
                    )

    def _copied(self, op: Any, args: Any, kwargs: Any, to_device: bool) -> None:
        if op is aten.copy_.default:
            source, to_device = args[1], isinstance(args[0], OnDevice)
            if isinstance(source, OnDevice) == to_device:
                return
            behind = len(args) > 2 and args[2]
        else:
            behind = kwargs.get("non_blocking")
        if to_device:
            self.copies[where()] += 1
        elif not behind:
            self.waited("cpu")

    def _waits(self, op: Any, args: Any, kwargs: Any) -> None:
        name = str(op).removeprefix("aten.")
        is_unsized = op is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None
        if op in WAITS:
            self.waited(name, WAITS[op])
        elif is_unsized or name.startswith(("_linalg_eigh", "_linalg_svd", "_linalg_check")):
            self.waited(name)
        elif op in INDEXING:
            masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
            # One number at the places of a mask is filled in, which needs no list of the places.
            if masks and not (len(args) > 2 and args[2].numel() == 1):
                self.waited(f"{name} by a mask")


def _leaves(value: Any) -> Iterator[Any]:
    """What an operation was given, out of its lists."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


def where() -> str:
    """The line of hmmlm that is running, or else the first that is not torch's."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(SOURCE):
            return f"{name[len(SOURCE) + 1 :]}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


_gpus: list[Gpu] = []


def _current() -> Gpu:
    return _gpus[-1] if _gpus else Gpu()


class _Generators(type):
    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, _Generator)

    def __call__(cls, device: Any = "cpu") -> torch.Generator:
        on_gpu = torch.device(device).type == "cuda"
        return _current().generator() if on_gpu else _Generator(device=device)


_Generator = torch.Generator


class AnyGenerator(metaclass=_Generators):
    """What `torch.Generator` is within `pretend_gpu`."""


class _Names(TorchFunctionMode):
    """Devices called cuda are to torch those called meta, which it has on every machine."""

    def __torch_function__(self, run: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if run is torch.device:
            return run(*args, **kwargs)
        if run is Tensor.cuda:
            return args[0].to("meta")
        if run in (Tensor.__getitem__, Tensor.__setitem__) and isinstance(args[0], OnDevice):
            several = isinstance(args[1], tuple)
            index = [_sent(part) for part in (args[1] if several else (args[1],))]
            args = (args[0], tuple(index) if several else index[0], *args[2:])
        if "device" in kwargs:
            kwargs["device"] = _named(kwargs["device"])
        if run in (torch.tensor, torch.as_tensor, torch.asarray):
            place = kwargs.pop("device", None)
            made = run(*args, **kwargs)
            return made if place is None else made.to(place)
        return run(*map(_named, args), **kwargs)


def _sent(index: Any) -> Any:
    """A list as an index is sent to the device."""
    return torch.tensor(index).to("meta") if isinstance(index, list) else index


def _named(value: Any) -> Any:
    is_cuda = isinstance(value, str) and value.startswith("cuda")
    is_cuda = is_cuda or (isinstance(value, torch.device) and value.type == "cuda")
    return torch.device("meta") if is_cuda else value


@contextmanager
def pretend_gpu() -> Iterator[Gpu]:
    """Within it torch has a GPU, of pretence."""
    import torch._dynamo  # by optimisers, which would then find what is patched here

    gpu = Gpu()
    properties = SimpleNamespace(total_memory=1 << 34, multi_processor_count=132, name="pretence")
    nothing = lambda *args, **more: None  # noqa: E731
    cuda = {
        "_lazy_init": nothing,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": nothing,
        "synchronize": nothing,
        "graph_pool_handle": nothing,
        "current_stream": nothing,
        "set_stream": nothing,
        "empty_cache": nothing,
        "manual_seed": nothing,
        "manual_seed_all": nothing,
        "reset_peak_memory_stats": nothing,
        "get_device_name": lambda *args: "pretence",
        "get_device_capability": lambda *args: (7, 0),  # too old for kernels
        "is_bf16_supported": lambda *args, **more: True,
        "get_device_properties": lambda *args: properties,
        "mem_get_info": lambda *args: (1 << 34, 1 << 34),
        "max_memory_allocated": lambda *args: 0,
        "memory_allocated": lambda *args: 0,
        "get_rng_state": lambda *args: torch.get_rng_state(),
        "set_rng_state": lambda state, *args: torch.set_rng_state(state),
    }
    with ExitStack() as stack:
        for name, value in cuda.items():
            stack.enter_context(patch.object(torch.cuda, name, value))
        lacking.cache_clear()  # what it said of another GPU, or will say of this one
        stack.callback(lacking.cache_clear)
        stack.enter_context(patch.object(torch, "Generator", AnyGenerator))
        stack.enter_context(patch.dict("os.environ", TRITON_INTERPRET="0"))
        _gpus.append(gpu)
        stack.callback(_gpus.pop)
        stack.enter_context(gpu)
        stack.enter_context(_Names())
        yield gpu
