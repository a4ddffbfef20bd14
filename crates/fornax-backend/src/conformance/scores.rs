//! Checks of attention where scores are far apart.

use super::cache::{Scores, Variant, World, pages_for};
use super::trial::Trial;
use super::{Report, Tolerance};
use crate::{Backend, KvShape, KvType};

/// One answer, some, and a prompt in part, whose scores are far apart.
pub fn uneven_scores<B: Backend>(backend: &mut B, tolerance: &Tolerance) -> Report {
    let mut trial = Trial::new("uneven_scores", backend, tolerance);
    for (case, element) in [KvType::F16, KvType::Bf16, KvType::Q8_0]
        .into_iter()
        .enumerate()
    {
        for k_dim in [64, 128] {
            for scores in SCORES {
                check_scores(&mut trial, element, k_dim, case, scores);
            }
        }
    }
    trial.report()
}

/// Scores that rise by e⁵ and more over sixteen positions, behind many of them: weights of those before have
/// to be made smaller again and again. And a position that has nearly all of the weight.
const SCORES: [Scores; 2] = [Scores::Rising(0.35), Scores::Sink(13.0)];

fn check_scores<B: Backend>(
    trial: &mut Trial<'_, B>,
    element: KvType,
    k_dim: usize,
    case: usize,
    scores: Scores,
) {
    let spans = [
        (150, 1),
        (97, 1),
        (33, 1),
        (120, 1),
        (64, 1),
        (140, 1),
        (40, 70 + case),
    ];
    // Answers are in up to three steps.
    let lengths = spans.map(|(cached, len)| cached + len + 2);
    let shape = KvShape {
        pages: pages_for(lengths.into_iter(), 16),
        page_size: 16,
        kv_heads: 2,
        k_dim,
        v_dim: k_dim,
        element,
    };
    trial.case(format!(
        "scores beside noise {scores:?}, {shape:?}, rows {spans:?}"
    ));
    let mut world = World::scored(trial, shape, 4, spans.len(), scores);
    let cached = spans.map(|(cached, _)| cached);
    let cached: Vec<(usize, usize)> = cached.into_iter().enumerate().collect();
    world.advance(trial, &cached);
    // A score in single precision is off by half an epsilon of its size at least, and its weight by as much.
    let longest = lengths.into_iter().fold(0, usize::max);
    let largest = f64::from(scores.largest(longest));
    let rounded = match element {
        KvType::Bf16 => trial.tolerance.score,
        _ => trial.tolerance.score / 8.0,
    };
    let variant = Variant {
        slack: largest * rounded.max(f64::from(f32::EPSILON)),
        ..Variant::default()
    };
    for rows in [1, 6, spans.len()] {
        let new = spans[..rows].iter().map(|(_, len)| *len);
        let new: Vec<(usize, usize)> = new.enumerate().collect();
        let (rows, fused) = world.advance(trial, &new);
        world.attend(trial, &rows, &fused, variant);
    }
}
