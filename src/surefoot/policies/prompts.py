"""How a problem becomes the prompt of a policy."""

from __future__ import annotations

from dataclasses import dataclass

from surefoot.records import Message, Problem


@dataclass(frozen=True, kw_only=True)
class PromptFormat:
    """``{problem}`` in ``template`` is replaced by the problem's text.

    With ``chat`` the result is a user message (after ``system``, if given) for the chat template; without
    it the text is given to the model as it stands.
    """

    template: str = "{problem}\n"
    chat: bool = False
    system: str | None = None

    def __post_init__(self) -> None:
        if "{problem}" not in self.template:
            raise ValueError("the prompt template must contain '{problem}'")
        if self.system is not None and not self.chat:
            raise ValueError("a system message needs chat=True; put it in the template otherwise")

    def render(self, problem: Problem) -> str | tuple[Message, ...]:
        """The prompt for ``problem``."""
        text = self.template.replace("{problem}", problem.text)
        if not self.chat:
            return text
        system = (Message(role="system", content=self.system),) if self.system is not None else ()
        return (*system, Message(role="user", content=text))
