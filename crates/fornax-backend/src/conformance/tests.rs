//! The suite on the reference recorded and replayed, and what replaying shows.

use super::Replay;
use crate::{Backend, Element, KvShape, KvType, Reference, StepShape};

mod replayed {
    use crate::Reference;
    use crate::conformance::{Replay, Tolerance};

    crate::conformance_suite!(Replay::new(Reference), Tolerance::single_precision());
}

/// A file or an option may ask for any number of pages.
#[test]
fn what_no_memory_holds_is_refused() {
    assert!(Reference.alloc(Element::F32, 1 << 60).is_err());
    for element in [KvType::F32, KvType::F16, KvType::Q8_0] {
        let shape = KvShape {
            pages: usize::MAX,
            page_size: 64,
            kv_heads: 2,
            k_dim: 32,
            v_dim: 32,
            element,
        };
        let error = Reference.alloc_kv(&shape).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("KV cache"), "{error}");
    }
}

/// Adds `x` in a recorded step: first once, then twice, as the host counts.
fn violation<B: Backend>(mut backend: B) -> Vec<f32> {
    let shape = StepShape::default();
    let mut x = backend.alloc(Element::F32, 1).unwrap();
    let mut out = backend.alloc(Element::F32, 1).unwrap();
    backend.write_f32(&mut x, &[1.0]);
    let mut answers = Vec::new();
    for times in [1, 2] {
        backend.write_f32(&mut out, &[0.0]);
        let operations = |backend: &mut B| {
            for _ in 0..times {
                backend.add(&mut out, &x, 1, 1);
            }
        };
        backend.record(&shape, operations).unwrap();
        let mut answer = [0.0];
        backend.read_f32(&out, &mut answer).unwrap();
        answers.extend(answer);
    }
    answers
}

#[test]
fn a_host_value_inside_of_record_shows_when_replayed() {
    assert_eq!(violation(Reference), [1.0, 2.0]);
    assert_eq!(violation(Replay::new(Reference)), [1.0, 1.0]);
}

#[test]
fn device_values_change_from_replay_to_replay() {
    let mut backend = Replay::new(Reference);
    let mut x = backend.alloc(Element::F32, 1).unwrap();
    let mut out = backend.alloc(Element::F32, 1).unwrap();
    for (value, expected) in [(1.0, 1.0), (2.0, 3.0), (3.0, 6.0)] {
        backend.write_f32(&mut x, &[value]);
        if value == 1.0 {
            backend.write_f32(&mut out, &[0.0]);
        }
        let add = |backend: &mut Replay<Reference>| backend.add(&mut out, &x, 1, 1);
        backend.record(&StepShape::default(), add).unwrap();
        let mut answer = [0.0];
        backend.read_f32(&out, &mut answer).unwrap();
        assert_eq!(answer, [expected]);
    }
    assert_eq!(backend.shapes(), 1);
}

#[test]
#[should_panic(expected = "`read_f32` inside of `record`")]
fn reading_back_inside_of_record_panics() {
    let mut backend = Replay::new(Reference);
    let x = backend.alloc(Element::F32, 1).unwrap();
    let read = |backend: &mut Replay<Reference>| {
        backend.read_f32(&x, &mut [0.0]).unwrap();
    };
    backend.record(&StepShape::default(), read).unwrap();
}

#[test]
#[should_panic(expected = "`copy_kv` inside of `record`")]
fn copying_pages_inside_of_record_panics() {
    let mut backend = Replay::new(Reference);
    let shape = crate::KvShape {
        pages: 2,
        page_size: 1,
        kv_heads: 1,
        k_dim: 1,
        v_dim: 1,
        element: crate::KvType::F32,
    };
    let mut kv = backend.alloc_kv(&shape).unwrap();
    let copy = |backend: &mut Replay<Reference>| backend.copy_kv(&mut kv, 0, 1, 1);
    backend.record(&StepShape::default(), copy).unwrap();
}
