"""The systemd unit: what it says, how it quotes, what is refused; systemd's own reader judges it where there is one."""

from __future__ import annotations

import os
import shutil
import string
import subprocess
import sys
from pathlib import Path

import pytest
from bundles import without
from deco_runtime.commands import install_service as service
from deco_runtime.commands.install_service import Service, install_service, unit, word
from deco_runtime.errors import BundleError, DecoError, StateError, UsageError
from deco_runtime.storage.bundle_files import pack
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="systemd runs on Linux")

PROGRAM = [
    sys.executable,
    "-c",
    "import sys; sys.argv[0] = 'deco-run'; from deco_runtime.commands.run import main; main()",
]
ODD = "a b%n$HOME\\x41\"d'é:;#"

text = st.text(st.characters(exclude_categories=("C", "Z")) | st.just(" ")) | st.text(
    st.sampled_from("ab \"'\\$%{};:#nx0~-\t".replace("\t", ""))
)
paths = st.lists(text.map(lambda t: t.replace("/", "")).filter(lambda t: t not in ("", ".", "..")), min_size=1).map(
    lambda names: Path("/", *names)
)


def read(value: str, c_escapes: bool) -> list[str]:
    """The words of a unit's value, by systemd.syntax(7): quotes, escapes, then specifiers.

    c_escapes: whether `\\n` and the like stand for something, as in ExecStart; elsewhere a backslash only takes the
    next character as it is.
    """
    words: list[str] = []
    now, quote, inside = "", "", False
    rest = iter(value)
    for c in rest:
        if c == "\\":
            c = next(rest)
            assert c in "\\\"'" or not c_escapes, f"\\{c} means different things"
            now, inside = now + c, True
        elif quote and c == quote:
            quote = ""
        elif not quote and c in "\"'":
            quote, inside = c, True
        elif not quote and c in string.whitespace:
            words, now, inside = [*words, now] if inside else words, "", False
        else:
            now, inside = now + c, True
    assert not quote
    return [expanded(w) for w in ([*words, now] if inside else words)]


def expanded(text: str) -> str:
    assert "%" not in text.replace("%%", ""), "a specifier"
    return text.replace("%%", "%")


def values(unit: str, key: str) -> list[str]:
    return [line.partition("=")[2] for line in unit.splitlines() if line.startswith(f"{key}=")]


@given(st.lists(text))
def test_words_are_read_back(words: list[str]) -> None:
    value = " ".join(map(word, words))
    assert "\n" not in value
    for c_escapes in (True, False):
        assert read(value, c_escapes) == words


@given(bundle=paths, state=st.none() | paths, program=paths, needed=st.lists(paths), device=paths, remote=st.booleans())
def test_any_path_arrives_as_it_is(
    bundle: Path, state: Path | None, program: Path, needed: list[Path], device: Path, remote: bool
) -> None:
    camera = f"http:/{device}" if remote else f"/dev{device}"
    made = unit(Service("deco", bundle, (camera,), state, None, None, program, tuple(needed)))
    (command,) = values(made, "ExecStart")
    assert command[0] == ":"  # no $VARIABLES
    assert read(command[1:], c_escapes=True) == [
        *(str(program), "-m", "deco_runtime.commands.run", "--bundle", str(bundle)),
        *("--state", str(state or "/var/lib/deco"), "--video" if remote else "--camera", camera),
    ]
    binds = [read(value, c_escapes=False) for value in values(made, "BindReadOnlyPaths")]
    assert binds == [[str(path)] for path in (bundle, *needed)]
    assert [read(v, c_escapes=False) for v in values(made, "BindPaths")] == ([[str(state)]] if state else [])
    assert not any(":" in v and v[0] != '"' for v in values(made, "BindReadOnlyPaths"))  # a:b is two paths
    (mounts,) = values(made, "RequiresMountsFor")
    assert read(mounts, c_escapes=False) == [str(path) for path in (bundle, state) if path]
    assert values(made, "DeviceAllow") == ([] if remote else ["char-video4linux rw"])
    assert all(line == "" or line[0] in "[#" or line.partition("=")[0].isalpha() for line in made.splitlines())


