"""Debian's chromium through chromedriver: opens files, clicks, and tells what the page asked for and complained about."""

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import Select, WebDriverWait

BROWSER: Final = "/usr/bin/chromium"
DRIVER: Final = "/usr/bin/chromedriver"
WAIT_S: Final = 10.0
HEIGHT: Final = 900
ARGUMENTS: Final = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    # Nothing of the browser's own goes out.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)

ROWS: Final = """
return [...document.querySelectorAll("#" + arguments[0] + " tbody tr")].filter((row) => row.checkVisibility())
  .map((row) => [...row.cells].map((cell) => cell.innerText.trim()));
"""

CONTRAST: Final = """
// The lowest contrast of all texts that can be seen, by WCAG 2's formula, with the text.
const parts = (text) => { const m = text.match(/[\\d.]+/g).map(Number); return m.length > 3 ? m : [...m, 1]; };
const over = (top, below) => top.slice(0, 3).map((v, i) => v * top[3] + below[i] * (1 - top[3]));
const ground = (element) => {
  const layers = [];
  for (let at = element; at; at = at.parentElement) layers.push(parts(getComputedStyle(at).backgroundColor));
  return layers.reverse().reduce((below, top) => over(top, below), arguments[0] ? [18, 18, 18] : [255, 255, 255]);
};
const light = (rgb) => {
  const [r, g, b] = rgb.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
let worst = [99, ""];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const node = walker.currentNode, element = node.parentElement;
  if (!node.data.trim() || ["SCRIPT", "STYLE", "OPTION"].includes(element.tagName) || !element.checkVisibility()) continue;
  const style = getComputedStyle(element), below = ground(element);
  const colour = element instanceof SVGElement ? style.fill : style.color;
  let opacity = 1;
  for (let at = element; at; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
  const ink = parts(colour);
  const [a, b] = [light(over([...ink.slice(0, 3), ink[3] * opacity], below)), light(below)].sort((x, y) => y - x);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < worst[0]) worst = [ratio, node.data.trim().slice(0, 60) + " <" + element.tagName + " " + element.getAttribute("class") + ">"];
}
return worst;
"""

SPILLS: Final = """
// Texts whose box is wider than the window, outside of what can be scrolled sideways.
const out = [];
for (const element of document.querySelectorAll("h1, h2, h3, p, li, dd, dt, label, button, td")) {
  if (!element.checkVisibility() || element.closest(".scroll")) continue;
  const box = element.getBoundingClientRect();
  if (box.right > innerWidth + 1 || box.left < -1) out.push(element.textContent.trim().slice(0, 60));
}
return [Math.max(0, document.documentElement.scrollWidth - innerWidth), out];
"""


class Page:
    """What is open, as a person looks at it: only what can be seen counts."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        """Look at the page that this driver has open."""
        self.driver = driver

    def text(self, selector: str) -> str:
        """The text of the first element, as it is shown."""
        return self.driver.find_element(By.CSS_SELECTOR, selector).text

    def all(self, selector: str) -> list[WebElement]:
        """The elements that can be seen."""
        return [found for found in self.driver.find_elements(By.CSS_SELECTOR, selector) if found.is_displayed()]

    def texts(self, selector: str) -> list[str]:
        """Their texts."""
        return [found.text for found in self.all(selector)]

    def click(self, selector: str) -> None:
        """Click where the element is, as a mouse does."""
        self.driver.find_element(By.CSS_SELECTOR, selector).click()

    def choose(self, selector: str, text: str) -> None:
        """Choose from a list by what it shows."""
        Select(self.driver.find_element(By.CSS_SELECTOR, selector)).select_by_visible_text(text)

    def type(self, selector: str, keys: str) -> None:
        """Type into a field, or press keys on what has the focus."""
        self.driver.find_element(By.CSS_SELECTOR, selector).send_keys(keys)

    def rows(self, table: str) -> list[list[str]]:
        """The cells of a table's rows that can be seen."""
        found: list[list[str]] = self.run(ROWS, table)
        return found

    def run(self, script: str, *arguments: object) -> Any:
        """The value of a script in the page."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, script: str) -> None:
        """Wait until the expression is true. Raise TimeoutException."""
        _ = WebDriverWait(self.driver, WAIT_S, 0.05).until(lambda driver: driver.execute_script(f"return {script}"))

    def lowest_contrast(self, *, dark: bool) -> tuple[float, str]:
        """Of all texts that can be seen."""
        ratio, text = self.run(CONTRAST, dark)
        return float(ratio), str(text)

    def spills(self) -> tuple[int, list[str]]:
        """By how many pixels the page is wider than the window, and the texts that stand out of it."""
        wider, texts = self.run(SPILLS)
        return int(wider), list(texts)


class Browser:
    """One chromium; each page is opened in the same window."""

    def __init__(self) -> None:
        """Start it."""
        options = webdriver.ChromeOptions()
        options.binary_location = BROWSER
        for argument in ARGUMENTS:
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self._driver = webdriver.Chrome(options=options, service=Service(DRIVER))

    def open(self, file: Path, *, width: int, dark: bool, fragment: str = "") -> Page:
        """Open a file in a window so wide (pixels), as somebody who prefers this scheme."""
        scheme = "dark" if dark else "light"
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            # A click scrolls first: without this it would miss what is still on its way.
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
        size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        self._driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self._driver.get(f"{file.as_uri()}{fragment}")
        return Page(self._driver)

    def as_printed(self) -> None:
        """Look at the page as a printer would."""
        self._driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})

    def allow_scripts(self, *, allowed: bool) -> None:
        """Whether the scripts of pages opened from now on run."""
        self._driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not allowed})

    def complaints(self) -> list[str]:
        """What pages wrote on the console since the last call, refusals by their policy among it."""
        logged: list[dict[str, Any]] = self._driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [str(entry["message"]) for entry in logged]

    def requests(self) -> list[str]:
        """What pages asked for since the last call, beside their own files and what they bring along."""
        asked: list[str] = []
        for entry in self._driver.get_log("performance"):  # type: ignore[no-untyped-call]
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                asked.append(message["params"]["request"]["url"])
        return [url for url in asked if not url.startswith(("file:", "data:"))]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._driver.quit()
