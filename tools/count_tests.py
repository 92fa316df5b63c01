#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what `meson test` ran in a build folder, or pytest: count_tests.py {BUILD | --junit FILE} [LIST STAGE]

A TAP test counts each of its points, any other test counts as one. A test that tested nothing has failed. With LIST a
skip that none of its rows allows in this stage has failed too (skips.py). Writes the skips with their reasons and the
failures, for people, and as the last line "passed failed skipped".
"""
import itertools
import json
import pathlib
import re
import sys
import xml.etree.ElementTree

import skips

POINT = re.compile(r"^(not )?ok\b\s*\d*\s*(?:- )?([^#]*)(?:#\s*(\w+)\S*\s*(.*))?$", re.IGNORECASE)
PLAN = re.compile(r"^1\.\.(\d+)\s*(?:#\s*skip\S*\s*(.*))?$", re.IGNORECASE)
REASON = re.compile(r"'Skipped: (.*)'\)$", re.DOTALL)  # of a whole file, as pytest's JUnit has it
SHOWN = 12  # lines of a failed test's output, two thirds of them from its end


def shortened(lines):
    return lines if len(lines) <= SHOWN else lines[:SHOWN // 3] + ["..."] + lines[-2 * SHOWN // 3:]


def output(entry):
    lines = []
    for stream in ("stdout", "stderr"):
        lines += [line.rstrip() for line in (entry.get(stream) or "").splitlines() if line.strip()]
    return lines


class Counts:
    def __init__(self, allowed):
        self.passed = self.failed = self.skipped = 0
        self.failures, self.skips, self.allowed = [], [], allowed

    def ok(self):
        self.passed += 1

    def fail(self, name, why, details=()):
        self.failed += 1
        self.failures.append(f"FAILED  {name}: {why}")
        self.failures.extend(f"            {line}" for line in details)

    def skip(self, name, why):
        if self.allowed and not self.allowed.allow(f"{name}: {why}"):
            self.fail(name, f"a skip that tests/skips.txt does not allow: {why}")
            return
        self.skipped += 1
        self.skips.append(f"skipped {name}: {why}")


def count_tap(entry, counts):
    name, before, bad = entry["name"], counts.passed + counts.failed + counts.skipped, counts.failed
    planned = None
    lines = (entry.get("stdout") or "").splitlines()
    for number, line in enumerate(lines):
        plan = PLAN.match(line)
        point = POINT.match(line)
        if plan:
            planned = int(plan.group(1))
            if planned == 0 and plan.group(2) is not None:
                counts.skip(name, plan.group(2) or "no reason given")
        elif point:
            negative, what, directive, reason = point.groups()
            if directive and directive.lower().startswith("skip"):
                counts.skip(f"{name}: {what.strip()}", reason or "no reason given")
            elif negative:
                comments = itertools.takewhile(lambda text: text.startswith("#"), lines[number + 1:])
                counts.fail(name, what.strip(), shortened(list(comments)))
            else:
                counts.ok()
    points = counts.passed + counts.failed + counts.skipped - before
    if entry["result"] not in ("OK", "SKIP", "EXPECTEDFAIL") and counts.failed == bad:
        counts.fail(name, f"{entry['result']} (exit status {entry['returncode']}) after {points} of {planned} points",
                    shortened(output({"stderr": entry.get("stderr")})))
    elif points == 0:
        counts.fail(name, "it tested nothing")


def count_plain(entry, counts):
    result = entry["result"]
    if result in ("OK", "EXPECTEDFAIL"):
        counts.ok()
    elif result == "SKIP":
        counts.skip(entry["name"], " ".join(output(entry)[-1:]) or "no reason given")
    else:
        counts.fail(entry["name"], f"{result} (exit status {entry['returncode']})", shortened(output(entry)))


def full_name(test):
    """Returns "project:suite+suite / name", as Meson writes it."""
    suites = [suite.partition(":")[2] for suite in test["suite"]]
    return f"{test['suite'][0].partition(':')[0]}:{'+'.join(suites)} / {test['name']}"


def count(build, counts):
    tests = json.loads((build / "meson-info" / "intro-tests.json").read_text(encoding="utf-8"))
    tap = {full_name(test) for test in tests if test["protocol"] == "tap"}
    for log in (build / "meson-logs").glob("testlog*.json"):  # testlog-SETUP.json where a setup is the default
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            entry = json.loads(line)
            ours = count_tap if entry["name"] in tap else count_plain  # by its whole name: some have one name
            entry["name"] = entry["name"].rpartition(" / ")[2]
            ours(entry, counts)


def count_junit(path, counts):
    for case in xml.etree.ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        bad = case.find("failure") if case.find("failure") is not None else case.find("error")
        skip = case.find("skipped")
        if bad is not None:
            lines = [line for line in (bad.text or "").splitlines() if line.strip()]
            counts.fail(name, " ".join((bad.get("message") or "").split())[:200], shortened(lines))
        elif skip is not None:
            of_file = REASON.search(skip.text or "") if skip.get("message") == "collection skipped" else None
            counts.skip(name, of_file.group(1) if of_file else skip.get("message") or "no reason given")
        else:
            counts.ok()


def main():
    junit = sys.argv[1] == "--junit"
    path, *listed = sys.argv[2 if junit else 1:]
    counts = Counts(skips.Skips(*listed) if listed else None)
    (count_junit if junit else count)(pathlib.Path(path), counts)
    if counts.allowed:
        counts.allowed.note()
    for line in counts.skips + counts.failures:
        print(f"   {line}")
    print(counts.passed, counts.failed, counts.skipped)


if __name__ == "__main__":
    main()