def example(camera: str, user: str | None = None, state: Path | None = None) -> str:
    return unit(Service("deco", Path("/opt/bundle"), (camera,), state, user, None, Path("/opt/venv/bin/python"), ()))


def test_a_camera_of_this_machine_has_no_network() -> None:
    lines = example("/dev/video0").splitlines()
    for line in (
        *("Type=notify", "WatchdogSec=60", "Restart=on-failure", "KillSignal=SIGTERM", "DynamicUser=yes"),
        *("StateDirectory=deco", "SupplementaryGroups=video", "DeviceAllow=char-video4linux rw", "PrivateNetwork=yes"),
        *("RestrictAddressFamilies=AF_UNIX", "ProtectSystem=strict", "NoNewPrivileges=yes", "PrivateTmp=yes"),
    ):
        assert line in lines
    assert "PrivateDevices=yes" not in lines


def test_a_camera_in_the_network_has_no_device() -> None:
    lines = example("rtsp://camera/1").splitlines()
    assert "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6" in lines
    assert "PrivateDevices=yes" in lines
    assert "After=network-online.target" in lines
    assert not [line for line in lines if line.startswith(("PrivateNetwork", "DeviceAllow", "SupplementaryGroups"))]


def test_a_user_keeps_state_where_it_likes() -> None:
    lines = example("/dev/video0", "pi", Path("/data/state")).splitlines()
    assert "User=pi" in lines
    assert "BindPaths=/data/state" in lines
    assert not [line for line in lines if line.startswith(("DynamicUser", "StateDirectory"))]


# The command.


@pytest.fixture
def bundle(tmp_path: Path, bundle_path: Path) -> Path:
    """A copy that every user may read, with a name that needs all of the quoting."""
    copy = shutil.copytree(bundle_path, tmp_path / ODD)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return copy


@pytest.fixture
def units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for /etc/systemd/system."""
    (tmp_path / "units").mkdir()
    monkeypatch.setattr(service, "UNITS", tmp_path / "units")
    return tmp_path / "units"


def install(bundle: Path, *more: str | Path, camera: str = "0") -> None:
    install_service.main(["--bundle", str(bundle), "--camera", camera, *map(str, more)], standalone_mode=False)


def test_it_writes_the_unit_and_says_how_to_start_it(
    bundle: Path, units: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for camera in ("0", "1"):  # its own unit it replaces
        install(bundle, "--name", "porch", camera=camera)
        assert "systemctl daemon-reload && systemctl enable --now porch\n" in capsys.readouterr().out
    made = (units / "porch.service").read_text()
    command = read(values(made, "ExecStart")[0][1:], c_escapes=True)
    assert command[3:] == ["--bundle", str(bundle), "--state", "/var/lib/porch", "--camera", "/dev/video1"]
    assert os.path.isabs(command[0])
    assert word(str(bundle)) in values(made, "BindReadOnlyPaths")


def test_it_learns_by_the_recipe_that_is_asked_for(bundle: Path, units: Path) -> None:
    for recipe in ("deco+", "paper"):
        install(bundle, "--recipe", recipe)
        command = read(values((units / "deco.service").read_text(), "ExecStart")[0][1:], c_escapes=True)
        assert command[-2:] == ["--recipe", recipe]
    without(bundle, "buffer.npz")
    refused(BundleError, "expected a bundle with condensed images", bundle, "--recipe", "paper")
    install(bundle, "--recipe", "deco+")


def test_print_writes_nothing_but_the_unit(bundle: Path, units: Path, capsys: pytest.CaptureFixture[str]) -> None:
    install(bundle, "--print", camera="/dev/v4l/by-id/usb-x")
    said = capsys.readouterr()
    assert said.out.startswith("# Written by deco-run install-service")
    assert said.out.endswith("WantedBy=multi-user.target\n")
    assert "--camera /dev/v4l/by-id/usb-x\n" in said.out
    assert "systemctl enable --now deco" in said.err
    assert list(units.iterdir()) == []


def test_a_password_is_for_root_alone(bundle: Path, units: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Everyone may read a unit and the list of processes."""
    url = r"""rtsp://user:Se"c\r`e$t/@10.0.0.7/live?token=Secret"""
    install(bundle, camera=url)
    made = (units / "deco.service").read_text()
    assert "10.0.0.7" not in made
    assert "Secret" not in made
    command = read(values(made, "ExecStart")[0][1:], c_escapes=True)
    assert "--video" not in command
    assert "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6" in made.splitlines()
    assert values(made, "EnvironmentFile") == [str(units / "deco.env")]
    kept = units / "deco.env"
    assert kept.stat().st_mode & 0o777 == 0o600
    # A shell reads it as systemd does.
    shell = ["sh", "-c", '. "$1"; printf %s "$DECO_RUN_VIDEO"', "sh", str(kept)]
    assert subprocess.run(shell, capture_output=True, text=True, check=True).stdout == url
    install(bundle, "--print", camera=url)
    said = capsys.readouterr()
    assert "Secret" not in said.out + said.err
    assert 'write DECO_RUN_VIDEO="rtsp://***@10.0.0.7/live?token=***", with what is hidden here, to' in said.err
    install(bundle, camera="rtsp://10.0.0.7/live")
    assert [path.name for path in units.iterdir()] == ["deco.service"]


