"""Text from tokens: whole characters, no stop string, nothing lost at the end."""

import pytest

from paceline.serving.text import TextStream


def byte(token_id: int) -> bytes:
    return bytes((token_id,))


def shown(text: str, stop: tuple[str, ...] = ()) -> tuple[list[str], TextStream]:
    stream, pieces = TextStream(byte, stop), []
    for token_id in text.encode():
        pieces.append(stream.push(token_id))
        if stream.stopped:
            return pieces, stream
    pieces.append(stream.finish())
    return pieces, stream


def test_a_character_of_several_tokens_comes_whole() -> None:
    pieces, stream = shown("é漢🚲")
    assert [piece for piece in pieces if piece] == ["é", "漢", "🚲"]
    assert stream.text == "é漢🚲"


def test_half_a_character_at_the_end_is_marked() -> None:
    stream = TextStream(byte)
    assert stream.push(0xE6) == ""
    assert stream.finish() == "\ufffd"


def test_stop_string_is_never_shown() -> None:
    pieces, stream = shown("one STOP two", ("STOP",))
    assert stream.stopped
    assert "".join(pieces) == stream.text == "one "


@pytest.mark.parametrize("text", ["one STO", "SSTO", "STSTO"])
def test_what_looked_like_a_stop_string_comes_out_in_the_end(text: str) -> None:
    pieces, stream = shown(text, ("STOP",))
    assert not stream.stopped
    assert "".join(pieces) == text


def test_the_earliest_of_several_stop_strings_wins() -> None:
    assert shown("a##b", ("#b", "##"))[1].text == "a"
