//! Seeded random inputs.

/// A small generator (SplitMix64): equal seeds give equal inputs on every machine.
#[derive(Clone, Debug)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// A stream of its own for every name.
    pub fn named(name: &str) -> Self {
        let fold = |state: u64, byte: u8| (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        Self {
            state: name.bytes().fold(0xCBF2_9CE4_8422_2325, fold),
        }
    }

    pub fn word(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let word = (self.state ^ (self.state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// In `[0, 1)`.
    pub fn uniform(&mut self) -> f64 {
        (self.word() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// In `0..bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.uniform() * bound as f64) as usize
    }

    /// True once in `count` times.
    pub fn once_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// Mean 0, deviation 1.
    pub fn normal(&mut self) -> f32 {
        self.two_normals()[0]
    }

    pub fn normals(&mut self, len: usize) -> Vec<f32> {
        let pairs = (0..len.div_ceil(2)).flat_map(|_| self.two_normals());
        pairs.take(len).collect()
    }

    /// Box & Muller 1958.
    fn two_normals(&mut self) -> [f32; 2] {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        let (sin, cos) = (std::f64::consts::TAU * self.uniform()).sin_cos();
        [(radius * cos) as f32, (radius * sin) as f32]
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
    }
}