def test_the_page_opens_the_network(bundle: Path, units: Path) -> None:
    install(bundle, "--page", "0.0.0.0:8080", camera="0")
    made = (units / "deco.service").read_text()
    assert read(values(made, "ExecStart")[0][1:], c_escapes=True)[-2:] == ["--page", "0.0.0.0:8080"]
    assert "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6" in made.splitlines()
    assert not values(made, "PrivateNetwork")
    assert values(made, "DeviceAllow") == ["char-video4linux rw"]
    refused(UsageError, "expected --page HOST:PORT", bundle, "--page", "here:there")


@pytest.mark.parametrize("camera", ["0", "rtsp://camera/1"])
def test_answers_go_out(camera: str, bundle: Path, units: Path) -> None:
    """A network address opens the network, and nothing else: a local camera keeps its devices."""
    install(bundle, "--output", "-", "--output", "http://127.0.0.1:8123", camera=camera)
    made = (units / "deco.service").read_text()
    command = read(values(made, "ExecStart")[0][1:], c_escapes=True)
    assert command[-4:] == ["--output", "-", "--output", "http://127.0.0.1:8123"]
    lines = made.splitlines()
    assert "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6" in lines
    assert "After=network-online.target" in lines
    assert not values(made, "PrivateNetwork")
    assert ("DeviceAllow=char-video4linux rw" in lines) == (camera == "0")
    install(bundle, "--output", "-", camera="0")
    made = (units / "deco.service").read_text()
    assert values(made, "PrivateNetwork") == ["yes"]
    assert values(made, "RestrictAddressFamilies") == ["AF_UNIX"]
    refused(UsageError, "expected --output to be one of", bundle, "--output", "door")


