"""Who is recommended on a reader's images: scores of each held-out class, the choice, its final fit, and the words.

Nobody looks at the test classes before the choice is made; then they are looked at once, for the chosen and for the
untrained rows that it is compared with.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure

from dmlrepro import retrieval
from experiments.analysis import choosing
from experiments.analysis.choosing import Choice
from experiments.datasets import manifests
from experiments.figures import comparisons, images
from experiments.figures.style import Names
from experiments.training import activations, batches, inference, records
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec

SCORE = "val MAP@R"
UNTRAINED = {"untrained": None, "PCA": "pca", "whitened PCA": "whitened"}  # where their heads begin
FEATURES = "untrained"  # the network as it came, without a head


def label(method: str, setting: str = "") -> str:
    """A candidate as the page calls it: "PFML (tail from fire6, 25 steps)"."""
    if not setting:
        return "the features as they are" if method == FEATURES else method
    values = dict(pair.partition("=")[::2] for pair in setting.split(";"))
    part = {"head": "head", "all": "whole network"}.get(values["part"], f"tail from {values['part']}")
    budget = next(f"{values[name]} {name}" for name in ("steps", "epochs") if name in values)
    return f"{method} ({part}, {budget}{', a tenth of the rates' * ('rate' in values)})"


def class_scores(run: RunResult) -> list[list[float]]:
    """[class, queries, MAP@R, R@1] of every class that a finished run is scored on, in percent: those that are held
    out of its training, or without such the test classes."""
    return records.derived([run], _class_scores)


def _class_scores(run: RunResult) -> list[list[float]]:
    manifest = batches.load_dataset(run.spec)
    if run.spec.fold is None:
        indices, embeddings = manifest.indices("test"), run.embeddings
        query, gallery = manifest.is_query[indices], manifest.is_gallery[indices]
    else:
        train, labels = manifest.indices("train"), manifest.labels
        held_out = batches.folds(manifest, run.spec.folds)[run.spec.fold][1]
        indices = train[np.isin(labels[train], held_out)]
        embeddings = _embedded(run, manifest, indices)
        query = gallery = np.ones(len(indices), bool)
    labels = torch.from_numpy(manifest.labels[indices])
    others: dict[str, Any] = {}
    if not (query & gallery).all():
        others = {"gallery": embeddings[torch.from_numpy(gallery)], "gallery_labels": labels[torch.from_numpy(gallery)]}
    asking = torch.from_numpy(query)
    per_query = retrieval.retrieval_per_query(embeddings[asking], labels[asking], (1,), measures=("MAP@R",), **others)
    counted, of_class = (per_query["relevant"] > 0).numpy(), labels[asking].numpy()
    values = np.stack([per_query[name].numpy() for name in ("MAP@R", "R@1")])
    rows = []
    for class_id in np.unique(of_class[counted]):
        mine = counted & (of_class == class_id)
        rows.append([int(class_id), int(mine.sum()), *(100 * values[:, mine].mean(1)).tolist()])
    return rows


def _embedded(run: RunResult, manifest: manifests.Manifest, indices: np.ndarray) -> torch.Tensor:
    network = run.network(manifest=manifest)
    if run.spec.train_from is None:
        return inference.embed_images(run.spec, network, manifest, indices)
    tail, stored = activations.cut(run.spec, network, manifest)
    return inference.embed(tail, stored.evaluated(indices))


def choice_of(finished: Iterable[RunResult]) -> Choice | None:
    """Who is recommended, from the finished runs of all candidates; None where no class was held out."""
    of_run = {(run.spec.method, run.spec.setting, run.spec.seed): run for run in finished if run.spec.fold is not None}
    if not of_run:
        return None
    scored = {key: {row[0]: row[1:3] for row in class_scores(run)} for key, run in of_run.items()}
    classes = sorted({class_id for rows in scored.values() for class_id in rows})
    place, queries = {class_id: n for n, class_id in enumerate(classes)}, np.zeros(len(classes))
    seeds = sorted({seed for _, _, seed in scored})
    scores: dict[str, np.ndarray] = {}
    for (method, setting, seed), rows in scored.items():
        mine = scores.setdefault(label(method, setting), np.full((len(seeds), len(classes)), np.nan))
        for class_id, (count, value) in rows.items():
            mine[seeds.index(seed), place[class_id]] = value
            queries[place[class_id]] = count
    return choosing.choose(scores, queries, [label(name) for name in UNTRAINED])


def comparison(choice: Choice | None) -> pd.DataFrame:
    """The untrained rows and each loss at its best setting, the best first: means and differences to the best untrained
    row with their simultaneous intervals."""
    rows = {}
    for name in best_of_each(choice) if choice else []:
        effect, low, high = choice.gains[name]
        shown = "" if name == choice.reference else f"{effect:+.1f} ({low:+.1f} to {high:+.1f})"
        verdict = "recommended" if name == choice.chosen else _verdict(choice, name)
        rows[name] = {SCORE: f"{choice.means[name]:.1f}", f"against {choice.reference}": shown, "": verdict}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("candidate")


def best_of_each(choice: Choice) -> list[str]:
    """The candidates at the best of their settings, the best first; of a loss that is recommended that setting."""
    first: dict[str, str] = {choice.chosen.partition(" (")[0]: choice.chosen}
    for name in choice.means:
        first.setdefault(name.partition(" (")[0], name)
    return [name for name in choice.means if name in first.values()]


def figure(choice: Choice | None, names: Names) -> Figure | None:
    """The differences of `comparison` with their intervals; None where there are none."""
    if choice is None:
        return None
    shown = {name: choice.gains[name] for name in best_of_each(choice) if name != choice.reference}
    about = f"MAP@R on {choice.classes} held-out classes, n = {choice.seeds} seeds, simultaneous 95 % intervals"
    grey = dict.fromkeys(UNTRAINED, names.color(FEATURES))
    return comparisons.gains(shown, choice.reference, about, names=Names({**names.colors, **grey}))


def _verdict(choice: Choice, name: str) -> str:
    _, low, high = choice.gains[name]
    if low > 0:
        return "clearly better than without training"
    return "clearly worse" if high < 0 else ""


def in_words(choice: Choice | None, finished: Sequence[RunResult] = ()) -> None:
    """Print who is recommended and why, who is as good, and what would change it; of images without labels why nobody
    is."""
    if not labelled(finished):
        print(
            "Nothing is recommended: without labels nothing says which images belong together, so that no candidate "
            "can be scored. Look at the neighbours that each finds for the same images, below. To decide by numbers, "
            "sort two dozen kinds, a few images each, into folders and run this notebook on these; the network that it "
            "keeps is for all of your images."
        )
        return
    if choice is None:
        print(
            "Recommended: the features as they are. The training classes are too few to hold some out, so nothing "
            "could be compared; sort images of more classes into folders (dozens), and run this again."
        )
        return
    effect, low, high = choice.gains[choice.chosen]
    about = f"{choice.classes} held-out classes, {choice.seeds} seed{'s' * (choice.seeds > 1)}"
    losses = [name for name in choice.means if name.partition(" (")[0] not in _untrained_labels()]
    if choice.chosen != choice.reference:
        print(
            f"Recommended: {choice.chosen}. MAP@R on {about} is {choice.means[choice.chosen]:.1f} %, {effect:+.1f} "
            f"against {choice.reference}, the best of what needs no training (95 % {low:+.1f} to {high:+.1f}, for all "
            f"{len(choice.means)} candidates together)."
        )
    else:
        print(
            f"Recommended: {choice.reference}. No loss beats your pretrained features on held-out classes: MAP@R on "
            f"{about} is {choice.means[choice.reference]:.1f} %, and of {len(losses)} trained settings none is clearly "
            "better."
        )
        if losses:
            print(_what_would_change_it(choice, losses[0]))
    if choice.alike:
        print(f"Not to be told from it: {', '.join(name for name in best_of_each(choice) if name in choice.alike)}.")


def _untrained_labels() -> list[str]:
    return [label(name) for name in UNTRAINED]


def _what_would_change_it(choice: Choice, best: str) -> str:
    effect, low, high = choice.gains[best]
    sentence = f"The best of them is {best}: {effect:+.1f} ({low:+.1f} to {high:+.1f}). "
    if effect > 0 and np.isfinite(low):
        needed = int(np.ceil(choice.classes * ((effect - low) / effect) ** 2))
        return (
            sentence + f"Were that its true lead, about {needed} training classes would show it; more images help less."
        )
    return sentence + "More classes, more images of each, or another network (`backbone`) could change it."


# --- the final fit ----------------------------------------------------------------------------------------------------


def final_specs(choice: Choice | None, finished: Sequence[RunResult]) -> list[RunSpec]:
    """The runs on all training classes: the chosen first, then what it is compared with; ordinary runs, once each.
    Where nothing was held out, all runs are such already."""
    of_label = {label(run.spec.method, run.spec.setting): run.spec for run in finished if run.spec.seed == 0}
    if choice is None:
        return list(of_label.values())
    wanted = [choice.chosen, choice.reference, label(FEATURES)]
    return [of_label[name].replace(fold=None, folds=RunSpec.folds) for name in dict.fromkeys(wanted)]


def labelled(finished: Sequence[RunResult]) -> bool:
    """Whether the images of the runs have labels."""
    return not finished or batches.load_dataset(finished[0].spec).labelled


def kept(final: Sequence[RunResult]) -> None:
    """Print what the final fit is and where it lies; of images without labels each candidate."""
    part, whose = ("classes", final[:1]) if labelled(final) else ("images", final)
    for run in whose:
        print(f"{label(run.spec.method, run.spec.setting)}, fitted to all training {part}.")
        print(f"Its key is {run.key}; its weights lie in the cache, in runs/{run.key}.")


def looked_up(final: Sequence[RunResult], queries: int = 5, k: int = 5) -> None:
    """Show test images and their nearest neighbours under the final fit, and the classes that it confuses most often;
    of images without labels the neighbours that each candidate finds for the same images."""
    import matplotlib.pyplot as plt
    from IPython.display import Markdown, display

    if labelled(final):
        drawn = {"": images.retrieved(*images.neighbours(final[0], queries, k))}
        drawn["**Confused most often**"] = images.confused(*images.confusions(final[0], pairs=5, examples=2))
    else:
        named = {f"**{label(run.spec.method, run.spec.setting)}**": run for run in final}
        drawn = {name: images.retrieved(*images.neighbours(run, queries, k)) for name, run in named.items()}
    for name, figure in drawn.items():
        display(*[Markdown(name)] * bool(name), figure)
        plt.close(figure)


def agreement(choice: Choice | None, final: Sequence[RunResult]) -> None:
    """Print what the test classes say, looked at here and nowhere else, and whether validation said so too."""
    if not labelled(final):
        print("Without labels there are no test classes.")
        return
    scores, means = {}, {}
    for run in final:
        rows = np.array(class_scores(run))
        name = label(run.spec.method, run.spec.setting)
        scores[name], means[name] = rows[:, 2][None], np.average(rows[:, 2:], axis=0, weights=rows[:, 1])
        queries = rows[:, 1]
        print(f"{name}: {means[name][0]:.1f} % MAP@R, {means[name][1]:.1f} % R@1 on {len(rows)} test classes.")
    chosen = label(final[0].spec.method, final[0].spec.setting)
    for name in [name for name in scores if name != chosen]:
        interval = choosing.simultaneous((scores[chosen] - scores[name])[None], queries)
        effect, low, high = (float(values[0]) for values in interval)
        sentence = f"Test: {chosen} against {name} {effect:+.1f} MAP@R (95 % over classes {low:+.1f} to {high:+.1f})"
        print(sentence + (_as_validation(choice, name, low, high) if choice else "."))


def _as_validation(choice: Choice, name: str, low: float, high: float) -> str:
    validation = choice.means[choice.chosen] - choice.means[name]
    held_out = f"held-out classes said {validation:+.1f}"
    if (low > 0) == (validation > 0) and not low < 0 < high:
        return f"; {held_out}: both agree."
    if low < 0 < high:
        return f"; {held_out}: the test classes cannot tell them apart."
    return f"; {held_out}: they disagree. Trust neither before there are more classes."
