"""Code blocks of pages, and a new user who types them in: one shell and one Python session, from top to bottom."""

import re
import subprocess
from dataclasses import dataclass
from textwrap import dedent

BLOCK = re.compile(r"^ *```(?P<language>[\w ]*)\n(?P<code>.*?)^ *```", re.MULTILINE | re.DOTALL)
_END = "\036"
_BASH = ("bash", "--noprofile", "--norc")
_SESSION = f"""
import sys, traceback
names = {{"__name__": "__main__"}}
while place := sys.stdin.readline().strip():
    code, failed = sys.stdin.read(int(sys.stdin.readline())), 0
    try:
        exec(compile(code, place, "exec"), names)
    except BaseException:
        failed = traceback.print_exc(file=sys.stdout) or 1
    print(f"{_END}{{failed}}{_END}", flush=True)
"""


@dataclass(frozen=True)
class Block:
    """A block of code, and where it begins."""

    place: str
    language: str
    code: str

    @property
    def commands(self):
        """Its lines, those that end with a backslash joined with the next, without comments."""
        lines = self.code.replace("\\\n", " ").splitlines()
        return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def read_blocks(path):
    """Return the blocks of a page in their order."""
    text = path.read_text(encoding="utf-8")
    return [
        Block(f"{path.name}:{text.count(chr(10), 0, found.start()) + 1}", found["language"], dedent(found["code"]))
        for found in BLOCK.finditer(text)
    ]


class Typist:
    """Types into a shell and a Python session of their own, which keep what was set before. A context manager."""

    def __init__(self, folder, env, *, python):
        self._folder, self._env = folder, env
        self._commands = {"sh": _BASH, "python": (python, "-u", "-c", _SESSION)}
        self._running = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self._running.values():
            process.stdin.close()
            process.kill()
            process.wait()
            process.stdout.close()

    def type(self, block):
        """Type a block in; return what it printed. Fails where a command or the program does."""
        if block.language == "python":
            return self._send("python", block, f"{block.place}\n{len(block.code)}\n{block.code}")
        return "".join(self.run(command, block) for command in block.commands)

    def run(self, command, block):
        """Run one command of a block in the shell; return what it printed."""
        return self._send("sh", block, f"{{ {command}\n}} </dev/null; printf '{_END}%s{_END}\\n' $?\n")

    def _send(self, kind, block, text):
        if kind not in self._running:
            self._running[kind] = subprocess.Popen(
                self._commands[kind], cwd=self._folder, env=self._env, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
        process = self._running[kind]
        process.stdin.write(text)
        process.stdin.flush()
        said = ""
        for line in process.stdout:
            said += line
            if found := re.search(f"{_END}(\\d+){_END}$", line):
                printed = said.removesuffix(found[0] + "\n")
                assert found[1] == "0", f"{block.place}: {text}\n{printed}"
                return printed
        raise AssertionError(f"{block.place}: the {kind} session ended\n{said}")
