"""A headless Chromium, spoken to over its DevTools pipe: no driver and no package is needed, only the browser."""

import base64
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time

PATIENCE = 60


def chromium():
    """The one named in KVTAP_CHROMIUM, or the machine's."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    found = os.environ.get("KVTAP_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if not found:
        raise SystemExit("no Chromium: `make venv` installs one on Debian and Ubuntu, else name one in KVTAP_CHROMIUM")
    return found


class Browser:
    """One page of one browser. Use it in a `with` block."""

    def __enter__(self):
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        (ours, theirs_out), (theirs_in, to_them) = os.pipe(), os.pipe()
        arguments = [
            chromium(),
            "--headless=new",
            "--remote-debugging-pipe",
            "--no-sandbox",  # Containers that run as root have no other way.
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-extensions",
            "--disable-background-networking",
            "--proxy-server=direct://",
            f"--user-data-dir={self.profile.name}",
            "about:blank",
        ]
        # The browser reads from its descriptor 3 and writes to its 4.
        self.process = subprocess.Popen(
            ["sh", "-c", f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}', "sh", *arguments],
            pass_fds=(theirs_in, theirs_out),
            # Whatever else it puts down goes with its profile.
            env={**os.environ, "TMPDIR": self.profile.name},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.input, self.output = os.fdopen(ours, "rb"), os.fdopen(to_them, "wb")
        self.number, self.events, self.rest = 0, [], b""
        target = self.call("Target.createTarget", session=None, url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", session=None, targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Accessibility"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(self, *_):
        self.call("Browser.close", session=None)
        self.output.close()
        self.process.wait(PATIENCE)
        self.input.close()
        self.end_what_it_started()
        self.profile.cleanup()

    def end_what_it_started(self):
        """Its last processes outlive it, and would still write into the profile while that is cleared away."""
        deadline = time.monotonic() + 5
        try:
            while time.monotonic() < deadline:
                os.killpg(self.process.pid, signal.SIGKILL)
                time.sleep(0.01)
        except ProcessLookupError:
            pass

    def call(self, method, session="", **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = self.session
        self.output.write(json.dumps(message).encode() + b"\0")
        self.output.flush()
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise AssertionError(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def read(self):
        while b"\0" not in self.rest:
            more = os.read(self.input.fileno(), 1 << 16)
            if not more:
                raise AssertionError("the browser has ended")
            self.rest += more
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def evaluate(self, expression):
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise AssertionError(done["exceptionDetails"])
        return done["result"].get("value")

    def goto(self, url):
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete'")

    def wait(self, expression):
        """What the expression gives once that is true."""
        deadline = time.monotonic() + PATIENCE
        while True:
            found = self.evaluate(expression)
            if found:
                return found
            if time.monotonic() > deadline:
                raise AssertionError(f"in vain for {PATIENCE} s: {expression}\n{self.complaints()}")
            time.sleep(0.05)

    def complaints(self):
        """What the page logged, threw or was refused."""
        self.evaluate("0")  # Whatever was said before this has been read then.
        told = []
        for event in self.events:
            if event["method"] == "Log.entryAdded":
                told.append(event["params"]["entry"]["text"])
            elif event["method"] == "Runtime.exceptionThrown":
                told.append(event["params"]["exceptionDetails"].get("text", "") + json.dumps(event["params"])[:500])
        return told

    def screen(self, width, height, dark=False):
        phone = width < 600
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=False)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def key(self, key, code=None, number=0, text=""):
        for kind in ("keyDown", "keyUp"):
            self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=code or key,
                windowsVirtualKeyCode=number,
                **({"text": text} if text and kind == "keyDown" else {}),
            )

    def tree(self):
        """What a screen reader finds: (role, name) of every node that is not ignored."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        told = [one for one in nodes if not one.get("ignored")]
        return [(one["role"]["value"], one.get("name", {}).get("value", "")) for one in told if "role" in one]
