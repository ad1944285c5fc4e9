"""Tables of settings: read from TOML, changed one by one, and taken apart into dataclasses."""

import dataclasses
import difflib
import sys
import tomllib
import types
import typing
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from hmmlm.errors import InputError

TABLES = ("data", "model", "train")


def read_config(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not UTF-8 text; give a TOML file.") from None
    except (ValueError, RecursionError) as error:  # also of numbers or lists too long for it
        raise InputError(f"{path} is not TOML: {error}.") from None


def override(tables: Mapping[str, Any], changes: Iterable[str]) -> dict[str, Any]:
    """The tables with changes such as "train.learning_rate=0.003"."""
    merged: dict[str, Any] = {}
    for name, table in tables.items():
        if not isinstance(table, Mapping) and name not in TABLES:
            raise InputError(
                f"{name} stands outside of the tables; put it under [data], [model] or [train]."
            )
        check_table(name, table)
        merged[name] = dict(table)
    for change in changes:
        if len(change.splitlines()) > 1 or change.endswith(("\n", "\r")):
            raise InputError(f"{change!r} has more than one line; give each setting on its own.")
        name, equals, text = change.partition("=")
        table, dot, key = name.strip().partition(".")
        if not equals or not dot or not key:
            raise InputError(
                f"{change!r} is not a setting; write table.key=value, such as train.epochs=20."
            )
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except (ValueError, RecursionError):
            value = text.strip()  # a word without quotes
        merged.setdefault(table, {})[key] = value
    return merged


def check_table(name: str, table: Any) -> None:
    """Refuses what stands in the place of a table."""
    if not isinstance(table, Mapping):
        raise InputError(f"{name} is {table!r} but must be a table: write [{name}].")


def take(cls: Any, table: Mapping[str, Any], where: str, known: list[Any]) -> Any:
    """The settings of a class in a table whose keys may belong to any of the known classes."""
    names = [field.name for other in known for field in dataclasses.fields(other)]
    hints = typing.get_type_hints(cls)
    values = {}
    for key, value in table.items():
        if key not in names:
            raise InputError(f"There is no setting {where}.{key}." + nearest(key, names))
        if key in hints:
            values[key] = _checked(f"{where}.{key}", value, hints[key])
    return cls(**values)


def _checked(name: str, value: Any, hint: Any) -> Any:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    for kind in kinds:
        if kind is float and type(value) in (int, float):
            if not abs(value) <= sys.float_info.max:
                raise InputError(f"{name} is {value} but must be a finite number.")
            return float(value)
        if type(value) is kind:
            if kind is int and value >= 1 << 63:  # as options of the command line
                raise InputError(f"{name} is {value} but must be at most 2^63 - 1.")
            return value
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    wanted = next(words[kind] for kind in kinds if kind in words)
    raise InputError(f"{name} is {value!r} but must be {wanted}.")


def nearest(name: str, known: Collection[str], otherwise: str | None = None) -> str:
    """What may have been meant by a name that is not known, or what is known, or `otherwise`."""
    initials = {"".join(part[0] for part in key.split("_")): key for key in known}
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    if not close and name in initials:  # such as lr
        close = [initials[name]]
    if close:
        return f" Did you mean {close[0]}?"
    return f" Known are {', '.join(sorted(set(known)))}." if otherwise is None else otherwise
