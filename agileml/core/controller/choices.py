"""Choices that machines make from their own measurements, as events of the log."""

from __future__ import annotations

from agileml.core.protocol.messages import HelpDeclined, OverlapChosen, RemedyChosen, Replanned, SplitChosen
from agileml.events.run import HelpRefused, OverlapDecided, RemedyDecided, SplitDecided, UnitsPlanned

Choice = Replanned | RemedyChosen | HelpDeclined | OverlapChosen | SplitChosen
ChoiceEvent = UnitsPlanned | RemedyDecided | HelpRefused | OverlapDecided | SplitDecided


def event_of(sender: str, message: Choice) -> ChoiceEvent:
    """The event of a choice that a machine has told the controller."""
    match message:
        case Replanned():
            return UnitsPlanned(message.clock, dict(message.units), message.predicted_s, message.reason)
        case RemedyChosen():
            return RemedyDecided(message.clock, message.remedy, message.reason)
        case HelpDeclined():
            return HelpRefused(sender, message.reason)
        case OverlapChosen():
            return OverlapDecided(sender, message.clock, message.overlaps, message.reason)
        case SplitChosen():
            return SplitDecided(sender, message.clock, message.workers, message.threads, message.reason)
