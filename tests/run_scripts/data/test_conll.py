import pytest

from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.data import files
from tokenmixers.run_scripts.data.conll import read_conll, write_conll
from tokenmixers.run_scripts.data.token_classification import (
    IGNORED_TAG,
    TokenClassificationArguments,
    load_sentences,
    tag_names,
    tokenize,
)
from tokenmixers.run_scripts.metrics.entities import entities


@pytest.fixture(autouse=True, params=[1, 1 << 20])
def block(request, monkeypatch):
    """Every file is read line by line, and at once."""
    monkeypatch.setattr(files, "_BLOCK", request.param)


def write(folder, content, name="a.conll"):
    (folder / name).write_text(content)
    return folder / name


def sentences(folder, content, name="a.conll", **options):
    table = read_conll(write(folder, content, name), **options)
    return [(row["tokens"], row["ner_tags"]) for row in table.rows]


def test_words_may_hold_spaces_where_tabs_separate_columns(tmp_path):
    content = "5\u00a0000\tO\nNew York\tB-LOC\n\u00a0\tO\n"
    expected = [(["5\u00a0000", "New York", "\u00a0"], ["O", "B-LOC", "O"])]
    assert sentences(tmp_path, content) == expected
    arguments = TokenClassificationArguments(train_file=[str(tmp_path / "a.conll")])
    assert load_sentences(arguments, ["train"])["train"]["tokens"][0] == expected[0][0]
    assert sentences(tmp_path, "5\u00a0000  O\n km\t O\n") == [(["5\u00a0000", "km"], ["O", "O"])]


@pytest.mark.parametrize("header", ["word\ttag", "Token\tNER", "tokens\tner_tags", "mot\tétiquette"])
def test_names_of_columns_are_no_word(header, tmp_path, capsys):
    assert sentences(tmp_path, f"{header}\nAda\tB-PER\nwent\tO\n\nRome\tB-LOC\n", "a.tsv") == [
        (["Ada", "went"], ["B-PER", "O"]),
        (["Rome"], ["B-LOC"]),
    ]
    assert "a.tsv, line 1: " in capsys.readouterr().out


def test_names_of_columns_say_where_word_and_tag_are(tmp_path):
    content = "id\tword\tpos\tner\n\n7\tAda\tNNP\tB-PER\n9\twent\tVBD\tO\n"
    assert sentences(tmp_path, content) == [(["Ada", "went"], ["B-PER", "O"])]
    (row,) = read_conll(tmp_path / "a.conll", tags_column="pos").rows
    assert row == {"tokens": ["Ada", "went"], "pos": ["NNP", "VBD"]}


def test_a_first_word_that_is_no_name_of_a_column_stays(tmp_path):
    assert sentences(tmp_path, "Ada B-PER\nwent O\n") == [(["Ada", "went"], ["B-PER", "O"])]
    assert sentences(tmp_path, "Words NOUN\nfly VERB\n") == [(["Words", "fly"], ["NOUN", "VERB"])]


CONLLU = """# newdoc id = weblog
# newpar

# sent_id = 1
# text = Vámonos al mar #1
1-2\tVámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tVamos\tir\tVERB\tV\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\tP\t_\t1\tobj\t_\t_
2.1\tva\tir\tVERB\tV\t_\t_\t_\t_\t_
3\t#1\t#1\tNOUN\tN\t_\t1\tobl\t_\tSpaceAfter=No

# newdoc id = empty

# sent_id = 2
1\tSí\tsí\tINTJ\tI\t_\t0\troot\t_\t_
"""


def test_conllu(tmp_path, capsys):
    words = [["Vamos", "nos", "#1"], ["Sí"]]
    found = sentences(tmp_path, CONLLU, "a.conllu")
    assert found == list(zip(words, [["VERB", "PRON", "NOUN"], ["INTJ"]], strict=True))
    assert "the column upos" in capsys.readouterr().out
    found = read_conll(tmp_path / "a.conllu", tags_column="deprel").rows
    assert [row["deprel"] for row in found] == [["root", "obj", "obl"], ["root"]]


def test_comments_are_no_words_and_the_word_number_sign_is_none(tmp_path):
    content = "# id 5239 domain=en\nAda _ _ B-PER\n# _ _ O\n#one _ _ O\n\n# id 1 x\n# _ _ O\n1 _ _ O\n"
    assert sentences(tmp_path, content) == [
        (["Ada", "#", "#one"], ["B-PER", "O", "O"]),
        (["#", "1"], ["O", "O"]),
    ]


