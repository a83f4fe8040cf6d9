"""The loop as the user's code sees it: a loader that yields this machine's batches, an optimizer whose step ends one.

On a machine `step()` hands the gradients of the batch over and returns when there is another batch to compute: then the
parameters are those of that batch's clock. Each misuse is one sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from enum import Enum
from threading import Lock, get_ident
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.optim.swa_utils import AveragedModel
from torch.utils.hooks import RemovableHandle

from agileml.application import InputError
from agileml.apps.loop.as_prepared import OptimizerAsPrepared
from agileml.apps.loop.callers import loop_around
from agileml.apps.loop.prepared import Prepared
from agileml.apps.loop.script import Answer, BatchStepped, LoopReached, Script, Turn


class BatchState(Enum):
    """How far the present batch is."""

    NONE = "no batch"
    YIELDED = "yielded"
    BACKWARD = "has gradients"


class PassOverData:
    """The facts about its data that a loader has, as torch's DataLoader has them."""

    _prepared: Prepared

    def __len__(self) -> int:
        """Clocks of one pass over the data."""
        return self._prepared.clocks_per_pass

    @property
    def dataset(self) -> Any:
        """The training items."""
        return self._prepared.dataset

    @property
    def batch_size(self) -> int:
        """Items of a clock, over all machines together."""
        return self._prepared.batch_size


