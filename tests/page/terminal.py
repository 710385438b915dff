"""`kvtap top` on a real terminal, a pty whose screen is read as a person would: `terminal.py KVTAP`. tests/deploy.rs runs it."""

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
import threading
import unittest
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyte

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "deploy"))

import play  # noqa: E402

ENTERED, LEFT, CURSOR_SHOWN = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h"
DOWN, UP, PAGE_DOWN, HOME, END, ESCAPE, CONTROL_C, CONTROL_L = b"\x1b[B", b"\x1b[A", b"\x1b[6~", b"\x1b[H", b"\x1b[F", b"\x1b", b"\x03", b"\x0c"
# The first feed is busy; so many more wait for engines that are not there.
FEEDS = 40


class Terminal:
    """A program on a terminal of so many columns and lines."""

    def __init__(self, command, columns, lines):
        self.master, slave = pty.openpty()
        self.screen = pyte.Screen(columns, lines)
        self.stream, self.raw, self.lock = pyte.ByteStream(self.screen), b"", threading.Lock()
        self.closed = False
        # Kept open, so that its settings can be looked at when the program has ended.
        self.slave = slave
        self.size(columns, lines)
        self.before = termios.tcgetattr(slave)
        env = play.environment(TERM="xterm-256color")
        on_it = lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        pipes = {"stdin": slave, "stdout": slave, "stderr": slave}
        self.process = subprocess.Popen(command, env=env, start_new_session=True, preexec_fn=on_it, **pipes)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        master = self.master
        while not self.closed:
            try:
                got = os.read(master, 65536)
            except OSError:
                return
            with self.lock:
                self.raw += got
                self.stream.feed(got)

    def size(self, columns, lines):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns, lines):
        """What a window's edge does. What was on the screen is blotted out, so that only what is drawn anew is seen."""
        with self.lock:
            self.screen.resize(lines, columns)
            self.screen.reset()
        self.size(columns, lines)

    def press(self, keys):
        os.write(self.master, keys)

    def lines(self):
        with self.lock:
            return [line.rstrip() for line in self.screen.display]

    def until(self, what, seen):
        """The lines of the screen, once `seen` finds in them what it looks for."""

        def found():
            if self.process.poll() is not None:
                raise AssertionError(f"{what}: it has ended with {self.process.returncode}")
            return seen(lines := self.lines()) and lines

        try:
            return play.eventually(what, found)
        except AssertionError as error:
            raise AssertionError(f"{error}; the screen:\n" + "\n".join(self.lines())) from None

    def ended(self):
        """The exit code, once it has ended and all that it said has been read."""
        code = self.process.wait(play.PATIENCE)
        play.eventually("it leaves the screen", lambda: LEFT in self.raw)
        return code

    def hang_up(self):
        """What closing a window does. The reader lets go of its end with the next that it is told."""
        self.closed = True
        os.close(self.slave)
        os.close(self.master)

    def close(self):
        self.process.kill()
        self.process.wait()
        if not self.closed:
            self.hang_up()


def feeds_of(lines):
    """The workers on the screen, in order."""
    return [line.split()[0] for line in lines if line.startswith("pod-") and " rank " not in line]


