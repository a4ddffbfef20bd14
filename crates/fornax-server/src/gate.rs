//! How many answers may run or wait at once.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::openai::error::ApiError;

/// Lets in as many answers as there are places.
pub struct Gate {
    places: Arc<Semaphore>,
    capacity: usize,
}

/// Places that are taken until this is dropped.
pub struct Place {
    _permit: OwnedSemaphorePermit,
}

impl Gate {
    /// A gate with so many places.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            places: Arc::new(Semaphore::new(capacity)),
            capacity,
        }
    }

    /// Takes places for so many answers, or none.
    ///
    /// # Errors
    /// Not so many are free, or there are not so many at all.
    pub fn admit(&self, answers: usize) -> Result<Place, ApiError> {
        if answers > self.capacity {
            return Err(ApiError::bad_request(format!(
                "the request asks for {answers} answers, and this server has places for {} in all; split it",
                self.capacity
            )));
        }
        // Lossless: not above the capacity, which the semaphore can count.
        let permit = self.places.clone().try_acquire_many_owned(answers as u32);
        let permit = permit.map_err(|_| ApiError::busy(self.capacity))?;
        Ok(Place { _permit: permit })
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use axum::response::IntoResponse;

    use super::*;

    fn refused(gate: &Gate, answers: usize) -> Option<StatusCode> {
        let error = gate.admit(answers).err();
        error.map(|error| error.into_response().status())
    }

    #[test]
    fn places_are_taken_together_and_come_back() {
        let gate = Gate::new(3);
        let two = gate.admit(2).unwrap();
        assert_eq!(refused(&gate, 2), Some(StatusCode::TOO_MANY_REQUESTS));
        let one = gate.admit(1).unwrap();
        assert_eq!(refused(&gate, 1), Some(StatusCode::TOO_MANY_REQUESTS));
        drop((one, two));
        assert_eq!(refused(&gate, 3), None);
    }

    #[test]
    fn what_never_fits_is_no_matter_of_waiting() {
        assert_eq!(refused(&Gate::new(3), 4), Some(StatusCode::BAD_REQUEST));
    }
}
