//! Errors in the form that OpenAI's clients know. Which status means what stands here alone.

use std::time::Duration;

use axum::Json;
use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use fornax::{RequestError, SamplingError};
use serde_json::{Value, json};

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    /// The field that is to blame.
    param: Option<String>,
    /// A word that programs compare.
    code: Option<&'static str>,
}

impl ApiError {
    /// The request is wrong.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::BAD_REQUEST,
            message: message.into(),
            param: None,
            code: None,
        }
    }

    /// This field of the request is wrong.
    pub fn field(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self::bad_request(message).about(name)
    }

    /// There is no such model here.
    pub fn unknown_model(asked: &str, served: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            code: Some("model_not_found"),
            ..Self::field(
                "model",
                format!("the model `{asked}` is not served here; ask for `{served}`"),
            )
        }
    }

    /// There is no such address.
    pub fn unknown_path(method: &str, path: &str) -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            ..Self::bad_request(format!("there is no {method} {path}"))
        }
    }

    /// The address is there for another method.
    pub fn wrong_method(method: &str, path: &str) -> Self {
        Self {
            status: StatusCode::METHOD_NOT_ALLOWED,
            ..Self::bad_request(format!("{path} does not take {method}"))
        }
    }

    /// The key is missing or not one of ours.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::UNAUTHORIZED,
            code: Some("invalid_api_key"),
            ..Self::bad_request(message)
        }
    }

    /// Too many wait already.
    pub fn busy(waiting: usize) -> Self {
        Self {
            status: StatusCode::TOO_MANY_REQUESTS,
            code: Some("queue_full"),
            ..Self::bad_request(format!(
                "all {waiting} places of running and waiting answers are taken; try again in a moment"
            ))
        }
    }

    /// The body has more bytes than the server takes.
    pub fn too_large() -> Self {
        Self {
            status: StatusCode::PAYLOAD_TOO_LARGE,
            ..Self::bad_request(
                "the body is larger than this server takes; shorten it, or start the server with a larger --body-limit",
            )
        }
    }

    /// The body did not come in time.
    pub fn too_slow(limit: Duration) -> Self {
        Self {
            status: StatusCode::REQUEST_TIMEOUT,
            ..Self::bad_request(format!(
                "the body did not come within {} seconds; send it faster, or start the server with a longer --body-timeout",
                limit.as_secs_f64()
            ))
        }
    }

    /// The server ends, and the time for answers that run is over.
    pub fn ending() -> Self {
        Self {
            status: StatusCode::SERVICE_UNAVAILABLE,
            code: Some("server_ending"),
            ..Self::bad_request(
                "the server was told to end and this answer took longer than --drain allows; ask again once it is back",
            )
        }
    }

    /// Our fault.
    pub fn internal(message: impl Into<String>) -> Self {
        Self {
            status: StatusCode::INTERNAL_SERVER_ERROR,
            ..Self::bad_request(message)
        }
    }

    /// Names the field that is to blame.
    pub fn about(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Names the field that is to blame where none is known yet.
    pub fn or_about(mut self, param: &str) -> Self {
        self.param.get_or_insert_with(|| param.to_owned());
        self
    }

    /// What stands in the body of the answer, or in an event of a stream that has begun.
    pub fn body(&self) -> Value {
        json!({"error": {
            "message": self.message,
            "type": self.kind(),
            "param": self.param,
            "code": self.code,
        }})
    }

    fn kind(&self) -> &'static str {
        match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::TOO_MANY_REQUESTS => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}

impl From<fornax::Error> for ApiError {
    fn from(error: fornax::Error) -> Self {
        let message = error.to_string();
        match error {
            fornax::Error::Request(error) => Self {
                param: param(&error),
                code: matches!(
                    error,
                    RequestError::PromptTooLong { .. } | RequestError::NoRoomForAnswer { .. }
                )
                .then_some("context_length_exceeded"),
                ..Self::bad_request(message)
            },
            fornax::Error::Text(
                fornax::text::Error::EmptyStopString { .. }
                | fornax::text::Error::LongStopStrings { .. },
            ) => Self::field("stop", message),
            fornax::Error::Text(fornax::text::Error::UnknownToken { .. }) => {
                Self::field("tokens", message)
            }
            fornax::Error::Text(_) => Self::field("messages", message),
            fornax::Error::Options(_) => Self::bad_request(message),
            fornax::Error::Load(_) | fornax::Error::Limits(_) | fornax::Error::Failed(_) => {
                Self::internal(message)
            }
        }
    }
}

impl From<BytesRejection> for ApiError {
    fn from(rejection: BytesRejection) -> Self {
        match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Self::too_large(),
            status => Self {
                status,
                ..Self::bad_request(rejection.body_text())
            },
        }
    }
}

/// The field that the engine found fault with, where it has one name in the protocol.
fn param(error: &RequestError) -> Option<String> {
    let name = match error {
        RequestError::NoTokens | RequestError::BeyondCache { .. } => "max_tokens",
        RequestError::TopLogprobs { .. } => "top_logprobs",
        RequestError::Sampling(SamplingError::Range { name, .. }) => name,
        RequestError::Sampling(SamplingError::UnknownToken { .. }) => "logit_bias",
        _ => return None,
    };
    Some(name.to_owned())
}
