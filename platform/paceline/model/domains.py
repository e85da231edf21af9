"""Failure domains of a host: what it shares with other hosts, and what takes them all along when it fails."""

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class DomainKind(StrEnum):
    RACK = "rack"
    SWITCH = "switch"
    POWER = "power"


LABEL_PREFIX: Final = "paceline.io/"
"""Of the node labels of Ray that name domains: `ray start --labels paceline.io/rack=r12`. They are a site's own and free to be anything
without a prefix, where `power` may well be 700."""
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
"""What Ray and Kubernetes take as the value of a label."""


def known(told: Mapping[str, str]) -> dict[str, str]:
    """Domains by kind. Other kinds, and names that no label can have, are left out."""
    return {kind.value: told[kind] for kind in DomainKind if _NAME.fullmatch(told.get(kind, ""))}


def of_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The domains of a node by its labels."""
    mine = {key: name for key, name in labels.items() if key.startswith(LABEL_PREFIX)}
    return known({key.removeprefix(LABEL_PREFIX): name for key, name in mine.items()})


def spell(domains: Mapping[str, str]) -> tuple[str, ...]:
    """Each domain as one word, `rack:r12`, sorted."""
    return tuple(sorted(f"{kind}:{name}" for kind, name in domains.items()))
