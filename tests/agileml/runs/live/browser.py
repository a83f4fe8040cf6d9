"""Headless Chromium through its DevTools protocol: enough to open a page, ask it and take a picture of it."""

from __future__ import annotations

import asyncio
import base64
import itertools
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
LIMIT_S = 600.0


class Tab:
    """A tab. `requested`: the addresses that it has asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.requested: list[str] = []
        self.errors: list[str] = []
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told.get("result", told))
            elif told["method"] == "Network.requestWillBeSent":
                self.requested.append(told["params"]["request"]["url"])
            elif told["method"] == "Runtime.exceptionThrown":
                self.errors.append(str(told["params"]))

    async def do(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        return await asyncio.wait_for(self._answers[number], LIMIT_S)

    async def ask(self, script: str) -> Any:
        answer = await self.do("Runtime.evaluate", expression=script, returnByValue=True)
        return answer["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until a script says true."""
        deadline_s = asyncio.get_running_loop().time() + LIMIT_S
        while not await self.ask(script):
            assert asyncio.get_running_loop().time() < deadline_s, (
                script,
                await self.ask("document.body.innerText"),
            )
            await asyncio.sleep(0.05)

    async def go(self, url: str) -> None:
        await self.do("Page.navigate", url=url)

    async def picture(self, file: Path, width: int) -> None:
        """A picture of the whole page in a window of this width."""
        await self.do(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )  # fmt: skip
        await self.until(f"window.innerWidth === {width}")
        shot = await self.do("Page.captureScreenshot", captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))


@asynccontextmanager
async def tab(profile: Path) -> AsyncIterator[Tab]:
    """A tab of a browser of its own."""
    assert CHROMIUM is not None
    browser = await asyncio.create_subprocess_exec(
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", f"--user-data-dir={profile}", "about:blank",
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert browser.stderr is not None
        found = None
        while found is None:
            line = await asyncio.wait_for(browser.stderr.readline(), LIMIT_S)
            assert line, "the browser has ended"
            found = re.search(rb"ws://(127.0.0.1:\d+)/", line)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{found[1].decode()}/json/list") as answer:
                pages = [each for each in await answer.json() if each["type"] == "page"]
            async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                opened = Tab(socket)
                for domain in ("Page", "Runtime", "Network"):
                    await opened.do(f"{domain}.enable")
                yield opened
    finally:
        with suppress(ProcessLookupError):
            browser.kill()
        await browser.wait()


def answer(url: str, host: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(url, headers={"Host": host} if host else {})
    try:
        with urllib.request.urlopen(request, timeout=600) as reply:
            return reply.status, reply.headers.get("Content-Type", "")
    except urllib.error.HTTPError as error:
        return error.code, ""
