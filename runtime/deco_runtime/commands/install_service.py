"""deco-run install-service: a systemd unit that starts deco-run at boot, watches it and locks it in."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from deco_runtime.commands.recipes import RecipeName
from deco_runtime.commands.view_options import view_options, words
from deco_runtime.errors import RuntimeMissingError, StateError, UsageError
from deco_runtime.learning import registry
from deco_runtime.page.access import parse
from deco_runtime.sources.video import VARIABLE
from deco_runtime.telemetry.console import say
from deco_runtime.telemetry.output import VARIABLE as OUTPUTS
from deco_runtime.telemetry.output import open_way, way_of
from deco_runtime.telemetry.output.options import checked
from deco_runtime.telemetry.redact import redact

if TYPE_CHECKING:
    from deco_runtime.storage.bundle import Bundle

UNITS = Path("/etc/systemd/system")
STATES = Path("/var/lib")
"""Below it systemd makes a service's StateDirectory, and gives it to whoever the service runs as."""

MARK = "# Written by deco-run install-service"
HIDDEN = tuple(map(Path, ("/home", "/root", "/run/user", "/tmp", "/var/tmp")))
"""What the sandbox replaces by something empty; what is needed from there has to be bound into it."""

_LOCAL = ("SupplementaryGroups=video", "DevicePolicy=closed", "DeviceAllow=char-video4linux rw")
"""For a camera of this machine: any, since one that is plugged in again may come back under another number."""


@dataclass(frozen=True)
class Service:
    """What a unit depends on. All paths are absolute.

    cameras: devices, and behind them URLs. view: options that say what of the pictures is looked at. state: None for
    systemd's own directory STATES/name. user: None for one that systemd makes up. recipe: None for the bundle's own.
    program: the interpreter. needed: further directories of the program that the sandbox would hide. secret: a file
    that keeps what everybody could read in the unit, None where that is nothing. hidden: the variables that it sets.
    outputs: addresses of `--output`. page: HOST:PORT of `--page`, None for no page.
    """

    name: str
    bundle: Path
    cameras: tuple[str, ...]
    state: Path | None
    user: str | None
    recipe: str | None
    program: Path
    needed: tuple[Path, ...]
    secret: Path | None = None
    view: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    page: str | None = None

    @property
    def remote(self) -> bool:
        """Whether a camera is somewhere in the network."""
        return any(map(_is_remote, self.cameras))

    @property
    def local(self) -> bool:
        """Whether a camera is at this machine."""
        return not all(map(_is_remote, self.cameras))

    @property
    def network(self) -> bool:
        """Whether frames come from there, answers go there, be it to a broker of this machine, or the page is there."""
        return self.remote or self.page is not None or any(way_of(address).NETWORK for address in self.outputs)


def word(text: str) -> str:
    """One word of a unit's value, as all systemd versions read it, whatever printable characters it has.

    Only these two escapes mean the same in every directive; `$` is left alone because ExecStart is given a `:`.
    """
    plain = text.replace("%", "%%")
    if re.fullmatch(r"[\w./%@+,=-]+", plain, re.ASCII):
        return plain
    return '"' + plain.replace("\\", "\\\\").replace('"', '\\"') + '"'


