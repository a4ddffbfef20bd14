//! Each rule of the engine by itself, on the fake runner.

use fornax_engine::testing::{FakeRunner, small_limits};
use fornax_engine::{Engine, KvPolicy, Request, SamplingParams};

#[test]
fn smoke() {
    let mut engine = Engine::new(FakeRunner::new(small_limits()), KvPolicy::Paged).unwrap();
    engine
        .submit(Request::generate(vec![1, 2, 3], SamplingParams::greedy()))
        .unwrap();
    let mut n = 0;
    while engine.step().is_some() {
        engine.check();
        n += engine.events().count();
    }
    assert_eq!(n, 62);
}
