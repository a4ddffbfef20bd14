//! How panels meet tiles: which instructions multiply, and what is made of panels before they do.
//!
//! Must not know values or threads.

use fornax_gguf::DType;

use crate::{
    isa::Isa,
    panel::{FEW, is_quantised, panel_bytes, strip::StripShape, strip_shape},
};

/// The tiles that panels are multiplied with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tiling {
    /// Columns of the widest one.
    pub width: usize,
    /// How many there are.
    pub tiles: usize,
    /// Whether they are [crowded](crate::columns::Tile::is_crowded).
    pub is_crowded: bool,
}

impl Tiling {
    /// Whether there are so many columns that memory is through with panels before they are.
    pub fn has_many(self, isa: Isa) -> bool {
        self.tiles * self.width > FEW_TILES * isa.columns()
    }

    /// Whether panels are through after one look at each: then memory is what takes the time.
    pub fn is_few(self) -> bool {
        self.tiles <= 1 && self.width <= FEW
    }
}

/// Columns from which on a matrix unit multiplies: fewer are through in vectors before it has
/// handed its sums over.
const MATRIX_COLUMNS: usize = 16;
/// Tiles of a turn at most, of as many columns as registers hold.
const TURN_TILES: usize = 8;
/// Such tiles that are not many yet.
const FEW_TILES: usize = 4;

/// Columns of a turn at most.
pub(crate) fn turn_columns(isa: Isa) -> usize {
    TURN_TILES * isa.columns()
}

/// How panels meet tiles.
#[derive(Clone, Copy)]
pub(super) enum Route {
    /// In vectors, from the panels themselves.
    Panels,
    /// In vectors, from strips.
    Strips(StripShape),
    /// On a matrix unit, from the panels themselves, which are bytes.
    UnitPanels,
    /// On a matrix unit, from strips.
    UnitStrips(StripShape),
    /// In vectors, from panels of brain floats.
    BrainDots,
    /// On a matrix unit, from panels of brain floats, one tile after another.
    Brains,
    /// On a matrix unit, from brain floats, for a crowd: two tiles and two panels at a time, so that
    /// each load serves two products.
    Squares {
        /// Whether panels have to be made brain floats.
        unpacks: bool,
    },
}

impl Route {
    pub fn of(isa: Isa, dtype: DType, tiling: Tiling) -> Self {
        let has_unit = isa.has_matrix_unit();
        let unpacks = is_quantised(dtype) && isa.has_brains_for_quants();
        if tiling.is_crowded && (unpacks || dtype == DType::BF16) {
            return Self::Squares { unpacks };
        }
        if isa.has_brains() && dtype == DType::BF16 {
            return match has_unit {
                true => Self::Brains,
                false => Self::BrainDots,
            };
        }
        if tiling.is_few() || !is_quantised(dtype) {
            return Self::Panels;
        }
        let shape = strip_shape(dtype);
        match has_unit && tiling.width >= MATRIX_COLUMNS {
            true if !shape.spreads => Self::UnitPanels,
            true => Self::UnitStrips(shape),
            false => Self::Strips(shape),
        }
    }

    /// Bytes of what is made of a panel before tiles meet it, a multiple of a cache line.
    pub fn made_bytes(self, cols: usize) -> usize {
        match self {
            Self::Panels
            | Self::UnitPanels
            | Self::BrainDots
            | Self::Brains
            | Self::Squares { unpacks: false } => 0,
            Self::Strips(shape) | Self::UnitStrips(shape) => shape.bytes(cols),
            Self::Squares { unpacks: true } => panel_bytes(DType::BF16, cols),
        }
    }

    /// How long it takes to make panels ready, in the time of a column: what comes next is asked for
    /// all along, for memory to be always at work.
    pub fn making_columns(self) -> usize {
        match self {
            Self::Panels
            | Self::UnitPanels
            | Self::BrainDots
            | Self::Brains
            | Self::Squares { unpacks: false } => 0,
            // Scales alone: so many requests at once would be dropped.
            Self::Strips(StripShape { spreads: false, .. }) => 0,
            Self::Strips(_) => 4,
            Self::UnitStrips(_) => 16,
            Self::Squares { unpacks: true } => 48,
        }
    }

    /// Tiles of a turn.
    pub fn turn_tiles(self, isa: Isa, width: usize) -> usize {
        match self {
            Self::Strips(_) | Self::BrainDots => turn_columns(isa) / width,
            Self::Squares { .. } => 2,
            Self::Panels | Self::UnitPanels | Self::UnitStrips(_) | Self::Brains => 1,
        }
    }
}
