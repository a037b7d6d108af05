"""Untrusted JSON, parsed into typed records. A mismatch raises one clear error.

A record is a msgspec struct or a dataclass, whose types define the valid input. JSON has no NaN or infinities, so the
strings "nan", "inf" and "-inf" are accepted as numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from pbt_rl.errors import ConfigError

MOST = 2**62
"""Upper limit of counts of frames, steps and generations."""
LARGEST_VALUE = 1e30
"""Upper limit of the magnitude of a hyper or shaping value. It keeps draws and fits from overflowing."""
DEEPEST = 8
"""Maximum nesting of options; a config has three levels."""

NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError)
"""Errors raised by decoding text that is not JSON."""

Whole = Annotated[int, Meta(ge=0, lt=MOST)]
Value = Annotated[float, Meta(ge=-LARGEST_VALUE, le=LARGEST_VALUE)]
"""A finite number."""


def decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    """Return a JSON decoder for one type. Use it within `reading`."""
    return msgspec.json.Decoder(kind, strict=False)


def converted(value: object, kind: Any, place: str, *, strict: bool = False) -> Any:
    """Convert JSON types to a record. place: their origin, for the ConfigError.

    strict: reject strings as numbers.
    """
    with reading(place):
        return msgspec.convert(value, kind, strict=strict)


@contextmanager
def reading(place: str) -> Iterator[None]:
    """Raise ConfigError, with the place, for JSON that does not match its type.

    Errors for text that is not JSON pass through: one of `NOT_JSON`, which are ValueErrors.
    """
    try:
        yield
    except msgspec.ValidationError as error:
        raise ConfigError(f"{place} cannot be used: {error}: is it damaged, or of another version?") from None
    except RecursionError:
        raise ConfigError(f"{place} cannot be used: it is nested too deeply") from None


def check_depth(config: object, depth: int = DEEPEST) -> None:
    """Raise ValueError for options nested too deeply to be displayed."""
    inner = config.values() if isinstance(config, Mapping) else config if isinstance(config, list) else ()
    if inner and depth == 0:
        raise ValueError(f"options are nested more than {DEEPEST} levels deep")
    for value in inner:
        check_depth(value, depth - 1)


def finite(value: float | None) -> float | None:
    """Return the number, or None if it is missing, not finite, or too large to sum."""
    return value if value is not None and math.isfinite(value) and abs(value) <= LARGEST_VALUE else None
