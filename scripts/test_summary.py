"""Sums up what scripts/test ran: what was skipped, then 'N passed, N failed, N skipped'.

    python3 scripts/test_summary.py FOLDER

FOLDER holds ctest.junit and a NAME.xml from each entry of ctest that runs GoogleTest or pytest;
summary.txt in it gets the last line. ctest counts programs; this counts their cases, and a program
that died, or failed beside its cases, as one failure. Exit status 1 if a test failed or none ran.
"""

import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path


def outcome(case: ElementTree.Element) -> str:
    if case.find("failure") is not None or case.find("error") is not None:
        return "failed"
    if case.find("skipped") is not None:
        return "skipped"
    return "skipped" if case.get("status") in ("notrun", "disabled") else "passed"


def reason(case: ElementTree.Element) -> str:
    skipped = case.find("skipped")
    text = "" if skipped is None else skipped.get("message") or skipped.text or ""
    # GoogleTest puts the place in the source on a line before the message.
    return " ".join(re.sub(r"^\S+:\d+\n", "", text.strip()).split())


def main(folder: Path) -> int:
    counts: Counter[str] = Counter()
    skipped: list[str] = []

    def count(cases: list[ElementTree.Element], group: str) -> Counter[str]:
        here: Counter[str] = Counter()
        for case in cases:
            here[outcome(case)] += 1
            if outcome(case) == "skipped":
                skipped.append(f"{group}: {case.get('name')}: {reason(case) or 'no reason given'}")
        counts.update(here)
        return here

    for program in ElementTree.parse(folder / "ctest.junit").iter("testcase"):
        name = program.get("name", "")
        files = [folder / f"{name}.xml"] if (folder / f"{name}.xml").exists() else []
        if not files:
            count([program], "ctest")
            continue
        cases = [case for file in files for case in ElementTree.parse(file).iter("testcase")]
        if count(cases, name)["failed"] == 0 and outcome(program) == "failed":
            counts["failed"] += 1

    for line in skipped:
        print("skipped", line)
    line = f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped"
    (folder / "summary.txt").write_text(line + "\n")
    print(line)
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
