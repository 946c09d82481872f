"""Piecewise-linear manifolds: every point gets a linear piece of the data manifold, similarity is measured along it.

Paper      Bhatnagar and Ahuja, "Piecewise-Linear Manifolds for Deep Metric Learning", CPAL 2024.
Equations  Sec. 3.2 (pieces), 2-5 (similarity), 6 (points), 7 (proxies), 8 (neighbourhoods of proxies), 9 (sum).
Deviations - T = 90 % is a quality that every member must reach. Read as printed, "error less than T%", it accepts
             nearly all neighbours of classes of few dimensions: `quality=0.1`; 0 takes all k, ablation (1) of Table 3.
           - The quality of a member is not defined: `measure` chooses among three readings.
           - PCA is centred at the mean of the members, so that m + 1 points always fit. Uncentred PCA is what "m points
             fit with zero error" suggests; it then rejects almost everything. See `centring`.
           - Step 1 takes the m - 1 nearest neighbours (P - 1 is printed), step 3 tests all of X' (X is printed), and
             Eq. 5 takes s'(x_j, x_i) from P_i (P_j is printed).
           - A piece passes through its own point, not through the mean of its members: Eqs. 3-4 need x_i - x_j only.
           - Similarities are targets without gradient, so that the subspaces of proxies learn from Eq. 8 alone. The
             paper's list of what each term changes needs a gradient through them; see `detach_similarity`.
           - Proxies lie on the unit sphere and their subspaces are orthonormal in every forward pass; the paper leaves
             open how either is kept.
           - The binary similarity of a proxy (Table 3) is not defined; see `PiecewiseLinearManifoldLoss`.
Cost       For N points in D dimensions N^2 D for their products, from which neighbours, pieces and similarities are
           found, N^2 m k more for the similarities and N D m k for the bases; a choice of k out of N numbers for each
           point. The rest is linear in N: at most k eigenproblems of at most k + 1 rows for each point, whatever D is.
           Of 200 points in 512 dimensions they take a third of the time at k = 9, six tenths at k = 20.
Training   Embeddings of the momentum encoder get no gradient; two near-duplicates in a batch are harmless.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dmlrepro.losses.checks import (
    _TwoViews,
    check_directions,
    check_finite,
    check_pair,
    check_positive,
    check_sizes,
    printed,
    values_are_known,
)
from dmlrepro.losses.recommended import PROXIES, groups

CENTRINGS = ("mean", "anchor", "none")
MEASURES = ("energy", "length", "norm")
SIMILARITIES = ("continuous", "binary")

_BLOCK = 2**22  # numbers in the largest temporary
_ROUNDING = 1e-12  # of float64, relative to the spread of a neighbourhood
_COINCIDENT = 1e-14  # squared distances of unit vectors below are rounding


@torch.no_grad()
def linear_neighborhoods(
    points: Tensor, k: int, dim: int = 3, quality: float = 0.9, *, centring: str = "mean", measure: str = "energy"
) -> tuple[Tensor, Tensor]:
    """The linear piece at every point and the points that it was fitted to (Sec. 3.2).

    A point and its dim - 1 nearest neighbours begin a set. Its further neighbours, up to the k-th, are tried in order;
    one is kept if PCA with dim components on the set and it reconstructs each of them well enough.

    Args:
        points: (N, D) floats, compared by Euclidean distance; computed in float64.
        k: neighbours of a point, itself not counted; dim <= k < N.
        dim: dimension m of a piece, at most D.
        quality: T in [0, 1]; 0 keeps every neighbour.
        centring: PCA about the "mean" of the set, about the point itself ("anchor") or about the origin ("none").
        measure: quality of a member x with residual r, c the centre: "energy" 1 - |r|^2 / |x - c|^2, "length"
            1 - |r| / |x - c|, "norm" 1 - |r| / |x|.

    Returns:
        bases (N, dim, D), orthonormal, the strongest direction first, in the dtype of points; where the members span
        fewer dimensions, because points coincide, the last directions are arbitrary.
        members (N, N) bool, row i the set of point i, itself included.

    Raises:
        ValueError: an option or a shape that makes no sense, fewer than k + 1 points, points that are not finite or
            all coincide.
    """
    wide, _, near, sizes, shares, lengths = _search(points, k, dim, quality, centring, measure)
    return _directions(wide, near, shares, lengths)[0].to(points.dtype), _members(near, sizes)


@torch.no_grad()
def pieces_and_similarity(
    points: Tensor,
    k: int,
    dim: int = 3,
    quality: float = 0.9,
    n_alpha: float = 4.0,
    n_beta: float = 0.5,
    *,
    centring: str = "mean",
    measure: str = "energy",
) -> tuple[Tensor, Tensor, Tensor]:
    """Bases and members as `linear_neighborhoods` returns them, and `manifold_similarity` (N, N) along these bases.

    The products of the points, by which neighbours are found, give the similarities too. These take a third of the
    time that they take after `linear_neighborhoods`. All are without gradient; bad input raises as it does there.
    """
    wide, gram, near, sizes, shares, lengths = _search(points, k, dim, quality, centring, measure)
    bases, weights, thin = _directions(wide, near, shares, lengths)
    coordinates = _combined(weights, near, gram)  # (N, dim, N): of all points along the pieces
    if thin.any():
        coordinates[thin] = bases[thin] @ wide.T
    squares = gram.diagonal()
    apart = (squares[:, None] + squares - 2 * gram).clamp_min_(0)
    one_way = _decayed(*_parts(coordinates, coordinates.diagonal(dim1=0, dim2=2).T, apart), n_alpha, n_beta)
    return bases.to(points.dtype), _members(near, sizes), ((one_way + one_way.T) / 2).to(points.dtype)


@torch.library.custom_op("dmlrepro::pieces_and_similarity", mutates_args=())
def _operator(
    points: Tensor, k: int, dim: int, quality: float, n_alpha: float, n_beta: float, centring: str, measure: str
) -> tuple[Tensor, Tensor, Tensor]:
    """To a compiler, which cannot follow sets that grow with what they hold, the search is one operator."""
    return pieces_and_similarity(points, k, dim, quality, n_alpha, n_beta, centring=centring, measure=measure)


@_operator.register_fake
def _(points: Tensor, k: int, dim: int, quality: float, n_alpha: float, n_beta: float, centring: str, measure: str):
    size = points.shape[0]
    bases = points.new_empty(size, dim, points.shape[1])
    return bases, points.new_empty(size, size, dtype=torch.bool), points.new_empty(size, size)


def _search(
    points: Tensor, k: int, dim: int, quality: float, centring: str, measure: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Of `linear_neighborhoods`' arguments: the points in float64 about a centre common to all, their products (N, N),
    near (N, k + 1), the neighbours of each with the members of its set first, and what `_grow` returns."""
    _check_options(k=k, dim=dim, quality=quality, centring=centring, measure=measure)
    if points.ndim != 2 or not points.is_floating_point():
        raise ValueError(f"points must be floats (N, D), got {points.dtype} of shape {tuple(points.shape)}")
    if len(points) <= k:
        raise ValueError(f"k = {k} neighbours need more than k points, got {len(points)}; enlarge the batch or lower k")
    if dim > points.shape[1]:
        raise ValueError(f"dim must be at most {points.shape[1]}, the dimension of points, got {dim}")
    wide = points.double()
    extent = (wide - wide[0]).abs().max()
    if not extent.isfinite():
        raise ValueError("points contain NaN or infinity; lower the learning rate")
    if extent == 0:
        raise ValueError("points all coincide: the embedding has collapsed; lower the learning rate or raise delta")
    if centring != "none":
        wide = wide - wide.mean(0)  # far from the origin products would lose what tells the points apart
    gram = wide @ wide.T
    near = _nearest(gram, k)
    allowed = 1 - quality if measure == "energy" else (1 - quality) ** 2
    squares = points.double().square().sum(1) if measure == "norm" else None
    return wide, gram, near, *_grow(gram, near, dim, allowed, squares, centring)


