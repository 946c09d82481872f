"""A script that repeats a finished run of notebook 01 from the reader's images to its score, without this repository's
training loop: it freezes what is not trained, makes batches, trains and evaluates. Of the package it takes images,
networks, batches, losses and scores, each of which the reader can replace by their own.
"""

from experiments.training import batches
from experiments.training.builders import OPTIMIZERS, build_loss, stream_seed
from experiments.training.runs import RunResult
from experiments.training.spec import RunSpec

# Of images without labels: there is no score for a script to reach
_COMMANDS = """# keep the network of a candidate, embed any folder with it, and look at what it finds; PROFILE as here
python -m experiments export 01 mine.safetensors --profile PROFILE -p dataset {dataset} --method PLM
python -m experiments embed mine.safetensors FOLDER --out INDEX
python -m experiments find INDEX IMAGE --html page.html
"""


def script_of_run(run: RunResult) -> str:
    """The script of a finished run on all training classes; of images without labels commands that keep a network.

    Batches, the first head and the first proxies are those of the run; in which of two views an image is seen is drawn
    otherwise, so numbers of a tail differ as two seeds do.
    """
    manifest = batches.load_dataset(run.spec)
    if not manifest.labelled:
        return _COMMANDS.format(dataset=run.spec.dataset)
    classes = manifest.num_train_classes
    return script_of(run.spec, classes, run.embeddings.shape[1])


def script_of(spec: RunSpec, num_classes: int, dim: int) -> str:
    """The script of a spec with C = num_classes training classes, labelled 0 to C - 1, and embeddings of `dim` numbers.

    Raises:
        ValueError: the spec holds classes out, or its scheme is not the plain one.
    """
    if spec.fold is not None or spec.scheme != "supervised":
        raise ValueError(f"no script for fold={spec.fold}, scheme={spec.scheme!r}; give a final fit, supervised")
    parts = [_head(spec), _data(spec), _network(spec)]
    if spec.head_start:
        parts.append(_first_head(spec))
    if spec.loss is not None:
        parts += [loss_and_optimizer(spec, num_classes, dim), _loop(spec)]
    return "\n\n".join([*parts, _evaluation(spec)]) + "\n"


def _head(spec: RunSpec) -> str:
    lines = [f'"""{spec.method or spec.loss} on {spec.dataset}, as notebook 01 of dmlrepro fitted it."""']
    lines += ["", "import torch", ""]
    if spec.loss:
        lines.append("from dmlrepro import samplers")
    lines.append("from experiments.datasets import images, manifests")
    if spec.loss:
        module, _, name = spec.loss.partition(".")
        lines.append(f"from dmlrepro.losses.{module} import {name}")
    lines += ["from experiments.networks import backbones", "from experiments.training.inference import score", ""]
    lines.append('device = "cuda" if torch.cuda.is_available() else "cpu"')
    return "\n".join(lines)


def _data(spec: RunSpec) -> str:
    if spec.image_size is None:
        crops = "images.plain_batch(store, which)"
    else:
        crops = f"images.test_batch(store, which, {spec.image_size}, resize={spec.test_resize})"
    return "\n".join(
        [
            "# the images; classes of the training part are numbered from 0",
            f"manifest = manifests.load({spec.dataset!r})",
            f"store = images.open_images(manifest, short_side={batches.stored_side(spec)})",
            'train, test = (torch.from_numpy(manifest.indices(part)) for part in ("train", "test"))',
            "labels = torch.from_numpy(manifest.labels)[train].unique(return_inverse=True)[1].to(device)",
            "",
            "",
            "def shown(which):",
            f"    return {crops}.to(device)",
        ]
    )


def _network(spec: RunSpec) -> str:
    seed = stream_seed(spec.seed, "network")
    lines = [
        f"network = backbones.build({spec.backbone!r}, {spec.embedding_size}, pooling={spec.pooling!r}, "
        f"weights={spec.weights!r}, in_channels=store.channels, seed={seed})",
    ]
    if spec.freeze_batchnorm:
        lines.append("backbones.freeze_batchnorm(network)")
    lines.append("network.to(device).eval()")
    if spec.train_from is None:
        return "\n".join(
            ["# the network", *lines, "", "", *_entering("network(batch)" if spec.loss is None else "batch")]
        )
    lines = [
        f"# the network; what lies below {spec.train_from} is frozen, and computed once for every image",
        *lines,
        f"whole, network = network, backbones.Tail(network, {spec.backbone!r}, {spec.train_from!r}, shown(train[:2]))",
        "",
        "",
        *_entering("backbones.entering(whole, network.first, batch)"),
    ]
    return "\n".join(lines)


def _entering(what: str) -> list[str]:
    return [
        "@torch.no_grad()",
        "def entering(which, mirrored=False):",
        "    parts = []",
        "    for some in which.split(256):",
        "        batch = shown(some)",
        "        batch = batch.flip(-1) if mirrored else batch",
        f"        parts.append({what})",
        "    return torch.cat(parts)",
        "",
        "",
        "inputs, of_test = entering(train), entering(test)",
    ]


def _first_head(spec: RunSpec) -> str:
    whiten = "axes = axes / variances.clamp_min(1e-9 * variances[0])[:, None].sqrt()"
    scaled = [whiten] if spec.head_start == "whitened" else []
    entering = "inputs" if spec.train_from == "head" else "backbones.entering(network, 'head', inputs)"
    return "\n".join(
        [
            f"# the head begins at the {'whitened ' * bool(scaled)}principal components of the training images",
            "with torch.no_grad():",
            f"    features = {entering}.double()",
            "    variances, axes = torch.linalg.eigh(features.T.cov())",
            f"    most = {spec.embedding_size}",
            "    variances, axes = variances.flip(0)[:most], axes.flip(1)[:, :most].T",
            "    axes = axes * axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()  # of both right signs one",
            *[f"    {line}" for line in scaled],
            "    weight = axes * (network.head.weight.std() / axes.std())",
            "    network.head.weight.copy_(weight)",
            "    network.head.bias.copy_(-weight @ features.mean(0))",
        ]
    )


