"""Debian's headless Chromium, driven by WebDriver over plain HTTP: a few calls, and no package for them."""

import base64
import json
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processes import free_port
from waiting import LIMIT_S, wait_until

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
MISSING = "no Chromium here: apt-get install chromium chromium-driver"


def find_chromium() -> tuple[str, str] | None:
    """Return the paths of the browser and of its driver; ``None``: they are not both there."""
    browser = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
    driver = shutil.which("chromedriver")
    return (browser, driver) if browser and driver else None


class Chromium:
    """One window."""

    def __init__(self, address: str, session: str) -> None:
        self._address = f"{address}/session/{session}"

    def open(self, url: str) -> None:
        """Load a page, and wait until it is there."""
        self._call("POST", "/url", {"url": url})

    def run(self, script: str, *given: Any) -> Any:
        """Run a script in the page, and return what it returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(given)})

    def wait(self, condition: str) -> Any:
        """Return what an expression gives once that is something.

        Asked again and again: a script that waits is lost where its page is loaded anew.
        """
        return wait_until(lambda: self.run(f"return ({condition}) || null"), condition)

    def type(self, selector: str, text: str) -> None:
        """Write into a field, as a person does, in place of what is there."""
        self.run("document.querySelector(arguments[0]).value = ''", selector)
        self._call("POST", f"/element/{self._find(selector)}/value", {"text": text})

    def click(self, selector: str) -> None:
        """Click on something; returns when the page that follows is there."""
        self._call("POST", f"/element/{self._find(selector)}/click", {})

    def shape(self, width: int, height: int, *, is_dark: bool = False) -> None:
        """Take the form of a screen: a phone below 600 pixels."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.tell("Emulation.setDeviceMetricsOverride", **metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.tell("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, width: int, height: int) -> bytes:
        """Return the top of the page as PNG."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        found = self.tell("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(found["data"])

    def complaints(self) -> list[str]:
        """Return what the browser wrote to its console since it was asked last: errors, refusals by the policy."""
        return [entry["message"] for entry in self._call("POST", "/se/log", {"type": "browser"})]

    def tell(self, command: str, **given: Any) -> Any:
        """Send a command of the browser's own protocol."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": given})

    def close(self) -> None:
        """End the session."""
        self._call("DELETE", "", None)

    def _find(self, selector: str) -> str:
        return self._call("POST", "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def _call(self, method: str, path: str, body: Any) -> Any:
        return ask(method, f"{self._address}{path}", body)


def ask(method: str, url: str, body: Any) -> Any:
    """Send a command to the driver; return its value, or raise what it says went wrong."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{method} {url}: {error.read().decode(errors='replace')[:500]}") from None


@contextmanager
def open_chromium(folder: Path) -> Iterator[Chromium]:
    """Start a browser with a profile of its own in a folder; it is gone at the end."""
    found = find_chromium()
    assert found is not None, MISSING
    port = free_port()
    driver = subprocess.Popen([found[1], f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    address = f"http://127.0.0.1:{port}"
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage")
    options = {"binary": found[0], "args": [*flags, f"--user-data-dir={folder}"]}
    wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    try:
        _wait_for(address, driver)
        session = ask("POST", f"{address}/session", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        browser = Chromium(address, session)
        try:
            yield browser
        finally:
            browser.close()
    finally:
        driver.terminate()
        driver.wait()


def _wait_for(address: str, driver: "subprocess.Popen[bytes]") -> None:
    def is_ready() -> bool:
        assert driver.poll() is None, "the driver of Chromium ended"
        try:
            return bool(ask("GET", f"{address}/status", None)["ready"])
        except OSError:
            return False

    wait_until(is_ready, "the driver of Chromium answers")
