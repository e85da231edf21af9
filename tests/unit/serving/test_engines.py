"""The shipped engines keep the contract: the next token depends on the prompt, and any position can be gone on from."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from paceline.model.errors import NotFound
from paceline.serving.contract import Beat, Checked, EngineRequest, Frame, Message, Params, Tokens
from paceline.serving.engine_char import CARD, CharEngine, CharTokenizer
from paceline.serving.models import load_engine
from paceline.serving.sampling import pick, shape, uniform

PROMPT = CharTokenizer().render([Message("user", "What is a generator?")])


def run(prompt: Sequence[int], emitted: Sequence[int], params: Params, seed: int = 3) -> tuple[list[int], list[int]]:
    """(emitted positions sampled again, new tokens)."""

    async def collect() -> tuple[list[int], list[int]]:
        again, fresh = [], []
        async for position, token_id in CharEngine().generate(prompt, emitted, params, seed):
            (again if position < len(emitted) else fresh).append(token_id)
            assert position == (len(emitted) - 1 if position < len(emitted) else len(emitted) + len(fresh) - 1) or again
        return again, fresh

    return asyncio.run(collect())


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
def test_any_position_gives_the_same_answer(temperature: float) -> None:
    params = Params(60, temperature, 0.95)
    _, whole = run(PROMPT, [], params)
    for cut in (1, 17, 59):
        again, rest = run(PROMPT, whole[:cut], params)
        assert whole[:cut] + rest == whole
        assert again == whole[:cut]


def test_the_answer_depends_on_the_whole_prompt_and_the_seed() -> None:
    params = Params(60, 0.8)
    earlier = CharTokenizer().render([Message("user", "zebra zebra"), Message("user", "What is a generator?")])
    assert run(PROMPT, [], params)[1] != run(earlier, [], params)[1]
    assert run(PROMPT, [], params, 1)[1] != run(PROMPT, [], params, 2)[1]


def test_dice_are_a_function_of_seed_and_position() -> None:
    draws = [uniform(5, position) for position in range(2000)]
    assert draws == [uniform(5, position) for position in range(2000)]
    assert all(0.0 <= draw < 1.0 for draw in draws)
    assert abs(sum(draws) / len(draws) - 0.5) < 0.02


def test_pick_never_takes_a_zero_weight() -> None:
    assert pick([0.0, 1.0, 0.0], 0.0) == 1
    assert pick([0.0, 1.0, 0.0], 0.999999) == 1
    assert [pick([1.0, 1.0, 2.0], draw) for draw in (0.0, 0.3, 0.6)] == [0, 1, 2]


def test_nucleus_keeps_the_likeliest() -> None:
    assert shape([0.1, 0.6, 0.3], 1.0, 0.5) == [0.0, 1.0, 0.0]
    assert shape([0.2, 0.4, 0.4], 1.0, 0.7)[0] == 0.0


def test_unknown_model_names_the_known_ones() -> None:
    with pytest.raises(NotFound, match="char"):
        load_engine("gpt-9", {})


def frames(engine: CharEngine, request: EngineRequest) -> list[Frame]:
    engine_module = pytest.importorskip("paceline.serving.engine")

    async def collect() -> list[Frame]:
        return [frame async for frame in engine_module.frames_of(engine, request)]

    return asyncio.run(collect())


def test_frames_carry_the_proof_before_the_tokens() -> None:
    _, whole = run(PROMPT, [], Params(30))
    request = EngineRequest("s", tuple(PROMPT), (*whole[:9], 255), Params(30), 3)
    first, *rest = frames(CharEngine(), request)
    assert first == Checked(10, 9), "the tenth token was forged"
    assert all(isinstance(frame, Tokens) for frame in rest)
    assert sum(len(frame.ids) for frame in rest if isinstance(frame, Tokens)) == 20


def test_a_slow_engine_beats() -> None:
    engine = CharEngine(token_period_s=0.25)
    seen = frames(engine, EngineRequest("s", tuple(PROMPT), (), Params(2), 3))
    assert any(isinstance(frame, Beat) for frame in seen)
    assert [frame.position for frame in seen if isinstance(frame, Tokens)] == [0, 1]


def test_an_engine_that_breaks_says_so() -> None:
    class Broken(CharEngine):
        card = CARD

        async def generate(
            self, prompt_ids: Sequence[int], emitted_ids: Sequence[int], params: Params, seed: int
        ) -> AsyncIterator[tuple[int, int]]:
            yield 0, 65
            raise ValueError("no memory")

    with pytest.raises(ValueError, match="no memory"):
        frames(Broken(), EngineRequest("s", tuple(PROMPT), (), Params(2), 3))