def unit(service: Service) -> str:
    """The text of the unit; docs/guide/service.md says what each line is for."""
    bundle, network, state = word(str(service.bundle)), service.network, service.state
    arguments = ["-m", "deco_runtime.commands.run", "--bundle", str(service.bundle)]
    arguments += ["--state", str(state or STATES / service.name)]
    for camera in service.cameras:
        if not _is_remote(camera):
            arguments += ["--camera", camera]
        elif VARIABLE not in service.hidden:
            arguments += ["--video", camera]
    arguments += service.view
    arguments += ["--recipe", service.recipe] if service.recipe else []
    arguments += ["--page", service.page] if service.page else []
    if OUTPUTS not in service.hidden:
        arguments += [each for address in service.outputs for each in ("--output", address)]
    lines = [
        f"{MARK}; `systemctl edit {service.name}` changes it, docs/guide/service.md explains it.",
        "[Unit]",
        "Description=DECO: predicts every frame of a camera and learns from it",
        f"RequiresMountsFor={bundle}" + (f" {word(str(state))}" if state else ""),
        *(["Wants=network-online.target", "After=network-online.target"] if network else []),
        "# A camera that stays away is waited for without end; what fails faster than RestartSec= is not.",
        *("StartLimitIntervalSec=5min", "StartLimitBurst=40", ""),
        *("[Service]", "Type=notify"),
        *([f"EnvironmentFile={word(str(service.secret))}"] if service.secret else []),
        f"ExecStart=:{' '.join(map(word, [str(service.program), *arguments]))}",
        "# Where each thread was goes to the journal when the watchdog ends the program.",
        *("Environment=PYTHONFAULTHANDLER=1", "LimitCORE=0"),
        *("WatchdogSec=60", "TimeoutStartSec=5min", "TimeoutStopSec=5min", "KillSignal=SIGTERM"),
        *("Restart=on-failure", "RestartSec=10"),
        "# The back-off is known to systemd 254 and later; older ones say so, and wait 10 seconds each time.",
        *("RestartSteps=4", "RestartMaxDelaySec=60"),
        "# Options, bundle, runtime or state: only a person can mend these.",
        "RestartPreventExitStatus=2 4 5 7",
        "",
        f"User={service.user}" if service.user else "DynamicUser=yes",
        f"BindPaths={word(str(state))}" if state else f"StateDirectory={service.name}\nStateDirectoryMode=0700",
        "UMask=0077",
        *(f"BindReadOnlyPaths={word(str(path))}" for path in (service.bundle, *service.needed)),
        *("ProtectSystem=strict", "ProtectHome=tmpfs", "PrivateTmp=yes"),
        *(_LOCAL if service.local else ["PrivateDevices=yes"]),
        *([] if network else ["PrivateNetwork=yes"]),
        f"RestrictAddressFamilies=AF_UNIX{' AF_INET AF_INET6' if network else ''}",
        *("NoNewPrivileges=yes", "CapabilityBoundingSet="),
        *("SystemCallArchitectures=native", "SystemCallFilter=@system-service", "SystemCallErrorNumber=EPERM"),
        "# Not with --engine openvino, which writes machine code while it runs.",
        "MemoryDenyWriteExecute=yes",
        "ProtectProc=invisible",
        *(f"Protect{what}=yes" for what in ("Clock", "ControlGroups", "Hostname")),
        *(f"ProtectKernel{what}=yes" for what in ("Logs", "Modules", "Tunables")),
        *(f"Restrict{what}=yes" for what in ("Namespaces", "Realtime", "SUIDSGID")),
        "LockPersonality=yes",
        "# Learning takes what the other services leave.",
        *("CPUWeight=50", "IOWeight=50", ""),
        *("[Install]", "WantedBy=multi-user.target"),
    ]
    return "\n".join(lines) + "\n"


