"""The status page in a real browser: `check.py KVTAP [SCREENSHOTS]`. tests/deploy.rs runs it.

With a folder as second argument it leaves its screenshots there, for a person to look at.
"""

import base64
import hashlib
import json
import re
import sys
import tempfile
import unittest
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "deploy"))

import play  # noqa: E402
from browser import Browser  # noqa: E402

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
TURNED = "\u202egnalgs"
SHOTS = None


class Server:
    """A kvtap that follows a busy engine, an engine that is not there, and one of a hostile name."""

    def __init__(self, stack):
        self.address = f"127.{play.random.randint(1, 254)}.{play.random.randint(0, 255)}.1"
        feeds = [
            {"worker": "vllm-0", "address": "10.0.0.7:8000", "model": "my-model", "endpoint": self.at(5557), "ranks": 2, **self.replay(5557)},
            {"worker": HOSTILE, "model": "<b>bold</b>", "endpoint": self.at(5567)},
            {"worker": TURNED, "model": "my-model", "endpoint": self.at(5577), **self.replay(5577)},
        ]
        settings = {
            "grpc": {"listen": [f"{self.address}:9400"]},
            "admin": {"listen": f"{self.address}:9401"},
            "defaults": {"disconnect_grace": "2s"},
            "feeds": feeds,
        }
        # JSON is YAML.
        self.config = stack.enter_context(play.file_of(json.dumps(settings)))
        self.url = f"http://{self.address}:9401/"
        stack.enter_context(self.engine(5557, "--ranks", "2"))

    def replay(self, port):
        return {"replay": self.at(port + 4)}

    def at(self, port):
        return f"tcp://{self.address}:{port}"

    def engine(self, port, *more):
        arguments = ["sim", "--requests", "10", "--linger", "600", "--endpoint", self.at(port), "--replay", self.at(port + 4)]
        return play.running(*arguments, *more)

    def kvtap(self):
        return play.running("serve", "--config", self.config)

    def status(self):
        answer = play.get(self.address, 9401, "/status")
        return answer and json.loads(answer[1])


