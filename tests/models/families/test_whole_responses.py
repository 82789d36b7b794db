"""Whole responses, cut as each family's card says, against what the authors' code makes of them.

The tokenizer merges punctuation with line ends, as those of Qwen and Llama 3 do, so that a piece that is
tokenised with its neighbour gives other ids. Real responses are read where they are available.
"""

import gzip
import json
from pathlib import Path

import pytest
import test_eurus_family
from published_checkpoints import LLAMA_TEMPLATE, QWEN_TEMPLATE, QWEN_TOKENS, piece_tokenizer
from published_inputs import REFERENCE
from test_rlhflow_family import TOKENS as LLAMA_TOKENS
from test_writing_families import R1_TEMPLATE, thinkprm_prompt
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from surefoot import load_prm
from surefoot.models.families.registry import FAMILIES
from surefoot.models.kinds.verifier_format import VerifierFormat
from surefoot.protocols import ProblemTrace
from surefoot.records import Problem, Trace
from surefoot.segment import BlankLine, Line, segment_trace

DATA = Path(__file__).parents[3] / "../shared/data"
QUESTION = "What is the sum of the first\n\n$n$ odd numbers?"
RESPONSES = [
    "The sum is\n\\[\n1 + 3 = 4.\n\\]\n\nSo $n = 2$ gives 4.  \n\n- 1\n- 3\n\nThe answer is \\boxed{n^2}.",
    "## Step 1: Add\nWe add:\n  1 + 3 = 4.\n\n## Step 2: Guess\n   It is $n^2$.  \n\n  No heading.",
    "One line only: $1 + 3 = 4$.",
    "Lines\nwithout:\nblank ones,\n  3 + 5 = 8.\nEnd",
]
LINES_WITHOUT_FORMULAS = ["Lines\nwithout:\nblank ones,\n\n  3 + 5 = 8.\nEnd", "1 + 1 = 2. \n2 + 2 = 4."]
# the pre-tokenizer of Qwen2.5, which keeps punctuation and the line ends after it in one piece
QWEN_PIECES = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def merging_tokenizer(special, template):
    """Byte-level BPE that has learned to merge on the responses above."""
    built = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = pre_tokenizers.Split(Regex(QWEN_PIECES), "isolated")
    built.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    built.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=byte_level.alphabet(), show_progress=False, min_frequency=1
    )
    texts = [
        *RESPONSES,
        *LINES_WITHOUT_FORMULAS,
        "1.\n\n2?\n\n+ - +\n",
        "]\n\n).\n\n$.\n",
        *["]\n", ".\n\n"] * 9,
    ]
    built.train_from_iterator(texts, trainer)
    built.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=built, chat_template=template, bos_token=special[0], pad_token=special[0]
    )


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """Each family without weights, with a tokenizer of its kind."""
    qwen = merging_tokenizer(QWEN_TOKENS, QWEN_TEMPLATE)
    plain = merging_tokenizer(QWEN_TOKENS, QWEN_TEMPLATE)
    plain.bos_token = None  # TRL's families are compared without a beginning of text
    tokenizers = {
        "math-shepherd": piece_tokenizer(),
        "rlhflow": merging_tokenizer(LLAMA_TOKENS, LLAMA_TEMPLATE),
        "skywork": qwen,
        "qwen-prm": qwen,
        "pure": qwen,
        "reasoneval": piece_tokenizer(pad="<pad>"),
        "trl": plain,
    }
    built = {name: FAMILIES[name].load().encoder(of, max_length=10**6) for name, of in tokenizers.items()}
    at = tmp_path_factory.mktemp("hub") / "EurusPRM-Stage2"
    test_eurus_family.save(at, 7, max_position_embeddings=10**6)
    built["eurus"] = load_prm(at, reference=at)
    built["eurus"].tokenizer = qwen
    return built


def pieces(text, cut):
    """The authors' split."""
    return [piece for piece in text.split(cut) if piece.strip()]


def trace_of(question, text, cutter):
    problem = Problem(text=question)
    trace = segment_trace(Trace(problem_id=problem.id, text=text), cutter)
    return ProblemTrace(problem=problem, trace=trace)


def encoded(encoders, family, question, text):
    """Ids and positions here, and those of the authors' code."""
    model = encoders[family]
    cutter = model.card.segmenter or BlankLine()
    cut = "\n" if isinstance(cutter, Line) else "\n\n"
    [ours] = model.encode([trace_of(question, text, cutter)])
    ids, reads = REFERENCE[family](model.tokenizer, question, pieces(text, cut), text)
    return (list(ours.ids), list(ours.positions)), (list(ids), list(reads))


@pytest.mark.parametrize("family", REFERENCE)
def test_synthetic_responses(encoders, family):
    by_lines = isinstance(encoders[family].card.segmenter, Line)
    for text in LINES_WITHOUT_FORMULAS if by_lines else RESPONSES:
        ours, theirs = encoded(encoders, family, QUESTION, text)
        assert ours == theirs


@pytest.mark.parametrize("text", RESPONSES)
def test_skyworks_ids_do_not_depend_on_the_cut(encoders, text):
    """Paragraphs are cut here; the authors' code reads the lines of the same text."""
    model = encoders["skywork"]
    [ours] = model.encode([trace_of(QUESTION, text, BlankLine())])
    ids, reads = REFERENCE["skywork"](model.tokenizer, QUESTION, pieces(text, "\n\n"), text)
    assert (list(ours.ids), list(ours.positions)) == (list(ids), reads)


def real_responses():
    """100 problems and their first responses, with blank lines, lists and displayed formulas."""
    file = DATA / "bon/qwen25math_math100x8_rm.jsonl.gz"
    if not file.is_file():
        pytest.skip(f"{file} is not available")
    with gzip.open(file) as lines:
        return [(row["question"], row["code"][0]) for row in map(json.loads, lines)]


def processbench_responses():
    file = DATA / "processbench/gsm8k.json.gz"
    if not file.is_file():
        pytest.skip(f"{file} is not available")
    with gzip.open(file) as rows:
        return [(row["problem"], "\n\n".join(row["steps"])) for row in json.load(rows)[:100]]


@pytest.mark.parametrize("read", [real_responses, processbench_responses])
@pytest.mark.parametrize("family", [name for name in REFERENCE if name != "math-shepherd"])
def test_real_responses(encoders, family, read):
    responses = read()
    rows = [encoded(encoders, family, question, text) for question, text in responses]
    assert sum(ours[0] == theirs[0] for ours, theirs in rows) == len(responses) == 100


def test_thinkprm_numbers_the_steps_of_whole_responses():
    tokenizer = merging_tokenizer(["<s>"], R1_TEMPLATE)
    for text in [RESPONSES[0], *RESPONSES[2:]]:
        [message] = VerifierFormat().prompt(trace_of(QUESTION, text, BlankLine()))
        rows = [{"role": "user", "content": message.content}]
        shown = tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=True)
        expected = thinkprm_prompt(tokenizer, QUESTION, pieces(text, "\n\n"))
        assert shown + VerifierFormat().opening == expected