def test_secrets_of_answers_are_for_root_alone(bundle: Path, units: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs = ["https://me:Se%24cret@ha.local/api/webhook/Secret", "http://other:1"]
    options = [word_ for output in outputs for word_ in ("--output", output)]
    install(bundle, *options, camera="0")
    made = (units / "deco.service").read_text()
    assert "Secret" not in made
    assert "--output" not in made
    assert "--camera" in made
    shell = ["sh", "-c", '. "$1"; printf %s "$DECO_RUN_OUTPUT"', "sh", str(units / "deco.env")]
    assert subprocess.run(shell, capture_output=True, text=True, check=True).stdout == " ".join(outputs)
    install(bundle, *options, camera="rtsp://user:Secret@10.0.0.7/live")
    assert (units / "deco.env").read_text().count("\n") == 2
    install(bundle, "--print", *options)
    said = capsys.readouterr()
    assert "Secret" not in said.out + said.err
    assert 'write DECO_RUN_OUTPUT="https://ha.local/*** http://other:1", with what is hidden here, to' in said.err


def test_several_cameras_and_what_of_them_is_looked_at(bundle: Path, units: Path) -> None:
    """deco-run takes devices first, and so do the options that are given for each."""
    more = ["--camera", "2", "--roi", "0,0,50%,1", "--roi", "1,2,3,4", "--rotate", "90", "--every", "3"]
    install(bundle, *more, camera="rtsp://10.0.0.7/live")
    made = (units / "deco.service").read_text()
    command = read(values(made, "ExecStart")[0][1:], c_escapes=True)
    assert command[7:] == [
        *("--camera", "/dev/video2", "--video", "rtsp://10.0.0.7/live"),
        *("--roi", "1,2,3,4", "--roi", "0%,0%,50%,100%", "--rotate", "90", "--every", "3"),
    ]
    lines = made.splitlines()
    for line in ("DeviceAllow=char-video4linux rw", "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6"):
        assert line in lines
    assert not {"PrivateDevices=yes", "PrivateNetwork=yes"} & {*lines}
    install(bundle, "--camera", "http://a/1?token=Secret", "--camera", "1", camera="rtsp://user:pw@b/2")
    made = (units / "deco.service").read_text()
    assert read(values(made, "ExecStart")[0][1:], c_escapes=True)[7:] == ["--camera", "/dev/video1"]
    kept = (units / "deco.env").read_text()
    assert kept == 'DECO_RUN_VIDEO="rtsp://user:pw@b/2 http://a/1?token=Secret"\n'


def test_what_of_no_camera_can_be_looked_at(bundle: Path, units: Path) -> None:
    refused(UsageError, "expected four numbers X,Y,WIDTH,HEIGHT", bundle, "--roi", "1,2")
    refused(UsageError, "expected one --rotate for all pictures", bundle, "--rotate", "90", "--rotate", "0")


def test_the_variable_is_the_option(bundle_path: Path) -> None:
    program = "import sys; sys.argv[0] = 'deco-run'; from deco_runtime.commands.run import main; main()"
    command = [sys.executable, "-c", program, "--bundle", str(bundle_path), "--no-learn"]
    given = {**os.environ, "DECO_RUN_VIDEO": "rtsp://user:Secret@127.0.0.1:9/x"}
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 6
    assert done.stderr.startswith(
        "error: expected a video stream at rtsp://***@127.0.0.1:9/x, found that 127.0.0.1 refuses"
    )


def refused(kind: type[DecoError], words: str, bundle: Path, *more: str | Path, camera: str = "0") -> None:
    with pytest.raises(kind) as caught:
        install(bundle, *more, camera=camera)
    assert words in str(caught.value)
    assert str(caught.value).startswith("expected ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("camera", ["", "front", "/dev/../etc/shadow", "-1", "²", "http://a\nb", "/dev/a\nExecStart=b"])
def test_a_camera_that_cannot_be(camera: str, bundle: Path, units: Path) -> None:
    refused(UsageError, "expected --camera to be a number, a path below /dev or a URL", bundle, camera=camera)


@pytest.mark.parametrize("name", ["", ".", "../sshd", "a b", "a@b", "a.service", "-a", "é", "a" * 200, "a\n"])
def test_a_name_that_cannot_be(name: str, bundle: Path, units: Path) -> None:
    refused(UsageError, "expected --name to be of letters", bundle, "--name", name)


def test_users_and_state_that_cannot_be(bundle: Path, units: Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("precious")
    refused(UsageError, "found no 'nobody-here'", bundle, "--user", "nobody-here")
    refused(StateError, "found a file; choose another --state", bundle, "--state", tmp_path / "file")
    refused(UsageError, "expected --user beside --state", bundle, "--state", tmp_path / "s")
    import pwd

    me = pwd.getpwuid(os.getuid()).pw_name
    mine = (bundle, "--user", me, "--state", tmp_path / "s")
    refused(StateError, "but there is none; run: install -d -o", *mine)
    (tmp_path / "s").mkdir(mode=0o500)
    refused(StateError, "but it may not write there", *mine)
    (tmp_path / "s").chmod(0o700)
    install(*mine)
    monkeypatch.setattr(service, "STATES", tmp_path)
    refused(StateError, "found a file; choose another --state", bundle, "--name", "file")


def test_bundles_that_cannot_be(bundle: Path, units: Path, tmp_path: Path) -> None:
    refused(DecoError, "expected a bundle at", tmp_path / "none")
    refused(UsageError, "expected a path of printable characters", tmp_path / "a\nUser=root")
    (bundle / "graphs").chmod(0o700)
    refused(UsageError, "graphs to be readable for every user", bundle)
    (bundle / "graphs").chmod(0o755)
    (bundle / "weights.npy").chmod(0o640)
    refused(UsageError, "weights.npy to be readable for every user", bundle)
    (bundle / "weights.npy").write_bytes(b"")
    refused(DecoError, "its hash differs", bundle)


def test_a_bundle_that_is_one_file(
    bundle: Path, units: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "b.deco"
    pack(bundle, file)
    file.chmod(0o640)
    refused(UsageError, "b.deco to be readable for every user", file)
    file.chmod(0o644)
    install(file, "--print")
    made = capsys.readouterr().out
    assert str(file) in values(made, "BindReadOnlyPaths")
    assert read(values(made, "ExecStart")[0][1:], c_escapes=True)[3:5] == ["--bundle", str(file)]


def test_a_unit_that_may_not_be_written(
    bundle: Path, units: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (units / "ssh.service").write_text("[Unit]\n")
    refused(UsageError, "found another unit; choose another --name", bundle, "--name", "ssh")
    (units / "off.service").symlink_to("/dev/null")
    refused(UsageError, "found another unit; choose another --name", bundle, "--name", "off")
    monkeypatch.setattr(service, "UNITS", units / "ssh.service")  # root may write anywhere else
    refused(UsageError, "run it with sudo, or with --print", bundle)
    assert (units / "ssh.service").read_text() == "[Unit]\n"


def test_what_the_sandbox_hides_is_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "HIDDEN", (tmp_path,))
    inside = tmp_path / "venv"
    (tmp_path / "link").symlink_to(inside)
    given = (Path("/usr"), inside, inside / "lib", tmp_path / "link", tmp_path / "bundle" / "x")
    assert service._hidden(given, tmp_path / "bundle") == (tmp_path / "link", inside)


def deco_run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, timeout=60, check=False)


def test_the_command_is_part_of_deco_run(tmp_path: Path) -> None:
    assert "deco-run install-service --help" in deco_run("--help").stdout
    helped = deco_run("install-service", "-h")
    assert helped.stdout.startswith("Usage: deco-run install-service [OPTIONS]\n")
    assert helped.returncode == 0
    done = deco_run("install-service", "--bundle", tmp_path, "--camera", "0")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("error: expected a bundle at")
    assert done.stderr.count("\n") == 1
    done = deco_run("install-service", "--bundle", tmp_path)
    assert (done.returncode, done.stderr) == (2, "error: Missing option '--camera'; see --help\n")


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze, from the package systemd")
@pytest.mark.parametrize("camera", ["0", "rtsp://user:p%20w@camera/1?a=b&c=$d"])
@pytest.mark.parametrize("outputs", [(), ("--output", "http://host:1", "--output", "-")])
def test_systemd_takes_the_unit(camera: str, outputs: tuple[str, ...], bundle: Path, units: Path) -> None:
    install(bundle, *outputs, camera=camera)
    command = ["systemd-analyze", "verify", "--man=no", str(units / "deco.service")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    newer = ("RestartSteps", "RestartMaxDelaySec")  # than systemd 253, which says that it leaves them out
    complaints = [line for line in done.stderr.splitlines() if "deco" in line and not any(key in line for key in newer)]
    assert complaints == []
    assert done.returncode == 0
