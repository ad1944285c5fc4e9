"""`hmmlm report`."""

import sys

from commands import last_json


def test_a_report_is_written_once(place, call, refused):
    answer = call("report", "model", "--states", "2", "--json")
    assert answer.status == 0, answer.err
    page = (place / "model-report.html").read_text()
    assert "The 2 most used states" in page and "validation text of corpus" in page
    assert last_json(answer.out) == {
        "file": "model-report.html", "bytes": len(page.encode()), "states": 2,
    }  # fmt: skip
    assert "model-report.html" in refused("report", "model")


def test_what_is_no_model_is_refused(refused):
    assert refused("report", "nowhere") == "nowhere does not exist; give a model's folder."
    assert "corpus is a corpus; a model is needed" in refused("report", "corpus", "--out", "x.html")


def test_matplotlib_is_asked_for_by_its_extra(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = refused("report", "model")
    assert (
        "drawn with matplotlib, which is not installed; run pip install 'hmmlm[explore]'." in said
    )
