import bz2
import csv
import gzip
import io
import json
import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realmlm.corpus.questions import FORMATS, Question, read_questions
from realmlm.errors import BadInput
from realmlm.evaluation.answers import is_correct

texts = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\r"), min_size=1).filter(
    str.strip
)
sets = st.lists(st.tuples(texts, st.lists(texts, min_size=1, max_size=4)), min_size=1, max_size=5)


@pytest.fixture
def write(tmp_path):
    def _write(content, name="questions.txt"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return _write


def expected(pairs):
    return [Question(text, tuple(dict.fromkeys(answers))) for text, answers in pairs]


def test_nq_open(write):
    first = '{"question": "who tamed Zarn", "answer": ["Quill", "quill", "Quill"]}'
    path = write(first + '\n\n{"question": "when", "answers": ["1871"], "gold": [4, 2]}\n')
    assert read_questions(path) == [
        Question("who tamed Zarn", ("Quill", "quill")),
        Question("when", ("1871",), gold=(4, 2)),
    ]


def test_a_single_json_line(write):
    assert read_questions(write('{"question": "q", "answer": ["a"]}')) == [Question("q", ("a",))]


def test_web_questions_keep_junk_answers(write):
    record = [{"qId": "w1", "qText": "where is Oltmar?", "answers": ["http://example.org/oltmar", "Veld"]}]
    assert read_questions(write(json.dumps(record, indent=1))) == [
        Question("where is Oltmar?", ("http://example.org/oltmar", "Veld"), id="w1")
    ]


def test_dpr_with_quoting(write):
    path = write('who?\t[\'Ann\', "O\'Dell"]\r\n"a ""b""?"\t"[\'x\', ""it\'s""]"\n')
    assert read_questions(path) == [Question("who?", ("Ann", "O'Dell")), Question('a "b"?', ("x", "it's"))]


def test_curated_trec_patterns_and_quotation_marks(write):
    path = write('7\tfactoid\t"How" tall is Mount Tove?\t2,?30[0-9]\\s*m|"high"\n')
    assert read_questions(path) == [
        Question('"How" tall is Mount Tove?', ('2,?30[0-9]\\s*m|"high"',), is_regex=True, id="7")
    ]


@pytest.mark.parametrize("indent", [None, 2])
def test_squad_leaves_out_the_unanswerable(write, indent):
    answered = {
        "id": "s1",
        "question": "who?",
        "answers": [{"text": "Ida", "answer_start": 3}, {"text": "Ida", "answer_start": 9}],
    }
    unanswerable = {"id": "s2", "question": "why?", "answers": [], "is_impossible": True}
    document = {
        "version": "v2.0",
        "data": [{"title": "t", "paragraphs": [{"context": "c", "qas": [answered, unanswerable]}]}],
    }
    expected = Question("who?", ("Ida",), id="s1", context="c", title="t", start=3)
    assert read_questions(write(json.dumps(document, indent=indent))) == [expected]


def test_a_question_comes_with_its_paragraph(write):
    row = {"question": "who?", "answer": ["Ida"], "context": "It was Ida.", "title": "News", "start": 7}
    expected = Question("who?", ("Ida",), context="It was Ida.", title="News", start=7)
    assert read_questions(write(json.dumps(row))) == [expected]
    for wrong in ({"context": 7}, {"title": ["x"]}, {"start": "7"}):
        with pytest.raises(BadInput, match=f"'{next(iter(wrong))}' must be"):
            read_questions(write(json.dumps(row | wrong)))


@pytest.mark.parametrize(
    ("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)]
)
def test_packed(write, suffix, pack):
    content = '\ufeff{"question": "q", "answer": ["é"]}\n'.encode()
    assert read_questions(write(pack(content), f"q.jsonl{suffix}")) == [Question("q", ("é",))]
    with pytest.raises(BadInput, match=r"q\.jsonl.*cannot be read"):
        read_questions(write(pack(content)[:-9], f"q.jsonl{suffix}"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"question": "q", "answer": ["a"]}\n{"question": "q", \n', r"questions\.txt:2: not valid JSON"),
        ('{"question": "q", "answer": ["a"', r"questions\.txt:1: not valid JSON"),
        (
            '{"question": "q", "answer": ["a"]}\n{"question": "q", "answer": "a"}\n',
            r"questions\.txt:2: the answers are 'a'",
        ),
        (
            '{"question": "q", "answer": ["a"]}\n{"question": "q", "answer": [" "]}\n',
            r"questions\.txt:2: the question has no answer",
        ),
        (
            '{"question": "q", "answer": ["a"]}\n{"question": 3, "answer": ["a"]}\n',
            r"questions\.txt:2: the question is 3",
        ),
        ('{"question": "q", "answer": ["a"], "gold": [true]}', r"'gold' must be a list"),
        ('[{"qText": "q", "answers": ["a"]}, {"qText": "q"}]', r"entry 2: neither 'answer' nor 'answers'"),
        ("[1]", r"entry 1: expected an object"),
        ("[]", r"no question in it"),
        (
            '{"data": [{"paragraphs": [{"qas": [{"question": "q"}]}]}]}',
            r"after question 1 \(KeyError\('answers'\)\)",
        ),
        ('{"data": 3}', r"not nested as in SQuAD"),
        ("q\t['a']\nq\t['a'\n", r"questions\.txt:2: the answers are not a list"),
        ("q\t['a']\nq\t[open('x')]\n", r"questions\.txt:2: the answers are not a list"),
        ("q\t['a']\nq\n", r"questions\.txt:2: 1 columns"),
        ("1\tf\tq\tfine\n2\tf\tq\n", r"questions\.txt:2: 3 columns"),
        (b"q\t['a']\nq\xff\t['a']\n", r"questions\.txt:2: not UTF-8"),
        (b" \n\n", r"the file is empty"),
        ("\n\nsome prose\n", r"questions\.txt:3: unknown format"),
    ],
)
def test_broken_files_name_the_place(write, content, message):
    with pytest.raises(BadInput, match=message):
        read_questions(write(content))


def test_unknown_format_lists_the_accepted(write):
    with pytest.raises(BadInput) as caught:
        read_questions(write("some prose\n"))
    assert FORMATS in str(caught.value)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(BadInput, match="no such question file"):
        read_questions(tmp_path / "nowhere.jsonl")
    with pytest.raises(BadInput, match="cannot be read"):
        read_questions(tmp_path)


def read_back(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("questions") / "q"
    path.write_bytes(content.encode())
    return read_questions(path)


@given(sets, st.booleans())
def test_json_lines_round_trip(tmp_path_factory, pairs, ascii_only):
    lines = [
        json.dumps({"question": text, "answer": answers}, ensure_ascii=ascii_only) for text, answers in pairs
    ]
    want = [Question(text, tuple(dict.fromkeys(filter(str.strip, answers)))) for text, answers in pairs]
    assert read_back(tmp_path_factory, "\n".join(lines) + "\n") == want


@given(sets)
def test_dpr_round_trip(tmp_path_factory, pairs):
    stream = io.StringIO(newline="")
    csv.writer(stream, delimiter="\t", lineterminator="\n").writerows(
        [(f"q {text}", repr(answers)) for text, answers in pairs]
    )
    assert read_back(tmp_path_factory, stream.getvalue()) == expected(
        [(f"q {text}", answers) for text, answers in pairs]
    )


@given(st.text(alphabet=st.sampled_from(list("{}[]\"',:\t\n\\q1|( é")), max_size=40))
def test_anything_is_read_or_refused(tmp_path_factory, content):
    try:
        questions = read_back(tmp_path_factory, content)
    except BadInput:
        return
    assert questions
    assert all(question.text.strip() and question.answers for question in questions)


@pytest.mark.parametrize("suffix", ["", ".xz"])
def test_a_question_file_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    """However small it is packed: some hundred KB may unpack to more than fits into memory."""
    monkeypatch.setattr("realmlm.corpus.questions.LARGEST", 10_000)
    lines = b'{"question": "Who?", "answer": ["Ada"]}\n' * 1000
    file = tmp_path / f"many.jsonl{suffix}"
    file.write_bytes(lzma.compress(lines) if suffix else lines)
    with pytest.raises(BadInput, match=r"many\.jsonl.*larger than .* MiB; split it"):
        read_questions(file)


def test_one_large_json_value_is_to_be_written_as_lines(tmp_path: Path) -> None:
    file = tmp_path / "one.json.xz"
    file.write_bytes(lzma.compress(b"[" + b"{}," * 2**25 + b"{}]", preset=0))
    with pytest.raises(BadInput, match="JSON larger than 64 MiB; write it as JSON lines"):
        read_questions(file)


def test_an_invalid_regular_expression_is_said_and_cannot_be_right(write, capsys) -> None:
    _, broken = read_questions(write("1\tf\tq\tfine\n2\tf\tq\t(broken\n"))
    assert (
        "questions.txt:2: the answer '(broken' is not a valid regular expression" in capsys.readouterr().err
    )
    assert not is_correct("(broken", broken)
