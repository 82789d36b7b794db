"""Act on a guard's decisions: sample again, explain a rejection, wait for a person."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from surefoot.guard.guard import Guard
from surefoot.guard.records import Action, GuardDecision, Review
from surefoot.records import Message, Tool, ToolCall

Ask = Callable[[tuple[Message, ...], int], Awaitable[Message]]
"""The assistant's next message after a run so far. The number counts the samples of one answer from 0, so
that each can have a different seed."""
Reviewer = Callable[
    [tuple[Message, ...], Message, GuardDecision], Awaitable[tuple[Review | None, str | None]]
]
"""Asks a person about a message after a run so far: the decision, ``None`` if it did not come in time; and
the number of the entry in a queue, if there is one."""


@dataclass(frozen=True, kw_only=True)
class GuardedReply:
    """Result of a guarded request."""

    message: Message | None
    """The released message; ``None`` = nothing was released."""
    decisions: tuple[GuardDecision, ...]
    """One for each sampled message with calls, in order."""
    added: tuple[Message, ...] = ()
    """Messages that were added to the run: rejected messages, and the reasons as their results."""

    @property
    def blocked(self) -> str | None:
        """Why nothing is released."""
        if self.message is not None:
            return None
        last = self.decisions[-1]
        if last.action == "hold":
            number = f" as number {last.held}" if last.held else ""
            return f"held{number} until a person decides: {last.reason}"
        return f"blocked: {last.reason}"


async def guarded_reply(
    guard: Guard,
    ask: Ask,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    *,
    review: Reviewer | None = None,
    caller: str = "",
    conversation: str | None = None,
    request: str | None = None,
) -> GuardedReply:
    """The next message of a run, with its calls checked. A message without calls is released as it is.

    The model samples again at most ``settings.resamples`` times, and sees the reason of a rejection at most
    ``settings.rejections`` times. Without ``review`` a call that would be held is rejected. ``caller``,
    ``conversation`` and ``request`` are as in :meth:`Guard.check`. The released calls are canonical and
    redeemed.
    """
    settings, run, decisions = guard.settings, tuple(messages), []
    resamples = rejections = draws = 0
    while True:
        reply = await ask(run, draws)
        draws += 1
        if not reply.tool_calls:
            break
        decision = await guard.check(
            run,
            tools,
            reply,
            caller=caller,
            conversation=conversation,
            request=request,
        )
        reply = reply.model_copy(update={"tool_calls": tuple(verdict.call for verdict in decision.calls)})
        action = decision.action
        if action == "resample" and resamples >= settings.resamples:
            action = settings.after_resamples
        if action != decision.action:
            decision = guard.settle(decision, action)
        if decision.action == "hold":
            decision = await _reviewed(guard, run, reply, decision, review)
        action = decision.action
        if action == "reject" and decision.review is not None and decision.review.comment:
            decision = decision.model_copy(update={"reason": decision.review.comment})
        decisions.append(decision)
        if action == "release":
            reply = reply.model_copy(update={"tool_calls": guard.redeem(decision)})
            break
        if action == "resample":
            resamples += 1
            guard.settle(decision, "reject")  # nothing can come of it any more
        elif action == "hold" or rejections >= settings.rejections:
            return GuardedReply(message=None, decisions=tuple(decisions), added=run[len(messages) :])
        else:
            rejections += 1
            run += rejection_messages(reply, decision)
    return GuardedReply(message=reply, decisions=tuple(decisions), added=run[len(messages) :])


async def _reviewed(
    guard: Guard, run: tuple[Message, ...], reply: Message, decision: GuardDecision, review: Reviewer | None
) -> GuardDecision:
    """The decision after a person's; still ``hold`` if it did not come in time."""
    try:
        verdict, held = await review(run, reply, decision) if review else (Review(approved=False), None)
    except BaseException:  # without a decision the call may be checked again
        guard.settle(decision, "reject")
        raise
    action: Action = "hold" if verdict is None else "release" if verdict.approved else "reject"
    return guard.settle(decision, action, review=verdict, held=held)


async def checked_call(
    guard: Guard,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    call: ToolCall,
    *,
    review: Reviewer | None = None,
    caller: str = "",
    conversation: str | None = None,
) -> GuardDecision:
    """The decision about a call that a framework is about to execute, which asks the model itself.

    ``review`` decides about calls that would be held; without it, or without a decision, they are rejected.
    ``caller`` and ``conversation`` name it as in :meth:`Guard.check`. After ``release`` the framework
    executes what :meth:`Guard.redeem` returns; after any other action it executes nothing, and shows
    :func:`refusal_text` to the model.
    """
    reply = Message(role="assistant", tool_calls=(call,))
    decision = await guard.check(messages, tools, reply, caller=caller, conversation=conversation)
    if decision.action == "resample":  # the framework asks the model itself
        return guard.settle(decision, "reject").model_copy(update={"action": "resample"})
    if decision.action != "hold":
        return decision
    reply = reply.model_copy(update={"tool_calls": tuple(verdict.call for verdict in decision.calls)})
    decision = await _reviewed(guard, tuple(messages), reply, decision, review)
    return decision if decision.action != "hold" else guard.settle(decision, "reject")


def refusal_text(decision: GuardDecision) -> str:
    """Text for the model about a call that was not released."""
    comment = decision.review.comment if decision.review is not None else ""
    return f"this call was not executed: {comment or decision.reason}"


def rejection_messages(reply: Message, decision: GuardDecision) -> tuple[Message, ...]:
    """A rejected message, and for each of its calls a tool's result that says why it was not executed."""
    calls = tuple(
        call if call.id else call.model_copy(update={"id": f"call_{number}"})
        for number, call in enumerate(reply.tool_calls)
    )
    blamed = [verdict.action != "release" for verdict in decision.calls]
    reviewed = decision.review is not None
    reasons = [
        (decision.reason if reviewed else verdict.reason)
        if wrong
        else "another call of the same message was rejected"
        for verdict, wrong in zip(decision.calls, blamed, strict=True)
    ]
    return (
        reply.model_copy(update={"tool_calls": calls}),
        *(
            Message(
                role="tool",
                tool_call_id=call.id,
                content=f"Error: this call was not executed: {reason}",
                error=True,
            )
            for call, reason in zip(calls, reasons, strict=True)
        ),
    )