@click.command("install-service", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--bundle",
    required=True,
    type=click.Path(path_type=Path),
    metavar="BUNDLE",
    help="Directory or .deco file made by deco-export.",
)
@click.option(
    "--camera",
    "cameras",
    required=True,
    multiple=True,
    metavar="INDEX|DEVICE|URL",
    help="0 for the first camera of this machine, its device such as /dev/video0, or a network camera's URL. Given "
    "more than once, all of them teach one learner.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help=f"Where learned state is kept; any but the default needs --user.  [default: {STATES}/NAME]",
)
@click.option("--recipe", type=RecipeName(), help="As for deco-run.  [default: the bundle's]")
@click.option(
    "--output",
    "outputs",
    multiple=True,
    callback=checked,
    metavar="WHERE",
    help="As for deco-run; - is the journal. An address opens the network to the service.",
)
@click.option(
    "--page",
    metavar="HOST:PORT",
    help="As for deco-run. It opens the network to the service; where the page asks for a token, the journal tells it.",
)
@click.option("--user", metavar="NAME", help="Who the service runs as.  [default: a user that systemd makes up]")
@click.option("--name", default="deco", show_default=True, metavar="NAME", help="Of the service.")
@click.option("--print", "show", is_flag=True, help="Write the unit to standard output, and to no file.")
def install_service(
    bundle: Path,
    cameras: tuple[str, ...],
    state: Path | None,
    recipe: str | None,
    outputs: tuple[str, ...],
    page: str | None,
    user: str | None,
    name: str,
    show: bool,
    **view: Any,
) -> None:
    """Make a systemd service of this machine that predicts and learns from boot to shutdown.

    Writes /etc/systemd/system/NAME.service and says how to start it; starts nothing.

    \b
    sudo $(which deco-run) install-service --bundle bundle --camera 0
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", name):
        raise UsageError(
            f"expected --name to be of letters, digits, _ and -, but found {name!r}; choose another such as deco"
        )
    if page is not None:
        parse(page)  # raises
    groups = _groups(user)
    if util.find_spec("cv2") is None:
        raise RuntimeMissingError(
            "expected OpenCV, which the service needs, but found no module cv2; install 'deco-edge[device]'"
        )
    from deco_runtime.storage.bundle import open_bundle  # not at the top: --help must not need OpenCV

    opened = open_bundle(_absolute(bundle))
    if recipe:
        registry.started(registry.learner(recipe), opened)  # raises: a service that cannot start is no use
    directory = _state(state, name, user, groups)
    program = _absolute(Path(sys.executable))
    if re.search(r"[\"'\\]", str(program)):
        raise UsageError(f"expected Python at a path without quotes, but found {program}; install deco-edge elsewhere")
    _check_readable((*_files(opened), program, Path(__file__)), user, groups)
    packages = Path(__file__).absolute().parents[1]
    needed = _hidden((Path(sys.prefix), Path(sys.base_prefix), packages, opened.path.resolve()), opened.path)
    given = [_camera(each) for each in cameras]
    order = sorted(range(len(given)), key=lambda i: _is_remote(given[i]))  # as deco-run takes them
    given, looked = [given[i] for i in order], words(order, **view)
    target, kept = UNITS / f"{name}.service", _secrets([each for each in given if _is_remote(each)], outputs)
    secret = target.with_suffix(".env") if kept else None
    place = (name, opened.path, tuple(given), directory, user, recipe, program, needed)
    text = unit(Service(*place, secret, looked, tuple(kept), outputs, page))
    start = f"systemctl daemon-reload && systemctl enable --now {name}"
    if show:
        click.echo(text, nl=False)
        for variable, (_, shown) in kept.items():
            say(f'write {variable}="{shown}", with what is hidden here, to {secret}, for root alone (mode 600)')
        say(f"write this to {target}, then: {start}")
        return
    _check_ours(target)
    if secret is not None:
        _write(secret, "".join(f"{name}={_quoted(value)}\n" for name, (value, _) in kept.items()), 0o600)
    _write(target, text, 0o644)
    if secret is None:
        target.with_suffix(".env").unlink(missing_ok=True)  # of a camera before this one
    click.echo(f"wrote {target}; start it, now and at every boot, with\n{start}")


install_service.params += view_options()


def _secrets(urls: list[str], outputs: tuple[str, ...]) -> dict[str, tuple[str, str]]:
    """Variables for what must not stand in a unit: the value, and how it may be shown."""
    ways = [address if address == "-" else open_way(address).name for address in outputs]
    found = {
        VARIABLE: (" ".join(urls), " ".join(map(redact, urls))),
        OUTPUTS: (" ".join(outputs), " ".join(ways)),
    }
    return {name: (value, shown) for name, (value, shown) in found.items() if value != shown}


def _check_ours(target: Path) -> None:
    """Raise UsageError where another's unit, or none that can be read, has this name."""
    try:
        ours = not os.path.lexists(target) or (not target.is_symlink() and target.read_text("utf-8").startswith(MARK))
    except (OSError, UnicodeDecodeError) as error:
        raise _refused(target, error) from error
    if not ours:
        raise UsageError(f"expected {target} to be new or of deco-run, but found another unit; choose another --name")


def _write(target: Path, text: str, mode: int) -> None:
    """A file that no other user can read before it has its mode, and that is whole or not there."""
    partial = target.with_name(f".{target.name}.partial")
    try:
        partial.unlink(missing_ok=True)
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        partial.chmod(mode)
        os.replace(partial, target)
    except OSError as error:
        raise _refused(target, error) from error


