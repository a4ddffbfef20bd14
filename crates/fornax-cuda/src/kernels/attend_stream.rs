//! The shape of `kernels/attend_stream.cu`: how many warps and blocks it runs with, and in how much shared memory.
//!
//! Must not know which steps a block has, nor of which operation they are.

/// Rows taken at most.
pub(crate) const ROWS: usize = 384;
/// Blocks of a multiprocessor at most.
pub(crate) const MOST_BLOCKS: usize = 8;
/// Positions of a slice, as in `kernels/slices.cu`.
pub(crate) const SLICE: usize = 16;
/// Slices of a warp's ring: while one is multiplied the next is on its way. More warps hide more of the time
/// from one instruction to the next than a third slice would.
const STAGES: usize = 2;
/// Heads that a warp knows of: more than stages.
const KNOWN: usize = 4;
/// How kernels number a cache in Q8_0.
const Q8_0: usize = 3;

/// Attention of many rows: elements of a head, query heads that a block takes at once, type of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Stream {
    pub head: usize,
    pub group: usize,
    pub kv: usize,
    /// Whether it is [without what few models have](crate::operation::AttendTable::is_plain).
    pub plain: bool,
}

impl Stream {
    /// Warps of a block: four end a head together, as often as two would, which is worth more where they wait
    /// for memory than where they have much to do with each byte.
    pub fn warps(self) -> usize {
        self.shape().0
    }

    /// Blocks of a multiprocessor: as many as have registers for all of their warps.
    pub fn blocks(self) -> usize {
        self.shape().1
    }

    fn shape(self) -> (usize, usize) {
        match (self.kv, self.group) {
            (Q8_0, 1..=2) => (2, 8),
            (Q8_0, _) => (2, 6),
            (_, 1..=2) => (4, 3),
            _ => (2, 5),
        }
    }

    /// Bytes of a block's rings, and behind them of `struct Shared`, which the kernel holds against this.
    pub fn shared(self) -> usize {
        let Self {
            head, group, kv, ..
        } = self;
        let row = match kv {
            Q8_0 => head + head / 16,
            _ => 2 * head,
        };
        let (warps, rings) = (self.warps(), self.warps() * STAGES * 2 * SLICE * row);
        let floats = (group + 3) * head + 2 * head + 2 * warps * group;
        // As bytes a query has two of each number in different banks, and their scale.
        let query = match (kv, group) {
            (Q8_0, 1..=2) => 2 * head + 48,
            _ => 2 * head,
        };
        let newest = 2 * row + head / 8;
        let heads = warps * KNOWN * 4 * 7;
        let numbers = 4 * (warps + 2);
        let gaps = 32; // before what begins at a multiple of 16
        rings + 4 * floats + group * query + newest + heads + numbers + gaps
    }

    /// What tells it from others.
    pub fn sizes(self) -> [(&'static str, usize); 4] {
        [
            ("HEAD", self.head),
            ("GROUP", self.group),
            ("TYPE", self.kv),
            ("PLAIN", usize::from(self.plain)),
        ]
    }

    /// What the kernel is compiled for.
    pub fn defines(self) -> Vec<(&'static str, usize)> {
        let shape = [
            ("WARPS", self.warps()),
            ("BLOCKS", self.blocks()),
            ("STAGES", STAGES),
            ("KNOWN", KNOWN),
            ("MOST_ROWS", ROWS),
            ("ROOM", self.shared()),
        ];
        self.sizes().into_iter().chain(shape).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_shape_has_more_blocks_than_there_is_room_for_in_tables() {
        for kv in 1..=3 {
            for group in 1..=8 {
                let stream = Stream {
                    head: 128,
                    group,
                    kv,
                    plain: true,
                };
                assert!(stream.blocks() <= MOST_BLOCKS, "{stream:?}");
            }
        }
    }
}
