//! Operations on each row by itself: norms, sums, scratch for them.
//!
//! Must not know weights other than vectors.

use crate::{
    cores::Cores,
    memory::Parts,
    pool::Pool,
    simd::{Kernel, LANES, Simd},
};

/// Elements below which a job is not worth waking other threads.
const ALONE: usize = 16 << 10;

/// Runs `job` for every row; on all threads where the rows of `width` elements are many.
pub(crate) fn run_rows(pool: &mut Pool, n: usize, width: usize, job: impl Fn(usize) + Sync) {
    if n * width <= ALONE {
        (0..n).for_each(job);
        return;
    }
    let rows_each = (ALONE / 4 / width.max(1)).max(1);
    pool.run(n.div_ceil(rows_each), |piece, _| {
        (piece * rows_each..n.min((piece + 1) * rows_each)).for_each(&job);
    });
}

/// `out = x / sqrt(mean(x²) + eps) * weight` for each row. All `[n, width]`, `weight` `[width]`.
pub(crate) fn rms_norm(
    cores: &mut Cores,
    out: &mut [f32],
    x: &[f32],
    weight: &[f32],
    eps: f32,
    n: usize,
) {
    let (isa, pool) = cores.parts();
    let (width, out) = (weight.len(), Parts::new(out));
    run_rows(pool, n, width, |row| {
        // SAFETY: each row is another place.
        let out = unsafe { out.part(row * width, width) };
        isa.run(RmsNorm {
            out,
            x: &x[row * width..(row + 1) * width],
            weight,
            eps,
        });
    });
}

/// `residual += x`, then `out = rms_norm(residual)`; all `[n, width]`.
pub(crate) fn add_rms_norm(
    cores: &mut Cores,
    out: &mut [f32],
    residual: &mut [f32],
    x: &[f32],
    weight: &[f32],
    eps: f32,
    n: usize,
) {
    let (isa, pool) = cores.parts();
    let width = weight.len();
    let (out, residual) = (Parts::new(out), Parts::new(residual));
    run_rows(pool, n, 2 * width, |row| {
        // SAFETY: each row is another place.
        let (out, residual) = unsafe {
            (
                out.part(row * width, width),
                residual.part(row * width, width),
            )
        };
        isa.run(Add {
            out: residual,
            x: &x[row * width..(row + 1) * width],
        });
        isa.run(RmsNorm {
            out,
            x: residual,
            weight,
            eps,
        });
    });
}

/// `out += x`, both `[n, width]`.
pub(crate) fn add(cores: &mut Cores, out: &mut [f32], x: &[f32], width: usize, n: usize) {
    let (isa, pool) = cores.parts();
    let out = Parts::new(out);
    run_rows(pool, n, width, |row| {
        // SAFETY: each row is another place.
        let out = unsafe { out.part(row * width, width) };
        isa.run(Add {
            out,
            x: &x[row * width..(row + 1) * width],
        });
    });
}

struct Add<'a> {
    out: &'a mut [f32],
    x: &'a [f32],
}

impl Kernel for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let whole = self.out.len() / LANES * LANES;
        let (out, rest) = self.out.split_at_mut(whole);
        let (x, x_rest) = self.x.split_at(whole);
        for (out, x) in out.chunks_exact_mut(LANES).zip(x.chunks_exact(LANES)) {
            s.write(out, s.add(s.read(out), s.read(x)));
        }
        rest.iter_mut().zip(x_rest).for_each(|(out, x)| *out += x);
    }
}

struct RmsNorm<'a> {
    out: &'a mut [f32],
    x: &'a [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let factor = norm_factor(s, self.x, self.eps);
        let whole = self.x.len() / LANES * LANES;
        let (out, rest) = self.out.split_at_mut(whole);
        let (x, x_rest) = self.x.split_at(whole);
        let (weight, weight_rest) = self.weight.split_at(whole);
        let inputs = x.chunks_exact(LANES).zip(weight.chunks_exact(LANES));
        for (out, (x, weight)) in out.chunks_exact_mut(LANES).zip(inputs) {
            s.write(
                out,
                s.mul(s.mul(s.read(x), s.splat(factor)), s.read(weight)),
            );
        }
        for (out, (x, weight)) in rest.iter_mut().zip(x_rest.iter().zip(weight_rest)) {
            *out = x * factor * weight;
        }
    }
}

/// RMS norm of a few values in place: a head. `x` and `weight` are `[dim]`.
#[inline(always)]
pub(crate) fn norm_in_place<S: Simd>(s: S, x: &mut [f32], weight: &[f32], eps: f32) {
    let factor = norm_factor(s, x, eps);
    let whole = x.len() / LANES * LANES;
    let (x, rest) = x.split_at_mut(whole);
    let (weight, weight_rest) = weight.split_at(whole);
    for (x, weight) in x.chunks_exact_mut(LANES).zip(weight.chunks_exact(LANES)) {
        s.write(x, s.mul(s.mul(s.read(x), s.splat(factor)), s.read(weight)));
    }
    for (x, weight) in rest.iter_mut().zip(weight_rest) {
        *x = *x * factor * weight;
    }
}

/// `1 / sqrt(mean(x²) + eps)`
#[inline(always)]
fn norm_factor<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    let mut sums = [s.splat(0.0); 2];
    let chunks = x.chunks_exact(2 * LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        let (low, high) = (s.read(chunk), s.read(&chunk[LANES..]));
        sums = [s.mul_add(low, low, sums[0]), s.mul_add(high, high, sums[1])];
    }
    let mut sum = s.sum(s.add(sums[0], sums[1]));
    for x in rest {
        sum += x * x;
    }
    1.0 / (sum / x.len() as f32 + eps).sqrt()
}
