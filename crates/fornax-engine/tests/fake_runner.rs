//! The fake runner itself: what it must honour, and the lies that it must not believe.

use fornax_engine::testing::{FakeRunner, expected_logits, expected_token, kv_group, small_limits};
use fornax_engine::{
    Admission, PageCopy, PageId, RowOutput, Runner, SamplingParams, StepBatch, StepOutput, Token,
    Want,
};

const SAMPLE: Want = Want::Sample { logprobs: None };

fn admit(batch: &mut StepBatch, slot: usize, tokens: &[Token]) {
    batch.admissions.push(Admission {
        slot,
        params: SamplingParams::greedy(),
        tokens: tokens.to_vec(),
        prompt: tokens.len(),
    });
}

fn row(
    batch: &mut StepBatch,
    slot: usize,
    tokens: &[Token],
    cached: usize,
    want: Want,
    pages: &[PageId],
) {
    batch.push_tokens(slot, tokens, cached, want);
    batch.push_table(pages);
}

fn run(runner: &mut FakeRunner, batch: &StepBatch) -> Vec<RowOutput> {
    let mut output = StepOutput::default();
    runner
        .step(batch, &mut output)
        .expect("no fault was injected");
    output.rows
}

/// A runner on which slot 0 has these six tokens in pages 3 and 5.
fn with_six_cached() -> FakeRunner {
    let mut runner = FakeRunner::new(small_limits());
    let mut batch = StepBatch::default();
    admit(&mut batch, 0, &[1, 2, 3, 4, 5, 6]);
    row(
        &mut batch,
        0,
        &[1, 2, 3, 4, 5, 6],
        0,
        Want::Nothing,
        &[3, 5],
    );
    assert_eq!(run(&mut runner, &batch), [RowOutput::Nothing]);
    runner
}

fn token(output: &RowOutput) -> Token {
    match output {
        RowOutput::Sampled { token, .. } => *token,
        other => panic!("{other:?} instead of a token"),
    }
}

#[test]
fn a_shared_full_page_and_a_copied_part_of_one_serve_another_sequence() {
    let mut runner = with_six_cached();
    let mut batch = StepBatch::default();
    // Slot 1 begins with the same five tokens: page 3 is shared, one token of page 5 is copied.
    admit(&mut batch, 1, &[1, 2, 3, 4, 5, 9, 9]);
    batch.copies.push(PageCopy {
        group: 0,
        source: 5,
        destination: 8,
        tokens: 1,
    });
    row(&mut batch, 1, &[9, 9], 5, SAMPLE, &[3, 8]);
    let drawn = token(&run(&mut runner, &batch)[0]);
    assert_eq!(drawn, expected_token(&[1, 2, 3, 4, 5, 9, 9], 7, 0, 100));
    // The page copied from is as it was.
    batch.clear();
    admit(&mut batch, 2, &[1, 2, 3, 4, 5, 6, 7]);
    row(&mut batch, 2, &[7], 6, SAMPLE, &[3, 5]);
    assert_eq!(
        token(&run(&mut runner, &batch)[0]),
        expected_token(&[1, 2, 3, 4, 5, 6, 7], 7, 0, 100)
    );
}

#[test]
fn copies_come_before_anything_is_written() {
    let mut runner = with_six_cached();
    let mut batch = StepBatch::default();
    // Slot 0 goes on in page 5 in the very step that copies it.
    admit(&mut batch, 0, &[1, 2, 3, 4, 5, 6, 7]);
    admit(&mut batch, 1, &[1, 2, 3, 4, 5, 6, 8]);
    batch.copies.push(PageCopy {
        group: 0,
        source: 5,
        destination: 8,
        tokens: 2,
    });
    row(&mut batch, 0, &[7], 6, Want::Logits(0..1), &[3, 5]);
    row(&mut batch, 1, &[8], 6, Want::Logits(0..1), &[3, 8]);
    let expected = [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 8]]
        .map(|tokens| RowOutput::Logits(expected_logits(&tokens, 100)));
    assert_eq!(run(&mut runner, &batch), expected);
}

