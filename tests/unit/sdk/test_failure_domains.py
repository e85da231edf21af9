"""Where a host stands: of Ray's labels, those that name a failure domain."""

import pytest
from ray._private.label_utils import validate_label_key

from paceline.model.domains import LABEL_PREFIX, DomainKind, known, of_labels, spell
from paceline.model.ids import NodeId
from paceline.sdk.rows import AliveNode


def test_only_our_labels_of_a_node_are_read() -> None:
    labels = {
        "paceline.io/rack": "r12",
        "paceline.io/host": "host-1",
        "rack": "of another tool",
        "ray.io/node-id": "ab",
    }
    assert of_labels(labels) == {"rack": "r12"}
    assert of_labels({}) == {}


@pytest.mark.parametrize("kind", DomainKind)
def test_ray_takes_our_labels(kind: DomainKind) -> None:
    assert validate_label_key(LABEL_PREFIX + kind.value) is None


@pytest.mark.parametrize("name", ["", " ", "r 12", "-r12", "rack:r12", "r" * 64])
def test_what_no_label_can_be_is_no_name(name: str) -> None:
    assert known({"rack": name, "switch": "leaf.3_A-1"}) == {"switch": "leaf.3_A-1"}


def test_a_node_may_say_nothing_of_where_it_stands_or_more_than_we_know() -> None:
    assert AliveNode(node_id=NodeId("n")).domains == {}
    said = AliveNode.model_validate({"node_id": "n", "domains": {"row": "7", "power": "feedA", "rack": " "}})
    assert said.domains == {"power": "feedA"}


def test_domains_are_spelt_in_one_order() -> None:
    assert spell({"switch": "leaf3", "power": "A", "rack": "r12"}) == ("power:A", "rack:r12", "switch:leaf3")
