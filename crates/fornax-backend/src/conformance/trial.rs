//! The bench that a check works at: inputs, poisoned outputs, guards, and the verdict.

use super::random::Random;
use super::{Report, Tolerance};
use crate::{Backend, BackendError, Element, StepCapacity};

/// Rows behind the last one that takes part.
const GUARD_ROWS: usize = 2;
/// What guard rows hold; exact in every float format.
const GUARD: f32 = 4096.0;
/// What guard rows of index buffers hold, and what index outputs hold before.
pub(super) const GUARD_INDEX: u32 = 0xDEAD_BEEF;

/// One check of one backend.
pub(super) struct Trial<'a, B: Backend> {
    pub backend: &'a mut B,
    pub tolerance: &'a Tolerance,
    pub random: Random,
    case: String,
    report: Report,
}

/// A matrix on the device, and its values as the device holds them.
pub(super) struct Input<B: Backend> {
    pub buffer: B::Buffer,
    /// `[n, width]`
    pub values: Vec<f64>,
}

impl<'a, B: Backend> Trial<'a, B> {
    pub fn new(operation: &'static str, backend: &'a mut B, tolerance: &'a Tolerance) -> Self {
        Self {
            backend,
            tolerance,
            random: Random::named(operation),
            case: String::new(),
            report: Report {
                operation,
                cases: 0,
                worst: 0.0,
                worst_case: String::new(),
            },
        }
    }

    /// Names the case that follows.
    pub fn case(&mut self, case: String) {
        self.case = case;
        self.report.cases += 1;
    }

    pub fn report(self) -> Report {
        self.report
    }

    /// Ends the check.
    pub fn fail(&self, why: &str) -> ! {
        let Self { report, case, .. } = self;
        let name = self.backend.name();
        panic!("{} on {name}: {case}: {why}", report.operation);
    }

    pub fn must<T>(&self, result: Result<T, BackendError>) -> T {
        match result {
            Ok(value) => value,
            Err(error) => self.fail(&error.to_string()),
        }
    }

    pub fn step(&mut self, capacity: &StepCapacity) -> B::Step {
        let step = self.backend.alloc_step(capacity);
        self.must(step)
    }

    /// A matrix of random values; what lies behind it is NaN.
    pub fn input(&mut self, n: usize, width: usize) -> Input<B> {
        let values = self.random.normals(n * width);
        self.input_of(&values, width)
    }

    /// A matrix of these values; what lies behind it is NaN.
    pub fn input_of(&mut self, values: &[f32], width: usize) -> Input<B> {
        self.matrix(values, width, f32::NAN)
    }

    /// A matrix that an operation changes in place; what lies behind it is guarded.
    pub fn in_place(&mut self, n: usize, width: usize) -> Input<B> {
        let values = self.random.normals(n * width);
        self.in_place_of(&values, width)
    }

    /// A matrix of these values that an operation changes in place; what lies behind it is guarded.
    pub fn in_place_of(&mut self, values: &[f32], width: usize) -> Input<B> {
        self.matrix(values, width, GUARD)
    }

    /// Room for a matrix, filled with NaN; what lies behind it is guarded.
    pub fn output(&mut self, n: usize, width: usize) -> B::Buffer {
        self.matrix(&vec![f32::NAN; n * width], width, GUARD).buffer
    }

    fn matrix(&mut self, values: &[f32], width: usize, behind: f32) -> Input<B> {
        let mut all = values.to_vec();
        all.resize(values.len() + GUARD_ROWS * width, behind);
        let buffer = self.backend.alloc(Element::F32, all.len());
        let mut buffer = self.must(buffer);
        self.backend.write_f32(&mut buffer, &all);
        let mut held = vec![0.0; values.len()];
        let read = self.backend.read_f32(&buffer, &mut held);
        self.must(read);
        let allowed = self.tolerance.buffer as f32;
        let near = |(wrote, held): (&f32, &f32)| {
            let same = wrote == held || wrote.is_nan() && held.is_nan();
            same || (wrote - held).abs() <= allowed * wrote.abs()
        };
        if !values.iter().zip(&held).all(near) {
            self.fail("a buffer does not hold what was written to it");
        }
        let values = held.into_iter().map(f64::from).collect();
        Input { buffer, values }
    }

    /// Room for indices, filled with a value that is none.
    pub fn index_output(&mut self, n: usize, width: usize) -> B::Buffer {
        self.indices(&[], (n + GUARD_ROWS) * width)
    }

    /// Indices on the device, filled up to `len` with a value that is none.
    pub fn indices(&mut self, values: &[u32], len: usize) -> B::Buffer {
        let mut all = values.to_vec();
        all.resize(len, GUARD_INDEX);
        let buffer = self.backend.alloc(Element::U32, len);
        let mut buffer = self.must(buffer);
        self.backend.write_u32(&mut buffer, &all);
        buffer
    }

    /// Reads indices, and checks that the guards behind them stand.
    pub fn read_indices(&mut self, buffer: &B::Buffer, n: usize, width: usize) -> Vec<u32> {
        let mut all = vec![0; (n + GUARD_ROWS) * width];
        let read = self.backend.read_u32(buffer, &mut all);
        self.must(read);
        if all[n * width..].iter().any(|index| *index != GUARD_INDEX) {
            self.fail("wrote behind the last row of indices");
        }
        all.truncate(n * width);
        all
    }

    /// Compares a matrix `[n, width]` with what it should be, and checks the guards behind it.
    pub fn expect(&mut self, out: &B::Buffer, expected: &[f64], width: usize, allowed: f64) {
        self.expect_scaled(out, expected, width, allowed, 0.0);
    }

    /// As [`expect`](Self::expect), for results that cancel: errors count against `scale` where
    /// the norm of what is expected is smaller.
    pub fn expect_scaled(
        &mut self,
        out: &B::Buffer,
        expected: &[f64],
        width: usize,
        allowed: f64,
        scale: f64,
    ) {
        let mut all = vec![0.0; expected.len() + GUARD_ROWS * width];
        let read = self.backend.read_f32(out, &mut all);
        self.must(read);
        let (out, behind) = all.split_at(expected.len());
        if behind.iter().any(|guard| *guard != GUARD) {
            self.fail("wrote behind the last row");
        }
        if let Some(index) = out.iter().position(|x| !x.is_finite()) {
            let (row, column) = (index / width, index % width);
            self.fail(&format!("{} at row {row}, column {column}", out[index]));
        }
        let squares = |(out, expected): (&f32, &f64)| (f64::from(*out) - expected).powi(2);
        let error = out.iter().zip(expected).map(squares).sum::<f64>().sqrt();
        let norm = expected.iter().map(|x| x * x).sum::<f64>().sqrt();
        let error = match error == 0.0 {
            true => 0.0,
            false => error / norm.max(scale),
        };
        self.judge(error, allowed);
    }

    /// Records an error, and ends the check where it is too large.
    pub fn judge(&mut self, error: f64, allowed: f64) {
        if error.is_nan() || error > allowed {
            self.fail(&format!("error {error:.3e}, allowed {allowed:.3e}"));
        }
        if error > self.report.worst {
            self.report.worst = error;
            self.report.worst_case.clone_from(&self.case);
        }
    }
}
