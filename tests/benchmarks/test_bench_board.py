"""Board identification and sensors, on made-up /proc, /sys and /etc."""

from __future__ import annotations

from pathlib import Path

import pytest
from deco_benchmarks.bench.board import identify
from deco_benchmarks.bench.sensors import pi_throttling, read_sensors

PI_CPUINFO = "".join(
    f"processor\t: {n}\nFeatures\t: fp asimd evtstrm aes crc32\nCPU implementer\t: 0x41\nCPU part\t: 0xd08\n\n"
    for n in range(4)
)
BIG_LITTLE = "".join(
    f"processor\t: {n}\nFeatures\t: asimd asimddp\nCPU implementer\t: 0x41\nCPU part\t: {part}\n\n"
    for n, part in enumerate(["0xd05"] * 4 + ["0xd0b"] * 4)
)
X86_CPUINFO = (
    "processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\nflags\t\t: fpu avx2 avx512f amx_bf16 sse4_2\nbugs\t: none\n"
)


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_raspberry_pi(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/device-tree/model": "Raspberry Pi 4 Model B Rev 1.4\0",
            "proc/cpuinfo": PI_CPUINFO,
            "proc/meminfo": "MemTotal:        3884136 kB\nMemFree: 1 kB\n",
            "etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
        },
    )
    board = identify(root)
    assert board["name"] == "Raspberry Pi 4 Model B Rev 1.4"
    assert board["processor"] == "4 × Cortex-A72"
    assert board["flags"] == ["asimd"]
    assert board["memory_mib"] == 3793
    assert board["system"] == "Debian GNU/Linux 12 (bookworm)"
    assert board["threads"] >= 1
    assert "jetson" not in board


def test_a_jetson(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "sys/firmware/devicetree/base/model": "NVIDIA Jetson Nano Developer Kit\0",
            "etc/nv_tegra_release": "# R32 (release), REVISION: 7.1, GCID: 1\nmore\n",
        },
    )
    board = identify(root)
    assert board["name"] == "NVIDIA Jetson Nano Developer Kit"
    assert board["jetson"] == "R32 (release), REVISION: 7.1, GCID: 1"


def test_two_kinds_of_cores_and_one_that_is_not_known(tmp_path: Path) -> None:
    board = identify(tree(tmp_path, {"proc/cpuinfo": BIG_LITTLE.replace("0xd05", "0xfff")}))
    assert board["name"] == board["processor"] == "4 × 0xfff + 4 × Cortex-A76"
    assert board["flags"] == ["asimd", "asimddp"]


def test_an_x86_machine_is_named_by_its_processor(tmp_path: Path) -> None:
    board = identify(tree(tmp_path, {"proc/cpuinfo": X86_CPUINFO}))
    assert board["name"] == "Some CPU @ 2.00GHz"
    assert board["flags"] == ["sse4_2", "avx2", "avx512f", "amx_bf16"]


def test_nothing_to_read_leaves_a_name(tmp_path: Path) -> None:
    board = identify(tmp_path)
    assert board["name"]
    assert "memory_mib" not in board
    assert read_sensors(tmp_path) == {}


def test_all_sensors(tmp_path: Path) -> None:
    cpu = "sys/devices/system/cpu"
    root = tree(
        tmp_path,
        {
            "sys/class/thermal/thermal_zone0/temp": "48312\n",
            "sys/class/thermal/thermal_zone0/type": "cpu-thermal\n",
            "sys/class/thermal/thermal_zone1/temp": "\n",
            "sys/class/thermal/cooling_device0/type": "thermal-cpufreq-0\n",
            "sys/class/thermal/cooling_device0/cur_state": "2\n",
            "sys/class/thermal/cooling_device1/type": "pwm-fan\n",
            "sys/class/thermal/cooling_device1/cur_state": "4\n",
            f"{cpu}/cpu0/cpufreq/scaling_cur_freq": "1500000\n",
            f"{cpu}/cpu1/cpufreq/scaling_cur_freq": "600000\n",
            f"{cpu}/cpu0/thermal_throttle/core_throttle_count": "3\n",
            f"{cpu}/cpu1/thermal_throttle/core_throttle_count": "5\n",
            "sys/devices/platform/soc/soc:firmware/get_throttled": "50005\n",
        },
    )
    assert read_sensors(root) == {
        "temperature_c": {"0 cpu-thermal": 48.312},
        "clock_mhz": {"cpu0": 1500.0, "cpu1": 600.0},
        "throttling": {
            "x86_core_events": 5,
            "cpu_cooling_steps": 2,
            "raspberry_pi": [
                "under-voltage now",
                "throttled now",
                "under-voltage has occurred",
                "throttling has occurred",
            ],
        },
    }


def test_words_of_a_raspberry_pi() -> None:
    assert pi_throttling("throttled=0x0") == []
    assert pi_throttling("throttled=0x80008") == ["soft temperature limit now", "soft temperature limit has occurred"]
    with pytest.raises(ValueError, match="invalid literal"):
        pi_throttling("VCHI initialization failed")
