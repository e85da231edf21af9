"""Ports and PCI links from a tree that looks like /sys."""

from pathlib import Path

import pytest

from paceline.telemetry.sysfs import PciLink, read_pci, read_ports


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def infiniband(root: Path, name: str = "mlx5_0", **changed: str) -> None:
    files = {
        "ports/1/state": "4: ACTIVE",
        "ports/1/phys_state": "5: LinkUp",
        "ports/1/link_layer": "InfiniBand",
        "ports/1/rate": "400 Gb/sec (4X NDR)",
        "ports/1/counters/link_downed": "2",
        "ports/1/counters/symbol_error": "10",
        "ports/1/counters/port_rcv_errors": "5",
        "hca_type": "MT4129",
        "board_id": "MT_0000000838",
    }
    files |= {key.replace("__", "/"): text for key, text in changed.items()}
    write(root / "class/infiniband" / name, files)


def ethernet(root: Path, name: str = "eth0", **changed: str) -> None:
    files = {
        "flags": "0x1003",
        "type": "1",
        "operstate": "up",
        "speed": "200000",
        "carrier_down_count": "1",
        "statistics/rx_errors": "3",
        "statistics/tx_errors": "4",
        "device/vendor": "0x15b3",
        "device/device": "0x1021",
    }
    files |= {key.replace("__", "/"): text for key, text in changed.items()}
    write(root / "class/net" / name, files)


def test_an_infiniband_port(tmp_path: Path) -> None:
    infiniband(tmp_path)
    (port,) = read_ports(7, tmp_path)
    link = port.sample
    assert (link.name, link.kind, link.at_ns, link.up, link.rate_gbps) == ("mlx5_0/1", "ib", 7, True, 400.0)
    assert (link.link_downed, link.errors) == (2, 15)
    assert port.group == "ib MT4129 MT_0000000838"


@pytest.mark.parametrize(
    ("state", "physical"),
    [("1: DOWN", "2: Polling"), ("2: INIT", "5: LinkUp"), ("1: DOWN", "4: PortConfigurationTraining")],
)
def test_a_port_without_an_active_link_is_down(tmp_path: Path, state: str, physical: str) -> None:
    infiniband(tmp_path, ports__1__state=state, ports__1__phys_state=physical)
    (port,) = read_ports(0, tmp_path)
    assert not port.sample.up


@pytest.mark.parametrize(
    ("counter", "full"), [("link_downed", "255"), ("symbol_error", "65535"), ("port_rcv_errors", "4294967295")]
)
def test_a_counter_that_is_full_is_unknown(tmp_path: Path, counter: str, full: str) -> None:
    infiniband(tmp_path, **{f"ports__1__counters__{counter}": full})
    (port,) = read_ports(0, tmp_path)
    assert (port.sample.link_downed is None) == (counter == "link_downed")
    assert (port.sample.errors is None) == (counter != "link_downed")


def test_an_ethernet_port(tmp_path: Path) -> None:
    ethernet(tmp_path)
    (port,) = read_ports(0, tmp_path)
    link = port.sample
    assert (link.name, link.kind, link.up, link.rate_gbps) == ("eth0", "ethernet", True, 200.0)
    assert (link.link_downed, link.errors, port.group) == (1, 7, "ethernet 0x15b3:0x1021")


def test_a_port_that_is_down_has_no_rate(tmp_path: Path) -> None:
    ethernet(tmp_path, operstate="down", speed="-1")
    (port,) = read_ports(0, tmp_path)
    assert (port.sample.up, port.sample.rate_gbps) == (False, None)


def test_ports_that_are_none_or_are_switched_off_are_left_out(tmp_path: Path) -> None:
    write(tmp_path / "class/net/lo", {"flags": "0x9", "type": "772", "operstate": "unknown"})
    write(tmp_path / "class/net/veth1", {"flags": "0x1003", "type": "1", "operstate": "up"})
    write(tmp_path / "class/net/docker0", {"flags": "0x1003", "type": "1", "operstate": "down"})
    ethernet(tmp_path, "eth8", flags="0x1002", operstate="down")
    ethernet(tmp_path, "ib0", type="32")
    ethernet(tmp_path, "eth9", phys_port_name="pf0vf3")
    infiniband(tmp_path, "mlx5_8", ports__1__phys_state="3: Disabled")
    infiniband(tmp_path, "mlx5_9", ports__1__link_layer="Ethernet")
    assert read_ports(0, tmp_path) == ()


def test_a_machine_without_ports(tmp_path: Path) -> None:
    assert read_ports(0, tmp_path) == ()


def pci(root: Path, speed: str = "32.0 GT/s PCIe", width: str = "16", slot_width: str = "16") -> None:
    device = root / "devices/pci0000:00/0000:00:01.0/0000:3b:00.0"
    most = {"max_link_speed": "32.0 GT/s PCIe", "max_link_width": "16"}
    write(device, {"current_link_speed": speed, "current_link_width": width} | most)
    write(device.parent, most | {"max_link_width": slot_width})
    (root / "bus/pci/devices").mkdir(parents=True)
    (root / "bus/pci/devices/0000:3b:00.0").symlink_to(device)


def test_a_pci_link_by_the_address_that_nvml_writes(tmp_path: Path) -> None:
    pci(tmp_path, speed="16.0 GT/s PCIe", width="8")
    assert read_pci("00000000:3B:00.0", tmp_path) == PciLink(gen=4, width=8, gen_max=5, width_max=16)
    assert read_pci("00000000:3C:00.0", tmp_path) is None


def test_the_most_of_a_link_is_what_both_of_its_ends_can_do(tmp_path: Path) -> None:
    pci(tmp_path, width="8", slot_width="8")
    assert read_pci("00000000:3B:00.0", tmp_path) == PciLink(gen=5, width=8, gen_max=5, width_max=8)


def test_a_device_that_does_not_answer_has_no_link(tmp_path: Path) -> None:
    pci(tmp_path, speed="Unknown", width="255")
    link = read_pci("00000000:3B:00.0", tmp_path)
    assert link is not None
    assert (link.gen, link.width) == (None, None)
