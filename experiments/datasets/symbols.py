"""A second embedded data set: signs that are no letters of glyphs, drawn like them.

Punctuation, currencies, operators, arrows, shapes and a few letters of Lao: 300 classes to train on and 59 to test on.
They are to glyphs what ImageNet is to birds: a network is pretrained on them (networks/conv4_symbols.safetensors), so
that a head or a short run on glyphs starts from something, and nothing of glyphs has been seen.

The choice: every such character that at least eight typefaces contain, in the order of the code points, unless it looks
like a class of glyphs or an earlier symbol (a correlation above 0.9, measured as glyphs.py says). Every sixth is for
testing. The outcome is written down; a test recomputes the correlations.
"""

import hashlib
from pathlib import Path

from experiments.datasets import glyphs

SOURCE_DIGEST = hashlib.sha256(Path(__file__).read_bytes() + glyphs.SOURCE_DIGEST.encode()).hexdigest()

TRAIN = (
    '"#$%&*+,./;=>@\\¢£¤§©¬°±¶¿ຂຄຈຊນຜຝຣສຯາຳ‗‡‣…‰′″‴‶‷‸‼‽⁂⁇⁋⁌⁍⁒⁗₠₢₧₯₰₲₴₸₺℃℅℉№℮⅁⅋←↓'
    "↗↘↙↛↝↣↨↫↬↯↱↲↳↴↵↷↸↹↺↽⇅⇋⇍⇏⇑⇗⇘⇙⇚⇢⇦⇨⇩⇫⇰⇲⇶∁∄∅∊∍∓∔∘∝∞∟∠∬∴∵∷∸∹≄≅≍≎≐≓≗≘≛≞≤≥≦≧≨≮≴≵≶≷"
    "≺≼≽≾≿⊂⊃⊅⊆⊇⊊⊋⊍⊏⊐⊞⊠⊢⊣⊥⊧⊨⊩⊪⊫⊭⊯⊲⊳⊸⋆⋐⋑⋚⋛⋝⋞⋟⋠⋡⋧⋯⌁⌂⌃⌅⌆⌌⌍⌎⌐⌑⌘⌙⌜⌞⌟⌥⌦⌧⍽⎛⎜⎞⎟⎨⎬⏎⏏▀▄▆▊▌▎"
    "▐░▕□▣▫▭▱▲△▷►▼▽◀◅◇◈◊○◍◐◑◒◓◕◖◜◝◞◠◡◢◣◤◭◮◸◹◺☀☹☼☿♀♂♃♄♅♆♡♣♤♧♩♫♬♭♮⟰⟳⟴⟶⟸⤊⧻⨌⩫⬎⬏⬑⬖⬗⬘⬙"
)
TEST = "':~ª×ບະ‥‵‾⁎₪₹™↖↟↰↶⇄⇖⇥⇱∉√∭≁≒≣≩≹⊁⊈⊔⊦⊬⋄⋜⋦⌄⌏⌝⌫⎠▁▏▤▶◁◌◔◟◥◿♁♇♪⟲⥀⬐"


def characters() -> tuple[str, str]:
    """The train and the test characters, one per class, in label order."""
    return TRAIN, TEST
