//! The kernels' source files, as they were when this was built.
//!
//! Must not know which of them belong together, but for those of whole layers.

/// A source file: its name and its text.
pub(super) type File = (&'static str, &'static str);

macro_rules! files {
    ($($name:ident = $file:literal)*) => {
        $(pub(super) const $name: File = ($file, include_str!(concat!("../../kernels/", $file)));)*
    };
}

files! {
    PRELUDE = "prelude.cu"
    FERRY = "ferry.cu"
    ROUTE = "route.cu"
    ROWS = "rows.cu"
    TURN = "turn.cu"
    DRAWS = "draws.cu"
    TILE_LOGITS = "tile_logits.cu"
    SEARCH = "search.cu"
    SAMPLE = "sample.cu"
    ATTENTION = "attention.cu"
    ATTEND_ROWS = "attend_rows.cu"
    ATTEND_STREAM = "attend_stream.cu"
    ATTEND_TILES = "attend_tiles.cu"
    HEADS = "heads.cu"
    SLICES = "slices.cu"
    SLICE_PRODUCTS = "slice_products.cu"
    STREAM = "stream.cu"
    WORDS = "words.cu"
    TALLIES = "tallies.cu"
    LINKS = "links.cu"
    MULTIPLY_LINK = "multiply_link.cu"
    ATTEND_LINK = "attend_link.cu"
    CHAIN = "chain.cu"
    BYTE_PANELS = "byte_panels.cu"
    BRAIN_PANELS = "brain_panels.cu"
    TEAMS = "teams.cu"
    ATTEND_TEAM = "attend_team.cu"
    FEED_TEAM = "feed_team.cu"
    LAYERS = "layers.cu"
    FORMATS = "formats.cu"
    PRODUCT = "product.cu"
    OPERANDS = "operands.cu"
    UNITS = "units.cu"
    ONE_TOKEN = "one_token.cu"
    PEAK = "peak.cu"
    GEMV = "gemv.cu"
    EXPERTS = "experts.cu"
    SKETCH = "sketch.cu"
    LARGEST = "largest.cu"
    BRAINS = "brains.cu"
    GEMM = "gemm.cu"
    WGMMA = "wgmma.cu"
    BROAD = "broad.cu"
    GATES = "gates.cu"
    TURNED = "turned.cu"
    SKINNY = "skinny.cu"
    TILE = "tile.cu"
    TILE_WEIGHTS = "tile_weights.cu"
    TILES = "tiles.cu"
    VOCABULARY = "vocabulary.cu"
}

/// Those of whole layers, with the panels of a format.
pub(super) const fn layers_files(panels: File) -> [File; 12] {
    [
        PRELUDE,
        ATTENTION,
        SLICES,
        FORMATS,
        STREAM,
        WORDS,
        TALLIES,
        panels,
        TEAMS,
        ATTEND_TEAM,
        FEED_TEAM,
        LAYERS,
    ]
}
