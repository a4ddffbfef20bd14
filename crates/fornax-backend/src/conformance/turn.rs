//! What happens to Q and K on the way to attention: norms and rotation, as specs and on values.

use fornax_gguf::DType;

use super::cache::World;
use super::oracle;
use super::tensors::Tensor;
use super::trial::Trial;
use crate::{Backend, KvType, QkvSpec, RopeSpec, RopeStyle, StepRows};

/// What happens to Q and K on the way to attention.
pub(super) struct Turn<B: Backend> {
    style: RopeStyle,
    frequencies: Vec<f32>,
    magnitude: f32,
    uploaded: B::Weight,
    /// Of Q and of K.
    norms: Option<[(Tensor, B::Weight); 2]>,
}

impl<B: Backend> Turn<B> {
    pub fn new(
        trial: &mut Trial<'_, B>,
        dim: usize,
        style: RopeStyle,
        rotary: usize,
        norms: bool,
    ) -> Self {
        let frequencies: Vec<f32> = (0..rotary / 2)
            .map(|pair| 0.8_f32.powi(pair as i32))
            .collect();
        let turn = Tensor::of(DType::F32, &[rotary / 2], &frequencies);
        let mut upload = |tensor: &Tensor| {
            let uploaded = trial.backend.upload(&[tensor.view()]);
            trial.must(uploaded)
        };
        let uploaded = upload(&turn);
        let norms = norms.then(|| {
            [(), ()].map(|()| {
                let norm = Tensor::norm(&mut trial.random, dim);
                let uploaded = trial.backend.upload(&[norm.view()]);
                let uploaded = trial.must(uploaded);
                (norm, uploaded)
            })
        });
        Self {
            style,
            frequencies,
            magnitude: trial.random.pick(&[1.0, 1.25]),
            uploaded,
            norms,
        }
    }

    pub fn spec(&self, world: &World<B>) -> QkvSpec<'_, B::Weight> {
        let [q, k, v] = world.heads();
        QkvSpec {
            group: world.group,
            q,
            k,
            v,
            norms: self.norms.as_ref().map(|[q, k]| (&q.1, &k.1)),
            eps: 1e-6,
            rope: RopeSpec {
                style: self.style,
                rotary: 2 * self.frequencies.len(),
                frequencies: &self.uploaded,
                magnitude: self.magnitude,
            },
        }
    }

    /// The same on the values of fused rows.
    pub fn apply(&self, world: &World<B>, rows: &StepRows, fused: &mut [f64]) {
        let [q, k, _] = world.heads();
        for (row, position) in fused.chunks_mut(q.stride).zip(rows.positions()) {
            for (index, heads) in [q, k].into_iter().enumerate() {
                let columns = heads.offset..heads.offset + heads.count * heads.dim;
                for head in row[columns].chunks_mut(heads.dim) {
                    if let Some(norms) = &self.norms {
                        let eps = f64::from(1e-6_f32);
                        head.copy_from_slice(&oracle::rms_norm(head, &norms[index].0.values, eps));
                    }
                    let turned = oracle::rope(
                        head,
                        position,
                        &self.frequencies,
                        self.style,
                        f64::from(self.magnitude),
                    );
                    head.copy_from_slice(&turned);
                }
            }
        }
    }
}

/// A K in the middle between two numbers of the cache may be rounded the other way.
pub(super) fn slack(element: KvType) -> f64 {
    match element {
        KvType::F32 => 0.0,
        KvType::F16 | KvType::Bf16 => 1e-4,
        // Between two steps of 127.
        KvType::Q8_0 => 2e-2,
    }
}
