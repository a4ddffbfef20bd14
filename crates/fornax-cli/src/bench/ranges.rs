//! Lists of numbers as `llama-bench` takes them: `512`, `1,2,4`, `128-512*2`, `0-4096+1024`.

use std::num::{IntErrorKind, ParseIntError};
use std::str::FromStr;

/// The most numbers that one list may hold; a longer one was not meant.
const MOST: usize = 10_000;
/// What is accepted.
const FORMS: &str =
    "write whole numbers from 0 on: 512, a list 1,2,4 or a range 1-4, 0-4096+1024, 128-512*2";

/// Numbers in the order in which they were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Numbers(pub Vec<usize>);

impl FromStr for Numbers {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut numbers = Vec::new();
        for part in text.split(',') {
            range(part, &mut numbers)?;
        }
        Ok(Self(numbers))
    }
}

/// All numbers of several lists.
pub fn all(lists: &[Numbers]) -> Vec<usize> {
    lists.iter().flat_map(|list| list.0.clone()).collect()
}

/// `first`, `first-last`, `first-last+step` or `first-last*factor`.
fn range(text: &str, numbers: &mut Vec<usize>) -> Result<(), String> {
    // Its sign would be taken for that of a range.
    let signed = text.strip_prefix('-').unwrap_or_default();
    if signed.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(format!("`{text}` is negative; {FORMS}"));
    }
    let Some((first, rest)) = text.split_once('-') else {
        numbers.push(number(text)?);
        return Ok(());
    };
    let first = number(first)?;
    let (last, next): (_, Box<dyn Fn(usize) -> Option<usize>>) =
        if let Some((last, step)) = rest.split_once('+') {
            let step = number(step)?;
            (last, Box::new(move |at: usize| at.checked_add(step)))
        } else if let Some((last, factor)) = rest.split_once('*') {
            let factor = number(factor)?;
            (last, Box::new(move |at: usize| at.checked_mul(factor)))
        } else {
            (rest, Box::new(|at: usize| at.checked_add(1)))
        };
    let last = number(last)?;
    if last < first {
        return Err(format!("`{text}` ends before it begins"));
    }
    let mut at = Some(first);
    while let Some(current) = at.filter(|&at| at <= last) {
        if numbers.len() == MOST {
            return Err(format!("`{text}` makes more than {MOST} numbers"));
        }
        numbers.push(current);
        at = next(current);
        if at == Some(current) {
            return Err(format!("`{text}` never gets to {last}"));
        }
    }
    Ok(())
}

fn number(text: &str) -> Result<usize, String> {
    let wrong = |error: ParseIntError| match error.kind() {
        IntErrorKind::Empty => format!("a number is missing; {FORMS}"),
        IntErrorKind::PosOverflow => format!("`{text}` is too large a number"),
        _ => format!("`{text}` is no whole number; {FORMS}"),
    };
    text.parse().map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_are_what_llama_bench_makes_of_them() {
        let numbers = |text: &str| text.parse::<Numbers>().unwrap().0;
        assert_eq!(numbers("512"), [512]);
        assert_eq!(numbers("1,2"), [1, 2]);
        assert_eq!(numbers("4,1-3,9"), [4, 1, 2, 3, 9]);
        assert_eq!(numbers("128-512*2"), [128, 256, 512]);
        assert_eq!(numbers("128-600*2"), [128, 256, 512]);
        assert_eq!(numbers("0-4096+2048"), [0, 2048, 4096]);
        assert_eq!(numbers("7-7"), [7]);
    }

    #[test]
    fn what_is_no_list_is_told() {
        for (text, part) in [
            ("", "a number is missing; write whole numbers"),
            ("1,", "a number is missing"),
            ("5-", "a number is missing"),
            ("-1", "`-1` is negative; write whole numbers from 0 on"),
            ("4,-1-3", "`-1-3` is negative"),
            ("1--3", "`-3` is no whole number"),
            (
                "1-x",
                "`x` is no whole number; write whole numbers from 0 on",
            ),
            ("99999999999999999999", "too large"),
            ("0-8*2", "never gets to 8"),
            ("3-9+0", "never gets to 9"),
            ("9-3", "ends before"),
            ("0-999999", "more than"),
        ] {
            let error = text.parse::<Numbers>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
