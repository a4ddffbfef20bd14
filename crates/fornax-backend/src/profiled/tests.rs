//! A profiled backend computes what the one inside of it does, and counts it.

use fornax_gguf::{DType, TensorView};

use super::*;
use crate::conformance::{Tolerance, run};
use crate::{Reference, StepShape};

/// The reference passes the suite here, and nowhere else alone.
#[test]
fn the_reference_conforms_while_it_is_profiled() {
    let make = || Profiled::new(Reference).unwrap();
    let reports = run(make, &Tolerance::single_precision());
    for report in &reports {
        println!("{report}");
        assert!(report.cases >= 3, "{report}");
    }
    // Not all of them can be exact: an error of 0 everywhere would mean that nothing is compared.
    assert!(reports.iter().filter(|report| report.worst > 0.0).count() > 10);
}

#[test]
fn what_is_spent_stands_under_layer_and_operation() {
    let mut backend = Profiled::new(Reference).unwrap();
    let profile = backend.profile();
    let mut weight = |name, shape: &[usize]| {
        let data = vec![0; 4 * shape.iter().product::<usize>()];
        let view = TensorView {
            name,
            dtype: DType::F32,
            shape,
            data: &data,
        };
        backend.upload(&[view]).unwrap()
    };
    let (seventh, head) = (
        weight("blk.7.attn_q.weight", &[6, 4]),
        weight("output.weight", &[5, 4]),
    );
    let mut x = backend.alloc(Element::F32, 12).unwrap();
    let mut out = backend.alloc(Element::F32, 18).unwrap();
    backend.write_f32(&mut x, &[1.0; 12]);
    let shape = StepShape::default();
    let done = backend.record(&shape, |backend| {
        backend.linear(&mut out, &seventh, None, &x, 3);
        backend.linear(&mut out, &seventh, None, &x, 1);
        backend.add(&mut out, &x, 4, 3);
        backend.linear(&mut out, &head, None, &x, 2);
    });
    done.unwrap();

    let spent = profile.take();
    let counts = |layer, name, weight: Option<&str>| {
        let weight = weight.map(Arc::from);
        let spent = spent[&Operation {
            layer,
            name,
            weight,
        }];
        (spent.calls, spent.bytes, spent.macs)
    };
    let first = counts(Some(7), "linear", Some("attn_q"));
    assert_eq!(first, (2, 2 * 96, 4 * 24));
    // An operation without a weight belongs where the one before it did.
    assert_eq!(counts(Some(7), "add", None), (1, 0, 0));
    assert_eq!(counts(None, "linear", Some("output")), (1, 80, 2 * 20));
    assert_eq!(spent.len(), 3);
    assert!(profile.take().is_empty());
}

#[test]
fn queries_cost_what_attends() {
    let weight = ProfiledWeight {
        weight: (),
        label: "qkv".into(),
        layer: None,
        bytes: 80,
        elements: 160,
        outer: 8,
        sketched: None,
    };
    let cost = |attending| {
        let cost = weight.projection(4, attending, 5);
        (cost.bytes, cost.macs)
    };
    assert_eq!(cost(5), (80, 160 * 5));
    assert_eq!(cost(1), (80, 80 * 5 + 80));
    assert_eq!(cost(0), (40, 80 * 5));
}

#[test]
fn a_layer_is_read_off_the_name() {
    assert_eq!(layer_of("blk.12.ffn_up.weight"), Some(12));
    for name in [
        "token_embd.weight",
        "blk.weight",
        "blk.x.weight",
        "computed",
    ] {
        assert_eq!(layer_of(name), None, "{name}");
    }
}
