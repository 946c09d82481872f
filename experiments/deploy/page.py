"""What was found as one HTML page that needs no network and no other file: pictures are part of it."""

import base64
import functools
import io
from html import escape
from pathlib import Path

from experiments.datasets.images import decoded
from experiments.deploy.finding import Found
from experiments.files import write_text

SIDE = 160  # pixels of the longer side of a picture
HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>Images found</title>
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.4 system-ui, "Noto Sans", "Noto Sans CJK SC", "PingFang SC", "Microsoft YaHei", sans-serif;
  margin: 0 auto; max-width: 72rem; padding: 1rem; }
section { border-top: 1px solid #8888; padding: .8rem 0; }
h1 { font-size: 1.3rem; } h2 { font-size: 1rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
ol { display: grid; gap: .7rem; grid-template-columns: repeat(auto-fill, minmax(7.5rem, 1fr)); list-style: none;
  margin: 0; padding: 0; }
figure { margin: 0; } figcaption { font-size: .8rem; overflow-wrap: anywhere; }
img, .none { border-radius: 4px; height: 7.5rem; object-fit: contain; width: 100%; background: #8882; }
.none { align-items: center; display: flex; justify-content: center; }
.query img { outline: 3px solid #0072B2; outline-offset: -3px; }
</style>
</head>
<body>
"""


def write(answer: Found, path: str | Path) -> Path:
    """A page with a section for each query: the query, framed, and what was found with path and distance."""
    path = Path(path)
    picture = functools.cache(_picture)
    count, k = answer.rows.shape
    parts = [
        HEAD,
        f"<h1>{count} {'query' if count == 1 else 'queries'}, "
        f"the {k} nearest of {len(answer.index.images)} images</h1>",
        "<p>The framed picture is the query. Numbers are distances: 0 for the same direction, 1 at a right angle.</p>",
    ]
    for query, rows, distances in zip(answer.queries, answer.rows, answer.distances):
        name = "/".join(query.parts[-2:])
        parts.append(f"<section><h2>{escape(name)}</h2><ol>")
        parts.append(_figure("query", picture(query), name, "query"))
        for row, distance in zip(rows, distances):
            image = answer.image(row).path
            parts.append(_figure("", picture(answer.index.folder / image), image, f"{distance:.3f}"))
        parts.append("</ol></section>")
    if answer.unreadable:
        lines = "".join(f"<li>{escape(line)}</li>" for line in answer.unreadable)
        parts.append(f"<section><h2>Queries that could not be read</h2><ul>{lines}</ul></section>")
    write_text(path, "\n".join([*parts, "</body>", "</html>", ""]))
    return path


def _figure(kind: str, picture: str, name: str, label: str) -> str:
    shown = f'<img src="{picture}" alt="{escape(name)}">' if picture else '<div class="none">not readable now</div>'
    caption = f"<b>{label}</b><br>{escape(name)}"
    return f'<li class="{kind}"><figure>{shown}<figcaption>{caption}</figcaption></figure></li>'


def _picture(path: Path) -> str:
    """A small JPEG of an image file as a data URI; empty if it cannot be read any more."""
    try:
        image = decoded(str(path), upright=True)
        image.thumbnail((SIDE, SIDE))
        kept = io.BytesIO()
        image.save(kept, "JPEG", quality=80, optimize=True)
    except Exception:  # Pillow lets through whatever its readers stumble over
        return ""
    return f"data:image/jpeg;base64,{base64.b64encode(kept.getvalue()).decode('ascii')}"
