"""A model on one page that can be mailed: what it is, its states, clusters, map and curves."""

from html import escape
from typing import Any

import numpy as np

from hmmlm.explore.blocks import block_list
from hmmlm.explore.cards import state_card
from hmmlm.explore.curves import best_check, draw_curves, read_metrics
from hmmlm.explore.explorer import Explorer
from hmmlm.explore.figures import draw_map, inline_svg
from hmmlm.explore.preparing import Prepared
from hmmlm.explore.projection import project

WORDS, NEIGHBOURS, EXAMPLES, AROUND = 10, 5, 3, 8
LEAST, NAMING = 0.0005, 0.1
"""Probabilities from which a word is listed, and from which it is part of a state's name."""

STYLE = """
:root{color-scheme:light dark;--ground:#faf9f6;--card:#fff;--ink:#1d2329;--grey:#575d65;
--faint:#e0dcd2;--bar:#5ea3aa;--line:#0072b2;--mark:#ffe7a3;--serif:"Source Serif 4",Charter,
Georgia,"Noto Serif","DejaVu Serif",serif}
@media(prefers-color-scheme:dark){:root{--ground:#14181b;--card:#1b2024;--ink:#e8e6e1;
--grey:#a9b1b8;--faint:#353e45;--bar:#3f8d94;--line:#56b4e9;--mark:#5b4a10}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:72rem;padding:1.5rem;background:var(--ground);color:var(--ink);
font:15px/1.5 Inter,system-ui,-apple-system,"Segoe UI","Noto Sans",sans-serif}
h1,h2{font-family:var(--serif);font-weight:600;line-height:1.25}
h1{font-size:1.7rem;margin:0 0 .3rem}h2{font-size:1.2rem;margin:2.4rem 0 .6rem}
h3{font-size:1rem;margin:0 0 .4rem;display:flex;justify-content:space-between;gap:1rem}
h3{white-space:nowrap}h3 small{white-space:normal;text-align:right}
h3 small,p.note,figcaption,dt{color:var(--grey);font-weight:400;font-size:.85rem}
dl.facts{display:grid;grid-template-columns:repeat(auto-fill,minmax(11rem,1fr));gap:.6rem 1.2rem}
dl.facts div{border-top:1px solid var(--faint);padding-top:.3rem}dd{margin:0}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(19rem,1fr));gap:1rem}
article{background:var(--card);border:1px solid var(--faint);border-radius:.6rem;padding:.9rem 1rem;
break-inside:avoid;min-width:0}
article table{width:100%;border-collapse:collapse;font-size:.9rem}
article th{font-weight:400;text-align:left;white-space:nowrap;padding:0 .5rem 0 0;max-width:9rem;
overflow:hidden;text-overflow:ellipsis}
article td:nth-child(2){width:100%}article td:last-child{color:var(--grey);padding-left:.5rem;
font-variant-numeric:tabular-nums;text-align:right}
.bar{display:block;height:.55rem;background:var(--bar);border-radius:.2rem;min-width:1px;
print-color-adjust:exact;-webkit-print-color-adjust:exact}
article p{margin:.5rem 0 0;font-size:.85rem;overflow-wrap:anywhere}
article p b{font-weight:600;color:var(--grey)}
mark{background:var(--mark);color:inherit;font-weight:600;border-radius:.2rem;padding:0 .15rem}
table.list{width:100%;border-collapse:collapse;font-size:.9rem}
table.list th{text-align:left;color:var(--grey);font-weight:400}
table.list td,table.list th{padding:.25rem .6rem .25rem 0;border-bottom:1px solid var(--faint);
vertical-align:top}
table.list .n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.wide{overflow-x:auto}figure{margin:0}figure svg{width:100%;height:auto;max-width:54rem}
@media print{body{max-width:none;padding:0;font-size:11px}.cards{grid-template-columns:1fr 1fr 1fr}
:root{--ground:#fff;--card:#fff;--ink:#000;--grey:#444;--faint:#ccc;--bar:#5ea3aa;--line:#0072b2;
--mark:#ffe7a3}h2{break-after:avoid}tr{break-inside:avoid}}
"""