class Loop(PassOverData):
    """The batches of one machine, in its script's thread."""

    def __init__(self, prepared: Prepared, ask: Callable[[Answer], Turn]) -> None:
        """ask: hands an answer to the thread that computes and waits for the next turn."""
        self._prepared = prepared
        self._ask = ask
        self._turn: Turn | None = None
        self._state = BatchState.NONE
        self._loss = 0.0
        self._backwards = 0  # of this batch
        self._usual: int | None = None  # backwards of a batch, as far as is known
        self._is_by_pass = False
        self._scheduled = 0  # calls of the schedule's step() since the last batch, or in this pass
        self._is_whole = False  # the present pass was gone through from its first clock on
        self._is_unscheduled = False  # the pass before was, without a call of the schedule's step()
        self._batches = 0  # that are done
        # Whether the clock before took no step: a loop may see that, and leave the schedule's out.
        self._has_overflowed = False
        self._others = WeakKeyDictionary[
            torch.optim.Optimizer, int
        ]()  # the batch in which each was seen first
        self._thread = get_ident()
        self._optimizer = OptimizerAsPrepared(prepared)
        self._take_over()

    @property
    def clock(self) -> int:
        """The clock of the present batch."""
        return 0 if self._turn is None else self._turn.clock

    def evaluate_on(self, add: Callable[[Prepared], Prepared]) -> None:
        """Before the loop: `add` an evaluation to what was prepared."""
        if self._turn is not None:
            raise InputError("evaluate_on(): found it inside the loop, expected it before")
        self._prepared = add(self._prepared)

    def __iter__(self) -> Iterator[Any]:
        """The batches: of the present pass inside `passes`, else of all clocks to come."""
        # In the process that starts the run the loop has no batch, and all of the run is over behind it.
        if not self._is_by_pass and (where := loop_around()) is not None:
            raise InputError(
                f"loader: found its loop inside another one ({where}), expected `for number in trainer.passes(3):` "
                "around it"
            )
        return self._all()

    def _all(self) -> Iterator[Any]:
        if not self._is_by_pass and (where := loop_around()) is not None:
            raise InputError(
                f"loader: found next() in a loop ({where}), expected `for batch in loader:`: the process that starts "
                "the run gets no batch, and goes on behind the loop"
            )
        if self._state is BatchState.YIELDED:
            raise InputError(
                "loader: found a batch that was taken before the loop, as by next(iter(loader)), expected the loop "
                "alone; next(iter(DataLoader(dataset, 8))) shows a batch of the data set"
            )
        turn = self._next()
        number = turn.number
        if not self._is_by_batch:
            self._begin_pass(turn)
        # Where the run goes back to a cut of an earlier pass, the body must not take its batches for this pass's.
        while not self._is_by_pass or turn.number == number:
            self._state, self._loss, self._backwards = BatchState.YIELDED, 0.0, 0
            # The script may have drawn since its last step, as an evaluation's loader does; elsewhere it has not.
            turn.rewind()
            yield turn.batch
            turn = self._next()

    def _begin_pass(self, turn: Turn) -> None:
        has_schedule = self._prepared.schedule is not None
        if has_schedule and self._is_by_pass and self._is_unscheduled and not self._scheduled:
            raise InputError(
                f"schedule.step(): found no call between the passes {turn.number - 1} and {turn.number}, expected one "
                "for each pass: rates follow from the number of the pass (a schedule may keep the rate as it is for "
                "some passes, as SequentialLR with a ConstantLR does)"
            )
        self._scheduled, self._is_whole = 0, turn.clock % len(self) == 0

    def passes(self, count: int | None) -> Iterator[int]:
        """The numbers of the passes that there is work in: the clocks of the run decide, which `count` may have set.

        A machine that joins begins with the present one, and a run that goes back to a cut may go back to one before.
        """
        if (where := loop_around()) is not None:
            raise InputError(f"passes(): found it inside a loop ({where}), expected one loop over all passes")
        self._is_by_pass = True
        return self._numbers()

    def _numbers(self) -> Iterator[int]:
        while True:
            number = self._next().number
            yield number
            if self._turn is not None and self._turn.number == number:
                raise InputError(
                    f"passes(): found pass {number} left before it was over, expected a loop over the loader in each "
                    "pass that ends when the loader does"
                )

    def _next(self) -> Turn:
        if self._thread != get_ident():
            raise InputError(
                "loader: found another thread than the script's, expected the loop in the thread of prepare()"
            )
        if self._state is not BatchState.NONE:
            raise InputError(
                "loader: the batch before had no optimizer.step(), expected one step() in each pass of the loop (with "
                "micro_batch gradients of a large batch_size are added up)"
            )
        if self._turn is None:
            self._optimizer.check_at_loop()
            self._turn = self._ask(LoopReached(self._prepared))
            self._optimizer.show_rates(self._turn.factor)
        elif self._batches and self._is_by_batch and not self._scheduled and not self._has_overflowed:
            raise InputError(
                "schedule.step(): found no call after optimizer.step(), expected one for each batch, or "
                'prepare(..., schedule_every="pass")'
            )
        return self._turn

    def stepping(self, optimizer: torch.optim.Optimizer) -> None:
        """Called before a step of another optimizer: one that is made for a batch is the loop's own affair."""
        if self._turn is not None and self._others.setdefault(optimizer, self._batches) != self._batches:
            raise InputError(
                f"optimizer.step(): found a second optimizer ({type(optimizer).__name__}) that takes steps batch after "
                "batch, expected one model with one optimizer: what another one trains is each machine's own, and lost "
                "with it"
            )

    @property
    def is_in_batch(self) -> bool:
        """A batch was yielded and its step is to come: backward is of this batch."""
        return self._state is not BatchState.NONE

    # -- backward and step ------------------------------------------------------------------------------------

    def backward(self, loss: Tensor, original: Callable[[Tensor], None]) -> None:
        """Called in the place of loss.backward() in this thread, while a batch is out."""
        assert self._turn is not None
        self._backwards += 1
        self._loss += self._turn.backward(loss, original, self._backwards, self._usual)
        self._state = BatchState.BACKWARD
        if not math.isfinite(self._loss) and not self._turn.may_overflow:
            self._hand_over()  # the computing thread ends the run with a sentence

    def step(self, closure: Any = None) -> None:
        """Called in the place of optimizer.step()."""
        if closure is not None:
            raise InputError(
                "optimizer.step(): found a closure, expected none: a machine computes a batch once"
            )
        if self._turn is None or self._state is BatchState.NONE:
            raise InputError(
                "optimizer.step(): found no batch that waits for it, expected one step() for each batch"
            )
        if self._state is BatchState.YIELDED:
            raise InputError("optimizer.step(): found no gradient, expected loss.backward() before it")
        if (sentence := self._turn.changed()) is not None:
            raise InputError(sentence)
        # A GradScaler leaves a fused optimizer to divide by the scale, and says so by an attribute.
        if getattr(self._prepared.optimizer, "grad_scale", None) is not None:
            raise InputError(
                "optimizer.step(): found losses that a GradScaler has scaled, expected prepare(..., scaler=scaler): "
                "the machines that hold the parameters take the steps, and know no scale of the loop's"
            )
        self._optimizer.check_at_step(self._turn.factor)
        self._usual = max(self._usual or 0, self._backwards)
        self._hand_over()

    def _hand_over(self) -> None:
        self._state = BatchState.NONE
        self._batches += 1
        number, scale = None if self._turn is None else self._turn.number, self._scale()
        self._turn = self._ask(BatchStepped(self._loss))
        self._has_overflowed = self._scale() < scale
        if self._is_by_batch or self._turn.number != number:
            is_next = self._is_whole and self._turn.number - 1 == number
            self._is_unscheduled = is_next and not self._scheduled and not self._has_overflowed
            self._scheduled = 0
        self._optimizer.show_rates(self._turn.factor)

    # -- rates ------------------------------------------------------------------------------------------------

    def _take_over(self) -> None:
        optimizer = self._prepared.optimizer
        step = MethodType(lambda _, closure=None: self.step(closure), optimizer)
        optimizer.step = step
        if self._prepared.scaler is not None:
            pass_on(self._prepared.scaler, self._scale)
        if self._prepared.schedule is not None:
            schedule = self._prepared.schedule.schedule
            schedule.step = MethodType(lambda _, epoch=None: self._schedule(epoch), schedule)
            schedule.state_dict = MethodType(lambda _: self._schedule_state(), schedule)

    def _scale(self) -> float:
        return 1.0 if self._turn is None or self._turn.loss_scale is None else self._turn.loss_scale

    @property
    def _is_by_batch(self) -> bool:
        """The loop has a schedule, and calls its step() for each batch."""
        return self._prepared.schedule is not None and not self._prepared.per_pass

    def _schedule(self, epoch: Any) -> None:
        """Called in the place of schedule.step(epoch): the clock says how often that has been."""
        if epoch is not None:
            raise InputError(
                f"schedule.step(): found an epoch, {epoch}, expected none: rates follow from how often the schedule is "
                "stepped (where that is for each batch, T_0 and the like count batches)"
            )
        # A machine that joins may begin with a pass that begins with the call.
        if not self._batches and not (self._prepared.per_pass and self.clock):
            raise InputError(
                "schedule.step(): found it before the first optimizer.step(), expected it after each batch or pass"
            )
        self._scheduled += 1
        if self._scheduled > 1 and self._is_by_batch:
            raise InputError(
                "schedule.step(): found a second call for one batch, expected one for each batch"
            )
        if self._scheduled > 1 and len(self) > 1:
            raise InputError(
                'schedule.step(): found a second call in one pass, expected one for each, or schedule_every="batch"'
            )

    def _schedule_state(self) -> Any:
        """Called in the place of schedule.state_dict()."""
        assert self._prepared.schedule is not None
        return self._prepared.schedule.state(0 if self._turn is None else self._turn.steps)


