//! Who may come in.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;

use crate::app::App;
use crate::openai::error::ApiError;

/// Lets a request through that shows a key, where keys are asked for.
///
/// # Errors
/// No key, or one that is not known.
pub async fn check(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let keys = &app.config.api_keys;
    if !keys.is_empty() {
        let shown = shown(request.headers()).ok_or_else(|| {
            ApiError::unauthorized("no API key; send the header `Authorization: Bearer KEY`")
        })?;
        if !is_known(keys, shown) {
            return Err(ApiError::unauthorized("the API key is not known here"));
        }
    }
    Ok(next.run(request).await)
}

fn shown(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key)
}

/// Takes as long for a key that is almost right as for one that is all wrong, whichever of the
/// keys it is: only a length can be told from the time.
fn is_known(keys: &[String], shown: &[u8]) -> bool {
    let matches = keys.iter().map(|key| equal(key.as_bytes(), shown));
    matches.fold(false, |known, equal| known | equal)
}

fn equal(key: &[u8], shown: &[u8]) -> bool {
    if key.len() != shown.len() {
        return false;
    }
    let pairs = key.iter().zip(shown);
    let different = pairs.fold(0, |seen, (a, b)| std::hint::black_box(seen | (a ^ b)));
    different == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_whole_key_is_known() {
        let keys = ["alpha".to_owned(), "beta".to_owned()];
        assert!(is_known(&keys, b"alpha") && is_known(&keys, b"beta"));
        for wrong in ["", "alph", "alphb", "alphaa", "Alpha"] {
            assert!(!is_known(&keys, wrong.as_bytes()), "{wrong}");
        }
    }

    #[test]
    fn the_scheme_is_bearer_in_any_case() {
        let told = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            shown(&headers).map(<[u8]>::to_vec)
        };
        assert_eq!(told("Bearer k"), Some(b"k".to_vec()));
        assert_eq!(told("bearer k"), Some(b"k".to_vec()));
        assert_eq!(told("Basic k"), None);
        assert_eq!(told("Bear"), None);
    }
}
