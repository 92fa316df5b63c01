# SPDX-License-Identifier: Apache-2.0
"""How the groups of tools/bench --python are measured: ours and a reference in turns, medians, ratios of neighbours."""
import gc
import os
import statistics
import time

ROUND = 2e-3  # seconds that a round takes, or one piece of work if that is more
CPU = "AMP_BENCH_CPU"  # environment variable: name of the instruction sets that run.py --cpu leaves
LINE = 60.0  # seconds that a line takes at most; a tenth with --quick


class Clock:
    """The thread's processor time, which leaves out what others do; with a GPU the wall's, from idle to idle."""

    def __init__(self, device):
        self.wait = None
        if device == "cuda":
            import torch

            self.wait = torch.cuda.synchronize

    def seconds(self, work, times):
        if self.wait is None:
            begin = time.thread_time_ns()
            for _ in range(times):
                work()
            return (time.thread_time_ns() - begin) * 1e-9
        self.wait()
        begin = time.perf_counter()
        for _ in range(times):
            work()
        self.wait()
        return time.perf_counter() - begin


class Bench:
    """Given to each group's measure(bench). Every ratio above 1 means that we are faster."""

    def __init__(self, group, quick=False, rounds=None, device="cpu", seconds=0.0):
        self.group, self.lines, self.failed = group, [], 0
        self.cpu = os.environ.get(CPU, "")
        self.quick, self.device, self.seconds = quick, device, seconds
        self.rounds = rounds or (15 if quick else 61)
        self.limit = LINE / 10 if quick else LINE

    def pair(self, name, size, ours, reference, against, *, goal=0.0, moved=None, device="cpu"):
        """Two functions that do the same work. moved: bytes that one call reads and writes, for GB/s instead of us."""
        try:
            reference()
        except NotImplementedError as error:
            print(f"{self.group:<8} {name:<34} {size:<15} left out: {str(error).splitlines()[0][:80]}")
            return
        first, second = self._measure([ours, reference], device)
        unit, scale = ("GB/s", lambda t: moved / t * 1e-9) if moved else ("us", lambda t: t * 1e6)
        self._add(name, size, unit, [scale(t) for t in first], [scale(t) for t in second],
                  [theirs / mine for mine, theirs in zip(first, second)], against, goal)

    def turns(self, name, size, ours, references, *, device="cpu"):
        """Ours and several references, {what it is: (function, goal)}, which take turns; a line for each of them."""
        mine, *others = self._measure([ours, *(work for work, _ in references.values())], device)
        for (against, (_, goal)), theirs in zip(references.items(), others, strict=True):
            self._add(name, size, "us", [t * 1e6 for t in mine], [t * 1e6 for t in theirs],
                      [b / a for a, b in zip(mine, theirs)], against, goal)

    def overhead(self, name, size, ours, bare, reference, reference_bare, against, *, goal=0.0, device="cpu"):
        """What ours takes beyond bare, beside what the reference takes beyond its own bare work; in ns."""
        times = self._measure([ours, bare, reference, reference_bare], device)
        mine = [(a - b) * 1e9 for a, b in zip(times[0], times[1])]
        theirs = [(a - b) * 1e9 for a, b in zip(times[2], times[3])]
        self._beyond(name, size, mine, theirs, against, goal)

    def allowance(self, name, size, ours, bare, nanoseconds, *, goal=1.0, device="cpu"):
        """What ours takes beyond bare, beside what it may take."""
        times = self._measure([ours, bare], device)
        mine = [(a - b) * 1e9 for a, b in zip(*times)]
        self._beyond(name, size, mine, [float(nanoseconds)] * len(mine), "allowed", goal)

    def amounts(self, name, size, unit, ours, reference, against, *, goal=0.0):
        """Two numbers of which the smaller is the better: bytes."""
        self._add(name, size, unit, [ours], [reference], [reference / ours], against, goal)

    def compared(self, name, size, unit, ours, reference, ratios, against, goal=0.0):
        """What a group has measured by itself: medians, and the ratios of rounds."""
        self._add(name, size, unit, [ours], [reference], ratios, against, goal)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _beyond(self, name, size, mine, theirs, against, goal):
        # Differences may be 0 or less; single ratios of such say nothing, the medians' does.
        mine, theirs = [max(t, 0.1) for t in mine], [max(t, 0.1) for t in theirs]
        ratio = statistics.median(theirs) / statistics.median(mine)
        self._add(name, size, "ns", mine, theirs, [ratio], against, goal)

    def _measure(self, works, device):
        """The times of one call of each, a list for each work, of rounds in which each had its turn."""
        clock = Clock(device)
        for work in works:  # first uses load, allocate and compile
            work()
        counts = []
        for work in works:
            taken, times = clock.seconds(work, 1), 1
            while taken < ROUND / 4:
                times *= 2
                taken = clock.seconds(work, times)
            counts.append(max(1, round(ROUND * times / taken)))
        one = sum(clock.seconds(work, count) for work, count in zip(works, counts))
        rounds = max(3, min(self.rounds, int(self.limit / max(one, 1e-9)))) if self.rounds > 2 else self.rounds
        results = [[] for _ in works]
        collecting = gc.isenabled()
        gc.disable()
        try:
            for turn in range(rounds):
                order = range(len(works)) if turn % 2 == 0 else range(len(works) - 1, -1, -1)
                for k in order:
                    results[k].append(clock.seconds(works[k], counts[k]) / counts[k])
        finally:
            if collecting:
                gc.enable()
        return results

    def _add(self, name, size, unit, ours, reference, ratios, against, goal):
        quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
        name = f"{self.cpu}: {name}" if self.cpu else name
        line = {"group": self.group, "name": name, "size": size, "unit": unit, "ours": statistics.median(ours),
                "reference": statistics.median(reference), "reference_name": against,
                "ratio": statistics.median(ratios), "quartiles": [quartiles[0], quartiles[2]], "goal": goal}
        self.lines.append(line)
        spread = f"({quartiles[0]:.3f}-{quartiles[2]:.3f})"
        wanted = f"{goal:.2f}" + (" !" if line["ratio"] < goal else "") if goal else ""
        print(f"{self.group:<8} {name:<34} {size:<15} {line['ours']:>9.2f} {line['reference']:>9.2f} {unit:<4} "
              f"{line['ratio']:>7.3f}  {spread:<15} {wanted:<8} {against}", flush=True)


HEADER = (f"{'group':<8} {'name':<34} {'size':<15} {'ours':>9} {'reference':>9} {'unit':<4} "
          f"{'ratio':>7}  {'(quartiles)':<15} {'goal':<8} reference")