def _members(near: Tensor, sizes: Tensor) -> Tensor:
    """(N, N) bool: the first `sizes` points in each row of near."""
    members = torch.zeros(len(near), len(near), dtype=torch.bool, device=near.device)
    return members.scatter_(1, near, torch.arange(near.shape[1], device=near.device) < sizes[:, None])


def _nearest(gram: Tensor, k: int) -> Tensor:
    """Indices (N, k + 1) of each point and its nearest neighbours, itself first."""
    squares, found = gram.diagonal(), []
    for rows in torch.arange(len(gram), device=gram.device).split(max(1, _BLOCK // len(gram))):
        apart = squares - 2 * gram[rows]  # less the square of the row's own point
        apart.scatter_(1, rows[:, None], -math.inf)
        found.append(apart.topk(k + 1, largest=False).indices)
    return torch.cat(found)


def _grow(
    gram: Tensor, near: Tensor, dim: int, allowed: float, squares: Tensor | None, centring: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Steps 1-4 for every point at once: members are put first in each row of near.

    gram (N, N): products of all points. A member's squared residual may be `allowed` times its squared distance from
    the centre, or times its entry of squares (N,) where these are given.

    Each member adds one vector to those that span a set about its centre, the product of a row of `spans` with the
    members, so that a candidate adds one row to the matrix of these vectors' products, whose eigenvectors are the PCA.

    Returns:
        sizes (N,): how many members there are.
        shares (N, dim, k + 1) and lengths (N, dim): shares @ points are the members' strongest directions, the
            strongest first, and these their lengths.
    """
    count, width = near.shape
    every, places = torch.arange(count, device=near.device), torch.arange(width, device=near.device)
    own, least = gram.diagonal(), 1e-14 * gram.diagonal().amax()
    first = int(centring != "none")  # about a centre among them the first member adds nothing
    begun = dim + first  # so many points fit for certain
    spans = (_contrasts(width) if centring == "mean" else torch.eye(width)).to(gram)
    spread, sums = gram.new_zeros(count, width, width), gram.new_zeros(count, width)
    shares, lengths = gram.new_zeros(count, dim, width), gram.new_zeros(count, dim)
    sizes = torch.zeros_like(every)
    for place in range(width):
        candidate, rejected = near[:, place].clone(), near[every, sizes]
        near[:, place] = rejected  # behind the members are those rejected, then those to come
        near[every, sizes] = candidate
        # all in one call, as wide as the largest set; a GPU, which would have to wait for that, as wide as it may be
        w = (int(sizes.max()) if gram.device.type == "cpu" else place) + 1
        tried, inside = near[:, :w], (places[:w] <= sizes[:, None]).to(gram)
        row, square = gram.take(candidate[:, None] * count + tried) * inside, own[tried] * inside
        if centring == "mean":
            number, total = (sizes[:, None] + 1).to(gram), row.sum(1, keepdim=True)
            with_all = (sums[:, :w] + row).scatter_(1, sizes[:, None], total)  # products of each with the sum of all
            square -= (2 * with_all - with_all.sum(1, keepdim=True) / number * inside) / number
            row = ((number * row - with_all) / (number * (number - 1)).clamp_min(1).sqrt()) @ spans[:w, :w].T
        elif centring == "anchor":
            origin = gram.gather(1, tried)
            square += (own[:, None] - 2 * origin) * inside
            row += own[:, None] - row[:, :1] - origin
        spread[every, sizes, :w] = row  # its products with the vectors before it; what lies behind is not read
        fits = torch.ones_like(every, dtype=torch.bool)
        if place + 1 >= begun:
            values, vectors = torch.linalg.eigh(spread[:, first:w, first:w].mT, UPLO="U")  # faster than the lower half
            largest, strongest = values[:, -dim:], vectors[..., -dim:].mT @ spans[first:w, :w]
            residual = square - (largest[:, None] @ strongest.square()).squeeze(1)
            limit = allowed * (square if squares is None else squares[tried])
            slack = _ROUNDING * values.sum(1, keepdim=True) + least
            fits = (residual <= limit + slack).all(1) | (place < begun)
            shares[..., :w] = torch.where(fits[:, None, None], strongest, shares[..., :w])
            lengths = torch.where(fits[:, None], largest, lengths)
        if centring == "mean":
            sums[:, :w] = torch.where(fits[:, None], with_all, sums[:, :w])
        sizes += fits
    if centring == "anchor":
        shares[..., 0] -= shares.sum(2)  # the vectors are members less the first
    return sizes, shares.flip(1), lengths.flip(1).clamp_min_(0).sqrt_()


def _contrasts(width: int) -> Tensor:
    """Row i, an orthonormal one, times points is the i-th less the mean of those before it, scaled (Helmert)."""
    before = torch.arange(width, dtype=torch.float64)[:, None]
    rows = before * torch.eye(width, dtype=torch.float64) - torch.ones(width, width, dtype=torch.float64).tril(-1)
    return rows / (before * (before + 1)).clamp_min(1).sqrt()


def _directions(points: Tensor, near: Tensor, shares: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Orthonormal bases (N, dim, D) of the members' strongest directions, from shares and lengths as of `_grow`.

    Also weights (N, dim, k + 1), by which the members make these bases, but those of the sets in thin (N,).
    """
    least = 1e-5 * points.square().sum(1).amax().sqrt()
    thin = lengths[:, -1] <= (1e-3 * lengths[:, 0]).clamp_min(least)  # rounding leaves directions oblique, or none
    weights = shares / lengths[:, :, None]
    bases = _combined(weights, near, points)
    if thin.any():
        bases[thin] = torch.linalg.qr(_combined(shares[thin], near[thin], points).mT).Q.mT
    return bases, weights, thin


def _combined(weights: Tensor, near: Tensor, rows: Tensor) -> Tensor:
    """Sums (R, dim, n) of rows (N, n), those that near (R, w) names, by weights (R, dim, w)."""
    named = near[:, None].expand(weights.shape)
    sums = F.embedding_bag(named.flatten(0, 1), rows, per_sample_weights=weights.flatten(0, 1), mode="sum")
    return sums.unflatten(0, weights.shape[:2])


def directed_similarity(
    points: Tensor, anchors: Tensor, bases: Tensor, n_alpha: float = 4.0, n_beta: float = 0.5
) -> Tensor:
    """s'(x_i, a_j) = alpha beta (Eqs. 2-4), (N, M), of points (N, D) with pieces through anchors (M, D), whose bases
    (M, dim, D) are orthonormal.

    alpha = (1 + o / 2)^-n_alpha falls with the distance o across the piece, beta = (1 + p)^-n_beta with that along it.
    Computed in float64, and given in the dtype of points: of two points on one piece o is the root of a difference that
    float32 makes 1e-7 rather than 0.

    >>> origin, along_x = torch.zeros(1, 2), torch.tensor([[[1.0, 0.0]]])
    >>> directed_similarity(torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 3.0]]), origin, along_x)
    tensor([[1.0000],
            [0.5000],
            [0.0256]])
    """
    if bases.dtype != torch.float64:  # rounded, they are not quite orthonormal, and what lies along seems to lie across
        bases = torch.linalg.qr(bases.double().mT).Q.mT
    return _decayed(*_components(points.double(), anchors.double(), bases), n_alpha, n_beta).to(points.dtype)


def manifold_similarity(points: Tensor, bases: Tensor, n_alpha: float = 4.0, n_beta: float = 0.5) -> Tensor:
    """s(x_i, x_j) (Eq. 5), the mean of both directions, symmetric: points (N, D), bases (N, dim, D) -> (N, N).

    On the unit sphere it lies in [0.054, 1] at the defaults, so that no two points are as dissimilar as Eq. 6 assumes.
    """
    wide = points.double()
    wide = wide - wide.mean(0)  # far from the origin products would lose what tells the points apart
    one_way = directed_similarity(wide, wide, bases, n_alpha, n_beta)
    return ((one_way + one_way.T) / 2).to(points.dtype)


def _components(points: Tensor, anchors: Tensor, bases: Tensor) -> tuple[Tensor, Tensor]:
    """Squared lengths (N, M) of x_i - a_j across and along the piece at a_j."""
    coordinates = (bases.flatten(0, 1) @ points.T).unflatten(0, bases.shape[:2])
    return _parts(coordinates, (bases @ anchors[:, :, None]).squeeze(2), _squared_distances(points, anchors))


def _parts(coordinates: Tensor, own: Tensor, apart: Tensor) -> tuple[Tensor, Tensor]:
    """The same from coordinates along each piece, of the points (M, dim, N) and its own anchor (M, dim), and the
    squared distances (N, M)."""
    along = (coordinates - own[:, :, None]).square().sum(1).T
    return (apart - along).clamp_min(0), along


def _decayed(across: Tensor, along: Tensor, n_alpha: float, n_beta: float) -> Tensor:
    return (-n_alpha * (_root(across) / 2).log1p() - n_beta * _root(along).log1p()).exp()


def _squared_distances(a: Tensor, b: Tensor) -> Tensor:
    return (a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T).clamp_min(0)


def distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances (N, M) of (N, D) and (M, D), 0 with a zero gradient where points coincide."""
    return _root(_squared_distances(a, b))


def _root(squared: Tensor) -> Tensor:
    """The square root, 0 with a zero gradient where points coincide."""
    apart = squared > _COINCIDENT
    return torch.where(apart, squared, 1).sqrt() * apart


class PiecewiseLinearManifoldLoss(_TwoViews):
    """L = L_point + L_proxy + L_neighborhood (Eq. 9), sums over pairs as printed.

    Called with the embeddings of a batch and those that a momentum encoder gives to the same images, as second argument
    or as ref_emb; no labels. Both are normalised here. Views of an image are points of their own.

    Args:
        embedding_size: D.
        num_proxies: N_rho; 0 leaves L_point alone.
        dim: m, dimension of the linear pieces.
        k: neighbours of a point among which its piece is grown, in a batch of more than k points.
        n_alpha, n_beta: how fast similarity falls across and along a piece.
        delta: distance of points without similarity. The paper's 2 can destroy pretrained features: points on a sphere
            are at most 1.41 apart on average, so that they never come to rest (notebooks 50 and 55); try 1 first.
        quality, centring, measure: see `linear_neighborhoods`.
        similarity: "continuous" is Eq. 5; "binary" is Table 3's ablation (2): 1 for the members of a piece, else 0,
            averaged over both directions. Our reading for proxies: of the k points of the batch nearest to a proxy,
            those whose share 1 - o^2 / |x - rho|^2 along its subspace reaches `quality` are its members.
        detach_similarity: False lets L_proxy and L_neighborhood reach proxies and subspaces through the similarity too.

    Attributes:
        proxies: Parameter (N_rho, D), unit vectors at the start; only the direction counts.
        subspaces: Parameter (N_rho, dim, D), orthonormal at the start; only what `orthonormal_subspaces` makes of it
            counts.

    Raises:
        ValueError: on an option out of range; in the call, on embeddings that are no finite (B, D) floats with a
            direction, on momentum embeddings of another shape, on a batch of k points or fewer and on one that has
            collapsed.
    """

    def __init__(
        self,
        embedding_size: int,
        num_proxies: int = 100,
        *,
        dim: int = 3,
        k: int = 9,
        n_alpha: float = 4.0,
        n_beta: float = 0.5,
        delta: float = 2.0,
        quality: float = 0.9,
        centring: str = "mean",
        measure: str = "energy",
        similarity: str = "continuous",
        detach_similarity: bool = True,
    ):
        super().__init__()
        _check_options(k=k, dim=dim, quality=quality, centring=centring, measure=measure)
        check_finite(n_alpha=n_alpha, n_beta=n_beta)
        check_positive(delta=delta)
        if min(n_alpha, n_beta) < 0:
            raise ValueError(f"n_alpha and n_beta must be at least 0, got {n_alpha} and {n_beta}")
        if similarity not in SIMILARITIES:
            raise ValueError(f"similarity must be one of {', '.join(SIMILARITIES)}, got {similarity!r}")
        check_sizes(embedding_size=embedding_size)
        check_sizes(least=0, num_proxies=num_proxies)
        if dim > embedding_size:
            raise ValueError(f"dim must be at most embedding_size = {embedding_size}, got {dim}")
        self.pieces: dict[str, Any] = {"k": k, "dim": dim, "quality": quality, "centring": centring, "measure": measure}
        self.n_alpha, self.n_beta, self.delta = n_alpha, n_beta, delta
        self.similarity, self.detach_similarity = similarity, detach_similarity
        self.embedding_size = embedding_size
        self.proxies: Any = None
        self.subspaces: Any = None
        if num_proxies:
            self.proxies = nn.Parameter(F.normalize(torch.randn(num_proxies, embedding_size), dim=1))
            frames = torch.randn(num_proxies, embedding_size, dim)
            wide = frames.to(torch.promote_types(frames.dtype, torch.float32))  # there is no QR in half precision
            self.subspaces = nn.Parameter(torch.linalg.qr(wide).Q.mT.contiguous().to(frames.dtype))

    def parameter_groups(self, lr: float) -> list[dict]:
        """Recommended groups for an optimiser, lr being the network's rate: proxies and subspaces at 100 lr."""
        return groups(self, {"*": PROXIES * lr})

    def orthonormal_subspaces(self) -> Tensor:
        """Psi (N_rho, dim, D) by Gram-Schmidt from `subspaces`, in float64; rows that are orthonormal stay unchanged.

        They are a function of the parameter, so that no optimiser can make them oblique.
        """
        q, r = torch.linalg.qr(self.subspaces.double().mT)
        return (q * torch.where(r.diagonal(dim1=1, dim2=2) < 0, -1.0, 1.0)[:, None, :]).mT

    def extra_repr(self) -> str:
        return printed(self, num_proxies=0 if self.proxies is None else len(self.proxies), **self.pieces)

    def terms(self, embeddings: Tensor, momentum_embeddings: Tensor) -> dict[str, Tensor]:
        """The three sums by name, "point", "proxy" and "neighborhood", the first alone where there are no proxies."""
        check_pair(embeddings, momentum_embeddings, self.embedding_size)
        with torch.autocast(embeddings.device.type, enabled=False):
            points = F.normalize(embeddings.double(), dim=1)
            targets = F.normalize(momentum_embeddings.detach().double(), dim=1)
            find = _operator if torch.compiler.is_compiling() else pieces_and_similarity
            bases, members, similarity = find(targets, n_alpha=self.n_alpha, n_beta=self.n_beta, **self.pieces)
            if self.similarity == "binary":
                similarity = (members.double() + members.T) / 2
            gap = self.delta * (1 - similarity) - distances(points, points)
            sums = {"point": gap.square().sum()}  # a point has no gap to itself
            if self.proxies is not None:
                proxies, subspaces = F.normalize(self.proxies.double(), dim=1), self.orthonormal_subspaces()
                check_directions(self.proxies, "proxies")
                if values_are_known() and not subspaces.isfinite().all():
                    raise ValueError("subspaces contain NaN or infinity; lower their learning rate")
                similarity = self._proxy_similarity(targets, bases, members, proxies, subspaces)
                if self.detach_similarity:
                    similarity = similarity.detach()
                gap = self.delta * (1 - similarity) - distances(points, proxies)
                sums["proxy"] = gap.square().sum()
                cosines = _root(torch.einsum("jkd,ind->ijkn", subspaces, bases).square().sum(-1))  # psi_kj, P_i
                sums["neighborhood"] = (similarity[..., None] - cosines).square().sum()
        kind = torch.promote_types(embeddings.dtype, torch.float32)
        return {name: value.to(kind) for name, value in sums.items()}

    def _proxy_similarity(
        self, points: Tensor, bases: Tensor, members: Tensor, proxies: Tensor, subspaces: Tensor
    ) -> Tensor:
        """s(x_i, rho_j) (Sec. 3.5): (N, N_rho)."""
        decay = self.n_alpha, self.n_beta
        if self.similarity == "continuous":
            to_proxies = directed_similarity(points, proxies, subspaces, *decay)
            return (to_proxies + directed_similarity(proxies, points, bases, *decay).T) / 2
        across, along = _components(points, proxies, subspaces)
        nearest = (across + along).topk(self.pieces["k"], dim=0, largest=False).indices
        near = torch.zeros_like(across, dtype=torch.bool).scatter_(0, nearest, True)
        return (near & (across <= (1 - self.pieces["quality"]) * (across + along))).double()


def _check_options(k: int, dim: int, quality: float, centring: str, measure: str) -> None:
    check_sizes(k=k, dim=dim)
    if k < dim:
        raise ValueError(f"k must be at least dim = {dim}, or the piece of a point would have no basis, got {k}")
    if not 0 <= quality <= 1:
        raise ValueError(f"quality must lie in [0, 1], got {quality}; 90 % is 0.9")
    for name, value, known in (("centring", centring, CENTRINGS), ("measure", measure, MEASURES)):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
