"""The base class of all models. It has the parameters, and makes copies and pickles of a model; a pickle holds the files of the model's folder."""

from __future__ import annotations

import copy
import os
import tempfile
from typing import Any

from .. import _core
from .._options import NumPyArray


class Model:
    """The base class of models. ``config`` is a dict of the model's sizes by name; its entry "model" is the kind of model."""

    def __init__(self, config: dict[str, Any], model: Any) -> None:
        self.config = config
        self._model = model

    @property
    def parameters(self) -> dict[str, NumPyArray]:
        """Copies of all parameters by name."""
        return self._model.parameters()  # type: ignore[no-any-return]

    # A pickle holds the files of the model's folder.
    def __getstate__(self) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "model")
            self._model.save(path)
            files = {}
            for name in sorted(os.listdir(path)):
                with open(os.path.join(path, name), "rb") as file:
                    files[name] = file.read()
        return self.__dict__ | {"_model": files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        with tempfile.TemporaryDirectory() as folder:
            for name, contents in state["_model"].items():
                with open(os.path.join(folder, os.path.basename(name)), "wb") as file:
                    file.write(contents)
            _, _, self._model = _core.load_model(folder, False, ())

    def __copy__(self) -> Model:
        return self._with(self.__dict__)

    def __deepcopy__(self, memo: dict[int, Any]) -> Model:
        return self._with({name: value if name == "_model" else copy.deepcopy(value, memo) for name, value in self.__dict__.items()})

    def _with(self, attributes: dict[str, Any]) -> Model:
        """A copy of the model with these attributes. Copies share the parameters, which never change."""
        other = type(self).__new__(type(self))
        other.__dict__.update(attributes)
        return other

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in self.config.items() if name != 'model')})"
