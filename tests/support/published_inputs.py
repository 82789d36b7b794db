"""What the authors' code of each published family makes of a question and a whole response.

Each function gives token ids and the positions at which the steps are read. ``steps`` are the pieces into
which the authors split the response; only Skywork's code reads the response ``text`` itself.
"""


def chat(tokenizer, *turns):
    rows = [{"role": role, "content": content} for role, content in turns]
    return tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=False)


def bare(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def qwen(tokenizer, question, steps, _text):
    """The model card: ``"<extra_0>".join(steps) + "<extra_0>"``."""
    answer = "<extra_0>".join(steps) + "<extra_0>"
    system = "Please reason step by step, and put your final answer within \\boxed{}."
    ids = bare(tokenizer, chat(tokenizer, ("system", system), ("user", question), ("assistant", answer)))
    mark = tokenizer.encode("<extra_0>")[0]
    return ids, [place for place, token in enumerate(ids) if token == mark]


def rlhflow(tokenizer, question, steps, _text):
    """``prm_evaluate.py``: steps stripped, one pass a step, read at the third token from the end."""
    turns, reads = [], []
    for number, step in enumerate(steps):
        turns += [("user", step.strip() if number else question + " " + step.strip()), ("assistant", "+")]
        ids = bare(tokenizer, chat(tokenizer, *turns))
        reads.append(len(ids) - 3)
    return ids, reads


def skywork(tokenizer, question, steps, text):
    """``prepare_input`` with ``step_token="\\n"`` on the whole response: a score at every line end.

    A step is read at the end of its last line.
    """
    ids = list(tokenizer.encode(tokenizer.bos_token + question + "\n"))
    flags = []
    for line in text.split("\n"):
        ids += [*(tokenizer.encode(line) if line != "" else []), tokenizer.encode("\n")[-1]]
        flags.append(len(ids) - 1)
    reads, at = [], 0
    for step in steps:
        at = text.index(step, at) + len(step)
        reads.append(flags[text[:at].count("\n")])
    return ids, reads


def math_shepherd(tokenizer, question, steps, _text):
    """The model card: question, a space, steps with their tags, joined by line ends."""
    ids = tokenizer(f"{question} " + "\n".join(f"{step} ки" for step in steps))["input_ids"]
    tag = tokenizer.encode("ки")[-1]
    return ids, [place for place, token in enumerate(ids) if token == tag]


def separated(tokenizer, question, steps, _text):
    """``tokenize_row`` of TRL and PURE's ``experience_maker.py``: every piece by itself."""
    ids, reads = bare(tokenizer, question), []
    for step in steps:
        ids = [*ids, *bare(tokenizer, step), *bare(tokenizer, "\n")]
        reads.append(len(ids) - 1)
    return ids, reads


def reasoneval_reads(tokenizer, question, steps, size):
    """The arithmetic of the authors' script, written out again."""
    separator = tokenizer.pad_token
    prompt = f"Question:\n{question}\nAnswer:\nLet's think step by step.\n"
    tokens = tokenizer(prompt + separator + "".join(step + separator for step in steps))["input_ids"]
    reads, ids = [], []
    for place, token in enumerate(tokens):
        if token == tokenizer(separator)["input_ids"][-1]:
            reads.append(place - 1 - len(reads))
        else:
            ids.append(token)
    return ([1, *ids], reads[2:]) if size == "7B" else (ids, reads[1:])


def reasoneval(tokenizer, question, steps, _text):
    return reasoneval_reads(tokenizer, question, steps, "34B")


def eurus(tokenizer, question, steps, _text):
    """``processbench.py``: tokens of the conversation cut after each step, its end of turn included."""
    numbered = [f"Step {number}: {step}" for number, step in enumerate(steps, start=1)]
    ids = bare(tokenizer, chat(tokenizer, ("user", question), ("assistant", "\n\n".join(numbered))))
    reads = []
    for count in range(1, len(steps) + 1):
        text = chat(tokenizer, ("user", question), ("assistant", "\n\n".join(numbered[:count]))).strip()
        text += "\n\n" * (count < len(steps))
        reads.append(len(bare(tokenizer, text)) - 1)  # a log-probability further on than its own index
    return ids, reads


REFERENCE = {
    "math-shepherd": math_shepherd,
    "rlhflow": rlhflow,
    "skywork": skywork,
    "qwen-prm": qwen,
    "pure": separated,
    "reasoneval": reasoneval,
    "trl": separated,
    "eurus": eurus,
}
