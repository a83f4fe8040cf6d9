"""The durable state of the controller: about a kilobyte. Records are created, never replaced, so two controllers cannot
both write the next one."""

from __future__ import annotations

import json
from dataclasses import dataclass

from agileml.core.protocol.view import INITIAL, CutId, View


@dataclass(frozen=True)
class Record:
    """One durable state. `number` grows by one with each write; a controller whose next number is taken has been
    replaced."""

    number: int
    controller: str
    claimed: int = 0  # the highest epoch that any message may carry
    view: View | None = None
    committed: CutId = INITIAL
    plan_fired: tuple[int, ...] = ()  # indices of the plan's events, in the order in which they fired
    finished: bool = False
    thresholds: tuple[float, float] | None = None  # of the stages, where measurements moved them

    def to_text(self) -> str:
        """One JSON object; `from_text` reads it back."""
        return json.dumps(
            {
                "number": self.number,
                "controller": self.controller,
                "claimed": self.claimed,
                "view": self.view.to_text() if self.view else None,
                "committed": [self.committed.clock, self.committed.epoch],
                "plan_fired": self.plan_fired,
                "finished": self.finished,
                "thresholds": self.thresholds,
            }
        )

    @classmethod
    def from_text(cls, text: str) -> Record:
        """Read what `to_text` wrote."""
        plain = json.loads(text)
        return cls(
            number=plain["number"],
            controller=plain["controller"],
            claimed=plain["claimed"],
            view=View.from_text(plain["view"]) if plain["view"] else None,
            committed=CutId(*plain["committed"]),
            plan_fired=tuple(plain["plan_fired"]),
            finished=plain["finished"],
            thresholds=tuple(plain["thresholds"]) if plain.get("thresholds") else None,
        )