def make_report(prepared: Prepared, *, states: int) -> str:
    """The page, with the cards of the most used states. The text of use must have been read."""
    about = Explorer(prepared).about()
    parts = [_head(about), _facts(prepared, about)]
    if about["has_training"]:
        parts.append(_training(prepared))
    parts += [_cards(prepared, states), _blocks(prepared), _map(prepared), _settings(prepared)]
    body = "\n".join(part for part in parts if part)
    title = escape(about["name"])
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}: a hidden Markov language model</title>\n<style>{STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _head(about: dict[str, Any]) -> str:
    kind = {"dense": "every word may come from every state", "blocks": "its words in blocks"}
    words = kind.get(about["support"], "each word from states of its own")
    return (
        f"<header><h1>{escape(about['name'])}</h1><p>A hidden Markov language model of "
        f"{about['states']:,} states and {about['words']:,} words, {words}.</p></header>"
    )


def _facts(prepared: Prepared, about: dict[str, Any]) -> str:
    facts = {
        "parameterisation": about["kind"],
        "states": f"{about['states']:,}",
        "blocks": None if about["blocks"] is None else f"{about['blocks']:,}",
        "states of a word": f"{about['states_per_word']:,} at most",
        "transitions": about["transitions"],
        "numbers in its tables": f"{about['parameters']:,}",
        **_perplexities(prepared, about),
        "made by": about["made_by"],
    }
    rows = [
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in facts.items()
        if value is not None
    ]
    return (
        f'<dl class="facts">{"".join(rows)}</dl>\n<p class="note">Use of states and examples: '
        f"{escape(about['use_from'].partition(';')[0])}.</p>"
    )


def _perplexities(prepared: Prepared, about: dict[str, Any]) -> dict[str, str]:
    """What is known of the run's perplexities, and that of the text in which use was counted."""
    found = {}
    best = best_check(read_metrics(prepared.folder)) if about["has_training"] else None
    if best is not None and best.val is not None:
        found["perplexity on validation"] = f"{best.val:,.1f} at step {best.step:,}"
    if prepared.use is not None and prepared.use.tokens:
        found["perplexity on the text of use"] = f"{prepared.use.perplexity:,.1f}"
    return found


def _training(prepared: Prepared) -> str:
    name = prepared.folder.absolute().name
    figure = draw_curves({name: read_metrics(prepared.folder)})
    picture = inline_svg(figure, "Perplexity and learning rate over the course of training")
    return f"<section><h2>Training</h2><figure>{picture}</figure></section>"


def _cards(prepared: Prepared, count: int) -> str:
    use = prepared.use
    assert use is not None, "the text of use has not been read"
    order = np.argsort(-use.share, kind="stable")[:count].tolist()
    shared = 100 * float(use.share[order].sum())
    total = prepared.model.hmm.num_states
    cards = "\n".join(_card(state_card(prepared, state)) for state in order)
    which = "All states" if len(order) == total else f"The {len(order):,} most used states"
    return (
        f'<section><h2>{which}</h2><p class="note">Together {shared:.1f}% of the tokens. Bars are '
        f"probabilities of words; an example marks the word that the state stands behind, with the "
        f'posterior.</p>\n<div class="cards">{cards}</div></section>'
    )


def _card(card: dict[str, Any]) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(word)}</th><td><span class="bar" style="width:'
        f'{100 * p:.1f}%"></span></td><td>{p:.3f}</td></tr>'
        for word, p in card["words"][:WORDS]
        if p >= LEAST
    )
    block = "" if card["block"] is None else f", block {card['block']:,}"
    tag = "" if card["tag"] is None else f", {escape(card['tag'])}"
    lines = [
        f"<p><b>from</b> {_neighbours(card['from'])}</p>",
        f"<p><b>to</b> {_neighbours(card['to'])}</p>" if card["ends"] < 0.5 else "",
        *(f"<p>{_example(one)}</p>" for one in card["examples"][:EXAMPLES]),
    ]
    return (
        f'<article id="state-{card["id"]}"><h3>State {card["id"]:,}{tag}<small>'
        f"{100 * card['use']:.2f}% of tokens{block}, {card['entropy']:.1f} bits</small></h3>"
        f"<table>{rows}</table>{''.join(lines)}</article>"
    )


def _neighbours(found: list[dict[str, Any]]) -> str:
    named = []
    for one in found[:NEIGHBOURS]:
        words = " ".join(word for word, p in one["words"] if p >= NAMING)
        name = "the beginning of a line" if one["id"] is None else f"{one['id']} ({words})"
        named.append(f"{escape(name.removesuffix(' ()'))} {one['p']:.2f}")
    return ", ".join(named)


def _example(example: dict[str, Any]) -> str:
    at, tokens = example["position"], example["tokens"]
    start, stop = max(0, at - AROUND), min(len(tokens), at + AROUND + 1)
    before, after = " ".join(tokens[start:at]), " ".join(tokens[at + 1 : stop])
    dots = ("… " if start else "", " …" if stop < len(tokens) else "")
    return (
        f"{dots[0]}{escape(before)} <mark>{escape(tokens[at])}</mark> {escape(after)}{dots[1]} "
        f"<small>{example['posterior']:.2f}</small>"
    )


def _blocks(prepared: Prepared) -> str:
    blocks = block_list(prepared)["blocks"]
    if not blocks:
        return ""
    blocks.sort(key=lambda block: -block["share"])
    rows = "".join(
        f'<tr><td class="n">{block["id"]:,}</td><td class="n">{100 * block["share"]:.1f}%</td>'
        f'<td class="n">{block["words"]:,}</td><td class="n">{block["states"]:,}</td>'
        f"<td>{escape(' '.join(word for word, _ in block['top']))}</td></tr>\n"
        for block in blocks
    )
    names = ("block", "of tokens", "words", "states", "its most frequent words")
    head = "".join(
        f'<th scope="col"{"" if name == names[-1] else " class=n"}>{name}</th>' for name in names
    )
    return (
        f'<section><h2>Clusters of words</h2><div class="wide"><table class="list"><thead>'
        f"<tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>"
    )


def _map(prepared: Prepared) -> str:
    found, use = project(prepared.model.hmm), prepared.use
    figure = draw_map(found, prepared.table.block, None if use is None else use.share)
    picture = inline_svg(figure, "States in the plane")
    by = "" if prepared.table.block is None else "; colours are blocks"
    return (
        f"<section><h2>Map of the states</h2><figure>{picture}<figcaption>Two principal directions "
        f"of the {escape(found.how)}; larger points are used more{by}.</figcaption></figure>"
        f"</section>"
    )


def _settings(prepared: Prepared) -> str:
    training = prepared.model.config.get("training")
    if not isinstance(training, dict):
        return ""
    rows = [
        f'<tr><th scope="row">{escape(f"{table}.{name}")}</th><td>{escape(str(value))}</td></tr>'
        for table, settings in training.items()
        if isinstance(settings, dict)
        for name, value in settings.items()
    ]
    return (
        f'<section><h2>Settings of the run</h2><div class="wide"><table class="list">'
        f"<tbody>{''.join(rows)}</tbody></table></div></section>"
    )
