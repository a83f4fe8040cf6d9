"""A mutant: a function or method of the engine, replaced by one that breaks a rule of the protocol.

The target is named as an object (`Node.handle`), never as text: renaming it renames it here too, and a target that is
gone is an import error. A replacement is called with the original first and then with the caller's arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

OURS = ("agileml.", "straggler.")


@dataclass(frozen=True)
class Mutant:
    """One broken rule.

    mode: the mode of the model in which the rule matters. `caught_by`: the seed that caught it when it was last
    recorded, which is tried first. `safe`: why no run can tell, for the few where none can. `orderly`: the rule only
    saves repeats, so it shows on a network where nobody repeats anything.
    """

    replacement: Callable[..., Any]
    target: Any
    mode: str
    caught_by: int | None
    safe: str = ""
    orderly: bool = False

    @property
    def name(self) -> str:
        """The replacement's name, in words."""
        return self.replacement.__name__.replace("_", " ")

    @property
    def why(self) -> str:
        """What goes wrong without the rule."""
        return (self.replacement.__doc__ or "").strip()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The engine with this rule broken."""
        broken = _broken(self.replacement, self.target)
        places = list(_places(self.target))
        for owner, name in places:
            setattr(owner, name, broken)
        try:
            yield
        finally:
            for owner, name in places:
                setattr(owner, name, self.target)

    def is_misfit(self, error: BaseException) -> bool:
        """True when the replacement failed by itself, or could not be called: it does not fit the engine any more, so
        it proves nothing."""
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        own = self.replacement.__code__.co_filename, __file__
        is_here = trace is not None and trace.tb_frame.f_code.co_filename in own
        return is_here and isinstance(error, AttributeError | NameError | TypeError)


def replaces(
    target: Any, mode: str, caught_by: int | None = None, *, safe: str = "", orderly: bool = False
) -> Callable[[Callable[..., Any]], Mutant]:
    """Make a mutant of the decorated function: it stands in for `target`, a function, method or property."""
    assert list(_places(target)), target
    return lambda replacement: Mutant(replacement, target, mode, caught_by, safe, orderly)


def _broken(replacement: Callable[..., Any], target: Any) -> Any:
    original = target.fget if isinstance(target, property) else target

    @wraps(original)
    def broken(*arguments: Any, **named: Any) -> Any:
        return replacement(original, *arguments, **named)

    return property(broken) if isinstance(target, property) else broken


def _places(target: Any) -> Iterator[tuple[Any, str]]:
    """(owner, name) of a method in its class, or of a function in every module that has imported it."""
    function = target.fget if isinstance(target, property) else target
    owners, _, name = function.__qualname__.rpartition(".")
    if owners:
        owner: Any = sys.modules[function.__module__]
        for part in owners.split("."):
            owner = getattr(owner, part)
        assert vars(owner)[name] is target, f"{owner.__name__} inherits {name}: name the class that has it"
        yield owner, name
        return
    for module in [m for key, m in sys.modules.items() if key.startswith(OURS)]:
        yield from ((module, alias) for alias, value in vars(module).items() if value is target)
