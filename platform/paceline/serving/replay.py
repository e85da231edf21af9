"""The bookkeeping of one answer across attempts: what has been emitted, who gave it, and how sure the rest is. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from paceline.model.errors import Unreachable
from paceline.serving.contract import Checked, EngineRequest, Hello, ModelCard, Params, ReplicaFacts, Resume


class Finish(StrEnum):
    """OpenAI's finish reasons."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(slots=True)
class Replay:
    """One answer. Any replica can go on with it from `emitted`."""

    session: str
    prompt_ids: tuple[int, ...]
    params: Params
    seed: int
    card: ModelCard
    """The gateway's own idea of the model; its tokenizer turns ids into text."""
    revision: str = ""
    """Of the engine that began the answer."""
    emitted: list[int] = field(default_factory=list)
    resumes: int = 0
    checked: int = 0
    matched: int = 0
    mode: Resume = Resume.NONE
    replica: ReplicaFacts | None = None
    finish: Finish | None = None

    def request(self, avoid: tuple[str, ...]) -> EngineRequest:
        return EngineRequest(self.session, self.prompt_ids, tuple(self.emitted), self.params, self.seed, avoid)

    def greeted(self, hello: Hello) -> None:
        """A replica took the attempt. Raises Unreachable if its token ids mean something else than ours."""
        if hello.card.tokenizer != self.card.tokenizer:
            problem = f"replica {hello.replica.replica_id} has another tokenizer: {hello.card.tokenizer}"
            raise Unreachable("PL-NET-103", problem, "roll out one model at a time")
        self.replica = hello.replica
        self.revision = self.revision or hello.card.revision
        if self.emitted and (hello.card.revision != self.revision or hello.card.resume is not Resume.EXACT):
            self.mode = Resume.PREFIX

    def verified(self, check: Checked) -> None:
        """What the new replica made of the tokens that were already emitted. One that differs, and equality is lost."""
        self.checked += check.checked
        self.matched += check.matched
        if self.mode is not Resume.PREFIX:
            same = check.checked > 0 and check.matched == check.checked
            self.mode = Resume.EXACT if same else Resume.PREFIX

    def lost(self) -> None:
        """The attempt ended too early. With nothing emitted there is nothing to resume: it is a plain new start."""
        self.replica = None
        if self.emitted:
            self.resumes += 1

    def expect(self, position: int) -> None:
        """Raises Unreachable unless tokens begin at the next position: none may be lost, none may come twice."""
        if position != len(self.emitted):
            raise Unreachable("PL-NET-102", f"the engine sent position {position}, {len(self.emitted)} is next")

    def accept(self, ids: Sequence[int]) -> None:
        self.emitted.extend(ids)
        if self.emitted[-1] in self.card.eos_ids:
            self.finish = Finish.STOP
        elif len(self.emitted) >= self.params.max_tokens:
            self.finish = Finish.LENGTH

    @property
    def completion_tokens(self) -> int:
        ended = bool(self.emitted) and self.emitted[-1] in self.card.eos_ids
        return len(self.emitted) - ended
