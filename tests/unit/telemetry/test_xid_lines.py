"""Lines as drivers 470 to 610 and NVSwitches write them."""

import pytest

from paceline.telemetry.xid_lines import (
    DETAIL_CHARS,
    SxidLine,
    XidLine,
    parse_address,
    parse_record,
    parse_sxid_record,
)


@pytest.mark.parametrize(
    ("record", "found"),
    [
        pytest.param(
            "3,1234,5140900123,-;NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, "
            "GPU has fallen off the bus.\n",
            XidLine((0, 0x3B, 0), 79, 5140900123, "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
            id="fallen off the bus",
        ),
        pytest.param(
            "4,88,17,-,caller=T4711;NVRM: Xid (PCI:0002:C1:00): 31, pid=2311, name=python, Ch 00000010, "
            "intr 00000000. MMU Fault: ENGINE GRAPHICS\n SUBSYSTEM=pci\n DEVICE=+pci:0002:c1:00.0\n",
            XidLine(
                (2, 0xC1, 0),
                31,
                17,
                "pid=2311, name=python, Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS",
            ),
            id="with caller, upper case and device properties",
        ),
        pytest.param(
            "3,9,20,-;NVRM: Xid (PCI:0000:01:00 GPU-I:05): 13, pid=1, name=x, Graphics SM Warp Exception\n",
            XidLine((0, 1, 0), 13, 20, "pid=1, name=x, Graphics SM Warp Exception"),
            id="MIG instance",
        ),
        pytest.param(
            "NVRM: Xid (0000:03:00): 45, Ch 00000001\n",
            XidLine((0, 3, 0), 45, 0, "Ch 00000001"),
            id="old form, no header",
        ),
        pytest.param(
            "[ 12.5] NVRM: Xid (PCI:0000:9b:00): 119, pid=77, name=nvidia-smi, Timeout after 6s of waiting for RPC",
            XidLine((0, 0x9B, 0), 119, 0, "pid=77, name=nvidia-smi, Timeout after 6s of waiting for RPC"),
            id="dmesg",
        ),
        pytest.param(
            "3,5,6,-;NVRM: Xid (PCI:0000:5d:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset)\n",
            XidLine((0, 0x5D, 0), 154, 6, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset)"),
            id="no pid",
        ),
        pytest.param(
            "3,5,6,-;NVRM: Xid (PCI:0000:3f:00): 46\n", XidLine((0, 0x3F, 0), 46, 6), id="a code and nothing else"
        ),
        pytest.param(
            "3,5,6,-;NVRM: Xid (PCI:0000:3f:00): 46, " + "x" * 5000,
            XidLine((0, 0x3F, 0), 46, 6, "x" * DETAIL_CHARS),
            id="too long a text is cut",
        ),
    ],
)
def test_an_xid_is_read(record: str, found: XidLine) -> None:
    assert parse_record(record) == found


@pytest.mark.parametrize(
    "record",
    [
        "6,1,2,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.65.06\n",
        "3,1,2,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)\n",
        "6,1,2,-;NVRM: GPU at PCI:0000:3b:00: GPU-5d2c8a3e-7f43-2f30-5c0f-4be0b6c1a1e5\n",
        "3,1,2,-;NVRM: Xid (PCI:garbage): 79, x\n",
        "3,1,2,-;NVRM: Xid (PCI:0000:3b:00): abc, x\n",
        "3,1,2,-;NVRM: Xid (PCI:0000:3b:00): 12345678901234567890, x\n",
        "4,1,2,-;someone wrote Xid (PCI:0000:3b:00): 79 into the log\n",
        "",
    ],
)
def test_other_lines_are_not(record: str) -> None:
    assert parse_record(record) is None


SWITCH = (0, 0xC1, 0)


@pytest.mark.parametrize(
    ("record", "found"),
    [
        pytest.param(
            "3,1,2,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46 MC TS crumbstore MCTO (First)\n",
            SxidLine(SWITCH, 28006, 2, "Non-fatal, Link 46 MC TS crumbstore MCTO (First)"),
            id="not fatal",
        ),
        pytest.param(
            "[ 1108.858286] nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 28 sourcetrack timeout error (First)",
            SxidLine(SWITCH, 24007, 0, "Fatal, Link 28 sourcetrack timeout error (First)"),
            id="fatal, dmesg",
        ),
        pytest.param(
            "[38889.018130] nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 10001, Host_priv_error",
            SxidLine(SWITCH, 10001, 0, "Host_priv_error"),
            id="old form, no severity",
        ),
    ],
)
def test_an_sxid_is_read(record: str, found: SxidLine) -> None:
    assert parse_sxid_record(record) == found
    assert parse_record(record) is None, "an NVSwitch is no GPU"


@pytest.mark.parametrize(
    "record",
    [
        "3,1,2,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Severity 0 Engine instance 60 Sub-engine instance 00\n",
        "3,1,2,-;nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Data {0x0000003c, 0x0000003c, 0x00000000}\n",
        "3,1,2,-;nvidia-nvswitch3: SXid (PCI:garbage): 22013, Fatal\n",
        "3,1,2,-;NVRM: Xid (PCI:0000:c1:00): 79, GPU has fallen off the bus.\n",
        "6,1,2,-;nvidia-nvswitch3: using MSI\n",
        "",
    ],
)
def test_registers_of_an_sxid_and_other_lines_are_no_sxid(record: str) -> None:
    assert parse_sxid_record(record) is None


def test_nvml_and_the_kernel_name_the_same_address() -> None:
    assert parse_address("00000000:3B:00.0") == parse_address("0000:3b:00") == (0, 0x3B, 0)