#[test]
fn a_row_takes_the_token_of_the_step_in_flight() {
    let mut runner = FakeRunner::new(small_limits());
    let mut first = StepBatch::default();
    admit(&mut first, 0, &[1, 2]);
    row(&mut first, 0, &[1, 2], 0, SAMPLE, &[0]);
    let mut second = StepBatch::default();
    second.push_from_step(0, 0, 2, SAMPLE);
    second.push_table(&[0]);
    // Both are submitted before the first is waited for.
    let tickets = [&first, &second].map(|batch| runner.submit(batch).unwrap());
    let mut all = vec![1, 2];
    for ticket in tickets {
        let mut output = StepOutput::default();
        runner.wait(ticket, &mut output).unwrap();
        let expected = expected_token(&all, 2, 0, 100);
        assert_eq!(token(&output.rows[0]), expected);
        all.push(expected);
    }
}

/// Runs a step on which slot 0 has six tokens in pages 3 and 5.
fn lie(build: impl FnOnce(&mut StepBatch)) {
    let mut batch = StepBatch::default();
    build(&mut batch);
    run(&mut with_six_cached(), &batch);
}

#[test]
#[should_panic(expected = "position 4 is not cached")]
fn a_page_that_was_never_written_is_found() {
    lie(|batch| {
        admit(batch, 1, &[1, 2, 3, 4, 5, 6, 7]);
        row(batch, 1, &[7], 6, SAMPLE, &[3, 6]);
    });
}

#[test]
#[should_panic(expected = "position 0 is not cached")]
fn pages_in_the_wrong_order_are_found() {
    lie(|batch| {
        admit(batch, 1, &[1, 2, 3, 4, 5, 6, 7]);
        row(batch, 1, &[7], 6, SAMPLE, &[5, 3]);
    });
}

#[test]
#[should_panic(expected = "position 1 is not cached")]
fn the_right_token_behind_another_prefix_is_found() {
    lie(|batch| {
        admit(batch, 1, &[1, 9, 3, 4]);
        row(batch, 1, &[4], 3, SAMPLE, &[3]);
    });
}

#[test]
#[should_panic(expected = "other tokens than the sequence's")]
fn a_gap_in_the_sequence_is_found() {
    lie(|batch| {
        admit(batch, 0, &[1, 2, 3, 4, 5, 6, 7, 8]);
        row(batch, 0, &[8], 6, SAMPLE, &[3, 5]);
    });
}

#[test]
#[should_panic(expected = "is written while shared")]
fn a_shared_page_that_is_written_is_found() {
    lie(|batch| {
        admit(batch, 0, &[1, 2, 3, 4, 5, 6, 7]);
        admit(batch, 1, &[1, 2, 3, 4, 5, 6, 8]);
        row(batch, 0, &[7], 6, SAMPLE, &[3, 5]);
        row(batch, 1, &[8], 6, SAMPLE, &[3, 5]);
    });
}

#[test]
#[should_panic(expected = "a copy of what was never written")]
fn a_copy_of_nothing_is_found() {
    lie(|batch| {
        admit(batch, 0, &[1, 2, 3, 4, 5, 6, 7]);
        batch.copies.push(PageCopy {
            group: 0,
            source: 5,
            destination: 8,
            tokens: 3,
        });
        row(batch, 0, &[7], 6, SAMPLE, &[3, 8]);
    });
}

#[test]
#[should_panic(expected = "a row in a slot that nobody took")]
fn a_slot_that_nobody_took_is_found() {
    lie(|batch| row(batch, 1, &[1], 0, SAMPLE, &[7]));
}

#[test]
#[should_panic(expected = "one row a slot and step")]
fn two_rows_of_one_slot_are_found() {
    lie(|batch| {
        admit(batch, 0, &[1]);
        row(batch, 0, &[1], 0, SAMPLE, &[7]);
        row(batch, 0, &[1], 0, SAMPLE, &[8]);
    });
}

#[test]
#[should_panic(expected = "more tokens than fit")]
fn a_step_over_its_budget_is_found() {
    lie(|batch| {
        admit(batch, 0, &[1; 17]);
        row(batch, 0, &[1; 17], 0, SAMPLE, &[7, 8, 9, 10, 11]);
    });
}

#[test]
#[should_panic(expected = "no such page")]
fn a_page_beyond_the_pool_is_found() {
    let mut limits = small_limits();
    limits.kv_groups = vec![kv_group(4, 2)];
    let mut batch = StepBatch::default();
    admit(&mut batch, 0, &[1]);
    row(&mut batch, 0, &[1], 0, SAMPLE, &[2]);
    run(&mut FakeRunner::new(limits), &batch);
}