class Page(unittest.TestCase):
    def setUp(self):
        self.stack = play.ExitStack()
        self.addCleanup(self.stack.close)
        self.server = Server(self.stack)
        self.kvtap = self.stack.enter_context(play.ExitStack())
        self.kvtap.enter_context(self.server.kvtap())
        play.eventually("kvtap answers", self.server.status)

    def browse(self):
        browser = self.stack.enter_context(Browser())
        browser.screen(1280, 900)
        browser.goto(self.server.url)
        browser.wait("document.querySelectorAll('#rows tr').length === 4")
        return browser

    def row(self, name):
        return f"[...document.querySelectorAll('#rows tr')].find((row) => row.textContent.includes({json.dumps(name)}))"

    def test_it_is_one_document_under_a_policy_that_names_its_script_and_style(self):
        with urllib.request.urlopen(self.server.url, timeout=play.PATIENCE) as answer:
            page, headers = answer.read().decode(), answer.headers
        self.assertEqual(headers["content-type"], "text/html; charset=utf-8")
        self.assertEqual(headers["x-content-type-options"], "nosniff")
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        self.assertEqual(policy["default-src"], "'none'")
        for tag in ("style", "script"):
            [inside] = re.findall(f"<{tag}>(.*?)</{tag}>", page, re.S)
            digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
            self.assertEqual(policy[f"{tag}-src"], f"'sha256-{digest}'", f"src/admin/page.rs, of the {tag}")
        self.assertNotRegex(page, r"(src|href)=\"(https?:)?//|@import|url\(|innerHTML|insertAdjacentHTML|\bon\w+=\"")

    def test_it_shows_who_is_fresh_and_follows_without_a_reload(self):
        browser = self.browse()
        browser.wait(f"{self.row('vllm-0')}.textContent.includes('live')")
        self.assertIn("connecting", browser.evaluate(f"{self.row('gnalgs')}.textContent"))
        self.assertTrue(browser.wait("document.getElementById('tile-live').textContent.startsWith('2 of 4')"))
        browser.wait("document.getElementById('happenings').textContent.includes('state changed')")
        # Another engine comes: the page shows it by itself.
        with self.server.engine(5577):
            browser.wait(f"{self.row('gnalgs')}.textContent.includes('live')")
            browser.wait("document.title.startsWith('3/4 live')")
        self.assertEqual(browser.complaints(), [])

    def test_names_from_outside_are_text_and_nothing_else(self):
        browser = self.browse()
        self.assertEqual(browser.evaluate("document.querySelectorAll('img, b b').length"), 0)
        name = browser.evaluate(f"{self.row('onerror')}.querySelector('bdi').textContent")
        self.assertEqual(name, HOSTILE)
        browser.evaluate(f"{self.row('onerror')}.querySelector('button').click()")
        self.assertIn("<b>bold</b>", browser.wait("document.querySelector('#rows dl')?.textContent"))
        self.assertTrue(browser.evaluate("document.title").endswith("kvtap"))
        self.assertEqual(browser.complaints(), [])

    def test_it_says_when_kvtap_does_not_answer_and_when_it_does_again(self):
        browser = self.browse()
        self.kvtap.close()
        browser.wait("document.getElementById('link').textContent.startsWith('No answer since')")
        self.assertIn("vllm-0", browser.evaluate("document.getElementById('rows').textContent"))
        self.kvtap.enter_context(self.server.kvtap())
        browser.wait("document.getElementById('link').textContent === 'Live.'")

    def test_it_is_usable_by_keyboard_alone(self):
        browser = self.browse()
        browser.key("/", "Slash", 191, "/")
        self.assertEqual(browser.evaluate("document.activeElement.id"), "filter")
        for letter in "vllm":
            browser.key(letter, f"Key{letter.upper()}", ord(letter.upper()), letter)
        browser.wait("document.querySelectorAll('#rows tr').length === 2")
        # On with Tab: state, pause, the heads, the first worker, which Enter opens.
        for _ in range(40):
            browser.key("Tab", "Tab", 9)
            if browser.evaluate("document.activeElement.closest('tbody') !== null"):
                break
        browser.key("Enter", "Enter", 13, "\r")
        browser.wait("document.activeElement.getAttribute('aria-expanded') === 'true'")
        browser.wait("document.querySelector('#rows dl').textContent.includes('10.0.0.7:8000')")
        # What has the focus keeps it while the page goes on.
        self.assertTrue(browser.evaluate("document.activeElement.matches(':focus-visible')"))
        browser.key("p", "KeyP", 80, "p")
        browser.wait("document.getElementById('pause').getAttribute('aria-pressed') === 'true'")
        browser.wait("document.getElementById('link').textContent === 'Paused.'")

    def test_a_screen_reader_finds_names_roles_and_states(self):
        browser = self.browse()
        tree = browser.tree()
        for wanted in [
            ("heading", "kvtap"),
            ("heading", "Feeds"),
            ("searchbox", "Worker, model or address"),
            ("combobox", "State"),
            ("button", "Pause"),
            ("columnheader", "State"),
            ("region", "Recent happenings"),
        ]:
            self.assertIn(wanted, tree)
        self.assertIn("status", [role for role, _ in tree])
        self.assertEqual(len([role for role, _ in tree if role == "rowheader"]), 4)
        # Whatever can be pressed has a name.
        self.assertEqual([name for role, name in tree if role in ("button", "link") and not name], [])

    def test_it_fits_a_phone_and_keeps_its_contrast_in_dark_and_light(self):
        browser = self.browse()
        browser.wait(f"{self.row('vllm-0')}.textContent.includes('live')")
        for name, (width, height) in {"phone": (390, 844), "desk": (1280, 900)}.items():
            for dark in (False, True):
                with self.subTest(name, dark=dark):
                    browser.screen(width, height, dark)
                    self.assertLessEqual(browser.evaluate("document.documentElement.scrollWidth"), width)
                    ratios = browser.evaluate(CONTRAST)
                    self.assertGreater(len(ratios), 5)
                    self.assertGreaterEqual(min(ratios.values()), 4.5, ratios)
                    if SHOTS:
                        browser.screenshot(f"{SHOTS}/{name}-{'dark' if dark else 'light'}.png")
        low = browser.evaluate(
            "[...document.querySelectorAll('.tools input, .tools select, .tools button')].filter((one) => one.offsetHeight < 44).length"
        )
        self.assertEqual(low, 0, "too low for a finger")


# The contrast of each kind of text with the ground it stands on, as WCAG reckons it.
CONTRAST = """(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (c) => c.slice(0, 3).map((v) => v / 255).map((v) => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [.2126, .7152, .0722][i], 0);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const c = rgb(getComputedStyle(node).backgroundColor);
      if (c.length < 4 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const told = {};
  for (const node of document.querySelectorAll('h1, h2, p, a, li b, li span, th button, td, caption, label, input, button, time, bdi')) {
    if (!node.textContent.trim() || !node.offsetParent || node.classList.contains('skip')) continue;
    const [a, b] = [light(rgb(getComputedStyle(node).color)), light(ground(node))].sort((x, y) => y - x);
    const name = `${node.tagName}.${node.className}`;
    told[name] = Math.min(told[name] ?? 99, (a + .05) / (b + .05));
  }
  return told;
})()"""


if __name__ == "__main__":
    play.KVTAP = sys.argv[1]
    SHOTS = sys.argv[2] if len(sys.argv) > 2 else None
    unittest.main(argv=["check.py", "--verbose"])
