"""A server whose model counts in words, with the habits of real servers, for tests of the probe."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from openai_replies import Body, Reply

from surefoot.policies import probe

COUNT = (
    "one, two, three, four, five, six, seven, eight, nine, ten, eleven, twelve, thirteen, fourteen, fifteen, "
    "sixteen, seventeen, eighteen, nineteen, twenty"
)


@dataclass(kw_only=True)
class CountingServer:
    """Answers requests as a model that counts to twenty would.

    ``beginning``: what becomes of a last assistant message. ``continue``: continued if the request asks for
    it (vLLM); ``always``: continued in any case (Ollama); ``new turn``: read, then a new answer; ``ignore``:
    not read at all; ``refuse``: status 400.
    """

    beginning: Literal["continue", "always", "new turn", "ignore", "refuse"] = "continue"
    fluent: bool = True
    """Otherwise it writes the same nonsense whatever it reads."""
    samples: bool = True
    copies: bool = False
    """Whether the samples of a request are equal."""
    tools: Literal["call", "talk", "ignore", "refuse"] = "call"
    extras: bool = True
    """Log-probabilities, token ids and the stop text that ended a sample."""
    reasoning: Literal["none", "field", "text", "again"] = "none"
    template: int = 5
    """Tokens that are added to each message; to a raw prompt, too, if ``templated``."""
    templated: bool = False
    counter: int = field(default=0, init=False)

    def __call__(self, body: Body) -> Reply:
        if "messages" not in body:
            prompt: str = body["prompt"]
            tokens = len(prompt.split()) + (self.template if self.templated else 1)
            return self._reply(body, self._after(prompt if "," in prompt else ""), tokens, chat=False)
        *asked, last = body["messages"]
        started = last["role"] == "assistant"
        if started and self.beginning == "refuse":
            return Reply(status=400, payload={"error": "the last message must be the user's"})
        if body.get("tools") and self.tools == "refuse":
            return Reply(status=400, payload={"error": "no tools here"})
        read = [*asked, *([] if started and self.beginning == "ignore" else [last])]
        tokens = sum(len(message["content"].split()) + self.template for message in read)
        continues = started and (
            self.beginning == "always"
            or (self.beginning == "continue" and bool(body.get("continue_final_message")))
        )
        tokens += 0 if continues else 3
        if body.get("tools") and self.tools != "ignore":
            tokens += 80
        if body.get("tools") and self.tools == "call":
            call = {"id": "1", "type": "function"}
            call["function"] = {"name": body["tools"][0]["function"]["name"], "arguments": '{"number": 7}'}
            return self._reply(body, "", tokens, tool_calls=[call])
        begun = last["content"].rpartition("</think>\n\n")[2] if continues else ""
        return self._reply(body, self._after(begun), tokens, begun=bool(begun))

    def _after(self, begun: str) -> str:
        if not self.fluent:
            return "mur mur"
        return COUNT[len(begun) :] if COUNT.startswith(begun) else COUNT

    def _reply(
        self, body: Body, text: str, tokens: int, *, chat: bool = True, begun: bool = False, **more: Any
    ) -> Reply:
        if body.get("temperature", 0) > 1:
            self.counter += 1
            text = f"{text} {self.counter}"
        stop: Body = {}
        cut = min((text.find(word) for word in body.get("stop", ()) if word in text), default=-1)
        if cut >= 0:
            stop = {"stop_reason": text[cut]} if self.extras else {}
            text = text[:cut]
        thinks = self.reasoning != "none" and (not begun or self.reasoning == "again")
        if thinks and self.reasoning == "text":
            text = f"<think>\nCount.\n</think>\n\n{text}"
        elif thinks:
            more["reasoning_content"] = "Count."
        choice: Body = {"finish_reason": "stop", **stop}
        choice |= {"message": {"role": "assistant", "content": text, **more}} if chat else {"text": text}
        if self.extras and body.get("return_token_ids"):
            choice["token_ids"] = [1, 2]
        if self.extras and body.get("logprobs") is not None:
            choice["logprobs"] = {"content": [{"logprob": -0.5}]} if chat else {"token_logprobs": [-0.5]}
        count = body.get("n", 1) if self.samples else 1
        choices = [{"index": number, **choice} for number in range(count)]
        for number in range(1, 1 if self.copies else count):
            end = f" {number}"
            if chat:
                choices[number]["message"] = {**choice["message"], "content": text + end}
            else:
                choices[number]["text"] = text + end
        usage = {"prompt_tokens": tokens, "completion_tokens": len(text.split())}
        return Reply(payload={"choices": choices, "usage": usage})


def is_probe(body: Body) -> bool:
    """Whether a request is one of the probe's; the check of a model sends no temperature."""
    messages = body.get("messages") or [{"content": body.get("prompt")}]
    text = str(messages[0]["content"]).rstrip()
    tools = [tool["function"]["name"] for tool in body.get("tools") or ()]
    fields = "messages" not in body and "temperature" in body and "seed" not in body
    raw = fields and text in ("1", probe._BEGINNING)
    return text == probe._TASK or "record_number" in tools or raw
