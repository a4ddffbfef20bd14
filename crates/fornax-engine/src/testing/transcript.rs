//! What one request was told, put together again.
//!
//! Owns the rules of an event stream: order, no gap in the logits, one end and nothing after it.

use crate::{EventKind, Failure, FinishReason, Token, Usage};

/// The events of one request so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Transcript {
    /// Whether it ever had a slot.
    pub started: bool,
    /// Tokens of the answer.
    pub tokens: Vec<Token>,
    /// Position of the first logits, once there are any.
    pub first_position: Option<usize>,
    /// `[n_positions][vocabulary]`
    pub logits: Vec<Vec<f32>>,
    /// The prompt's vector. `[width]`
    pub pooled: Option<Vec<f32>>,
    /// The `Finished` or `Failed` that ended it.
    pub end: Option<EventKind>,
}

impl Transcript {
    /// All of these events.
    pub fn of(events: impl IntoIterator<Item = EventKind>) -> Self {
        let mut transcript = Self::default();
        for event in events {
            transcript.record(event);
        }
        transcript
    }

    /// Adds the next event, and panics when it cannot follow those before it.
    pub fn record(&mut self, event: EventKind) {
        assert!(self.end.is_none(), "{event:?} after the end {:?}", self.end);
        match event {
            EventKind::Started => {
                assert_eq!(*self, Self::default(), "a start behind something else");
                self.started = true;
            }
            EventKind::Token { token, .. } => self.tokens.push(token),
            EventKind::Logits { positions, values } => {
                let first = *self.first_position.get_or_insert(positions.start);
                assert_eq!(
                    positions.start,
                    first + self.logits.len(),
                    "a gap in the logits"
                );
                let width = values.len() / positions.len();
                self.logits
                    .extend(values.chunks(width).map(<[f32]>::to_vec));
            }
            EventKind::Pooled(vector) => {
                assert_eq!(self.pooled, None, "a second vector");
                self.pooled = Some(vector);
            }
            EventKind::Finished { .. } | EventKind::Failed(_) => self.end = Some(event),
        }
    }

    /// Why it finished, if it did.
    pub fn reason(&self) -> Option<FinishReason> {
        match self.end {
            Some(EventKind::Finished { reason, .. }) => Some(reason),
            _ => None,
        }
    }

    /// What it took, if it finished.
    pub fn usage(&self) -> Option<Usage> {
        match self.end {
            Some(EventKind::Finished { usage, .. }) => Some(usage),
            _ => None,
        }
    }

    /// Why it failed, if it did.
    pub fn failure(&self) -> Option<&Failure> {
        match &self.end {
            Some(EventKind::Failed(failure)) => Some(failure),
            _ => None,
        }
    }
}