class Top(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = ExitStack()
        cls.addClassCleanup(cls.stack.close)
        cls.at = f"127.{play.random.randint(1, 254)}.{play.random.randint(0, 255)}.1"
        endpoint = lambda number: f"tcp://{cls.at}:{5600 + number}"
        feeds = [{"worker": f"pod-{number:02}", "model": "m", "endpoint": endpoint(number)} for number in range(FEEDS)]
        feeds[0]["replay"] = f"tcp://{cls.at}:5700"
        settings = {"grpc": {"listen": [f"{cls.at}:9400"]}, "admin": {"listen": f"{cls.at}:9401"}, "feeds": feeds}
        cls.config = cls.stack.enter_context(play.file_of(json.dumps(settings)))
        cls.server = cls.stack.enter_context(ExitStack())
        cls.serve()
        # It goes on for as long as anybody looks.
        more = ["--endpoint", endpoint(0), "--replay", f"tcp://{cls.at}:5700"]
        cls.stack.enter_context(play.running("sim", "--requests", "100000", "--rate", "20", *more))

    @classmethod
    def serve(cls):
        cls.server.enter_context(play.running("serve", "--config", cls.config))
        play.eventually("kvtap is ready", lambda: (play.get(cls.at, 9401, "/ready") or (0,))[0] == 200)

    @contextmanager
    def top(self, columns=140, lines=30):
        command = [play.KVTAP, "top", "--server", f"{self.at}:9400", "--interval", "100ms"]
        terminal = Terminal(command, columns, lines)
        try:
            terminal.until("the first frame", lambda lines: any("pod-01" in line for line in lines) and lines[-1].startswith("q quit"))
            yield terminal
        finally:
            terminal.close()

    def test_a_screen_says_at_a_glance_who_is_fresh_and_follows_by_itself(self):
        with self.top() as top:
            # What wants attention comes first, so the one that is well comes last.
            top.press(END)
            lines = top.until("the busy feed is live", lambda lines: "1 of 40 live" in lines[0] and "● live" in lines[22])
            self.assertTrue(lines[22].startswith("pod-00"), lines[22])
            self.assertTrue(lines[0].startswith("kvtap ") and f" at {self.at}:9400, up " in lines[0], lines[0])
            self.assertTrue(lines[2].startswith("WORKER"), lines[2])
            self.assertEqual(len(lines), 30)
            # Nothing runs over the edge, and the room is used: all but the glance, its space, heads, happenings, help.
            self.assertEqual(len(feeds_of(lines)), 30 - 10, lines)
            self.assertIn("Changes since this began, the newest first:", lines)
            counted = lines[0].split(" blocks")[0].split()[-1]
            top.until("the number of blocks grows", lambda lines: lines[0].split(" blocks")[0].split()[-1] != counted)

    def test_keys_scroll_to_both_ends_and_no_further(self):
        with self.top() as top:
            shown = feeds_of(top.lines())
            for keys, first in (
                (DOWN, shown[1]),
                (b"j", shown[2]),
                (UP, shown[1]),
                (b"kkkkkk", shown[0]),
                (PAGE_DOWN, "pod-21"),
                (END, "pod-21"),
                (PAGE_DOWN, "pod-21"),
                (HOME, "pod-01"),
            ):
                with self.subTest(keys):
                    top.press(keys)
                    lines = top.until(f"{first} comes first", lambda lines: feeds_of(lines)[:1] == [first])
                    self.assertEqual(len(feeds_of(lines)), 20)

    def test_paused_it_stands_still_and_goes_on_where_it_is_told_to(self):
        with self.top() as top:
            top.press(b"p")
            first = top.until("it says so", lambda lines: lines[0].endswith("paused"))
            # A key draws it anew, and what it shows is what it showed.
            top.press(DOWN)
            after = top.until("it was drawn", lambda lines: feeds_of(lines)[:1] == ["pod-02"])
            self.assertEqual(after[0], first[0])
            top.press(b"p")
            top.until("it goes on", lambda lines: "paused" not in lines[0] and lines[0] != first[0])

    def test_another_size_of_the_window_is_another_frame(self):
        with self.top() as top:
            for columns, lines, room in ((200, 50, 40), (80, 24, 14), (40, 12, 8), (140, 30, 20)):
                with self.subTest(columns=columns, lines=lines):
                    top.resize(columns, lines)
                    fits = lambda now: len(now) == lines and now[0].startswith("kvtap ") and now[-1].startswith("q quit")
                    now = top.until("the frame fits", fits)
                    self.assertEqual(len(feeds_of(now)), room)
                    self.assertTrue(all(len(line) <= columns for line in now))
            # Too small for anything is no failure either.
            for columns, lines in ((12, 4), (3, 1), (140, 30)):
                top.resize(columns, lines)
            whole = lambda now: now[-1].startswith("q quit") and len(feeds_of(now)) == 20
            top.until("all of it is back", whole)
            # What another program has written over it is mended by the customary key.
            with top.lock:
                top.screen.reset()
            top.press(CONTROL_L)
            top.until("it is drawn anew", whole)

    def test_however_it_ends_the_terminal_is_as_it_was(self):
        for how in (b"q", ESCAPE, CONTROL_C, signal.SIGTERM, signal.SIGINT):
            with self.subTest(how), self.top() as top:
                self.assertIn(ENTERED, top.raw)
                changed = termios.tcgetattr(top.slave)[3]
                self.assertEqual(changed & (termios.ECHO | termios.ICANON), 0, "keys come one by one, unseen")
                if isinstance(how, bytes):
                    top.press(how)
                else:
                    top.process.send_signal(how)
                self.assertEqual(top.ended(), 0)
                self.assertEqual(termios.tcgetattr(top.slave), top.before)
                # The cursor is seen again, and what was on the screen before comes back.
                self.assertGreater(top.raw.rfind(CURSOR_SHOWN), top.raw.rfind(b"\x1b[?25l"))
                self.assertGreater(top.raw.rfind(LEFT), top.raw.rfind(ENTERED))

    def test_a_window_that_is_closed_ends_it(self):
        with self.top() as top:
            top.hang_up()
            self.assertIsNotNone(top.process.wait(play.PATIENCE))

    def test_a_server_that_is_away_is_said_and_found_again(self):
        with self.top() as top:
            top.until("the busy feed is live", lambda lines: "1 of 40 live" in lines[0])
            known = feeds_of(top.lines())
            self.server.close()
            lines = top.until("it says that nobody answers", lambda lines: "no answer: " in lines[0])
            self.assertEqual(feeds_of(lines), known)
            self.serve()
            top.until("it follows again", lambda lines: "no answer" not in lines[0] and "1 of 40 live" in lines[0])


if __name__ == "__main__":
    play.KVTAP = sys.argv[1]
    unittest.main(argv=["terminal.py", "--verbose", *sys.argv[2:]])
