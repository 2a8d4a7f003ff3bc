"""Replaces methods of another package's classes, and restores them."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import metadata
from typing import Any, NamedTuple, TypeVar

from .._options import Precision, require_precision
from ..torch import _layer_pass as passes
from ..torch._eager import watched
from ..torch._replacements import Applied, Replacements
from . import _boltz, _esm, _esmc, _openfold, _protenix


class Method(NamedTuple):
    """A method that a patch replaces, and what polyhead knows about it."""

    module: str
    owner: str
    name: str
    parameters: tuple[str, ...]  # the first parameters that the method must have
    known: tuple[str, ...]  # further parameters that the method may have
    replacement: Callable[..., Any]  # the replacement; it is called with the package's own method, the precision of the patch, and the method's arguments
    helpers: tuple[str, ...] = ()  # methods of the class that the package's own method calls, but the replacement does not
    parts: tuple[str, ...] = ()  # names of modules, parameters and buffers that the replacement calls or reads
    bypassed: Mapping[str, str] = {}  # name -> class of modules that only the package's own method calls; the replacement computes their results or leaves them out

    def is_known(self, owner: type, module: Any) -> bool:
        """Whether the replacement would compute the same as the module's own method. It would if the helper methods are those of the patched class, if the
        module has no unknown parts, and if the modules that polyhead does not call have no hooks and no replaced methods."""
        own = module.__dict__
        for name in self.helpers:
            helper = getattr(type(module), name, None)
            if name in own or helper is not None and (_name(helper) != f"{_name(owner)}.{name}" or hasattr(helper, "__wrapped__")):
                return False
        for kind in ("_modules", "_parameters", "_buffers"):
            if any(name not in self.parts and name not in self.bypassed for name in own.get(kind, ())):
                return False
        parts = [(own["_modules"].get(name), kind) for name, kind in self.bypassed.items()]
        return not any(part is not None and (_name(type(part)) != kind or passes.has_hooks(part)) for part, kind in parts)


def _name(of: Any) -> str:
    """The full name of a class or function: its module and its qualified name."""
    return f"{getattr(of, '__module__', '')}.{getattr(of, '__qualname__', '')}"


def _installed(distribution: str) -> str:
    """The version of an installed distribution, or an empty text."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


class _Package:
    """The methods of a package that patches replace, and the applied patches of this package."""

    def __init__(
        self, name: str, imported: tuple[str, ...], distributions: tuple[str, ...], methods: tuple[Method, ...], *, namesake: tuple[str, str] = ("", ""), hint: str = ""
    ) -> None:
        """namesake: another distribution with the same import name, and the function of polyhead.patch for that distribution. hint: advice for the case that
        the package cannot be imported."""
        self.name, self.imported, self.distributions, self.methods, self.namesake, self.hint = name, imported, distributions, methods, namesake, hint
        self.precision: Precision = "native"  # precision of the applied patches
        self.replacements = Replacements()

    @property
    def patches(self) -> int:
        """The number of applied patches."""
        return self.replacements.users

    def apply(self, precision: Precision) -> None:
        if self.patches > 0 and precision != self.precision:
            raise ValueError(
                f"polyhead.patch.{self.name}: precision is {precision!r}, and a patch with {self.precision!r} is applied; give that precision, or undo the other patch first"
            )
        self.replacements.apply(lambda: [(owner, method.name, own, self._replacement(owner, own, method)) for owner, method, own in self._found()])
        self.precision = precision

    def _replacement(self, owner: type, own: Callable[..., Any], method: Method) -> Callable[..., Any]:
        package = self

        @functools.wraps(own)
        def replaced(self: Any, *arguments: Any, **keywords: Any) -> Any:
            # Use the replacement only if no compiler, tracer, transform or dispatch mode is active.
            ours = package.patches and not watched() and method.is_known(owner, self)
            return method.replacement(own, package.precision, self, *arguments, **keywords) if ours else own(self, *arguments, **keywords)

        return replaced

    def _found(self) -> Iterable[tuple[type, Method, Callable[..., Any]]]:
        """Finds the methods to replace, each with its class. All methods are checked before the first one is replaced."""
        where = f"polyhead.patch.{self.name}"
        found, missing = [], []
        for package in self.imported:
            try:
                importlib.import_module(package)
            except Exception as error:
                if not isinstance(error, ModuleNotFoundError) or error.name != package:
                    raise ImportError(f"{where}: {package} is installed, and cannot be imported: {error}{self.hint}") from error
                missing.append(package)
                continue
            found += [self._of(where, package, method) for method in self.methods if method.module.split(".")[0] == package]
        if len(missing) == len(self.imported):
            raise ImportError(f"{where}: {' or '.join(missing)} is not installed ({' or '.join(self.distributions)})")
        return found

    def _of(self, where: str, package: str, method: Method) -> tuple[type, Method, Callable[..., Any]]:
        named = f"{method.module}.{method.owner}.{method.name}"
        unknown = f"{where}: {self._version(package)} has no {named}; polyhead does not know this version"
        try:
            module = importlib.import_module(method.module)
        except Exception as error:
            if not isinstance(error, ModuleNotFoundError) or not f"{method.module}.".startswith(f"{error.name}."):
                raise ImportError(f"{where}: {method.module} cannot be imported: {error}{self.hint}") from error
            distribution, function = self.namesake
            if distribution and (version := _installed(distribution)):
                raise ImportError(f"{where}: {package} is {distribution} {version}, for which there is polyhead.patch.{function}()") from error
            raise NotImplementedError(unknown) from error
        try:
            owner = getattr(module, method.owner)
            own = owner.__dict__[method.name]
        except (AttributeError, KeyError) as error:
            raise NotImplementedError(unknown) from error
        given = tuple(inspect.signature(own).parameters)[1:]
        required = method.parameters
        if given[: len(required)] != required or set(given[len(required) :]) - set(method.known):
            raise NotImplementedError(
                f"{where}: {named} of {self._version(package)} takes ({', '.join(given)}), and polyhead knows ({', '.join(required + method.known)}); "
                f"polyhead does not know this version"
            )
        return owner, method, own

    def _version(self, package: str) -> str:
        for distribution in self.distributions:
            if version := _installed(distribution):
                return f"{distribution} {version}"
        return package


