"""Runs the fuzz tests with fresh seeds until the time is over: ``make fuzz SECONDS=600 JOBS=2``.

Each run is one test file with the profile ``fuzz``, a seed that is printed, and as many examples as fit into its share
of the time. What fails is shown with the example that failed, kept below ``.hypothesis`` and tried first by the next
run. The exit status is 1 if anything failed.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
SHORTEST_S = 15
LONGEST_S = 240
GRACE_S = 600
"""How long a run may take beyond its share: shrinking a failure takes its time."""
PASSING = re.compile(
    r"^(?:tests/fuzz/)?(?P<test>\S+\.py::\S+):$|(?P<count>\d+) passing|^sequences: (?P<sequences>\d+)$", re.MULTILINE
)


def count_examples(output):
    """Return how many examples each test tried."""
    counts, test = Counter(), ""
    for match in PASSING.finditer(output):
        if match["test"]:
            test = match["test"]
        elif match["count"]:
            counts[test] += int(match["count"])
        else:
            counts["test_state_machine.py::sequences"] += int(match["sequences"])
    return counts


class Soak:
    """Rounds over all files.

    Args:
        seconds: How long to go on.
        jobs: Files at once.
    """

    def __init__(self, seconds, jobs):
        self.ends_at = time.monotonic() + seconds
        self.files = sorted(HERE.glob("test_*.py"))
        self.share_s = min(LONGEST_S, max(SHORTEST_S, seconds * jobs / len(self.files) / 2))
        self.jobs = jobs
        self.scales = dict.fromkeys(self.files, 1.0)
        self.examples = Counter()
        self.failures = []
        self.turn = 0
        self.lock = threading.Lock()

    def run(self):
        """Work until the time is over; return whether nothing failed."""
        with ThreadPoolExecutor(self.jobs) as pool:
            for job in [pool.submit(self._work) for _ in range(self.jobs)]:
                job.result()
        for test, count in sorted(self.examples.items()):
            print(f"{count:>9,}  {test}")
        print(f"fuzz: {sum(self.examples.values()):,} examples, {len(self.failures)} failures")
        for failure in self.failures:
            print(f"failed: {failure}")
        return not self.failures

    def _work(self):
        while time.monotonic() < self.ends_at:
            with self.lock:
                file = self.files[self.turn % len(self.files)]
                self.turn += 1
            self._run_file(file)

    def _run_file(self, file):
        seed, scale, started = random.SystemRandom().randrange(2**32), self.scales[file], time.monotonic()
        command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--timeout", "0", str(file)]
        command += [f"--hypothesis-seed={seed}", "--hypothesis-show-statistics"]
        environment = {**os.environ, "HYPOTHESIS_PROFILE": "fuzz", "ICEDB_FUZZ_SCALE": f"{scale:.2f}"}
        again = f"HYPOTHESIS_PROFILE=fuzz ICEDB_FUZZ_SCALE={scale:.2f} pytest {file.relative_to(Path.cwd())} --hypothesis-seed={seed}"
        try:
            done = subprocess.run(
                command,
                env=environment,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.share_s + GRACE_S,
                check=False,
            )
            output, is_fine = done.stdout + done.stderr, done.returncode == 0
        except subprocess.TimeoutExpired as error:
            output, is_fine = f"{error}: a hang, or a failure that takes too long to shrink", False
        took_s = time.monotonic() - started
        counts = count_examples(output)
        with self.lock:
            self.examples += counts
            # Starting takes some seconds, whatever the number of examples.
            self.scales[file] = min(200.0, max(0.5, scale * self.share_s / max(took_s, 1.0)))
            print(
                f"{file.name}: seed {seed}, {sum(counts.values()):,} examples in {took_s:.0f} s: {'ok' if is_fine else 'FAILED'}",
                flush=True,
            )
            if not is_fine:
                self.failures.append(again)
                print(output[-8000:], flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    sys.exit(0 if Soak(options.seconds, options.jobs).run() else 1)


if __name__ == "__main__":
    main()
