"""The base classes of models that are loaded from folders written by transformers."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from .._options import Array
from ._base import Model


class SavedByTransformers(Model):
    """A model from a folder that transformers wrote. A pickle holds only the folder's path, so unpickling reads the folder again."""

    _source: str | bytes | os.PathLike[Any]
    _ignored_keys: tuple[str, ...]
    _side: str | None = None  # for an encoder of an `ImageTextModel`: the name of that model's attribute, "vision" or "text"
    _load_side: ClassVar[Callable[..., Any]]  # a function that loads a model again; `polyhead.models` sets it, because it knows all classes

    def __reduce__(self) -> tuple[Any, ...]:
        return self._load_side, (self._source, self._ignored_keys, self._side)

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        return self._with(self.__dict__)

    def __repr__(self) -> str:
        name = type(self).__name__
        return super().__repr__().replace(f"{name}(", f"{name}(model={self.config.get('model')!r}, ", 1)


def ids_of(ids: Array | Sequence[int]) -> Any:
    if not isinstance(ids, (list, tuple)):
        return ids
    import numpy

    return numpy.asarray(ids, numpy.int64)


class WritesTokens(SavedByTransformers):
    """A model that generates tokens."""

    def _answer_options(self, method: str, given: dict[str, Any]) -> dict[str, Any]:
        """Selects the options among the arguments of `method`. Warns, once for each model, about rules of the folder's configuration that polyhead ignores."""
        rules = self.__dict__.setdefault("_unsaid_rules", self._model.rules_not_followed)
        if rules:
            self._unsaid_rules: list[str] = []
            warnings.warn(f"{type(self).__name__}.{method}: each token is the likeliest one, or drawn; polyhead ignores these rules of generation_config.json (or of config.json, if there is no generation_config.json): {', '.join(rules)}", stacklevel=3)
        return {name: value for name, value in given.items() if name not in ("self", "ids", "source", "prompt", "__class__")}