class Patch(Applied):
    """A patch of a package. The constructor applies the patch. A patch changes the package's classes, so it affects every thread and every model of the
    process.

    Several patches of a package may be applied at the same time if they have the same precision; the package's own methods are restored when the last patch is
    undone. The end of a ``with`` block undoes the patch, also after an exception; another ``with`` block of the same object applies the patch again.
    """

    _kind = "patch"
    _made_by = "the function of polyhead.patch"

    def __init__(self, package: _Package, precision: Precision = "native") -> None:
        require_precision(f"polyhead.patch.{package.name}", precision)
        super().__init__(package.replacements)
        self._package, self._precision = package, precision
        self._apply()

    def _begin(self) -> None:
        self._package.apply(self._precision)

    def __repr__(self) -> str:
        return f"<polyhead.patch.{self._package.name}: {'applied' if self.applied else 'undone'}>"


def _methods(*rows: tuple[Any, ...]) -> tuple[Method, ...]:
    return tuple(Method(*row) for row in rows)


_BOLTZ = _Package("boltz", ("boltz",), ("boltz",), _methods(*_boltz.METHODS))
_ESM = _Package("esm", ("esm",), ("fair-esm",), _methods(*_esm.METHODS), namesake=("esm", "esmc"))
_ESMC = _Package("esmc", ("esm",), ("esm",), _methods(*_esmc.METHODS), namesake=("fair-esm", "esm"))
_PROTENIX = _Package(
    "protenix", ("protenix",), ("protenix",), _methods(*_protenix.METHODS), hint="; without CUDA, protenix imports only with the environment variable LAYERNORM_TYPE=torch"
)
_OPENFOLD = _Package("openfold", ("openfold", "openfold3"), ("openfold", "openfold3"), _methods(*_openfold.METHODS))


# The end of the docstring of every function below.
_EVERY_PATCH = """

The function changes the package's classes at once; the `Patch` undoes that. The package's own code still runs calls on other devices and under torch.compile, tracing
or torch.func, and the few calls that docs/folding.md lists.

Args:
    precision: precision of bfloat16 products of the attention, ``"native"`` or ``"exact"``, as in `polyhead.sdpa`.

Returns:
    The applied patch.

Raises:
    ValueError: another precision than that of an applied patch of the package, or an unknown word.
    ImportError: the package is not installed, or cannot be imported.
    NotImplementedError: polyhead does not know the methods of the installed version.
"""


_Function = TypeVar("_Function", bound=Callable[..., Patch])


def _described(function: _Function) -> _Function:
    """Appends the text that all patches share (_EVERY_PATCH) to the docstring of a patch function."""
    function.__doc__ = inspect.cleandoc(function.__doc__ or "") + _EVERY_PATCH
    return function


@_described
def boltz(*, precision: Precision = "native") -> Patch:
    """Makes polyhead compute the attention of boltz (Boltz-1, Boltz-2): triangle attention and attention with a pair bias."""
    return Patch(_BOLTZ, precision)


@_described
def esm(*, precision: Precision = "native") -> Patch:
    """Makes polyhead compute the attention of fair-esm: of ESM-1, ESM-1b, ESM-1v, ESM-2 and ESM-IF1, and the column attention of the MSA Transformer. Attention weights
    (contacts) are supported.
    """
    return Patch(_ESM, precision)


@_described
def openfold(*, precision: Precision = "native") -> Patch:
    """Makes polyhead compute the attention of openfold and openfold3, whichever is installed: gated attention with biases, and global attention."""
    return Patch(_OPENFOLD, precision)


@_described
def esmc(*, precision: Precision = "native") -> Patch:
    """Makes polyhead compute the attention of ESM-C and ESM-3 in EvolutionaryScale's package esm, a package with the same name as fair-esm's, which cannot be
    installed beside it."""
    return Patch(_ESMC, precision)


@_described
def protenix(*, precision: Precision = "native") -> Patch:
    """Makes polyhead compute the attention of protenix: triangle attention and attention of tokens with a pair bias. On a machine without CUDA, protenix imports only with
    the environment variable LAYERNORM_TYPE=torch.
    """
    return Patch(_PROTENIX, precision)
