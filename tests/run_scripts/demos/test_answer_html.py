import xml.etree.ElementTree as ElementTree
from urllib.parse import unquote

from tokenmixers.run_scripts.demos.answer_html import render_answer, render_message, render_picture
from tokenmixers.run_scripts.demos.pictures import Picture
from tokenmixers.run_scripts.demos.tasks import Answer, Row, Span, Table


BAD = "<script>alert('x')</script>\"&"


def parsed(html):
    """HTML as an XML tree; what is not escaped or not closed is an error."""
    return ElementTree.fromstring(html)


def test_texts_of_users_and_models_are_escaped():
    answer = Answer([Table(BAD, [Row(BAD, 0.25)])], [Span(BAD, BAD), Span(BAD)], [BAD])
    tree = parsed(render_answer(answer))
    assert not list(tree.iter("script"))
    assert "".join(tree.itertext()).count(BAD) == 6
    assert parsed(render_message(BAD)).text == BAD


def test_tables_have_headers_and_shares():
    tree = parsed(render_answer(Answer([Table("Classes", [Row("good", 0.875), Row("bad", 0.125)])])))
    assert [cell.get("scope") for cell in tree.iter("th")] == ["col", "col", "row", "row"]
    assert [bar.text for bar in tree.iter("span")] == ["87.5%", "12.5%"]
    assert "--share: 0.8750" in next(tree.iter("span")).get("style")
    values = parsed(render_answer(Answer([Table("Score", [Row("similar", 4.2)], are_probabilities=False)])))
    assert [cell.text for cell in values.iter("td")] == ["4.200"] and not list(values.iter("span"))


def test_a_message_is_an_alert_and_an_empty_one_is_nothing():
    assert parsed(render_message("The text is empty.")).get("role") == "alert"
    assert render_message("") == ""


def test_pictures_have_a_description_and_keep_their_file():
    svg = '<svg xmlns="http://www.w3.org/2000/svg"><text>"a" &amp; 東 # %</text></svg>'
    html = render_picture(Picture(svg, f"Heat map {BAD}"), "layer 1")
    tree = parsed(html.replace('"><figcaption', '"/><figcaption'))
    image = tree.find("img")
    assert image.get("alt") == f"Heat map {BAD}" and tree.find("figcaption").text == "layer 1"
    kind, _, content = image.get("src").partition(",")
    assert kind.startswith("data:image/svg+xml")
    assert unquote(content) == svg