def loss_and_optimizer(spec: RunSpec, num_classes: int, dim: int) -> str:
    """Lines for a script with `network`, which has a `trunk` and a `head`, `inputs` and `labels` of the training images
    and `device`."""
    name = spec.loss.partition(".")[2]
    options = "".join(f", {option}={value!r}" for option, value in spec.loss_options.items())
    lines = [f"torch.manual_seed({stream_seed(spec.seed, 'loss')})  # proxies are drawn"]
    lines.append(f"loss = {name}({num_classes}, {dim}{options}).to(device)")
    if spec.proxies_from_class_means:
        lines += [
            "with torch.no_grad():  # proxies begin at the mean embeddings of their classes",
            "    embeddings = torch.cat([network(part) for part in inputs.split(256)])",
            f"    means = torch.stack([embeddings[labels == label].mean(0) for label in range({num_classes})])",
            "    loss.initialize_proxies(means)",
        ]
    return "\n".join([*lines, _optimizer(spec, num_classes, dim)])


def _optimizer(spec: RunSpec, num_classes: int, dim: int) -> str:
    """The optimiser with a group for each learning rate, as `loop.build_optimizer` makes them."""
    head = spec.head_lr or spec.lr
    groups = [("network.head.parameters()", head, spec.weight_decay)]
    if spec.train_from != "head":
        groups.insert(0, ("network.trunk.parameters()", spec.lr, spec.weight_decay))
        if head == spec.lr:
            groups = [("network.parameters()", spec.lr, spec.weight_decay)]
    by_rate: dict[float, list[str]] = {}
    for name, _ in build_loss(spec, num_classes, dim).named_parameters():
        by_rate.setdefault(spec.loss_lr.get(name, spec.loss_lr.get("*", spec.lr)), []).append(f"loss.{name}")
    for rate, names in by_rate.items():
        groups.append(("loss.parameters()" if len(by_rate) == 1 else f"[{', '.join(names)}]", rate, 0.0))
    texts = [f'    {{"params": {which}, "lr": {rate!r}, "weight_decay": {decay!r}}},' for which, rate, decay in groups]
    optimizer = OPTIMIZERS[spec.optimizer]
    others = "".join(f", {key}={value!r}" for key, value in optimizer.keywords.items() if key != "fused")
    return "\n".join([f"optimizer = torch.optim.{optimizer.func.__name__}([", *texts, f"]{others})"])


def _loop(spec: RunSpec) -> str:
    seed, size, per_class = stream_seed(spec.seed, "sampler"), spec.batch_size, spec.samples_per_class
    drawn = f"m_per_class(labels.cpu(), {size}, {per_class}" if per_class else f"shuffled(len(train), {size}"
    lines = [f"generator = torch.Generator().manual_seed({seed})"]
    if spec.steps:
        lines.append(f"steps = {spec.steps}")
    else:
        lines.append(f"steps = {spec.epochs} * max(len(train) // {size}, 1)")
    if (spec.cached_views or 1) == 2:
        lines.append(
            "views = torch.stack([inputs, entering(train, mirrored=True)])  # an image is shown in one of them"
        )
        batch = f"views[torch.randint(2, ({size},), device=device), picked.to(device)]"
    elif spec.train_from is None and spec.image_size is not None:
        lines.append("augmentation = torch.Generator().manual_seed(0)")
        batch = (
            f"images.train_batch(store, train[picked], {spec.image_size}, augmentation, "
            f"scale={spec.crop_scale!r}).to(device)"
        )
    else:
        batch = "inputs[picked.to(device)]"
    return "\n".join(
        [
            "# batches and steps",
            *lines,
            "network.train()",
            f"for picked in samplers.{drawn}, steps, generator):",
            f"    batch, target = {batch}, labels[picked.to(device)]",
            *[f"    {line}" for line in step(spec)],
        ]
    )


def step(spec: RunSpec) -> list[str]:
    """The lines of one step of `network` and `loss` on a `batch` with its `target`, labels."""
    everything = "[parameter for group in optimizer.param_groups for parameter in group['params']]"
    clipped = [
        (f"clip_grad_value_(loss.parameters(), {spec.loss_clip_value!r})", spec.loss_clip_value),
        (f"clip_grad_value_({everything}, {spec.clip_value!r})", spec.clip_value),
        (f"clip_grad_norm_({everything}, {spec.clip_norm!r})", spec.clip_norm),
    ]
    return [
        "loss(network(batch), target).backward()",
        *(f"torch.nn.utils.{call}" for call, value in clipped if value is not None),
        "optimizer.step()",
        "optimizer.zero_grad()",
    ]


def _evaluation(spec: RunSpec) -> str:
    embedded = "torch.cat([network(part) for part in of_test.split(256)])"
    if spec.train_from is None and spec.loss is None:
        embedded = "of_test"  # they were embedded at once
    return "\n".join(
        [
            "# the test classes",
            "network.eval()",
            "with torch.no_grad():",
            f"    embeddings = {embedded}.cpu()",
            "query, gallery = manifest.is_query[test.numpy()], manifest.is_gallery[test.numpy()]",
            "scores = score(embeddings, torch.from_numpy(manifest.labels)[test], query, gallery, (1,))",
            "print(f\"test classes: MAP@R {100 * scores['MAP@R']:.1f} %, R@1 {100 * scores['R@1']:.1f} %\")",
            'torch.save(network.state_dict(), "network.pt")',
        ]
    )