def _refused(target: Path, error: OSError | UnicodeDecodeError) -> UsageError:
    said = error.strerror if isinstance(error, OSError) else "it is no text"
    return UsageError(f"expected to write {target}, but the system says: {said}; run it with sudo, or with --print")


def _quoted(text: str) -> str:
    """A value of an EnvironmentFile, whatever printable characters it has."""
    return '"' + re.sub(r'(["\\`$])', r"\\\1", text) + '"'


def _absolute(path: Path) -> Path:
    whole = Path(os.path.abspath(path))
    if not str(whole).isprintable():
        raise UsageError(f"expected a path of printable characters, but found {str(whole)!r}; rename it")
    return whole


def _camera(given: str) -> str:
    if "://" in given and given.isprintable():
        return given
    device = f"/dev/video{given}" if given.isascii() and given.isdecimal() else os.path.normpath(given)
    if not device.startswith("/dev/") or not device.isprintable():
        raise UsageError(
            f"expected --camera to be a number, a path below /dev or a URL, but found {given!r}; change it"
        )
    return device


def _is_remote(camera: str) -> bool:
    return "://" in camera


def _groups(user: str | None) -> tuple[int, frozenset[int]]:
    """The user's number, and those of its groups; −1 and none for a user that does not exist yet."""
    if user is None:
        return -1, frozenset()
    import pwd  # not at the top: there are systems without

    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise UsageError(
            f"expected --user to name a user of this machine, but found no {user!r}; leave it out, or make one"
        ) from None
    return entry.pw_uid, frozenset(os.getgrouplist(user, entry.pw_gid))


def _state(given: Path | None, name: str, user: str | None, groups: tuple[int, frozenset[int]]) -> Path | None:
    """The directory to bind, or None for systemd's own, which it makes when the service starts."""
    own = STATES / name
    path = own if given is None else _absolute(given)
    if os.path.isfile(path):
        raise StateError(f"expected a directory for learned state at {path}, but found a file; choose another --state")
    if path == own:
        return None
    if user is None:
        raise UsageError(
            f"expected --user beside --state {path}, because a user that systemd makes up can only keep {own}; "
            "name who owns the directory, or leave --state out"
        )
    if not path.is_dir() or not _may(path, *groups, 0o7):
        found = "it may not write there" if path.is_dir() else "there is none"
        raise StateError(
            f"expected a directory that {user} may write at {path}, but {found}; run: install -d -o {user} {path}"
        )
    return path


def _files(bundle: Bundle) -> Iterable[Path]:
    """Every file and directory of a bundle, and the directories above that the sandbox keeps."""
    packed = bundle.path.is_file()
    files = [bundle.path] if packed else [bundle.path / name for name in ("manifest.json", *bundle.files)]
    above = {parent for file in files for parent in file.resolve().parents}
    return [*files, *sorted(d for d in above if d.is_relative_to(bundle.path.resolve()) or not _is_hidden(d))]


def _check_readable(paths: Iterable[Path], user: str | None, groups: tuple[int, frozenset[int]]) -> None:
    for path in paths:
        if not _may(path, *groups, 0o1 if path.is_dir() else 0o4):
            raise UsageError(
                f"expected {path} to be readable for {user or 'every user'}, but its permissions forbid that; "
                "run chmod -R a+rX on it, or give its owner as --user"
            )


def _may(path: Path, uid: int, gids: frozenset[int], want: int) -> bool:
    """By permission bits alone: in the sandbox not even root may pass over them."""
    found = path.stat()
    shift = 6 if found.st_uid == uid else 3 if found.st_gid in gids else 0
    return (found.st_mode >> shift) & want == want


def _is_hidden(path: Path) -> bool:
    return any(path.is_relative_to(top) for top in HIDDEN)


def _hidden(paths: Iterable[Path], bundle: Path) -> tuple[Path, ...]:
    """Those that the sandbox would hide, without what lies inside another or the bundle."""
    chosen: list[Path] = []
    for path in sorted({p for given in paths for p in (given, given.resolve()) if _is_hidden(p)}):
        if not any(path.is_relative_to(other) for other in (bundle, *chosen)):
            chosen.append(_absolute(path))
    return tuple(chosen)
