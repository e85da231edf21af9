"""The models that ship with Paceline, by name. Nothing heavy is imported before it is asked for."""

from collections.abc import Callable
from typing import Final

from paceline.model.errors import NotFound
from paceline.serving.contract import Engine, EngineOptions, Tokenizer


def _char_tokenizer() -> Tokenizer:
    from paceline.serving.engine_char import CharTokenizer

    return CharTokenizer()


def _char_engine(options: EngineOptions) -> Engine:
    from paceline.serving.engine_char import CharEngine

    return CharEngine(token_period_s=float(options.get("token_period_s", 0.0)))


def _smol_tokenizer() -> Tokenizer:
    from paceline.serving.smol_files import SmolTokenizer

    return SmolTokenizer()


def _smol_engine(options: EngineOptions) -> Engine:
    from paceline.serving.engine_smol import SmolEngine

    return SmolEngine(device=str(options.get("device", "")))


_MODELS: Final[dict[str, tuple[Callable[[], Tokenizer], Callable[[EngineOptions], Engine]]]] = {
    "char": (_char_tokenizer, _char_engine),
    "smollm2": (_smol_tokenizer, _smol_engine),
}
NAMES: Final = tuple(_MODELS)


def check_installed(model: str) -> None:
    """Raises what loading would raise, in milliseconds: NotFound for an unknown model, HostSetup without its files."""
    _entry(model)
    if model == "smollm2":
        from paceline.serving.smol_files import gguf_path

        gguf_path()


def load_tokenizer(model: str) -> Tokenizer:
    """The gateway's half. Raises NotFound for an unknown model, HostSetup if its files are not installed."""
    return _entry(model)[0]()


def load_engine(model: str, options: EngineOptions) -> Engine:
    """The replica's half; may take seconds. Raises as `load_tokenizer`."""
    return _entry(model)[1](options)


def _entry(model: str) -> tuple[Callable[[], Tokenizer], Callable[[EngineOptions], Engine]]:
    if model not in _MODELS:
        raise NotFound("PL-FIND-101", f"no model {model!r}", f"one of: {', '.join(NAMES)}")
    return _MODELS[model]
