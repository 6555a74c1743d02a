"""A comparison as JUnit XML: one test case per point.

A blocking regression is a failure, a broken point an error, what could not be decided
is skipped (a failure where the gate is strict).
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from mhaprof.compare import Comparison, Judgement, PointVerdict
from mhaprof.errors import EXIT_NOT_COMPARABLE
from mhaprof.report.comparison import meaning

_FORBIDDEN = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 (section 2.2) does not allow."""


def to_junit(comparison: Comparison, *, suite: str = "mhaprof gate") -> str:
    """Return the document; its totals count the cases in it."""
    element = ElementTree.Element("testsuite", name=_clean(suite))
    properties = ElementTree.SubElement(element, "properties")
    for name, number in comparison.coverage().items():
        ElementTree.SubElement(properties, "property", name=name, value=str(number))
    for point in comparison.points:
        element.append(_case(point, strict=comparison.strict))
    if comparison.exit_code == EXIT_NOT_COMPARABLE:
        case = ElementTree.SubElement(element, "testcase", classname="mhaprof", name="coverage")
        ElementTree.SubElement(case, "error", message="nothing was compared")
    for attribute, tag in (
        ("tests", "testcase"),
        ("failures", "testcase/failure"),
        ("errors", "testcase/error"),
        ("skipped", "testcase/skipped"),
    ):
        element.set(attribute, str(len(element.findall(tag))))
    total = sum(float(case.get("time", "0")) for case in element.iter("testcase"))
    element.set("time", f"{total:.9f}")
    root = ElementTree.Element("testsuites")
    root.append(element)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _case(point: PointVerdict, *, strict: bool) -> ElementTree.Element:
    """Return one test case: at most one outcome, everything else in its output."""
    case = ElementTree.Element(
        "testcase",
        classname=_clean(f"mhaprof.{point.implementation}"),
        name=_clean(point.label),
        time=f"{_seconds(point):.9f}",
    )
    found = next((j for j in point.judgements if _tag(j, strict=strict)), None)
    blocking = [j for j in point.judgements if _tag(j, strict=strict) in ("failure", "error")]
    decisive = blocking[0] if blocking else found
    if decisive is not None:
        reason = f"{decisive.reason}: {meaning(decisive.reason)}"
        outcome = ElementTree.SubElement(
            case, str(_tag(decisive, strict=strict)), message=_clean(decisive.message)
        )
        outcome.set("type", decisive.reason)
        outcome.text = _clean("\n".join([reason, *(j.message for j in blocking)]))
    output = ElementTree.SubElement(case, "system-out")
    output.text = _clean("\n".join(map(_line, point.judgements)))
    return case


def _tag(judgement: Judgement, *, strict: bool) -> str | None:
    """Return the element that says how a judgement ends a test case, if it does."""
    if judgement.blocks:
        return "error" if judgement.verdict == "failed" else "failure"
    if judgement.verdict == "inconclusive":
        return "failure" if strict and judgement.gate == "block" else "skipped"
    return "skipped" if judgement.reason == "still_skipped" else None


def _seconds(point: PointVerdict) -> float:
    times = [j.new for j in point.judgements if j.metric == "latency"]
    return next((float(value) for value in times if isinstance(value, int | float)), 0.0)


def _line(judgement: Judgement) -> str:
    return f"{judgement.verdict}: {judgement.message} ({judgement.reason})"


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("?", text)