def test_columns_that_count_words_are_passed_over(tmp_path):
    """GermEval's format."""
    content = "#\thttp://de.wikipedia.org/ [2009]\n1\tSchartau\tB-PER\tO\n2\tsagte\tO\tO\n\n1\tJa\tO\tO\n"
    assert sentences(tmp_path, content, "a.tsv") == [(["Schartau", "sagte"], ["O", "O"]), (["Ja"], ["O"])]


@pytest.mark.parametrize("name", ["a.xlsx", "a.docx", "a.csv", "a.pdf", "a.csv.gz"])
def test_files_of_other_kinds_are_refused(name, tmp_path):
    with pytest.raises(UserError, match=r"is of no known kind\. Known endings of CoNLL text: \.conll, "):
        read_conll(write(tmp_path, "Ada B-PER\n", name))


def test_all_lines_with_other_columns_are_named(tmp_path):
    table = read_conll(write(tmp_path, "a O\nb O X\n\nc O\n\nd\n"))
    with pytest.raises(UserError, match=r"2 bad rows\. line 2: 3 columns instead of 2; line 6: 1 columns instead"):
        table.convert(lambda row: row)


def loaded(tmp_path, content, **options):
    arguments = TokenClassificationArguments(train_file=[str(write(tmp_path, content))], **options)
    return load_sentences(arguments, ["train"])["train"]


def test_tags_of_minus_100_are_ignored_labels(tmp_path, tagged_sentences):
    from transformers import AutoTokenizer

    found = loaded(tmp_path, "Ada B-PER\nwent -100\nto O\n")
    assert found["tags"][0] == ["B-PER", IGNORED_TAG, "O"]
    names = tag_names(found)
    assert names == ["O", "B-PER", "I-PER"]
    (row,) = tokenize(found, AutoTokenizer.from_pretrained(tagged_sentences / "tokenizer"), 32, names, True)
    assert {*row["labels"]} - {2} == {-100, 0, 1}
    with pytest.raises(UserError, match="no tag but -100, which is ignored"):
        tag_names(loaded(tmp_path, "Ada -100\n"))


#: Tags of "Ada Mary Smith went to Rome" in several schemes, and their names in order.
SCHEMES = {
    "BILOU": ("B-P I-P L-P O O U-P", ["O", "B-P", "I-P", "L-P", "U-P"]),
    "IOBES": ("B-P I-P E-P O O S-P", ["O", "B-P", "I-P", "E-P", "S-P"]),
    "BMES": ("B-P M-P E-P O O S-P", ["O", "B-P", "M-P", "E-P", "S-P"]),
    "IOB2": ("B-P I-P I-P O O B-P", ["O", "B-P", "I-P"]),
    "lower case": ("b-P i-P i-P o o b-P", ["o", "b-P", "i-P"]),
    "lower BILOU": ("b-P i-P l-P O O u-P", ["O", "b-P", "i-P", "l-P", "u-P"]),
    "mixed": ("B-P i-P I-P O O B-P", ["O", "B-P", "I-P", "i-P"]),
}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_entities_of_every_scheme(scheme, tmp_path):
    tags, names = SCHEMES[scheme]
    assert entities(tags.split()) == {("P", 0, 3), ("P", 5, 6)}
    words = ["Ada", "Mary", "Smith", "went", "to", "Rome"]
    found = loaded(tmp_path, "\n".join(map(" ".join, zip(words, tags.split(), strict=True))))
    assert tag_names(found) == names


def test_tags_that_mark_no_entities_give_a_note(tmp_path, capsys):
    assert tag_names(loaded(tmp_path, "Ada PER\nwent O\n")) == ["O", "PER"]
    assert "do not mark entities by B- and I-" in capsys.readouterr().out
    tag_names(loaded(tmp_path, "Ada NOUN\nwent VERB\n"))
    assert "do not mark" not in capsys.readouterr().out


def test_written_sentences_have_no_white_space_in_words_and_no_ignored_tags(tmp_path):
    words, tags = [["New York", "is", "x"], ["so\u00a0big"]], [["B-LOC", "O", "-100"], ["O"]]
    write_conll(tmp_path / "a.conll", [words, tags, [["B-LOC", "B-LOC", "O"], ["O"]]])
    assert (tmp_path / "a.conll").read_text() == "New_York B-LOC B-LOC\nis O B-LOC\n\nso_big O O\n\n"
