"""The line on the terminal: shown late, erased at the end, no thread left, and nothing where nobody watches."""

import os
import pty
import threading
import time

import pytest

from neuron_compiler import options
from neuron_compiler.progress import Progress, elsewhere, wanted

ERASE = b"\r\x1b[2K"


class Terminal:
    """A pseudo-terminal; ``shown`` is what was drawn so far."""

    def __init__(self, monkeypatch):
        self.reader, writer = pty.openpty()
        self.stream = os.fdopen(writer, "w")
        self.shown = b""
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("CI", raising=False)
        monkeypatch.delenv("NO_COLOR", raising=False)
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        while True:
            try:
                data = os.read(self.reader, 1024)
            except OSError:  # the other end is closed
                return
            if not data:
                return
            self.shown += data

    def wait_for(self, text):
        deadline = time.monotonic() + 60
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            time.sleep(0.005)

    def close(self):
        self.stream.close()
        self.thread.join(10)
        return self.shown


@pytest.fixture
def terminal(monkeypatch):
    found = Terminal(monkeypatch)
    yield found
    if not found.stream.closed:
        found.close()


def progress_threads():
    return [t for t in threading.enumerate() if t.name == "neuron-progress"]


def test_shows_the_stage_and_erases_itself(terminal):
    assert wanted(terminal.stream)
    progress = Progress("graph7_forward", after=0.0, every=0.01, stream=terminal.stream)
    with progress.stage("compile"):
        with progress.stage("passes"):
            terminal.wait_for(b"neuron: graph7_forward: running passes, 0 s")
        with progress.stage("xla"):
            terminal.wait_for(b"compiling in XLA")
    assert progress_threads() == []
    shown = terminal.close()
    assert shown.endswith(ERASE)
    assert b"\n" not in shown
    # The cursor is never hidden: a process that is killed would leave it so.
    assert b"\x1b[?25" not in shown
    assert all(line.startswith((b"", b"neuron: ")) for line in shown.split(ERASE))


def test_a_quick_compile_shows_nothing(terminal):
    progress = Progress("graph0_forward", stream=terminal.stream)
    with progress.stage("compile"), progress.stage("xla"):
        pass
    assert progress_threads() == []
    assert terminal.close() == b""


def test_ctrl_c_ends_it(terminal):
    progress = Progress("graph0_forward", after=0.0, every=0.01, stream=terminal.stream)

    def interrupted():
        with progress.stage("compile"), progress.stage("xla"):
            terminal.wait_for(b"neuron: ")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert progress_threads() == []
    assert terminal.close().endswith(ERASE)


def test_a_narrow_terminal_gets_one_line(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    progress = Progress("graph_with_a_long_name", after=0.0, every=0.01, stream=terminal.stream)
    with progress.stage("compile"):
        terminal.wait_for(b"neuron: graph_with_")
    assert max(map(len, terminal.close().split(ERASE))) == 19


def test_a_terminal_that_goes_away_does_not_end_the_compile(terminal):
    progress = Progress("graph0_forward", after=0.0, every=0.01, stream=terminal.stream)
    with progress.stage("compile"):
        terminal.wait_for(b"neuron: ")
        terminal.stream.close()
        for thread in progress_threads():
            thread.join(10)
            assert not thread.is_alive()


def test_nothing_where_nobody_watches(terminal, monkeypatch, tmp_path):
    with open(tmp_path / "log", "w") as log:
        assert not wanted(log)
    for variable, value in (("TERM", "dumb"), ("CI", "true")):
        with monkeypatch.context() as patch:
            patch.setenv(variable, value)
            assert not wanted(terminal.stream)
    with elsewhere():
        assert not wanted(terminal.stream)
    assert wanted(terminal.stream)


@pytest.mark.parametrize(
    ("environ", "shows"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "CI": "false"}, True),
        ({"TERM": "xterm", "CI": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_which_terminals_show_progress(environ, shows):
    assert options.terminal_shows_progress(environ) is shows