def pass_on(scaler: Any, present: Callable[[], float]) -> None:
    """Let torch's scaler leave scaling to the clock: losses and gradients stay as they are, `step` is the optimizer's.

    present: the scale of the present clock.
    """
    scaler.scale = lambda outputs: outputs
    scaler.unscale_ = lambda optimizer: None
    scaler.step = lambda optimizer, *arguments, **named: optimizer.step(*arguments, **named)
    scaler.update = lambda new_scale=None: None
    scaler.get_scale = present


# -- what the user's code calls of torch ----------------------------------------------------------------------

_loops: dict[int, Loop] = {}  # by thread
_turnover = Lock()  # of one loop ends while the next begins
_original = torch.autograd.backward
_update_average = AveragedModel.update_parameters
_hooks: list[RemovableHandle] = []


def loop_of(script: Script, prepared: Prepared) -> Loop:
    """The loop of a script, in its thread; until the script ends, backward in this thread goes through it."""
    if get_ident() in _loops:
        raise InputError("prepare(): found a second call, expected one model with one optimizer")
    script.check_is_own(prepared.model)
    with _turnover:
        loop = _loops[get_ident()] = Loop(prepared, script.ask)
        torch.autograd.backward = _backward
        AveragedModel.update_parameters = _averaged
        if not _hooks:
            _hooks.append(register_optimizer_step_pre_hook(_stepping))
    script.at_end = _release
    return loop


def _release() -> None:
    with _turnover:
        _loops.pop(get_ident(), None)
        if not _loops:
            torch.autograd.backward = _original
            AveragedModel.update_parameters = _update_average
            while _hooks:
                _hooks.pop().remove()


def _stepping(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    """Called before a step of any optimizer but the prepared one."""
    if (loop := _loops.get(get_ident())) is not None:
        loop.stepping(optimizer)


def _averaged(average: AveragedModel, model: torch.nn.Module) -> None:
    if get_ident() in _loops:
        raise InputError(
            "update_parameters(): found an AveragedModel in the loop, expected none: the average would be each "
            "machine's own, and lost with it (a buffer of the model that forward updates is everybody's)"
        )
    _update_average(average, model)


def _backward(tensors: Any, grad_tensors: Any = None, *arguments: Any, **named: Any) -> None:
    loop = _loops.get(get_ident())
    # A part of another backward, as a reentrant checkpoint's is: what it gets is scaled already.
    is_within = grad_tensors is not None and torch._C._current_graph_task_id() != -1
    if loop is None or not loop.is_in_batch or is_within:
        _original(tensors, grad_tensors, *arguments, **named)
        return
    losses = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    if len(losses) != 1 or grad_tensors is not None:
        raise InputError(
            f"backward(): found {len(losses)} tensors{' with gradients' if grad_tensors is not None else ''}, expected "
            "one number, the mean over the items of the batch"
        )
    loop.backward(losses[0], lambda scaled: _original(scaled, None, *arguments, **named))
